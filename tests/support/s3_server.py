"""moto's S3 server, as a separate process on a free port."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any

from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

START_TIMEOUT_S = 60.0


class S3Server(ServerProcess):
    """A server that keeps objects in memory: they are lost with its process."""

    _asked = "/moto-api/data.json"

    def __init__(self, log: Path) -> None:
        self._log = log
        self._port = free_port()

    @property
    def storage_options(self) -> dict[str, Any]:
        """The options with which fsspec's ``s3`` accesses the server."""
        return {"key": "test", "secret": "test", "endpoint_url": self.endpoint_url}  # moto accepts any credentials

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        self._start("moto's server", command, self._log, START_TIMEOUT_S)


def without_credentials(monkeypatch: pytest.MonkeyPatch, empty: Path) -> None:
    """Hide every source of credentials from S3's clients."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(empty / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
