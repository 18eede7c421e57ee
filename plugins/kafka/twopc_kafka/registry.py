"""Values in the format of a schema registry: a magic byte, the schema's id, and the value as Avro, JSON or Protobuf.

The driver asks the registry when a column is built. Spark's own functions encode and decode, so no record passes
through Python. Avro and Protobuf need Spark's package ``spark-avro`` or ``spark-protobuf``, in Spark's version.

    client = SchemaRegistryClient({"url": "http://registry:8081", "timeout": 10})
    value = registry.to_avro(orders, F.struct("id", "amount"), subject="orders-value", registry=client)
    orders.select("key", value.alias("value"))

Without ``timeout`` (seconds), the client waits forever for a registry that hangs. Use one client for all batches: it
remembers schemas, so a call sends one or two requests.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from avro.compatibility import ReaderWriterCompatibilityChecker
from avro.errors import AvroException
from avro.schema import parse
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.error import SchemaRegistryError
from fastavro.schema import SchemaParseException, UnknownType, parse_schema
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name
from pyspark.sql import types as T  # noqa: N812  # its usual name
from pyspark.sql.avro import functions as avro
from pyspark.sql.protobuf import functions as protobuf

from twopc.errors import ConfigurationError, Retriable
from twopc_kafka.protobuf_schemas import Message, add_file, differences, framed_indexes, shown, unreadable

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from pyspark.sql import Column, DataFrame

_MAGIC, _HEADER_BYTES = b"\0", 5
_REST = 2**31 - 1  # Spark's longest substring
_REBASING = "spark.sql.avro.datetimeRebaseModeInWrite"


def to_avro(
    frame: DataFrame,
    column: str | Column,
    *,
    subject: str,
    registry: SchemaRegistryClient,
    schema: str | Schema | None = None,
    register: bool = True,
) -> Column:
    """Return a column of ``frame`` as Avro, after the id of its schema. Null stays null.

    A value that the schema can't hold fails the batch before its decision. The error names the field.

    Args:
        frame: has the column, and with it the column's type.
        column: what to encode, such as ``struct("id", "note")``.
        subject: the subject in the registry, such as ``orders-value``.
        registry: Confluent's client.
        schema: the Avro schema. None for the newest of the subject; if the subject has none, for a schema of the
            column's type, whose nullable fields are null by default. Confluent's ``Schema`` can have references.
        register: whether to register ``schema``. If False, the subject must have it.

    Raises:
        ConfigurationError: the registry refuses the schema, such as an incompatible one, or does not have it; or the
            column does not fit it. No record was written.
        Retriable: the registry did not answer.
    """
    if frame.sparkSession.conf.get(_REBASING) == "LEGACY":
        raise ConfigurationError(f"{_REBASING} = LEGACY writes dates before 1582 as others: set it to CORRECTED")
    kind = frame.select(column).schema[0].dataType
    name = re.sub(r"^(?=\d)|[^A-Za-z0-9_]", "_", subject)
    found, known_id = _chosen(registry, subject, schema, "AVRO", lambda: json.dumps(_avro_of(kind, name)))
    tree = _tree(registry, found, subject, _WRITING)
    tests = [*_faults(kind, tree, _shape_of_avro, subject)]
    schema_id = _registered(registry, subject, found, register) if known_id is None else known_id
    return _framed(column, schema_id, tests, lambda value: avro.to_avro(value, _text(tree)))


def from_avro(
    column: str | Column,
    *,
    subject: str | Sequence[str],
    registry: SchemaRegistryClient,
    reader: str | Schema | None = None,
) -> Column:
    """Return Avro as Spark's types, each record decoded by the schema of its own id. Null stays null.

    The ids are those that the subject has when this is called, deleted ones included. A record with another id, or one
    that can't be read exactly as ``reader``, fails the batch. For schemas that are registered while a query runs, call
    this for each batch, in the function for ``foreachBatch``.

    Args:
        column: the binary column, such as ``value`` of Spark's Kafka source.
        subject: the subject in the registry, or several if the records have the schemas of several.
        registry: Confluent's client.
        reader: the Avro schema that all records are resolved to. None for the newest of the (first) subject.

    Raises:
        ConfigurationError: the registry does not have the subject or refuses the request, or no schema of the subject
            can be read as ``reader``.
        Retriable: the registry did not answer.
    """
    first = subject if isinstance(subject, str) else subject[0]
    found, _ = _chosen(registry, first, reader, "AVRO", None)
    expected = _without_null(_tree(registry, found, first, _READING))
    options = {"mode": "FAILFAST", "avroSchema": _text(expected), "datetimeRebaseMode": "CORRECTED"}

    def decoded(body: Column, tree: Any) -> Column:
        _refuse_unresolvable(_without_null(tree), expected)
        return avro.from_avro(body, _text(tree), options)

    return _by_id_in_avro(column, subject, registry, decoded)


def connect_json(column: str | Column, *, subject: str | Sequence[str], registry: SchemaRegistryClient) -> Column:
    """Return records that Kafka Connect wrote in Avro as Connect's JSON with its schema, for ``twopc.spark.debezium``.

    Use it for the keys and for the values. Each record has the fields of its own schema. The arguments and errors are
    those of ``from_avro``.
    """

    def wrapped(body: Column, tree: Any) -> Column:
        schema = json.dumps(_connect_schema(tree, "the record"))
        # Without logical types, dates are numbers and decimals are bytes, as in Connect's JSON.
        options = {"mode": "FAILFAST", "avroSchema": _text(_without_null(tree), logical_types=False)}
        decoded = avro.from_avro(body, _text(tree, logical_types=False), options)
        payload = F.to_json(decoded, {"ignoreNullFields": "false"})
        return F.encode(F.concat(F.lit(f'{{"schema":{schema},"payload":'), payload, F.lit("}")), "UTF-8")

    return _by_id_in_avro(column, subject, registry, wrapped)


def to_json_schema(
    frame: DataFrame,
    column: str | Column,
    *,
    subject: str,
    registry: SchemaRegistryClient,
    schema: str | Schema | None = None,
    register: bool = True,
) -> Column:
    """Return a column of ``frame`` as JSON, after the id of its schema. Null stays null.

    The arguments and errors are those of ``to_avro``. The JSON schema may have types, ``properties``, ``required``,
    ``items``, ``additionalProperties`` and alternatives to null. Other rules, such as ``pattern``, are refused: Spark
    does not check them. Times are written with microseconds, in UTC; bytes in base64.
    """
    kind = frame.select(column).schema[0].dataType
    found, known_id = _chosen(registry, subject, schema, "JSON", None)
    tests = [*_faults(kind, _parsed(found, "JSON", subject, _WRITING), _shape_of_json, subject)]
    schema_id = _registered(registry, subject, found, register) if known_id is None else known_id
    options = {
        "ignoreNullFields": "false",
        "timeZone": "UTC",
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    }
    return _framed(column, schema_id, tests, lambda value: F.encode(F.to_json(value, options), "UTF-8"))


def to_protobuf(
    frame: DataFrame,
    column: str | Column,
    *,
    subject: str,
    registry: SchemaRegistryClient,
    schema: str | Schema | None = None,
    message: str | None = None,
    register: bool = True,
) -> Column:
    """Return a column of ``frame`` as Protobuf, after the id of its schema and its message's indexes. Null stays null.

    ``message`` is the message's full name, such as ``shop.Order.Line``; None for the first of the schema. The other
    arguments and the errors are those of ``to_avro``, with the text of a ``.proto`` file as ``schema``.

    A field of proto3 without ``optional`` may have no column, but no nulls. Of a ``oneof``, at most one column has a
    value. Spark encodes timestamps in milliseconds and unsigned numbers below 2**63: others are refused.
    """
    kind = frame.select(column).schema[0].dataType
    found, known_id = _chosen(registry, subject, schema, "PROTOBUF", None)
    chosen = _message(registry, found, subject, _WRITING, message)
    tests = [*_faults(kind, chosen.descriptor, _shape_of_protobuf, subject)]
    place, (name, files) = framed_indexes(chosen.indexes), chosen.for_spark
    _refuse_without_package(frame.sparkSession, chosen)
    schema_id = _registered(registry, subject, found, register) if known_id is None else known_id

    def encoded(value: Column) -> Column:
        return F.concat(_bytes(place), protobuf.to_protobuf(value, name, binaryDescriptorSet=files))

    return _framed(column, schema_id, tests, encoded)


def from_protobuf(
    column: str | Column,
    *,
    subject: str | Sequence[str],
    registry: SchemaRegistryClient,
    reader: str | Schema | None = None,
    message: str | None = None,
) -> Column:
    """Return Protobuf as Spark's types. Null stays null.

    ``message`` is the message's full name, such as ``shop.Order.Line``; None for the first of ``reader``. The other
    arguments and the errors are those of ``from_avro``. A record of another message fails the batch.
    """
    first = subject if isinstance(subject, str) else subject[0]
    found, _ = _chosen(registry, first, reader, "PROTOBUF", None)
    chosen = _message(registry, found, first, _READING, message)
    if problem := next(unreadable(chosen.descriptor), None):
        raise ConfigurationError(problem)
    _refuse_without_package(SparkSession.active(), chosen)
    full_name, (name, files) = chosen.descriptor.full_name, chosen.for_spark

    def decoded(body: Column, schema: Schema, name_of_subject: str) -> Column:
        own = _message(registry, schema, name_of_subject, _READING, full_name)
        if why := [*differences(own.descriptor, chosen.descriptor)]:
            raise ConfigurationError("; ".join(why))
        branches = F.raise_error(F.lit(f"a record's message is not the schema's {full_name}"))
        for place in {framed_indexes(own.indexes), *([b"\2\0"] if own.indexes == [0] else [])}:  # both are in use
            rest = F.substring(body, len(place) + 1, _REST)
            value = protobuf.from_protobuf(rest, name, binaryDescriptorSet=files, options=_PROTOBUF_OPTIONS)
            branches = F.when(F.substring(body, 1, len(place)) == _bytes(place), value).otherwise(branches)
        return branches

    return _by_id(column, subject, registry, decoded)


# Records. -------------------------------------------------------------------------------------------------------------


def _header(schema_id: int) -> Column:
    return _bytes(_MAGIC + schema_id.to_bytes(_HEADER_BYTES - 1, "big"))


def _bytes(value: bytes) -> Column:
    return F.lit(bytearray(value))


def _framed(
    column: str | Column, schema_id: int, tests: Sequence[tuple[_Test, str]], encoded: Callable[[Column], Column]
) -> Column:
    value = F.col(column) if isinstance(column, str) else column
    framed = F.when(value.isNull(), F.lit(None))
    for is_fault, message in tests:
        framed = framed.when(is_fault(value), F.raise_error(F.lit(message)))
    return framed.otherwise(F.concat(_header(schema_id), encoded(value)))


def _by_id(
    column: str | Column,
    subject: str | Sequence[str],
    registry: SchemaRegistryClient,
    decoded: Callable[[Column, Schema, str], Column],
) -> Column:
    """Return an expression with a branch for each schema of the subjects, chosen by the id in a record's header."""
    subjects = [subject] if isinstance(subject, str) else [*subject]
    schemas: dict[int, tuple[str, Schema]] = {}
    for name in subjects:
        for version in _ask(name, partial(registry.get_versions, name, deleted=True)):
            known = _ask(name, partial(registry.get_version, name, version, deleted=True))
            first, same = schemas.setdefault(known.schema_id, (name, known.schema))
            if same.schema_str != known.schema.schema_str:
                raise ConfigurationError(f"the id {known.schema_id} is of two schemas, in {first!r} and in {name!r}")
    value = F.col(column) if isinstance(column, str) else column
    header, body = F.substring(value, 1, _HEADER_BYTES), F.substring(value, _HEADER_BYTES + 1, _REST)
    found, refused = F.when(value.isNull(), F.lit(None)), []
    for schema_id, (name, schema) in schemas.items():
        is_own = header == _header(schema_id)
        try:
            branch = decoded(body, schema, name)
        except ConfigurationError as error:  # It may be an old version, of which there is no record.
            refused.append(f"records with the schema id {schema_id} can't be read: {error}")
            branch = F.raise_error(F.lit(refused[-1]))
        found = found.when(is_own, branch)
    if schemas and len(refused) == len(schemas):
        raise ConfigurationError(refused[-1])
    has_id = (F.length(header) == _HEADER_BYTES) & (F.substring(value, 1, 1) == _bytes(_MAGIC))
    ids = f"which subject {', '.join(subjects)} did not have when the column was built: {[*sorted(schemas)]}"
    record_id = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10)
    unknown = F.concat(F.lit("a record has the schema id "), record_id, F.lit(f", {ids}. Build it for each batch"))
    unframed = F.concat(F.lit("a record has no schema id: it begins with the bytes 0x"), F.hex(header))
    return found.otherwise(F.raise_error(F.when(has_id, unknown).otherwise(unframed)))


