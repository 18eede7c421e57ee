"""Records on their way into a database, and the proof that it has changed none of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from twopc.bad_records import first_bad
from twopc.errors import RecordRefused


def type_of(field: pa.Field) -> sa.types.TypeEngine[Any]:
    """Return the type by which SQLAlchemy passes values to a driver that does not take them from Python."""
    if pa.types.is_timestamp(field.type):
        return sa.DateTime(timezone=field.type.tz is not None)
    if pa.types.is_date(field.type):
        return sa.Date()
    if pa.types.is_decimal(field.type):
        return sa.Numeric(field.type.precision, field.type.scale)
    return sa.types.NullType()


def values_of(batch: pa.RecordBatch) -> dict[str, list[Any]]:
    """Return the values of each column. Raises RecordRefused for one that Python can't hold."""
    values = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if (bad := first_bad(column, _are_held)) is not None:
            raise RecordRefused(
                "it is text that is not UTF-8, or a time outside of the years 1 to 9999. Correct or filter such"
                " records.",
                record=bad,
                column=name,
            )
        values[name] = column.to_pylist()
    return values


def require_unchanged(batch: pa.RecordBatch, written: dict[str, list[Any]], found: Sequence[sa.Row[Any]]) -> None:
    """Make sure that a database has the values that were written.

    Raises:
        RecordRefused: it changed one, such as a text that it cut, or a time without its fraction of a second.
    """
    for position, (name, values) in enumerate(written.items()):
        kept = [row[position] for row in found]
        if kept == values:
            continue
        for record, (before, after) in enumerate(zip(values, kept, strict=True)):
            if before != after and not _are_equal_floats(before, after, batch.schema.field(name).type):
                raise RecordRefused(
                    "the database changes this value. Cast the column to a type that the table's column keeps.",
                    record=record,
                    column=name,
                )


def _are_equal_floats(before: Any, after: Any, type_: pa.DataType) -> bool:
    """Whether both are NaN, or the same number of a precision that Python does not have."""
    if not isinstance(before, float) or not isinstance(after, float):
        return False
    rounded = pa.scalar(after, type_).as_py()
    return bool(rounded == before or (math.isnan(rounded) and math.isnan(before)))


def _are_held(column: pa.Array) -> bool:
    try:
        column.to_pylist()
    except (ValueError, OverflowError):
        return False
    return True
