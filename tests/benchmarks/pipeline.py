"""Kafka → Spark → Kafka, exactly once, beside Spark's own sink, which is at-least-once, and its noop sink, the limit.

All in one Spark, from one topic, in turns. A figure of a contestant is the median of its steady batches: the first one
starts Python and fills caches, and is left out.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import statistics
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyspark
from confluent_kafka.admin import AdminClient

import twopc
from tests.benchmarks.measuring import Row, in_turns, ratio
from tests.benchmarks.peers import Flink, PeerMissing, Quix
from tests.support.spark_home import set_java_and_python
from twopc import Coordinator, Participant, Round, Vote
from twopc.spark import ForeachBatch, foreach_batch
from twopc_kafka_broker import KafkaBroker, spark_kafka_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARTITIONS = 4
RECORD_BYTES = 100
SMALL_BATCH = 1_000
SMALL_TURNS_TO_WARM_UP = 3
"""Of 60 batches each, which are not counted: such a query runs for days, and the JVMs compile for its first minutes."""

QUIX_RECORDS = 300_000

FAST_READING = {"kafka.max.poll.records": "10000"}
"""For all that runs on Spark: see docs/spark.md. Flink is the faster for Kafka's default, and has that."""

PARQUET_FOLDER = "parquet"

SPARK, NOOP, OURS, ARROW, AT_LEAST_ONCE = "spark", "noop", "librdkafka", "arrow", "at-least-once"
FILES, BOTH, FLINK, QUIX = "parquet", "kafka-and-parquet", "flink", "quix"