# The registry. --------------------------------------------------------------------------------------------------------

_NOT_FOUND = 404
_TEMPORARY = {408, 429, 500, 502, 503, 504}
_WHY = {
    401: "the credentials are missing or wrong",
    403: "the credentials do not permit it",
    _NOT_FOUND: "it does not have the subject, or not this schema",
    409: "the schema is not compatible with those that the subject has",
    422: "the schema is not valid, or the subject is read-only",
}
_MOST_TEXT = 300  # characters of an error page

_RULE_LISTS = ("domain_rules", "migration_rules", "encoding_rules")
_WRITING = {"WRITE", "WRITEREAD"}
_READING = {"READ", "WRITEREAD", "UPGRADE", "DOWNGRADE", "UPDOWN"}


def _ask(subject: str, request: Callable[[], Any], absent: Any = None) -> Any:
    """Return the registry's answer, or ``absent`` for a 404. A refusal is raised as this project's error.

    An error's text is the registry's: the errors of its client's HTTP library show URLs, which may have credentials.
    """
    answer: Any = None
    try:
        answer = request()
        problem = "not a schema" if answer is None or getattr(answer, "schema_id", 0) is None else ""
    except SchemaRegistryError as error:
        status, text = int(error.http_status_code), str(error.error_message)[:_MOST_TEXT]
        if status == _NOT_FOUND and absent is not None:
            return absent
        if status in _TEMPORARY:
            raise Retriable(f"the schema registry answered {status} for subject {subject!r}: {text}") from None
        problem = f"{_WHY.get(status, 'it refused the request')} ({status}: {text})"
    except Exception as error:  # noqa: BLE001  # shown by its type alone
        if "TransportError" in {each.__name__ for each in type(error).__mro__}:  # of httpx or httpx2
            kind = type(error).__name__
            raise Retriable(f"the schema registry did not answer for subject {subject!r}: {kind}") from None
        problem = f"its answer can't be read, or the client's URL or login is wrong ({type(error).__name__})"
    if problem:
        raise ConfigurationError(f"the schema registry refused subject {subject!r}: {problem}")
    return answer


