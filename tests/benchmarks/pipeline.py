"""Kafka → Spark → Kafka, exactly once, beside Flink, Spark's Kafka sink (at-least-once) and its noop sink (the limit).

All contestants are long-lived and read the same topic; see ``windows``.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyspark
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import twopc
from tests.benchmarks import windows
from tests.benchmarks.cpu import cpu_of
from tests.benchmarks.measuring import Row, Turn, in_turns, ratio
from tests.benchmarks.peers import Flink, PeerMissing
from tests.support.spark_home import set_java_and_python
from twopc import Coordinator, Participant, Round, TwoPhaseCommitSink, Vote
from twopc.spark import ForeachBatch, foreach_batch
from twopc_kafka_broker import KafkaBroker, spark_kafka_jars

PARTITIONS = 4
RECORD_BYTES = 100
TURNS, TURNS_TO_WARM_UP = 20, 3

FAST_READING = {
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(8 * 2**20),
    "kafka.receive.buffer.bytes": "-1",
}
"""Options of Spark's Kafka source for throughput; see docs/performance.md."""

SPARK, NOOP, OURS, ARROW, AT_LEAST_ONCE = "spark", "noop", "librdkafka", "arrow", "at-least-once"
FILES, BOTH, FLINK, SLOWER = "parquet", "kafka-and-parquet", "flink", "slower"
DEFAULT_READS = "arrow-default-reads"
_LARGE_FETCHES = {"max.partition.fetch.bytes": str(8 * 2**20), "receive.buffer.bytes": "-1"}
FLINKS = {
    FLINK: (2, dict[str, str]()),
    "flink-large-fetches": (2, _LARGE_FETCHES),
    "flink-four-tasks": (4, _LARGE_FETCHES),
}
"""Flink's jobs: the parallelism, and the options of the source. The one that is fastest in the turns that warm up is
compared. Larger polls made it slower."""

PEERS, VARIANTS = (NOOP, ARROW, *FLINKS, SPARK), (ARROW, DEFAULT_READS, OURS, AT_LEAST_ONCE, FILES, BOTH)

FLINKS_INTERVAL_MS = 1_000
"""The time between two checkpoints of Flink."""


def run(quick: bool, names: Sequence[str] = PEERS) -> list[Row]:
    """Return the throughputs, CPU times and cores in use, and the ratios of contestants in the same turn."""
    # The marker of a transaction takes an offset, and the source's batches are of so many offsets.
    load = Load("source", 3_000_000 - PARTITIONS, 1_500_000)
    properties = {
        "log.segment.delete.delay.ms": 100,
        "log.segment.bytes": 2**26,
        "log.retention.check.interval.ms": 1000,
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "broker", properties=properties, heap_mb=1024) as broker,
        contextlib.ExitStack() as running,
    ):
        servers, root = broker.bootstrap_servers, Path(folder)
        topics = windows.Topics(servers, PARTITIONS)
        pid, batch_ids = broker.pid, itertools.count()
        assert pid is not None
        contestants: dict[str, windows.Contestant] = {}
        for name in names:
            broker.create_topic(name, PARTITIONS)
            with told_if_missing():
                contestants[name] = _long_lived(name, servers, load, root / name, topics)
                running.callback(contestants[name].end)
        broker.create_topic(load.source, PARTITIONS)

        def feed() -> None:
            number = next(batch_ids)
            for topic in (load.source, *names) if number else ():  # a new topic's leader may not know of it yet
                topics.clear(topic)
            write(servers, load, root, number)

        window = {
            name: functools.partial(each.window, pid, load.records, load.a_batch) for name, each in contestants.items()
        }
        warm_up = in_turns(window, 1 if quick else TURNS_TO_WARM_UP, feed)
        for slower in _by_rate(warm_up, FLINKS)[:-1]:
            del window[slower]
        return _rows(in_turns(window, 3 if quick else TURNS, feed))


