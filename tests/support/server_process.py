"""A server for tests, as a process of its own."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self


class Startable:
    """Something that ``with`` starts and ends, also if it did not start."""

    def start(self) -> None:
        """Start the server, and return when it answers."""
        raise NotImplementedError

    def close(self) -> None:
        """End the server for good."""
        raise NotImplementedError

    def mend(self, error: str) -> int:
        """Repair what a kill has broken, as an operator does after ``error``. Return the number of repairs.

        Most servers need none.
        """
        return 0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ServerProcess(Startable):
    """A server that is ended by its own process id, and may be started again. It answers when a request for the
    path ``_asked`` is answered, or refused."""

    _process: subprocess.Popen[bytes] | None = None
    _port: int
    _asked = "/"

    @property
    def endpoint_url(self) -> str:
        """The URL of a server that listens at one port; the same over restarts."""
        return f"http://127.0.0.1:{self._port}"

    def __getstate__(self) -> dict[str, Any]:
        """Another process gets the address, and can neither kill the server nor start it."""
        return {name: value for name, value in vars(self).items() if name != "_process"}

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.endpoint_url}{self._asked}", timeout=5).close()  # noqa: S310
        except urllib.error.HTTPError as error:
            return error.code < 500
        except OSError:
            return False
        return True

    def _start(self, name: str, command: list[str], log: Path, timeout_s: float, **options: Any) -> None:
        """Run ``command``, and return when the server answers. ``name`` is for errors, ``options`` for ``Popen``."""
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **options)
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            assert self._process.poll() is None, f"{name} ended:\n{log.read_text(errors='replace')}"
            assert time.monotonic() < deadline, f"{name} did not answer:\n{log.read_text(errors='replace')}"
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def restart_if_killed(self) -> None:
        """Start the server again if somebody has killed it."""
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
