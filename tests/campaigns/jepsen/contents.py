"""The contents of the target systems at the end, read by clients that did not write them."""

import subprocess
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import duckdb
import psycopg
from kafka import KafkaConsumer, TopicPartition
from psycopg import sql

from tests.campaigns.jepsen.brokers import PARTITIONS, SERVERS
from tests.campaigns.jepsen.reader import Sighting
from tests.campaigns.jepsen.workload import Record, Settings
from tests.campaigns.tables.table import LakeTable
from tests.support.contents import left_in_files
from twopc_kafka_broker.jars import KAFKA_VERSION, maven_jars
from twopc_kafka_broker.java import find_java

NEVER_BEFORE = float("inf")
"""When a record was seen that is read at the end."""

LOGGER = "org.slf4j:slf4j-simple:1.7.36"
_CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_CONSOLE_PATIENCE_MS = 10_000


def in_files(settings: Settings) -> Iterator[Sighting]:
    """Read the Parquet files with DuckDB."""
    files = f"{settings.folder}/files/*.parquet"
    rows = duckdb.connect().execute("SELECT value FROM read_parquet(?)", [files])
    offsets = count()
    while some := rows.fetchmany(10_000):
        yield from (_sighting(next(offsets), value) for (value,) in some)


def in_postgres(settings: Settings) -> Iterator[Sighting]:
    """Read the table in PostgreSQL."""
    table = sql.Identifier(settings.table)
    with psycopg.connect(settings.conninfo) as connection, connection.cursor(name="all") as rows:
        rows.execute(sql.SQL("SELECT value FROM {}").format(table))
        yield from (_sighting(offset, value) for offset, (value,) in enumerate(rows))


def in_lake(table: LakeTable) -> Iterator[Sighting]:
    """Read a lake table with its format's own library."""
    values = table.read()["value"].to_pylist()
    yield from (_sighting(offset, value) for offset, value in enumerate(values))


def leftovers(settings: Settings) -> list[str]:
    """Return what transactions have left behind: prepared transactions of any query, pending files, replay copies and
    notes."""
    folder = Path(settings.folder)
    with psycopg.connect(settings.conninfo) as connection:
        prepared = [gid for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts")]
    files = [path.name for path in (*left_in_files(folder / "files"), *(folder / "copies").glob("*"))]
    return [*prepared, *files, *(name for table in settings.lake().values() for name in table.files())]


def console_jars() -> tuple[Path, ...]:
    """Return the jars of Kafka's console consumer, downloading them (40 MB) the first time.

    Raises:
        JarsNotAvailable: they could not be downloaded.
    """
    return maven_jars(f"kafka-tools-{KAFKA_VERSION}", f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}", LOGGER)


def by_java(settings: Settings, jars: Sequence[Path]) -> Iterator[Sighting]:
    """Read the topic with Kafka's own console consumer."""
    command = [str(find_java().executable), "-Xmx256m", "-cp", ":".join(map(str, jars)), _CONSOLE]
    command += ["--bootstrap-server", SERVERS, "--topic", settings.topic, "--from-beginning"]
    command += ["--isolation-level", "read_committed", "--timeout-ms", str(_CONSOLE_PATIENCE_MS)]
    for shown in ("print.partition=true", "print.offset=true", "key.separator= "):
        command += ["--formatter-property", shown]
    log = Path(settings.folder) / "java.log"
    with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as java:
        assert java.stdout is not None
        for line in java.stdout:
            partition, offset, value = line.split()
            at = int(partition.partition(":")[2]), int(offset.partition(":")[2])
            yield Sighting(*at, NEVER_BEFORE, Record.parse(value))


def _sighting(offset: int, value: str) -> Sighting:
    return Sighting(0, offset, NEVER_BEFORE, Record.parse(value))


def ends(topic: str, isolation_level: str) -> dict[int, int]:
    """Return the offset up to which such a reader can read, for each partition."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with KafkaConsumer(bootstrap_servers=SERVERS.split(","), isolation_level=isolation_level) as consumer:
        return {partition.partition: end for partition, end in consumer.end_offsets(partitions).items()}
