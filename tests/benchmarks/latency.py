"""What a user of a stream waits for: the time of a small batch, and the delay from a record in the source topic to a
committed reader of the target topic.

All contestants run in turns; those on Spark in one session. Flink takes a checkpoint every second or every 100 ms.
"""

import contextlib
import functools
import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.benchmarks.measuring import Row, Turn, in_turns, ratio
from tests.benchmarks.peers import Flink
from tests.benchmarks.pipeline import (
    ARROW,
    CONTESTANTS,
    FAST_READING,
    OURS,
    PARQUET,
    PARTITIONS,
    SPARK,
    Contestant,
    Load,
    Machine,
    cpu,
    machine,
    ours,
    told_if_missing,
)
from twopc.spark import stop

SMALL_BATCH = 1_000
TURNS_TO_WARM_UP = 3
"""Uncounted turns of 60 batches each. Such a query runs for days, and the JVM compiles code in its first minutes."""

BOTH, SPARKS_TWO = "kafka-and-parquet", "spark-kafka-then-parquet"

BEFORE_S, DURING_S = 10, 20
"""How long each contestant runs before its delays count, and while they do."""

SHORT_FETCH, WITH_SHORT_FETCH = {"kafka.fetch.max.wait.ms": "5"}, ", short fetch"
"""How long a broker may hold a request of Spark's source until there is a record, 500 ms by default; and the suffix of
contestants with this option. The source's other requests queue behind it, even when the batch has all its records."""

RAW_CHECKPOINT = {"fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs"}
"""Spark then writes a local checkpoint without checksum files, and starts fewer programs for each of its files."""

INTERVALS_MS = {"flink-1s": 1_000, "flink-100ms": 100}


class Delays(NamedTuple):
    """Milliseconds from a record in the source to a committed reader of the target."""

    median: float
    p99: float
    longest: float


def run(quick: bool) -> list[Row]:
    """Return the times of small batches and the delays, with their ratios."""
    turns, warm_up = (2, 0) if quick else (5, TURNS_TO_WARM_UP)
    load = Load("small", SMALL_BATCH * (20 if quick else 60), SMALL_BATCH)
    with machine(load, SMALL) as running:
        in_turns(running.turns(load), warm_up)
        batches = in_turns(running.turns(load), turns)
        delays = in_turns({**_on_spark(running), **_of_flink(running)}, turns)
    return [*_small_batches(batches), *_delays(delays)]


def _sparks_two(servers: str, frame: DataFrame, target: str, name: str) -> tuple[DataStreamWriter, None]:
    """Start what Spark's guide shows for several outputs: write one after the other, from memory."""
    options = {"kafka.bootstrap.servers": servers, "topic": target}

    def write(batch: DataFrame, _batch_id: int) -> None:
        batch.persist()
        batch.write.format("kafka").options(**options).save()
        batch.write.mode("append").parquet(f"{name}/parquet")
        batch.unpersist()

    return frame.writeStream.foreachBatch(write), None


SMALL = {
    SPARK: CONTESTANTS[SPARK],
    OURS: CONTESTANTS[OURS],
    ARROW: CONTESTANTS[ARROW],
    SPARKS_TWO: Contestant(_sparks_two, outputs={"parquet": PARQUET}),
    BOTH: ours({}, parquet=PARQUET),
}


@dataclass(frozen=True, slots=True)
class OnSpark:
    """A contestant on Spark, with options of its source and settings of its session."""

    machine: Machine
    name: str
    reads: Mapping[str, str]
    settings: Mapping[str, str]

    @contextlib.contextmanager
    def running(self, source: str, target: str) -> Iterator[None]:
        """Run the query while the context is open."""
        spark, folder = self.machine.spark, f"{self.machine.folder}/{target}"
        for key, value in self.settings.items():
            spark.conf.set(key, value)
        frame = self.machine.source(source, **FAST_READING, **self.reads)
        writer, _ = SMALL[self.name].start(self.machine.broker.bootstrap_servers, frame, target, folder)
        query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
        for key in self.settings:
            spark.conf.unset(key)
        try:
            yield
        finally:
            stop(query)


