"""Values in the format of a schema registry: Confluent's own deserializers read what Spark's functions write, and the
other way round."""

import contextlib
import json
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    RegisteredSchema,
    Rule,
    RuleKind,
    RuleMode,
    RuleSet,
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
from pyspark.sql.pandas.types import from_arrow_schema

from tests.support.maven import maven_jar
from twopc.errors import ConfigurationError, Retriable
from twopc.spark import debezium
from twopc.testing.values import drawn, edges, exact
from twopc_kafka import registry

CONTEXT = SerializationContext("orders", MessageField.VALUE)
SUBJECT = "orders-value"


@dataclass
class Both:
    """A session with the package that users add by ``--packages``, and a registry."""

    spark: Any
    schemas: SchemaRegistryClient

    schema_type = "AVRO"
    encode = staticmethod(registry.to_avro)
    decode = staticmethod(registry.from_avro)

    def __post_init__(self) -> None:
        version = self.spark.version
        jar = maven_jar(f"spark-avro-{version}", "org.apache.spark", "spark-avro_2.13", version)
        self.spark.sql(f"ADD JAR '{jar}'")

    def sql(self, *rows: str) -> Any:
        return self.spark.sql(" UNION ALL ".join(f"SELECT {each}" for each in rows))

    def register(self, schema: str, subject: str = SUBJECT, *references: SchemaReference) -> None:
        self.schemas.register_schema(subject, Schema(schema, self.schema_type, [*references]))

    def written(self, frame: Any, column: Any = None, **options: Any) -> list[Any]:
        """Return what ``encode`` writes for a frame or the columns of a SQL query."""
        frame = self.sql(frame) if isinstance(frame, str) else frame
        given: dict[str, Any] = {"subject": SUBJECT, "registry": self.schemas} | options
        return values(frame, self.encode(frame, column or F.struct("*"), **given))

    def read(self, *records: bytes | None, **options: Any) -> list[Any]:
        """Return what ``decode`` reads."""
        frame = self.spark.createDataFrame([(each,) for each in records], "value BINARY")
        given: dict[str, Any] = {"subject": SUBJECT, "registry": self.schemas} | options
        return read(frame, self.decode("value", **given))

    def confluents(self, value: bytes) -> Any:
        """Return what Confluent's deserializer reads."""
        return AvroDeserializer(self.schemas)(value, CONTEXT)

    def written_by(self, schema: Any, fields: Any, subject: str = SUBJECT) -> bytes:
        """Return what Confluent's serializer writes."""
        serialize: Any = AvroSerializer(self.schemas, schema, conf={"subject.name.strategy": lambda *_: subject})
        return bytes(serialize(fields, CONTEXT))


@pytest.fixture
def both(spark: SparkSession) -> Both:
    return Both(spark, SchemaRegistryClient.new_client({"url": "mock://registry"}))


def values(frame: Any, column: Any) -> list[Any]:
    return [None if row[0] is None else bytes(row[0]) for row in frame.select(column).collect()]


def read(frame: Any, column: Any) -> list[Any]:
    return [row[0] for row in frame.select(column).collect()]


def record(**fields: Any) -> str:
    parts = [{"name": name, **(kind if isinstance(kind, dict) else {"type": kind})} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "order", "fields": parts})


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": {"type": kind, "logicalType": name, **more}}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return logical("bytes", "decimal", precision=precision, scale=scale)


NULLABLE = {"type": ["null", "string"], "default": None}
AFTER_NULL = {"type": ["string", "null"], "default": ""}

# Exact values. --------------------------------------------------------------------------------------------------------

COLUMNS = pa.schema([
    *(("yes", pa.bool_()), ("i8", pa.int8()), ("i16", pa.int16()), ("i32", pa.int32()), ("i64", pa.int64())),
    *(("f", pa.float32()), ("d", pa.float64()), ("text", pa.string()), ("raw", pa.binary()), ("day", pa.date32())),
    *(("at", pa.timestamp("us", "UTC")), ("wall", pa.timestamp("us")), ("tags", pa.list_(pa.string()))),
    *(("price", pa.decimal128(9, 2)), ("large", pa.decimal128(38, 10))),
    ("rates", pa.map_(pa.string(), pa.decimal128(9, 2))),
    ("inner", pa.struct([("x", pa.int32()), ("at", pa.timestamp("us", "UTC"))])),
])  # fmt: skip


