"""The broker of a demonstration, and the flights in its source topic."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka
import orjson
from flights import airlines, checksum, expected, flights
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from settings import SOURCE

from tests.support.progress_lines import ProgressLines
from twopc_kafka_broker import KafkaBroker

PARTITIONS = 2


@contextmanager
def starting_broker(progress: Progress, *topics: str) -> Iterator[KafkaBroker]:
    """Run a broker with empty topics. ``progress`` shows that it is starting."""
    task = progress.add_task("starting a Kafka broker", total=None)
    with KafkaBroker() as broker:
        for topic in topics:
            broker.create_topic(topic, partitions=PARTITIONS)
        progress.remove_task(task)
        yield broker


def load(servers: str, records: int, progress: Progress) -> Counter[tuple[int, int]]:
    """Produce the flights into the source topic.

    Returns:
        (id, checksum) → how often a reader of the result must see it.
    """
    names, sent = airlines(), Counter[tuple[int, int]]()
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 50})
    task = progress.add_task("loading flights into Kafka", total=records)
    for number, flight in enumerate(itertools.islice(flights(), records)):
        sent[number, checksum(expected(flight, names))] += 1
        producer.produce(SOURCE, orjson.dumps(flight), str(number))
        if number % 10_000 == 0:
            producer.poll(0)
            producer.flush()
            progress.update(task, completed=number)
    producer.flush()
    progress.update(task, completed=records)
    return sent


def progress_bar(console: Console) -> Progress:
    """Return a progress bar of the records that are visible in Kafka."""
    columns = (TextColumn("{task.description:<45}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return ProgressLines(*columns, console=console)
