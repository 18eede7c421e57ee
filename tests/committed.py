"""What a committed reader sees of a topic, by a client that did not write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kafka import KafkaConsumer
from kafka.structs import TopicPartition


def records(servers: str, topic: str) -> Iterator[Any]:
    """Every committed record there is now; those of one partition in their order."""
    with KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed") as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        stable = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < stable[partition] for partition in partitions):
            for some in consumer.poll(timeout_ms=500).values():
                yield from some
