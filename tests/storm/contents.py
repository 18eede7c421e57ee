"""What is in both targets against what was sent, and what was left behind; by clients that did not write."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import duckdb
from kafka import KafkaConsumer, TopicPartition

from tests.storm.query import Settings
from twopc.errors import Retriable
from twopc_kafka.control import connect


def compare(settings: Settings, sent: int) -> dict[str, object]:
    """The numbers below ``sent``, each once, and nothing else?"""
    kafka, parquet = Counter(in_kafka(settings)), Counter(in_parquet(settings))
    wanted = Counter(range(sent))
    folder = Path(settings.folder)
    left = [*(folder / "parquet" / "_twopc").glob("*"), *(folder / "stage").glob("*")]
    return {
        "records": sent,
        "lost": {"kafka": (wanted - kafka).total(), "parquet": (wanted - parquet).total()},
        "duplicates": {"kafka": (kafka - wanted).total(), "parquet": (parquet - wanted).total()},
        "dangling": len(dangling(settings)),
        "staged_files_left": len(left),
    }


def in_kafka(settings: Settings) -> Iterator[int]:
    """The target topic, read to its end by a committed reader."""
    with KafkaConsumer(bootstrap_servers=settings.servers, isolation_level="read_committed") as consumer:
        partitions = [TopicPartition(settings.target, number) for number in consumer.partitions_for_topic(settings.target)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for records in consumer.poll(timeout_ms=500).values():
                yield from (int(record.value) for record in records)


def in_parquet(settings: Settings) -> Iterator[int]:
    """The folder, read by DuckDB."""
    rows = duckdb.connect().execute("SELECT value FROM read_parquet(?)", [f"{settings.folder}/parquet/*.parquet"])
    while some := rows.fetchmany(10_000):
        yield from (int(value) for (value,) in some)


def dangling(settings: Settings) -> list[str]:
    """Transactions that are still open in the broker."""
    while True:
        try:
            return connect({"bootstrap_servers": [settings.servers]}).list_ongoing("twopc.")
        except Retriable:
            time.sleep(0.5)
