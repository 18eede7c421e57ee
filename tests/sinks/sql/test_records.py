"""A record goes into the table as it is, or not at all (invariant 1); and what a table's columns and keys must be."""

import math
import subprocess
import sys
import threading
from contextlib import nullcontext
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy.dialects.mysql.base import MySQLDialect

from tests.sinks.sql.conftest import Place
from twopc import Participant, Round
from twopc.bad_records import are_held
from twopc.checks import CheckStatus
from twopc.errors import ConfigurationError, OperatorRequired, RecordRefused, Refused, RoundAborted, SchemaMismatch

pytestmark = pytest.mark.in_turn("database")

ENCODED = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array([0.0, -0.0]))

CHANGED: list[tuple[str, str, str, pa.Array]] = [
    ("sqlite", "value {text}, number DOUBLE", "number", pa.array([0.5, math.nan])),  # it would be NULL
    ("mysql", "value {text}, number DOUBLE", "number", pa.array([0.5, math.nan])),
    ("duckdb", "value {text}, number DOUBLE", "number", pa.array([0.0, -0.0])),  # of zeros it keeps one sign
    ("duckdb", "value {text}, number DOUBLE[]", "number", pa.array([[0.0], [5e-324, -0.0]])),
    ("duckdb", "value {text}, number DOUBLE", "number", ENCODED),
    (
        "duckdb",
        "value {text}, number DOUBLE[]",
        "number",
        pa.ListArray.from_arrays(pa.array([0, 1, 2]).cast("int32"), ENCODED),
    ),
    (
        "duckdb",
        "value {text}, number DOUBLE",
        "number",
        pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([0.0, -0.0])]),
    ),
    ("duckdb", "value {text}, number BOOLEAN", "number", pa.array([None, 1])),  # it would be true
    ("duckdb", "value {text}, number BOOLEAN", "number", pa.array([None, 1.0])),
    ("mysql", "value {text}, number FLOAT", "number", pa.array([None, 1], pa.date32())),
    ("mysql", "value {text}, number FLOAT", "number", pa.array([0.5, 0.1])),
    ("mysql", "value {text}, number DATETIME", "number", pa.array([0, 1], pa.timestamp("us"))),
    ("mysql", "value {text}, number VARCHAR(3)", "number", pa.array(["abc", "abcd"])),
    ("sqlite", "value {text}, number INTEGER", "number", pa.array(["a", "1"])),  # it would be a number
    ("postgresql", "value {text}, number CHAR(3)", "number", pa.array(["abc", "a"])),  # it would end with spaces
    ("postgresql", "value {text}, number TIMESTAMP(0)", "number", pa.array([0, 1], pa.timestamp("us"))),
    ("postgresql", "value {text}, number REAL", "number", pa.array([0.5, 0.1])),
    ("duckdb", "value {text}, number FLOAT", "number", pa.array([0.5, 0.1])),
    ("sqlite", "value {text}, number DOUBLE", "number", pa.array([0.0, -0.0])),
    ("sqlite", "value {text}, number TEXT", "number", pa.array([None, 0.5])),  # it would be text
    ("mysql", "value {text}, number TEXT", "number", pa.array([None, 0.5])),
    ("duckdb", "value {text}, number BIT", "number", pa.array([None, 0.5])),
    ("duckdb", "value {text}, number TIME", "number", pa.array([1000, 1001], pa.time64("ns"))),
    ("sqlite", "value {text}, number INTEGER PRIMARY KEY", "number", pa.array([1, None])),  # it would be 2
    ("duckdb", "value {text}, number DECIMAL(9,1)", "number", pa.array([Decimal("0.50"), Decimal("0.25")])),
    # What a driver shows of half the precision is rounded once more.
    ("postgresql", "value {text}, number REAL", "number", pa.array([1, 123_456_790])),
    ("postgresql", "value {text}, number REAL", "number", pa.array([Decimal(1), Decimal(123_456_790)])),
    ("mysql", "value {text}, number FLOAT", "number", pa.array([1, 1_234_570_000])),
    ("postgresql", "value {text}, number REAL[]", "number", pa.array([[0.5, None], [0.1]])),
    ("postgresql", "value {text}, number REAL[][]", "number", pa.array([[[0.5]], [[0.5, 0.1]]])),
    ("postgresql", "value {text}, number REAL[]", "number", pa.array([[1], [123_456_790]])),
    ("postgresql", "value {text}, number NUMERIC[]", "number", pa.array([[0.0], [-0.0]])),
    ("duckdb", "value {text}, number BIGINT[]", "number", pa.array([[0.0], [-0.0]])),
    ("duckdb", "value {text}, number FLOAT[]", "number", pa.array([[0.5, math.inf], [0.1]])),
    ("duckdb", "value {text}, number STRUCT(a FLOAT[])", "number", pa.array([{"a": [0.5]}, {"a": [0.1]}])),
    ("duckdb", "value {text}, number STRUCT(a DOUBLE)", "number", pa.array([{"a": 0.1}, {"a": math.nan}])),
    ("duckdb", "value {text}, number STRUCT(a INTEGER)", "number", pa.array([{"a": 0.0}, {"a": -0.0}])),
    ("duckdb", "value {text}, number TIMESTAMP[]", "number", pa.array([[1000], [1001]], pa.list_(pa.timestamp("ns")))),
]


