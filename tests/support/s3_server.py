"""A real S3 server over HTTP, moto's, as a process of its own on a free port."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any

from tests.support.server_process import ServerProcess, has_answer

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

START_TIMEOUT_S = 60.0


class S3Server(ServerProcess):
    """A server that keeps objects in memory: they are gone with its process."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._port = free_port()

    @property
    def storage_options(self) -> dict[str, Any]:
        """The options with which fsspec's ``s3`` reaches the server."""
        return {"key": "test", "secret": "test", "endpoint_url": self.endpoint_url}  # moto takes any

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        self._start("moto's server", command, self._log, START_TIMEOUT_S)

    def _answers(self) -> bool:
        return has_answer(f"{self.endpoint_url}/moto-api/data.json")


def without_credentials(monkeypatch: pytest.MonkeyPatch, empty: Path) -> None:
    """Hide every place in which S3's clients look for credentials."""
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
