"""Which values of which Arrow types a file's columns keep, as SQLAlchemy gives them to the driver (invariant 13)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy as sa

from tests.support.every_value import VALUES, write_good
from tests.support.kept_columns import ARROW, PAGE, declared, filled
from twopc.errors import Refused, RoundAborted
from twopc.testing.values import exact
from twopc_sql.records import written_as

if TYPE_CHECKING:
    from tests.sinks.sql.conftest import Place

KINDS = {
    "sqlite": [
        *("BOOLEAN", "BIGINT", "DOUBLE", "DECIMAL(5,2)", "VARCHAR(3)", "TEXT", "BLOB", "DATE", "DATETIME"),
    ],
    "duckdb": [
        *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER"),
        *("UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL(5,2)", "DECIMAL(38,18)", "VARCHAR", "BLOB", "BIT"),
        *("DATE", "TIME", "TIMETZ", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMPTZ"),
        *("INTERVAL", "UUID", "ENUM('2','1','b')", "INTEGER[]", "VARCHAR[]", "INTEGER[][]", "INTEGER[2]"),
        *("STRUCT(a INTEGER)", "MAP(VARCHAR, INTEGER)"),
    ],
}

TITLES = {"sqlite": "SQLite", "duckdb": "DuckDB"}


_DIGITS = {"s": 0, "ms": 999_000, "us": 999_999}
_TEXTS = ["", "a ", "1", "1.50", "true", "2026-12-31", "🐎", "a\0b"]


def _bounds(type_: pa.DataType) -> list[int]:
    is_signed = pa.types.is_signed_integer(type_)
    bits = type_.bit_width - is_signed
    return [-(2**bits) * is_signed, 1, 2**bits - 1]


def _moments(type_: pa.DataType) -> list[Any]:
    zone = timezone.utc if type_.tz else None
    if type_.unit == "ns":
        return [0, 1]
    return [datetime.min.replace(tzinfo=zone), datetime(9999, 12, 31, 23, 59, 59, _DIGITS[type_.unit], zone)]


EDGES: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], list[Any]]]] = [
    (pa.types.is_boolean, lambda _: [True, False]),
    (pa.types.is_integer, _bounds),
    (pa.types.is_float16, lambda _: list(map(np.float16, [1.0, 0.5, -0.0, math.inf, math.nan]))),
    (pa.types.is_floating, lambda _: [1.0, 0.1, -0.0, math.inf, math.nan]),
    (pa.types.is_decimal, lambda type_: [Decimal(0), Decimal(f"-{'9' * type_.precision}E-{type_.scale}")]),
    (pa.types.is_date, lambda _: [date.min, date(1970, 1, 1), date.max]),
    (pa.types.is_time, lambda _: [time(), time(23, 59, 59, 999_999)]),
    (pa.types.is_timestamp, _moments),
    (pa.types.is_duration, lambda _: [timedelta(microseconds=1), timedelta(days=40)]),
    (pa.types.is_struct, lambda _: [{"a": 1}]),
    (pa.types.is_map, lambda _: [[("a", 1)]]),
    (pa.list_(pa.string()).equals, lambda _: [["a", None], []]),
    (pa.list_(pa.list_(pa.int32())).equals, lambda _: [[[1], None]]),
    (pa.types.is_nested, lambda _: [[1, None], []]),
    (pa.types.is_null, lambda _: [None]),
    (pa.types.is_fixed_size_binary, lambda _: [bytes(range(16))]),
    (lambda type_: pa.types.is_binary(type_) or pa.types.is_large_binary(type_), lambda _: [b"", b"\0\xff'"]),
    (pa.month_day_nano_interval().equals, lambda _: [pa.MonthDayNano([1, 2, 3])]),
    (lambda _: True, lambda _: _TEXTS),
]
"""Kinds of Arrow types, and their edges; the first that fits counts."""


def edges(type_: pa.DataType) -> pa.Array:
    return pa.array(next(values(type_) for is_of, values in EDGES if is_of(type_)), type_)


def taken(place: Place, kinds: list[str]) -> Iterator[tuple[str, str, str]]:
    """Return each kind with the Arrow types of which a column keeps all edges, and those of which it keeps some."""
    place.create(declared(kinds).replace(":", "\\:"))
    tables = place.unbound()._tables
    with place.sink()._engine.connect() as connection:
        staged = []
        for number in range(len(kinds)):
            staged.append(tables.make_staging(connection, [f"c{number}"]))
            connection.commit()

        def is_kept(number: int, values: pa.Array) -> bool:
            with suppress(Refused, RoundAborted, sa.exc.DBAPIError):
                tables.stage(connection, staged[number], "name", 0, pa.record_batch({f"c{number}": values}))
                connection.rollback()
                return True
            connection.rollback()
            return False

        for number, kind in enumerate(kinds):
            found: dict[bool, list[str]] = {True: [], False: []}
            for type_ in ARROW:
                values = edges(type_)
                is_all = is_kept(number, values)
                if is_all or any(is_kept(number, values.slice(each, 1)) for each in range(len(values))):
                    found[is_all].append(f"{type_}")
            yield kind, ", ".join(found[True]), ", ".join(found[False])


def table(place: Place) -> str:
    """The table of the page."""
    rows: dict[tuple[str, str], list[str]] = {}
    for kind, *takes in taken(place, KINDS[place.database]):
        rows.setdefault((takes[0], takes[1]), []).append(f"`{kind}`")
    lines = ("| column | takes each value of | takes those it keeps of |", "| --- | --- | --- |")
    return "\n".join([*lines, *(f"| {', '.join(of)} | {every} | {some} |" for (every, some), of in rows.items())])


@pytest.mark.parametrize("database", ["sqlite", pytest.param("duckdb", marks=pytest.mark.long)])
def test_the_page_says_which_arrow_types_each_column_takes(place: Place) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert filled(TITLES[place.database], table(place), page) == page, "run python -m tests.support.kept_columns"


@pytest.mark.long
@pytest.mark.parametrize(("database", "kind"), [(name, kind) for name in KINDS for kind in KINDS[name]])
def test_every_type_keeps_a_value_as_it_is_or_the_value_is_refused(kind: str, place: Place) -> None:
    place.create(f"value {kind}")
    for values in VALUES:
        if (left := write_good(place, values)) is None:
            continue
        kept = [row["value"] for row in place.select([written_as(pa.field("value", values.type))])]
        assert len(kept) == len(left)
        assert all(exact(one) == exact(other) or one == other != 0 for one, other in zip(left, kept, strict=True))
