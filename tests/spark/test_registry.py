"""Values in the format of a schema registry: Confluent's own deserializers read what Spark's functions write, and the
other way round."""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.support.apicurio_server import ApicurioServer
from twopc.errors import ConfigurationError, Retriable
from twopc.spark import debezium
from twopc_kafka import registry
from twopc_kafka_broker.jars import maven_jar

pytestmark = pytest.mark.spark

CONTEXT = SerializationContext("orders", MessageField.VALUE)
SUBJECT = "orders-value"
UTC = timezone.utc
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def add_avro(spark: Any) -> Any:
    """Give a session the package that users add by ``--packages``."""
    version = spark.version
    spark.sql(f"ADD JAR '{maven_jar(f'spark-avro-{version}', 'org.apache.spark', 'spark-avro_2.13', version)}'")
    return spark


@pytest.fixture(scope="module")
def avro_spark(spark: SparkSession) -> SparkSession:
    added: SparkSession = add_avro(spark)
    return added


@pytest.fixture
def schemas() -> SchemaRegistryClient:
    return SchemaRegistryClient.new_client({"url": "mock://registry"})


def of_sql(spark: Any, *expressions: str) -> Any:
    return spark.sql(" UNION ALL ".join(f"SELECT {each}" for each in expressions))


def values(frame: Any, column: Any) -> list[Any]:
    return [None if row[0] is None else bytes(row[0]) for row in frame.select(column).collect()]


def read(frame: Any, column: Any) -> list[Any]:
    return [row[0] for row in frame.select(column).collect()]


def framed(spark: Any, *given: bytes | None) -> Any:
    return spark.createDataFrame([(each,) for each in given], "value BINARY")


def record(**fields: Any) -> str:
    parts = [{"name": name, **(kind if isinstance(kind, dict) else {"type": kind})} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "order", "fields": parts})


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": {"type": kind, "logicalType": name, **more}}


NULLABLE = {"type": ["null", "string"], "default": None}
AFTER_NULL = {"type": ["string", "null"], "default": ""}

# Exact values. --------------------------------------------------------------------------------------------------------

COLUMNS: Mapping[str, str] = {
    "yes": "BOOLEAN",
    "i8": "TINYINT",
    "i16": "SMALLINT",
    "i32": "INT",
    "i64": "BIGINT",
    "f": "DOUBLE",
    "text": "STRING",
    "raw": "BINARY",
    "day": "DATE",
    "at": "TIMESTAMP",
    "wall": "TIMESTAMP_NTZ",
    "price": "DECIMAL(9,2)",
    "large": "DECIMAL(38,10)",
    "tags": "ARRAY<STRING>",
    "rates": "MAP<STRING, DECIMAL(9,2)>",
    "inner": "STRUCT<x: INT, at: TIMESTAMP>",
}


def drawn(kind: str, draw: random.Random) -> Any:
    """Draw a value of one of the types of ``COLUMNS``, at and between its limits."""

    def number(bits: int) -> int:
        return draw.choice([-(1 << bits), (1 << bits) - 1, 0, draw.randrange(-(1 << bits), 1 << bits)])

    def digits(precision: int, scale: int) -> Decimal:
        most = 10**precision - 1
        unscaled = draw.choice([-most, most, draw.randrange(-most, most)])
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))

    at = EPOCH + timedelta(microseconds=draw.choice([-1, 0, 253_402_300_799_999_999, number(51)]))
    text = "".join(draw.choice('a"\\\0ä€😀') for _ in range(draw.randrange(5)))
    return {
        "BOOLEAN": draw.random() < 0.5,
        "TINYINT": number(7),
        "SMALLINT": number(15),
        "INT": number(31),
        "BIGINT": number(63),
        "DOUBLE": draw.choice([0.1, -0.0, 5e-324, 1.7976931348623157e308, float("inf"), draw.random()]),
        "STRING": text,
        "BINARY": text.encode(),
        "DATE": draw.choice([date.min, date.max, at.date()]),
        "TIMESTAMP": at,
        "TIMESTAMP_NTZ": at.replace(tzinfo=None),
        "DECIMAL(9,2)": digits(9, 2),
        "DECIMAL(38,10)": digits(38, 10),
        "ARRAY<STRING>": [text, None, ""][: draw.randrange(4)],
        "MAP<STRING, DECIMAL(9,2)>": {text: digits(9, 2), "none": None},
        "STRUCT<x: INT, at: TIMESTAMP>": {"x": None, "at": at},
    }[kind]


