"""A committed reader that follows a topic, and writes down each record in the order in which it comes.

A line has the partition, the offset, the time by the system's monotonic clock, and the record. A reader that is
started again goes on after its last line. It ends at the offsets in the file ``UNTIL``, as soon as there is one.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
from kafka import KafkaConsumer, TopicPartition

from tests.campaigns.jepsen.brokers import PARTITIONS, SERVERS
from tests.campaigns.jepsen.workload import Record

UNTIL = "until.json"
POLL_S = 0.3


class Sighting(NamedTuple):
    """A record that a reader saw, where, and when: infinitely late if that is not known."""

    partition: int
    offset: int
    at: float
    record: Record


Read = Iterator["tuple[Iterable[tuple[int, int, bytes]], Mapping[int, int]]"]
"""Some records, as partition, offset and value, and how far each partition is read."""


def sightings(path: Path) -> Iterator[Sighting]:
    """Read what a reader has written down."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            partition, offset, at, value = line.rstrip("\n").split(" ")
            yield Sighting(int(partition), int(offset), float(at), Record.parse(value))


def by_kafka_python(topic: str, begins: Mapping[int, int]) -> Read:
    consumer = KafkaConsumer(
        bootstrap_servers=SERVERS.split(","),
        isolation_level="read_committed",
        auto_offset_reset="none",  # a reader that has lost its place must fail
        enable_auto_commit=False,
    )
    partitions = {number: TopicPartition(topic, number) for number in begins}
    consumer.assign([*partitions.values()])
    for number, offset in begins.items():
        consumer.seek(partitions[number], offset)
    while True:
        polled = consumer.poll(timeout_ms=int(POLL_S * 1000))
        records = [(at.partition, record.offset, record.value) for at, some in polled.items() for record in some]
        yield records, {number: consumer.position(partition) for number, partition in partitions.items()}


def by_librdkafka(topic: str, begins: Mapping[int, int]) -> Read:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": SERVERS,
            "group.id": "readers",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, offset) for number, offset in begins.items()])
    reached = dict(begins)  # by the ends that it reports: its position does not pass markers
    while True:
        records = []
        for message in consumer.consume(1000, POLL_S):
            error, partition, offset = message.error(), message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if error is None:
                records.append((partition, offset, message.value() or b""))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                reached[partition] = offset
            elif error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
                raise confluent_kafka.KafkaException(error)
        yield records, reached


READERS: Mapping[str, Callable[[str, Mapping[int, int]], Read]] = {
    "kafka-python": by_kafka_python,
    "librdkafka": by_librdkafka,
}


def main() -> None:
    library, topic, path = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    begins = _begins(path)
    until = path.with_name(UNTIL)
    with path.open("ab") as lines:
        for records, reached in READERS[library](topic, begins):
            now = b"%.3f" % time.monotonic()
            lines.writelines(b"%d %d %s %s\n" % (partition, offset, now, value) for partition, offset, value in records)
            lines.flush()
            if until.exists():
                ends = json.loads(until.read_text(encoding="utf-8"))
                if all(reached[int(number)] >= end for number, end in ends.items()):
                    return


def _begins(path: Path) -> dict[int, int]:
    """Return the offset after the last line of each partition. Cut off a line that is not whole."""
    begins = dict.fromkeys(range(PARTITIONS), 0)
    if path.exists():
        written = path.read_bytes()
        path.write_bytes(written[: written.rfind(b"\n") + 1])
        for seen in sightings(path):
            begins[seen.partition] = seen.offset + 1
    return begins


if __name__ == "__main__":
    main()