@pytest.mark.variants
@pytest.mark.filterwarnings("error::sqlalchemy.exc.SADeprecationWarning")
@pytest.mark.parametrize(("database", "columns", "column", "values"), CHANGED)
def test_a_value_that_a_database_would_change_is_a_bad_record(
    columns: str, column: str, values: pa.Array, place: Place
) -> None:
    place.create(columns)
    _, positions = place.vote_without_bad({"value": ["good", "bad"], column: values})
    assert positions == [1]


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_number_that_is_none_and_one_of_half_the_precision_are_kept(place: Place) -> None:
    place.create("value {text}, number DOUBLE PRECISION, half REAL")
    numbers = {"number": [0.1, math.nan, -math.inf, -0.0], "half": pa.array([0.1, math.nan, None, -0.0], pa.float32())}
    place.sink().commit_batch(0, [place.vote({"value": ["a", "b", "c", "d"], **numbers})])
    kept = place.ask("SELECT number, CAST(half AS DOUBLE PRECISION) FROM {} ORDER BY value")
    assert repr([*zip(*kept, strict=True)]) == repr([tuple(pa.array(each).to_pylist()) for each in numbers.values()])


@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize(("column", "type_"), [("FLOAT8[]", pa.float64()), ("REAL[]", pa.float32())])
def test_numbers_in_lists_are_kept(column: str, type_: pa.DataType, place: Place) -> None:
    place.create(f"value {{text}}, number {column}")
    numbers = pa.array([[0.1, math.nan, -math.inf, None], [-0.0], [], None], pa.list_(type_))
    place.sink().commit_batch(0, [place.vote({"value": ["a", "b", "c", "d"], "number": numbers})])
    kept = place.ask("SELECT CAST(number AS FLOAT8[]) FROM {} ORDER BY value")
    assert repr([number for (number,) in kept]) == repr(numbers.to_pylist())


@pytest.mark.parametrize("database", ["duckdb"])
def test_the_fields_of_a_struct_go_by_their_names(place: Place) -> None:
    place.create("value STRUCT(a INTEGER, b STRUCT(c INTEGER, d INTEGER))")
    place.sink().commit_batch(0, [place.vote({"value": [{"b": {"d": 4, "c": 3}, "a": 1}]})])
    assert place.ask("SELECT value FROM {}") == [({"a": 1, "b": {"c": 3, "d": 4}},)]


