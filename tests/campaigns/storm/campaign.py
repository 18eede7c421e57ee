"""The storm: real processes are killed and paused at random, disks are filled, and nothing is lost or duplicated.

``make storm SECONDS=300 SEED=1``; see ``docs/internals/storm.md``. It runs a broker, a driver with two executors, their
Python workers, and a producer that keeps feeding the source. Finally, a last driver runs to the end of the source, and
the contents of all target systems are compared with the records sent.
"""

import argparse
import contextlib
import json
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import confluent_kafka
from rich.console import Console

from tests.campaigns.model.observed import checked as checked_traces
from tests.campaigns.model.observed import read
from tests.campaigns.report import Report
from tests.campaigns.storm.availability import Availability
from tests.campaigns.storm.chaos import Chaos
from tests.campaigns.storm.contents import compare
from tests.campaigns.storm.driver import Driver
from tests.campaigns.storm.lake import beside, create_tables
from tests.campaigns.storm.query import REPLAYED, Settings
from tests.campaigns.storm.readers import Readers
from tests.support import networks
from tests.support.broker_properties import WITHOUT_TIMEOUT
from tests.support.full_disks import Disk, enter_namespace
from tests.support.rest_catalog import RestCatalogServer
from tests.support.spark_checkpoint import Checkpoint
from twopc_kafka.options import ARROW, WRITERS
from twopc_kafka_broker import KafkaBroker, spark_kafka_jars

PARTITIONS = 3
PARTITIONS_WITH_MARKERS = 8
"""Of each of the three topics then: 24 in all."""

RECORDS_A_SECOND = 1500
# Short, so that outlasting it takes little time. The margin leaves a driver's first batch time to start Python.
TRANSACTION_TIMEOUT_MS = 15_000
COMMIT_MARGIN_MS = 3_000
TIMEOUT = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000}
IN_RECOVERY = 1 / 3
"""The share of strikes that do not wait for a decision after the previous strike, so that they also hit recovery."""
PATIENCE_S = 15

FILES, LAKE = "files", "lake"
"""What the query writes beside Kafka: Parquet files; or an Iceberg table and a Delta table."""

MARKERS = "markers"

WRONG = ("torn", "early", "foreign_changed", "seen_otherwise_by_duckdb")
"""What is counted for each table, and must be 0."""

console = Console()


