"""Kafka → Spark → Kafka, exactly once, beside Spark's own sink, which is at-least-once, and its noop sink, the limit.

All in one Spark, from one topic, in turns. A figure of a contestant is the median of its steady batches: the first one
starts Python and fills caches, and is left out.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from confluent_kafka.admin import AdminClient

import twopc
from tests.benchmarks.measuring import Row
from twopc import Coordinator, Participant, Round, Vote
from twopc.spark import ForeachBatch, foreach_batch
from twopc_kafka.development import SPARK_MODULES, KafkaBroker, find_java, spark_kafka_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARTITIONS = 4
RECORD_BYTES = 100
SMALL_BATCH = 1_000


def run(quick: bool) -> list[Row]:
    """Ratios of throughput, and of the time of a small batch."""
    with (
        tempfile.TemporaryDirectory() as folder,
        # Deleted topics go at once: each turn leaves as many as there are contestants.
        KafkaBroker(Path(folder) / "broker", properties={"log.segment.delete.delay.ms": 100}, heap_mb=1024) as broker,
    ):
        large = Load("large", *((1_500_000, 500_000) if quick else (8_000_000, 2_000_000)))
        small = Load("small", SMALL_BATCH * (20 if quick else 60), SMALL_BATCH)
        for load in (large, small):
            _fill(broker, load, Path(folder))
        spark = _session(Path(folder))
        machine = Machine(spark, broker, Path(folder))
        turns = 2 if quick else 5
        rates = _in_turns(machine, large, turns, list(CONTESTANTS))
        times = _in_turns(machine, small, turns, [SPARK, OURS, ARROW])
        spark.stop()
    return [*_throughput(large, rates), *_small_batches(times)]


def _in_turns(machine: Machine, load: Load, turns: int, contestants: Sequence[str]) -> dict[str, list[float]]:
    """Contestant → seconds of a steady batch in each turn. Every turn begins with another contestant."""
    seconds: dict[str, list[float]] = {contestant: [] for contestant in contestants}
    for turn in range(turns):
        start = turn % len(contestants)
        for contestant in (*contestants[start:], *contestants[:start]):
            seconds[contestant].append(machine.run(load, contestant))
    return seconds


def _throughput(load: Load, seconds: dict[str, list[float]]) -> list[Row]:
    rates = [
        Row(f"{contestant}", "records/s", tuple(load.a_batch / s for s in took)) for contestant, took in seconds.items()
    ]
    return [
        *rates,
        _faster("exactly once (librdkafka), over Spark's own sink", seconds, OURS, SPARK, "kafka_vs_spark"),
        _faster("exactly once (Arrow), over Spark's own sink", seconds, ARROW, SPARK, "pipeline_arrow_vs_spark"),
        _faster(
            "exactly once (librdkafka), over our at-least-once",
            seconds,
            OURS,
            AT_LEAST_ONCE,
            "exactly_vs_at_least_once",
        ),
        _faster("exactly once (librdkafka), over Spark's noop sink", seconds, OURS, NOOP, "noop_limit"),
    ]


def _small_batches(seconds: dict[str, list[float]]) -> list[Row]:
    milliseconds = [
        Row(f"batch of {SMALL_BATCH} records, {contestant}", "ms", tuple(s * 1000 for s in took))
        for contestant, took in seconds.items()
    ]
    what = f"batch of {SMALL_BATCH} records: time"
    return [
        *milliseconds,
        _faster(f"{what} with librdkafka, over Spark's own sink", seconds, SPARK, OURS, "small_batch_vs_spark"),
        _faster(f"{what} with Arrow, over Spark's own sink", seconds, SPARK, ARROW, "small_batch_arrow_vs_spark"),
    ]


def _faster(what: str, seconds: dict[str, list[float]], one: str, other: str, key: str) -> Row:
    """How often ``one`` does in each turn what ``other`` does once."""
    return Row(what, "ratio", tuple(b / a for a, b in zip(seconds[one], seconds[other], strict=True)), key)


def _session(folder: Path) -> SparkSession:
    os.environ["JAVA_HOME"] = str(find_java(SPARK_MODULES).home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(str(jar) for jar in spark_kafka_jars(pyspark.__version__)))
        .config("spark.driver.memory", "2g")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.ui.enabled", "false")
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
        with Participant({"sink": sink}, round, 0) as participant:
            for begin in range(0, load.records, batch.num_rows):
                participant.write("sink", batch.slice(0, min(batch.num_rows, load.records - begin)))
            return [participant.pre_commit()]

    with Coordinator({"sink": sink}, f"{folder}/{load.source}-log", "benchmark") as coordinator:
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
        if contestant != NOOP and (found := self._count(target)) != load.records:
            raise SystemExit(f"{contestant} wrote {found} records of {load.records}")
        delete = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers}).delete_topics([target])
        delete[target].result()
        took: list[float] = [progress["durationMs"]["triggerExecution"] / 1000 for progress in query.recentProgress]
        full = [s for s, p in zip(took, query.recentProgress, strict=True) if p["numInputRows"] >= load.a_batch * 0.9]
        return statistics.median(full[1:])

    def _source(self, load: Load) -> DataFrame:
        options = self._reader(load.source) | {"maxOffsetsPerTrigger": str(load.a_batch)}
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


def _ours(**options: str) -> Contestant:
    def contestant(
        machine: Machine, frame: DataFrame, target: str, name: str
    ) -> tuple[DataStreamWriter, ForeachBatch | None]:
        where = {"bootstrap.servers": machine.broker.bootstrap_servers, "topic": target}
        write = foreach_batch(twopc.create_sink("kafka", {**where, **options}), log=f"{name}/log")
        return frame.writeStream.foreachBatch(write), write

    return contestant


SPARK, NOOP, OURS, ARROW, AT_LEAST_ONCE = "spark", "noop", "librdkafka", "arrow", "at-least-once"
CONTESTANTS: dict[str, Contestant] = {
    SPARK: _spark,
    NOOP: _noop,
    OURS: _ours(writer="librdkafka"),
    ARROW: _ours(writer="arrow"),
    AT_LEAST_ONCE: _ours(delivery="at-least-once"),
}
