"""Protobuf in the format of a schema registry: Confluent's clients read what Spark writes, and the other way round."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyspark
import pytest
from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import Row, SparkSession

from tests.spark import test_registry as of_avro
from tests.spark.test_registry import CONTEXT, SUBJECT
from tests.support.maven import maven_jar
from twopc.errors import ConfigurationError
from twopc_kafka import registry
from twopc_kafka.registry.protobuf_schemas import Message
from twopc_kafka_broker.errors import JarsNotAvailable


@pytest.fixture(scope="module")
def package() -> str:
    version = pyspark.__version__
    try:
        return str(maven_jar(f"spark-protobuf-{version}", "org.apache.spark", "spark-protobuf_2.13", version))
    except JarsNotAvailable:
        pytest.skip(f"needs org.apache.spark:spark-protobuf_2.13:{version}, which no reached Maven repository has")


class Both(of_avro.Both):
    """A session with the package that users add by ``--packages``, and a registry."""

    schema_type = "PROTOBUF"
    encode = staticmethod(registry.to_protobuf)
    decode = staticmethod(registry.from_protobuf)

    def __post_init__(self) -> None:
        pass  # A test needs no package, or has the fixture of it.

    def serializer(self, kind: Any) -> Any:
        """Return Confluent's serializer, which registers a base64 descriptor."""
        return ProtobufSerializer(kind, self.schemas)


@pytest.fixture
def without(spark: SparkSession) -> Both:
    """What needs no package."""
    return Both(spark, SchemaRegistryClient.new_client({"url": "mock://registry"}))


@pytest.fixture
def both(without: Both, package: str) -> Both:
    without.spark.sql(f"ADD JAR '{package}'")
    return without


def generated(source: str) -> Any:
    """Return the class of a file's first message, as protoc would generate it."""
    return GetMessageClass(Message.chosen({"orders.proto": source}, None).descriptor)


def order(fields: str, more: str = "") -> str:
    return f'syntax = "proto3"; {more} message Order {{ {fields} }}'


# The first, as no session of this process gets rid of the package.
def test_spark_without_the_package_is_refused_with_its_name(without: Both) -> None:
    for call in (without.written, lambda *_, schema: without.read(reader=schema)):
        with pytest.raises(ConfigurationError, match=r"org\.apache\.spark:spark-protobuf_2\.13:4\.[\d.]+: add it"):
            call("1L AS a", schema=order("int64 a = 1;"))
    assert without.schemas.get_subjects() == []


# Exact values. --------------------------------------------------------------------------------------------------------

WELL_KNOWN = 'import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";'
WHOLE = order(
    """
    bool yes = 1; int32 i32 = 2; sint32 s32 = 3; sfixed32 f32 = 4; int64 i64 = 5; sint64 s64 = 6; sfixed64 f64 = 7;
    uint32 u32 = 8; uint64 u64 = 9; float f = 10; double d = 11; string text = 12; bytes raw = 13;
    enum Kind { UNKNOWN = 0; LARGE = 1; } Kind kind = 14;
    google.protobuf.Timestamp at = 15; google.protobuf.Int64Value amount = 16; google.protobuf.StringValue name = 17;
    message Line { int32 n = 1; optional string note = 2; } repeated Line lines = 18; Line line = 19;
    map<string, sint64> rates = 20; map<int32, Line> by_number = 21; repeated string tags = 22;
    optional int32 no_zero = 23; oneof choice { string left = 24; int64 right = 25; } repeated Kind kinds = 26;
    """,
    WELL_KNOWN,
)
COLUMNS = """true AS yes, -2147483648 AS i32, -1 AS s32, 2147483647 AS f32, -9223372036854775808 AS i64, -1L AS s64,
    9223372036854775807L AS f64, 4294967295L AS u32, CAST('9223372036854775807' AS DECIMAL(20,0)) AS u64,
    1.5F AS f, -0.1D AS d, 'ä€😀' AS text, X'00ff' AS raw, 'LARGE' AS kind,
    timestamp'2024-01-01 12:00:00.123Z' AS at, 0L AS amount, CAST(NULL AS STRING) AS name,
    array(struct(0 AS n, CAST(NULL AS STRING) AS note), struct(1 AS n, '' AS note)) AS lines,
    struct(2 AS n, 'x' AS note) AS line, map('a', -5L) AS rates, map(7, struct(3 AS n, '' AS note)) AS by_number,
    array('x', '') AS tags, 0 AS no_zero, 'l' AS left, CAST(NULL AS BIGINT) AS right,
    array('LARGE', 'UNKNOWN') AS kinds"""