@pytest.mark.variants
@pytest.mark.parametrize("seed", range(3))
def test_every_value_is_read_by_confluents_deserializer_and_by_spark_as_it_was(
    avro_spark: SparkSession, schemas: SchemaRegistryClient, seed: int
) -> None:
    draw = random.Random(seed)  # noqa: S311  # values of tests
    rows = [
        {name: None if draw.random() < 0.1 else drawn(kind, draw) for name, kind in COLUMNS.items()} for _ in range(60)
    ]
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    frame = avro_spark.createDataFrame(rows, columns).coalesce(1)
    column = registry.to_avro(frame, F.struct("*"), subject=SUBJECT, registry=schemas)
    precisely = {f"timestamp{kind}Format": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS" for kind in ("", "NTZ")}
    written = frame.select(column, F.to_json(F.struct("*"), precisely)).collect()
    deserialize = AvroDeserializer(schemas)
    assert [deserialize(bytes(value), CONTEXT) for value, _ in written] == rows
    back = F.to_json(registry.from_avro("value", subject=SUBJECT, registry=schemas), precisely)
    after = read(framed(avro_spark, *(value for value, _ in written)), back)
    # A map has no order.
    assert [json.loads(row, parse_float=Decimal) for row in after] == [
        json.loads(before, parse_float=Decimal) for _, before in written
    ]


def test_a_generated_schema_has_null_first_and_by_default(
    avro_spark: SparkSession, schemas: SchemaRegistryClient
) -> None:
    frame = of_sql(avro_spark, "1L AS id, CAST(NULL AS STRING) AS note")
    registry.to_avro(frame, F.struct("*"), subject=SUBJECT, registry=schemas)
    generated = json.loads(str(schemas.get_latest_version(SUBJECT).schema.schema_str))
    assert generated["fields"] == [{"name": "id", "type": "long"}, {"name": "note", **NULLABLE}]
    odd = of_sql(avro_spark, "INTERVAL '1' DAY AS i")
    with pytest.raises(ConfigurationError, match=r"no type for interval"):
        registry.to_avro(odd, F.struct("*"), subject="odd", registry=schemas)


@pytest.mark.variants
@pytest.mark.parametrize("null", ["first", "last", "nowhere"])
def test_null_stays_null_and_a_struct_of_nulls_does_not(
    avro_spark: SparkSession, schemas: SchemaRegistryClient, null: str
) -> None:
    kind = "STRUCT<note: STRING>"
    frame = of_sql(avro_spark, f"CAST(NULL AS {kind}) AS o", f"CAST(struct(NULL) AS {kind})", "struct('x' AS note)")
    plain = json.loads(record(note=NULLABLE))
    schema: Any = {"first": ["null", plain], "last": [plain, "null"], "nowhere": plain}[null]
    column = registry.to_avro(frame, "o", subject=SUBJECT, registry=schemas, schema=json.dumps(schema))
    written = values(frame, column)
    decoded = [value and AvroDeserializer(schemas)(value, CONTEXT) for value in written]
    assert decoded == [None, {"note": None}, {"note": "x"}]
    if null != "nowhere":  # as other writers frame a null
        written[0] = written[1][:5] + bytes([2 * schema.index("null")])
    back = read(framed(avro_spark, *written), registry.from_avro("value", subject=SUBJECT, registry=schemas))
    assert back == [None, Row(note=None), Row(note="x")]


# What does not fit. ---------------------------------------------------------------------------------------------------

REGISTERED = record(id="long", note=NULLABLE, kind=AFTER_NULL, at="string")


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("1 AS id, 'x' AS at", r"orders-value\.id: Spark's int does not fit the schema's long"),
        ("1L AS id, 'x' AS at, 1 AS more", "no field for the column 'more'"),
        ("1L AS id", "no column for the field 'at', which can't be left out"),
        ("1L AS id, 'x' AS at, array('x') AS note", r"orders-value\.note: Spark's array<string> does not fit"),
        ("1BD AS id, 'x' AS at", r"orders-value\.id: Spark's decimal\(1,0\) does not fit"),
        ("1L AS id, 'x' AS at, 'x' AS at", "two columns have the name 'at'"),
    ],
)
def test_columns_that_do_not_fit_are_refused_with_the_field_and_both_types(
    avro_spark: SparkSession, schemas: SchemaRegistryClient, columns: str, told: str
) -> None:
    schemas.register_schema(SUBJECT, Schema(REGISTERED, "AVRO"))
    frame = of_sql(avro_spark, f"struct({columns}) AS o")
    with pytest.raises(ConfigurationError, match=told):
        registry.to_avro(frame, "o", subject=SUBJECT, registry=schemas)