def _by_rate(turns: Mapping[str, Sequence[Turn]], names: Iterable[str]) -> list[str]:
    """Return those of ``names`` that ran, the fastest last."""
    return sorted(turns.keys() & names, key=lambda name: statistics.median(turn.rate for turn in turns[name]))


def _long_lived(name: str, servers: str, load: Load, folder: Path, topics: windows.Topics) -> windows.Contestant:
    folder.mkdir()
    log = folder.with_suffix(".log")
    if name in FLINKS:
        job = Flink.set_up().job(servers, load.source, name, FLINKS_INTERVAL_MS, *FLINKS[name])
        return windows.Contestant(job, log, functools.partial(topics.end, name), cut_s=FLINKS_INTERVAL_MS / 2000)
    program = [sys.executable, "-m", "tests.benchmarks.pipeline", name, servers, str(folder), str(load.a_batch)]
    if CONTESTANTS[name].topic:
        return windows.Contestant(program, log, functools.partial(topics.end, name))

    def committed() -> int:
        """Return the records of the batches in Spark's checkpoint."""
        with contextlib.suppress(FileNotFoundError):
            batches = [int(each.name) for each in (folder / "checkpoint" / "commits").iterdir() if each.name.isdigit()]
            return load.a_batch * max(batches, default=-1) + load.a_batch
        return 0

    return windows.Contestant(program, log, committed)


def main() -> None:
    """Run one contestant on Spark until it is killed."""
    name, servers, folder, a_batch = sys.argv[1:]
    contestant = CONTESTANTS[name]
    frame = source(session(Path(folder)), servers, "source", maxOffsetsPerTrigger=a_batch, **contestant.reads)
    writer, _ = contestant.start(servers, frame, name, folder)
    writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()


@contextlib.contextmanager
def told_if_missing() -> Iterator[None]:
    """Print the reason if a peer can't be set up here."""
    try:
        yield
    except PeerMissing as missing:
        print(f"left out: {missing}")  # noqa: T201  # for the operator


def _rows(turns: Mapping[str, Sequence[Turn]]) -> list[Row]:
    rates = {name: [turn.rate for turn in of_turns] for name, of_turns in turns.items()}
    used = {name: [sum(turn.cpu_us.values()) for turn in of_turns] for name, of_turns in turns.items()}
    if FILES in rates:
        rates[SLOWER] = [min(alone) for alone in zip(rates[ARROW], rates[FILES], strict=True)]
    flink = next(iter(_by_rate(turns, FLINKS)), FLINK)
    return [
        *(Row(name, "records/s", tuple(rates[name])) for name in turns),
        *cpu(turns),
        *(
            Row(
                f"{name}, cores in use",
                "cores",
                tuple(r * us / 1e6 for r, us in zip(rates[name], used[name], strict=True)),
            )
            for name in turns
        ),
        *(
            ratio(what, figures, one, other, key)
            for what, figures, one, other, key in (
                (f"twopc, over {flink}", rates, ARROW, flink, "pipeline_arrow_vs_flink"),
                (f"CPU of twopc, over {flink}'s", used, ARROW, flink, "pipeline_cpu_arrow_vs_flink"),
                ("twopc, over Spark's own sink", rates, ARROW, SPARK, "pipeline_arrow_vs_spark"),
                ("CPU of twopc, over that with Spark's own sink", used, ARROW, SPARK, "pipeline_cpu_arrow_vs_spark"),
                ("twopc, over the noop sink", rates, ARROW, NOOP, "pipeline_arrow_vs_noop"),
                ("default reads of Spark's source, over fast ones", rates, DEFAULT_READS, ARROW, "default_reads"),
                ("librdkafka, over Arrow", rates, OURS, ARROW, "pipeline_librdkafka_vs_arrow"),
                ("at-least-once, over Arrow", rates, AT_LEAST_ONCE, ARROW, "at_least_once_vs_arrow"),
                ("Kafka and Parquet, over the slower alone", rates, BOTH, SLOWER, "multi_vs_slower"),
            )
            if one in rates and other in rates
        ),
    ]


