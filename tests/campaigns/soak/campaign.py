"""``make soak``: small batches for a long time, with restarts. What a driver holds stays as it is. See
``docs/internals/scale.md``."""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec

import twopc
from tests.benchmarks.measuring import alone, held
from tests.campaigns.report import Report
from tests.campaigns.soak.slopes import PER, slope
from tests.sinks.delta.conftest import Place as DeltaPlace
from tests.sinks.iceberg.conftest import Place as IcebergPlace
from tests.sinks.postgres.conftest import Place as PostgresPlace
from tests.support.forgetful_sink import ForgetfulSink
from tests.support.postgres_server import PostgresServer
from twopc import Coordinator, Participant, Round, TwoPhaseCommitSink, Vote
from twopc.log.steps import ENTRIES_KEPT
from twopc.testing import MemoryTarget
from twopc_kafka_broker import KafkaBroker

SINKS = ("memory", "files", "kafka-arrow", "kafka-librdkafka", "postgres", "iceberg", "delta")
PARTITIONS = 2
RECORD = pa.record_batch({"value": ["a"]})
ENOUGH = 5_000
"""Batches: of fewer, a slope per ten thousand says nothing."""

FLAT = 0.01
"""How much a quantity may grow per ``PER`` batches, as a part of itself."""

MOST_ENTRIES = 2 * ENTRIES_KEPT
"""Of a log: as many as are kept, and as many until they are pruned again."""

Made = tuple[TwoPhaseCommitSink[Any], Callable[[], int]]
"""A sink, and what counts the records that readers see; -1 if only its server knows."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a driver holds after so many batches. ``batch_ms`` is the median of the batches since the last sample,
    ``entry_bytes`` is the mean of the log's entries, and ``names`` are the files by which Kafka's sink leases its
    transactional ids."""

    batches: int
    threads: int
    descriptors: int
    sockets: int
    memory_mib: float
    log_entries: int
    entry_bytes: float
    names: int
    batch_ms: float


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if anything grows, or records are missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="in all")
    parser.add_argument("--batches", type=int, default=50_000, help="at most, into each sink")
    parser.add_argument("--restart-each", type=int, default=500, help="batches between two restarts")
    parser.add_argument("--sinks", nargs="+", choices=SINKS, default=list(SINKS))
    parser.add_argument("--folder", type=Path, default=Path("build/soak"), help="working folder; emptied first")
    given = parser.parse_args(arguments)
    shutil.rmtree(given.folder, ignore_errors=True)
    report = Report(given.folder / "report.json")
    found: dict[str, Any] = {}
    for name in given.sinks:
        life = partial(_life, name, given.seconds / len(given.sinks), given.batches, given.restart_each)
        found[name] = alone(life, str(given.folder.resolve()))
        report.write(found)
        print(name, json.dumps({key: found[name][key] for key in ("batches", "wrong", "slopes")}), flush=True)
    wrong = [f"{name}: {each}" for name, of_sink in found.items() for each in of_sink["wrong"]]
    batches = sum(of_sink["batches"] for of_sink in found.values())
    short = [name for name, of_sink in found.items() if not of_sink["slopes"]]
    seen = "; ".join(wrong) or (f"too few for a slope: {', '.join(short)}" if short else "flat")
    return report.end(f"{batches} batches into {len(found)} sinks; {seen}", failed=bool(wrong))