def test_columns_are_matched_by_name_and_a_nullable_field_without_one_is_null(
    avro_spark: SparkSession, schemas: SchemaRegistryClient
) -> None:
    schemas.register_schema(SUBJECT, Schema(REGISTERED, "AVRO"))
    frame = of_sql(avro_spark, "nullif('noon', 'x') AS at, nullif('a', 'a') AS kind, 1L AS id")
    [value] = values(frame, registry.to_avro(frame, F.struct("*"), subject=SUBJECT, registry=schemas))
    assert AvroDeserializer(schemas)(value, CONTEXT) == {"id": 1, "note": None, "kind": None, "at": "noon"}


MS, LOCAL_MS = (logical("long", f"{of}timestamp-millis")["type"] for of in ("", "local-"))


@pytest.mark.variants
@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        ({"type": "array", "items": MS}, "array(timestamp'1969-12-31 23:59:59.0009Z')", r"value[.]x\[\] has a value"),
        ("string", "nullif('x', 'x')", "orders-value[.]x is null"),
        ({"type": "array", "items": "string"}, "array('x', nullif('x', 'x'))", r"orders-value[.]x\[\] is null"),
        ({"type": "map", "values": "int"}, "map('k', nullif(1, 1))", "orders-value[.]x{} is null"),
        (MS, "timestamp'2024-01-01 00:00:00.0001'", "orders-value[.]x has a value"),
        (LOCAL_MS, "timestamp_ntz'2024-01-01 00:00:00.0001'", "orders-value[.]x has a value"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "'B'", "(?i)enum"),
        ({"type": "fixed", "name": "F", "size": 2}, "X'00'", "(?i)fixed"),
    ],
)
def test_a_value_that_the_schema_can_not_hold_is_refused_by_its_field(
    avro_spark: SparkSession, schemas: SchemaRegistryClient, kind: Any, value: str, told: str
) -> None:
    frame = of_sql(avro_spark, f"{value} AS x")
    schema = record(x={"type": kind})
    encoded = registry.to_avro(frame, F.struct("x"), subject=SUBJECT, registry=schemas, schema=schema)
    with pytest.raises(Exception, match=told):
        values(frame, encoded)


@pytest.mark.parametrize("kind", [["int", "string"], logical("int", "time-millis")["type"], ["null", "order"]])
def test_types_that_spark_would_not_write_exactly_are_refused(
    avro_spark: SparkSession, schemas: SchemaRegistryClient, kind: Any
) -> None:
    with pytest.raises(ConfigurationError, match=r"orders-value\.x: .* not supported"):
        registry.to_avro(
            of_sql(avro_spark, "1 AS x"),
            F.struct("*"),
            subject=SUBJECT,
            registry=schemas,
            schema=record(x={"type": kind}),
        )
    assert schemas.get_subjects() == []


