"""Values of Arrow types: edge values, random values, and a form in which only identical values are equal."""

from __future__ import annotations

import contextlib
import math
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta, timezone
from datetime import time as time_of_day
from decimal import Decimal
from functools import partial
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from pyarrow import types

from twopc.refusals import is_list

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
        *("2026-10-25 00:30:00", "2026-10-25 01:30:00"),  # both are 02:30 in Berlin
    )
)
CHARACTERS = ((32, 126), (0, 0x24F), (0x250, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF))
_TEXT, _BINARY = ({f"{kind}", f"large_{kind}", f"{kind}_view"} for kind in ("string", "binary"))
_STEPS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}  # Python's finest unit is a microsecond
_LARGEST = {16: 65504.0, 32: 3.4028234663852886e38, 64: 1.7976931348623157e308}
_SMALLEST = {16: 2.0**-24, 32: 2.0**-149, 64: 5e-324}

MAKES_SMALLER_S = 20.0
"""How long Hypothesis searches for a small value of a column whose values are changed."""


def nested(*flat: pa.DataType, keys: Sequence[pa.DataType] = ()) -> list[pa.DataType]:
    """Return types with all of ``flat`` in structs, lists and maps, one to three levels deep, and maps for ``keys``."""
    whole = pa.struct([(f"f{number}", type) for number, type in enumerate(flat)])
    lists = pa.struct([(f"f{number}", pa.list_(type)) for number, type in enumerate(flat)])
    return [whole, lists, pa.list_(whole), pa.map_(pa.string(), pa.list_(whole)), *(pa.map_(key, key) for key in keys)]


def edges(type: pa.DataType) -> list[Any]:  # noqa: C901, PLR0911, PLR0912  # one line per kind
    """Return the non-null values of a type that are most easily damaged; none if the type is not supported."""
    if types.is_dictionary(type):
        return edges(type.value_type)
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
        moments = [moment for moment in MOMENTS if type.unit != "ns" or 1677 < moment.year < 2262]
        return [*dict.fromkeys(_rounded(moment, type) for moment in moments)]
    if types.is_time(type):
        return [time_of_day.min, _cut(time_of_day.max, type)]
    if types.is_duration(type):
        step = timedelta(microseconds=_STEPS[type.unit])
        return [timedelta(), step, -step, timedelta(days=40)]
    if types.is_fixed_size_binary(type):
        return [bytes(type.byte_width), b"\xff" * type.byte_width]
    if str(type) in _BINARY:
        return [*BYTES]
    if types.is_map(type):
        keys, items = edges(type.key_type), edges(type.item_type)
        return [[], *([(key, None)] for key in keys), *([(key, item)] for key in keys[:1] for item in items)]
    if types.is_struct(type):
        empty = {field.name: None for field in type}
        return [empty, *({**empty, field.name: edge} for field in type for edge in edges(field.type))]
    if is_list(type):
        some = [
            [each] * (type.list_size if types.is_fixed_size_list(type) else 1)
            for each in (None, *edges(type.value_type))
        ]
        return some if types.is_fixed_size_list(type) else [[], *some]
    return [*TEXTS] if str(type) in _TEXT else []


def drawn(type: pa.DataType, random: Random) -> Any:  # noqa: C901, PLR0911, PLR0912  # one line per kind
    """Return a random value of a type; None if the type is not supported."""
    if types.is_dictionary(type):
        return drawn(type.value_type, random)
    if types.is_boolean(type):
        return random.randrange(2) == 1
    if types.is_integer(type):
        least, most = _bounds(type)
        any_of = 2 ** _few(type.bit_width, random)
        return random.randint(max(least, -any_of), min(most, any_of))
    if types.is_floating(type):
        return _drawn_float(type.bit_width, random)
    if types.is_decimal(type):
        zeros = min(random.choice((0, max(0, type.scale - 2), max(0, type.scale))), type.precision - 1)
        most = 10 ** _few(type.precision - zeros, random) - 1
        return _scaled(random.randint(-most, most) * 10**zeros, type)
    if types.is_date(type):
        return date.fromordinal(random.choice((random.randint(1, date.max.toordinal()), _near(random))))
    if types.is_timestamp(type):
        day = _near(random) if type.unit == "ns" else drawn(pa.date32(), random).toordinal()
        return _rounded(datetime.combine(date.fromordinal(day), _drawn_time(random)), type)
    if types.is_time(type):
        return _cut(_drawn_time(random), type)
    if types.is_duration(type):
        return timedelta(microseconds=drawn(pa.int32(), random) * _STEPS[type.unit])
    if types.is_map(type):
        keys = {exact(key): key for key in (_within(type.key_type, random) for _ in range(random.randint(0, 2)))}
        return [(key, _or_null(type.item_type, random)) for key in keys.values()]
    if types.is_struct(type):
        return {field.name: _or_null(field.type, random) for field in type}
    if is_list(type):
        length = type.list_size if types.is_fixed_size_list(type) else random.randint(0, 2)
        return [_or_null(type.value_type, random) for _ in range(length)]
    if types.is_fixed_size_binary(type):
        return bytes(random.randrange(256) for _ in range(type.byte_width))
    if str(type) in _BINARY:
        return bytes(random.randrange(256) for _ in range(random.randint(0, 40)))
    if str(type) in _TEXT:
        ranges = random.choice((CHARACTERS[:1], CHARACTERS))
        return "".join(chr(random.randint(*random.choice(ranges))) for _ in range(random.randint(0, 40)))
    return None


