"""The broker of a demonstration, with the flights in it."""

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
    """A broker with empty topics; until it has started, ``progress`` shows that."""
    task = progress.add_task("starting a Kafka broker", total=None)
    with KafkaBroker() as broker:
        for topic in topics:
            broker.create_topic(topic, partitions=PARTITIONS)
        progress.remove_task(task)
        yield broker


def load(servers: str, records: int, progress: Progress) -> Counter[tuple[int, int]]:
    """Produce the flights into the source topic.

    Returns:
        What a reader of the result must see: (id, checksum) → how often.
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
    """Of what is visible in Kafka."""
    columns = (TextColumn("{task.description:<45}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return ProgressLines(*columns, console=console)