SMALLEST = -9223372036854775808


def test_every_value_is_read_by_confluents_deserializer_and_by_spark_as_it_was(both: Both) -> None:
    kind = generated(WHOLE)
    both.serializer(kind)(kind(), CONTEXT)  # registers it
    frame = both.spark.sql("SELECT " + COLUMNS.replace("-9223372036854775808 AS", f"CAST('{SMALLEST}' AS BIGINT) AS"))
    [value] = both.written(frame)
    found = ProtobufDeserializer(kind, schema_registry_client=both.schemas)(value, CONTEXT)
    expected = f"""{{
        "yes": true, "i32": -2147483648, "s32": -1, "f32": 2147483647, "i64": "{SMALLEST}", "s64": "-1",
        "f64": "9223372036854775807", "u32": 4294967295, "u64": "9223372036854775807", "f": 1.5, "d": -0.1,
        "text": "ä€😀", "raw": "AP8=", "kind": "LARGE", "at": "2024-01-01T12:00:00.123Z", "amount": "0",
        "lines": [{{}}, {{"n": 1, "note": ""}}], "line": {{"n": 2, "note": "x"}}, "rates": {{"a": "-5"}},
        "by_number": {{"7": {{"n": 3, "note": ""}}}}, "tags": ["x", ""], "no_zero": 0, "left": "l",
        "kinds": ["LARGE", "UNKNOWN"]
    }}"""
    assert MessageToDict(found, preserving_proto_field_name=True) == json.loads(expected)
    assert both.read(value) == [frame.first()]


def test_what_confluents_serializer_writes_is_read_as_it_was(both: Both) -> None:
    kind = generated(WHOLE)
    given = kind(u64=2**64 - 1, u32=2**32 - 1, lines=[{"n": 1}], rates={"a": SMALLEST}, no_zero=0)
    given.at.FromDatetime(datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc))
    serialize = both.serializer(kind)
    first, second = both.read(serialize(given, CONTEXT), serialize(kind(), CONTEXT))
    assert (first.u64, first.u32, first.rates) == (Decimal(2**64 - 1), 2**32 - 1, {"a": SMALLEST})
    assert (first.lines, first.no_zero, first.amount) == ([Row(n=1, note=None)], 0, None)
    assert first.at.timestamp() == pytest.approx(-1e-6, abs=1e-9)
    assert (second.i32, second.text, second.kind, second.tags) == (0, "", "UNKNOWN", [])
    assert (second.no_zero, second.at, second.line, second.left) == (None, None, None, None)


def test_null_stays_null_and_a_struct_of_nulls_does_not(both: Both) -> None:
    frame = both.spark.sql(
        "SELECT CAST(NULL AS STRUCT<a: INT>) AS o UNION ALL SELECT CAST(struct(NULL) AS STRUCT<a: INT>)"
    )
    written = both.written(frame, "o", schema=order("optional int32 a = 1;"))
    assert written == [None, b"\0\0\0\0\1\0"]
    assert both.read(*written) == [None, Row(a=None)]


# Messages. ------------------------------------------------------------------------------------------------------------

NESTED = """
syntax = "proto3"; package shop; import "money.proto";
message Key { int64 id = 1; }
message Order { message Line { Money price = 1; Kind kind = 2; enum Kind { A = 0; B = 1; } } repeated Line lines = 1; }
"""
MONEY = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'


