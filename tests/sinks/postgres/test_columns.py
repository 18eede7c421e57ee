"""What goes into which column, each value as it was; and what is refused before anything is written."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.postgres.conftest import Place
from tests.sinks.prepared_contract import ColumnsContract
from twopc import Round
from twopc.errors import ConfigurationError, RecordRefused, RoundAborted

MOMENT = dt.datetime(2026, 10, 25, 1, 30, 0, 123456, tzinfo=dt.timezone.utc)

KEPT: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "truth": ("boolean", pa.bool_(), [True, False, None]),
    "small": ("smallint", pa.int8(), [-128, 127, None]),
    "wide": ("bigint", pa.int32(), [-(2**31), 2**31 - 1, None]),
    "big": ("bigint", pa.int64(), [-(2**63), 2**63 - 1, None]),
    "single": ("real", pa.float32(), [1.5, float("inf"), None]),
    "real": ("double precision", pa.float64(), [0.1, float("-inf"), None]),
    "price": ("numeric(12, 3)", pa.decimal128(12, 3), [Decimal("-123456789.123"), Decimal("0.001"), None]),
    "any_number": ("numeric", pa.decimal128(38, 18), [Decimal("1e-18"), Decimal(12345678901234567890), None]),
    "text": ("text", pa.string(), ["", 'a\tb\n"c"\\N', None]),
    "short": ("varchar(3)", pa.large_string(), ["äöü", "\\.", None]),
    "bytes": ("bytea", pa.binary(), [b"", b"\x00\xff\\", None]),
    "day": ("date", pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "moment": ("timestamptz", pa.timestamp("us", "Europe/Berlin"), [MOMENT, MOMENT + dt.timedelta(hours=1), None]),
    "local": ("timestamp", pa.timestamp("us"), [MOMENT.replace(tzinfo=None), dt.datetime(1, 1, 1), None]),  # noqa: DTZ001
    "numbers": ("int[]", pa.list_(pa.int32()), [[1, None, -3], [], None]),
    "words": ("text[]", pa.list_(pa.string()), [['a "b"', "{}", "NULL", None], [""], None]),
    "id": ("uuid", pa.string(), ["00000000-0000-0000-0000-000000000001", None, None]),
}


MISFITS = {
    "integer": [pa.int64(), pa.string()],
    "bigint": [pa.uint64()],
    "real": [pa.float64()],
    "numeric": [pa.float64()],
    "numeric(10, 2)": [pa.decimal128(12, 3), pa.decimal128(11, 2)],
    "text": [pa.int32()],
    "bytea": [pa.string()],
    "timestamp": [pa.timestamp("us", "UTC"), pa.timestamp("ns")],
    "timestamptz": [pa.timestamp("us")],
    "int[]": [pa.int32(), pa.list_(pa.int64())],
    "jsonb": [pa.struct([("a", pa.int32())]), pa.map_(pa.string(), pa.string())],
}


GENERATED = ["amount int GENERATED ALWAYS AS IDENTITY", "amount int GENERATED ALWAYS AS (n + 1) STORED, n int"]


ALTERED = [
    ("timestamp", pa.timestamp("us"), "timestamp(0)"),
    ("numeric(12,3)", pa.decimal128(12, 3), "numeric(12,1)"),
    ("bigint", pa.int64(), "int"),
    ("text", pa.string(), "name"),
]


class TestColumns(ColumnsContract):
    misfits = MISFITS
    generated = GENERATED
    altered = ALTERED


def test_every_value_comes_back_as_it_was(place: Place) -> None:
    place.create(", ".join(f"{name} {type}" for name, (type, _, _) in KEPT.items()))
    place.ask("ALTER TABLE {} ADD COLUMN n serial")
    records = {name: pa.array(values, type) for name, (_, type, values) in KEPT.items()}
    place.sink().validate(pa.record_batch(records).schema)
    place.sink().commit(place.pre_commit(records))
    found = zip(*place.ask("SELECT * FROM {} ORDER BY n"), strict=True)
    for (name, (_, _, values)), column in zip(KEPT.items(), found, strict=False):
        assert [str(value) if name == "id" and value else value for value in column] == values


def test_json_text_becomes_json_and_a_domain_is_the_type_below_it(place: Place) -> None:
    place.ask(f"CREATE DOMAIN {place.schema}.positive AS int CHECK (VALUE > 0)")
    place.create(f"document jsonb, n {place.schema}.positive")
    records = {"document": ['{"a": [1, 2]}'], "n": pa.array([1], pa.int32())}
    place.sink().validate(pa.record_batch(records).schema)
    place.sink().commit(place.pre_commit(records))
    assert place.ask("SELECT document -> 'a' -> 1, n FROM {}") == [(2, 1)]


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("text NOT NULL", None, "NotNullViolation"),
        ("text CHECK (value <> 'secret')", "secret", "CheckViolation orders_value_check"),
        ("uuid", "secret", "InvalidTextRepresentation"),
    ],
)
def test_a_record_that_breaks_a_rule_of_the_table_is_refused_without_its_value(
    column: str, value: str | None, rule: str, place: Place
) -> None:
    place.create(f"value {column}")
    with pytest.raises(RecordRefused, match=rf"breaks the table's rules \({rule}\)") as refused:
        place.pre_commit({"value": pa.array([value], pa.string())})
    assert "secret" not in str(refused.value)
    assert place.prepared() == []


@pytest.mark.parametrize("upsert_by", ["", "value"], ids=["insert", "upsert"])
def test_a_partition_that_is_missing_can_be_created_and_the_batch_run_again(upsert_by: str, place: Place) -> None:
    place.ask("DROP TABLE {}; CREATE TABLE {} (value text PRIMARY KEY) PARTITION BY LIST (value)")
    with pytest.raises(RoundAborted, match=r"no partition of relation.* Create the partition") as aborted:
        place.pre_commit(["secret"], upsert_by=upsert_by)
    assert "secret" not in str(aborted.value)
    assert place.prepared() == []
    place.ask("CREATE TABLE {}_a PARTITION OF {} FOR VALUES IN ('secret')")
    place.sink().commit(place.pre_commit(["secret"], Round(2, 0), upsert_by=upsert_by))
    assert place.values() == ["secret"]


RAISING = """
    CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN RAISE USING MESSAGE = 'no ' || NEW.value, ERRCODE = 'check_violation'; END$$;
    CREATE TRIGGER refuse BEFORE INSERT ON {schema}.orders FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()
