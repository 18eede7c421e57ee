"""Kafka → Spark → Kafka, an Iceberg table and a Delta table, in one decision, while the driver is killed six times.

``make demo-lake`` runs it, with the flights, the broker and the kills of ``make demo``. Then DuckDB joins the topic and
both tables. It exits with 1 if a record is lost or duplicated, or a batch is torn or visible too early.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from drivers import Drivers, Kill, at_random, exit_with, parsed_arguments, read_events, recovered, while_tasks_write
from lake_query import MOMENTS
from lake_report import LakeReport, compare, sent
from lake_tables import RESULT, DeltaWatcher, IcebergWatcher, create_tables
from rich.console import Console
from rich.progress import Progress
from settings import SOURCE, TARGET, Settings
from source import load, progress_bar, starting_broker
from watch import TopicWatcher, watching

from tests.support.duckdb_extension import lake_reader
from twopc_kafka_broker import spark_kafka_jars

KILLS = 2 + len(MOMENTS)

console = Console()


class KeptTopic(TopicWatcher):
    """Keeps every record of the topic, for DuckDB."""

    def __init__(self, servers: str, topic: str, log: str) -> None:
        super().__init__(servers, topic, log)
        self._rows: list[tuple[object, ...]] = []

    def add(self, record: dict[str, object]) -> None:
        self._rows.append(tuple(record.get(name) for name in RESULT.names))
        self.records += 1

    def to_arrow(self) -> pa.Table:
        """Return all records that were read."""
        columns = zip(*self._rows, strict=True) if self._rows else [()] * len(RESULT)
        return pa.table([pa.array(column, field.type) for column, field in zip(columns, RESULT, strict=True)], RESULT)


def main() -> int:
    """Run the demonstration. Return the exit code."""
    arguments = parsed_arguments("Kafka to Kafka, Iceberg and Delta, exactly once, through kills.", "build/demo-lake")
    chance = random.Random(arguments.seed)  # noqa: S311  # it chooses when to kill
    started = time.monotonic()
    folder = Path(arguments.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    create_tables(str(folder))
    with progress_bar(console) as progress, starting_broker(progress, SOURCE, TARGET) as broker:
        settings = Settings(
            servers=broker.bootstrap_servers,
            jars=",".join(str(jar) for jar in spark_kafka_jars("4.2.0")),
            folder=str(folder),
            records_per_batch=max(1000, arguments.records // 32),
            writer=arguments.writer,
        )
        return run(settings, arguments.records, chance, started, progress)


def run(settings: Settings, records: int, chance: random.Random, started: float, progress: Progress) -> int:
    """Load, kill, restart, compare, report."""
    folder, log = settings.folder, f"{settings.folder}/log"
    load(settings.servers, records, progress)
    topic = KeptTopic(settings.servers, TARGET, log)
    iceberg, delta = IcebergWatcher(folder, log), DeltaWatcher(folder, log)
    task = progress.add_task("starting", total=records)

    def show(what: str) -> int:
        progress.update(task, description=what, completed=topic.records)
        return topic.records

    drivers = Drivers("lake_query.py", settings, show)
    with watching([topic, iceberg, delta]):
        kills = drivers.kill(moments(settings, chance), KILLS)
        drivers.finish(KILLS + 1)
        show("joining topic and tables")
    topic.read_to_end()
    tables = (iceberg, delta)
    for table in tables:
        table.poll()
    connection = lake_reader()
    connection.register("topic", topic.to_arrow())
    scans = {"iceberg": iceberg.scan(iceberg.version), "delta": delta.scan(delta.version)}
    comparison = compare(connection, sent(records), {"kafka": "topic", **scans})
    show("joining topic and tables")
    progress.stop()
    events = read_events(Path(folder))
    report = LakeReport(
        sent=records,
        comparison=comparison,
        seen_torn=frozenset(iceberg.torn | delta.torn),
        early=sum(watcher.early for watcher in (topic, *tables)),
        kills=kills,
        recovered_commits=recovered(events, "TransactionCommitted"),
        recovered_aborts=recovered(events, "TransactionAborted"),
        seconds=time.monotonic() - started,
    )
    path = Path(folder) / "report.json"
    report.write(path)
    report.show(console)
    console.print(f"written to {path}")
    return 0 if report.is_exact else 1


def moments(settings: Settings, chance: random.Random) -> Iterator[Kill]:
    """Yield the moments at which drivers are killed."""
    yield while_tasks_write(settings)
    for moment in MOMENTS:
        yield moment, None
    yield at_random(settings, chance)


if __name__ == "__main__":
    exit_with(main)
