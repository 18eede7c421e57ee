"""The blob service of Azurite, Microsoft's emulator of Azure Storage, as a separate process on a free port.

Azure's client is imported lazily, since the contract of the file sink also runs in environments without it.
"""

from __future__ import annotations

import base64
import functools
import os
import subprocess
import uuid
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.node import install_package, programs
from tests.support.s3_server import free_port
from tests.support.server_process import ServerProcess
from twopc_kafka_broker.cache import cache_folder, publish

if TYPE_CHECKING:
    from azure.storage.blob import BlobServiceClient

AZURITE = "azurite@3.37.0"

ACCOUNT = "provestores"
START_TIMEOUT_S = 120.0

KEEPS_EXTENTS = """
require(process.env.AZURITE_MODULES + "/azurite/dist/src/blob/utils/constants").DEFAULT_GC_INTERVAL_MS = 2 ** 31 - 1;
"""
"""Loaded by Node before Azurite, to disable its garbage collection. Every ten minutes, Azurite removes data without a
blob. In a long campaign, this took 45 seconds, and afterwards each read of a new blob failed with status 500."""

SAVES_FIRST = """
const http = require("http"), Loki = require(process.env.AZURITE_MODULES + "/lokijs");
const databases = new Set(), enable = Loki.prototype.autosaveEnable, end = http.ServerResponse.prototype.end;
Loki.prototype.autosaveEnable = function (...given) {
  databases.add(this);
  return enable.apply(this, given);
};
const save = (database) => new Promise((done, failed) => {
  database.saveDatabase((error) => (error ? failed(error) : done()));
});
http.ServerResponse.prototype.end = function (...given) {
  const changed = [...databases].filter((database) => database.autosaveDirty());
  Promise.all(changed.map(save)).then(() => end.apply(this, given), (error) => this.destroy(error));
  return this;
};
"""
"""Also loaded if the server is durable. Azurite saves its metadata every five seconds, so a kill would lose
acknowledged writes, which never happens in Azure. With this, each reply is sent only after the metadata is saved."""


def install() -> str | None:
    """Install Azurite, and Node if the machine has none. If that is impossible, return the reason and what to do."""
    if not find_spec("adlfs"):
        return "Azure's client is missing: pip install 'twopc-core[azure]'"
    try:
        publish(_folder(), lambda folder: install_package(AZURITE, folder))
    except (OSError, subprocess.SubprocessError) as error:
        return f"Azurite can't be installed ({error}): install Node.js with npm, and let npm reach its registry"
    return None


def _folder() -> Path:
    return cache_folder() / AZURITE.replace("@", "-")


class AzuriteServer(ServerProcess):
    """A server with one account.

    Args:
        folder: for its log, and its data if it is durable.
        is_durable: whether the data survives a kill and a restart; otherwise it is in memory.

    Attributes:
        key: the key of the account.
    """

    _asked = f"/{ACCOUNT}?comp=list"

    def __init__(self, folder: Path, *, is_durable: bool = False) -> None:
        self._folder = folder
        self._is_durable = is_durable
        self._port = free_port()
        self.key = base64.b64encode(uuid.uuid4().bytes * 4).decode()

    def connection_string(self, endpoint_url: str | None = None, credentials: str | None = None) -> str:
        """Return a connection string, optionally with another URL, or with other credentials than the account's key."""
        endpoint = f"BlobEndpoint={endpoint_url or self.endpoint_url}/{ACCOUNT}"
        return f"AccountName={ACCOUNT};{credentials or f'AccountKey={self.key}'};{endpoint}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """The options with which fsspec's ``abfs`` accesses the server."""
        return {"connection_string": self.connection_string()}

    def signature(self, permission: str, expires_in_s: float = 3600) -> str:
        """Return a shared access signature for all containers and blobs, with permissions such as ``rwdlc``."""
        from azure.storage.blob import ResourceTypes, generate_account_sas

        expires = datetime.now(timezone.utc) + timedelta(seconds=expires_in_s)
        types = ResourceTypes(service=True, container=True, object=True)
        return generate_account_sas(ACCOUNT, self.key, types, permission, expires)

    def make_container(self) -> str:
        """Create a container, and return its name."""
        name = f"c-{uuid.uuid4().hex}"
        with self._client() as client:
            client.create_container(name)
        return name

    def blobs(self, container: str, *, uncommitted: bool = False) -> list[str]:
        """Return the names of all blobs in a container, using a client that shares nothing with the one under test."""
        include = ["uncommittedblobs"] if uncommitted else None
        with self._client() as client:
            return [blob.name for blob in client.get_container_client(container).list_blobs(include=include)]

    def _client(self) -> BlobServiceClient:
        from azure.storage.blob import BlobServiceClient

        return BlobServiceClient.from_connection_string(self.connection_string())

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        preload = self._folder / "preload.js"
        preload.write_text(KEEPS_EXTENTS + (SAVES_FIRST if self._is_durable else ""))
        node, modules = programs()[0], _folder() / "node_modules"
        data = ("--location", str(self._folder / "data")) if self._is_durable else ("--inMemoryPersistence",)
        command = [node, "--require", str(preload), str(modules / "azurite/dist/src/blob/main.js"), *data]
        command += ["--blobHost", "127.0.0.1", "--blobPort", str(self._port)]
        command += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        environment = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{self.key}", "AZURITE_MODULES": str(modules)}
        self._start(
            "Azurite",
            command,
            self._folder / "log",
            START_TIMEOUT_S,
            env={**os.environ, **environment},
            cwd=self._folder,
        )


def repeat(monkeypatch: pytest.MonkeyPatch, *, is_repeated: bool) -> None:
    """Have Azure's client retry requests at once, or never. By default, it waits for 15 seconds before each retry."""
    retry, increment = _retry()
    monkeypatch.setattr(retry, "get_backoff_time", lambda *_: 0)
    monkeypatch.setattr(retry, "increment", increment if is_repeated else lambda *_, **__: False)


@functools.cache
def _retry() -> tuple[Any, Any]:
    """Return the client's retry policy, and its original method that decides on a retry."""
    from azure.storage.blob._shared.policies_async import ExponentialRetry

    return ExponentialRetry, ExponentialRetry.increment