@pytest.mark.parametrize("database", ["mysql"])
def test_a_number_of_half_the_precision_is_read_from_a_server_that_has_no_cast_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MySQL before 8.0.17, and MariaDB before 10.4.5."""
    monkeypatch.setattr(MySQLDialect, "_support_float_cast", property(lambda _: False, lambda *_: None))
    place.create("value {text}, number FLOAT")
    vote, positions = place.vote_without_bad({"value": ["a", "b", "c"], "number": [0.5, 0.1, -0.0]})
    place.sink().commit_batch(0, [vote])
    kept = place.ask("SELECT number * 1e0 FROM {} ORDER BY value")
    assert (positions, repr(kept)) == ([1], "[(0.5,), (-0.0,)]")


@pytest.mark.parametrize("database", ["postgresql", "duckdb"])
def test_times_are_kept_in_the_hour_that_a_zone_repeats_also_in_lists(place: Place) -> None:
    place.create("value TIMESTAMPTZ, moments TIMESTAMPTZ[]")
    seconds = [1_698_539_400, 1_698_543_000]  # 00:30 and 01:30 UTC of 2023-10-29, both 02:30 in Berlin
    moments = pa.array(seconds, pa.timestamp("s")).cast(pa.timestamp("us", "Europe/Berlin"))
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2], pa.int32()), moments)
    place.sink().commit_batch(0, [place.vote({"value": moments, "moments": lists})])
    kept = place.ask("SELECT value, moments FROM {} ORDER BY value")
    assert [moment.timestamp() for moment, _ in kept] == seconds
    assert [[moment.timestamp() for moment in each] for _, each in kept] == [seconds, []]


def test_a_value_that_a_column_does_not_take_is_a_bad_record(place: Place) -> None:
    if place.database == "sqlite":
        pytest.skip("SQLite takes any value into any column")
    place.create("value {text}, small SMALLINT")
    _, positions = place.vote_without_bad({"value": ["a", "b", "c"], "small": [1, 70_000, 3]})
    assert positions == [1]


@pytest.mark.parametrize("database", ["duckdb"])
def test_minus_zero_is_refused_also_where_arrow_keeps_a_run_of_values_once(place: Place) -> None:
    place.create("value DOUBLE")
    with pytest.raises(RecordRefused, match=r"it is -0\.0") as error:
        place.vote({"value": pa.RunEndEncodedArray.from_arrays([1, 3], pa.array([0.0, -0.0]))})
    assert error.value.record == 1


JUDGED = [
    ("NUMERIC", [0.1 + 0.2], []),
    ("NUMERIC(25,20)", [0.1 + 0.2, 0.5, 0.1 + 0.2, 1e300], [3]),
    ("BOOLEAN[]", [[1], None], [0]),
    ("JSONB", [5], []),
    ("JSONB", [5, 6], []),
    ("JSONB", [0.5, math.nan], [1]),
    ("INTEGER", [1.0, 0.5, -3.0, math.nan, math.inf, -0.0], [1, 3, 4, 5]),
    ("BIGINT", [Decimal("1.0"), Decimal("0.5"), None], [1]),
    ("SMALLINT[]", [[1.0, None], [0.5], [-3.0]], [1]),
]
"""The type of a column, values, and the positions of those that it does not keep."""


@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize(("column", "values", "refused"), JUDGED)
def test_whether_a_record_is_kept_does_not_depend_on_those_beside_it(
    column: str, values: list[Any], refused: list[int], place: Place
) -> None:
    place.create(f"value INTEGER, number {column}")
    vote, positions = place.vote_without_bad({"value": [*range(len(values))], "number": values})
    place.sink().commit_batch(0, [vote])
    kept = [(at, value) for at, value in enumerate(values) if at not in refused]
    found = place.ask("SELECT value, number FROM {} ORDER BY value")
    assert (
        positions,
        [(at, value if value is None or isinstance(value, list) else float(value)) for at, value in found],
    ) == (refused, kept)


OF_KINDS: dict[str, list[pa.DataType]] = {
    "INTEGER": [pa.int8(), pa.uint64(), pa.float32(), pa.decimal128(9, 2)],
    "BOOLEAN": [pa.bool_()],
    "TEXT": [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())],
    "BYTEA": [pa.binary(), pa.binary(16)],
    "DATE": [pa.date32()],
    "TIMESTAMP": [pa.timestamp("us"), pa.timestamp("ms", "UTC")],
    "TIME": [pa.time64("us")],
    "INTERVAL": [pa.duration("us")],
    "TEXT[]": [pa.list_(pa.string()), pa.list_(pa.int64())],
}


@pytest.mark.parametrize("database", ["postgresql"])
def test_records_of_another_kind_than_a_column_are_refused_as_a_whole_and_the_column_named(place: Place) -> None:
    """COPY takes each as a text, so all of them would go where bad records go."""
    taken: dict[str, list[pa.DataType]] = {column: [] for column in OF_KINDS}
    for column in OF_KINDS:
        place.create(f"value {column}")
        for type_ in chain(*OF_KINDS.values()):
            try:
                place.sink().validate(pa.schema({"value": type_}))
                taken[column].append(type_)
            except SchemaMismatch as error:
                assert "column 'value' has the Arrow type" in error.message  # noqa: PT017
    assert taken == OF_KINDS


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_column_of_a_domain_takes_what_the_domains_type_does(place: Place) -> None:
    domain = f"digits_{place.table}"
    place.ask(f"CREATE DOMAIN {domain} AS INTEGER")
    place.create(f"value {domain}")
    place.sink().validate(pa.schema({"value": pa.int64()}))
    for other in (pa.string(), pa.map_(pa.string(), pa.int32())):
        with pytest.raises(SchemaMismatch, match="column 'value'"):
            place.sink().validate(pa.schema({"value": other}))


@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize(
    ("column", "zone", "moment", "is_zoned"),
    [
        ("TIMESTAMPTZ", "America/New_York", "9999-12-31 23:59:59", False),
        ("TIMESTAMPTZ", "Asia/Tokyo", "0001-01-01 00:00:00", False),
        ("TIMESTAMPTZ(0)", "America/New_York", "9999-12-31 23:59:59.999999", True),
    ],
)
def test_a_time_that_would_be_in_no_year_of_python_elsewhere_is_a_bad_record(
    column: str, zone: str, moment: str, is_zoned: bool, place: Place
) -> None:
    place.ask(f"ALTER DATABASE {place.url.database} SET timezone = '{zone}'")
    place.create(f"value {{text}}, moment {column}")
    moments = pa.array([None, moment]).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC" if is_zoned else None))
    _, positions = place.vote_without_bad({"value": ["a", "b"], "moment": moments})
    assert positions == [1]


@pytest.mark.parametrize("database", ["postgresql"])
def test_psycopg_logs_nothing_of_a_record_that_is_refused(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.create("value {text}, small SMALLINT")
    small = [*range(3000)]
    small[2000] = small[2998] = 70_000
    _, positions = place.vote_without_bad({"value": [*map(str, small)], "small": small})
    assert positions == [2000, 2998]
    assert [each.getMessage() for each in caplog.records if each.name.startswith("psycopg")] == []


@pytest.mark.long
@pytest.mark.parametrize("database", ["mysql"])
def test_a_record_that_is_longer_than_the_servers_packets_is_a_bad_record(place: Place) -> None:
    """The server ends the connection, as in an outage."""
    place.create("value LONGTEXT, raw LONGBLOB")
    raw = pa.array([b"", b"", b"\0" * (9 << 20)], pa.binary())  # two bytes each in a statement
    _, positions = place.vote_without_bad({"value": ["a", "x" * (17 << 20), "c"], "raw": raw})
    assert positions == [1, 2]


def test_without_a_place_for_bad_records_one_fails_the_batch_and_no_value_is_told(place: Place) -> None:
    place.create("value {text}, day DATE")
    with pytest.raises(RecordRefused, match=r"time outside of the years") as error:
        place.vote({"value": ["secret"], "day": pa.array([10_000_000], pa.date32())})
    assert (error.value.column, error.value.record) == ("day", 0)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("records", "options", "refusal"),
    [
        ({"value": ["a"], "other": ["b"]}, {}, "has no column 'other'"),
        ({"other_": ["b"]}, {"upsert_by": "value"}, "has no column 'other_'"),
        ({"number": [1]}, {"upsert_by": "value"}, "no column 'value', which 'upsert_by' names"),
    ],
)
def test_records_that_do_not_fit_are_refused_before_anything_is_written(
    records: dict[str, list[Any]], options: dict[str, str], refusal: str, place: Place
) -> None:
    place.create("value {key} PRIMARY KEY, number BIGINT")
    with pytest.raises(SchemaMismatch, match=refusal):
        place.sink(**options).validate(pa.record_batch(records).schema)


def test_a_table_that_is_missing_or_lacks_the_key_of_its_upserts_is_refused(place: Place) -> None:
    schema = pa.schema({"value": pa.string()})
    with pytest.raises(ConfigurationError, match=r"does not exist\. Create it"):
        place.sink(table="nowhere").validate(schema)
    with pytest.raises(ConfigurationError, match="no primary key or unique index on exactly"):
        place.sink(upsert_by="value").validate(schema)


def test_an_examination_names_the_columns_and_creates_no_table(place: Place) -> None:
    sink = place.unbound()
    sink.bind("orders", "doctor")
    findings = list(sink.check())
    assert [finding.result for finding in findings] == [CheckStatus.PASSED] * 2
    assert "columns value" in findings[0].detail
    with pytest.raises(Exception, match=r"twopc_transactions"):
        place.ask("SELECT * FROM twopc_transactions")


def test_columns_have_any_names(place: Place) -> None:
    names = ["value", "count", "Order", "select", "a b", "it's", 'say "so"', "50%", "a:b"]
    quoted = map(place.url.get_dialect()().identifier_preparer.quote_identifier, names)
    place.create(", ".join(f"{name} {{text}}" for name in quoted).replace(":", "\\:").replace("%%", "%"))
    vote = place.vote({name: [name, name] for name in names})
    place.sink().seal([vote], 0.0)
    place.sink().commit_batch(0, [vote])
    assert place.ask("SELECT * FROM {}") == [tuple(names)] * 2


def test_a_column_that_the_records_lack_gets_its_default(place: Place) -> None:
    place.create("value {text}, number BIGINT DEFAULT 7 NOT NULL")
    place.sink().commit_batch(0, [place.vote(["a"])])
    assert place.ask("SELECT * FROM {}") == [("a", 7)]


def test_batches_of_other_columns_wait_side_by_side(place: Place) -> None:
    place.create("value {text}, number BIGINT")
    votes = [place.vote({"value": ["a"]}), place.vote({"value": ["b"], "number": [1]}, partition=1)]
    place.sink().commit_batch(0, votes)
    assert place.ask("SELECT * FROM {} ORDER BY value") == [("a", None), ("b", 1)]


# Upserts. -------------------------------------------------------------------------------------------------------


@pytest.fixture
def keyed(place: Place) -> Place:
    place.create("id BIGINT PRIMARY KEY, day {text} DEFAULT 'today', value {text}")
    return place


def test_a_record_replaces_the_row_of_its_key_with_its_batch_and_not_before(keyed: Place) -> None:
    keyed.ask("INSERT INTO {} VALUES (1, 'then', 'old'), (2, 'then', 'kept')")
    sink = keyed.sink(upsert_by="id")
    vote = keyed.vote({"id": [1, 3], "value": ["new", "added"]}, sink=sink)
    sink.seal([vote], 0.0)
    assert keyed.values() == ["kept", "old"]
    sink.commit_batch(0, [vote])
    found = keyed.ask("SELECT id, day, value FROM {} ORDER BY id")
    assert found == [(1, "then", "new"), (2, "then", "kept"), (3, "today", "added")]


def test_of_records_with_one_key_the_last_that_its_task_wrote_wins(keyed: Place) -> None:
    sink = keyed.sink(upsert_by="id")
    with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
        for ids, values in (([1, 2, 1], ["a", "b", "c"]), ([1], ["d"])):
            participant.write("orders", pa.record_batch({"id": ids, "value": values}))
        [vote] = participant.pre_commit().values()
    sink.commit_batch(0, [vote])
    assert keyed.ask("SELECT id, value FROM {} ORDER BY id") == [(1, "d"), (2, "b")]


def test_records_that_are_a_key_alone_leave_their_rows_as_they_are(keyed: Place) -> None:
    keyed.ask("INSERT INTO {} VALUES (1, 'then', 'kept')")
    sink = keyed.sink(upsert_by="id")
    sink.commit_batch(0, [keyed.vote({"id": [1, 2]}, sink=sink)])
    assert keyed.ask("SELECT id, day, value FROM {} ORDER BY id") == [(1, "then", "kept"), (2, "today", None)]


def test_a_delete_asks_nothing_of_the_other_columns(place: Place) -> None:
    place.create("id BIGINT PRIMARY KEY, value VARCHAR(9) NOT NULL CHECK (value <> '')")
    place.ask("INSERT INTO {} VALUES (1, 'a'), (2, 'b')")
    sink = place.sink(upsert_by="id")
    with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
        participant.delete("orders", pa.record_batch({"id": [1], "value": [""]}))
        votes = [*participant.pre_commit().values()]
    sink.seal(votes, 0.0)
    sink.commit_batch(0, votes)
    assert place.values() == ["b"]


def test_another_unique_index_is_refused_as_two_rows_may_exchange_its_values(place: Place) -> None:
    place.create("id BIGINT PRIMARY KEY, value VARCHAR(9) UNIQUE")
    sink = place.sink(upsert_by="id")
    is_replaced_by_any = place.database == "mysql"
    way_on = r"not unique\." if is_replaced_by_any else "do not select its columns"
    with pytest.raises(ConfigurationError, match=f"another unique index, .*{way_on}"):
        sink.validate(pa.schema({"id": pa.int64(), "value": pa.string()}))
    with pytest.raises(ConfigurationError) if is_replaced_by_any else nullcontext():
        sink.validate(pa.schema({"id": pa.int64()}))


def test_without_upserts_a_key_that_is_there_fails_the_batch(keyed: Place) -> None:
    keyed.ask("INSERT INTO {} (id) VALUES (1)")
    vote = keyed.vote({"id": [1]})
    with pytest.raises(RoundAborted, match="with 'upsert_by', records replace rows"):
        keyed.sink().seal([vote], 0.0)


@pytest.mark.parametrize("upsert_by", ["id", "id,day"])
def test_a_record_without_a_key_is_a_bad_record(upsert_by: str, place: Place) -> None:
    """In an index, no two nulls are equal; where records are compared, all of them are."""
    place.create(f"id BIGINT, day {{key}}, value {{text}}, UNIQUE ({upsert_by})")
    records = {"id": [1, None, 2], "day": ["a", "b", "c"], "value": ["x", "y", "z"]}
    vote, positions = place.vote_without_bad(records, upsert_by=upsert_by)
    assert positions == [1]
    place.sink(upsert_by=upsert_by).commit_batch(0, [vote])
    assert place.values() == ["x", "z"]


@pytest.mark.parametrize("type_", [pa.float64(), pa.float32()])
def test_a_floating_point_number_is_no_key(type_: pa.DataType, place: Place) -> None:
    """Its two zeros would be one row."""
    place.create("value {float} PRIMARY KEY")
    with pytest.raises(ConfigurationError, match=r"takes 0\.0 and -0\.0 for one key.* Cast it to a decimal or a text"):
        place.sink(upsert_by="value").validate(pa.schema({"value": type_}))
    place.sink(upsert_by="value").validate(pa.schema({"value": pa.int64()}))


FOLDED = """
    CREATE TYPE folded;
    CREATE FUNCTION of_text(cstring) RETURNS folded LANGUAGE internal IMMUTABLE STRICT AS 'textin';
    CREATE FUNCTION to_text(folded) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
    CREATE TYPE folded (INPUT = of_text, OUTPUT = to_text, LIKE = text, COLLATABLE = true);
    CREATE CAST (folded AS text) WITHOUT FUNCTION AS IMPLICIT;
    CREATE FUNCTION compared(folded, folded) RETURNS int LANGUAGE sql IMMUTABLE
        AS 'SELECT bttextcmp(lower($1::text), lower($2::text))';
    CREATE FUNCTION same(folded, folded) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT compared($1, $2) = 0';
    CREATE OPERATOR = (LEFTARG = folded, RIGHTARG = folded, FUNCTION = same);
    CREATE FUNCTION less(folded, folded) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT compared($1, $2) < 0';
    CREATE OPERATOR < (LEFTARG = folded, RIGHTARG = folded, FUNCTION = less);
    CREATE OPERATOR CLASS of_folded DEFAULT FOR TYPE folded USING btree
        AS OPERATOR 1 <, OPERATOR 3 =, FUNCTION 1 compared;
    CREATE DOMAIN a_name AS folded