def test_a_message_is_chosen_by_its_full_name_and_a_record_of_another_fails_by_name(both: Both) -> None:
    both.register(MONEY, "money")
    both.register(NESTED, SUBJECT, SchemaReference("money.proto", "money", 1))
    [key] = both.written("5L AS id")
    [line] = both.written("struct(7L AS cents) AS price, 'B' AS kind", message="shop.Order.Line")
    assert (key, line) == (b"\0\0\0\0\2\0\x08\5", b"\0\0\0\0\2\4\2\0\x0a\2\x08\7\x10\1")
    assert both.read(key) == [Row(id=5)]
    assert both.read(b"\0\0\0\0\2\2\0\x08\5") == [Row(id=5)]  # as other clients frame the first
    assert both.read(line, message="shop.Order.Line") == [Row(price=Row(cents=7), kind="B")]
    with pytest.raises(Exception, match=r"a record's message is not the schema's shop\.Key"):
        both.read(line)
    with pytest.raises(
        ConfigurationError, match=r"'orders-value': it has no message 'No', only these: shop\.Key, shop"
    ):
        both.written("5L AS id", message="No")


# What does not fit. ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "columns", "told"),
    [
        ("int64 a = 1;", "1 AS a", "orders-value[.]a: Spark's int does not fit the schema's int64"),
        ("uint64 a = 1;", "1L AS a", "Spark's bigint does not fit the schema's uint64"),
        ("fixed32 a = 1;", "1L AS a", "value[.]a: Protobuf's fixed32 is not supported"),
        ("google.protobuf.UInt64Value a = 1;", "1L AS a", "a: Protobuf's google.protobuf.UInt64Value is not supp"),
        ("map<int32, string> a = 1;", "map('a', 'b') AS a", "a{key}: Spark's string does not fit the schema's int32"),
    ],
)
def test_columns_that_do_not_fit_are_refused_with_the_field_and_both_types(
    without: Both, fields: str, columns: str, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        without.written(columns, schema=order(fields, WELL_KNOWN))
    assert without.schemas.get_subjects() == []


@pytest.mark.parametrize(
    ("fields", "columns", "told"),
    [
        ("int64 a = 1;", "nullif(1L, 1L) AS a", "orders-value[.]a is null, which the schema does not allow"),
        ("repeated int32 a = 1;", "nullif(array(1), array(1)) AS a", "orders-value[.]a is null"),
        ("repeated int32 a = 1;", "array(1, nullif(1, 1)) AS a", r"orders-value[.]a\[\] is null"),
        ("map<string, int32> a = 1;", "map('k', nullif(1, 1)) AS a", "orders-value[.]a{} is null"),
        (
            "message Line { int32 n = 1; } map<string, Line> a = 1;",
            "map('k', nullif(struct(1 AS n), struct(1 AS n))) AS a",
            "orders-value[.]a{} is null",
        ),
        ("string a = 1;", "CAST(X'ff' AS STRING) AS a", "orders-value[.]a has a value that is not UTF-8"),
        ("uint32 a = 1;", "-1L AS a", "a has a value that the schema's uint32 can't hold exactly"),
        ("repeated uint32 a = 1;", "array(4294967296L) AS a", r"a\[\] has a value that the schema's uint32"),
        ("uint64 a = 1;", "CAST(-1 AS DECIMAL(20,0)) AS a", "a has a value that the schema's uint64"),
        ("google.protobuf.Timestamp a = 1;", "timestamp'2024-01-01 00:00:00.0001' AS a", "a has a value"),
        ("google.protobuf.Timestamp a = 1;", "timestamp'1969-12-31 23:59:59.5Z' AS a", "a has a value"),
        ("enum E { A = 0; } E a = 1;", "'B' AS a", "(?i)enum"),
        ("oneof c { int32 a = 1; int32 b = 2; }", "1 AS a, 2 AS b", r"value has several of \['a', 'b'\]"),
    ],
)
def test_a_value_that_the_schema_can_not_hold_is_refused_by_its_field(
    both: Both, fields: str, columns: str, told: str
) -> None:
    with pytest.raises(Exception, match=told):
        both.written(columns, schema=order(fields, WELL_KNOWN))


def test_fields_are_matched_by_name_and_one_without_a_column_is_not_set(both: Both) -> None:
    fields = order("int32 a = 1; optional string b = 2; oneof c { int32 d = 3; int32 e = 4; } repeated int32 f = 5;")
    written = both.written("nullif(1, 1) AS e, 'x' AS b, 2 AS d", schema=fields)
    assert both.read(*written) == [Row(a=0, b="x", d=2, e=None, f=[])]
    needed = 'syntax = "proto2"; message Order { required int32 a = 1; optional int32 b = 2; }'
    with pytest.raises(ConfigurationError, match=r"no columns for \['a'\], which can't be left out"):
        both.written("1 AS b", schema=needed, subject="old")
    [value] = both.written("1 AS a", schema=needed, subject="old")
    assert both.read(value, subject="old") == [Row(a=1, b=None)]
    assert both.schemas.get_subjects() == [SUBJECT, "old"]


# Ids. -----------------------------------------------------------------------------------------------------------------


def test_each_record_is_read_by_the_schema_of_its_own_id(both: Both) -> None:
    schemas = ("int64 a = 1;", "int64 a = 1; int32 b = 2;", "int64 a = 1; int32 b = 2; optional string c = 3;")
    columns = ("1L AS a", "2L AS a, 2 AS b", "3L AS a, 3 AS b, 'c' AS c")
    records = [both.written(*each, schema=order(fields))[0] for fields, *each in zip(schemas, columns, strict=True)]
    assert both.read(*records) == [Row(a=1, b=0, c=None), Row(a=2, b=2, c=None), Row(a=3, b=3, c="c")]
    assert both.read(*records, reader=order(schemas[0])) == [Row(a=1), Row(a=2), Row(a=3)]


def test_a_schema_that_spark_would_not_read_exactly_is_refused(without: Both) -> None:
    without.register(order("fixed32 a = 1;"))
    with pytest.raises(ConfigurationError, match=r"Order\.a: Protobuf's fixed32 is not supported"):
        without.read()


def test_a_record_that_can_not_be_read_exactly_fails_by_its_id_and_others_are_read(both: Both) -> None:
    [old] = both.written("1L AS a", schema=order("int64 a = 1;"))
    [new] = both.written("'x' AS a", schema=order("string a = 1;"))
    assert both.read(new) == [Row(a="x")]
    with pytest.raises(Exception, match=r"with the schema id 1 can't be read: Order\.a: int64 would be read as string"):
        both.read(old)
    with pytest.raises(Exception, match="a record has the schema id 9, which subject orders-value did not have"):
        both.read(b"\0\0\0\0\x09\0")
    with pytest.raises(Exception, match="Job aborted"):
        both.read(new[:-1])


@pytest.mark.long
def test_protobuf_works_through_spark_connect(client: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client.sql(f"ADD JAR '{package}'")
    both = Both(client, SchemaRegistryClient.new_client({"url": "mock://registry"}))
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # as in a process that has no other session
    assert both.read(*both.written("1L AS a", schema=order("int64 a = 1;"))) == [Row(a=1)]


@pytest.mark.long
def test_a_real_registry_resolves_references_and_refuses_an_incompatible_schema(both: Both, apicurio: str) -> None:
    both.schemas = SchemaRegistryClient({"url": apicurio})
    both.register(MONEY, "money")
    schema = Schema(NESTED, "PROTOBUF", [SchemaReference("money.proto", "money", 1)])
    line = {"subject": "shop", "message": "shop.Order.Line"}
    written = both.written("struct(7L AS cents) AS price", schema=schema, **line)
    both.schemas = SchemaRegistryClient({"url": apicurio})
    assert both.read(*written, **line) == [Row(price=Row(cents=7), kind="A")]
    both.written("1L AS a", schema=order("int64 a = 1;"), subject="strict")
    both.schemas.set_config("strict", ServerConfig(compatibility=ConfigCompatibilityLevel.BACKWARD))
    with pytest.raises(ConfigurationError, match=r"the schema is not compatible .* \(409"):
        both.written("'x' AS a", schema=order("string a = 1;"), subject="strict")
    with pytest.raises(ConfigurationError, match="it does not have the subject, or not this schema"):
        both.written("1L AS b", schema=order("int64 b = 1;"), subject="strict", register=False)