@pytest.mark.variants
@pytest.mark.parametrize("seed", range(3))
def test_every_value_is_read_by_confluents_deserializer_and_by_spark_as_it_was(both: Both, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311  # values of tests
    none = dict.fromkeys(COLUMNS.names)
    rows = [none | {field.name: edge} for field in COLUMNS for edge in edges(field.type)]
    rows += [{field.name: drawn(field.type, draw) for field in COLUMNS} for _ in range(40)]
    frame = both.spark.createDataFrame(pa.Table.from_pylist(rows, COLUMNS), from_arrow_schema(COLUMNS)).coalesce(1)
    written = both.written(frame)
    deserialize = AvroDeserializer(both.schemas)
    before = [*map(comparable, rows)]
    assert [comparable(deserialize(value, CONTEXT)) for value in written] == before
    stored = both.spark.createDataFrame(pa.table({"value": written})).coalesce(1)
    back = stored.select(registry.from_avro("value", subject=SUBJECT, registry=both.schemas)).toArrow()
    assert [comparable(row) for row in back.column(0).to_pylist()] == before


def comparable(row: Any) -> Any:
    """A map has no order, and is pairs in Arrow."""
    return exact(row | {"rates": None if row["rates"] is None else dict(row["rates"])})


def test_a_generated_schema_has_null_first_and_by_default_and_only_names_of_avro(both: Both) -> None:
    both.written("1L AS id, CAST(NULL AS STRING) AS note")
    generated = json.loads(str(both.schemas.get_latest_version(SUBJECT).schema.schema_str))
    assert generated["fields"] == [{"name": "id", "type": "long"}, {"name": "note", **NULLABLE}]
    for odd, told in (("INTERVAL '1' DAY AS i", "no type for interval"), ("1 AS `a.b`", "does not allow .* 'a.b'")):
        with pytest.raises(ConfigurationError, match=told):
            both.written(odd, subject="odd")
    assert both.schemas.get_subjects() == [SUBJECT]
    alike = "struct(struct(1 AS x) AS b_c) AS a, struct(struct('y' AS y) AS c) AS a_b"
    [value] = both.written(alike, subject="1-alike")
    assert both.confluents(value) == {"a": {"b_c": {"x": 1}}, "a_b": {"c": {"y": "y"}}}


@pytest.mark.variants
@pytest.mark.parametrize("null", ["first", "last", "nowhere"])
def test_null_stays_null_and_a_struct_of_nulls_does_not(both: Both, null: str) -> None:
    kind = "STRUCT<note: STRING>"
    frame = both.sql(f"CAST(NULL AS {kind}) AS o", f"CAST(struct(NULL) AS {kind})", "struct('x' AS note)")
    plain = json.loads(record(note=NULLABLE))
    schema: Any = {"first": ["null", plain], "last": [plain, "null"], "nowhere": plain}[null]
    written = both.written(frame, "o", schema=json.dumps(schema))
    assert [value and both.confluents(value) for value in written] == [None, {"note": None}, {"note": "x"}]
    if null != "nowhere":  # as other writers frame a null
        written[0] = written[1][:5] + bytes([2 * schema.index("null")])
    assert both.read(*written) == [None, Row(note=None), Row(note="x")]


def test_dates_before_1582_are_not_written_in_another_calendar(both: Both) -> None:
    other = both.spark.newSession()
    other.conf.set("spark.sql.avro.datetimeRebaseModeInWrite", "LEGACY")
    with pytest.raises(ConfigurationError, match="set it to CORRECTED"):
        both.written(other.sql("SELECT date'1000-01-01' AS day"))


def test_records_of_one_name_in_two_namespaces_stay_apart(both: Both) -> None:
    first, second = json.loads(record(x="long")) | {"namespace": ""}, json.loads(record(y="string"))
    whole = json.loads(record(a={"type": first}, b={"type": second | {"name": "shop.order"}}, c="shop.order"))
    row = "struct(1L AS x) AS a, struct('y' AS y) AS b, struct('z' AS y) AS c"
    [value] = both.written(row, schema=json.dumps(whole | {"name": "shop.whole"}))
    assert value[5:] == b"\2\2y\2z"
    assert both.read(value) == [Row(a=Row(x=1), b=Row(y="y"), c=Row(y="z"))]


# What does not fit. ---------------------------------------------------------------------------------------------------

REGISTERED = record(id="long", note=NULLABLE, kind=AFTER_NULL, at="string")


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("1 AS id, 'x' AS at", r"orders-value\.id: Spark's int does not fit the schema's long"),
        ("1L AS id, 'x' AS at, 1 AS more", r"no field for the columns \['more'\]"),
        ("1L AS id", r"no columns for \['at'\], which can't be left out"),
        ("1L AS id, 'x' AS at, array('x') AS note", r"orders-value\.note: Spark's array<string> does not fit"),
        ("1BD AS id, 'x' AS at", r"orders-value\.id: Spark's decimal\(1,0\) does not fit"),
        ("1L AS id, 'x' AS at, 'x' AS at", r"no field for the columns \['at', 'at'\], or one for two"),
    ],
)
def test_columns_that_do_not_fit_are_refused_with_the_field_and_both_types(both: Both, columns: str, told: str) -> None:
    both.register(REGISTERED)
    with pytest.raises(ConfigurationError, match=told):
        both.written(f"struct({columns}) AS o", "o")


