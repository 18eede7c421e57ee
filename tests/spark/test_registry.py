"""Values in the format of a schema registry: Confluent's own deserializers read what Spark's functions write, and the
other way round."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.support.apicurio_server import ApicurioServer
from twopc.errors import ConfigurationError, Retriable
from twopc_kafka import registry
from twopc_kafka_broker.jars import maven_jar

pytestmark = [pytest.mark.spark, pytest.mark.long]

CONTEXT = SerializationContext("orders", MessageField.VALUE)
SUBJECT = "orders-value"


@pytest.fixture(scope="module")
def avro_spark(spark: SparkSession) -> SparkSession:
    """The session of all tests, with the packages that users add by ``spark.jars.packages``."""
    for name in ("spark-avro", "spark-protobuf"):
        jar = maven_jar(f"{name}-{spark.version}", "org.apache.spark", f"{name}_2.13", spark.version)
        spark.sql(f"ADD JAR '{jar}'")
    return spark


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Any:
    return SchemaRegistryClient.new_client({"url": f"mock://{request.node.nodeid}"})


def written(frame: Any, column: Any) -> list[bytes | None]:
    return [None if row[0] is None else bytes(row[0]) for row in frame.select(column).collect()]


def record(**fields: Any) -> str:
    return json.dumps(
        {"type": "record", "name": "order", "fields": [{"name": n, **(t if "type" in t else {"type": t})}
         for n, t in fields.items()]}
    )  # fmt: skip


NULLABLE_STRING = {"type": ["null", "string"], "default": None}


def test_what_is_written_is_read_by_confluents_deserializer(avro_spark: SparkSession, client: Any) -> None:
    frame = avro_spark.createDataFrame(
        [(1, "x", Decimal("1.50"), ["a", None], {"k": 1.0}, ("in",)), (2, None, None, None, None, None)],
        "id BIGINT NOT NULL, note STRING, price DECIMAL(9,2), tags ARRAY<STRING>, rates MAP<STRING, DOUBLE>,"
        " inner STRUCT<name: STRING>",
    )
    column = registry.to_avro(frame, F.struct("*"), subject=SUBJECT, registry=client)
    [first, second] = written(frame, column)
    read = AvroDeserializer(client)
    assert read(first, CONTEXT) == {
        "id": 1,
        "note": "x",
        "price": Decimal("1.50"),
        "tags": ["a", None],
        "rates": {"k": 1.0},
        "inner": {"name": "in"},
    }
    assert read(second, CONTEXT) == {
        "id": 2, "note": None, "price": None, "tags": None, "rates": None, "inner": None
    }  # fmt: skip
    [of_subject] = [client.get_latest_version(SUBJECT)]
    assert first is not None
    assert first[:5] == b"\0" + of_subject.schema_id.to_bytes(4, "big")
    generated = json.loads(of_subject.schema.schema_str)
    assert generated["fields"][1] == {"name": "note", "type": ["null", "string"], "default": None}


def test_null_stays_null_and_a_struct_of_nulls_does_not(avro_spark: SparkSession, client: Any) -> None:
    frame = avro_spark.createDataFrame([(None,), ((None,),), (("x",),)], "order STRUCT<note: STRING>")
    for schema in (record(note=NULLABLE_STRING), json.dumps(["null", json.loads(record(note=NULLABLE_STRING))])):
        column = registry.to_avro(frame, "order", subject=f"s{len(schema)}", registry=client, schema=schema)
        values = written(frame, column)
        assert values[0] is None
        assert [AvroDeserializer(client)(value, CONTEXT) for value in values[1:]] == [{"note": None}, {"note": "x"}]
        back = frame.select(column.alias("value")).select(
            registry.from_avro("value", subject=f"s{len(schema)}", registry=client)
        )
        assert [row[0] for row in back.collect()] == [None, Row(note=None), Row(note="x")]


REGISTERED = record(id="long", note=NULLABLE_STRING, kind={"type": ["string", "null"], "default": ""}, at="string")


@pytest.mark.parametrize("null", [False, True])
def test_nullability_differs_between_spark_and_the_schema_and_only_a_null_where_there_is_none_is_refused(
    avro_spark: SparkSession, client: Any, null: bool
) -> None:
    client.register_schema(SUBJECT, Schema(REGISTERED, "AVRO"))
    rows = [(1, "a", "noon"), (2, None, None if null else "night")]
    frame = avro_spark.createDataFrame(rows, "id BIGINT, kind STRING, at STRING")
    column = registry.to_avro(
        frame, F.struct("at", F.lit("x").alias("note"), "kind", "id"), subject=SUBJECT, registry=client
    )
    if null:
        with pytest.raises(Exception, match=r"(?i)null"):
            written(frame, column)
        return
    assert [AvroDeserializer(client)(value, CONTEXT) for value in written(frame, column)] == [
        {"id": 1, "note": "x", "kind": "a", "at": "noon"},
        {"id": 2, "note": "x", "kind": None, "at": "night"},
    ]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("id INT, note STRING, at STRING", r"orders-value\.id: Spark's int does not fit Avro's \"long\""),
        ("id BIGINT, at STRING, more STRING", "no field for the column 'more'"),
        ("id BIGINT, note STRING", "no column for the field 'at', which can't be null"),
        ("id BIGINT, note ARRAY<STRING>, at STRING", r"orders-value\.note: Spark's array<string> does not fit"),
        ("id DECIMAL(9,2), at STRING", r"orders-value\.id: Spark's decimal\(9,2\) does not fit"),
    ],
)
def test_columns_that_do_not_fit_are_refused_with_the_field_and_both_types(
    avro_spark: SparkSession, client: Any, columns: str, told: str
) -> None:
    client.register_schema(SUBJECT, Schema(REGISTERED, "AVRO"))
    frame = avro_spark.createDataFrame([], columns)
    with pytest.raises(ConfigurationError, match=told):
        registry.to_avro(frame, F.struct("*"), subject=SUBJECT, registry=client)


def test_a_nullable_field_without_a_column_is_null(avro_spark: SparkSession, client: Any) -> None:
    client.register_schema(SUBJECT, Schema(REGISTERED, "AVRO"))
    frame = avro_spark.createDataFrame([(1, "noon")], "id BIGINT, at STRING")
    [value] = written(frame, registry.to_avro(frame, F.struct("*"), subject=SUBJECT, registry=client))
    assert AvroDeserializer(client)(value, CONTEXT) == {"id": 1, "note": None, "kind": None, "at": "noon"}


WRITERS = (
    record(a="int", b="string"),
    record(a="int", c={"type": "string", "default": ""}, b="string"),
    record(a="long", b="string"),
)
READER = record(a="long", b="string", c={"type": "string", "default": ""})


def framed(client: Any, subject: str = SUBJECT) -> list[bytes]:
    """Two records by each of three writers, shuffled."""
    values: list[bytes] = []
    for number, schema in enumerate(WRITERS):
        write: Any = AvroSerializer(client, schema, conf={"subject.name.strategy": lambda *_: subject})
        for turn in range(2):
            fields = {"a": 10 * number + turn, "b": f"b{number}", **({"c": "c"} if number == 1 else {})}
            values.insert(turn * number, bytes(write(fields, CONTEXT)))
    return values


def test_each_record_is_read_by_the_schema_of_its_own_id(avro_spark: SparkSession, client: Any) -> None:
    frame = avro_spark.createDataFrame([(bytearray(value),) for value in framed(client)], "value BINARY")
    column = registry.from_avro("value", subject=SUBJECT, registry=client, reader=READER)
    rows = sorted(tuple(row[0]) for row in frame.select(column).collect())
    assert rows == [(0, "b0", ""), (1, "b0", ""), (10, "b1", "c"), (11, "b1", "c"), (20, "b2", ""), (21, "b2", "")]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"\0\0\0\x7b\x7b\0", "begins with the bytes 0000007B7B"),
        (b"", "begins with the bytes [.]"),
        (b"\0\0\0", "begins with the bytes 000000[.]"),
        (b"{}", "begins with the bytes 7B7D"),
    ],
)
def test_a_value_of_an_unknown_id_or_without_one_fails_by_name(
    avro_spark: SparkSession, client: Any, value: bytes, told: str
) -> None:
    frame = avro_spark.createDataFrame([(bytearray(each),) for each in (*framed(client), value)], "value BINARY")
    column = registry.from_avro("value", subject=SUBJECT, registry=client, reader=READER)
    with pytest.raises(Exception, match=f"no id of a schema in subject {SUBJECT}: it {told}"):
        frame.select(column).collect()


def test_a_schema_that_the_reader_can_not_resolve_is_refused_before_anything_is_read(client: Any) -> None:
    framed(client)
    with pytest.raises(ConfigurationError, match=r"the schema of id \d+ in subject 'orders-value' can't be read"):
        registry.from_avro("value", subject=SUBJECT, registry=client, reader=record(z="long"))


JSON_SCHEMA = json.dumps({
    "title": "order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": ["string", "null"]}},
    "required": ["id"],
    "additionalProperties": False,
})  # fmt: skip


def test_json_is_framed_and_read_by_confluents_deserializer_and_back(avro_spark: SparkSession, client: Any) -> None:
    frame = avro_spark.createDataFrame([((1, None),), (None,)], "order STRUCT<id: BIGINT, note: STRING>")
    column = registry.to_json_schema(frame, "order", subject=SUBJECT, registry=client, schema=JSON_SCHEMA)
    [first, second] = written(frame, column)
    assert JSONDeserializer(JSON_SCHEMA, schema_registry_client=client)(first, CONTEXT) == {"id": 1, "note": None}
    assert second is None
    back = frame.select(column.alias("v")).select(registry.from_json_schema("v", "id BIGINT, note STRING"))
    assert [row[0] for row in back.collect()] == [Row(id=1, note=None), None]
    with pytest.raises(Exception, match="no id of a schema: it begins with 7B7D"):
        avro_spark.sql("SELECT CAST('{}' AS BINARY) AS v").select(registry.from_json_schema("v", "id BIGINT")).collect()
    wrong = avro_spark.createDataFrame([], "order STRUCT<note: STRING, more: STRING>")
    with pytest.raises(ConfigurationError, match="do not fit its schema: id, more"):
        registry.to_json_schema(wrong, "order", subject=SUBJECT, registry=client)


def proto_files() -> bytes:
    """Files as protoc would describe them: ``A``, ``B { C, D }`` and ``E``, of which ``D`` has a message of another
    file."""
    imported = FileDescriptorProto(name="shared/money.proto", package="shared", syntax="proto3")
    money = imported.message_type.add(name="Money")
    money.field.add(name="cents", number=1, type=FieldDescriptorProto.TYPE_INT64, label=1)
    file = FileDescriptorProto(name="sales.proto", package="sales", syntax="proto3", dependency=[imported.name])
    a, b, e = (file.message_type.add(name=name) for name in "ABE")
    for message in (a, e, *(b.nested_type.add(name=name) for name in "CD")):
        message.field.add(name="id", number=1, type=FieldDescriptorProto.TYPE_INT64, label=1)
    b.nested_type[1].field.add(
        name="price", number=2, type=FieldDescriptorProto.TYPE_MESSAGE, type_name=".shared.Money", label=1
    )
    return bytes(FileDescriptorSet(file=[imported, file]).SerializeToString())


@pytest.mark.parametrize(("message", "indexes"), [("A", "00"), ("B.D", "040202"), ("E", "0204")])
def test_protobuf_has_the_place_of_its_message_in_front_as_confluents_serializer_writes_it(
    avro_spark: SparkSession, client: Any, message: str, indexes: str
) -> None:
    files = FileDescriptorSet.FromString(proto_files())
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    of_message = GetMessageClass(pool.FindMessageTypeByName(f"sales.{message}"))
    price = ", price STRUCT<cents: BIGINT>" if message == "B.D" else ""
    frame = avro_spark.createDataFrame([((7, (5,)) if price else (7,),), (None,)], f"order STRUCT<id: BIGINT{price}>")
    column = registry.to_protobuf(
        frame, "order", subject=SUBJECT, registry=client, message=f"sales.{message}", descriptors=proto_files()
    )
    [first, second] = written(frame, column)
    assert first is not None
    assert second is None
    assert first[5:].startswith(bytes.fromhex(indexes))
    assert of_message.FromString(first[5 + len(indexes) // 2 :]).id == 7
    conf = {"use.deprecated.format": False}
    by_confluent = ProtobufSerializer(of_message, client, conf)(of_message(id=7), CONTEXT)
    assert by_confluent[5:].startswith(bytes.fromhex(indexes))
    if not price:
        assert by_confluent[5:] == first[5:]
    assert ProtobufDeserializer(of_message, conf, client)(first, CONTEXT).id == 7
    back = registry.from_protobuf("v", message=f"sales.{message}", descriptors=proto_files())
    assert [row[0] and row[0].id for row in frame.select(column.alias("v")).select(back).collect()] == [7, None]


@pytest.mark.parametrize(
    ("value", "told"), [("0000000001020008", 0), ("000000000100", None), ("0000000001020408", "0204"), ("7b", "7B")]
)
def test_protobuf_of_another_message_is_refused_and_both_forms_of_the_first_one_are_read(
    avro_spark: SparkSession, value: str, told: Any
) -> None:
    frame = avro_spark.createDataFrame([(bytearray.fromhex(value + ("07" if told == 0 else "")),)], "v BINARY")
    read = frame.select(registry.from_protobuf("v", message="sales.A", descriptors=proto_files()))
    if isinstance(told, str):
        with pytest.raises(Exception, match=f"a value is no sales.A of a schema registry: it begins with .*{told}"):
            read.collect()
    else:
        assert [row[0].id for row in read.collect()] == [7 if told == 0 else 0]


def test_a_message_that_is_not_described_and_a_column_that_it_lacks_are_refused(
    avro_spark: SparkSession, client: Any
) -> None:
    frame = avro_spark.createDataFrame([], "order STRUCT<id: BIGINT, more: STRING>")
    for message, told in (("sales.A", "no field for the column 'more'"), ("sales.Z", "no message 'sales.Z'")):
        with pytest.raises(ConfigurationError, match=told):
            registry.to_protobuf(
                frame, "order", subject=SUBJECT, registry=client, message=message, descriptors=proto_files()
            )


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, java_home: str) -> Iterator[dict[str, str]]:
    server = ApicurioServer(tmp_path_factory.mktemp("registry"), java_home)
    with server:
        yield {"url": server.url}


def test_a_real_registry_gives_ids_by_which_all_versions_are_read_also_deleted_ones(
    avro_spark: SparkSession, real: dict[str, str]
) -> None:
    client = SchemaRegistryClient(real)
    subject = "versions-value"
    client.set_compatibility(subject, "NONE")
    values = framed(client, subject)
    client.delete_version(subject, 1)
    frame = avro_spark.createDataFrame([(bytearray(value),) for value in values], "value BINARY")
    column = registry.from_avro("value", subject=subject, registry=real, reader=READER)
    rows = sorted(tuple(row[0]) for row in frame.select(column).collect())
    assert rows == [(0, "b0", ""), (1, "b0", ""), (10, "b1", "c"), (11, "b1", "c"), (20, "b2", ""), (21, "b2", "")]


def test_an_incompatible_schema_is_refused_before_anything_is_written(
    avro_spark: SparkSession, real: dict[str, str]
) -> None:
    subject = "strict-value"
    frame = avro_spark.createDataFrame([(1, "x")], "id BIGINT NOT NULL, note STRING")
    first = registry.to_avro(frame, F.struct("id"), subject=subject, registry=real)
    SchemaRegistryClient(real).set_compatibility(subject, "BACKWARD")
    wider = record(id="long", note=NULLABLE_STRING)
    [value] = written(frame, registry.to_avro(frame, F.struct("*"), subject=subject, registry=real, schema=wider))
    assert AvroDeserializer(SchemaRegistryClient(real))(value, CONTEXT) == {"id": 1, "note": "x"}
    with pytest.raises(ConfigurationError, match="the schema is not compatible with those that the subject has"):
        registry.to_avro(frame, F.struct("*"), subject=subject, registry=real, schema=record(id="long", note="int"))
    with pytest.raises(ConfigurationError, match="it does not have the subject, or not this schema"):
        registry.to_avro(
            frame, F.struct("id"), subject=subject, registry=real, schema=record(id="long", z="int"), register=False
        )
    assert len(written(frame, first)) == 1


def test_a_registry_that_does_not_answer_is_asked_again(avro_spark: SparkSession) -> None:
    frame = avro_spark.createDataFrame([], "id BIGINT")
    nobody = {"url": "http://127.0.0.1:1", "max.retries": 0}
    with pytest.raises(Retriable, match="the schema registry did not answer"):
        registry.to_avro(frame, F.struct("id"), subject=SUBJECT, registry=nobody)


def test_protobuf_and_what_it_imports_are_registered_in_order(avro_spark: SparkSession, real: dict[str, str]) -> None:
    frame = avro_spark.createDataFrame([((7, (5,)),)], "order STRUCT<id: BIGINT, price STRUCT<cents: BIGINT>>")
    subject = "protobuf-value"
    column = registry.to_protobuf(
        frame, "order", subject=subject, registry=real, message="sales.B.D", descriptors=proto_files()
    )
    [value] = written(frame, column)
    assert value is not None
    client = SchemaRegistryClient(real)
    assert {"shared/money.proto", subject} <= {*client.get_subjects()}
    assert client.get_latest_version(subject).schema_id == int.from_bytes(value[1:5], "big")
