"""A REST catalog: Iceberg's own test server, in a separate network, since it listens on every address."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from tests.support.http_proxy import Answer, HttpProxy, Request
from tests.support.networks import Host
from tests.support.server_process import ServerProcess
from twopc_kafka_broker.jars import maven_jars
from twopc_kafka_broker.java import find_java

if TYPE_CHECKING:
    from pathlib import Path

COORDINATES = "org.apache.iceberg:iceberg-open-api:1.10.1"
PORT = 8181
CATALOG_URI = f"http://127.0.0.1:{PORT}"
"""The catalog's URI, on its host."""

START_TIMEOUT_S = 90.0


class RestCatalogServer(ServerProcess):
    """A server that keeps its catalog in SQLite and its tables on the local disk. Both survive a kill and a restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.host = Host("127.0.0.1")

    @property
    def warehouse(self) -> str:
        return f"file://{self._folder}/warehouse"

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        [jar] = (each for each in maven_jars("iceberg-open-api-1.10.1", COORDINATES) if "open-api" in each.name)
        environment = {
            **os.environ,
            "CATALOG_URI": f"jdbc:sqlite:{self._folder}/catalog.db",
            "CATALOG_WAREHOUSE": self.warehouse,
            "CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
            "REST_PORT": str(PORT),
        }
        command = [str(find_java().executable), "-Xmx400m", "-jar", str(jar)]
        with self.host.entered():
            self._start("the REST catalog", command, self._folder / "log", START_TIMEOUT_S, env=environment)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self.proxy().forwarded(Request("GET", "/v1/config", {}, b"")).status == 200
        return False

    def proxy(self) -> ProxyIntoHost:
        """Return a proxy on this side of the network, not yet started."""
        return ProxyIntoHost(self.host)

    def close(self) -> None:
        super().close()
        self.host.close()


class ProxyIntoHost(HttpProxy):
    """A proxy for a server on another host."""

    def __init__(self, host: Host) -> None:
        super().__init__(CATALOG_URI)
        self._host = host

    def _forward(self, request: Request, dropped: frozenset[str]) -> Answer:
        with self._host.entered():  # moves only this thread
            return super()._forward(request, dropped)