class Producer:
    """Writes numbers to the source, each number once."""

    def __init__(self, settings: Settings) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": settings.servers, "enable.idempotence": True, "log_level": 0}
        )
        self._topic = settings.source
        self._sent = 0

    def rehearse(self) -> None:
        """Send a record for the rehearsal."""
        self._producer.produce("rehearsal", "0")
        self._producer.flush()

    def feed(self, stop: threading.Event) -> None:
        """Send until ``stop`` is set. Records produced while the broker is down are sent when it is back."""
        while not stop.wait(0.1):
            for _ in range(RECORDS_A_SECOND // 10):
                self._producer.produce(self._topic, str(self._sent))
                self._sent += 1
            self._producer.poll(0)

    def finish(self) -> int:
        """Wait until all records are delivered. Return how many there are."""
        if self._producer.flush(120):
            raise SystemExit("the producer could not deliver all records, so the storm proves nothing")
        return self._sent


def storm(
    settings: Settings,
    broker: KafkaBroker,
    catalog: RestCatalogServer | None,
    disks: Sequence[Disk],
    seconds: float,
    chance: random.Random,
) -> dict[str, object]:
    """Feed the source, strike, and watch; then settle and compare. Return the report."""
    producer = Producer(settings)
    producer.rehearse()
    checkpoint = Checkpoint(Path(settings.folder) / "checkpoint", Path(settings.folder) / "log")
    driver = Driver(settings, checkpoint)
    availability, stop = Availability(settings), threading.Event()
    whole_batches = Readers(settings)
    chaos = Chaos(settings, driver, broker, catalog, disks, checkpoint, availability, whole_batches, chance=chance)

    def supervise() -> None:
        driver.supervise()
        whole_batches.supervise()

    feeder = threading.Thread(target=producer.feed, args=(stop,), daemon=True)
    feeder.start()
    started = time.monotonic()
    with contextlib.ExitStack() as readers, contextlib.ExitStack() as writers:
        readers.callback(chaos.calm)
        readers.callback(driver.kill)
        readers.callback(stop.set)
        readers.enter_context(whole_batches.reading())
        if settings.catalog:
            readers.enter_context(beside(settings, "read"))
            writers.enter_context(beside(settings, "write"))
        wait_for_first_batch(availability, driver)
        while time.monotonic() - started < seconds:
            struck = chaos.strike()
            console.print(
                f"{time.monotonic() - started:4.0f} s  {struck or '-':44} batches decided: {availability.batches}",
                highlight=False,
            )
            availability.watch(chance.uniform(0, 4) if chance.random() < IN_RECOVERY else PATIENCE_S, supervise)
            time.sleep(chance.uniform(0, 0.5))
        in_storm = availability.batches
        chaos.calm()
        writers.close()
        stop.set()
        feeder.join()
        sent = producer.finish()
        console.print(f"the storm is over; running to the end of {sent} records")
        settled = driver.run_to_the_end(availability)
        whole_batches.finish(sent)
    noted = events(settings)
    return {
        "seconds": round(time.monotonic() - started),
        "kills": dict(chaos.kills),
        "kills_in_all": chaos.kills.total(),
        "pauses": dict(chaos.pauses),
        "disk_full": dict(chaos.full_disks),
        "checkpoint_lost": dict(checkpoint.lost),
        "checkpoint_repairs": dict(checkpoint.repairs),
        "errors": dict(Counter(event["what"] for event in noted if event["event"] == "error")),
        "driver_starts": driver.starts,
        "batches": availability.batches,
        "batches_in_storm": in_storm,
        "replayed": sum(event["event"] == REPLAYED for event in noted),
        "settled": settled,
        "longest_unavailable_s": round(availability.longest_s, 1),
        **compare(settings, sent),
        "readers": whole_batches.compare(sent),
    }


@contextlib.contextmanager
def catalog_of(folder: Path) -> Iterator[tuple[RestCatalogServer | None, str]]:
    """Start the Iceberg catalog. Yield its server and its URI: a REST catalog, behind a proxy that outlives it; or one
    in SQLite, which no kill strikes, if there can't be a network for the server."""
    if (why_not := networks.why_not()) is not None:
        console.print(f"the Iceberg catalog is in SQLite: {why_not}", highlight=False)
        yield None, f"sqlite:///{folder}/catalog.db"
        return
    with RestCatalogServer(folder / "catalog") as server, server.proxy() as proxy:
        yield server, proxy.url


def wait_for_first_batch(availability: Availability, driver: Driver) -> None:
    """Wait until a driver has decided the first batch, so that there is something to hit."""
    deadline = time.monotonic() + 120
    while availability.decided is None:
        availability.watch(0.2, driver.supervise)
        if time.monotonic() > deadline:
            raise SystemExit("the driver did not decide a first batch; see driver.log")


def events(settings: Settings) -> list[dict[str, str]]:
    """Return the events that drivers recorded, except a line that a kill cut off."""
    path = Path(settings.folder) / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def is_spotless(report: dict[str, object]) -> bool:
    """Return whether the last driver finished, without loss, duplicate, leftover, failed repair, forbidden replay or
    rejected trace."""
    lost, duplicates, tables, readers = (report[name] for name in ("lost", "duplicates", "tables", "readers"))
    assert isinstance(lost, dict)
    assert isinstance(duplicates, dict)
    assert isinstance(tables, dict)
    assert isinstance(readers, dict)
    repairs = report["checkpoint_repairs"]
    assert isinstance(repairs, dict)
    wrong = [*lost.values(), *duplicates.values(), report["dangling"], report["staged_files_left"]]
    wrong.append(report["traces_rejected"])
    wrong += [found[what] for found in tables.values() for what in WRONG]
    wrong += [shown[what] for shown in readers.values() for what in ("torn", "lost", "doubled")]
    return (
        bool(report["settled"])
        and not any(wrong)
        and all(found["looks"] for found in tables.values())
        and "failed" not in repairs
        and not (report["without_timeout"] and report["replayed"])
    )


def main(given: Sequence[str]) -> int:
    """Run the storm. Return the exit code: 1 on any loss, duplicate or leftover."""
    no_disks = enter_namespace("storm", given)
    arguments = parsed_arguments(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that all started processes are ended
    folder = Path(arguments.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    is_lake = arguments.sinks == LAKE
    targets = ("iceberg", "delta") if is_lake else ("parquet",)
    disks = [] if no_disks else [Disk(folder / name) for name in ("log", "stage", *targets)]
    grants = WITHOUT_TIMEOUT if arguments.without_timeout else {}
    with (
        KafkaBroker(folder / "broker", properties={**TIMEOUT, **grants}) as broker,
        catalog_of(folder) if is_lake else contextlib.nullcontext((None, "")) as (catalog, catalog_uri),
    ):
        settings = Settings(
            servers=broker.bootstrap_servers,
            jars=":".join(str(jar) for jar in spark_kafka_jars("4.2.0")),
            folder=str(folder),
            source="source",
            target="target",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            without_timeout=arguments.without_timeout,
            commit_margin_ms=COMMIT_MARGIN_MS,
            writer=arguments.writer,
            catalog=catalog_uri,
            markers="markers" if arguments.readers == MARKERS else "",
            classes=str(folder.with_name(f"{folder.name}-classes.jsa")),
        )
        for topic in ("source", "rehearsal", "rehearsed"):
            broker.create_topic(topic, partitions=PARTITIONS)
        for topic in settings.targets:
            broker.create_topic(topic, partitions=PARTITIONS_WITH_MARKERS if settings.markers else PARTITIONS)
        if settings.markers:
            broker.create_topic(settings.markers)
        if is_lake:
            create_tables(settings)
        chance = random.Random(arguments.seed)  # noqa: S311  # it chooses the victims
        try:
            found = {
                "seed": arguments.seed,
                "sinks": arguments.sinks,
                "writer": arguments.writer,
                "with_markers": bool(settings.markers),
                "without_timeout": arguments.without_timeout,
                **storm(settings, broker, catalog, disks, arguments.seconds, chance),
            }
        finally:
            for disk in disks:
                disk.keep(folder / "kept" / disk.folder.name)
    log = folder / "log" if no_disks else folder / "kept" / "log"
    found |= checked_traces([read("storm", settings.steps, log)], folder / "model")
    if no_disks:
        found["disk_full"] = f"not possible here: {no_disks}"
    report = Report(folder / "report.json")
    report.write(found)
    report.show(hidden=("rejected_traces",))
    summary = f"{found['kills_in_all']} kills, {found['records']} records"
    if is_spotless(found):
        return report.end(summary, failed=False)
    # The next storm empties its folder, so keep this one, which shows the cause.
    kept = folder.with_name(f"{folder.name}-failed-{arguments.seed}")
    shutil.rmtree(kept, ignore_errors=True)
    shutil.move(folder, kept)
    return Report(kept / "report.json").end(f"{summary}; not spotless, so its folder is kept", failed=True)


def parsed_arguments(given: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns storm", description="kill everything at random, and lose nothing"
    )
    parser.add_argument("--seconds", type=float, default=300, help="how long to strike (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="selects the strikes (default: 1)")
    parser.add_argument("--sinks", choices=(FILES, LAKE), default=FILES, help="what the query writes beside Kafka")
    what = "readers of whole batches beside the query, by batch markers, which are killed, too"
    parser.add_argument("--readers", choices=(MARKERS,), help=what)
    parser.add_argument("--writer", choices=WRITERS, default=ARROW, help="writer of the Kafka sink (default: arrow)")
    what = "transactions that never roll back by themselves (KIP-939)"
    parser.add_argument("--without-timeout", action="store_true", help=what)
    parser.add_argument("--folder", default="build/storm", help="working folder; emptied first")
    arguments = parser.parse_args(given)
    if arguments.without_timeout and arguments.writer != ARROW:
        parser.error("--without-timeout requires --writer arrow")
    return arguments
