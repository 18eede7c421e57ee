"""JSON lines: one object per record, in UTF-8, encoded by orjson.

JSON has fewer types than Arrow. Values of other types are written without loss. With the schema, Spark reads all values
back unchanged (measured on 4.2). So does DuckDB, except for binary, which stays base64 text.

| Arrow | JSON |
| --- | --- |
| date, time, timestamp | text in ISO 8601; with a time zone, its offset (``2024-05-01T12:00:00+02:00``) |
| decimal | text: as a number most readers would round it to a double |
| NaN, Infinity, -Infinity | text of that name: JSON has no such numbers |
| binary | text in base64 |
| map | an object, if the keys are text or integers |
| null | ``null``: every record has every column |
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from twopc.refusals import (
    KEY_TWICE,
    NOT_UTF8,
    OTHER_YEAR,
    TIMES,
    YEARS,
    Check,
    Rule,
    checker,
    counted,
    day_number,
    is_list,
    outside,
)
from twopc_files.lines import Encode, LinesFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RECORDS_AT_ONCE = 1024
"""The most records that exist as Python objects at a time."""

Convert: TypeAlias = "Callable[[Any], Any] | None"
"""Converts a Python value other than None to a value that orjson writes in the form above. None if orjson needs no
help."""


@dataclass(frozen=True, slots=True)
class JsonLines(LinesFormat):
    """The format of JSON lines."""

    name = "json"

    def checker(self, schema: pa.Schema) -> Check:
        return checker(schema, _RULES)

    def encoder(self, schema: pa.Schema) -> Encode:
        return _Encoder(schema).encode


class _Encoder:
    def __init__(self, schema: pa.Schema) -> None:
        self._names: list[str] = schema.names
        self._conversions = [conversion(field.type) for field in schema]

    def encode(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        for start in range(0, batch.num_rows, RECORDS_AT_ONCE):
            part = batch.slice(start, RECORDS_AT_ONCE)
            columns = [_convert(c, convert) for c, convert in zip(part.columns, self._conversions, strict=True)]
            records = (dict(zip(self._names, record, strict=True)) for record in zip(*columns, strict=True))
            yield b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records)


def _convert(column: pa.Array, convert: Convert) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values if convert is None else [None if value is None else convert(value) for value in values]


def conversion(type_: pa.DataType) -> Convert:
    """Return the conversion for values of ``type_``."""
    return next((make(type_) for is_types, make in _CONVERSIONS if any(is_type(type_) for is_type in is_types)), None)


def _float(value: float) -> float | str:
    # orjson silently writes null for NaN and the infinities.
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _list_of(item: Convert) -> Convert:
    if item is None:
        return None
    return lambda values: [None if value is None else item(value) for value in values]


def _struct_of(type_: pa.DataType) -> Convert:
    conversions = {field.name: made for field in type_ if (made := conversion(field.type))}
    if not conversions:
        return None

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        changed = {k: c(value[k]) for k, c in conversions.items() if value[k] is not None}
        return value | changed

    return convert


def _map_of(type_: pa.DataType) -> Convert:
    convert_item = conversion(type_.item_type)

    def convert(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        names = {str(name): item for name, item in pairs}
        if convert_item is None:
            return names
        return {name: None if item is None else convert_item(item) for name, item in names.items()}

    return convert


_CONVERSIONS: tuple[tuple[tuple[Callable[[Any], bool], ...], Callable[[Any], Convert]], ...] = (
    ((types.is_float32, types.is_float64), lambda _: _float),
    ((types.is_decimal,), lambda _: lambda value: format(value, "f")),  # never an exponent
    (
        (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view),
        lambda _: lambda value: base64.b64encode(value).decode(),
    ),
    ((types.is_time,), lambda _: dt.time.isoformat),  # orjson 3.13 writes 40,101 microseconds as .40101
    ((types.is_dictionary,), lambda type_: conversion(type_.value_type)),
    ((is_list,), lambda type_: _list_of(conversion(type_.value_type))),
    ((types.is_struct,), _struct_of),
    ((types.is_map,), _map_of),
)


# Values without a form. ---------------------------------------------------------------------------------------


# All offsets have had whole minutes since Liberia changed its own on 7 January 1972. No zone is a day away from UTC.
_WHOLE_MINUTES_SINCE = day_number(dt.date(1972, 1, 8))
_SURELY_IN_YEARS = day_number(dt.date.min) + 2, day_number(dt.date.max) - 2


def _first_zoned(column: pa.Array, least_day: int, most_day: int, is_wrong: Callable[[pa.Scalar], bool]) -> int | None:
    """Return the position of the first timestamp that lies outside of these days and for which ``is_wrong`` is true;
    None if there is none."""
    numbers, per_day = counted(column)
    for position in pc.indices_nonzero(outside(numbers, least_day * per_day, most_day * per_day)).to_pylist():
        if is_wrong(column[position]):
            return int(position)
    return None


def _is_in_another_year(moment: pa.Scalar) -> bool:
    try:
        moment.as_py()
    except (OverflowError, ValueError):
        return True
    return False


def _has_seconds_in_its_offset(moment: pa.Scalar) -> bool:
    return bool(moment.as_py().utcoffset().total_seconds() % 60)


def _is_zoned(field: pa.Field) -> bool:
    return bool(types.is_timestamp(field.type) and field.type.tz not in (None, "UTC"))


_RULES = (
    NOT_UTF8,
    YEARS,
    Rule(_is_zoned, lambda column: _first_zoned(column, *_SURELY_IN_YEARS, _is_in_another_year), OTHER_YEAR),
    Rule(
        _is_zoned,
        lambda column: _first_zoned(column, _WHOLE_MINUTES_SINCE, _SURELY_IN_YEARS[1], _has_seconds_in_its_offset),
        "its zone's offset from UTC had seconds at that time, which ISO 8601 can't hold. Use a column in UTC.",
    ),
    TIMES,
    KEY_TWICE,
)
