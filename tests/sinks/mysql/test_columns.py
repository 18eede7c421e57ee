"""What goes into which column, each value as it was; and what is refused before anything is written."""

import datetime as dt
import traceback

import pyarrow as pa
import pymysql
import pytest

from tests.sinks.mysql.conftest import Place
from tests.sinks.prepared_contract import ColumnsContract
from tests.support.typed_records import unchecked_text
from twopc import Round
from twopc.errors import ConfigurationError, RecordRefused, RoundAborted
from twopc_mysql import rows
from twopc_mysql.columns import Column

MOMENT = dt.datetime(2026, 10, 25, 1, 30, 0, 123456, tzinfo=dt.timezone.utc)
LOCAL = MOMENT.replace(tzinfo=None)

MISFITS = {
    "INT": [pa.int64(), pa.decimal128(5, 2), pa.string()],
    "INT UNSIGNED": [pa.int64()],
    "BIGINT": [pa.decimal128(20, 0), pa.uint64()],
    "FLOAT UNSIGNED": [pa.float32()],
    "FLOAT": [pa.float64()],
    "FLOAT(7,2)": [pa.float32()],
    "DOUBLE(10,2)": [pa.float32()],
    "DECIMAL(20,5)": [pa.float64()],
    "DECIMAL(10,2)": [pa.decimal128(12, 3), pa.decimal128(11, 2)],
    "VARCHAR(50)": [pa.int32()],
    "BLOB": [pa.string()],
    "TEXT": [pa.binary()],
    "SET('a', 'b')": [pa.string()],
    "TIMESTAMP(6)": [pa.timestamp("us")],
    "DATETIME": [pa.timestamp("us")],
    "DATETIME(3)": [pa.timestamp("us", "UTC")],
    "DATETIME(6)": [pa.timestamp("ns")],
    "DATE": [pa.timestamp("us")],
    "JSON": [pa.list_(pa.int32()), pa.struct([("a", pa.int32())]), pa.map_(pa.string(), pa.string())],
}


GENERATED = [
    "amount INT AS (n + 1) STORED, n INT",
    "amount INT AS (n + 1) VIRTUAL, n INT",
    "amount INT, day DATE DEFAULT '0000-00-00'",
]


ALTERED = [
    ("DATETIME(6)", pa.timestamp("us"), "DATETIME"),
    ("DECIMAL(12,3)", pa.decimal128(12, 3), "DECIMAL(12,1)"),
    ("BIGINT", pa.int64(), "INT"),
]


class TestColumns(ColumnsContract):
    misfits = MISFITS
    generated = GENERATED
    altered = ALTERED
    alter = "ALTER TABLE {} MODIFY value"


def test_a_name_with_marks_of_python_and_of_sql_is_a_name(place: Place) -> None:
    name = "odd `%s` {name}"
    place.create("`odd ``%s`` {name}` VARCHAR(3) PRIMARY KEY")
    place.sink().commit(place.pre_commit({name: ["a"]}, upsert_by=name))
    assert place.ask("SELECT * FROM {}") == [("a",)]


def test_a_zero_is_no_request_for_the_next_number(place: Place) -> None:
    place.create("id BIGINT AUTO_INCREMENT PRIMARY KEY")
    place.sink().commit(place.pre_commit({"id": pa.array([7, 0], pa.int64())}))
    assert place.ask("SELECT id FROM {} ORDER BY id") == [(0,), (7,)]


def test_json_and_uuid_are_text(place: Place) -> None:
    place.create("document JSON, id UUID")
    records = {"document": ['{"a": [1, 2]}'], "id": ["00000000-0000-0000-0000-000000000001"]}
    place.sink().validate(pa.record_batch(records).schema)
    place.sink().commit(place.pre_commit(records))
    assert place.ask("SELECT JSON_VALUE(document, '$.a[1]'), id FROM {}") == [("2", records["id"][0])]


def test_a_label_of_an_enum_that_the_server_escapes_is_taken(place: Place) -> None:
    labels = ["back\\slash", "n\nr\r", "it's", "nul\0", "\\n"]
    place.create("value ENUM('back\\\\slash', 'n\\nr\\r', 'it''s', 'nul\\0', '\\\\n')")
    place.sink().commit(place.pre_commit({"value": labels}))
    assert place.ask("SELECT value FROM {} ORDER BY value + 0") == [(label,) for label in labels]


JSON_OF_MYSQL = Column("value", "json", "json", None, None, None, True, None, "")


def test_json_that_mysql_keeps_is_taken() -> None:
    integers = "[9007199254740993, -9223372036854775808, 18446744073709551615, 0]"
    exact = '{"a": 0.1, "b": 1e22, "c": 123456789.012345, "d": 100.0, "e": 9007199254740991e-22, "f": "-0"}'
    of_spark = (
        "[12.500000000000000000, 0E-18, 0.30000000000000004, 1234567.8901234567, 1.0E23, 0.10000000000000000000e1]"
    )
    batch = pa.record_batch({"value": [integers, exact, of_spark, None]})
    assert len(rows.rows(batch, {"value": JSON_OF_MYSQL})) == 4


