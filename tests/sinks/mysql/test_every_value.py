"""Whatever a column takes is read back as it was given, and whatever it would change is refused (invariant 13)."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.typed_records import same, values_of
from twopc import Participant, Round
from twopc.errors import SchemaMismatch

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
SCHEMA = pa.schema([(f"c{number}", type_) for number, (_, type_) in enumerate(KEPT)])


def held(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """The server has no NaN and no infinity."""
    values = values_of(type_)
    return values.filter(math.isfinite) if pa.types.is_floating(type_) else values


ROW = st.tuples(*(st.none() | held(type_) for _, type_ in KEPT))
rounds = itertools.count()


@pytest.fixture
def typed_table(place: Place) -> Place:
    columns = (f"c{number} {column} NULL" for number, (column, _) in enumerate(KEPT))
    place.create(f"n INT AUTO_INCREMENT PRIMARY KEY, {', '.join(columns)}")
    return place


# The first value that is not kept is named: making it smaller would take minutes of a server.
@settings(max_examples=8, deadline=None, suppress_health_check=[*HealthCheck], phases=[Phase.generate])
@given(rows=st.lists(ROW, min_size=1, max_size=3))
def test_what_a_column_takes_is_read_back_as_it_was(rows: list[tuple[Any, ...]], typed_table: Place) -> None:
    ahead = [rows[-1], *rows]  # a slice of arrays, as Spark's batches may be
    columns = [pa.array(column, type_) for column, type_ in zip(zip(*ahead, strict=True), SCHEMA.types, strict=True)]
    batch = pa.record_batch(columns, schema=SCHEMA).slice(1)
    typed_table.ask("DELETE FROM {}")
    typed_table.sink().validate(SCHEMA)
    typed_table.sink().commit(typed_table.vote(batch, Round(1, next(rounds))))
    read = (f"CAST(c{n} AS DOUBLE)" if pa.types.is_floating(type_) else f"c{n}" for n, (_, type_) in enumerate(KEPT))
    found = typed_table.ask(f"SELECT {', '.join(read)} FROM {{}} ORDER BY n")  # noqa: S608
    for given_row, kept in zip(rows, found, strict=True):
        for (column, type_), before, after in zip(KEPT, given_row, kept, strict=True):
            shown: Any = after
            if after is not None and pa.types.is_timestamp(type_) and type_.tz:
                shown = after.replace(tzinfo=before.tzinfo)
            elif after is not None and isinstance(after, int):
                shown = type(before)(after)
            assert same(before, shown), (column, type_, before, after)


TEXTS = [
    *(
        "",
        " ",
        "ab",
        "abc   ",
        "ab ",
        "abcde",
        "7",
        "007",
        "-1",
        "1.005",
        "x" * 70,
        "a\0b",
        "2",
        "B",
        "b,a",
        "12:00:00.6",
    ),
    *("2026-12-31", "2026-12-31 23:59:59.7", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "10.0.0.1", "::FFFF", "2026"),
    *("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", '{"b":1,"a":2}', '{"a":1,"a":2}', "POINT(1 1)", "🐎", "e\u0301"),
]
OTHERS = [
    pa.array([12345], pa.int32()),
    pa.array([2**63 - 1], pa.int64()),
    pa.array([-1, 7], pa.int8()),
    pa.array([2**64 - 1], pa.uint64()),
    pa.array([0.1], pa.float64()),
    pa.array([True]),
    pa.array([b"\0\xff", b"abcde"], pa.binary()),
    pa.array([1], pa.int32()).cast(pa.date32()),
    pa.array([1_234_567], pa.timestamp("us")),
    pa.array([1_234_567], pa.timestamp("us", "UTC")),
]
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
    for values in [pa.array(TEXTS), *OTHERS]:
        sink = place.sink()
        try:
            sink.validate(pa.schema([("value", values.type)]))
        except SchemaMismatch:
            continue
        with Participant({"orders": sink}, Round(1, next(rounds)), partition=0, max_bad_records=99) as task:
            refused = {error.record for error in task.write("orders", pa.record_batch({"value": values}))}
            for vote in task.pre_commit().values():  # none if all are refused
                sink.commit(vote)
        left = [value for record, value in enumerate(values.to_pylist()) if record not in refused]
        if pa.types.is_timestamp(values.type):
            left = [moment.replace(tzinfo=None) for moment in left]
        assert [value for (value,) in place.ask("SELECT value FROM {}")] == left
        place.ask("DELETE FROM {}")