def _chosen(
    client: SchemaRegistryClient, subject: str, given: str | Schema | None, kind: str, made: Callable[[], str] | None
) -> tuple[Schema, int | None]:
    """Return the schema that was given, else the subject's newest with its id, else the one that is ``made``."""
    if given is not None:
        return Schema(given, kind) if isinstance(given, str) else given, None
    # get_latest_version would repeat its first answer.
    found = _ask(subject, partial(client.get_version, subject, "latest"), absent=made)
    return (Schema(made(), kind), None) if made and found is made else (found.schema, int(found.schema_id))


def _registered(client: SchemaRegistryClient, subject: str, schema: Schema, register: bool) -> int:
    request = client.register_schema_full_response if register else client.lookup_schema
    return int(_ask(subject, partial(request, subject, schema)).schema_id)


def _text_of(schema: Schema, kind: str, subject: str, modes: set[str]) -> str:
    if schema.schema_type != kind:
        raise ConfigurationError(f"the schema of subject {subject!r} has the type {schema.schema_type}, not {kind}")
    for rule in itertools.chain(*(getattr(schema.rule_set, each, None) or () for each in _RULE_LISTS)):
        if not rule.disabled and str(rule.mode) in modes:
            raise ConfigurationError(f"subject {subject!r} has the rule {rule.name!r}, which Spark does not apply")
    return str(schema.schema_str)