"""
"""A type that compares as ``citext`` does."""


@pytest.mark.variants
@pytest.mark.filterwarnings("ignore:Did not recognize type")
@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize("column", ["folded", "a_name", "text[]"])
def test_a_key_that_compares_by_more_than_its_text_is_refused_by_name(column: str, place: Place) -> None:
    place.ask(FOLDED.replace(":", "\\:"))
    place.create(f"value {column} PRIMARY KEY")
    type_ = pa.list_(pa.string()) if column == "text[]" else pa.string()
    with pytest.raises(ConfigurationError, match="takes different texts for equal"):
        place.sink(upsert_by="value").validate(pa.schema({"value": type_}))


@pytest.mark.parametrize(
    ("database", "folding"),
    [
        ("sqlite", "COLLATE NOCASE"),
        ("duckdb", "COLLATE NOCASE"),
        pytest.param("mysql", "COLLATE utf8mb4_general_ci", marks=pytest.mark.long),
    ],
)
def test_a_key_whose_collation_folds_is_refused_and_another_columns_is_not(folding: str, place: Place) -> None:
    schema = pa.schema({"value": pa.string(), "a_value": pa.string()})
    place.create(f"a_value VARCHAR(9), value VARCHAR(9) {folding} PRIMARY KEY")
    with pytest.raises(ConfigurationError, match="takes different texts for equal"):
        place.sink(upsert_by="value").validate(schema)
    place.create(f"a_value VARCHAR(9) {folding}, value {{key}} PRIMARY KEY")
    place.sink(upsert_by="value").validate(schema)


@pytest.mark.variants
@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize(
    ("column", "type_"),
    [
        ("int", pa.int64()),
        ("varchar(9)", pa.string()),
        ("uuid", pa.string()),
        ("timestamptz", pa.timestamp("us", "UTC")),
        ("numeric(9,2)", pa.decimal128(9, 2)),
        ("bytea", pa.binary()),
    ],
)
def test_a_key_of_a_type_that_compares_whole_values_is_taken(column: str, type_: pa.DataType, place: Place) -> None:
    place.create(f"value {column} PRIMARY KEY")
    place.sink(upsert_by="value").validate(pa.schema({"value": type_}))


@pytest.mark.variants
@pytest.mark.parametrize("database", ["mysql"])
@pytest.mark.parametrize("keys", ["UNIQUE (value(3))", "UNIQUE (value), UNIQUE (number)", "KEY (value)"])
def test_a_key_by_which_another_row_could_be_replaced_is_refused(keys: str, place: Place) -> None:
    place.create(f"value {{key}}, number BIGINT, {keys}")
    with pytest.raises(ConfigurationError, match=r"primary key or unique index|another unique index"):
        place.sink(upsert_by="value").validate(pa.schema({"value": pa.string()}))


@pytest.mark.parametrize("database", ["mysql"])
def test_a_table_that_can_not_roll_back_is_refused(place: Place) -> None:
    place.ask("ALTER TABLE {} ENGINE = MyISAM")
    with pytest.raises(ConfigurationError, match="its engine is MyISAM"):
        place.sink().validate(pa.schema({"value": pa.string()}))


@pytest.mark.parametrize("database", ["mysql"])
def test_a_zero_in_a_column_that_numbers_rows_is_kept(place: Place) -> None:
    place.create("value BIGINT AUTO_INCREMENT PRIMARY KEY")
    place.sink().commit_batch(0, [place.vote({"value": [0, 7]})])
    assert place.ask("SELECT value FROM {} ORDER BY value") == [(0,), (7,)]


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize("clause", ["INTEGER PRIMARY KEY ON CONFLICT REPLACE", "INTEGER UNIQUE on  conflict ignore"])
def test_a_table_that_leaves_out_or_replaces_what_collides_is_refused(clause: str, place: Place) -> None:
    place.create(f"value {clause}")
    with pytest.raises(ConfigurationError, match="its definition has ON CONFLICT"):
        place.sink().validate(pa.schema({"value": pa.int64()}))


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_key_that_is_checked_only_at_a_commit_is_refused(place: Place) -> None:
    place.create("value INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED")
    with pytest.raises(ConfigurationError, match="checked only at a commit: leave out INITIALLY DEFERRED"):
        place.sink().validate(pa.schema({"value": pa.int64()}))


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_table_may_be_named_with_its_schema(place: Place) -> None:
    place.create("value INTEGER")
    sink = place.sink(table=f"main.{place.table}")
    sink.commit_batch(0, [place.vote({"value": [7]}, sink=sink)])
    assert place.ask("SELECT value FROM {}") == [(7,)]


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_decided_upsert_that_a_trigger_finds_redundant_is_committed(place: Place) -> None:
    place.create("value INTEGER PRIMARY KEY, n INTEGER")
    place.ask("CREATE TRIGGER redundant BEFORE UPDATE ON {} WHEN OLD.n = NEW.n BEGIN SELECT RAISE(IGNORE); END")
    sink = place.sink(upsert_by="value")
    sealed = sink.seal([place.vote({"value": [1], "n": [2]}, sink=sink)], 0.0)
    place.ask("INSERT INTO {} VALUES (1, 2)")
    sink.commit_batch(0, sealed)
    assert place.ask("SELECT value, n FROM {}") == [(1, 2)]


PREFERRED = {"datestyle": "German", "extra_float_digits": "-10", "intervalstyle": "iso_8601", "bytea_output": "escape"}


@pytest.mark.parametrize("database", ["postgresql"])
def test_settings_that_others_prefer_refuse_no_value(place: Place) -> None:
    for name, setting in PREFERRED.items():
        place.ask(f"ALTER DATABASE {place.url.database} SET {name} = '{setting}'")
    place.create("value FLOAT8, day DATE, at TIMESTAMPTZ, lasts INTERVAL, raw BYTEA")
    records = {"value": [0.1], "day": pa.array([1], pa.date32()), "at": pa.array([1], pa.timestamp("us", "UTC"))}
    records |= {"lasts": pa.array([90_000_000_001], pa.duration("us")), "raw": pa.array([b"\0\xff\\"], pa.binary())}
    place.sink().commit_batch(0, [place.vote(records)])
    asked = "SELECT CAST(to_json(value) AS text), to_char(day, 'YYYY-MM-DD'), encode(raw, 'hex') FROM {}"
    assert place.ask(asked) == [("0.1", "1970-01-02", "00ff5c")]


@pytest.mark.parametrize("database", ["mysql"])
def test_bytes_are_kept_where_the_server_takes_a_backslash_for_itself(place: Place) -> None:
    """A quote in them would end the text, and the rest would be SQL."""
    place.create("value {text}, raw BLOB")
    raw = [b"a' , (SELECT 1)) -- \0\\"]
    preferring = place.url.update_query_dict({"init_command": "SET sql_mode = 'NO_BACKSLASH_ESCAPES'"})
    sink = place.sink(url=preferring)
    sink.commit_batch(0, [place.vote({"value": ["a'\\"], "raw": pa.array(raw, pa.binary())}, sink=sink)])
    assert place.ask("SELECT value, raw FROM {}") == [("a'\\", *raw)]


def test_decimals_of_many_digits_are_kept_or_refused(place: Place) -> None:
    place.create("value {text}, amount DECIMAL(38,18)")
    amounts = [Decimal("0.1"), Decimal("12345678901.123456789"), Decimal("-99999999999999999999.999999999999999999")]
    records = {"value": ["a", "b", "c"], "amount": pa.array(amounts, pa.decimal128(38, 18))}
    if place.database == "sqlite":
        with pytest.raises(SchemaMismatch, match="does not take records of these types"):
            place.vote(records)
        return
    place.sink().commit_batch(0, [place.vote(records)])
    assert [amount for (amount,) in place.ask("SELECT amount FROM {} ORDER BY value")] == amounts


@pytest.mark.parametrize("values", [pa.array([2**64 - 1], pa.uint64()), pa.array([{"a": 1}]), pa.array([[1]])])
def test_values_that_a_database_does_not_know_are_refused_for_good(values: pa.Array, place: Place) -> None:
    place.create("value BIGINT")
    with pytest.raises(Refused):
        place.vote({"value": values})


@pytest.mark.parametrize("names", [["value", "value"], ["value", "twopc_key"]])
def test_names_of_columns_that_can_not_be_told_apart_are_refused(names: list[str], place: Place) -> None:
    place.create("value {text}, twopc_key {text}")
    records = pa.record_batch([pa.array(["a"]), pa.array(["b"])], names=names)
    with pytest.raises(SchemaMismatch, match=r"names must be unique|'twopc_key' is reserved"):
        place.sink().validate(records.schema)


@pytest.mark.variants
def test_records_of_one_task_have_the_same_columns_in_any_order(place: Place) -> None:
    place.create("value {text}, number BIGINT")
    with Participant({"orders": place.sink()}, Round(1, 0), partition=0) as participant:
        participant.write("orders", pa.record_batch({"value": ["a"], "number": [1]}))
        participant.write("orders", pa.record_batch({"number": [2], "value": ["b"]}))
        vote = participant.pre_commit()["orders"]
    place.sink().commit_batch(0, [vote])
    assert place.ask("SELECT value, number FROM {} ORDER BY value") == [("a", 1), ("b", 2)]
    participant = Participant({"orders": place.sink()}, Round(2, 0), partition=0)
    participant.write("orders", pa.record_batch({"value": ["a"], "number": [1]}))
    with pytest.raises(SchemaMismatch, match="and then"):
        participant.write("orders", pa.record_batch({"value": ["a"]}))


@pytest.mark.long
@pytest.mark.parametrize("database", ["duckdb"])
def test_a_task_waits_for_the_file_that_another_process_has_open(place: Place) -> None:
    sink = place.sink()
    other = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", other, str(place.url.database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"open\n"
        timer = threading.Timer(1.0, process.communicate, [b"\n"])
        timer.start()
        vote = place.vote(["a"], sink=sink)
        timer.join()
    sink.commit_batch(0, [vote])
    assert place.values() == ["a"]


@pytest.mark.parametrize("database", ["sqlite", "duckdb"])
def test_a_file_of_another_kind_is_no_outage(place: Place) -> None:
    Path(str(place.url.database)).write_bytes(b"another kind" * 1000)
    with pytest.raises(OperatorRequired, match="not a"):
        place.sink()


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.list_(pa.time64("ns"), 1), [1001]),
        (pa.map_(pa.string(), pa.time64("ns")), [("a", 1001)]),
        (pa.struct([("a", pa.list_(pa.time64("ns")))]), {"a": [1001]}),
    ],
)
def test_nanoseconds_are_not_held_however_deep_they_are(type_: pa.DataType, value: Any) -> None:
    """To Python, they would be a time without them."""
    assert not are_held(pa.array([value], type_))
