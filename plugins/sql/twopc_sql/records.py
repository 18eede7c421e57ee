"""Records on their way into a database, and the proof that it has changed none of them."""

from __future__ import annotations

import math
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


def read_as(field: pa.Field) -> sa.ColumnElement[Any]:
    """Return the column for a SELECT, so that the value is the one in the database: a driver may show fewer digits of a
    number that has half the precision."""
    column = written_as(field)
    return sa.cast(column, sa.Double()) if pa.types.is_floating(field.type) else column


def values_of(batch: pa.RecordBatch) -> dict[str, list[Any]]:
    """Return the values of each column, with times in UTC. Raises RecordRefused for one that Python can't hold."""
    values = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        has_zone = pa.types.is_timestamp(column.type) and column.type.tz
        held = column.cast(pa.timestamp(column.type.unit, "UTC")) if has_zone else column
        require(held, are_held, "it is text that is not UTF-8, or a time outside of the years 1 to 9999", name)
        values[name] = held.to_pylist()
    return values


def require_unchanged(written: Mapping[str, Sequence[Any]], found: Sequence[sa.Row[Any]]) -> None:
    """Make sure that a database has the values that were written.

    Raises:
        RecordRefused: it changed one, such as a text that it cut, or a time without its fraction of a second.
    """
    for position, (name, values) in enumerate(written.items()):
        kept = [_in_utc(row[position]) for row in found]
        if kept == values:
            continue
        for record, (before, after) in enumerate(zip(values, kept, strict=True)):
            are_nan = (
                isinstance(before, float) and isinstance(after, float) and math.isnan(before) and math.isnan(after)
            )
            if before != after and not are_nan:
                raise RecordRefused(
                    "the database changes this value. Cast the column to a type that the table's column keeps.",
                    record=record,
                    column=name,
                )


def _in_utc(value: Any) -> Any:
    """Times of two zones are never equal in the hour that one of them repeats."""
    return value.astimezone(timezone.utc) if isinstance(value, datetime) and value.tzinfo else value
