"""Records on their way into a database, and the proof that it has changed none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from twopc.bad_records import are_held
from twopc.columns import require
from twopc.errors import RecordRefused


def written_as(field: pa.Field) -> sa.ColumnClause[Any]:
    """Return the column for an INSERT. SQLAlchemy passes times to drivers that do not take them from Python."""
    if pa.types.is_timestamp(field.type):
        return sa.column(field.name, sa.DateTime(timezone=field.type.tz is not None))
    return sa.column(field.name, sa.Date() if pa.types.is_date(field.type) else sa.types.NullType())


def read_as(field: pa.Field) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    """Return the columns for a SELECT: what shows the value that is in the database, as a driver may show fewer digits
    of a number that has half the precision; and what shows its type, which a cast hides."""
    column = written_as(field)
    return (sa.cast(column, sa.Double()), column) if pa.types.is_floating(field.type) else (column, sa.null())


def values_of(batch: pa.RecordBatch) -> dict[str, list[Any]]:
    """Return the values of each column, with times in UTC. Raises RecordRefused for one that Python can't hold."""
    values = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        has_zone = pa.types.is_timestamp(column.type) and column.type.tz
        held = column.cast(pa.timestamp(column.type.unit, "UTC")) if has_zone else column
        require(held, are_held, "it is text that is not UTF-8, or a time outside of the years 1 to 9999", name)
        values[name] = held.to_pylist()
    return values


def require_unchanged(schema: pa.Schema, written: Mapping[str, Sequence[Any]], found: Sequence[sa.Row[Any]]) -> None:
    """Make sure that a database has the values that were written.

    Raises:
        RecordRefused: it changed one, such as a text that it cut, or a time without its fraction of a second.
    """
    for position, field in enumerate(schema):
        values, kept = written[field.name], [_in_utc(row[2 * position]) for row in found]
        if pa.types.is_floating(field.type):  # by their texts, NaN is NaN, and -0.0 is not 0.0
            are_texts = (isinstance(row[2 * position + 1], str | bytes) for row in found)
            values = [*map(repr, values)]
            kept = [None if is_text else repr(number) for number, is_text in zip(kept, are_texts, strict=True)]
        if kept != values:
            raise RecordRefused(
                "the database changes this value. Cast the column to a type that the table's column keeps.",
                record=next(record for record, value in enumerate(values) if kept[record] != value),
                column=field.name,
            )


def _in_utc(value: Any) -> Any:
    """Times of two zones are never equal in the hour that one of them repeats."""
    return value.astimezone(timezone.utc) if isinstance(value, datetime) and value.tzinfo else value
