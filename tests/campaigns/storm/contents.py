"""The comparison of all target systems with the records sent, and the search for leftovers, by independent clients."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import duckdb
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.structs import TopicPartition

from tests.campaigns.storm.lake import compare_tables
from tests.campaigns.storm.query import Settings
from tests.support.contents import difference, left_in_files
from tests.support.topic_reader import records_of

ENDED = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")


SKIPPED = re.compile(
    r"Couldn't find leader endpoint for partitions \w+\((.*?)\) while trying to send transaction markers"
)
"""What a broker logs when it completes a transaction without a marker in some partitions; see docs/internals/storm.md.
The collection is a Set, or a HashSet from five partitions on."""

MENDED = "wrote a marker that Kafka had left out"
"""What the sink logs when it has written such a marker."""


def compare(settings: Settings, sent: int) -> dict[str, object]:
    """Compare all target systems with the numbers below ``sent``, each of which must be there once."""
    places = in_kafka(settings)
    kafka = difference(range(sent), (number for number, at in places.items() for _ in at))
    folder = Path(settings.folder)
    tables = compare_tables(settings, sent) if settings.catalog else {}
    lost, duplicates = {"kafka": kafka.lost}, {"kafka": kafka.duplicates}
    left = len([*(folder / "stage").glob("*"), *left_in_files(folder / "parquet")])
    if not settings.catalog:
        parquet = difference(range(sent), in_parquet(settings))
        lost["parquet"], duplicates["parquet"] = parquet.lost, parquet.duplicates
    return {
        "records": sent,
        "lost": {**lost, **{name: found.pop("lost") for name, found in tables.items()}},
        "duplicates": {**duplicates, **{name: found.pop("duplicates") for name, found in tables.items()}},
        "twice_in_kafka": {number: at for number, at in places.items() if len(at) > 1},
        "markers_skipped_by_broker": skipped_markers(settings),
        "markers_written_by_sink": (folder / "driver.log").read_text(encoding="utf-8", errors="replace").count(MENDED),
        "dangling": len(dangling(settings)),
        "staged_files_left": left + sum(found.pop("left") for found in tables.values()),
        "tables": tables,
    }


def in_kafka(settings: Settings) -> dict[int, list[tuple[int, int]]]:
    """Read the committed records of the target topics. Return number → its positions, as (partition, offset)."""
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for topic in settings.targets:
        for record in records_of(settings.servers, topic):
            places[int(record.value)].append((record.partition, record.offset))
    return places


def in_parquet(settings: Settings) -> Iterator[int]:
    """Read the Parquet folder with DuckDB."""
    rows = duckdb.connect().execute("SELECT value FROM read_parquet(?)", [f"{settings.folder}/parquet/*.parquet"])
    while some := rows.fetchmany(10_000):
        yield from (int(value) for (value,) in some)


def skipped_markers(settings: Settings) -> int:
    """Count how often the broker ended a transaction but left it open in a partition of the target topic."""
    log = (Path(settings.folder) / "broker" / "broker.log").read_text(encoding="utf-8", errors="replace")
    return sum(settings.target in partitions for partitions in SKIPPED.findall(log))


def dangling(settings: Settings) -> list[str]:
    """Return the broker's incomplete transactions, and the partitions of the target topics that hold back readers."""
    admin = KafkaAdminClient(bootstrap_servers=settings.servers)
    try:
        listed = [listing for of_broker in admin.list_transactions().values() for listing in of_broker]
    finally:
        admin.close()
    readable, written = ends(settings, "read_committed"), ends(settings, "read_uncommitted")
    held_back = [str(partition) for partition, end in written.items() if readable[partition] < end]
    return [*(one.transactional_id for one in listed if one.state not in ENDED), *held_back]


def ends(settings: Settings, isolation_level: str) -> dict[TopicPartition, int]:
    """Return the offset up to which a reader can read, for each partition of the target topics."""
    with KafkaConsumer(bootstrap_servers=settings.servers, isolation_level=isolation_level) as consumer:
        numbers = {topic: consumer.partitions_for_topic(topic) for topic in settings.targets}
        partitions = [TopicPartition(topic, number) for topic in numbers for number in numbers[topic]]
        found: dict[TopicPartition, int] = consumer.end_offsets(partitions)
    return found
