"""Whatever a column takes is read back as it was given, and whatever it would change is refused (invariant 13)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.every_value import VALUES, drawn, require_kept, rows_of, write_good
from tests.support.typed_records import values_of

if TYPE_CHECKING:
    from tests.sinks.mysql.conftest import Place

KEPT: list[tuple[str, pa.DataType]] = [
    ("BOOLEAN", pa.bool_()),
    ("TINYINT", pa.int8()),
    ("TINYINT UNSIGNED", pa.uint8()),
    ("SMALLINT", pa.int16()),
    ("SMALLINT UNSIGNED", pa.uint16()),
    ("MEDIUMINT", pa.int16()),
    ("INT", pa.int32()),
    ("INT UNSIGNED", pa.uint32()),
    ("BIGINT", pa.int64()),
    ("BIGINT UNSIGNED", pa.uint64()),
    ("BIGINT", pa.decimal128(18, 0)),
    ("FLOAT", pa.float32()),
    ("DOUBLE", pa.float32()),
    ("DOUBLE", pa.float64()),
    ("DECIMAL(12,3)", pa.decimal128(12, 3)),
    ("DECIMAL(38,18)", pa.decimal128(38, 18)),
    ("LONGBLOB", pa.binary()),
    ("VARBINARY(1000)", pa.large_binary()),
    ("DATE", pa.date32()),
    ("DATETIME(6)", pa.timestamp("us")),
    ("DATETIME(3)", pa.timestamp("ms")),
    ("DATETIME", pa.timestamp("s")),
    ("DATETIME(6)", pa.timestamp("us", "Europe/Berlin")),
    ("LONGTEXT", pa.string()),
    ("MEDIUMTEXT", pa.large_string()),
    ("TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", pa.string()),
]


def held(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """The server has no NaN and no infinity."""
    values = values_of(type_)
    return values.filter(math.isfinite) if pa.types.is_floating(type_) else values


@pytest.fixture
def typed_table(place: Place) -> Place:
    columns = (f"c{number} {column} NULL" for number, (column, _) in enumerate(KEPT))
    place.create(f"n INT AUTO_INCREMENT PRIMARY KEY, {', '.join(columns)}")
    return place


def read(_: str, type_: pa.DataType) -> str:
    return "CAST({} AS DOUBLE)" if pa.types.is_floating(type_) else "{}"


def shown(type_: pa.DataType, before: Any, after: Any) -> Any:
    """A moment in UTC, or an integer in a column of another kind of numbers."""
    if pa.types.is_timestamp(type_) and type_.tz:
        return after.replace(tzinfo=before.tzinfo)
    return type(before)(after) if isinstance(after, int) else after


@drawn
@given(rows=rows_of(KEPT, held))
def test_what_a_column_takes_is_read_back_as_it_was(rows: list[tuple[Any, ...]], typed_table: Place) -> None:
    require_kept(typed_table, KEPT, rows, read, shown)


KINDS = [
    *("TINYINT", "TINYINT UNSIGNED", "SMALLINT", "MEDIUMINT UNSIGNED", "INT", "INT UNSIGNED ZEROFILL", "BIGINT"),
    *("BIGINT UNSIGNED", "DECIMAL(5,0)", "DECIMAL(5,2)", "DECIMAL(20,0) UNSIGNED", "FLOAT", "FLOAT(7,2)", "DOUBLE"),
    *(
        "DOUBLE UNSIGNED",
        "BIT(8)",
        "CHAR(5)",
        "VARCHAR(3)",
        "VARCHAR(50) COLLATE utf8mb4_general_ci",
        "TINYTEXT",
        "TEXT",
    ),
    *("VARCHAR(9) CHARACTER SET latin1", "LONGTEXT", "BINARY(5)", "VARBINARY(3)", "TINYBLOB", "LONGBLOB", "JSON"),
    *(
        "ENUM('2','1','b')",
        "SET('a','b')",
        "DATE",
        "TIME",
        "TIME(3)",
        "DATETIME",
        "DATETIME(3)",
        "TIMESTAMP NULL",
        "YEAR",
    ),
    *("UUID", "INET4", "INET6", "GEOMETRY", "POINT"),
]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_keeps_a_value_as_it_is_or_the_value_is_refused(kind: str, place: Place) -> None:
    place.create(f"value {kind}")
    for values in VALUES:
        if (left := write_good(place, values)) is None:
            continue
        if pa.types.is_timestamp(values.type):
            left = [moment.replace(tzinfo=None) for moment in left]
        assert [value for (value,) in place.ask("SELECT value FROM {}")] == left