def _parsed(schema: Schema, kind: str, subject: str, modes: set[str]) -> Any:
    text = _text_of(schema, kind, subject, modes)
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"the schema of subject {subject!r} is not JSON: {error}") from None


def _referenced(client: SchemaRegistryClient, schema: Schema) -> Iterator[tuple[str, str, Schema]]:
    """Yield the name, subject and schema of each reference."""
    references: Any = schema.references or ()
    for each in references:
        other = _ask(each.subject, partial(client.get_version, each.subject, each.version, deleted=True))
        yield each.name, each.subject, other.schema


# Avro. ----------------------------------------------------------------------------------------------------------------


def _by_id_in_avro(
    column: str | Column,
    subject: str | Sequence[str],
    registry: SchemaRegistryClient,
    decoded: Callable[[Column, Any], Column],
) -> Column:
    def of_schema(body: Column, schema: Schema, name: str) -> Column:
        tree = _tree(registry, schema, name, _READING)
        if not _nullable(tree):
            return decoded(body, tree)
        # Spark's decoder takes no record that may be null. The branch of a union is a zigzag varint.
        is_null = F.substring(body, 1, 1) == _bytes(bytes([2 * tree.index("null")]))
        return F.when(is_null, F.lit(None)).otherwise(decoded(body, tree))

    return _by_id(column, subject, registry, of_schema)


def _tree(
    client: SchemaRegistryClient, schema: Schema, subject: str, modes: set[str], named: dict[str, Any] | None = None
) -> Any:
    """Return an Avro schema in which each name is replaced by its definition, those in other subjects too."""
    named = {} if named is None else named
    for _, other, found in _referenced(client, schema):
        _tree(client, found, other, modes, named)
    try:
        return parse_schema(_parsed(schema, "AVRO", subject, modes), named_schemas=named, expand=True)
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"the schema of subject {subject!r} is no Avro schema: {error!r}") from None


def _text(tree: Any, *, logical_types: bool = True) -> str:
    """Return a schema for Java's parser, which takes a definition once and completes names without a namespace."""
    seen: set[str] = set()

    def of(node: Any) -> Any:
        if isinstance(node, list):
            return [of(each) for each in node]
        if not isinstance(node, dict):
            return node
        kept = {key: node[key] for key in node if key[:2] != "__" and (logical_types or key != "logicalType")}
        if name := node.get("name"):
            if name in seen:
                return name
            seen.add(name)
            kept |= {} if "." in name else {"namespace": ""}
        if "fields" in node:
            kept["fields"] = [each | {"type": of(each["type"])} for each in node["fields"]]
        return kept | {key: of(node[key]) for key in ("items", "values") if key in node}

    return json.dumps(of(tree))


