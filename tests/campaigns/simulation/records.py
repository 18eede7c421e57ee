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
