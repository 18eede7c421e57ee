"""The Produce request beside kafka-python's own."""

from typing import Any

import pytest
from kafka.protocol.producer import ProduceRequest

from twopc_kafka.writers.encoding.produce import FIRST_COMPACT, Produce


def request(kind: Any, version: int, topics: dict[str, dict[int, bytes]]) -> bytes:
    topic = kind.TopicProduceData
    made = kind(
        transactional_id="twopc-größe-1",
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            topic(
                name=name,
                partition_data=[topic.PartitionProduceData(index=n, records=r) for n, r in partitions.items()],
            )
            for name, partitions in topics.items()
        ],
        max_version=version,
    )
    made.API_VERSION = version
    made.with_header(correlation_id=77, client_id="client")
    return bytes(made.encode(framed=True, header=True))


@pytest.mark.variants
@pytest.mark.parametrize("version", range(FIRST_COMPACT, 13))
def test_a_produce_request_is_byte_for_byte_what_kafka_python_encodes(version: int) -> None:
    topics = {"a": {0: b"x" * 126, 200: b"y" * 127}, "größe" * 40: {1: b"z" * 20_000, 2: b"q", 3: b""}}
    assert request(Produce, version, topics) == request(ProduceRequest, version, topics)