def _types(tree: Any) -> list[dict[str, Any]]:
    """Return the types of a union, or the one type, without null."""
    each = tree if isinstance(tree, list) else [tree]
    return [node if isinstance(node, dict) else {"type": node} for node in each if node != "null"]


def _without_null(tree: Any) -> Any:
    types = _types(tree)
    return types[0] if len(types) == 1 else types


def _single(tree: Any, path: str) -> tuple[dict[str, Any], bool]:
    """Return a type and whether it may be null."""
    types = _types(tree)
    if len(types) != 1:
        raise ConfigurationError(f"{path}: a union of several types is not supported")
    return types[0], _nullable(tree)


def _nullable(tree: Any) -> bool:
    return isinstance(tree, list) and "null" in tree


_IN_AVRO: Mapping[str, tuple[str, ...]] = {
    **{same: (same,) for same in ("boolean", "long", "float", "double", "string", "array", "map")},
    "record": ("struct",),
    "int": ("byte", "short", "integer"),
    "enum": ("string",),
    "bytes": ("binary",),
    "fixed": ("binary",),
    "int:date": ("date",),
    "long:timestamp-millis": ("timestamp",),
    "long:timestamp-micros": ("timestamp",),
    "long:local-timestamp-millis": ("timestamp_ntz",),
    "long:local-timestamp-micros": ("timestamp_ntz",),
    "string:uuid": ("string",),
}
"""Avro's type, with its logical type → the types that Spark encodes so, without loss."""


def _shape_of_avro(tree: Any, path: str) -> _Shape:
    node, nullable = _single(tree, path)
    kind, logical, shown = node["type"], node.get("logicalType"), _shown(node)
    fields = {each["name"]: (each["type"], not _nullable(each["type"])) for each in node.get("fields", ())}
    kinds = _IN_AVRO.get(f"{kind}:{logical}" if logical else kind, (shown,) if logical == "decimal" else None)
    if kinds is None:
        raise ConfigurationError(f"{path}: Avro's {shown} is not supported")
    return _Shape(shown, kinds, nullable, fields, node.get("items", node.get("values")), _TESTS.get(str(logical)))


def _shown(node: Mapping[str, Any]) -> str:
    if node.get("logicalType") == "decimal":
        return f"decimal({node.get('precision')},{node.get('scale', 0)})"
    return str(node.get("logicalType", node["type"]))


def _avro_of(kind: T.DataType, name: str) -> Any:
    """Return an Avro schema for a Spark type. Null is the default of a nullable field, which makes it compatible."""

    def of(inner: T.DataType, nullable: bool, part: str) -> Any:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", part):
            raise ConfigurationError(f"{name}: Avro does not allow the name {part!r}: rename the column")
        found = _avro_of(inner, f"{name}.{part}")  # A namespace for each struct: no two have one name.
        return ["null", found] if nullable else found

    match kind:
        case T.StructType():
            fields = [
                {"name": each.name, "type": of(each.dataType, each.nullable, each.name)}
                | ({"default": None} if each.nullable else {})
                for each in kind
            ]
            return {"type": "record", "name": name, "fields": fields}
        case T.ArrayType():
            return {"type": "array", "items": of(kind.elementType, kind.containsNull, "item")}
        case T.MapType():
            return {"type": "map", "values": of(kind.valueType, kind.valueContainsNull, "value")}
        case T.DecimalType():
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    fitting = [avro for avro, kinds in _IN_AVRO.items() if kind.typeName() in kinds and not avro.endswith("-millis")]
    if not fitting:
        raise ConfigurationError(f"Avro has no type for {kind.simpleString()} ({name}): cast it")
    primitive, _, logical = fitting[0].partition(":")
    return {"type": primitive, "logicalType": logical} if logical else primitive


def _refuse_unresolvable(writer: Any, reader: Any) -> None:
    if writer == reader:
        return
    checker: Any = ReaderWriterCompatibilityChecker  # it has no types
    try:
        result = checker().get_compatibility(*(parse(_text(each, logical_types=False)) for each in (reader, writer)))
    except AvroException as error:
        raise ConfigurationError(f"it is no Avro schema: {error}") from None
    why = sorted(f"{each.value} ({', '.join(sorted(result.messages))})" for each in result.incompatibilities)
    if why := why or [*_changes(writer, reader, "the record")]:
        raise ConfigurationError("; ".join(why))


_INEXACT = {("int", "float"), ("long", "float"), ("long", "double")}


