"""Reads a topic with kafka-python, which is not one of the writing clients."""

from collections.abc import Iterator
from typing import Any

from kafka import KafkaConsumer, TopicPartition


def records_of(servers: str, topic: str, isolation_level: str = "read_committed") -> Iterator[Any]:
    """Yield every record currently visible at this isolation level, in order within a partition."""
    # No reset policy: a reader that has lost its position must fail rather than continue from the end.
    with KafkaConsumer(
        bootstrap_servers=servers, isolation_level=isolation_level, auto_offset_reset="none"
    ) as consumer:
        partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        newest = dict.fromkeys(partitions, -1)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for partition, records in consumer.poll(timeout_ms=500).items():
                for record in records:
                    place = f"{partition} at {record.offset}"
                    assert record.offset > newest[partition], f"the reader itself came to {place} twice"
                    newest[partition] = record.offset
                    yield record
