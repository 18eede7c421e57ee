"""fake-gcs-server, an emulator of Google Cloud Storage, as a separate process on a free port.

Like Google, it checks the condition of an upload and writes in one step, lists objects as soon as they are written, and
keeps an object's metadata in a rewrite. Unlike Google, it ignores the condition of a rewrite, checks no credentials,
has no rate limits, and forgets open uploads when it is killed.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.go_program import GoProgram
from tests.support.s3_server import free_port
from tests.support.server_process import ServerProcess

PROGRAM = GoProgram("github.com/fsouza/fake-gcs-server", "v1.56.1", "1.26")
START_TIMEOUT_S = 60.0
METADATA = "user.metadata"
"""The attribute of a file in which the server keeps the metadata of an object."""
BUILD_AT_MOST_S = 1200
"""The timeout of a test that may be the first to need the server: Go takes a minute and a half on two cores to build
it."""


class GcsServer(ServerProcess):
    """A server that keeps its objects in a folder, so that they survive a kill."""

    _asked = "/_internal/healthcheck"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()

    @property
    def storage_options(self) -> dict[str, Any]:
        """The options with which gcsfs accesses the server."""
        return {"token": "anon", "project": "test", "endpoint_url": self.endpoint_url}

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._remove_half_written()
        options = {"scheme": "http", "host": "127.0.0.1", "port": self._port}
        options |= {"backend": "filesystem", "filesystem-root": self._folder / "objects", "log-level": "warn"}
        command = [str(PROGRAM.path), *(part for name, value in options.items() for part in (f"-{name}", str(value)))]
        environment = {**os.environ, "TZ": "UTC"}  # gcsfs can't parse other zones
        self._start(PROGRAM.name, command, self._folder / "server.log", START_TIMEOUT_S, env=environment)

    def _remove_half_written(self) -> None:
        """Remove files without metadata, usually temporary ones. A kill leaves one for an object whose upload was not
        acknowledged, and with it every listing of the bucket returns 404."""
        for path in self._folder.glob("objects/*/**/*"):
            if path.is_file() and METADATA not in os.listxattr(path):
                path.unlink()

    def make_bucket(self, name: str) -> None:
        from twopc.stores.gcs import gcs_client  # needs gcsfs, which environments for other stores lack

        gcs_client(self.storage_options).mkdir(name)


def gcs_server(folder: Path) -> GcsServer:
    """Return a server, not yet started. Skip the test if it can't be built, or gcsfs is not installed."""
    pytest.importorskip("gcsfs")
    if why := PROGRAM.install():
        pytest.skip(why)
    return GcsServer(folder)
