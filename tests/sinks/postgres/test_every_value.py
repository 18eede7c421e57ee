"""Whatever a column takes is read back as it was given, and whatever it would change is refused (invariant 13)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.typed_records import same, values_of
from twopc import Participant, Round
from twopc.errors import RecordRefused, SchemaMismatch

if TYPE_CHECKING:
    from tests.sinks.postgres.conftest import Place

KEPT: list[tuple[str, pa.DataType]] = [
    ("boolean", pa.bool_()),
    ("smallint", pa.int8()),
    ("smallint", pa.uint8()),
    ("smallint", pa.int16()),
    ("whole", pa.int32()),
    ("integer", pa.uint16()),
    ("bigint", pa.int64()),
    ("bigint", pa.uint32()),
    ("numeric", pa.uint64()),
    ("numeric(20)", pa.uint64()),
    ("bigint", pa.decimal128(18, 0)),
    ("real", pa.float32()),
    ("double precision", pa.float32()),
    ("double precision", pa.float64()),
    ("numeric(12,3)", pa.decimal128(12, 3)),
    ("price", pa.decimal128(5, 2)),
    ("numeric", pa.decimal128(38, 18)),
    ("bytea", pa.binary()),
    ("bytea", pa.large_binary()),
    ("date", pa.date32()),
    ("timestamp", pa.timestamp("us")),
    ("timestamp(3)", pa.timestamp("ms")),
    ("timestamp(0)", pa.timestamp("s")),
    ("timestamptz", pa.timestamp("us", "Europe/Berlin")),
    ("timestamptz(3)", pa.timestamp("ms", "America/New_York")),
    ("text", pa.string()),
    ("words", pa.large_string()),
    ("varchar", pa.string()),
    ("varchar(10000)", pa.string()),
    ('text COLLATE "C"', pa.string()),
    ("bigint[]", pa.list_(pa.int64())),
    ("text[]", pa.list_(pa.string())),
    ("bytea[]", pa.list_(pa.binary())),
    ("float8[]", pa.list_(pa.float64())),
    ("numeric(12,3)[]", pa.list_(pa.decimal128(12, 3))),
    ("timestamptz[]", pa.list_(pa.timestamp("us", "UTC"))),
    ("price[]", pa.list_(pa.decimal128(5, 2))),
]
"""Column type and Arrow type. ``price``, ``whole`` and ``words`` are domains over domains."""

DOMAINS = """
    CREATE DOMAIN {0}.inner_price AS numeric(5,2); CREATE DOMAIN {0}.price AS {0}.inner_price;
    CREATE DOMAIN {0}.inner_whole AS int; CREATE DOMAIN {0}.whole AS {0}.inner_whole;
    CREATE DOMAIN {0}.inner_words AS text; CREATE DOMAIN {0}.words AS {0}.inner_words
