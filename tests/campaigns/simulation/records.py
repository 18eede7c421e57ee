"""The records that are written: each is its offset in the source, in batches that look like Arrow record batches."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.campaigns.simulation.disk import File

_SPREAD = 0x9E3779B97F4A7C15
"""An odd number: different sums of checksums stay different modulo 2**64."""


class _Schema:
    names = ("change",)

    def equals(self, other: object) -> bool:
        return isinstance(other, _Schema)


SCHEMA = _Schema()


@dataclass(frozen=True, slots=True)
class Records:
    """The part of ``pyarrow.RecordBatch`` that participants and sinks use."""

    rows: tuple[str, ...]
    schema: _Schema = SCHEMA

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return sum(len(row) for row in self.rows)

    def hashes(self) -> list[int]:
        """Return a hash of each row."""
        return [zlib.crc32(row.encode()) * _SPREAD for row in self.rows]

    def divided(self) -> tuple[Records, Records]:
        """Return the upserts and the deletes among changes."""
        upserts = Records(tuple(row for row in self.rows if "=" in row))
        return upserts, Records(tuple(row for row in self.rows if "=" not in row))

    def slice(self, offset: int, length: int | None = None) -> Records:
        return Records(self.rows[offset:] if length is None else self.rows[offset : offset + length])


class RowsFormat:
    """A file format with one row per line."""

    extension = ".txt"

    def check_type(self, schema: object) -> None:
        """Accept every type."""

    def checker(self, schema: object) -> Callable[[Records], None]:
        """Refuse no record."""
        return lambda records: None

    def open(self, file: File, schema: object) -> RowsWriter:
        return RowsWriter(file)


class RowsWriter:
    held_bytes = kept_bytes = fixed_bytes = 0

    def __init__(self, file: File) -> None:
        self._file = file

    def write(self, batch: Any) -> None:
        self._file.write("".join(f"{row}\n" for row in batch.rows).encode())

    def finish(self) -> None:
        """Do nothing: nothing is buffered."""

    def discard(self) -> None:
        """Do nothing: nothing is buffered."""


def sum_of_hashes(hashes: Iterable[int], before: int) -> int:
    """Replaces the sum that Arrow makes."""
    return (before + sum(hashes)) % 2**64


def rows_between(start: int, end: int) -> tuple[str, ...]:
    """Return the source's rows from offset ``start`` up to ``end``."""
    return tuple(str(offset) for offset in range(start, end))


def share(rows: Sequence[str], partition: int, partitions: int) -> tuple[str, ...]:
    """Return one partition's rows."""
    return tuple(rows[partition::partitions])


_KEYS = "aabac"
"""The key of each of five offsets in turn. A batch of three rows changes some of the keys, and not all."""

_DELETES = 4
"""One in so many rows is a delete."""


def latest_changes(rows: Iterable[str]) -> dict[str, str]:
    """Return the last change of each key, by the source: the offset, or the same with a minus for a delete."""
    changes = {}
    for row in rows:
        offset = int(row)
        changes[_KEYS[offset % len(_KEYS)]] = f"-{row}" if offset % _DELETES == _DELETES - 1 else row
    return changes


def written_to(sink: str, rows: Sequence[str], partition: int, partitions: int) -> tuple[str, ...]:
    """Return what one partition writes to a sink: its rows, or of a keyed sink the last change of each of its keys."""
    if not is_keyed(sink):
        return tuple(f"{sink}/{row}" for row in share(rows, partition, partitions))
    changes = latest_changes(rows)
    mine = (key for key in changes if ord(key) % partitions == partition)
    return tuple(f"{sink}/{key}" if changes[key][0] == "-" else f"{sink}/{key}={changes[key]}" for key in mine)


def contents_of(sink: str, rows: Sequence[str]) -> Iterable[str]:
    """Return what a sink has in the end."""
    if not is_keyed(sink):
        return (f"{sink}/{row}" for row in rows)
    return (f"{sink}/{key}={row}" for key, row in latest_changes(rows).items() if row[0] != "-")


def is_keyed(sink: str) -> bool:
    return sink.endswith("d")
