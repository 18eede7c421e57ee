"""ORC files, written by pyarrow.

ORC has few types. Values that it can't hold, or that Spark would read back differently, are refused. Measured with
pyarrow 26 and Spark 4.2:

| column | what Spark reads |
| --- | --- |
| timestamp without a zone | a moment in UTC; reading it as TIMESTAMP_NTZ fails |
| a fraction of a second before 1970 | nothing: reading the file fails |
| a day before 15 October 1582 | another day, as the file does not name its (Gregorian) calendar |

pyarrow reads timestamps as nanoseconds, and fails on a file with a timestamp outside of 1677 to 2262.

The nullability of columns is lost, because ORC does not record it.
"""

from __future__ import annotations

import datetime as dt
import io
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import orc, types

from twopc.refusals import (
    KEY_TWICE,
    NOT_UTF8,
    PER_SECOND,
    YEARS,
    Check,
    Rule,
    checker,
    counted,
    day_number,
    first_true,
    outside,
    parts,
)
from twopc_files.formats import Format, Lent, Output

COMPRESSIONS = ("none", "snappy", "zlib", "zstd", "lz4")

COLUMN_BYTES = 3 * 1024 * 1024
"""An encoder's memory per column, without the records. It is 0.4 MiB at first, and several times as much in a task that
has closed many encoders, because the C allocator does not return fragmented memory. Measured with pyarrow 26."""

GREGORIAN = dt.date(1582, 10, 15)
"""The first day of the Gregorian calendar."""


@dataclass(frozen=True, slots=True)
class Orc(Format):
    """The ORC format.

    Attributes:
        compression: one of ``COMPRESSIONS``; the default is Spark's.
        stripe_bytes: the encoded size of a stripe, which a task holds in memory until it is full.
    """

    name = "orc"
    compression: str = "zstd"
    stripe_bytes: int = 32 * 1024 * 1024

    def check_type(self, schema: pa.Schema) -> None:
        super(Orc, self).check_type(schema)  # first, as some types crash pyarrow
        if any("`" in part.name for field in schema for part in parts(field)):
            raise TypeError("Spark takes a name with a ` for another in ORC files")
        writer = self.writer(io.BytesIO())
        writer.write(schema.empty_table())
        writer.close()

    def checker(self, schema: pa.Schema) -> Check:
        return checker(schema, _RULES)

    def open(self, file: Output, schema: pa.Schema) -> OrcRecords:
        return OrcRecords(self, file, schema)

    def writer(self, file: io.IOBase) -> Any:
        """Return pyarrow's writer with these settings."""
        compression = "uncompressed" if self.compression == "none" else self.compression
        return orc.ORCWriter(file, compression=compression, stripe_size=self.stripe_bytes)


class OrcRecords:
    """Passes record batches to the encoder at once. The encoder holds them until a stripe is full."""

    def __init__(self, kind: Orc, file: Output, schema: pa.Schema) -> None:
        self._lent = Lent(file)
        self._writer = kind.writer(self._lent)
        leaves = [part for field in schema for part in parts(field) if part.type.num_fields == 0]
        self.fixed_bytes = COLUMN_BYTES * len(leaves)
        self.held_bytes = self.kept_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Encode ``batch``."""
        before = self._lent.written_bytes
        self._writer.write(pa.table([_without_writer_bugs(column) for column in batch.columns], schema=batch.schema))
        self._lent.check()
        grown = self._lent.written_bytes > before  # by a stripe
        self.held_bytes = 0 if grown else self.held_bytes + batch.nbytes

    def flush(self) -> None:
        """Do nothing: pyarrow has no way to end a stripe early."""

    def finish(self) -> None:
        """Write the last stripe and the footer."""
        self._lent.finish(self._writer)

    def discard(self) -> None:
        """Drop the held records."""
        self._lent.discard(self._writer)


def _without_writer_bugs(column: pa.Array) -> pa.Array:
    """Copy columns with structs, to work around two bugs in the ORC writer of pyarrow 26. For a slice with null
    structs, it writes records from outside the slice. For a null struct in a struct, it writes the values below the
    null in place of the next ones."""
    if any(types.is_struct(part.type) for part in parts(pa.field("", column.type))):
        return _null_below_null(pa.concat_arrays([column, column.slice(0, 0)]))
    return column


def _null_below_null(column: pa.Array) -> pa.Array:
    """Return ``column``, which must not be a slice, with null in all fields of each null struct, at every depth."""
    type_, mask = column.type, column.is_null()
    if types.is_struct(type_):
        return pa.StructArray.from_arrays([*map(_null_below_null, column.flatten())], fields=[*type_], mask=mask)
    if types.is_fixed_size_list(type_):
        return pa.FixedSizeListArray.from_arrays(_null_below_null(column.values), type=type_, mask=mask)
    if types.is_list(type_) or types.is_large_list(type_):
        return type(column).from_arrays(column.offsets, _null_below_null(column.values), type=type_, mask=mask)
    if types.is_map(type_):
        keys, items = map(_null_below_null, (column.keys, column.items))
        return pa.MapArray.from_arrays(column.offsets, keys, items, type=type_, mask=mask)
    return column


# Values that Spark misreads. ----------------------------------------------------------------------------------

_INSTEAD = "Cast the column to a string, or use Parquet."
_IN_ORC = f"Spark can't read back from an ORC file. {_INSTEAD}"


def _first_fraction_before_1970(column: pa.Array) -> int | None:
    # In UTC, as the column's zone does not matter here.
    moments = column.cast(pa.timestamp(column.type.unit, "UTC"))
    early = pc.less(moments.cast(pa.int64()), 0)
    if not pc.any(early).as_py():
        return None
    return first_true(pc.and_(early, pc.not_equal(pc.floor_temporal(moments, unit="second"), moments)))


def _first_before_gregorian(column: pa.Array) -> int | None:
    numbers, per_day = counted(column)
    return first_true(pc.less(numbers, day_number(GREGORIAN) * per_day))


def _first_outside_nanoseconds(column: pa.Array) -> int | None:
    most = (2**63 - 1) * PER_SECOND[column.type.unit] // 10**9
    return first_true(outside(column.cast(pa.int64()), -most, most))


_RULES = (
    replace(NOT_UTF8, reason=f"{NOT_UTF8.reason} Or write the column as binary."),
    KEY_TWICE,
    YEARS,
    Rule(
        lambda field: bool(types.is_timestamp(field.type)),
        _first_fraction_before_1970,
        f"it has a fraction of a second before 1970, which {_IN_ORC}",
    ),
    Rule(
        lambda field: bool(types.is_timestamp(field.type)),
        _first_outside_nanoseconds,
        f"it is outside of 1677-09-21 to 2262-04-11, which pyarrow can't read back from an ORC file. {_INSTEAD}",
    ),
    Rule(
        lambda field: bool(types.is_date(field.type)),
        _first_before_gregorian,
        f"it has a day before {GREGORIAN}, which {_IN_ORC}",
    ),
)
