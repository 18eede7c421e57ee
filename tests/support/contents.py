"""The contents of targets, read by clients that did not write them, compared with what should be there."""

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
    """How many records are missing, and how many are there too often or should not be there."""

    lost: int = 0
    duplicates: int = 0

    def __add__(self, other: Difference) -> Difference:
        return Difference(self.lost + other.lost, self.duplicates + other.duplicates)


def difference(expected: Iterable[Hashable], found: Iterable[Hashable]) -> Difference:
    """Compare two collections in which a record may occur several times."""
    wanted, there = Counter(expected), Counter(found)
    return Difference((wanted - there).total(), (there - wanted).total())


def in_topic(servers: str, topic: str) -> list[str]:
    """Return the values of a topic that a committed reader sees."""
    from tests.support.topic_reader import records_of

    return [record.value.decode() for record in records_of(servers, topic)]


def in_files(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all committed Parquet files of a folder."""
    import pyarrow.parquet as pq

    return [row for file in folder.glob("*.parquet") for row in pq.read_table(file).to_pylist()]


def in_table(conninfo: str, query: LiteralString) -> list[tuple[Any, ...]]:
    """Return the rows of a query to PostgreSQL."""
    import psycopg

    with psycopg.connect(conninfo) as connection:
        return connection.execute(query).fetchall()


def left_in_files(folder: Path) -> list[Path]:
    """Return the pending files of a folder."""
    return [*(folder / "_twopc").glob("*")]