def _changes(writer: Any, reader: Any, path: str) -> Iterator[str]:
    """Yield where Avro would read a value as another. It resolves by encodings: milliseconds, read as microseconds."""
    for written in _types(writer):
        same = [each for each in _types(reader) if each["type"] == written["type"]]
        for read in [each for each in same if each.get("name") == written.get("name")] or same or _types(reader):
            if not _means_the_same(written, read):
                yield f"{path}: {_shown(written)} would be read as {_shown(read)}"
            for key, mark in (("items", "[]"), ("values", "{}")):
                if key in written and key in read:
                    yield from _changes(written[key], read[key], path + mark)
            fields = {each["name"]: each["type"] for each in written.get("fields", ())}
            for each in read.get("fields", ()):
                name = next((name for name in (each["name"], *each.get("aliases", ())) if name in fields), None)
                if name is not None:
                    yield from _changes(fields[name], each["type"], f"{path}.{name}")


def _means_the_same(written: Mapping[str, Any], read: Mapping[str, Any]) -> bool:
    first, second = (None if each.get("logicalType") == "uuid" else each.get("logicalType") for each in (written, read))
    if first == second == "decimal":
        is_wider = read.get("precision", 0) >= written.get("precision", 0)
        return bool(is_wider and read.get("scale", 0) == written.get("scale", 0))
    return first == second and (written["type"], read["type"]) not in _INEXACT


def _connect_schema(tree: Any, path: str) -> dict[str, Any]:
    """Return the schema of Kafka Connect for a schema of its Avro converter."""
    node, optional = _single(tree, path)
    kind = str(node["type"])
    found: dict[str, Any] = {"type": node.get("connect.type", _IN_CONNECT.get(kind, kind)), "optional": optional}
    for key in ("name", "version", "parameters", "default"):
        if f"connect.{key}" in node:
            found[key] = node[f"connect.{key}"]
    if isinstance(found.get("default"), str) and found["type"] == "bytes":
        found["default"] = base64.standard_b64encode(found["default"].encode("latin-1")).decode()
    if kind == "record":
        found["fields"] = [
            _connect_schema(each["type"], f"{path}.{each['name']}") | {"field": each["name"]} for each in node["fields"]
        ]
    elif kind == "array" and found["type"] == "array":  # else a map whose keys are not strings
        found["items"] = _connect_schema(node["items"], f"{path}[]")
    elif kind == "map":
        found |= {"keys": {"type": "string"}, "values": _connect_schema(node["values"], f"{path}{{}}")}
    elif kind not in _IN_CONNECT:
        raise ConfigurationError(f"{path}: Avro's {kind} is not supported as Connect's {found['type']}")
    return found


_IN_CONNECT = {
    "record": "struct",
    "int": "int32",
    "long": "int64",
    "fixed": "bytes",
    "enum": "string",
    **{same: same for same in ("boolean", "float", "double", "bytes", "string")},
}


# JSON schemas. --------------------------------------------------------------------------------------------------------