# Ids. -----------------------------------------------------------------------------------------------------------------

WRITERS = (
    record(a="int", b="string"),
    record(a="int", c={"type": "string", "default": ""}, b="string"),
    record(a="long", b="string"),
)
READER = record(a="long", b="string", c={"type": "string", "default": ""})


def written_by(schemas: SchemaRegistryClient, schema: Any, fields: Any, subject: str = SUBJECT) -> bytes:
    serialize: Any = AvroSerializer(schemas, schema, conf={"subject.name.strategy": lambda *_: subject})
    return bytes(serialize(fields, CONTEXT))


def of_three_writers(schemas: SchemaRegistryClient, subject: str = SUBJECT) -> list[bytes]:
    """A record by each of three writers, twice."""
    of_turn = [
        written_by(schemas, schema, {"a": number, "b": "b", "c": "c"}, subject) for number, schema in enumerate(WRITERS)
    ]
    return of_turn * 2


def test_each_record_is_read_by_the_schema_of_its_own_id(
    avro_spark: SparkSession, schemas: SchemaRegistryClient
) -> None:
    frame = framed(avro_spark, *of_three_writers(schemas), None)
    column = registry.from_avro("value", subject=SUBJECT, registry=schemas, reader=READER)
    expected = [Row(a=0, b="b", c=""), Row(a=1, b="b", c="c"), Row(a=2, b="b", c="")]
    assert read(frame, column) == [*expected * 2, None]


@pytest.mark.variants
@pytest.mark.parametrize(
    ("value", "told"),
    [
        (
            b"\0\0\0\x7b\x7b\0",
            "a record has the schema id 31611, which subject orders-value does not have: it has 1, 2, 3",
        ),
        (b"", "no schema id: it begins with the bytes 0x"),
        (b"\0\0\0", "no schema id: it begins with the bytes 0x000000"),
        (b"{}", "no schema id: it begins with the bytes 0x7B7D"),
    ],
)
def test_a_record_with_an_unknown_id_or_without_one_fails_by_name(
    avro_spark: SparkSession, schemas: SchemaRegistryClient, value: bytes, told: str
) -> None:
    of_three_writers(schemas)
    column = registry.from_avro("value", subject=SUBJECT, registry=schemas, reader=READER)
    with pytest.raises(Exception, match=told):
        read(of_sql(avro_spark, f"X'{value.hex()}' AS value"), column)


@pytest.mark.parametrize(
    ("writer", "reader", "told"),
    [
        (record(a="int"), record(z="long"), "id 1 can't be read: .*z"),
        (record(a=logical("long", "timestamp-millis")), record(a=logical("long", "timestamp-micros")), "field a: tim"),
        (
            record(a=logical("bytes", "decimal", precision=9, scale=2)),
            record(b={"aliases": ["a"], **logical("bytes", "decimal", precision=9, scale=3)}),
            r"field a: decimal\(9,2\) is read as decimal\(9,3\)",
        ),
        (record(a=logical("int", "date")), record(a="long"), "field a: date is read as a plain value"),
    ],
)
def test_a_schema_that_can_not_be_read_as_the_readers_is_refused_on_the_driver(
    avro_spark: SparkSession, schemas: SchemaRegistryClient, writer: str, reader: str, told: str
) -> None:
    schemas.register_schema(SUBJECT, Schema(writer, "AVRO"))
    with pytest.raises(ConfigurationError, match=told):
        registry.from_avro("value", subject=SUBJECT, registry=schemas, reader=reader)