def cpu(of_all: Mapping[str, Sequence[Turn]]) -> list[Row]:
    """Return the CPU time per record of each contestant, by the part that used it."""
    return [
        Row(f"{name}, CPU of {part}", "µs/record", tuple(turn.cpu_us[part] for turn in of_turns))
        for name, of_turns in of_all.items()
        for part in of_turns[0].cpu_us
    ]


def session(folder: Path) -> SparkSession:
    """Start Spark. What its JVM prints goes to ``spark.log`` in the folder."""
    set_java_and_python()
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{PARTITIONS}]")  # while one task waits for a fetch, another has its core
        .config("spark.jars", ",".join(str(jar) for jar in spark_kafka_jars(pyspark.__version__)))
        .config("spark.driver.memory", "2g")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        # Otherwise each task waits 40 ms for TCP's delayed acknowledgments.
        .config("spark.python.unix.domain.socket.enabled", "true")
    )
    kept = os.dup(sys.stderr.fileno())
    with (folder / "spark.log").open("ab") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    try:
        spark = builder.getOrCreate()
    finally:
        os.dup2(kept, sys.stderr.fileno())
        os.close(kept)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def write(servers: str, load: Load, folder: Path, batch_id: int) -> None:
    """Write the records in one transaction, equally many to each partition."""
    values = [str(number).encode().ljust(RECORD_BYTES, b"x") for number in range(10_000)]
    column = pa.array(values, pa.binary())
    batches = [
        pa.record_batch({"value": column, "partition": pa.repeat(pa.scalar(number, pa.int32()), len(values))})
        for number in range(PARTITIONS)
    ]
    sink = twopc.create_sink("kafka", {"bootstrap.servers": servers, "topic": load.source})

    def phase_one(round: Round) -> list[Vote]:
        with Participant({"sink": sink}, round, partition=0) as participant:
            for begin in range(0, load.records // PARTITIONS, len(values)):
                for batch in batches:
                    participant.write("sink", batch.slice(0, load.records // PARTITIONS - begin))
            return [participant.pre_commit()]

    with Coordinator({"sink": sink}, f"{folder}/{load.source}-log", owner="benchmark") as coordinator:
        coordinator.run(batch_id, phase_one)


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a contestant: ``records`` of the source, in batches of ``a_batch``."""

    source: str
    records: int
    a_batch: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources that all contestants share."""

    spark: SparkSession
    broker: KafkaBroker
    folder: Path
    contestants: Mapping[str, Contestant]

    def turns(self, load: Load) -> dict[str, Callable[[], Turn]]:
        """Return what runs each contestant."""
        return {name: functools.partial(self.turn, load, name) for name in self.contestants}

    def turn(self, load: Load, contestant: str) -> Turn:
        """Run a contestant. Checks that the output is complete."""
        target = f"{contestant}-{uuid.uuid4().hex[:8]}"
        self.broker.create_topic(target, PARTITIONS)
        name = f"{self.folder}/{target}"
        writes = self.contestants[contestant]
        frame = self.source(load.source, maxOffsetsPerTrigger=str(load.a_batch))
        writer, written = writes.start(self.broker.bootstrap_servers, frame, target, name)
        assert self.broker.pid is not None
        with cpu_of(self.broker.pid) as used_s:
            query = writer.option("checkpointLocation", f"{name}/checkpoint").trigger(availableNow=True).start()
            query.awaitTermination()
            if written is not None:
                written.close()
        if writes.topic:
            self._check(contestant, self._count(target), load.records)
        for output in writes.outputs.values():
            self._check(contestant, output.count(name), load.records)
        shutil.rmtree(name)
        self.delete(target)
        full: list[float] = [
            progress["durationMs"]["triggerExecution"] / 1000
            for progress in query.recentProgress
            if progress["numInputRows"] >= load.a_batch * 0.9
        ]
        batch_s = statistics.median(full[1:])
        return Turn(load.a_batch / batch_s, {part: s / load.records * 1e6 for part, s in used_s.items()})

    def _check(self, contestant: str, found: int, records: int) -> None:
        if found != records:
            raise SystemExit(f"{contestant} wrote {found} of {records} records")

    def delete(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        admin.delete_topics([topic])[topic].result()

    def source(self, topic: str, **options: str) -> DataFrame:
        """Return a stream of a topic's values, from the first on. ``options``: of Spark's Kafka source."""
        return source(self.spark, self.broker.bootstrap_servers, topic, **options)

    def _count(self, topic: str) -> int:
        options = _reader(self.broker.bootstrap_servers, topic) | {"kafka.isolation.level": "read_committed"}
        return self.spark.read.format("kafka").options(**options).load().count()


@contextlib.contextmanager
def machine(load: Load, contestants: Mapping[str, Contestant]) -> Iterator[Machine]:
    """Start a broker that has the records of ``load``, and Spark."""
    properties = {"log.segment.delete.delay.ms": 100}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with KafkaBroker(folder / "broker", properties=properties, heap_mb=1024) as broker:
            broker.create_topic(load.source, PARTITIONS)
            write(broker.bootstrap_servers, load, folder, batch_id=0)
            spark = session(folder)
            yield Machine(spark, broker, folder, contestants)
            spark.stop()


def source(spark: SparkSession, servers: str, topic: str, **options: str) -> DataFrame:
    """Return a stream of a topic's values, from the first on. ``options``: of Spark's Kafka source."""
    return spark.readStream.format("kafka").options(**_reader(servers, topic), **options).load().select("value")


def _reader(servers: str, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}


@dataclass(frozen=True, slots=True)
class Output:
    """A sink beside Kafka, in a folder: how it is created, and how many records are in it."""

    sink: Callable[[str], TwoPhaseCommitSink[Any]]
    count: Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Contestant:
    """What starts a query from servers, a frame, a topic and a folder; where its records can be counted; and with which
    options Spark's Kafka source reads."""

    start: Callable[[str, DataFrame, str, str], tuple[DataStreamWriter, ForeachBatch | None]]
    topic: bool = True
    outputs: Mapping[str, Output] = field(default_factory=dict)
    reads: Mapping[str, str] = field(default_factory=lambda: FAST_READING)


def _spark(servers: str, frame: DataFrame, target: str, name: str) -> tuple[DataStreamWriter, None]:
    options = {"kafka.bootstrap.servers": servers, "topic": target}
    return frame.writeStream.format("kafka").options(**options), None


def _noop(servers: str, frame: DataFrame, target: str, name: str) -> tuple[DataStreamWriter, None]:
    return frame.writeStream.format("noop"), None


def ours(kafka: Mapping[str, str] | None, **outputs: Output) -> Contestant:
    """Return a contestant that writes with twopc. ``kafka`` has the options of the Kafka sink, if there is one."""

    def start(servers: str, frame: DataFrame, target: str, name: str) -> tuple[DataStreamWriter, ForeachBatch | None]:
        sinks = {each: output.sink(name) for each, output in outputs.items()}
        if kafka is not None:
            where = {"bootstrap.servers": servers, "topic": target}
            sinks["kafka"] = twopc.create_sink("kafka", {**where, **kafka})
        write = foreach_batch(sinks, log=f"{name}/log")
        return frame.writeStream.foreachBatch(write), write

    return Contestant(start, kafka is not None, outputs)


PARQUET = Output(
    sink=lambda folder: twopc.create_sink("files", {"path": f"{folder}/parquet"}),
    count=lambda folder: int(ds.dataset(f"{folder}/parquet").count_rows()),
)

CONTESTANTS: dict[str, Contestant] = {
    SPARK: Contestant(_spark),
    NOOP: Contestant(_noop, topic=False),
    OURS: ours({"writer": "librdkafka"}),
    ARROW: ours({"writer": "arrow"}),
    DEFAULT_READS: replace(ours({"writer": "arrow"}), reads={}),
    AT_LEAST_ONCE: ours({"delivery": "at-least-once"}),
    FILES: ours(None, parquet=PARQUET),
    BOTH: ours({}, parquet=PARQUET),
}


if __name__ == "__main__":
    main()
