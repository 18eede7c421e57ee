"""An emulator of Google Cloud Storage, fake-gcs-server, as a process of its own on a free port.

As Google does, it decides the condition of an upload and writes in one step, lists at once what was written, and keeps
an object's metadata over a rewrite. As Google does not, it ignores the condition of a rewrite, checks no credentials,
has no limits of rates, and forgets open uploads when it is killed.
"""

from __future__ import annotations

import contextlib
import os
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.go_program import GoProgram
from tests.support.s3_server import free_port
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = GoProgram("github.com/fsouza/fake-gcs-server", "v1.56.1", "1.26")
START_TIMEOUT_S = 60.0
BUILD_AT_MOST_S = 1200
"""The limit of a test that may be the first to need the server: Go builds it for one minute and a half of two cores."""


class GcsServer(ServerProcess):
    """A server that keeps its objects in a folder: they outlive a kill."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()

    @property
    def endpoint_url(self) -> str:
        """The server's URL; the same over restarts."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """The options with which gcsfs reaches the server."""
        return {"token": "anon", "project": "test", "endpoint_url": self.endpoint_url}

    def start(self) -> None:
        temporary = self._folder / "temporary"  # on the disk of the objects, so that it is used, and nothing is listed
        temporary.mkdir(parents=True, exist_ok=True)
        options = {"scheme": "http", "host": "127.0.0.1", "port": self._port}
        options |= {"backend": "filesystem", "filesystem-root": self._folder / "objects", "log-level": "warn"}
        command = [str(PROGRAM.path), *(part for name, value in options.items() for part in (f"-{name}", str(value)))]
        environment = {**os.environ, "TMPDIR": str(temporary), "TZ": "UTC"}  # gcsfs reads no other zone
        self._start(PROGRAM.name, command, self._folder / "server.log", START_TIMEOUT_S, env=environment)

    def make_bucket(self, name: str) -> None:
        from twopc.gcs import gcs_client  # needs gcsfs, which an environment for other stores may lack

        gcs_client(self.storage_options).mkdir(name)

    def mend(self, error: str) -> int:
        """Repair nothing: a kill breaks nothing that an operator would mend."""
        return 0

    def _answers(self) -> bool:
        url = f"{self.endpoint_url}/_internal/healthcheck"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310
            return True
        return False


def gcs_server(folder: Path) -> GcsServer:
    """Return a server, not started yet. Skip the test where its program can't be built, or gcsfs is not installed."""
    pytest.importorskip("gcsfs")
    if why := PROGRAM.install():
        pytest.skip(why)
    return GcsServer(folder)
