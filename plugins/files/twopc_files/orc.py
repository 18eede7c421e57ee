"""ORC files, written by pyarrow.

ORC has few types. Values that it can't hold, or that Spark would read back differently, are refused. Measured with
pyarrow 26 and Spark 4.2:

| column | what Spark reads |
| --- | --- |
| timestamp without a zone | a moment in UTC; reading it as TIMESTAMP_NTZ fails |
| a fraction of a second before 1970 | nothing: reading the file fails |
| a day before 15 October 1582 | another day, as the file does not name its (Gregorian) calendar |

The nullability of columns is lost, because ORC does not record it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import orc, types

from twopc_files.formats import Lent, Output

COMPRESSIONS = ("none", "snappy", "zlib", "zstd", "lz4")

COLUMN_BYTES = 3 * 1024 * 1024
"""An encoder's memory per column, without the records. It is 0.4 MiB at first, and several times that in a task that
has closed many encoders, because the C allocator does not return fragmented memory. Measured with pyarrow 26."""

GREGORIAN = dt.date(1582, 10, 15)
"""The first day of the Gregorian calendar."""

EPOCH = dt.date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Orc:
    """The ORC format.

    Attributes:
        compression: one of ``COMPRESSIONS``; the default is Spark's.
        stripe_bytes: the encoded size of a stripe, which a task holds in memory until it is full.
    """

    compression: str = "zstd"
    stripe_bytes: int = 32 * 1024 * 1024

    @property
    def extension(self) -> str:
        """The ending that all readers of ORC expect."""
        return ".orc"

    def check_type(self, schema: pa.Schema) -> None:
        """Write an empty table with pyarrow, as its releases support different types. Raises TypeError for a type that
        Spark would read back differently."""
        for field in schema:
            for type_ in _parts(field.type):
                if types.is_timestamp(type_) and type_.tz is None:
                    raise TypeError("Spark reads ORC timestamps without a time zone as moments: give it one")
                if types.is_date64(type_):
                    raise TypeError("pyarrow makes a timestamp of it: cast it to date32")
        writer = self.writer(io.BytesIO())
        writer.write(schema.empty_table())
        writer.close()

    def open(self, file: Output, schema: pa.Schema) -> OrcRecords:
        """Return a writer of records of ``schema`` into ``file``."""
        return OrcRecords(self, file, schema)

    def writer(self, file: io.IOBase) -> Any:
        """Return pyarrow's writer with these settings."""
        compression = "uncompressed" if self.compression == "none" else self.compression
        return orc.ORCWriter(file, compression=compression, stripe_size=self.stripe_bytes)


class OrcRecords:
    """Passes record batches to the encoder immediately, which holds them until a stripe is full."""

    def __init__(self, kind: Orc, file: Output, schema: pa.Schema) -> None:
        self._temporal = [field.name for field in schema if any(map(_is_temporal, _parts(field.type)))]
        self._lent = Lent(file)
        self._writer = kind.writer(self._lent)
        leaves = sum(type_.num_fields == 0 for field in schema for type_ in _parts(field.type))
        self.encoder_bytes = COLUMN_BYTES * leaves
        self.held_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Encode ``batch``. Raises ValueError for a day or a moment that Spark would misread."""
        for name in self._temporal:
            for leaf in _leaves(batch.column(name)):
                _check_calendar(name, leaf)
        before = self._lent.written_bytes
        self._writer.write(pa.table([_unsliced(column) for column in batch.columns], schema=batch.schema))
        self._lent.check()
        grown = self._lent.written_bytes > before  # by a stripe
        self.held_bytes = 0 if grown else self.held_bytes + batch.nbytes

    def flush(self) -> None:
        """Do nothing: pyarrow has no way to end a stripe early."""

    def finish(self) -> None:
        """Write the last stripe and the footer."""
        self._writer.close()
        self._lent.check()
        self.held_bytes = 0

    def discard(self) -> None:
        """Release held records."""
        self._lent.end()
        with contextlib.suppress(Exception):
            self._writer.close()


def _parts(type_: pa.DataType) -> Iterator[pa.DataType]:
    """Yield ``type_`` and all types nested in it."""
    yield type_
    for number in range(type_.num_fields):
        yield from _parts(type_.field(number).type)


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the leaf columns of a nested column, without the values under its nulls."""
    if types.is_struct(column.type):
        children = column.flatten()
    elif types.is_map(column.type):
        children = [column.cast(pa.list_(column.type.field(0)))]
    elif column.type.num_fields:
        children = [pc.list_flatten(column)]
    else:
        yield column
        return
    for child in children:
        yield from _leaves(child)


def _unsliced(column: pa.Array) -> pa.Array:
    """Copy columns with structs, to work around a bug of pyarrow 26: for a slice with null structs, its ORC writer
    writes records from outside the slice."""
    if any(map(types.is_struct, _parts(column.type))):
        return pa.concat_arrays([column, column.slice(0, 0)])
    return column


def _is_temporal(type_: pa.DataType) -> bool:
    return bool(types.is_date(type_) or types.is_timestamp(type_))


def _check_calendar(name: str, column: pa.Array) -> None:
    """Raise ValueError for a value of the column ``name`` that Spark would misread."""
    if types.is_timestamp(column.type):
        # In UTC, as the rules of the column's zone don't matter here.
        moments = column.cast(pa.timestamp(column.type.unit, "UTC"))
        days = moments.cast(pa.date32(), safe=False)
        early = pc.and_(pc.less(days, EPOCH), pc.not_equal(pc.floor_temporal(moments, unit="second"), moments))
        _refuse(name, early, f"fractions of a second before {EPOCH}")
        column = days
    if types.is_date(column.type):
        _refuse(name, pc.less(column, GREGORIAN), f"days before {GREGORIAN}")


def _refuse(name: str, wrong: pa.Array, what: str) -> None:
    if pc.any(wrong).as_py():
        raise ValueError(
            f"column {name!r} has {what}, which Spark can't read back correctly from an ORC file. Cast the column to a"
            " string, or use Parquet."
        )