_INTEGERS = ("byte", "short", "integer", "long")
_IN_JSON: Mapping[str, tuple[str, ...]] = {
    "boolean": ("boolean",),
    "integer": _INTEGERS,
    "number": (*_INTEGERS, "float", "double", "decimal"),
    "string": ("string", "binary", "date", "timestamp", "timestamp_ntz"),
    "string:date": ("date",),
    "string:date-time": ("timestamp",),
    "array": ("array",),
    "object": ("struct",),
}
_RULES = {"type", "format", "properties", "required", "additionalProperties", "items"}
_ANNOTATIONS = {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated"}


def _shape_of_json(node: Any, path: str) -> _Shape:
    node = node if isinstance(node, dict) else {}
    rules = [each for each in node if each not in _ANNOTATIONS and not each.startswith("connect.")]
    if rules in (["oneOf"], ["anyOf"]):
        [rule] = rules
        others = [each for each in node[rule] if each != {"type": "null"}]
        if len(others) == len(node[rule]) - 1 == 1:
            shape = _shape_of_json(others[0], path)
            return replace(shape, nullable=rule == "anyOf" or not shape.nullable)  # oneOf: not both
    types = node["type"] if isinstance(node.get("type"), list) else [node.get("type")]
    others = [each for each in types if each != "null"]
    unknown = [each for each in rules if each not in _RULES]
    if unknown or len(others) != 1:
        what = f"the rule {unknown[0]!r}" if unknown else "a schema without exactly one type"
        raise ConfigurationError(f"{path}: {what} is not supported, as Spark does not check it")
    kind, nullable, more = str(others[0]), len(others) < len(types), node.get("additionalProperties", True)
    properties, required = node.get("properties", {}), node.get("required", ())
    if kind == "object" and isinstance(more, dict) and not properties and not required:
        return _Shape("object", ("map",), nullable, of=more)
    if kind == "object" and (isinstance(more, dict) or not {*required} <= {*properties}):
        raise ConfigurationError(f"{path}: only fields in 'properties' are supported, in 'required' too")
    kinds = _IN_JSON.get(f"{kind}:{node['format']}" if "format" in node else kind)
    if kinds is None:
        raise ConfigurationError(f"{path}: JSON's {kind} {node.get('format', '')} is not supported")
    fields = {name: (each, name in required) for name, each in properties.items()}
    return _Shape(kind, kinds, nullable, fields, node.get("items"), _is_no_number if kind == "number" else None)


# Protobuf. ------------------------------------------------------------------------------------------------------------

_PROTOBUF_OPTIONS = {
    "mode": "FAILFAST",
    "emit.default.values": "true",  # else a zero of proto3 would be read as null
    "unwrap.primitive.wrapper.types": "true",
    "upcast.unsigned.ints": "true",
}
_INTEGERS_32, _INTEGERS_64 = ("byte", "short", "integer"), ("long",)
_IN_PROTOBUF: Mapping[str, tuple[str, ...]] = {
    **{same: (same,) for same in ("double", "float", "string")},
    "bool": ("boolean",),
    "bytes": ("binary",),
    **{f"{sign}32": _INTEGERS_32 for sign in ("int", "sint", "sfixed")},
    **{f"{sign}64": _INTEGERS_64 for sign in ("int", "sint", "sfixed")},
    "uint32": ("long",),
    "uint64": ("decimal(20,0)",),
    "google.protobuf.Timestamp": ("timestamp",),
    "google.protobuf.BoolValue": ("boolean",),
    "google.protobuf.BytesValue": ("binary",),
    "google.protobuf.DoubleValue": ("double",),
    "google.protobuf.FloatValue": ("float",),
    "google.protobuf.Int32Value": ("integer",),
    "google.protobuf.Int64Value": ("long",),
    "google.protobuf.StringValue": ("string",),
}
"""Protobuf's type → the types that Spark encodes so, without loss."""


def _message(client: SchemaRegistryClient, schema: Schema, subject: str, modes: set[str], name: str | None) -> Message:
    files: dict[str, Any] = {}

    def add(file: str, text: Schema, source: str) -> None:
        for imported, other, found in _referenced(client, text):
            if imported not in files:
                add(imported, found, other)
        add_file(files, file, _text_of(text, "PROTOBUF", source, modes))

    try:
        add("twopc_schema.proto", schema, subject)
        return Message.chosen(files, name)
    except ConfigurationError as error:
        raise ConfigurationError(f"the schema of subject {subject!r}: {error}") from None


def _refuse_without_package(session: SparkSession, message: Message) -> None:
    name, files = message.for_spark
    try:
        _ = session.range(0).select(protobuf.from_protobuf(_bytes(b""), name, binaryDescriptorSet=files)).schema
    except AnalysisException as error:
        if "NOT_LOADED" not in str(error.getCondition()):
            raise
        package = f"org.apache.spark:spark-protobuf_2.13:{session.version}"
        raise ConfigurationError(f"Protobuf needs {package}: add it to spark.jars.packages") from None


def _shape_of_protobuf(place: Any, path: str) -> _Shape:
    """Return the shape of a message or a field, or of a field's elements or a map's values: a tuple of their field."""
    if hasattr(place, "fields"):
        fields = {each.name: (each, each.is_required) for each in place.fields}
        groups = [[each.name for each in group.fields] for group in place.oneofs]
        return _Shape(place.full_name, ("struct",), False, fields, one_of=groups)
    is_element, [place] = (True, place) if isinstance(place, tuple) else (False, [place])
    if place.is_repeated and not is_element:
        kind = place.message_type
        if kind and kind.GetOptions().map_entry:
            return _Shape(shown(place), ("map",), False, key=kind.fields[0], of=(kind.fields[1],))
        return _Shape(shown(place), ("array",), False, of=(place,))
    name = shown(place).removeprefix("repeated ")
    may_be_null = place.has_presence and not (place.is_required or is_element or place.has_default_value)
    if kinds := ("string",) if place.enum_type else _IN_PROTOBUF.get(name):
        return _Shape(name, kinds, may_be_null, test=_TESTS.get(name))
    if not place.message_type or name.startswith("google.protobuf."):
        raise ConfigurationError(f"{path}: Protobuf's {name} is not supported")
    return replace(_shape_of_protobuf(place.message_type, path), nullable=may_be_null)


# Columns and schemas. -------------------------------------------------------------------------------------------------

_Test: TypeAlias = "Callable[[Column], Column]"
"""A function from a value to whether the schema can't hold it."""

_Within: TypeAlias = "Callable[[_Test], _Test]"


@dataclass(frozen=True)
class _Shape:
    """What a schema can hold at one place: Spark's ``kinds``, with a ``test`` of each value.

    ``fields`` has the schema of each field, with whether a column must be there; ``of`` is the schema of elements, and
    ``key`` that of a map's keys, if they need not be text. Of the fields in each group of ``one_of``, one has a value.
    """

    shown: str
    kinds: tuple[str, ...]
    nullable: bool
    fields: Mapping[str, tuple[Any, bool]] = field(default_factory=dict)
    of: Any = None
    test: _Test | None = None
    key: Any = None
    one_of: Sequence[Sequence[str]] = ()


def _is_no_millisecond(value: Column) -> Column:
    return F.date_trunc("MILLISECOND", value) != value


def _is_no_uuid(value: Column) -> Column:
    return ~value.rlike("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def _is_no_number(value: Column) -> Column:
    """JSON has no NaN and no infinity. Spark's NaN is greater than infinity."""
    return F.abs(value.cast("double")) >= F.lit(float("inf"))


def _is_no_text(value: Column) -> Column:
    """``CAST(value AS STRING)`` takes any bytes, which other readers refuse or replace."""
    return ~F.is_valid_utf8(value)


def _is_no_timestamp_of_protobuf(value: Column) -> Column:
    """Spark drops microseconds, and writes a part of a second before 1970 with a sign that others refuse."""
    is_early = value < F.timestamp_seconds(F.lit(0))
    return _is_no_millisecond(value) | (is_early & (F.date_trunc("SECOND", value) != value))


def _is_beyond(most: int, value: Column) -> Column:
    return (value < 0) | (value > most)


def _are_several(names: Sequence[str], value: Column) -> Column:
    return sum((value.getField(each).isNotNull().cast("int") for each in names), F.lit(0)) > 1


_TESTS: Mapping[str, _Test] = {
    "timestamp-millis": _is_no_millisecond,
    "local-timestamp-millis": _is_no_millisecond,
    "uuid": _is_no_uuid,
    "google.protobuf.Timestamp": _is_no_timestamp_of_protobuf,
    "uint32": partial(_is_beyond, 2**32 - 1),
    "uint64": partial(_is_beyond, 2**63 - 1),  # Spark fails above
}


def _faults(
    kind: T.DataType, schema: Any, shape_of: Callable[[Any, str], _Shape], path: str, may_be_null: bool = False
) -> Iterator[tuple[_Test, str]]:
    """Compare a Spark type with a schema by the names of the fields, and yield the tests that values still need.

    Raises:
        ConfigurationError: they do not fit. The error names the field, the column's type and the schema's.
    """
    shape = shape_of(schema, path)
    is_other_key = isinstance(kind, T.MapType) and not (shape.key or isinstance(kind.keyType, T.StringType))
    if is_other_key or not {kind.typeName(), kind.simpleString()} & {*shape.kinds}:
        raise ConfigurationError(f"{path}: Spark's {kind.simpleString()} does not fit the schema's {shape.shown}")
    if may_be_null and not shape.nullable:
        yield lambda value: value.isNull(), f"{path} is null, which the schema does not allow"
    if isinstance(kind, T.StringType):
        yield _is_no_text, f"{path} has a value that is not UTF-8"
    if shape.test:
        yield shape.test, f"{path} has a value that the schema's {shape.shown} can't hold exactly"
    for names in shape.one_of:
        there = [each for each in names if isinstance(kind, T.StructType) and each in kind.names]
        if len(there) > 1:
            yield partial(_are_several, there), f"{path} has several of {there}, of which the schema allows one"
    for part, inner, inner_schema, is_nullable, within in _parts(kind, shape, path):
        for test, message in _faults(inner, inner_schema, shape_of, path + part, is_nullable):
            yield within(test), message


def _parts(kind: T.DataType, shape: _Shape, path: str) -> Iterator[tuple[str, T.DataType, Any, bool, _Within]]:
    """Yield each part of a type: its path, type and schema, whether it may be null, and how to test it in its whole."""
    match kind:
        case T.StructType():
            if others := [each for each in kind.names if each not in shape.fields or kind.names.count(each) > 1]:
                raise ConfigurationError(f"{path}: the schema has no field for the columns {others}, or one for two")
            if absent := [name for name, (_, needed) in shape.fields.items() if needed and name not in kind.names]:
                raise ConfigurationError(f"{path}: there are no columns for {absent}, which can't be left out")
            for each in kind:
                schema, _ = shape.fields[each.name]
                yield f".{each.name}", each.dataType, schema, each.nullable, partial(_in_field, each.name)
        case T.ArrayType():
            yield "[]", kind.elementType, shape.of, kind.containsNull, partial(_in_any, lambda array: array)
        case T.MapType():
            yield "{key}", kind.keyType, shape.key or {"type": "string"}, False, partial(_in_any, F.map_keys)
            yield "{}", kind.valueType, shape.of, kind.valueContainsNull, partial(_in_any, F.map_values)


def _in_field(name: str, test: _Test) -> _Test:
    return lambda value: value.isNotNull() & test(value.getField(name))


def _in_any(elements: _Test, test: _Test) -> _Test:
    return lambda value: F.exists(elements(value), test)