"""


@pytest.mark.parametrize("by", ["a trigger", "the bounds of a partition"])
def test_a_rule_without_a_name_is_one_that_a_record_breaks(by: str, place: Place) -> None:
    if by == "a trigger":
        place.ask(RAISING.replace("{schema}", place.schema))
    else:
        place.ask("DROP TABLE {}; CREATE TABLE {}_whole (value text) PARTITION BY LIST (value)")
        place.ask("CREATE TABLE {} PARTITION OF {}_whole FOR VALUES IN ('another')")
    with pytest.raises(RecordRefused, match=r"breaks the table's rules \(CheckViolation\)"):
        place.pre_commit(["secret"])


def test_what_the_server_fills_in_may_be_left_out(place: Place) -> None:
    place.create("amount int, n serial, id int GENERATED BY DEFAULT AS IDENTITY, day date NOT NULL DEFAULT now()")
    place.sink().validate(pa.schema([("amount", pa.int32())]))


@pytest.mark.parametrize("parts", [False, True], ids=["the table", "a partition"])
def test_a_table_that_a_crash_empties_is_refused_before_anything_is_written(parts: bool, place: Place) -> None:
    if parts:
        place.ask("DROP TABLE {}; CREATE TABLE {} (value text) PARTITION BY LIST (value)")
        place.ask("CREATE UNLOGGED TABLE {}_a PARTITION OF {} FOR VALUES IN ('a')")
    else:
        place.ask("ALTER TABLE {} SET UNLOGGED")
    with pytest.raises(ConfigurationError, match=r"is UNLOGGED, so PostgreSQL empties it.* SET LOGGED"):
        place.sink().validate(pa.schema({"value": pa.string()}))


def test_the_records_that_break_a_rule_are_found_by_halves_and_left_out(place: Place) -> None:
    place.create("value text NOT NULL CHECK (value <> 'secret'), amount numeric(3)")
    values = [None if number == 17 else "secret" if number % 20 == 0 else f"{number}" for number in range(100)]
    vote, refused = place.vote_without_bad({"value": values, "amount": pa.array(range(100), pa.int16())})
    assert refused == [0, 17, 20, 40, 60, 80]
    place.sink().commit(vote)
    assert place.values() == sorted(f"{number}" for number in range(100) if number not in refused)


@pytest.mark.variants
@pytest.mark.parametrize(
    ("of_table", "column"),
    [
        ("text", pa.array([b"a", b"a\xff", None], pa.binary())),
        ("date", pa.array([0, 3_663_000, None], pa.date32())),
        ("timestamptz", pa.array([0, 3 * 10**17, None], pa.timestamp("us", "UTC"))),
    ],
)
def test_a_value_that_python_does_not_hold_is_refused_and_can_be_left_out(
    place: Place, of_table: str, column: pa.Array
) -> None:
    place.create(f"value text, x {of_table}")
    if of_table == "text":
        column = pa.Array.from_buffers(pa.string(), len(column), column.buffers())
    records = {"value": ["a", "b", "c"], "x": column}
    with pytest.raises(RecordRefused, match=r"record 1, column 'x': it is (text that is not UTF-8|a time outside)"):
        place.vote(pa.record_batch(records))
    vote, refused = place.vote_without_bad(records)
    assert refused == [1]
    place.sink().commit(vote)
    assert place.values() == ["a", "c"]
