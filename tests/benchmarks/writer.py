"""The Kafka sink's two writers, with one participant each, in turns, for records of several shapes and codecs."""

import functools
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from confluent_kafka.admin import AdminClient

import twopc
from tests.benchmarks.measuring import Row, in_turns, ratio
from twopc import Participant, Round
from twopc_kafka.options import ARROW, LIBRDKAFKA, WRITERS
from twopc_kafka_broker import KafkaBroker

BYTES_A_TURN = 100_000_000
BYTES_A_BATCH = 10_000_000
LONG_AGO_US = 1_600_000_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True)
class Load:
    """The records to write.

    Attributes:
        key: the ratio's key in the report, if it has one.
    """

    name: str
    value_bytes: int
    has_keys: bool = False
    has_headers: bool = False
    has_timestamps: bool = False
    partitions: int = 4
    options: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None

    @property
    def records(self) -> int:
        """The number of records. Small ones have fewer bytes in all, because their time depends on the number."""
        return BYTES_A_TURN // max(self.value_bytes, 50)

    def batch(self) -> pa.RecordBatch:
        """Return a batch as large as Spark's: 10,000 records or 10 MB."""
        numbers = [f"{number * 7919 % 100_003:05}".encode() for number in range(self.records)]
        numbers = numbers[: min(10_000, max(1, BYTES_A_BATCH // self.value_bytes))]
        columns = {"value": pa.array([(n * (self.value_bytes // 5))[: self.value_bytes] for n in numbers], pa.binary())}
        if self.has_keys:
            columns["key"] = pa.array(numbers, pa.binary())
        if self.has_headers:
            columns["headers"] = pa.array([[{"key": "source", "value": n}] for n in numbers], HEADERS)
        if self.has_timestamps:
            columns["timestamp"] = pa.array([LONG_AGO_US + int(n) for n in numbers], pa.timestamp("us", "UTC"))
        return pa.record_batch(columns)


LOADS = (
    Load("100 B", 100, key="writer_arrow_vs_librdkafka"),
    Load("100 B, keys", 100, has_keys=True),
    Load("100 B, headers", 100, has_headers=True),
    Load("100 B, timestamps", 100, has_timestamps=True),
    *(Load(f"{size} B", size) for size in (10, 1_000, 10_000, 100_000)),
    *(Load(f"100 B, {codec}", 100, options={"compression.type": codec}) for codec in ("gzip", "snappy", "lz4", "zstd")),
    *(Load(f"100 B, {number} partitions", 100, partitions=number) for number in (1, 16, 64)),
    *(Load(f"100 B, keys, {number} partitions", 100, has_keys=True, partitions=number) for number in (1, 16, 64)),
)


def run(quick: bool) -> list[Row]:
    """Return the records/s of each writer and their ratio, for each load."""
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "broker", properties={"log.segment.delete.delay.ms": 100}, heap_mb=1024) as broker,
    ):
        return [row for load in LOADS for row in _of_load(load, broker, quick)]


def _of_load(load: Load, broker: KafkaBroker, quick: bool) -> list[Row]:
    topic = f"topic-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, load.partitions)
    batch, batches = load.batch(), load.records // (10 if quick else 1) // load.batch().num_rows
    rates = in_turns(
        {w: functools.partial(_rate, load, w, batch, batches, broker, topic) for w in WRITERS}, 2 if quick else 5
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([topic])[topic].result()
    return [
        *(Row(f"{load.name}, {writer}", "records/s", tuple(of_turns)) for writer, of_turns in rates.items()),
        ratio(f"{load.name}: arrow, over librdkafka", rates, ARROW, LIBRDKAFKA, load.key),
    ]


def _rate(load: Load, writer: str, batch: pa.RecordBatch, batches: int, broker: KafkaBroker, topic: str) -> float:
    """Return the records/s from the first record to the vote, in one process and one transaction."""
    options = {"bootstrap.servers": broker.bootstrap_servers, "topic": topic, "writer": writer, **load.options}
    sink = twopc.create_sink("kafka", options)
    sink.bind("sink", uuid.uuid4().hex[:12])
    with Participant({"sink": sink}, Round(1, 0), partition=0) as participant:
        participant.write("sink", batch)  # begins a transaction and connects
        started = time.perf_counter()
        for _ in range(batches):
            participant.write("sink", batch)
        vote = participant.pre_commit()
        seconds = time.perf_counter() - started
    sink.abort(vote["sink"])
    return float(batches * batch.num_rows / seconds)
