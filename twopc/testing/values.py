"""Values of Arrow types: the edges of each, what Hypothesis draws beside them, and what tells two values apart."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, timezone
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from pyarrow import types

Row: TypeAlias = "dict[str, Any]"

TEXTS = (
    *("", " ", "a ", "'", '"', "\\", "\\N", "\\.", "NULL", "NaN", "007", "{}", "%s", "a,b", "\t\n\r", "a\0b", "\0"),
    *("e\u0301", "\u00e9", "🐎", "\U0010ffff" * 20, "\ud7ff", "z" * 32 + "\U0010ffff", "x" * 10_000),
)
BYTES = (b"", b"\0", b"\\x00", b"'", bytes(range(256)), b"\xff" * 20)
DAYS = tuple(
    date.fromisoformat(day)
    for day in ("0001-01-01", "1582-10-04", "1582-10-15", "1969-12-31", "1970-01-01", "2024-02-29", "9999-12-31")
)
MOMENTS = tuple(
    datetime.fromisoformat(moment)
    for moment in (
        *("0001-01-01 00:00:00", "1582-10-10 12:00:00", "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00"),
        *("2024-02-29 12:00:00.000001", "2026-03-29 02:30:00", "9999-12-31 23:59:59.999999"),
        *("2026-10-25 00:30:00", "2026-10-25 01:30:00"),  # half past two in Berlin, both
    )
)
_STEPS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_LARGEST = {16: 65504.0, 32: 3.4028234663852886e38, 64: 1.7976931348623157e308}
_SMALLEST = {16: 2.0**-24, 32: 2.0**-149, 64: 5e-324}

ROWS, AT_ONCE = 16, 120
"""How many rows an example has at most, and how many values: Hypothesis refuses to draw more than 8 kB."""

MAKES_SMALLER_S = 20.0
"""How long Hypothesis looks for a small value of a column that changes values."""


def nested(*flat: pa.DataType) -> list[pa.DataType]:
    """Return types with all of ``flat`` in structs, lists and maps, one to three levels deep."""
    struct = pa.struct([(f"f{number}", type) for number, type in enumerate(flat)])
    lists = pa.struct([(f"f{number}", pa.list_(type)) for number, type in enumerate(flat)])
    return [struct, lists, pa.list_(struct), pa.map_(pa.string(), pa.list_(struct))]


def edges(type: pa.DataType) -> list[Any]:  # noqa: C901, PLR0911, PLR0912  # one line per kind
    """Return the values of a type that are damaged most easily, without null."""
    if types.is_boolean(type):
        return [True, False]
    if types.is_integer(type):
        least, most = _bounds(type)
        return sorted({least, -1, 0, 1, most} - ({-1} if least == 0 else set()))
    if types.is_floating(type):
        width = type.bit_width
        plain = [0.0, -0.0, math.inf, -math.inf, math.nan, _SMALLEST[width], -_LARGEST[width]]
        return [*plain, 0.1] if width == 64 else plain
    if types.is_decimal(type):
        return [_scaled(unscaled, type) for unscaled in (1 - 10**type.precision, -1, 0, 1, 10**type.precision - 1)]
    if types.is_date(type):
        return [*DAYS]
    if types.is_timestamp(type):
        return [*dict.fromkeys(_rounded(moment, type) for moment in MOMENTS)]
    if types.is_time(type):
        return [time_of_day.min, _cut(time_of_day.max, type)]
    if types.is_duration(type):
        step = timedelta(microseconds=_STEPS[type.unit])
        return [timedelta(), step, -step, timedelta(days=40)]
    if types.is_fixed_size_binary(type):
        return [bytes(type.byte_width), b"\xff" * type.byte_width]
    if types.is_binary(type) or types.is_large_binary(type):
        return [*BYTES]
    if types.is_map(type):
        keys, items = edges(type.key_type), edges(type.item_type)
        return [[], [(keys[-1], None)], *([(key, items[0])] for key in keys), *([(keys[0], item)] for item in items)]
    if types.is_struct(type):
        empty = {field.name: None for field in type}
        return [empty, *({**empty, field.name: edge} for field in type for edge in edges(field.type))]
    if _is_list(type):
        return [[], [None], *([edge] for edge in edges(type.value_type))]
    return [*TEXTS]


def values_of(type: pa.DataType) -> st.SearchStrategy[Any]:
    """Draw values of a type, its edges among them, without null."""
    found = edges(type)
    return st.integers(0, len(found) - 1).map(lambda number: found[number]) | _beside_edges(type)  # of a short repr


def _beside_edges(type: pa.DataType) -> st.SearchStrategy[Any]:  # noqa: C901, PLR0911, PLR0912  # one line per kind
    if types.is_boolean(type):
        return st.booleans()
    if types.is_integer(type):
        return st.integers(*_bounds(type))
    if types.is_floating(type):
        return st.floats(width=type.bit_width)
    if types.is_decimal(type):
        most = 10**type.precision - 1
        return st.integers(-most, most).map(lambda unscaled: _scaled(unscaled, type))
    if types.is_date(type):
        return st.dates()
    if types.is_timestamp(type):
        return st.datetimes().map(lambda moment: _rounded(moment, type))
    if types.is_time(type):
        return st.times().map(lambda moment: _cut(moment, type))
    if types.is_duration(type):
        return st.integers(-(2**40), 2**40).map(lambda steps: timedelta(microseconds=steps * _STEPS[type.unit]))
    if types.is_fixed_size_binary(type):
        return st.binary(min_size=type.byte_width, max_size=type.byte_width)
    if types.is_binary(type) or types.is_large_binary(type):
        return st.binary(max_size=40)
    if types.is_map(type):
        pairs = st.tuples(values_of(type.key_type), st.none() | values_of(type.item_type))
        return st.lists(pairs, max_size=2, unique_by=lambda pair: exact(pair[0]))
    if types.is_struct(type):
        return st.fixed_dictionaries({field.name: st.none() | values_of(field.type) for field in type})
    if _is_list(type):
        return st.lists(st.none() | values_of(type.value_type), max_size=2)
    return st.text(st.characters(codec="utf-8"), max_size=40)


def rows_with_edges(schema: pa.Schema, unique: str) -> list[Row]:
    """Return a row for each edge of each column, which is null in the others; but no two have an equal ``unique``."""
    empty, rows = dict.fromkeys(schema.names), list[Row]()
    for field in schema:
        rows += [{**empty, field.name: edge} for edge in edges(field.type)]
    for number, row in enumerate(rows):
        if unique in row and row[unique] is None:
            row[unique] = label(schema.field(unique).type, f"edge {number}")
    return rows


def label(type: pa.DataType, text: str) -> str | bytes:
    """Return a value of a type of text or bytes."""
    return text.encode() if types.is_binary(type) else text


def drawn_rows(schema: pa.Schema, unique: str) -> st.SearchStrategy[list[Row]]:
    """Draw rows with nulls, of which no two have an equal ``unique``, and none has null there."""
    beside = len(schema) > 1  # then the edges of ``unique`` would come again and again
    columns = {
        field.name: (_beside_edges if beside else values_of)(field.type)
        if field.name == unique
        else st.none() | values_of(field.type)
        for field in schema
    }
    size = _rows(schema)
    rows = st.fixed_dictionaries(columns)
    unique_by = (lambda row: exact(row[unique])) if unique in schema.names else None
    return st.lists(rows, min_size=size, max_size=size, unique_by=unique_by)


def _rows(schema: pa.Schema) -> int:
    return max(1, min(ROWS, AT_ONCE // sum(map(_leaves, schema.types))))


def _leaves(type: pa.DataType) -> int:
    return sum(_leaves(type.field(number).type) for number in range(type.num_fields)) or 1


def tried(schema: pa.Schema, per_column: int, unique: str) -> list[Row]:
    """Return a row for each edge of each column, and what Hypothesis draws from a fixed seed.

    Args:
        schema: the columns.
        per_column: how many values are drawn of each column, nulls among them, beside its edges.
        unique: the column of which no two rows of an example have an equal value.
    """
    rows = rows_with_edges(schema, unique)
    _draw(drawn_rows(schema, unique), -(-per_column // _rows(schema)), rows.extend)
    return rows


def smallest(is_wrong: Callable[[Any], bool], type: pa.DataType) -> tuple[Any] | None:
    """Return a small value of a type that is wrong, if Hypothesis finds one within ``MAKES_SMALLER_S``."""
    found: list[Any] = []
    until = time.monotonic() + MAKES_SMALLER_S

    def require(value: Any) -> None:
        if time.monotonic() < until and is_wrong(value):
            found.append(value)
            raise AssertionError

    with contextlib.suppress(AssertionError, Flaky):  # flaky: the time was over
        _draw(values_of(type), 200, require)
    return (found[-1],) if found else None


def _draw(strategy: st.SearchStrategy[Any], examples: int, call: Callable[[Any], object]) -> None:
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[*HealthCheck],
        report_multiple_bugs=False,
    )
    @given(strategy)
    def each(drawn: Any) -> None:
        call(drawn)

    each()


def batch_of(schema: pa.Schema, rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows as a slice of a longer record batch, as Spark's may be."""
    longer = [rows[-1], *rows, rows[0]]
    columns = [pa.array([row[field.name] for row in longer], field.type) for field in schema]
    return pa.record_batch(columns, schema=schema).slice(1, len(rows))


