"""Kafka → Spark → Kafka and Parquet, exactly once, while the driver is killed again and again.

``make demo`` runs it: a real broker, 336 776 real flights, a real Structured Streaming query in a process of its own.
Exits with 1 on any loss, duplicate or early visibility. ``--seed`` repeats the random kills, ``--records`` makes it
smaller, ``--writer librdkafka`` takes librdkafka instead of the sink's own writer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import confluent_kafka
import orjson
from flights import airlines, checksum, expected, flights
from query import MOMENTS, Settings
from report import Report, Visible, protocol_time
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from watch import FolderWatcher, TopicWatcher, watching

from tests.support.progress_lines import ProgressLines
from twopc.errors import Retriable
from twopc_kafka.client.control import connect
from twopc_kafka.options import ARROW, WRITERS
from twopc_kafka_broker import DevelopmentError, KafkaBroker, spark_kafka_jars

PARTITIONS = 2
WHILE_TASKS_WRITE = "while tasks write"
WHILE_BASELINE_WRITES = "while Spark's own sink writes"
AT_RANDOM = "at random"
KILLS = (WHILE_TASKS_WRITE, WHILE_BASELINE_WRITES, *MOMENTS, AT_RANDOM)
DRIVER_TIMEOUT_S = 300

console = Console()


def main() -> int:
    """Run the demonstration; the exit code."""
    arguments = parsed_arguments()
    chance = random.Random(arguments.seed)  # noqa: S311  # it chooses when to kill
    started = time.monotonic()
    folder = Path(arguments.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "parquet").mkdir(parents=True)
    with progress_bar() as progress, starting_broker(progress) as broker:
        for topic in ("flights", "enriched", "baseline"):
            broker.create_topic(topic, partitions=PARTITIONS)
        settings = Settings(
            servers=broker.bootstrap_servers,
            jars=",".join(str(jar) for jar in spark_kafka_jars("4.2.0")),
            folder=str(folder),
            source="flights",
            target="enriched",
            baseline="baseline",
            records_per_batch=max(1000, arguments.records // 32),
            writer=arguments.writer,
        )
        return run(settings, arguments.records, chance, started, progress)


@contextmanager
def starting_broker(progress: Progress) -> Iterator[KafkaBroker]:
    """A broker; until it has started, ``progress`` shows that."""
    task = progress.add_task("starting a Kafka broker", total=None)
    with KafkaBroker() as broker:
        progress.remove_task(task)
        yield broker


def run(settings: Settings, records: int, chance: random.Random, started: float, progress: Progress) -> int:
    """Load, kill, restart, compare, report."""
    folder, log = Path(settings.folder), f"{settings.folder}/log"
    sent = load(settings, records, progress)
    topic = TopicWatcher(settings.servers, settings.target, log)
    parquet = FolderWatcher(folder / "parquet", log)
    baseline = TopicWatcher(settings.servers, settings.baseline, log=None)
    task = progress.add_task("starting", total=records)

    def show(what: str) -> int:
        progress.update(task, description=what, completed=topic.records)
        return topic.records

    with watching([topic, parquet]):
        kills = [kill(settings, moment, number, baseline, chance, show) for number, moment in enumerate(KILLS, 1)]
        finish(settings, show)
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


def load(settings: Settings, records: int, progress: Progress) -> Counter[tuple[int, int]]:
    """Produce the flights into the source topic.

    Returns:
        What a reader of the result must see: (id, checksum) → how often.
    """
    names, sent = airlines(), Counter[tuple[int, int]]()
    producer = confluent_kafka.Producer({"bootstrap.servers": settings.servers, "linger.ms": 50})
    task = progress.add_task("loading flights into Kafka", total=records)
    for number, flight in enumerate(itertools.islice(flights(), records)):
        sent[number, checksum(expected(flight, names))] += 1
        producer.produce(settings.source, orjson.dumps(flight), str(number))
        if number % 10_000 == 0:
            producer.poll(0)
            producer.flush()
            progress.update(task, completed=number)
    producer.flush()
    progress.update(task, completed=records)
    return sent


def kill(
    settings: Settings,
    moment: str,
    number: int,
    baseline: TopicWatcher,
    chance: random.Random,
    show: Callable[[str], int],
) -> str:
    """Run a driver until it is killed at ``moment``; what was killed, for the report."""
    log = driver_log(settings, number)

    def wait(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        wait_for(condition, process, show, f"kill {number} of {len(KILLS)}: {moment}", log)

    with driver(replace(settings, die_at=moment), number) as process:
        if moment == WHILE_TASKS_WRITE:
            wait(lambda: tasks_write(settings), process)
        elif moment == WHILE_BASELINE_WRITES:
            before = baseline.length()
            wait(lambda: baseline.length() > before, process)
        elif moment == AT_RANDOM:
            written = len(read_events(Path(settings.folder)))
            wait(lambda: len(read_events(Path(settings.folder))) > written, process)
            wait_s = chance.uniform(0, 3)
            moment = f"{moment} ({wait_s:.2f} s after its first commit)"
            time.sleep(wait_s)
        else:
            wait(lambda: process.poll() is not None, process)
        if process.poll() not in (None, -signal.SIGKILL):
            raise SystemExit(f"driver {number} was to be killed and ended by itself; see {log}")
    return moment


def tasks_write(settings: Settings) -> bool:
    """Whether any transaction is open now."""
    try:
        return bool(connect({"bootstrap_servers": [settings.servers]}).list_ongoing("twopc."))
    except Retriable:
        return False  # the first transaction makes the broker create its log of transactions


def finish(settings: Settings, show: Callable[[str], int]) -> None:
    """Run a last driver to the end of the source."""
    log = driver_log(settings, len(KILLS) + 1)
    with driver(settings, len(KILLS) + 1) as process:
        wait_for(lambda: process.poll() is not None, process, show, "last restart, to the end of the source", log)
        if process.returncode != 0:
            raise SystemExit(f"the last driver failed; see {log}")


@contextmanager
def driver(settings: Settings, number: int) -> Iterator[subprocess.Popen[bytes]]:
    """A driver in a process group of its own, with its JVM and Python workers; all of it is killed at the end."""
    with driver_log(settings, number).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("query.py")), json.dumps(asdict(settings))],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def driver_log(settings: Settings, number: int) -> Path:
    """Where a driver's output goes."""
    return Path(settings.folder) / f"driver-{number}.log"