@pytest.mark.parametrize(
    "number",
    [
        *("9007199254740993.0", "9007199254740993e0", "0.9286127594021555", "-0", "-0.0", "1e400", "1e-23", "1e-309"),
        *("18446744073709551616", "-9223372036854775809", "1e99999999999999999999"),
        pytest.param(f"0.{'1' * 5000}", id="a number of 5000 digits"),
    ],
)
def test_json_with_a_number_that_mysql_might_change_is_refused(number: str) -> None:
    """By its source: RapidJSON reads a number into an integer of 64 bits or, not always rightly rounded, a double."""
    batch = pa.record_batch({"value": ["[1]", f'{{"a": [{number}]}}']})
    with pytest.raises(RecordRefused, match="a number that the column would change") as refused:
        rows.rows(batch, {"value": JSON_OF_MYSQL})
    assert refused.value.record == 1


def test_many_records_go_in_by_several_statements(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "STATEMENT_BYTES", 200)
    values = [f"{n:05}" for n in range(1000)] + ["x" * 255]
    place.sink().commit(place.pre_commit(values))
    assert place.values() == values


@pytest.mark.parametrize("length", [1, 9, 10, 11, 19, 20, 21, 1000])
def test_no_record_is_left_out_or_doubled_between_statements(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "STATEMENT_BYTES", 64 + length)
    given = pa.array([b"(%d)" % n for n in range(50)], pa.large_binary())
    made = list(rows.statements(b"", given, b"", 1 << 24))
    assert b",".join(made) == b",".join(given.to_pylist())
    assert all(made)


def test_a_record_that_is_longer_than_the_servers_packets_is_refused_with_its_place(place: Place) -> None:
    place.create("value LONGTEXT")
    with pytest.raises(RecordRefused, match="max_allowed_packet") as refused:
        place.pre_commit(["a", "x" * (17 << 20)])
    assert refused.value.record == 1


def test_what_the_server_fills_in_may_be_left_out(place: Place) -> None:
    place.create(
        "amount INT, n INT AUTO_INCREMENT PRIMARY KEY, day DATETIME NOT NULL DEFAULT now(), word VARCHAR(5) NOT NULL"
        " DEFAULT '', two INT AS (2) STORED, x INT"
    )
    schema = pa.schema([("amount", pa.int32())])
    place.sink().validate(schema)
    place.sink().commit(place.pre_commit({"amount": pa.array([1], pa.int32())}))
    assert place.ask("SELECT amount, n, word, two, x FROM {}") == [(1, 1, "", 2, None)]


MAYBE_SECRET = pa.array(["fine", "secret"], pa.string())