def test_columns_are_matched_by_name_and_a_nullable_field_without_one_is_null(both: Both) -> None:
    both.register(REGISTERED)
    [value] = both.written("nullif('noon', 'x') AS at, nullif('a', 'a') AS kind, 1L AS id")
    assert both.confluents(value) == {"id": 1, "note": None, "kind": None, "at": "noon"}


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
        ("string", "CAST(X'ff' AS STRING)", "orders-value[.]x has a value that is not UTF-8"),
        ({"type": "map", "values": "int"}, "map(CAST(X'ff' AS STRING), 1)", "orders-value[.]x{key} has a value"),
        (logical("string", "uuid")["type"], "'no-uuid'", "orders-value[.]x has a value"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "'B'", "(?i)enum"),
        ({"type": "fixed", "name": "F", "size": 2}, "X'00'", "(?i)fixed"),
    ],
)
def test_a_value_that_the_schema_can_not_hold_is_refused_by_its_field(
    both: Both, kind: Any, value: str, told: str
) -> None:
    with pytest.raises(Exception, match=told):
        both.written(f"{value} AS x", schema=record(x={"type": kind}))


@pytest.mark.parametrize("kind", [["int", "string"], logical("int", "time-millis")["type"], ["null", "order"]])
def test_types_that_spark_would_not_write_exactly_are_refused(both: Both, kind: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"orders-value\.x: .* not supported"):
        both.written("1 AS x", schema=record(x={"type": kind}))
    assert both.schemas.get_subjects() == []


# Ids. -----------------------------------------------------------------------------------------------------------------

WRITERS = (
    record(a="int", b="string"),
    record(a="int", c={"type": "string", "default": ""}, b="string"),
    record(a="long", b="string"),
)
READER = record(a="long", b="string", c={"type": "string", "default": ""})


def of_three_writers(both: Both) -> list[bytes]:
    """A record by each of three writers, twice."""
    of_turn = [both.written_by(schema, {"a": number, "b": "b", "c": "c"}) for number, schema in enumerate(WRITERS)]
    return of_turn * 2


def test_each_record_is_read_by_the_schema_of_its_own_id(both: Both) -> None:
    expected = [Row(a=0, b="b", c=""), Row(a=1, b="b", c="c"), Row(a=2, b="b", c="")]
    assert both.read(*of_three_writers(both), None, reader=READER) == [*expected * 2, None]


@pytest.mark.parametrize("schema_id", [0, 2**31 + 5])
def test_a_schema_has_any_id_of_four_bytes(both: Both, monkeypatch: pytest.MonkeyPatch, schema_id: int) -> None:
    known = RegisteredSchema(SUBJECT, 1, schema_id, None, Schema('"string"'))
    monkeypatch.setattr(both.schemas, "get_version", lambda *_, **__: known)
    monkeypatch.setattr(both.schemas, "get_versions", lambda *_, **__: [1])
    [value] = both.written("'key' AS key", "key")
    assert value == b"\0" + schema_id.to_bytes(4, "big") + b"\6key"
    assert both.read(value) == ["key"]
    assert both.schemas.get_subjects() == []  # nothing was registered


