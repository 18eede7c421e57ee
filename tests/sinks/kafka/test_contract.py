"""The Kafka sinks keep the contract, with either writer and for offsets, on a real broker."""

import uuid
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.kafka.conftest import Topic
from tests.sinks.kafka.groups import Group
from twopc.testing import KeyedSinkContract, SinkContract
from twopc_kafka import KafkaSink
from twopc_kafka.markers import HEADER
from twopc_kafka.offsets_sink import KafkaProgressSink
from twopc_kafka_broker import KafkaBroker

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class TestKafkaSink(SinkContract):
    writer = "arrow"
    kills = 16  # each looks for the broker, and begins anew

    @pytest.fixture(autouse=True)
    def _target(self, topic: Any, make_sink: Any) -> None:
        self.topic, self._make_sink = topic, make_sink

    def make_sink(self) -> KafkaSink:
        sink: KafkaSink = self._make_sink(self.topic, log_id=None, writer=self.writer)
        return sink

    def visible(self) -> list[str]:
        values: list[str] = self.topic.visible()
        return values

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        return pa.record_batch({"key": pa.array(values), "value": pa.array(values)})

    def sample(self) -> pa.RecordBatch:
        moment = datetime(2024, 2, 29, 12, 0, 0, 1000, tzinfo=timezone.utc)
        return pa.record_batch(
            {
                "value": pa.array([b"a", b"", None, b"\0\xff"], pa.binary()),
                "key": pa.array([b"a", None, b"", b"\xfe"], pa.binary()),
                "headers": pa.array([[], [{"key": "h", "value": None}, {"key": "h", "value": b""}], [], []], HEADERS),
                "timestamp": pa.array([moment] * 4, pa.timestamp("us", "UTC")),
            }
        )

    def types_taken(self) -> pa.Schema:
        """Each record of Kafka has headers and a time: where they are null, it has none and that of sending."""
        return pa.schema({"value": pa.binary(), "key": pa.binary()})

    def with_bad_records(self) -> pa.RecordBatch:
        values = ["a", "b", "large", "c", "d"]
        headers = [[], [{"key": None, "value": b""}], [], [], [{"key": "h", "value": b""}]]
        return pa.record_batch(
            {
                "value": pa.array(values),
                "key": pa.array([None, None, b"k" * 1_000_000, None, None], pa.binary()),
                "headers": pa.array(headers, HEADERS),
            }
        )

    def visible_records(self) -> list[dict[str, Any]]:
        return [
            {
                "value": record.value,
                "key": record.key,
                "headers": [{"key": key, "value": value} for key, value in record.headers],
                "timestamp": datetime.fromtimestamp(record.timestamp / 1000, timezone.utc),
            }
            for record in self.topic.records()
        ]


@pytest.mark.long
class TestKafkaSinkWithLibrdkafka(TestKafkaSink):
    writer = "librdkafka"


@pytest.mark.long
class TestKafkaSinkWithBatchMarkers(TestKafkaSink):
    kills = 6

    @pytest.fixture(autouse=True)
    def _markers(self, make_topic: Any) -> None:
        self.markers = make_topic()

    def make_sink(self) -> KafkaSink:
        options = {"writer": self.writer, "batch.markers": self.markers.name}
        sink: KafkaSink = self._make_sink(self.topic, log_id=None, **options)
        return sink

    def visible_records(self) -> list[dict[str, Any]]:
        records = super().visible_records()
        assert {record["headers"].pop()["key"] for record in records} <= {HEADER}
        return records


class TestKeyed(KeyedSinkContract):
    """A topic is the table that a compaction leaves of it."""

    writer = "arrow"
    kills = 8
    null_deletes = True

    @pytest.fixture(autouse=True)
    def _target(self, topic: Topic, prefix: str) -> None:
        self.topic = topic
        self.options = {
            "bootstrap.servers": topic.servers,
            "topic": topic.name,
            "transactional.id.prefix": prefix,
            "writer": self.writer,
            "upsert_by": "key",
        }

    def make_sink(self) -> KafkaSink:
        return KafkaSink(self.options)

    def record_batch(self, rows: Mapping[str, str | None]) -> pa.RecordBatch:
        values = pa.array([*rows.values()], pa.string())
        return pa.record_batch({"key": pa.array([*rows], pa.string()), "value": values})

    def rows(self) -> list[tuple[str, str | None]]:
        last = {record.key.decode(): record.value for record in self.topic.records()}
        return [(key, value.decode()) for key, value in last.items() if value is not None]


@pytest.mark.long
class TestKeyedWithLibrdkafka(TestKeyed):
    writer = "librdkafka"


PARTITIONS = 256


@pytest.fixture(scope="module")
def topic_of_many_partitions(kafka_broker: KafkaBroker) -> Topic:
    """One for all tests: what is read is their groups' offsets."""
    name = f"progress-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name, PARTITIONS)
    return Topic(kafka_broker.bootstrap_servers, name)


class TestKafkaProgressSink(SinkContract):
    """A value stands for a partition, whose offset is committed."""

    kills = 12
    large = 200

    @pytest.fixture(autouse=True)
    def _group(self, topic_of_many_partitions: Topic, prefix: str, wait: Any) -> None:
        self.topic = topic_of_many_partitions
        self.group = Group(self.topic, prefix)
        wait.until("the group has a coordinator", self.group.is_known)

    def make_sink(self) -> KafkaProgressSink:
        return self.group.sink(log_id=None)

    def visible(self) -> list[str]:
        return [_value(partition) for partition in self.group.offsets()]

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        return self._offsets([(_partition(value) % PARTITIONS, 7) for value in values])

    def long_texts(self) -> list[str]:
        return []

    def types_taken(self) -> None:
        """No value is free."""

    def sample(self) -> pa.RecordBatch:
        return self._offsets([(0, 0), (1, 2**31), (PARTITIONS - 1, 2**63 - 1)])

    def visible_records(self) -> list[dict[str, Any]]:
        found = self.group.offsets().items()
        return [{"topic": self.topic.name, "partition": partition, "offset": offset} for partition, offset in found]

    def _offsets(self, rows: list[tuple[int, int]]) -> pa.RecordBatch:
        columns = [[self.topic.name] * len(rows), [row[0] for row in rows], [row[1] for row in rows]]
        return pa.record_batch(columns, pa.schema({"topic": "string", "partition": "int32", "offset": "int64"}))


LETTERS = 26


def _partition(value: str) -> int:
    return LETTERS + int(value) if value.isdigit() else ord(value) - ord("a")


def _value(partition: int) -> str:
    return chr(ord("a") + partition) if partition < LETTERS else str(partition - LETTERS)