@pytest.mark.parametrize(
    ("column", "values", "rule"),
    [
        ("VARCHAR(9) NOT NULL", pa.array(["fine", None]), "the column is NOT NULL"),
        ("TIMESTAMP(6) NOT NULL", pa.array([MOMENT, None], pa.timestamp("us", "UTC")), "the column is NOT NULL"),
        ("BIGINT AUTO_INCREMENT UNIQUE", pa.array([1, None], pa.int64()), "the column is NOT NULL"),
        ("VARCHAR(9) CHECK (value <> 'secret')", MAYBE_SECRET, r"error 4025: CHECK"),
        ("VARCHAR(5)", MAYBE_SECRET, r"error 1406: too long"),
        ("VARCHAR(6)", pa.array(["fine", "secret  "]), r"error 1265: the value would be changed"),
        ("CHAR(9)", pa.array(["fine", "secret "]), "a CHAR does not keep that"),
        ("BIGINT UNSIGNED", pa.array([7, -1], pa.int64()), "error 1264: out of range"),
        ("BIGINT UNSIGNED", pa.array([1, 2**64], pa.decimal128(20, 0)), "error 1264: out of range"),
        ("INT, n INT AS (10 DIV value) STORED", pa.array([1, 0], pa.int32()), "error 1365: division by zero"),
        ("BINARY(3)", pa.array([b"abc", b"ab"]), "which would pad it"),
        ("BINARY(3)", pa.array([b"abc", b"abcd"]), "error 1406: too long"),
        ("ENUM('2', 'it''s')", pa.array(["it's", "1"]), "the ENUM has no such text"),
        ("ENUM('a', 'b')", pa.array(["a", "B"]), "the ENUM has no such text"),
        (
            "UUID",
            pa.array(["00000000-0000-0000-0000-00000000000a", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"]),
            "lower case",
        ),
        ("UUID", pa.array(["00000000-0000-0000-0000-000000000001", "secret"]), "lower case"),
        ("JSON", pa.array(["[]", "secret"]), "error 4025: CHECK"),
        ("VARCHAR(9) CHARACTER SET latin1", pa.array(["fine", "secret世"]), "error 1366: incorrect value"),
        ("VARCHAR(9)", unchecked_text(b"fine", b"secret\xff"), "text that is not UTF-8"),
        ("DOUBLE", pa.array([1.0, float("nan")]), r"error 1\d+: "),
        ("DOUBLE", pa.array([1.0, float("-inf")]), r"error 1\d+: "),
        ("DATE", pa.array([0, 3_663_000], pa.int32()).cast(pa.date32()), "outside of the years 1 to 9999"),
        ("DATE", pa.array([0, -719_163], pa.int32()).cast(pa.date32()), "outside of the years 1 to 9999"),
        ("DATETIME(6)", pa.array([0, 3 * 10**17], pa.timestamp("us")), "outside of the years 1 to 9999"),
        ("TIMESTAMP(6)", pa.array([MOMENT, MOMENT.replace(year=1969)], pa.timestamp("us", "UTC")), r"error 1292"),
    ],
)
def test_a_value_that_the_table_does_not_hold_is_refused_without_being_shown_and_can_be_left_out(
    column: str, values: pa.Array, rule: str, place: Place
) -> None:
    place.create(f"value {column}")
    place.sink().validate(pa.schema([("value", values.type)]))
    with pytest.raises(RecordRefused, match=rule) as refused:
        place.vote(pa.record_batch({"value": values}))
    assert "secret" not in "".join(traceback.format_exception(refused.value))
    assert refused.value.column in ("value", None)
    assert place.prepared() == []
    vote, positions = place.vote_without_bad({"value": values})
    assert positions == [1]
    place.sink().commit(vote)
    assert place.ask("SELECT count(*) FROM {}") == [(1,)]


def test_a_column_is_named_by_the_server_and_by_no_value(place: Place) -> None:
    place.create("value VARCHAR(3), other VARCHAR(3)")
    with pytest.raises(RecordRefused) as refused:
        place.vote(pa.record_batch({"value": ["a"], "other": ["for column 'value'"]}))
    assert refused.value.column == "other"


RAISING = """
    CREATE TRIGGER {database}.refuse BEFORE INSERT ON {database}.orders FOR EACH ROW
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no secret'
"""


def test_a_trigger_refuses_a_record(place: Place) -> None:
    value = "secret"[::-1]  # the source of this test is in the traceback
    place.ask(RAISING.replace("{database}", place.database))
    with pytest.raises(RecordRefused, match="error 1644: a trigger has refused it") as refused:
        place.pre_commit([value])
    assert value not in "".join(traceback.format_exception(refused.value))


@pytest.mark.variants
@pytest.mark.parametrize("upsert_by", ["", "value"], ids=["insert", "upsert"])
def test_a_partition_that_is_missing_can_be_created_and_the_batch_run_again(upsert_by: str, place: Place) -> None:
    place.ask("DROP TABLE {}")
    place.ask(
        "CREATE TABLE {} (value INT PRIMARY KEY) ENGINE=InnoDB PARTITION BY RANGE (value)"
        " (PARTITION low VALUES LESS THAN (10))"
    )
    records = {"value": pa.array([4711], pa.int32())}
    with pytest.raises(RoundAborted, match=r"1526, no partition.*Create the partition") as aborted:
        place.pre_commit(records, upsert_by=upsert_by)
    assert "4711" not in str(aborted.value)
    place.ask("ALTER TABLE {} ADD PARTITION (PARTITION high VALUES LESS THAN MAXVALUE)")
    place.sink().commit(place.pre_commit(records, Round(2, 0), upsert_by=upsert_by))
    assert place.ask("SELECT value FROM {}") == [(4711,)]


@pytest.mark.parametrize("engine", ["MyISAM", "Aria"])
def test_a_table_that_writes_at_once_is_refused_before_anything_is_written(engine: str, place: Place) -> None:
    place.ask(f"ALTER TABLE {{}} ENGINE={engine}")
    with pytest.raises(ConfigurationError, match=rf"has the engine {engine}.*ENGINE=InnoDB"):
        place.sink().validate(pa.schema({"value": pa.string()}))


def test_a_view_is_refused(place: Place) -> None:
    place.ask(f"CREATE VIEW {place.database}.seen AS SELECT * FROM {{}}")  # noqa: S608
    with pytest.raises(ConfigurationError, match=r"does not exist or is a view\. Create the table"):
        place.sink(table="seen").validate(pa.schema({"value": pa.string()}))


@pytest.mark.long
def test_a_type_stays_as_it_is_until_its_records_are_committed(place: Place) -> None:
    place.create("value DATETIME(6)")
    vote = place.pre_commit({"value": pa.array([LOCAL], pa.timestamp("us"))})
    with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
        place.ask(
            "SET STATEMENT lock_wait_timeout = 1, innodb_lock_wait_timeout = 1 FOR ALTER TABLE {} MODIFY value DATETIME"
        )
    place.sink().commit(vote)
    assert place.ask("SELECT value FROM {}") == [(LOCAL,)]