@pytest.mark.variants
@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"\0\0\0\x7b\x7b\0", r"the schema id 31611, .* orders-value did not have when .* built: \[1, 2, 3\]"),
        (b"", "no schema id: it begins with the bytes 0x"),
        (b"\0\0\0", "no schema id: it begins with the bytes 0x000000"),
        (b"{}", "no schema id: it begins with the bytes 0x7B7D"),
    ],
)
def test_a_record_with_an_unknown_id_or_without_one_fails_by_name(both: Both, value: bytes, told: str) -> None:
    of_three_writers(both)
    with pytest.raises(Exception, match=told):
        both.read(value, reader=READER)


ARRAY_OF_INT, ARRAY_OF_FLOAT = ({"type": {"type": "array", "items": items}} for items in ("int", "float"))


@pytest.mark.variants
@pytest.mark.parametrize(
    ("writer", "reader", "told"),
    [
        (record(a=logical("long", "timestamp-millis")), record(a=logical("long", "timestamp-micros")), "d.a: timest"),
        (record(a="int"), record(z="long"), "reader_field_missing_default_value .z"),
        (record(a=decimal(9, 2)), record(b={"aliases": ["a"], **decimal(9, 3)}), r"2\) .* read as decimal\(9,3\)"),
        (record(a=decimal(9, 2)), record(a=decimal(8, 2)), r"a: decimal\(9,2\) would be read as decimal\(8,2\)"),
        (record(a=logical("int", "date")), record(a="long"), "d.a: date would be read as long"),
        (record(a="long"), record(a={"type": ["null", "double"]}), "d.a: long would be read as double"),
        (record(a=ARRAY_OF_INT), record(a=ARRAY_OF_FLOAT), r"d.a\[\]: int would be read as float"),
    ],
)
def test_a_record_that_can_not_be_read_exactly_as_the_readers_schema_fails_by_its_id(
    both: Both, writer: str, reader: str, told: str
) -> None:
    both.register(writer)
    with pytest.raises(ConfigurationError, match=f"schema id 1 can't be read: .*{told}"):
        both.read(reader=reader)
    both.register(reader)
    with pytest.raises(Exception, match=f"schema id 1 can't be read: .*{told}"):
        both.read(b"\0\0\0\0\1\0")


def test_a_wider_schema_reads_older_records_and_a_version_that_it_does_not_read_is_not_in_the_way(both: Both) -> None:
    text = "9f3b7a52-0000-4000-8000-00000000000a"
    both.written_by(record(other="string"), {"other": "x"})
    old = record(price=decimal(9, 2), id=logical("string", "uuid"))
    value = both.written_by(old, {"price": Decimal("-1.05"), "id": text})
    both.register(record(price=decimal(12, 2), id="string"))
    assert both.read(value) == [Row(price=Decimal("-1.05"), id=text)]


def test_a_schema_may_refer_to_others_and_to_one_by_two_ways(both: Both) -> None:
    def refers(*names: str) -> list[SchemaReference]:
        return [SchemaReference(f"shop.{name}", name, 1) for name in names]

    money = json.loads(record(cents="long")) | {"name": "shop.Money"}
    price = json.loads(record(net="shop.Money")) | {"name": "shop.Price"}
    both.register(json.dumps(money), "Money")
    both.register(json.dumps(price), "Price", *refers("Money"))
    uses = record(price="shop.Price", paid={"type": ["null", "shop.Money"], "default": None})
    schema = Schema(uses, "AVRO", refers("Price", "Money"))
    [value] = both.written("struct(struct(5L AS cents) AS net) AS price, struct(6L AS cents) AS paid", schema=schema)
    assert both.confluents(value) == {"price": {"net": {"cents": 5}}, "paid": {"cents": 6}}
    assert both.read(value) == [Row(price=Row(net=Row(cents=5)), paid=Row(cents=6))]


def test_several_subjects_are_read_as_the_first_ones_newest(both: Both) -> None:
    old = both.written_by(WRITERS[0], {"a": 1, "b": "x"}, "old")
    both.register(READER, "new")
    assert both.read(old, subject=["new", "old"]) == [Row(a=1, b="x", c="")]