def _delay(machine: Machine, running: Callable[[str, str], contextlib.AbstractContextManager[None]]) -> Delays:
    source, target = (f"{what}-{uuid.uuid4().hex[:8]}" for what in ("source", "target"))
    for topic in (source, target):
        machine.broker.create_topic(topic, PARTITIONS)
    with running(source, target):
        arguments = (machine.broker.bootstrap_servers, source, target, str(BEFORE_S), str(DURING_S))
        command = [sys.executable, "-m", "tests.benchmarks.delays", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=BEFORE_S + DURING_S + 120, check=True)
    return Delays(*json.loads(done.stdout))


def _on_spark(machine: Machine) -> dict[str, Callable[[], Delays]]:
    return {
        f"{name}{suffix}": functools.partial(_delay, machine, OnSpark(machine, name, reads, settings).running)
        for suffix, reads, settings in (
            ("", {}, {}),
            (WITH_SHORT_FETCH, SHORT_FETCH, {}),
            (f"{WITH_SHORT_FETCH}, raw checkpoint", SHORT_FETCH, RAW_CHECKPOINT),
        )
        for name in (SPARK, ARROW)
    }


def _of_flink(machine: Machine) -> dict[str, Callable[[], Delays]]:
    contestants: dict[str, Callable[[], Delays]] = {}
    with told_if_missing():
        flink = Flink.set_up()
        for name, interval_ms in INTERVALS_MS.items():
            running = functools.partial(flink.running, machine.broker.bootstrap_servers, interval_ms)
            contestants[name] = functools.partial(_delay, machine, running)
    return contestants


def _small_batches(batches: dict[str, list[Turn]]) -> list[Row]:
    what = f"batch of {SMALL_BATCH} records"
    seconds = {name: [SMALL_BATCH / turn.rate for turn in of_turns] for name, of_turns in batches.items()}
    return [
        *(Row(f"{what}, {name}", "ms", tuple(s * 1000 for s in of_turns)) for name, of_turns in seconds.items()),
        *cpu(batches),
        ratio(f"{what}: time with librdkafka, over Spark's own sink", seconds, OURS, SPARK, "small_batch_vs_spark"),
        ratio(f"{what}: time with Arrow, over Spark's own sink", seconds, ARROW, SPARK, "small_batch_arrow_vs_spark"),
        ratio(f"{what}: Kafka and Parquet, over Spark's two", seconds, BOTH, SPARKS_TWO, "two_sinks_small_vs_spark"),
    ]


def _delays(delays: dict[str, list[Delays]]) -> list[Row]:
    p99 = {name: [each.p99 for each in of_turns] for name, of_turns in delays.items()}
    median = {name: [each.median for each in of_turns] for name, of_turns in delays.items()}
    ratios = [
        ratio(
            f"{what} of the delay with Arrow, over Spark's own sink{suffix}",
            figures,
            f"{ARROW}{suffix}",
            f"{SPARK}{suffix}",
            f"latency_{key}_vs_spark{suffix_of_key}",
        )
        for what, key, figures in (("median", "p50", median), ("p99", "p99", p99))
        for suffix, suffix_of_key in (("", ""), (WITH_SHORT_FETCH, "_short_fetch"))
    ]
    if "flink-1s" in delays:
        what = "p99 of the delay with Arrow, over Flink with a checkpoint per second"
        ratios.append(ratio(what, p99, ARROW, "flink-1s", "latency_p99_vs_flink_1s"))
    keys = {ARROW: "latency_p99_ms", f"{ARROW}{WITH_SHORT_FETCH}": "latency_p99_ms_short_fetch"}
    return [
        *(Row(f"delay, median, {name}", "ms", tuple(values)) for name, values in median.items()),
        *(Row(f"delay, p99, {name}", "ms", tuple(values), keys.get(name)) for name, values in p99.items()),
        *ratios,
    ]
