"""A real S3 server over HTTP, moto's, as a process of its own on a free port."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

START_TIMEOUT_S = 60.0


class S3Server:
    """Started with ``start`` or ``with``, and killed by its own process id. It keeps objects in memory: with its
    process they are gone."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint_url(self) -> str:
        """Stays the same over restarts."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """What fsspec's ``s3`` needs to reach it."""
        return {"key": "test", "secret": "test", "endpoint_url": self.endpoint_url}  # moto takes any

    def start(self) -> None:
        """Return when it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self._process.poll() is None, f"moto's server ended; see {self._log}"
            assert time.monotonic() < deadline, f"moto's server did not answer; see {self._log}"
            time.sleep(0.05)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.endpoint_url}/moto-api/data.json", timeout=5):  # noqa: S310
            return True
        return False

    def kill(self) -> None:
        """SIGKILL; it can be started again, with nothing in it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