def run(quick: bool) -> list[Row]:
    """Ratios of throughput, and of the time of a small batch."""
    with (
        tempfile.TemporaryDirectory() as folder,
        # Deleted topics go at once: each turn leaves as many as there are contestants.
        KafkaBroker(Path(folder) / "broker", properties={"log.segment.delete.delay.ms": 100}, heap_mb=1024) as broker,
    ):
        large = Load("large", *((1_000_000, 250_000) if quick else (8_000_000, 2_000_000)))
        short = Load("short", large.records // 4, large.a_batch)
        small = Load("small", SMALL_BATCH * (20 if quick else 60), SMALL_BATCH)
        for load in (large, short, small):
            _fill(broker, load, Path(folder))
        spark = _session(Path(folder))
        machine, turns = Machine(spark, broker, Path(folder)), 2 if quick else 5
        ours = {name: functools.partial(machine.rate, large, name) for name in CONTESTANTS}
        rates = in_turns({**ours, **_peers(machine, large, short, quick)}, turns)
        smalls = {name: functools.partial(machine.run, small, name) for name in (SPARK, OURS, ARROW)}
        in_turns(smalls, 0 if quick else SMALL_TURNS_TO_WARM_UP)
        times = in_turns(smalls, turns)
        spark.stop()
    return [*_throughput(rates), *_small_batches(times)]


def _peers(machine: Machine, large: Load, short: Load, quick: bool) -> dict[str, Callable[[], float]]:
    """Those that don't run on Spark and can be set up here: name → how to measure its records/s."""

    def flink(peer: Flink) -> float:
        # Its start is taken out: what the longer job does more.
        more_s = machine.copy(peer, large, large.records) - machine.copy(peer, short, short.records)
        return (large.records - short.records) / more_s

    def quix(peer: Quix) -> float:
        records = QUIX_RECORDS // (3 if quick else 1)
        return records / machine.copy(peer, large, records)

    peers: dict[str, Callable[[], float]] = {}
    if not quick:  # which is too short to take its start out of it
        with _told_if_missing():
            peers[FLINK] = functools.partial(flink, Flink.set_up())
    with _told_if_missing():
        peers[QUIX] = functools.partial(quix, Quix.set_up())
    return peers


@contextlib.contextmanager
def _told_if_missing() -> Iterator[None]:
    try:
        yield
    except PeerMissing as missing:
        print(f"left out: {missing}")  # noqa: T201  # for the person who runs it


def _throughput(rates: dict[str, list[float]]) -> list[Row]:
    slower = [min(alone) for alone in zip(rates[OURS], rates[FILES], strict=True)]
    ratios = [
        ratio("exactly once (librdkafka), over Spark's own sink", rates, OURS, SPARK, "kafka_vs_spark"),
        ratio("exactly once (Arrow), over Spark's own sink", rates, ARROW, SPARK, "pipeline_arrow_vs_spark"),
        ratio("exactly once (librdkafka), over at-least-once", rates, OURS, AT_LEAST_ONCE, "exactly_vs_at_least_once"),
        ratio("exactly once (librdkafka), over the noop sink", rates, OURS, NOOP, "noop_limit"),
        ratio("Kafka and Parquet, over the slower alone", rates | {FILES: slower}, BOTH, FILES, "multi_vs_slower"),
    ]
    if FLINK in rates:
        ratios.append(ratio("exactly once (librdkafka), over Flink", rates, OURS, FLINK, "kafka_vs_flink"))
        ratios.append(ratio("exactly once (Arrow), over Flink", rates, ARROW, FLINK, "pipeline_arrow_vs_flink"))
    if QUIX in rates:
        ratios.append(ratio("exactly once (librdkafka), over Quix Streams", rates, OURS, QUIX, "kafka_vs_quix"))
    return [*(Row(name, "records/s", tuple(of_turns)) for name, of_turns in rates.items()), *ratios]


def _small_batches(seconds: dict[str, list[float]]) -> list[Row]:
    what = f"batch of {SMALL_BATCH} records"
    return [
        *(Row(f"{what}, {name}", "ms", tuple(s * 1000 for s in of_turns)) for name, of_turns in seconds.items()),
        ratio(f"{what}: time with librdkafka, over Spark's own sink", seconds, OURS, SPARK, "small_batch_vs_spark"),
        ratio(f"{what}: time with Arrow, over Spark's own sink", seconds, ARROW, SPARK, "small_batch_arrow_vs_spark"),
    ]


def _session(folder: Path) -> SparkSession:
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
        # Without it each task waits 40 ms for TCP's delayed acknowledgements.
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _fill(broker: KafkaBroker, load: Load, folder: Path) -> None:
    """Write the source."""
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
    """What a contestant has to write: ``records`` of the source in batches of ``a_batch``."""

    source: str
    records: int
    a_batch: int


@dataclass(frozen=True, slots=True)
class Machine:
    """What all contestants share."""

    spark: SparkSession
    broker: KafkaBroker
    folder: Path

    def run(self, load: Load, contestant: str) -> float:
        """The seconds of a steady batch; the output is complete."""
        target = f"{contestant}-{uuid.uuid4().hex[:8]}"
        self.broker.create_topic(target, PARTITIONS)
        name = f"{self.folder}/{target}"
        writer, written = CONTESTANTS[contestant](self, self._source(load), target, name)
        query = writer.option("checkpointLocation", f"{name}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        if written is not None:
            written.close()
        if contestant not in (NOOP, FILES):
            self._check(contestant, self._count(target), load.records)
        if contestant in (FILES, BOTH):
            self._check(contestant, ds.dataset(f"{name}/{PARQUET_FOLDER}").count_rows(), load.records)
            shutil.rmtree(name)
        self._delete(target)
        full: list[float] = [
            progress["durationMs"]["triggerExecution"] / 1000
            for progress in query.recentProgress
            if progress["numInputRows"] >= load.a_batch * 0.9
        ]
        return statistics.median(full[1:])

    def rate(self, load: Load, contestant: str) -> float:
        """Records a second in a steady batch."""
        return load.a_batch / self.run(load, contestant)

    def copy(self, peer: Flink | Quix, load: Load, records: int) -> float:
        """Seconds; the output is complete."""
        name = type(peer).__name__
        target = f"{name}-{uuid.uuid4().hex[:8]}"
        self.broker.create_topic(target, PARTITIONS)
        seconds = peer.copy(self.broker.bootstrap_servers, load.source, target, records)
        self._check(name, self._count(target), records)
        self._delete(target)
        return seconds

    def _check(self, contestant: str, found: int, records: int) -> None:
        if found != records:
            raise SystemExit(f"{contestant} wrote {found} records of {records}")

    def _delete(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        admin.delete_topics([topic])[topic].result()

    def _source(self, load: Load) -> DataFrame:
        options = self._reader(load.source) | FAST_READING | {"maxOffsetsPerTrigger": str(load.a_batch)}
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


Contestant = Callable[[Machine, "DataFrame", str, str], "tuple[DataStreamWriter, ForeachBatch | None]"]


def _spark(machine: Machine, frame: DataFrame, target: str, name: str) -> tuple[DataStreamWriter, None]:
    options = {"kafka.bootstrap.servers": machine.broker.bootstrap_servers, "topic": target}
    return frame.writeStream.format("kafka").options(**options), None


def _noop(machine: Machine, frame: DataFrame, target: str, name: str) -> tuple[DataStreamWriter, None]:
    return frame.writeStream.format("noop"), None


def _ours(kafka: Mapping[str, str] | None, parquet: bool = False) -> Contestant:
    """``kafka``: options of that sink, where there is one."""

    def contestant(
        machine: Machine, frame: DataFrame, target: str, name: str
    ) -> tuple[DataStreamWriter, ForeachBatch | None]:
        sinks = {}
        if kafka is not None:
            where = {"bootstrap.servers": machine.broker.bootstrap_servers, "topic": target}
            sinks["kafka"] = twopc.create_sink("kafka", {**where, **kafka})
        if parquet:
            sinks["files"] = twopc.create_sink("files", {"path": f"{name}/{PARQUET_FOLDER}"})
        write = foreach_batch(sinks, log=f"{name}/log")
        return frame.writeStream.foreachBatch(write), write

    return contestant


CONTESTANTS: dict[str, Contestant] = {
    SPARK: _spark,
    NOOP: _noop,
    OURS: _ours({"writer": "librdkafka"}),
    ARROW: _ours({"writer": "arrow"}),
    AT_LEAST_ONCE: _ours({"delivery": "at-least-once"}),
    FILES: _ours(None, parquet=True),
    BOTH: _ours({"writer": "librdkafka"}, parquet=True),
}
