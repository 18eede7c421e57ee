"""Records of many types, with nulls, for the contracts of sinks that keep types."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from twopc.testing.contract import AWKWARD

TEXT = (*AWKWARD, None)


def plain() -> pa.RecordBatch:
    """Return records of the types that JSON has."""
    return pa.record_batch(
        {
            "value": pa.array(TEXT),
            "whole": _in_turn([0, -(2**63), 2**63 - 1, None], pa.int64()),
            "fraction": _in_turn([0.1, -1e300, None], pa.float64()),
            "flag": _in_turn([True, False, None], pa.bool_()),
            "tags": _in_turn([[], ["a", None, ""], None], pa.list_(pa.string())),
        }
    )


def typed() -> pa.RecordBatch:
    """Return records of more types than JSON has."""
    noon = datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=timezone.utc)
    more = {
        "at": _in_turn([noon, datetime(1969, 12, 31, tzinfo=timezone.utc), None], pa.timestamp("us", "UTC")),
        "day": _in_turn([date(2024, 2, 29), date(1900, 1, 1), None], pa.date32()),
        "amount": _in_turn([Decimal("0.10"), Decimal("-9999999999.99"), None], pa.decimal128(12, 2)),
        "raw": _in_turn([b"", b"\0\xff", None], pa.binary()),
    }
    batch = plain()
    for name, column in more.items():
        batch = batch.append_column(name, column)
    return batch


def unchecked_text(*values: bytes) -> pa.StringArray:
    """Return bytes as strings without a look at them, as Spark does."""
    values_of_bytes = pa.array(values, pa.binary())
    return pa.StringArray.from_buffers(len(values), *values_of_bytes.buffers()[1:])


def in_halves(values: Sequence[str | None]) -> pa.RecordBatch:
    """Return text, and a column that separates any two neighbors of the alphabet."""
    return pa.record_batch({"value": pa.array(values), "half": [sum(map(ord, value or "")) % 2 for value in values]})


def _in_turn(values: list[Any], type_: pa.DataType) -> pa.Array:
    """As many as there are texts, so that each kind of value meets others."""
    return pa.array([values[number % len(values)] for number in range(len(TEXT))], type_)


# What sinks of tables that keep types must keep. --------------------------------------------------------------------

_UTC = timezone.utc
_EDGES_OF_FLOAT = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 5e-324, 1.7976931348623157e308]


def texts(**alphabet: Any) -> SearchStrategy[str]:
    """Texts with quotes, marks that combine, and characters of four bytes; now and then a long one."""
    awkward = st.sampled_from(
        ["", " ", "'", '"', "\\", "\\N", "\\.", "NULL", "e\u0301", "🐎", "{}", "%s", "\t\n\r", "x" * 10_000]
    )
    return st.one_of(awkward, st.text(st.characters(codec="utf-8", **alphabet)))


def integers(type_: pa.DataType) -> SearchStrategy[int]:
    bits = type_.bit_width - pa.types.is_signed_integer(type_)
    least = -(2**bits) if pa.types.is_signed_integer(type_) else 0
    return st.one_of(st.sampled_from([least, 0, 2**bits - 1]), st.integers(least, 2**bits - 1))


def decimals(precision: int, scale: int) -> SearchStrategy[Decimal]:
    most = 10**precision - 1
    unscaled = st.one_of(st.sampled_from([-most, 0, most]), st.integers(-most, most))
    return unscaled.map(lambda number: Decimal(f"{number}E-{scale}"))  # without rounding


def moments(type_: pa.DataType, first: datetime = datetime.min) -> SearchStrategy[datetime]:  # noqa: DTZ901
    """Times of the years 1 to 9999, as fine as the type, and both hours that Berlin calls half past two."""
    twice = [datetime(2026, 10, 25, hour, 30) for hour in (0, 1)]  # noqa: DTZ001
    step = {"s": 1_000_000, "ms": 1_000, "us": 1}[type_.unit]
    drawn = st.one_of(st.sampled_from([first, datetime.max, *twice]), st.datetimes(first))  # noqa: DTZ901
    whole = drawn.map(lambda moment: moment.replace(microsecond=moment.microsecond // step * step))
    return whole.map(lambda moment: moment.replace(tzinfo=_UTC)) if type_.tz else whole


def values_of(type_: pa.DataType) -> SearchStrategy[Any]:  # noqa: PLR0911  # one per kind of type
    """Values of an Arrow type, with its edges."""
    if pa.types.is_boolean(type_):
        return st.booleans()
    if pa.types.is_integer(type_):
        return integers(type_)
    if pa.types.is_decimal(type_):
        return decimals(type_.precision, type_.scale)
    if pa.types.is_floating(type_):
        width = type_.bit_width
        edges = st.sampled_from(_EDGES_OF_FLOAT if width == 64 else _EDGES_OF_FLOAT[:5])
        return st.one_of(edges, st.floats(width=32 if width == 32 else 64))
    if pa.types.is_date(type_):
        return st.one_of(st.sampled_from([date.min, date.max, date(1970, 1, 1)]), st.dates())
    if pa.types.is_timestamp(type_):
        return moments(type_)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return st.one_of(st.sampled_from([b"", b"\0", b"\\x00", bytes(range(256))]), st.binary())
    if pa.types.is_list(type_):
        return st.lists(st.none() | values_of(type_.value_type), max_size=4)
    return texts(exclude_characters="\0")


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same, also NaN and NaN, and not 0.0 and -0.0."""
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)
