"""Kafka Connect with Debezium's connector for PostgreSQL, in a separate process."""

from __future__ import annotations

from pathlib import Path

from bank import TABLES, Server

from tests.support.kills import bound
from tests.support.server_process import ServerProcess
from twopc_kafka_broker import find_java
from twopc_kafka_broker.jars import maven_jars

VERSION = "3.6.1.Final"
PREFIX = "bank"
TOPICS = {table: f"{PREFIX}.public.{table}" for table in TABLES}
"""Table → the topic of its changes."""

_START_TIMEOUT_S = 120


def debezium_jars() -> tuple[Path, ...]:
    """Return the jars of Debezium and Kafka Connect. The first call downloads them (40 MB)."""
    needed = (f"io.debezium:{name}:{VERSION}" for name in ("debezium-embedded", "debezium-connector-postgres"))
    return maven_jars(f"debezium-{VERSION}", *needed, "org.slf4j:slf4j-simple:1.7.36")


class Capture(ServerProcess):
    """Captures a server's changes into Kafka. After a kill and a restart, some changes are captured again."""

    def __init__(self, servers: str, source: Server, folder: Path) -> None:
        self._source, self._folder, self.log = source, folder, folder / "connect.log"
        folder.mkdir()
        self._write(
            "worker.properties",
            {
                "bootstrap.servers": servers,
                "listeners": "http://127.0.0.1:0",
                "offset.storage.file.filename": folder / "offsets",
                "offset.flush.interval.ms": 1000,
                "plugin.discovery": "service_load",
                "key.converter": "org.apache.kafka.connect.json.JsonConverter",
                # JSON with its schema has exact numbers and times. A null stays null even if the column has a default.
                "value.converter": "org.apache.kafka.connect.json.JsonConverter",
                "value.converter.replace.null.with.default": "false",
            },
        )
        self._write(
            "connector.properties",
            {
                "name": PREFIX,
                "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
                "plugin.name": "pgoutput",
                "database.hostname": "127.0.0.1",
                "database.port": source.port,
                "database.user": "postgres",
                "database.password": source.password,
                "database.dbname": "postgres",
                "table.include.list": ",".join(f"public.{table}" for table in TABLES),
                "topic.prefix": PREFIX,
                "slot.name": PREFIX,
            },
        )

    def _write(self, name: str, properties: dict[str, object]) -> None:
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        (self._folder / name).write_text(text, encoding="utf-8")

    def start(self) -> None:
        command = [str(find_java().executable), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-cp", ":".join(map(str, debezium_jars())), "org.apache.kafka.connect.cli.ConnectStandalone"]
        command += [str(self._folder / name) for name in ("worker.properties", "connector.properties")]
        self._start("Kafka Connect", bound(*command), self.log, _START_TIMEOUT_S)

    def _answers(self) -> bool:
        return self._source.rows("SELECT active FROM pg_replication_slots") == [(True,)]

    def has_passed(self, place: str) -> bool:
        """Return whether everything before a position in the source's log is in Kafka."""
        passed = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots"
        return self._source.rows(passed, place) == [(True,)]
