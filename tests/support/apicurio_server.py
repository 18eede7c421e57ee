"""Apicurio, a schema registry with Confluent's API, which keeps schemas in memory."""

from pathlib import Path

from tests.support.maven import maven_archive
from tests.support.s3_server import free_port
from tests.support.server_process import ServerProcess

VERSION = "3.0.9"
"""The last version that runs on Java 17."""

START_TIMEOUT_S = 120.0


class ApicurioServer(ServerProcess):
    """A registry that starts empty."""

    _asked = "/apis/ccompat/v7/subjects"

    def __init__(self, folder: Path, java_home: str) -> None:
        self._folder, self._java, self._port = folder, Path(java_home, "bin", "java"), free_port()

    @property
    def url(self) -> str:
        return f"{self.endpoint_url}/apis/ccompat/v7"

    def start(self) -> None:
        jars = maven_archive(f"apicurio-{VERSION}", "io.apicurio", "apicurio-registry-app", VERSION, "all")
        settings = (f"-Dquarkus.http.port={self._port}", "-Dquarkus.http.host=127.0.0.1")
        classes = ("-cp", str(jars[0].parent / "*"), "io.quarkus.runner.GeneratedMain")
        self._start(
            "Apicurio", [str(self._java), "-Xmx400m", *settings, *classes], self._folder / "log", START_TIMEOUT_S
        )