def exact(value: Any) -> Any:
    """Return what is equal for the same values alone: NaN and NaN are the same, 0.0 and -0.0 are not."""
    match value:
        case bool() | float():
            return repr(value), type(value).__name__
        case dict():
            return frozenset((key, exact(each)) for key, each in value.items())
        case list() | tuple():
            return tuple(map(exact, value))
        case datetime():
            return "UTC" if value.tzinfo else "", _in_utc(value)
        case bytes() | bytearray() | memoryview():
            return bytes(value)
    return value


def _in_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is None else moment.astimezone(timezone.utc).replace(tzinfo=None)


def _bounds(type: pa.DataType) -> tuple[int, int]:
    bits = type.bit_width - types.is_signed_integer(type)
    return -(2**bits) if types.is_signed_integer(type) else 0, 2**bits - 1


def _scaled(unscaled: int, type: pa.DataType) -> Decimal:
    return Decimal(f"{unscaled}E-{type.scale}")  # exactly, whatever decimal's context


def _cut(moment: Any, type: pa.DataType) -> Any:
    """Without what the unit of a type does not hold."""
    step = _STEPS[type.unit]
    return moment.replace(microsecond=moment.microsecond // step * step)


def _rounded(moment: datetime, type: pa.DataType) -> datetime:
    return _cut(moment, type).replace(tzinfo=timezone.utc) if type.tz else _cut(moment, type)  # type: ignore[no-any-return]


def _is_list(type: pa.DataType) -> bool:
    return bool(types.is_list(type) or types.is_large_list(type))
