"""Which columns a record is made of, and what is refused before anything is written."""

import re
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from twopc.errors import SchemaMismatch
from twopc_kafka.columns import check_columns, records

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
TEXT_OR_BYTES = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]

ACCEPTED = [
    *(("value", kind) for kind in TEXT_OR_BYTES),
    *(("key", kind) for kind in TEXT_OR_BYTES),
    ("topic", pa.string()),
    ("topic", pa.large_string()),
    ("partition", pa.int32()),
    ("headers", pa.list_(HEADER)),
    ("headers", pa.large_list(HEADER)),
    ("headers", pa.list_(pa.struct([("value", pa.large_binary()), ("key", pa.large_string())]))),
    *(("timestamp", pa.timestamp(unit, zone)) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
]

REFUSED = [
    *((name, kind) for name in ("value", "key") for kind in (pa.int64(), pa.null(), pa.binary(4), HEADER)),
    ("value", pa.dictionary(pa.int32(), pa.string())),
    ("topic", pa.binary()),
    ("topic", pa.int32()),
    ("partition", pa.int64()),
    ("partition", pa.int16()),
    ("partition", pa.string()),
    ("headers", pa.string()),
    ("headers", HEADER),
    ("headers", pa.list_(pa.string())),
    ("headers", pa.list_(pa.struct([("key", pa.string())]))),
    ("headers", pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))),
    ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))),
    ("headers", pa.map_(pa.string(), pa.binary())),
    ("timestamp", pa.int64()),
    ("timestamp", pa.date32()),
    ("timestamp", pa.string()),
]


def schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(({"value": pa.string()} | columns).items()))


def test_a_column_of_a_fitting_type_is_accepted() -> None:
    for name, kind in ACCEPTED:
        check_columns(schema(**{name: kind}), "orders")


def test_a_column_of_another_type_is_refused_by_its_name_and_type() -> None:
    for name, kind in REFUSED:
        with pytest.raises(SchemaMismatch, match=f"column '{name}' is ") as refused:
            check_columns(schema(**{name: kind}), "orders")
        assert str(kind) in str(refused.value)


WRONG_IN_SPARK = [
    ("value", "1"),
    ("value", "null"),
    ("value", "map('a', 1)"),
    ("value", "array(1)"),
    ("key", "named_struct('a', 1)"),
    ("topic", "CAST('orders' AS BINARY)"),
    ("partition", "1L"),
    ("partition", "'1'"),
    ("timestamp", "'2013-01-01 10:00:00'"),
    ("timestamp", "1357034400000L"),
    ("timestamp", "date'2013-01-01'"),
    ("headers", "map('a', CAST('b' AS BINARY))"),
    ("headers", "map(1, 2)"),
    ("headers", "named_struct('key', 'a', 'value', 'b')"),
    ("headers", "array(named_struct('key', 'a', 'value', 'b'))"),
    ("headers", "array(named_struct('key', 'a'))"),
    ("headers", "array('a')"),
    ("headers", "'a'"),
]


def test_the_advised_conversion_makes_a_column_that_fits(spark: SparkSession) -> None:
    columns = [f"{expression} AS c{number}" for number, (_, expression) in enumerate(WRONG_IN_SPARK)]
    wrong = spark.sql(f"SELECT {', '.join(columns)}").toArrow().schema
    conversions: list[str] = []
    for (name, expression), kind in zip(WRONG_IN_SPARK, wrong.types, strict=True):
        with pytest.raises(SchemaMismatch) as refused:
            check_columns(schema(**{name: kind}), "orders")
        [advised] = re.findall(r"for example with '(.*)'\.", refused.value.message)
        conversions.append(f"(SELECT {advised} FROM (SELECT {expression} AS {name})) AS c{len(conversions)}")  # noqa: S608
    converted = spark.sql(f"SELECT {', '.join(conversions)}").toArrow()
    for (name, _), kind in zip(WRONG_IN_SPARK, converted.schema.types, strict=True):
        check_columns(schema(**{name: kind}), "orders")
    assert converted.num_rows == 1


def test_an_unknown_column_is_written_by_the_advised_conversion(spark: SparkSession) -> None:
    wrong = spark.sql("SELECT 1 AS id, 2.5 AS amount")
    with pytest.raises(SchemaMismatch) as refused:
        check_columns(wrong.toArrow().schema, "orders")
    [advised] = re.findall(r"for example with '(.*)'\.", refused.value.message)
    converted = wrong.selectExpr(advised).toArrow()
    check_columns(converted.schema, "orders")
    assert converted["value"].to_pylist() == ['{"id":1,"amount":2.5}']


def test_an_unknown_column_is_refused_by_its_name() -> None:
    with pytest.raises(SchemaMismatch, match=r"no column 'amount'.*value, key, topic, partition, headers, timestamp"):
        check_columns(schema(amount=pa.int64()), "orders")


def test_a_missing_value_is_refused_and_the_message_says_what_is_there() -> None:
    with pytest.raises(SchemaMismatch, match=r"needs a column 'value'.*it got key"):
        check_columns(pa.schema([("key", pa.string())]), "orders")


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = pa.schema([("value", pa.string()), ("key", pa.string()), ("key", pa.string())])
    with pytest.raises(SchemaMismatch, match="column 'key' occurs 2 times"):
        check_columns(twice, "orders")


def test_without_the_option_a_topic_column_is_needed() -> None:
    with pytest.raises(SchemaMismatch, match="option 'topic' or a column 'topic'"):
        check_columns(schema(), None)
    check_columns(schema(topic=pa.string()), None)


def as_produced(batch: pa.RecordBatch, topic: str | None = "orders") -> list[tuple[Any, ...]]:
    return list(records(batch, topic))


def test_a_record_is_topic_value_and_key() -> None:
    batch = pa.record_batch({"key": ["k", None, ""], "value": [b"v", None, b""]})
    assert as_produced(batch) == [("orders", b"v", b"k"), ("orders", None, None), ("orders", b"", b"")]


def test_the_option_topic_wins_over_the_column_as_with_sparks_own_sink() -> None:
    batch = pa.record_batch({"value": ["v"], "topic": pa.array([None], pa.string())})
    assert as_produced(batch) == [("orders", b"v", None)]


def test_without_the_option_each_record_goes_to_the_topic_it_names() -> None:
    batch = pa.record_batch({"value": ["v", "w"], "topic": ["a", "b"]})
    assert [record[0] for record in as_produced(batch, None)] == ["a", "b"]


def test_a_timestamp_of_any_unit_is_told_in_milliseconds_since_the_epoch() -> None:
    moment = datetime(2013, 1, 1, 10, 0, 0, 999_999, tzinfo=timezone.utc)
    for unit, expected in (("s", 1_357_034_400_000), ("ms", 1_357_034_400_999), ("ns", 1_357_034_400_999)):
        column = pa.array([moment], pa.timestamp("us", "UTC")).cast(pa.timestamp(unit, "UTC"), safe=False)
        assert as_produced(pa.record_batch({"value": ["v"], "timestamp": column}))[0][6] == expected
