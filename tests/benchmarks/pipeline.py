"""Kafka → Spark → Kafka, exactly once, compared with Spark's Kafka sink (at-least-once) and noop sink (the limit).

All contestants run in turns, in one Spark session, and read the same topic. A contestant's result is the median of its
steady batches. The first batch is excluded, because it starts Python and fills caches.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import statistics
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyspark
from confluent_kafka.admin import AdminClient

import twopc
from tests.benchmarks.cpu import BROKER, JVM, PYTHON, cpu_of
from tests.benchmarks.measuring import Row, in_turns, ratio
from tests.benchmarks.peers import Flink, PeerMissing, Quix
from tests.support.spark_home import set_java_and_python
from twopc import Coordinator, Participant, Round, TwoPhaseCommitSink, Vote
from twopc.spark import ForeachBatch, foreach_batch
from twopc_kafka_broker import KafkaBroker, spark_kafka_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARTITIONS = 4
RECORD_BYTES = 100
QUIX_RECORDS = 300_000

FAST_READING = {"kafka.max.poll.records": "10000"}
"""Reader options on Spark; see docs/spark.md. Flink keeps Kafka's default, with which it is faster."""

SPARK, NOOP, OURS, ARROW, AT_LEAST_ONCE = "spark", "noop", "librdkafka", "arrow", "at-least-once"
FILES, BOTH, FLINK, QUIX = "parquet", "kafka-and-parquet", "flink", "quix"
DEFAULT_READS = "arrow-default-reads"


