"""The Kafka sink keeps the contract, on a real broker."""

from __future__ import annotations

import time
import uuid

import pyarrow as pa
import pytest
from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from twopc.testing import SinkContract
from twopc_kafka import KafkaSink
from twopc_kafka.development.broker import KafkaBroker

pytestmark = pytest.mark.kafka


def read_committed(servers: str, topic: str) -> list[str]:
    """Every record of one partition that a committed reader sees, read by another client than the one that wrote."""
    partition = TopicPartition(topic, 0)
    with KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed") as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        stable = consumer.end_offsets([partition])[partition]
        values: list[str] = []
        while consumer.position(partition) < stable:
            for records in consumer.poll(timeout_ms=1000).values():
                values += [record.value.decode() for record in records]
        return values


class TestKafkaSink(SinkContract):
    @pytest.fixture(autouse=True)
    def _topic(self, kafka_broker: KafkaBroker) -> None:
        self.servers = kafka_broker.bootstrap_servers
        self.topic = f"contract-{uuid.uuid4().hex[:8]}"
        self.prefix = f"test-{uuid.uuid4().hex[:8]}"
        kafka_broker.create_topic(self.topic)

    def make_sink(self) -> KafkaSink:
        return KafkaSink(
            {"bootstrap.servers": self.servers, "topic": self.topic, "transactional.id.prefix": self.prefix}
        )

    def visible(self) -> list[str]:
        return read_committed(self.servers, self.topic)

    def becomes_visible(self, values: list[str]) -> bool:
        """The broker answers a commit before its markers are written, so the records may come a little later."""
        deadline = time.monotonic() + 10
        while not (seen := super().becomes_visible(values)) and time.monotonic() < deadline:
            time.sleep(0.01)
        return seen

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        return pa.record_batch({"key": pa.array(values), "value": pa.array(values)})
