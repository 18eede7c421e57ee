"""Kafka → Spark → Kafka and Parquet, exactly once, while the driver is killed again and again.

``make demo`` runs it: a real broker, 336 776 real flights, a real Structured Streaming query in a separate process. It
exits with 1 if any record was lost, duplicated or visible too early. ``--seed`` repeats the random kills, ``--records``
loads fewer flights, ``--writer librdkafka`` uses librdkafka instead of the sink's own writer.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from drivers import Drivers, Kill, at_random, exit_with, parsed_arguments, read_events, recovered, while_tasks_write
from query import MOMENTS
from report import Report, Visible, protocol_time
from rich.console import Console
from rich.progress import Progress
from settings import BASELINE, SOURCE, TARGET, Settings
from source import load, progress_bar, starting_broker
from watch import FolderWatcher, TopicWatcher, watching

from twopc_kafka_broker import spark_kafka_jars

KILLS = 3 + len(MOMENTS)

console = Console()


def main() -> int:
    """Run the demonstration. Return the exit code."""
    arguments = parsed_arguments("Kafka to Kafka and Parquet, exactly once, through kills.", "build/demo")
    chance = random.Random(arguments.seed)  # noqa: S311  # it chooses when to kill
    started = time.monotonic()
    folder = Path(arguments.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "parquet").mkdir(parents=True)
    with progress_bar(console) as progress, starting_broker(progress, SOURCE, TARGET, BASELINE) as broker:
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
    folder, log = Path(settings.folder), f"{settings.folder}/log"
    sent = load(settings.servers, records, progress)
    topic = TopicWatcher(settings.servers, TARGET, log)
    parquet = FolderWatcher(folder / "parquet", log)
    baseline = TopicWatcher(settings.servers, BASELINE, log=None)
    task = progress.add_task("starting", total=records)

    def show(what: str) -> int:
        progress.update(task, description=what, completed=topic.records)
        return topic.records

    drivers = Drivers("query.py", settings, show)
    with watching([topic, parquet]):
        kills = drivers.kill(moments(settings, baseline, chance), KILLS)
        drivers.finish(KILLS + 1)
        show("comparing every record")
    for watcher in (topic, parquet, baseline):
        watcher.read_to_end()
    show("comparing every record")
    progress.stop()
    events = read_events(folder)
    protocol_ms, transactions = protocol_time(events)
    report = Report(
        sent=records,
        kafka=Visible.compare(topic, sent),
        parquet=Visible.compare(parquet, sent),
        baseline=Visible.compare(baseline, sent),
        kills=kills,
        recovered_commits=recovered(events, "TransactionCommitted"),
        recovered_aborts=recovered(events, "TransactionAborted"),
        protocol_ms=protocol_ms,
        protocol_transactions=transactions,
        seconds=time.monotonic() - started,
    )
    report.write(folder / "report.json")
    report.show(console)
    console.print(f"written to {folder / 'report.json'}")
    return 0 if report.is_exact else 1


def moments(settings: Settings, baseline: TopicWatcher, chance: random.Random) -> Iterator[Kill]:
    """Yield the moments at which drivers are killed."""
    yield while_tasks_write(settings)
    before = baseline.length()
    yield "while Spark's own sink writes", lambda: baseline.length() > before
    for moment in MOMENTS:
        yield moment, None
    yield at_random(settings, chance)


if __name__ == "__main__":
    exit_with(main)
