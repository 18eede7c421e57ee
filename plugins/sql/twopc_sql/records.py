"""Prepares records for a database, and verifies that the database has stored them unchanged."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from numbers import Number
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from twopc.bad_records import are_held
from twopc.columns import require
from twopc.errors import RecordRefused, SchemaMismatch
from twopc.refusals import is_bytes, is_list, is_string


def written_as(field: pa.Field) -> sa.ColumnClause[Any]:
    """Return the column to use in an INSERT or a SELECT. Dates and times get SQLAlchemy's types, because not every
    driver accepts Python's values."""
    if pa.types.is_timestamp(field.type):
        return sa.column(field.name, sa.DateTime(timezone=field.type.tz is not None))
    return sa.column(field.name, sa.Date() if pa.types.is_date(field.type) else sa.types.NullType())


_KINDS: Sequence[tuple[type, Callable[[pa.DataType], bool]]] = (
    (bool, pa.types.is_boolean),
    (Number, lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)),
    (str, is_string),
    (bytes, lambda kind: is_bytes(kind) or pa.types.is_fixed_size_binary(kind)),
    (datetime, pa.types.is_timestamp),
    (date, pa.types.is_date),
    (time, pa.types.is_time),
    (timedelta, pa.types.is_duration),
    (list, is_list),
    (dict, lambda kind: pa.types.is_struct(kind) or pa.types.is_map(kind)),
)
"""Python types and their Arrow types. Subclasses come before their base classes."""


def check_kinds(schema: pa.Schema, columns: Mapping[str, Any], table: str) -> None:
    """Check that each column of the table could store some value of the records' column, besides null. ``columns`` maps
    the names of the table's columns to SQLAlchemy's types. Raises SchemaMismatch, which names the column."""
    for field in schema:
        column = columns[field.name]
        while hasattr(column, "data_type"):  # a DOMAIN
            column = column.data_type
        of_values = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        of_column: type = object
        with contextlib.suppress(NotImplementedError):  # SQLAlchemy 2.0 has no Python type for some types
            of_column = next((kind for kind, _ in _KINDS if issubclass(column.python_type, kind)), object)
        if of_column is dict:  # a JSON column, which also accepts other values
            of_column = object
        of_records = next((kind for kind, has in _KINDS if has(of_values)), object)
        if of_records is not of_column and object not in (of_records, of_column):
            raise SchemaMismatch(
                f"column {field.name!r} has the Arrow type {field.type}, and {column}, the column's type in {table},"
                " keeps no value of it but null. Cast the column in the query, or change the table."
            )


def values_of(batch: pa.RecordBatch) -> dict[str, list[Any]]:
    """Return the values of each column, with times in UTC. Raises RecordRefused for a value that Python can't
    represent."""
    values = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        has_zone = pa.types.is_timestamp(column.type) and column.type.tz
        held = column.cast(pa.timestamp(column.type.unit, "UTC")) if has_zone else column
        if pa.types.is_float16(column.type):
            held = column.cast(pa.float32())  # older versions of pyarrow return NumPy scalars, which drivers reject
        why = "it is text that is not UTF-8, or a time outside of the years 1 to 9999"
        if "[ns]" in str(held.type):  # pyarrow may silently drop the nanoseconds
            require(held, are_held, why, name)
        try:
            values[name] = held.to_pylist()
        except (ValueError, OverflowError):
            require(held, are_held, why, name)
            raise
    return values


def has_minus_zero(value: Any) -> bool:
    """Return whether a value is or contains -0.0."""
    match value:
        case float():
            return value == 0.0 and math.copysign(1.0, value) < 0.0
        case list() | tuple():
            return any(map(has_minus_zero, value))
        case dict():
            return any(map(has_minus_zero, value.values()))
    return False


def require_unchanged(written: Mapping[str, Sequence[Any]], found: Sequence[Sequence[Any]]) -> None:
    """Check that a database has stored the written values unchanged.

    Raises:
        RecordRefused: the database changed a value, for example by truncating a text or the fraction of a second.
    """
    for (name, values), kept in zip(written.items(), zip(*found, strict=True), strict=True):
        if _are_known_to_be_same(values, [*kept]):
            continue
        for record, pair in enumerate(zip(values, kept, strict=True)):
            if not _are_same(*pair):
                raise RecordRefused(
                    "the database changes this value. Cast the column to a type that the table's column keeps.",
                    record=record,
                    column=name,
                )


_SAME_IF_EQUAL = {bool, int, str, bytes, float, Decimal, date, datetime, type(None)}


def _are_known_to_be_same(written: Sequence[Any], found: Sequence[Any]) -> bool:
    """Return whether a fast check already shows that ``_are_same`` holds for all pairs of values."""
    types = {*map(type, written)}
    if datetime in types:
        written, found = [*map(_instant, written)], [*map(_instant, found)]
    makes_bools = bool in map(type, found) and not types <= {bool, type(None)}
    if makes_bools or not types <= _SAME_IF_EQUAL or written != found:
        return False
    return float not in types or 0.0 not in written or repr(written) == repr(found)


def _are_same(written: Any, found: Any) -> bool:
    """Return whether a value is identical to the written one, not just equal, including inside of lists and structs."""
    if isinstance(found, bool) and not isinstance(written, bool):
        return False
    match written:
        case float():  # as texts, NaN equals NaN, and -0.0 differs from 0.0
            return isinstance(found, float | int | Decimal) and repr(float(found)) == repr(written)
        case list() | tuple():
            is_alike = type(found) is type(written) and len(found) == len(written)
            return is_alike and all(map(_are_same, written, found))
        case dict():
            is_alike = isinstance(found, dict) and found.keys() == written.keys()
            return is_alike and all(_are_same(value, found[name]) for name, value in written.items())
    return bool(_instant(written) == _instant(found))


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _instant(value: Any) -> Any:
    """Return a time with a zone as the duration since 1970, and any other value unchanged. Python does not always
    compare such times as instants. When a zone repeats an hour, Python treats both passes as equal within the zone, and
    as unequal to every time in another zone."""
    return value - _EPOCH if isinstance(value, datetime) and value.tzinfo else value