def _life(name: str, seconds: float, batches: int, restart_each: int, folder: str) -> dict[str, Any]:
    """Run batches into one sink, and return what grew."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with ExitStack() as servers, tempfile.TemporaryDirectory(dir=folder) as own:
        make = MAKERS[name](Path(own), servers)
        until_s, log, samples, done = time.monotonic() + seconds, Path(own) / "log", list[Sample](), 0
        while done < batches and time.monotonic() < until_s:
            took_ms: list[float] = []
            sink, _ = make()
            # Every other driver is gone without a stop, as after a kill.
            driver = Coordinator({"sink": sink}, log, owner="soak", rest_interval_s=None)
            for _ in range(restart_each):
                if took_ms and time.monotonic() > until_s:
                    break
                began_s = time.perf_counter()
                driver.run(driver.next_batch_id if not took_ms else done, partial(_votes, sink))
                took_ms.append((time.perf_counter() - began_s) * 1000)
                done += 1
            samples.append(_sample(done, log, Path(own), sorted(took_ms)[len(took_ms) // 2]))
            if len(samples) % 2:
                driver.close()
        seen = make()[1]()
    values = {key: [float(asdict(each)[key]) for each in samples] for key in asdict(samples[0])}
    batches_at = [each.batches for each in samples]
    slopes = {key: slope(batches_at, of_key) for key, of_key in values.items() if key != "batches" and done > ENOUGH}
    wrong = [f"{key} grows by {each:.1%} per {PER} batches" for key, each in slopes.items() if each > allowed(key)]
    if (most := max(each.log_entries for each in samples)) > MOST_ENTRIES:
        wrong.append(f"the log has {most} entries, and at most {MOST_ENTRIES} are kept")
    if seen not in (-1, done * PARTITIONS):
        wrong.append(f"{done * PARTITIONS} records were written, and readers see {seen}")
    return {"batches": done, "wrong": wrong, "slopes": slopes, "samples": [asdict(each) for each in samples]}


def allowed(quantity: str) -> float:
    """Return how much a quantity may grow. The time of a batch is reported alone: other work of the machine is in it,
    and a table's metadata grows until its snapshots are expired. The log's entries have a bound: they come and go by
    ``ENTRIES_KEPT``, and samples at regular distances would show a slope."""
    return float("inf") if quantity in ("batch_ms", "log_entries") else FLAT


def _votes(sink: TwoPhaseCommitSink[Any], round: Round) -> Iterator[Vote]:
    for partition in range(PARTITIONS):
        with Participant({"sink": sink}, round, partition=partition) as participant:
            participant.write("sink", RECORD)
            yield participant.pre_commit()


def _sample(batches: int, log: Path, folder: Path, batch_ms: float) -> Sample:
    holds = held()
    entries = [each.stat().st_size for each in log.glob("*.json")]
    names = sum(1 for each in (folder / f"twopc-{os.getuid()}").rglob("*") if each.is_file())
    memory_mib = psutil.Process().memory_info().rss / 2**20
    return Sample(
        batches,
        **holds,
        memory_mib=memory_mib,
        log_entries=len(entries),
        entry_bytes=sum(entries) / len(entries),
        names=names,
        batch_ms=batch_ms,
    )


# Sinks. --------------------------------------------------------------------------------------------------------------


def _memory(_: Path, __: ExitStack) -> Callable[[], Made]:
    target = MemoryTarget()
    return lambda: (ForgetfulSink(target), lambda: ForgetfulSink.committed)


def _files(folder: Path, _: ExitStack) -> Callable[[], Made]:
    path = folder / "files"
    options = {"path": str(path), "format": "json"}
    return lambda: (twopc.create_sink("files", options), lambda: sum(1 for _ in path.glob("part-*.json")))


def _kafka(writer: str, folder: Path, servers: ExitStack) -> Callable[[], Made]:
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)  # where the names of transactions are leased
    broker = servers.enter_context(KafkaBroker(folder / "broker"))
    broker.create_topic("target", partitions=4)
    options = {"bootstrap.servers": broker.bootstrap_servers, "topic": "target", "writer": writer}
    return lambda: (twopc.create_sink("kafka", options), lambda: -1)


def _postgres(_: Path, servers: ExitStack) -> Callable[[], Made]:
    place = PostgresPlace(servers.enter_context(PostgresServer(max_prepared_transactions=10)), "sales", prefix="twopc")
    place.ask("CREATE SCHEMA sales; CREATE TABLE {} (value text)")
    return lambda: (place.unbound(), lambda: int(place.ask("SELECT count(*) FROM {}")[0][0]))


def _iceberg(folder: Path, _: ExitStack) -> Callable[[], Made]:
    place = IcebergPlace({"uri": f"sqlite:///{folder}/catalog.db", "warehouse": (folder / "warehouse").as_uri()})
    place.create(spec=PartitionSpec())
    return lambda: (place.unbound(), lambda: len(place.values()))


def _delta(folder: Path, _: ExitStack) -> Callable[[], Made]:
    place = DeltaPlace(str(folder / "delta"))
    place.create()
    return lambda: (place.unbound(), lambda: len(place.values()))


MAKERS: dict[str, Callable[[Path, ExitStack], Callable[[], Made]]] = {
    "memory": _memory,
    "files": _files,
    "kafka-arrow": partial(_kafka, "arrow"),
    "kafka-librdkafka": partial(_kafka, "librdkafka"),
    "postgres": _postgres,
    "iceberg": _iceberg,
    "delta": _delta,
}
