"""Which values of which Arrow types a file's columns keep, as SQLAlchemy gives them to the driver (invariant 13)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from tests.support.every_value import VALUES, write_good
from tests.support.kept_columns import ARROW, PAGE, declared, filled
from twopc.errors import Refused, RoundAborted, SchemaMismatch
from twopc.testing.values import edges, exact
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


MORE: dict[pa.DataType, list[Any]] = {
    pa.null(): [None],
    pa.month_day_nano_interval(): [pa.MonthDayNano([1, 2, 3])],
    **{type_: [1] for type_ in (pa.timestamp("ns"), pa.timestamp("ns", "UTC"))},
    **{type_: ["1"] for type_ in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))},
}
"""What is tried beside a type's edges: Python's times have no nanoseconds, and few types take an awkward text."""


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
                values = pa.array([*edges(type_), *MORE.get(type_, ())], type_)
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
        try:
            left = write_good(place, values)
        except SchemaMismatch:
            assert pa.types.is_list(values.type)  # which a driver can't send
            continue
        if left is not None:
            kept = [row["value"] for row in place.select([written_as(pa.field("value", values.type))])]
            assert len(kept) == len(left)
            assert all(map(is_kept, left, kept))


def is_kept(given: Any, found: Any) -> bool:
    """A DECIMAL keeps the number that a float is written as."""
    if isinstance(given, float) and isinstance(found, Decimal):
        return Decimal(repr(given)) == found
    return bool(exact(given) == exact(found) or given == found != 0)