def run(quick: bool) -> list[Row]:
    """Return the throughputs and their ratios."""
    with (
        tempfile.TemporaryDirectory() as folder,
        # Delete topics at once, because each turn leaves one per contestant.
        KafkaBroker(Path(folder) / "broker", properties={"log.segment.delete.delay.ms": 100}, heap_mb=1024) as broker,
    ):
        large = Load("large", *((1_000_000, 250_000) if quick else (8_000_000, 2_000_000)))
        short = Load("short", large.records // 4, large.a_batch)
        for load in (large, short):
            fill(broker, load, Path(folder))
        spark = session(Path(folder))
        machine, turns = Machine(spark, broker, Path(folder), CONTESTANTS), 2 if quick else 5
        on_spark: dict[str, Callable[[], Turn]] = {
            name: functools.partial(machine.turn, large, name) for name in CONTESTANTS
        }
        of_all = in_turns({**on_spark, **_peers(machine, large, short, quick)}, turns)
        spark.stop()
    return [*_throughput({name: [turn.rate for turn in of_turns] for name, of_turns in of_all.items()}), *cpu(of_all)]


def _peers(machine: Machine, large: Load, short: Load, quick: bool) -> dict[str, Callable[[], Turn]]:
    """Return the peers without Spark that can be set up here."""

    def flink(peer: Flink) -> Turn:
        # Subtract a shorter job, to exclude the start.
        whole, start = machine.copy(peer, large, large.records), machine.copy(peer, short, short.records)
        cpu_s = {part: s - start.cpu_s[part] for part, s in whole.cpu_s.items()}
        return Copy(large.records - short.records, whole.seconds - start.seconds, cpu_s).turn()

    def quix(peer: Quix) -> Turn:
        return machine.copy(peer, large, QUIX_RECORDS // (3 if quick else 1)).turn()

    peers: dict[str, Callable[[], Turn]] = {}
    if not quick:  # a quick run is too short to exclude the start
        with told_if_missing():
            peers[FLINK] = functools.partial(flink, Flink.set_up())
    with told_if_missing():
        peers[QUIX] = functools.partial(quix, Quix.set_up())
    return peers


@contextlib.contextmanager
def told_if_missing() -> Iterator[None]:
    """Print the reason if a peer can't be set up here."""
    try:
        yield
    except PeerMissing as missing:
        print(f"left out: {missing}")  # noqa: T201  # for the operator


def _throughput(rates: dict[str, list[float]]) -> list[Row]:
    slower = [min(alone) for alone in zip(rates[OURS], rates[FILES], strict=True)]
    ratios = [
        ratio("exactly once (librdkafka), over Spark's own sink", rates, OURS, SPARK, "kafka_vs_spark"),
        ratio("exactly once (Arrow), over Spark's own sink", rates, ARROW, SPARK, "pipeline_arrow_vs_spark"),
        ratio("exactly once (librdkafka), over at-least-once", rates, OURS, AT_LEAST_ONCE, "exactly_vs_at_least_once"),
        ratio("exactly once (librdkafka), over the noop sink", rates, OURS, NOOP, "noop_limit"),
        ratio("exactly once (Arrow), over the noop sink", rates, ARROW, NOOP, "pipeline_arrow_vs_noop"),
        ratio("Kafka and Parquet, over the slower alone", rates | {FILES: slower}, BOTH, FILES, "multi_vs_slower"),
    ]
    if FLINK in rates:
        ratios.append(ratio("exactly once (librdkafka), over Flink", rates, OURS, FLINK, "kafka_vs_flink"))
        ratios.append(ratio("exactly once (Arrow), over Flink", rates, ARROW, FLINK, "pipeline_arrow_vs_flink"))
        what, key = "the same, both with Kafka's default reads", "pipeline_arrow_vs_flink_default_reads"
        ratios.append(ratio(what, rates, DEFAULT_READS, FLINK, key))
    if QUIX in rates:
        ratios.append(ratio("exactly once (librdkafka), over Quix Streams", rates, OURS, QUIX, "kafka_vs_quix"))
    return [*(Row(name, "records/s", tuple(of_turns)) for name, of_turns in rates.items()), *ratios]


def cpu(of_all: Mapping[str, Sequence[Turn]]) -> list[Row]:
    """Return the CPU time per record of each contestant, by the part that used it."""
    return [
        Row(f"{name}, CPU of {part}", "µs/record", tuple(turn.cpu_us[part] for turn in of_turns))
        for name, of_turns in of_all.items()
        for part in of_turns[0].cpu_us
    ]


def session(folder: Path) -> SparkSession:
    set_java_and_python()
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(str(jar) for jar in spark_kafka_jars(pyspark.__version__)))
        .config("spark.driver.memory", "2g")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        # Otherwise each task waits 40 ms for TCP's delayed acknowledgments.
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def fill(broker: KafkaBroker, load: Load, folder: Path) -> None:
    """Write the source topic."""
    broker.create_topic(load.source, PARTITIONS)
    values = [str(number).encode().ljust(RECORD_BYTES, b"x") for number in range(10_000)]
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    sink = twopc.create_sink(
        "kafka", {"bootstrap.servers": broker.bootstrap_servers, "topic": load.source, "writer": "arrow"}
    )

    def phase_one(round: Round) -> list[Vote]:
        with Participant({"sink": sink}, round, partition=0) as participant:
            for begin in range(0, load.records, batch.num_rows):
                participant.write("sink", batch.slice(0, min(batch.num_rows, load.records - begin)))
            return [participant.pre_commit()]

    with Coordinator({"sink": sink}, f"{folder}/{load.source}-log", owner="benchmark") as coordinator:
        coordinator.run(0, phase_one)


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a contestant: ``records`` of the source, in batches of ``a_batch``."""

    source: str
    records: int
    a_batch: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A contestant's result.

    Attributes:
        rate: the records per second, in a steady batch if there are batches.
        cpu_us: the CPU time per record of the whole turn, by the part that used it; see ``cpu_of``.
    """

    rate: float
    cpu_us: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Copy:
    """What a peer took to copy ``records``. ``cpu_s``: see ``cpu_of``."""

    records: int
    seconds: float
    cpu_s: Mapping[str, float]

    def turn(self) -> Turn:
        """Return this as the result of a turn."""
        return Turn(self.records / self.seconds, {part: s / self.records * 1e6 for part, s in self.cpu_s.items()})


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources that all contestants share."""

    spark: SparkSession
    broker: KafkaBroker
    folder: Path
    contestants: Mapping[str, Contestant]

    def turn(self, load: Load, contestant: str) -> Turn:
        """Run a contestant. Checks that the output is complete."""
        target = f"{contestant}-{uuid.uuid4().hex[:8]}"
        self.broker.create_topic(target, PARTITIONS)
        name = f"{self.folder}/{target}"
        writes = self.contestants[contestant]
        writer, written = writes.start(
            self, self.source(load.source, maxOffsetsPerTrigger=str(load.a_batch)), target, name
        )
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

    def copy(self, peer: Flink | Quix, load: Load, records: int) -> Copy:
        """Return what a peer takes. Checks that the output is complete."""
        name = type(peer).__name__
        target = f"{name}-{uuid.uuid4().hex[:8]}"
        self.broker.create_topic(target, PARTITIONS)
        assert self.broker.pid is not None
        with cpu_of(self.broker.pid) as used_s:
            seconds = peer.copy(self.broker.bootstrap_servers, load.source, target, records)
        self._check(name, self._count(target), records)
        self.delete(target)
        # The CPU time of a process that has ended counts as this one's, which only waits.
        return Copy(records, seconds, {BROKER: used_s[BROKER], peer.part: used_s[JVM] + used_s[PYTHON]})

    def _check(self, contestant: str, found: int, records: int) -> None:
        if found != records:
            raise SystemExit(f"{contestant} wrote {found} of {records} records")

    def delete(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        admin.delete_topics([topic])[topic].result()

    def source(self, topic: str, **options: str) -> DataFrame:
        """Return a stream of a topic's values, from the first on. ``options``: of Spark's Kafka source."""
        options = self._reader(topic) | options
        return self.spark.readStream.format("kafka").options(**options).load().select("value")

    def _count(self, topic: str) -> int:
        options = self._reader(topic) | {"kafka.isolation.level": "read_committed"}
        return self.spark.read.format("kafka").options(**options).load().count()

    def _reader(self, topic: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.broker.bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
        }


@dataclass(frozen=True, slots=True)
class Output:
    """A sink beside Kafka, in a folder: how it is created, and how many records are in it."""

    sink: Callable[[str], TwoPhaseCommitSink[Any]]
    count: Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Contestant:
    """What starts a query from a frame, a topic and a folder; where its records can be counted; and with which options
    Spark's Kafka source reads."""

    start: Callable[[Machine, DataFrame, str, str], tuple[DataStreamWriter, ForeachBatch | None]]
    topic: bool = True
    outputs: Mapping[str, Output] = field(default_factory=dict)
    reads: Mapping[str, str] = field(default_factory=lambda: FAST_READING)


def _spark(machine: Machine, frame: DataFrame, target: str, name: str) -> tuple[DataStreamWriter, None]:
    options = {"kafka.bootstrap.servers": machine.broker.bootstrap_servers, "topic": target}
    return frame.writeStream.format("kafka").options(**options), None


def _noop(machine: Machine, frame: DataFrame, target: str, name: str) -> tuple[DataStreamWriter, None]:
    return frame.writeStream.format("noop"), None


def ours(kafka: Mapping[str, str] | None, **outputs: Output) -> Contestant:
    """Return a contestant that writes with twopc. ``kafka`` has the options of the Kafka sink, if there is one."""

    def start(
        machine: Machine, frame: DataFrame, target: str, name: str
    ) -> tuple[DataStreamWriter, ForeachBatch | None]:
        sinks = {each: output.sink(name) for each, output in outputs.items()}
        if kafka is not None:
            where = {"bootstrap.servers": machine.broker.bootstrap_servers, "topic": target}
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
    BOTH: ours({"writer": "librdkafka"}, parquet=PARQUET),
}