def test_subjects_of_two_contexts_with_the_same_id_are_refused(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(both.schemas, "get_versions", lambda *_, **__: [1])
    monkeypatch.setattr(
        both.schemas,
        "get_version",
        lambda subject, *_, **__: RegisteredSchema(subject, 1, 7, None, Schema(f'"{subject}"')),
    )
    with pytest.raises(ConfigurationError, match="the id 7 is of two schemas, in 'int' and in 'long'"):
        both.read(subject=["int", "long"])


@pytest.mark.long
def test_avro_works_through_spark_connect(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Both(client, SchemaRegistryClient.new_client({"url": "mock://registry"}))
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # as in a process that has no other session
    assert remote.read(*remote.written("1L AS id, array('x') AS tags")) == [Row(id=1, tags=["x"])]


# The registry's answers. ----------------------------------------------------------------------------------------------


def test_an_unknown_schema_is_refused_and_a_registry_that_does_not_answer_is_asked_again(both: Both) -> None:
    with pytest.raises(ConfigurationError, match=r"refused subject 'orders-value': it does not have .* \(404"):
        both.written("1L AS id", schema=record(id="long"), register=False)
    with pytest.raises(ConfigurationError, match="is no Avro schema"):
        both.written("1L AS id", schema=record(id="no-type"))
    nobody = SchemaRegistryClient({"url": "http://key:secret-word@127.0.0.1:1", "max.retries": 0})
    with pytest.raises(Retriable, match="the schema registry did not answer") as raised:
        both.written("1L AS id", registry=nobody)
    assert "secret-word" not in "".join(traceback.format_exception(raised.value))


@contextlib.contextmanager
def answers(
    answer: Callable[[str], tuple[int, str]], **options: Any
) -> Iterator[tuple[SchemaRegistryClient, list[str]]]:
    """Serve a registry; yield a client and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path.partition("?")[0])
            status, text = answer(asked[-1])
            self.send_response(status)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        url = f"http://key:secret-word@127.0.0.1:{server.server_port}"
        try:
            yield SchemaRegistryClient({"url": url, "max.retries": 0, **options}), asked
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("status", "text", "kind", "told"),
    [
        (401, "{}", ConfigurationError, "credentials are missing or wrong .401"),
        (403, '{"error_code": 40301, "message": "no ACL"}', ConfigurationError, "do not permit it .403: no ACL"),
        (302, "", ConfigurationError, "it refused the request .302"),
        (418, "<html>" * 999, ConfigurationError, "it refused the request .418"),
        (408, "", Retriable, "answered 408"),
        (429, "", Retriable, "answered 429"),
        (503, "<html>busy</html>", Retriable, "answered 503"),
        (501, "", ConfigurationError, "it refused the request .501"),
        (200, "<html>login</html>", ConfigurationError, "its answer can't be read"),
        (200, "", ConfigurationError, "its answer can't be read"),
        (200, '{"status": "up"}', ConfigurationError, "not a schema"),
    ],
)
def test_only_a_busy_registry_is_asked_again(status: int, text: str, kind: type[Exception], told: str) -> None:
    with answers(lambda _: (status, text)) as (client, _), pytest.raises(kind, match=told) as raised:
        registry.from_avro("value", subject=SUBJECT, registry=client)
    shown = "".join(traceback.format_exception(raised.value))
    assert "secret-word" not in shown
    assert len(str(raised.value)) < 600


def test_each_call_asks_for_the_newest_version_and_keeps_the_others(both: Both) -> None:
    texts = ['"int"']

    def answer(path: str) -> tuple[int, str]:
        last = path.rsplit("/", 1)[1]
        if last == "versions":
            return 200, json.dumps([*range(1, len(texts) + 1)])
        number = len(texts) if last == "latest" else int(last)
        return 200, json.dumps({"subject": SUBJECT, "version": number, "id": number, "schema": texts[number - 1]})

    with answers(answer) as (both.schemas, asked):
        assert both.read(b"\0\0\0\0\1\2") == [1]
        texts.append('"long"')
        asked.clear()
        assert both.read(b"\0\0\0\0\1\2", b"\0\0\0\0\2\4") == [1, 2]
        assert len(asked) == 2


def test_a_registry_that_hangs_is_given_up_after_the_clients_timeout() -> None:
    release = threading.Event()
    with answers(lambda _: (200, str(release.wait(60))), timeout=0.05) as (client, _):
        with pytest.raises(Retriable, match="did not answer"):
            registry.from_avro("value", subject=SUBJECT, registry=client)
        release.set()


def test_schemas_whose_meaning_is_elsewhere_are_refused(both: Both) -> None:
    rule = Rule("encrypt", None, RuleKind.TRANSFORM, RuleMode.WRITEREAD, "ENCRYPT", None, None, None, None, None, False)
    both.schemas.register_schema("ruled", Schema('"string"', "AVRO", rule_set=RuleSet(None, [rule])))
    both.schemas.register_schema("json", Schema('{"type": "string"}', "JSON"))
    both.schemas.register_schema("proto", Schema('syntax = "proto3"; message Order {}', "PROTOBUF"))
    types = (("json", "has the type JSON, not AVRO"), ("proto", "has the type PROTOBUF, not AVRO"))
    for subject, told in (("ruled", "has the rule 'encrypt'"), *types):
        with pytest.raises(ConfigurationError, match=told):
            both.read(subject=subject)
        with pytest.raises(ConfigurationError, match=told):
            both.written("'x' AS x", "x", subject=subject)


@pytest.mark.long
def test_a_real_registry_refuses_an_incompatible_schema_and_keeps_deleted_ones(both: Both, apicurio: str) -> None:
    def named(schema: str) -> str:
        return json.dumps(json.loads(schema) | {"name": "orders_value"})

    both.schemas = SchemaRegistryClient({"url": apicurio})
    written = both.written("1L AS id")
    both.schemas.set_config(SUBJECT, ServerConfig(compatibility=ConfigCompatibilityLevel.BACKWARD))
    wider = named(record(id="long", note=NULLABLE))
    written += both.written("1L AS id, nullif('x', 'y') AS note", schema=wider)
    assert [both.confluents(each) for each in written] == [{"id": 1}, {"id": 1, "note": "x"}]
    with pytest.raises(ConfigurationError, match=r"the schema is not compatible .* \(409"):
        both.written("1L AS id, 1 AS z", schema=named(record(id="long", z="int")))
    other = record(id={"type": ["null", "long"], "default": None})
    with pytest.raises(ConfigurationError, match="it does not have the subject, or not this schema"):
        both.written("1L AS id", schema=other, register=False)
    both.schemas.delete_version(SUBJECT, 1)
    both.schemas = SchemaRegistryClient({"url": apicurio})
    assert both.read(*written) == [Row(id=1, note=None), Row(id=1, note="x")]


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
        "map.of": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "required": ["id"],
    "additionalProperties": False,
}
NOON = "timestamp'2024-01-01 12:00:00.000001Z' AS at"


def to_json(both: Both, rows: Any, column: Any, schema: Any) -> list[Any]:
    schema = json.dumps(schema)
    return values(rows, registry.to_json_schema(rows, column, subject=SUBJECT, registry=both.schemas, schema=schema))


def test_json_is_read_by_confluents_deserializer(both: Both) -> None:
    columns = f"1L AS id, nullif('x', 'x') AS note, 1.10BD AS rate, {NOON}, map('k', 1) AS `map.of`"
    first, second = to_json(both, both.sql(f"struct({columns}) AS o", "NULL"), "o", ORDER)
    assert second is None
    assert JSONDeserializer(json.dumps(ORDER), schema_registry_client=both.schemas)(first, CONTEXT) == {
        "id": 1,
        "note": None,
        "rate": 1.1,
        "at": "2024-01-01T12:00:00.000001Z",
        "map.of": {"k": 1},
    }
    assert b'"rate":1.10' in first


@pytest.mark.parametrize(
    ("change", "columns", "told"),
    [
        ({}, "1.0D AS id", "orders-value[.]id: Spark's double does not fit the schema's integer"),
        ({}, "'x' AS note", "no columns for .'id'"),
        ({}, "1 AS id, 'x' AS at", "orders-value[.]at: Spark's string does not fit"),
        ({"id": {"type": "integer", "minimum": 0}}, "1 AS id", "value[.]id: the rule 'minimum' is not supported"),
        ({"id": {"type": ["integer", "string"]}}, "1 AS id", "without exactly one type"),
        ({"id": {"type": "array"}}, "array(1) AS id", r"id\[\]: a schema without exactly one type"),
        ({"id": {"type": "object", "required": ["x"]}}, "struct(1 AS y) AS id", "in 'required' too"),
        ({"id": {"type": "integer", "oneOf": [{"type": "null"}, {}]}}, "1 AS id", "'oneOf' is not supported"),
        ({}, "nullif(1, 1) AS id", "id is null"),
        ({}, "1 AS id, double('NaN') AS rate", "rate has a value"),
        ({}, "1 AS id, double('-Infinity') AS rate", "rate has a value"),
        ({}, "1 AS id, array('x', nullif('x', 'x')) AS tags", r"tags\[\] is null"),
    ],
)
def test_what_a_json_schema_does_not_allow_or_spark_does_not_check_is_refused(
    both: Both, change: Any, columns: str, told: str
) -> None:
    schema = ORDER | {"properties": {**ORDER["properties"], **change}}  # type: ignore[dict-item]
    with pytest.raises(Exception, match=told):
        to_json(both, both.sql(columns), F.struct("*"), schema)


# Debezium. ------------------------------------------------------------------------------------------------------------


def named(kind: str, name: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": name} | more


SCALE = {"connect.parameters": {"scale": "2"}}
PRICE = named("bytes", "org.apache.kafka.connect.data.Decimal") | decimal(9, 2)["type"] | SCALE
SOURCE = json.loads(record(connector="string", lsn={"type": ["null", "long"], "default": None}))


def envelope(*columns: dict[str, Any]) -> str:
    row = {"type": "record", "name": "Value", "fields": columns}
    source = {"type": SOURCE | {"name": "Source"}}
    whole = record(before=["null", row], after=["null", "Value"], source=source, op="string")
    return json.dumps(json.loads(whole) | {"name": "Envelope", "namespace": "shop.docs"})


ID, DAY = {"name": "id", "type": "int"}, {"name": "day", "type": ["null", named("int", "io.debezium.time.Date")]}
OLD = envelope(ID, DAY)
NEW = envelope(ID, DAY, {"name": "price", "type": ["null", PRICE], "default": None})
"""As before and after ALTER TABLE."""


def changes(both: Both, *given: tuple[str, str, int, dict[str, Any]]) -> Any:
    """Return changes, each by its schema, operation, position and row, as Spark reads them from Kafka."""
    rows: list[tuple[Any, ...]] = []
    for schema, op, lsn, row in given:
        source = {"connector": "postgresql", "lsn": lsn}
        value = {"op": op, "source": source, "before": row if op == "d" else None, "after": None if op == "d" else row}
        key = both.written_by(record(id="int"), {"id": row["id"]}, "docs-key")
        rows.append((key, both.written_by(schema, value, "docs-value"), "docs", 0, lsn))
    rows.append((*rows[-1][:1], None, "docs", 0, len(rows) + 1))  # what follows a delete
    frame = both.spark.createDataFrame(rows, "key BINARY, value BINARY, topic STRING, partition INT, offset LONG")
    return frame.withColumns(
        {name: registry.connect_json(name, subject=f"docs-{name}", registry=both.schemas) for name in ("key", "value")}
    )


def test_debezium_in_avro_becomes_the_json_of_its_own_schema_with_that_schema(both: Both) -> None:
    old = (OLD, "c", 1, {"id": 1, "day": -1})
    new = (NEW, "u", 2, {"id": 2, "day": None, "price": Decimal("-12.34")})
    found = changes(both, old, new).select("value").collect()
    first, second = (json.loads(row.value) for row in found[:2])
    assert found[2].value is None
    assert first["payload"]["after"] == {"id": 1, "day": -1}
    assert second["payload"]["after"] == {"id": 2, "day": None, "price": "+y4="}
    after = {field["field"]: field for field in second["schema"]["fields"]}["after"]
    assert after["optional"]
    kind = {"optional": True, "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
    assert after["fields"][1:] == [
        {"field": "day", "type": "int32", "optional": True, "name": "io.debezium.time.Date", "version": 1},
        {"field": "price", "type": "bytes", "version": 1, **kind},
    ]


def test_a_map_of_connect_whose_keys_are_not_strings_is_refused(both: Both) -> None:
    entry = json.loads(record(key="int", value="int"))
    schema = record(m={"type": {"type": "array", "items": entry, "connect.type": "map"}})
    both.register(schema.replace('"order"', '"whole"', 1))
    with pytest.raises(ConfigurationError, match=r"record\.m: Avro's array is not supported as Connect's map"):
        registry.connect_json("value", subject=SUBJECT, registry=both.schemas)


@pytest.mark.long
def test_debezium_decodes_changes_in_avro_by_the_schemas_of_their_own_ids(both: Both) -> None:
    given = changes(
        both,
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
