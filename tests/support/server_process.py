"""A server for tests, as a separate process."""

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
    """A context manager that starts a server and ends it, even if it failed to start."""

    def start(self) -> None:
        """Start the server, and return when it responds."""
        raise NotImplementedError

    def close(self) -> None:
        """End the server permanently."""
        raise NotImplementedError

    def mend(self, error: str) -> int:
        """Repair the damage of a kill, as an operator would after ``error``. Return the number of repairs.

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
    """A server that is ended by its process id and can be restarted. It counts as started once a request for the path
    ``_asked`` succeeds or is refused."""

    _process: subprocess.Popen[bytes] | None = None
    _port: int
    _asked = "/"

    @property
    def endpoint_url(self) -> str:
        """The URL of a server that listens on one port. It survives restarts."""
        return f"http://127.0.0.1:{self._port}"

    def __getstate__(self) -> dict[str, Any]:
        """Omit the process: another process can use the server, but not kill or restart it."""
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
        """Run ``command``, and return when the server responds. ``name`` is for errors, ``options`` are for
        ``Popen``."""
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
        """Restart the server if it was killed."""
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
