"""Reads the contents of target systems with independent clients, and compares them with the expected records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import LiteralString


@dataclass(frozen=True)
class Difference:
    """The number of missing records, and of duplicate or unexpected ones."""

    lost: int = 0
    duplicates: int = 0

    def __add__(self, other: Difference) -> Difference:
        return Difference(self.lost + other.lost, self.duplicates + other.duplicates)


def difference(expected: Iterable[Hashable], found: Iterable[Hashable]) -> Difference:
    """Compare two collections in which a record may occur several times."""
    wanted, there = Counter(expected), Counter(found)
    return Difference((wanted - there).total(), (there - wanted).total())


def in_topic(servers: str, topic: str) -> list[str]:
    """Return the values in a topic that are visible to a committed reader."""
    from tests.support.topic_reader import records_of

    return [record.value.decode() for record in records_of(servers, topic)]


def in_files(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all committed Parquet files in a folder."""
    import pyarrow.parquet as pq

    return [row for file in folder.glob("*.parquet") for row in pq.read_table(file).to_pylist()]


def in_table(conninfo: str, query: LiteralString) -> list[tuple[Any, ...]]:
    """Return the rows of a query to PostgreSQL."""
    import psycopg

    with psycopg.connect(conninfo) as connection:
        return connection.execute(query).fetchall()


def left_in_files(folder: Path) -> list[Path]:
    """Return the pending files in a folder."""
    return [*(folder / "_twopc").glob("*")]