def test_a_schema_may_refer_to_others(avro_spark: SparkSession, schemas: SchemaRegistryClient) -> None:
    money = json.dumps({"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]})
    schemas.register_schema("money", Schema(money, "AVRO"))
    uses = record(price="shop.Money", paid={"type": ["null", "shop.Money"], "default": None})
    schema = Schema(uses, "AVRO", [SchemaReference("shop.Money", "money", 1)])
    frame = of_sql(avro_spark, "struct(5L AS cents) AS price, struct(6L AS cents) AS paid")
    column = registry.to_avro(frame, F.struct("*"), subject=SUBJECT, registry=schemas, schema=schema)
    [value] = values(frame, column)
    assert AvroDeserializer(schemas)(value, CONTEXT) == {"price": {"cents": 5}, "paid": {"cents": 6}}
    back = registry.from_avro("value", subject=SUBJECT, registry=schemas)
    assert read(framed(avro_spark, value), back) == [Row(price=Row(cents=5), paid=Row(cents=6))]


def test_several_subjects_are_read_as_the_first_ones_newest(
    avro_spark: SparkSession, schemas: SchemaRegistryClient
) -> None:
    old = written_by(schemas, WRITERS[0], {"a": 1, "b": "x"}, "old")
    written_by(schemas, READER, {"a": 1, "b": "x", "c": ""}, "new")
    column = registry.from_avro("value", subject=["new", "old"], registry=schemas)
    assert read(framed(avro_spark, old), column) == [Row(a=1, b="x", c="")]


def test_avro_works_through_spark_connect(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    remote, mock = add_avro(client), SchemaRegistryClient.new_client({"url": "mock://registry"})
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # as in a process that has no other session
    frame = of_sql(remote, "1L AS id, array(timestamp'2024-01-01') AS at")
    column = registry.to_avro(frame, F.struct("*"), subject=SUBJECT, registry=mock)
    stored = frame.select(column.alias("value"))
    back = registry.from_avro("value", subject=SUBJECT, registry=mock)
    assert stored.select(back.alias("o")).selectExpr("o.id", "o.at[0] = timestamp'2024-01-01'").collect() == [(1, True)]


# The registry's answers. ----------------------------------------------------------------------------------------------


def test_an_unknown_schema_is_refused_and_a_registry_that_does_not_answer_is_asked_again(
    avro_spark: SparkSession, schemas: SchemaRegistryClient
) -> None:
    frame = of_sql(avro_spark, "1L AS id")
    with pytest.raises(ConfigurationError, match=r"refused subject 'orders-value': it does not have .* \(404"):
        registry.to_avro(
            frame, F.struct("*"), subject=SUBJECT, registry=schemas, schema=record(id="long"), register=False
        )
    with pytest.raises(ConfigurationError, match="is no Avro schema"):
        registry.to_avro(frame, F.struct("*"), subject=SUBJECT, registry=schemas, schema=record(id="no-type"))
    nobody = SchemaRegistryClient({"url": "http://key:secret-word@127.0.0.1:1", "max.retries": 0})
    with pytest.raises(Retriable, match="the schema registry did not answer") as raised:
        registry.to_avro(frame, F.struct("*"), subject=SUBJECT, registry=nobody)
    assert "secret-word" not in "".join(traceback.format_exception_only(raised.value))
    assert raised.value.__suppress_context__


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, java_home: str) -> Iterator[str]:
    with ApicurioServer(tmp_path_factory.mktemp("registry"), java_home) as server:
        yield server.url


@pytest.mark.long
def test_a_real_registry_refuses_an_incompatible_schema_and_keeps_deleted_ones(
    avro_spark: SparkSession, real: str
) -> None:
    client = SchemaRegistryClient({"url": real})
    frame = of_sql(avro_spark, "1L AS id, nullif('x', 'y') AS note")
    first = values(frame, registry.to_avro(frame, F.struct("id"), subject=SUBJECT, registry=client))
    client.set_config(SUBJECT, ServerConfig(compatibility=ConfigCompatibilityLevel.BACKWARD))
    wider = json.dumps(json.loads(record(id="long", note=NULLABLE)) | {"name": "orders_value"})
    column = registry.to_avro(frame, F.struct("*"), subject=SUBJECT, registry=client, schema=wider, normalize=True)
    written = first + values(frame, column)
    assert [AvroDeserializer(client)(each, CONTEXT) for each in written] == [{"id": 1}, {"id": 1, "note": "x"}]
    narrow = json.dumps(json.loads(record(id="long", z="int")) | {"name": "orders_value"})
    with pytest.raises(ConfigurationError, match=r"the schema is not compatible .* \(409"):
        registry.to_avro(
            of_sql(avro_spark, "1L AS id, 1 AS z"), F.struct("*"), subject=SUBJECT, registry=client, schema=narrow
        )
    other = record(id={"type": ["null", "long"], "default": None})
    with pytest.raises(ConfigurationError, match="it does not have the subject, or not this schema"):
        registry.to_avro(frame, F.struct("id"), subject=SUBJECT, registry=client, schema=other, register=False)
    client.delete_version(SUBJECT, 1)
    back = registry.from_avro("value", subject=SUBJECT, registry=SchemaRegistryClient({"url": real}))
    assert read(framed(avro_spark, *written), back) == [Row(id=1, note=None), Row(id=1, note="x")]


# JSON. ----------------------------------------------------------------------------------------------------------------

ORDER = {
    "title": "order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "rate": {"type": ["number", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["id"],
    "additionalProperties": False,
}
NOON = "timestamp'2024-01-01 12:00:00.000001Z' AS at"


def test_json_is_read_by_confluents_deserializer(avro_spark: SparkSession, schemas: SchemaRegistryClient) -> None:
    frame = of_sql(avro_spark, f"struct(1L AS id, nullif('x', 'x') AS note, 1.10BD AS rate, {NOON}) AS o", "NULL")
    column = registry.to_json_schema(frame, "o", subject=SUBJECT, registry=schemas, schema=json.dumps(ORDER))
    first, second = values(frame, column)
    assert second is None
    assert JSONDeserializer(json.dumps(ORDER), schema_registry_client=schemas)(first, CONTEXT) == {
        "id": 1,
        "note": None,
        "rate": 1.1,
        "at": "2024-01-01T12:00:00.000001Z",
    }
    assert b'"rate":1.10' in first


@pytest.mark.parametrize(
    ("change", "columns", "told"),
    [
        ({}, "1.0D AS id", "orders-value[.]id: Spark's double does not fit the schema's integer"),
        ({}, "1 AS id, 1 AS more", "no field for the column 'more'"),
        ({}, "'x' AS note", "no column for the field 'id'"),
        ({}, "1 AS id, 'x' AS at", "orders-value[.]at: Spark's string does not fit"),
        (
            {"id": {"type": "integer", "minimum": 0}},
            "1 AS id",
            "orders-value[.]id: the rule 'minimum' is not supported",
        ),
        ({"id": {"type": ["integer", "string"]}}, "1 AS id", "without exactly one type"),
        ({}, "nullif(1, 1) AS id", "id is null"),
        ({}, "1 AS id, double('NaN') AS rate", "rate has a value"),
        ({}, "1 AS id, array('x', nullif('x', 'x')) AS tags", r"tags\[\] is null"),
    ],
)
def test_what_a_json_schema_does_not_allow_or_spark_does_not_check_is_refused(
    avro_spark: SparkSession, schemas: SchemaRegistryClient, change: Any, columns: str, told: str
) -> None:
    schema = json.dumps(ORDER | {"properties": {**ORDER["properties"], **change}})  # type: ignore[dict-item]
    frame = of_sql(avro_spark, columns)
    with pytest.raises(Exception, match=told):
        values(frame, registry.to_json_schema(frame, F.struct("*"), subject=SUBJECT, registry=schemas, schema=schema))


# Debezium. ------------------------------------------------------------------------------------------------------------


def named(kind: str, name: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": name} | more


PRICE = named("bytes", "org.apache.kafka.connect.data.Decimal") | {
    "logicalType": "decimal",
    "precision": 9,
    "scale": 2,
    "connect.parameters": {"scale": "2"},
}
SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [{"name": "connector", "type": "string"}, {"name": "lsn", "type": ["null", "long"], "default": None}],
}


def envelope(*columns: dict[str, Any]) -> str:
    row = {"type": "record", "name": "Value", "fields": columns}
    fields = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": SOURCE},
        {"name": "op", "type": "string"},
    ]
    return json.dumps({"type": "record", "name": "Envelope", "namespace": "shop.docs", "fields": fields})


ID, DAY = {"name": "id", "type": "int"}, {"name": "day", "type": ["null", named("int", "io.debezium.time.Date")]}
KEY = json.dumps({"type": "record", "name": "Key", "namespace": "shop.docs", "fields": [ID]})
OLD = envelope(ID, DAY)
NEW = envelope(ID, DAY, {"name": "price", "type": ["null", PRICE], "default": None})
"""As before and after ALTER TABLE."""


def changes(spark: SparkSession, schemas: SchemaRegistryClient, *given: tuple[str, str, int, dict[str, Any]]) -> Any:
    """Return changes, each by its schema, operation, position and row, as Spark reads them from Kafka."""
    rows: list[tuple[Any, ...]] = []
    for schema, op, lsn, row in given:
        source = {"connector": "postgresql", "lsn": lsn}
        value = {"op": op, "source": source, "before": row if op == "d" else None, "after": None if op == "d" else row}
        key = written_by(schemas, KEY, {"id": row["id"]}, "docs-key")
        rows.append((key, written_by(schemas, schema, value, "docs-value"), "docs", 0, lsn))
    rows.append((*rows[-1][:1], None, "docs", 0, len(rows) + 1))  # what follows a delete
    frame = spark.createDataFrame(rows, "key BINARY, value BINARY, topic STRING, partition INT, offset LONG")
    columns = ("key", "value")
    return frame.withColumns(
        {name: registry.connect_json(name, subject=f"docs-{name}", registry=schemas) for name in columns}
    )


def test_debezium_in_avro_becomes_the_json_of_its_own_schema_with_that_schema(
    avro_spark: SparkSession, schemas: SchemaRegistryClient
) -> None:
    old = (OLD, "c", 1, {"id": 1, "day": -1})
    new = (NEW, "u", 2, {"id": 2, "day": None, "price": Decimal("-12.34")})
    found = changes(avro_spark, schemas, old, new).select("value").collect()
    first, second = (json.loads(row.value) for row in found[:2])
    assert found[2].value is None
    assert first["payload"]["after"] == {"id": 1, "day": -1}
    assert second["payload"]["after"] == {"id": 2, "day": None, "price": "+y4="}
    after = {field["field"]: field for field in second["schema"]["fields"]}["after"]
    assert after["optional"]
    assert after["fields"][1:] == [
        {"field": "day", "type": "int32", "optional": True, "name": "io.debezium.time.Date", "version": 1},
        {
            "field": "price",
            "type": "bytes",
            "optional": True,
            "version": 1,
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2"},
        },
    ]


@pytest.mark.long
def test_debezium_decodes_changes_in_avro_by_the_schemas_of_their_own_ids(
    avro_spark: SparkSession, schemas: SchemaRegistryClient
) -> None:
    given = changes(
        avro_spark,
        schemas,
        (OLD, "c", 1, {"id": 1, "day": -1}),
        (NEW, "u", 2, {"id": 2, "day": None, "price": Decimal("-12.34")}),
        (NEW, "d", 3, {"id": 3, "day": None, "price": None}),
    )
    found = debezium(given, key=["id"], schema="id INT, day DATE, price DECIMAL(9,2)", missing="null")
    assert sorted(tuple(row) for row in found.select("id", "_op", "day", "price").collect()) == [
        (1, "c", date(1969, 12, 31), None),
        (2, "u", None, Decimal("-12.34")),
        (3, "d", None, None),
    ]