def wait_for(
    condition: Callable[[], bool], process: subprocess.Popen[bytes], show: Callable[[str], int], what: str, log: Path
) -> None:
    """Wait until ``condition`` or until the driver has ended, as long as readers get more records now and then."""
    records, since = -1, time.monotonic()
    while not condition() and process.poll() is None:
        if (now := show(what)) > records:
            records, since = now, time.monotonic()
        if time.monotonic() > since + DRIVER_TIMEOUT_S:
            raise SystemExit(f"no record came for {DRIVER_TIMEOUT_S} s: {what}; see {log}")
        time.sleep(0.02)


def read_events(folder: Path) -> list[dict[str, object]]:
    """What the drivers wrote down; a line cut off by a kill is left out."""
    path = folder / "events.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def recovered(events: list[dict[str, object]], kind: str) -> int:
    """How many transactions a restarted driver had to end. A recovery also repeats commits of which only the word is
    missing in the log; those that the driver before had carried out are not counted."""

    def of(event: dict[str, object]) -> str:
        return json.dumps(event["committable"], sort_keys=True)

    ended = [event for event in events if event["event"] == kind]
    before = {of(event) for event in ended if not event["recovered"]}
    return len({of(event) for event in ended if event["recovered"]} - before)


def progress_bar() -> Progress:
    """Of what is visible in Kafka."""
    columns = (TextColumn("{task.description:<45}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return ProgressLines(*columns, console=console)


def parsed_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=336_776, help="flights to load (default: all)")
    parser.add_argument("--seed", type=int, default=None, help="repeat the random kills of another run")
    parser.add_argument("--writer", choices=WRITERS, default=ARROW, help="of the Kafka sink (default: arrow)")
    parser.add_argument("--folder", default="build/demo", help="where to work; emptied first (default: build/demo)")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DevelopmentError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped")
