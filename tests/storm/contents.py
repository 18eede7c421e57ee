"""What is in both targets against what was sent, and what was left behind; by clients that did not write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import duckdb
from kafka import KafkaAdminClient

from tests import committed
from tests.storm.query import Settings

ENDED = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")


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
    return (int(record.value) for record in committed.records(settings.servers, settings.target))


def in_parquet(settings: Settings) -> Iterator[int]:
    """The folder, read by DuckDB."""
    rows = duckdb.connect().execute("SELECT value FROM read_parquet(?)", [f"{settings.folder}/parquet/*.parquet"])
    while some := rows.fetchmany(10_000):
        yield from (int(value) for (value,) in some)


def dangling(settings: Settings) -> list[str]:
    """Transactions that are not complete in the broker, by kafka-python's own command for it."""
    admin = KafkaAdminClient(bootstrap_servers=settings.servers)
    try:
        listed = [listing for of_broker in admin.list_transactions().values() for listing in of_broker]
        return [one.transactional_id for one in listed if one.state not in ENDED]
    finally:
        admin.close()