"""
SCHEMA = pa.schema([(f"c{number}", type_) for number, (_, type_) in enumerate(KEPT)])
ROW = st.tuples(*(st.none() | values_of(type_) for _, type_ in KEPT))
rounds = itertools.count()


@pytest.fixture
def typed_table(place: Place) -> Place:
    place.ask(DOMAINS.format(place.schema))
    with_schema = {name: f"{place.schema}.{name}" for name in ("price", "whole", "words", "price[]")}
    columns = (f"c{number} {with_schema.get(column, column)}" for number, (column, _) in enumerate(KEPT))
    place.create(f"n serial, {', '.join(columns)}")
    return place


# The first value that is not kept is named: making it smaller would take minutes of a server.
@settings(max_examples=8, deadline=None, suppress_health_check=[*HealthCheck], phases=[Phase.generate])
@given(rows=st.lists(ROW, min_size=1, max_size=3))
def test_what_a_column_takes_is_read_back_as_it_was(rows: list[tuple[Any, ...]], typed_table: Place) -> None:
    ahead = [rows[-1], *rows]  # a slice of arrays, as Spark's batches may be
    columns = [pa.array(column, type_) for column, type_ in zip(zip(*ahead, strict=True), SCHEMA.types, strict=True)]
    batch = pa.record_batch(columns, schema=SCHEMA).slice(1)
    typed_table.ask("TRUNCATE {}")
    typed_table.sink().validate(SCHEMA)
    typed_table.sink().commit(typed_table.vote(batch, Round(1, next(rounds))))
    # The text of a float4 is short, and psycopg knows no arrays of a domain.
    casts = {"real": "::float8", "price[]": "::numeric[]"}
    read = (f"c{n}{casts.get(column, '')}" for n, (column, _) in enumerate(KEPT))
    found = typed_table.ask(f"SELECT {', '.join(read)} FROM {{}} ORDER BY n")  # noqa: S608
    for given_row, kept in zip(rows, found, strict=True):
        for (column, type_), before, after in zip(KEPT, given_row, kept, strict=True):
            if isinstance(after, int) and pa.types.is_decimal(type_):
                after = type(before)(after)  # noqa: PLW2901  # an integer column
            if pa.types.is_integer(type_) and after is not None:
                after = int(after)  # noqa: PLW2901  # a numeric column
            assert same(before, after), (column, type_, before, after)


TEXTS = [
    *("", " ", "ab", "abc   ", "ab   ", "abcde", "7", "007", "-1", "1.005", "$1.01", "x" * 70, "xy", "a\0b", "101"),
    *("12:00:00.1239", "12:00:00", "12:00:00+02", "00:00:00.6", "1 day", "P1D", "[1,3]", "{1}", "(1,2)", "true"),
    *("2026-12-31", "2026-12-31 23:59:59.7", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "10.0.0.1", "10.0.0.1/32"),
    *("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "08:00:2b:01:02:03", "08002b010203", '{"b":1,"a":2}', '{"a":1,"a":2}'),
    *("[1e-20000]", "1e400", "<a/>", "'b' 'a'", "🐎", "e\u0301"),
]
OTHERS = [
    pa.array([12345], pa.int32()),
    pa.array([2**63 - 1], pa.int64()),
    pa.array([0.1], pa.float64()),
    pa.array([True]),
    pa.array([b"\0\xff"], pa.binary()),
    pa.array([1], pa.int32()).cast(pa.date32()),
    pa.array([1_234_567], pa.timestamp("us")),
    pa.array([1_234_567], pa.timestamp("us", "UTC")),
    pa.array([[1, None]], pa.list_(pa.int32())),
    pa.array([["a", None, "abc   "]], pa.list_(pa.string())),
]
MODIFIED = ["varchar(3)", "char(5)", "char(2)", "bit(3)", "varbit(3)", "time(3)", "time(0)", "timetz(0)", "interval(0)"]
MODIFIED += ["timestamp(0)", "timestamp(3)", "timestamptz(0)", "numeric(5,-2)", "numeric(3)", "varchar(3)[]", "int[]"]


def kinds(place: Place) -> list[str]:
    """Every type of the server's catalog that a column can have, and some with modifiers."""
    found = place.ask(
        "SELECT t.oid::regtype::text FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem"
        " WHERE t.typtype IN ('b', 'r', 'm') AND t.typisdefined AND coalesce(e.typtype, 'b') NOT IN ('c', 'p')"
        " AND t.typnamespace = 'pg_catalog'::regnamespace ORDER BY 1"
    )
    return [*(name for (name,) in found), *MODIFIED]


@pytest.mark.long
def test_every_type_of_the_catalog_keeps_a_value_as_it_is_or_the_value_is_refused(place: Place) -> None:
    changed = []
    for kind in kinds(place):
        place.create(f"value {kind}")
        for values in [pa.array(TEXTS), *OTHERS]:
            schema = pa.schema([("value", values.type)])
            sink = place.sink()
            try:
                sink.validate(schema)
            except SchemaMismatch:
                continue
            with Participant({"orders": sink}, Round(1, next(rounds)), partition=0, max_bad_records=99) as task:
                refused = {error.record for error in task.write("orders", pa.record_batch({"value": values}))}
                for vote in task.pre_commit().values():  # none if all are refused
                    sink.commit(vote)
            left = [value for record, value in enumerate(values.to_pylist()) if record not in refused]
            as_text = pa.types.is_string(values.type)
            found = place.ask("SELECT format('%%s', value), value FROM {}")
            kept = [row[0 if as_text else 1] for row in found]
            if kind != "jsonb" and kept != left:  # jsonb spells JSON in its own way
                changed.append((kind, left, kept))
            place.ask("TRUNCATE {}")
    assert changed == []


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("varchar(3)", "abc   "),
        ("char(5)", "ab"),
        ("time(3)", "12:00:00.1239"),
        ("interval(0)", "00:00:00.6"),
        ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
        ("bit(3)", "1010"),
        ("varchar(3)[]", ["a", "abc   "]),
        ("jsonb", '{"a": 1, "a": 2}'),
        ("jsonb", "[1e-20000]"),
    ],
)
def test_a_text_that_a_column_would_change_is_refused_and_can_be_left_out(column: str, text: Any, place: Place) -> None:
    place.create(f"value {column}")
    good = {"char(5)": "abcde", "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "bit(3)": "101", "jsonb": "[]"}
    values = [good.get(column, ["ab"] if isinstance(text, list) else "12:00:00"[: 3 if "char" in column else 8]), text]
    with pytest.raises(RecordRefused) as refused:
        place.vote(pa.record_batch({"value": values}))
    assert (refused.value.record, refused.value.column) == (1, "value")
    vote, left_out = place.vote_without_bad({"value": values})
    place.sink().commit(vote)
    assert left_out == [1]
    assert place.ask("SELECT count(*) FROM {}") == [(1,)]