def _within(type: pa.DataType, random: Random) -> Any:
    """Return a random value, or sometimes an edge value."""
    found = edges(type)
    return random.choice(found) if found and random.randrange(8) == 7 else drawn(type, random)


def _or_null(type: pa.DataType, random: Random) -> Any:
    return _within(type, random) if random.randrange(4) else None


def _few(most: int, random: Random) -> int:
    """Return a number of digits from 1 to ``most``, small numbers more often, because a column may be narrower than the
    Arrow type."""
    return random.randint(1, random.randint(1, most))


def _drawn_float(width: int, random: Random) -> float:
    code = {16: "<e", 32: "<f", 64: "<d"}[width]
    match random.randrange(3):
        case 0:
            data = struct.pack(code, random.randint(-(2**15), 2**15))
        case 1:
            data = struct.pack(code, random.randint(-(10**6), 10**6) / 100)
        case _:
            data = random.getrandbits(width).to_bytes(width // 8, "little")
    return float(struct.unpack(code, data)[0])


def _near(random: Random) -> int:
    """Return the ordinal of a day in the years 1970 to 2106."""
    return date(1970, 1, 1).toordinal() + random.randint(0, 50_000)


def _drawn_time(random: Random) -> time_of_day:
    microsecond = random.choice((0, random.randrange(1000) * 1000, random.randrange(1_000_000)))
    return time_of_day(random.randrange(24), random.randrange(60), random.randrange(60), microsecond)


def label(type: pa.DataType, number: int, random: Random) -> Any:
    """Return a value that is unique to ``number`` if the type is text, bytes or large enough integers."""
    if str(type) in _BINARY:
        return b"%d" % number
    if str(type) in _TEXT:
        return f"{number}"
    return number if types.is_integer(type) and number <= _bounds(type)[1] else drawn(type, random)


def leaves(value: Any, type: pa.DataType, name: str) -> Iterator[str]:
    """Yield the path of each non-null leaf of a value. A value that is not nested is one leaf."""
    if value is None:
        return
    if types.is_struct(type):
        for field in type:
            yield from leaves(value[field.name], field.type, f"{name}.{field.name}")
    elif types.is_map(type):
        for key, item in value:
            yield from leaves(key, type.key_type, f"{name}.key")
            yield from leaves(item, type.item_type, f"{name}.value")
    elif is_list(type):
        for each in value:
            yield from leaves(each, type.value_type, f"{name}[]")
    else:
        yield name


def values_of(type: pa.DataType) -> st.SearchStrategy[Any]:
    """Return a strategy that draws from ``edges`` and ``drawn``, and shrinks."""
    every = edges(type)
    return st.sampled_from(range(len(every))).map(every.__getitem__) | st.randoms().map(partial(drawn, type))


def smallest(is_wrong: Callable[[Any], bool], type: pa.DataType) -> tuple[Any] | None:
    """Return a small value for which ``is_wrong`` is true, if Hypothesis finds one within ``MAKES_SMALLER_S``."""
    found: list[Any] = []
    until = time.monotonic() + MAKES_SMALLER_S

    @settings(
        max_examples=200,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[*HealthCheck],
        report_multiple_bugs=False,
    )
    @given(values_of(type))
    def require(value: Any) -> None:
        if time.monotonic() < until and is_wrong(value):
            found.append(value)
            raise AssertionError

    with contextlib.suppress(AssertionError, Flaky):  # flaky: the time ran out
        require()
    return (found[-1],) if found else None


def batch_of(schema: pa.Schema, rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows as a slice of a longer record batch, as Spark's batches may be."""
    longer = [rows[-1], *rows, rows[0]]
    columns = [pa.array([row[field.name] for row in longer], field.type) for field in schema]
    return pa.record_batch(columns, schema=schema).slice(1, len(rows))


def exact(value: Any) -> Any:
    """Return a form that is equal only for identical values."""
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
    return Decimal(f"{unscaled}E-{type.scale}")  # exact in any decimal context


def _cut(moment: Any, type: pa.DataType) -> Any:
    """Return a moment truncated to the unit of a type."""
    step = _STEPS[type.unit]
    return moment.replace(microsecond=moment.microsecond // step * step)


def _rounded(moment: datetime, type: pa.DataType) -> datetime:
    return _cut(moment, type).replace(tzinfo=timezone.utc) if type.tz else _cut(moment, type)  # type: ignore[no-any-return]
