"""Values in the format of a schema registry, for Spark: a magic byte, the schema's id, and the record.

The registry is asked on the driver, where a DataFrame is made. Spark's own functions encode and decode, so no record
passes through Python. Avro needs Spark's package ``spark-avro``, of Spark's version: without it, Spark refuses the
expression. Protobuf is not supported.

    client = SchemaRegistryClient({"url": "http://registry:8081"})
    value = registry.to_avro(orders, F.struct("id", "amount"), subject="orders-value", registry=client)
    orders.select("key", value.alias("value"))
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from twopc.errors import ConfigurationError, Retriable

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_MAGIC, _HEADER_BYTES = b"\0", 5
_REST = 2**31 - 1  # Spark's longest substring


def to_avro(
    frame: DataFrame,
    column: str | Column,
    *,
    subject: str,
    registry: SchemaRegistryClient,
    schema: str | Schema | None = None,
    register: bool = True,
    normalize: bool = False,
) -> Column:
    """Return a column of ``frame`` as Avro, after the id of its schema. Null stays null.

    A value that the schema can't hold fails the batch before its decision, by the name of its field.

    Args:
        frame: has the column, and with it the column's type.
        column: what to encode, such as ``struct("id", "note")``.
        subject: the subject in the registry, such as ``orders-value``.
        registry: Confluent's client.
        schema: the Avro schema. None for the newest of the subject; if the subject has none, for a schema of the
            column's type, whose nullable fields are null by default. Confluent's ``Schema`` can have references.
        register: whether to register ``schema``. If False, the subject must have it.
        normalize: whether the registry compares schemas in their normal form.

    Raises:
        ConfigurationError: the registry refuses the schema, such as an incompatible one, or does not have it; or the
            column does not fit it. Nothing was written.
        Retriable: the registry did not answer.
    """
    from pyspark.sql.avro import functions as avro

    kind = frame.select(column).schema[0].dataType
    with _asking(subject):
        name = re.sub(r"[^A-Za-z0-9_]", "_", subject)
        found, known_id = _chosen(registry, subject, "AVRO", schema, lambda: json.dumps(_avro_of(kind, name)))
        tree = _tree(registry, found, subject)
        tests = [*_faults(kind, _shape_of_avro(tree, subject), False, subject)]
        schema_id = known_id or _registered(registry, subject, found, register, normalize)
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
    that can't be decoded, fails the batch. For schemas that are registered while a query runs, call this for each
    batch, in the function for ``foreachBatch``.

    Args:
        column: the binary column, such as ``value`` of Spark's Kafka source.
        subject: the subject in the registry, or several if the records have the schemas of several.
        registry: Confluent's client.
        reader: the Avro schema that all records are resolved to. None for the newest of the (first) subject.

    Raises:
        ConfigurationError: the registry does not have the subject, or a schema there can't be resolved to ``reader``.
        Retriable: the registry did not answer.
    """
    from pyspark.sql.avro import functions as avro

    first, *_ = subjects = _names(subject)
    writers = _writers(registry, subjects)
    with _asking(first):
        found, _ = _chosen(registry, first, "AVRO", reader, None)
        expected = _without_null(_tree(registry, found, first))
    for schema_id, tree in writers.items():
        _refuse_unresolvable(_without_null(tree), expected, schema_id)
    # Spark's decoder takes no record that may be null: the null is found before it.
    options = {"mode": "FAILFAST", "avroSchema": _text(expected), "datetimeRebaseMode": "CORRECTED"}
    return _by_id(column, subjects, writers, lambda body, tree: avro.from_avro(body, _text(tree), options))


def connect_json(column: str | Column, *, subject: str | Sequence[str], registry: SchemaRegistryClient) -> Column:
    """Return records that Kafka Connect wrote in Avro as Connect's JSON with its schema, for ``twopc.spark.debezium``.

    Use it for the keys and for the values. Each record has the fields of its own schema. The arguments and errors are
    those of ``from_avro``.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its usual name
    from pyspark.sql.avro import functions as avro

    subjects = _names(subject)

    def wrapped(body: Column, tree: Any) -> Column:
        # Without logical types, dates are numbers and decimals are bytes, as in Connect's JSON.
        encoded = _mapped(tree, _plain)
        options = {"mode": "FAILFAST", "avroSchema": _text(_without_null(encoded))}
        payload = F.to_json(avro.from_avro(body, _text(encoded), options), {"ignoreNullFields": "false"})
        schema = json.dumps(_connect_schema(tree, subjects[0]))
        return F.encode(F.concat(F.lit(f'{{"schema":{schema},"payload":'), payload, F.lit("}")), "UTF-8")

    return _by_id(column, subjects, _writers(registry, subjects), wrapped)


def to_json_schema(
    frame: DataFrame,
    column: str | Column,
    *,
    subject: str,
    registry: SchemaRegistryClient,
    schema: str | Schema | None = None,
    register: bool = True,
    normalize: bool = False,
) -> Column:
    """Return a column of ``frame`` as JSON, after the id of its schema. Null stays null.

    The arguments and errors are those of ``to_avro``. The JSON schema may have types, ``properties``, ``required``,
    ``items``, ``additionalProperties`` and alternatives to null. Other rules, such as ``pattern``, are refused: Spark
    does not check them. Times are written with microseconds, in UTC; bytes in base64.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its usual name

    kind = frame.select(column).schema[0].dataType
    with _asking(subject):
        found, known_id = _chosen(registry, subject, "JSON", schema, None)
        tests = [*_faults(kind, _shape_of_json(_parsed(found, subject), subject), False, subject)]
        schema_id = known_id or _registered(registry, subject, found, register, normalize)
    options = {
        "ignoreNullFields": "false",
        "timeZone": "UTC",
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    }
    return _framed(column, schema_id, tests, lambda value: F.encode(F.to_json(value, options), "UTF-8"))


# Frames. --------------------------------------------------------------------------------------------------------------


_LATER = "A schema that was registered since is known when the function for this column is called again"


def _header(schema_id: int) -> bytearray:
    return bytearray(_MAGIC + schema_id.to_bytes(_HEADER_BYTES - 1, "big"))


def _framed(
    column: str | Column, schema_id: int, tests: Sequence[tuple[_Test, str]], encoded: Callable[[Column], Column]
) -> Column:
    from pyspark.sql import functions as F  # noqa: N812  # its usual name

    value = F.col(column) if isinstance(column, str) else column
    framed = F.when(value.isNull(), F.lit(None))
    for is_fault, told in tests:
        framed = framed.when(is_fault(value), F.raise_error(F.lit(told)))
    return framed.otherwise(F.concat(F.lit(_header(schema_id)), encoded(value)))


def _by_id(
    column: str | Column,
    subjects: Sequence[str],
    schemas: Mapping[int, Any],
    decoded: Callable[[Column, Any], Column],
) -> Column:
    """Return each record's own branch of an expression, by the id in its header."""
    from pyspark.sql import functions as F  # noqa: N812  # its usual name

    value = F.col(column) if isinstance(column, str) else column
    header, body = F.substring(value, 1, _HEADER_BYTES), F.substring(value, _HEADER_BYTES + 1, _REST)
    found = F.when(value.isNull(), F.lit(None))
    for known_id, tree in schemas.items():
        is_own = header == F.lit(_header(known_id))
        if isinstance(tree, list) and "null" in tree:
            branch = bytearray([2 * tree.index("null")])  # a zigzag varint
            found = found.when(is_own & (F.substring(body, 1, 1) == F.lit(branch)), F.lit(None))
        found = found.when(is_own, decoded(body, tree))
    has_id = (F.length(header) == _HEADER_BYTES) & (F.substring(value, 1, 1) == F.lit(bytearray(_MAGIC)))
    known = f", which subject {', '.join(subjects)} does not have: it has {', '.join(map(str, sorted(schemas)))}"
    schema_id = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10)
    unknown = F.concat(F.lit("a record has the schema id "), schema_id, F.lit(f"{known}. {_LATER}"))
    unframed = F.concat(F.lit("a record has no schema id: it begins with the bytes 0x"), F.hex(header))
    return found.otherwise(F.raise_error(F.when(has_id, unknown).otherwise(unframed)))


# The registry. --------------------------------------------------------------------------------------------------------

_NOT_FOUND, _TOO_MANY, _SERVER_ERROR = 404, 429, 500
_WHY = {
    409: "the schema is not compatible with those that the subject has",
    422: "the schema is not valid",
    _NOT_FOUND: "it does not have the subject, or not this schema",
}


@contextlib.contextmanager
def _asking(subject: str) -> Iterator[None]:
    """Raise the registry's refusal as an error of this project, with the registry's words."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    try:
        yield
    except SchemaRegistryError as error:
        status, text = int(error.http_status_code), str(error.error_message)
        if status >= _SERVER_ERROR or status == _TOO_MANY:
            raise Retriable(f"the schema registry answered {status} for subject {subject!r}: {text}") from None
        why = _WHY.get(status, "it refused the request")
        raise ConfigurationError(f"the schema registry refused subject {subject!r}: {why} ({status}: {text})") from None
    except Exception as error:
        # The client's errors show URLs, which may have credentials. Its HTTP library has two names.
        if "TransportError" not in {each.__name__ for each in type(error).__mro__}:
            raise
        raise Retriable(f"the schema registry did not answer: {type(error).__name__}") from None


def _names(subject: str | Sequence[str]) -> list[str]:
    return [subject] if isinstance(subject, str) else [*subject]


def _chosen(
    client: SchemaRegistryClient, subject: str, kind: str, given: str | Schema | None, made: Callable[[], str] | None
) -> tuple[Schema, int | None]:
    """Return the schema that was given, else the subject's newest with its id, else the one that is ``made``."""
    from confluent_kafka.schema_registry import Schema
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    if given is None:
        try:
            newest: Any = client.get_latest_version(subject)
        except SchemaRegistryError as error:
            if int(error.http_status_code) != _NOT_FOUND or made is None:
                raise
            given = made()
        else:
            if newest.schema.schema_type != kind:
                raise ConfigurationError(f"subject {subject!r} has schemas of type {newest.schema.schema_type}")
            return newest.schema, int(newest.schema_id)
    return Schema(given, kind) if isinstance(given, str) else given, None


def _registered(client: SchemaRegistryClient, subject: str, schema: Schema, register: bool, normalize: bool) -> int:
    ask: Any = client.register_schema_full_response if register else client.lookup_schema
    return int(ask(subject, schema, normalize_schemas=normalize).schema_id)


def _versions(client: SchemaRegistryClient, subjects: Sequence[str]) -> list[tuple[int, Schema]]:
    """Return the id and the schema of each version, deleted ones included."""
    with _asking(", ".join(subjects)):
        found: list[Any] = [
            client.get_version(subject, version, deleted=True)
            for subject in subjects
            for version in client.get_versions(subject, deleted=True)
        ]
    return [(int(each.schema_id), each.schema) for each in found]


def _writers(client: SchemaRegistryClient, subjects: Sequence[str]) -> dict[int, Any]:
    versions = _versions(client, subjects)
    with _asking(subjects[0]):
        return {schema_id: _tree(client, schema, subjects[0]) for schema_id, schema in versions}


def _parsed(schema: Schema, subject: str) -> Any:
    try:
        return json.loads(str(schema.schema_str))
    except ValueError as error:
        raise ConfigurationError(f"the schema of subject {subject!r} is not JSON: {error}") from None


# Avro. ----------------------------------------------------------------------------------------------------------------


def _tree(client: SchemaRegistryClient, schema: Schema, subject: str, named: dict[str, Any] | None = None) -> Any:
    """Return an Avro schema in which each name is replaced by its definition, those in other subjects too."""
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    named = {} if named is None else named
    references: Any = schema.references or ()
    for other in references:
        _tree(client, client.get_version(other.subject, other.version, deleted=True).schema, other.subject, named)
    try:
        return parse_schema(_parsed(schema, subject), named_schemas=named, expand=True)
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"the schema of subject {subject!r} is no Avro schema: {error!r}") from None


def _text(tree: Any) -> str:
    """Return a schema for Spark's parser, which takes a definition once."""
    return json.dumps(_mapped(tree, _once(set())))


def _mapped(node: Any, changed: Callable[[Any], Any]) -> Any:
    """Return a schema with each type changed, from the outside in."""
    if isinstance(node, list):
        return [_mapped(each, changed) for each in node]
    if not isinstance(node := changed(node), dict):
        return node
    parts = {key: _mapped(node[key], changed) for key in ("items", "values") if key in node}
    if "fields" in node:
        parts["fields"] = [each | {"type": _mapped(each["type"], changed)} for each in node["fields"]]
    return node | parts


def _once(seen: set[str]) -> Callable[[Any], Any]:
    def named(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if (name := node.get("name")) in seen:
            return name
        if name:
            seen.add(name)
        return {key: value for key, value in node.items() if not key.startswith("__")}  # fastavro's own

    return named


def _plain(node: Any) -> Any:
    """Return a type without its logical type."""
    return {key: value for key, value in node.items() if key != "logicalType"} if isinstance(node, dict) else node


def _without_null(tree: Any) -> Any:
    if not isinstance(tree, list):
        return tree
    others = [each for each in tree if each != "null"]
    return others[0] if len(others) == 1 else tree


_IN_AVRO: Mapping[str, tuple[str, ...]] = {
    "boolean": ("boolean",),
    "int": ("byte", "short", "integer"),
    "long": ("long",),
    "float": ("float",),
    "double": ("double",),
    "string": ("string",),
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
    node = _without_null(tree)
    if isinstance(node, list):
        raise ConfigurationError(f"{path}: a union of several types is not supported")
    node = node if isinstance(node, dict) else {"type": node}
    kind, logical, shown = node["type"], node.get("logicalType"), _shown(node)
    nullable = isinstance(tree, list)
    if kind == "record":
        fields = {
            each["name"]: (_shape_of_avro(each["type"], f"{path}.{each['name']}"), "null" not in each["type"])
            for each in node["fields"]
        }
        return _Shape(shown, ("struct",), nullable, fields)
    if kind == "array":
        return _Shape(shown, ("array",), nullable, of=_shape_of_avro(node["items"], f"{path}[]"))
    if kind == "map":
        return _Shape(shown, ("map",), nullable, of=_shape_of_avro(node["values"], f"{path}{{}}"))
    if logical == "decimal":
        return _Shape(shown, (f"decimal({node['precision']},{node.get('scale', 0)})",), nullable)
    fitting = _IN_AVRO.get(f"{kind}:{logical}" if logical else kind)
    if fitting is None:
        raise ConfigurationError(f"{path}: Avro's {shown} is not supported")
    return _Shape(shown, fitting, nullable, test=_is_no_millisecond if str(logical).endswith("-millis") else None)


def _shown(node: Mapping[str, Any]) -> str:
    if node.get("logicalType") == "decimal":
        return f"decimal({node['precision']},{node.get('scale', 0)})"
    return str(node.get("logicalType", node["type"]))


def _avro_of(kind: DataType, name: str) -> Any:
    """Return an Avro schema for a Spark type. Null is the default of a nullable field, which makes it compatible."""
    from pyspark.sql import types as T  # noqa: N812  # its usual name

    def of(inner: DataType, nullable: bool, part: str) -> Any:
        found = _avro_of(inner, f"{name}_{part}")
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


def _refuse_unresolvable(writer: Any, reader: Any, schema_id: int) -> None:
    """Avro resolves by the encodings alone, so that milliseconds would be read as microseconds."""
    from avro.compatibility import ReaderWriterCompatibilityChecker
    from avro.schema import parse

    checker: Any = ReaderWriterCompatibilityChecker  # it has no types
    encodings = (parse(_text(_mapped(each, _plain))) for each in (reader, writer))
    result = checker().get_compatibility(*encodings)
    why = sorted(f"{each.value} ({', '.join(sorted(result.messages))})" for each in result.incompatibilities)
    written, read = _logical_types(writer, ""), _logical_types(reader, "")
    why += [
        f"field {path[1:]}: {', '.join(sorted(kinds))} is read as {', '.join(sorted(read[path]))}"
        for path, kinds in written.items()
        if path in read and not kinds <= read[path]
    ]
    if why:
        raise ConfigurationError(f"records with the schema id {schema_id} can't be read: {'; '.join(why)}")


def _logical_types(tree: Any, path: str) -> dict[str, set[str]]:
    """Return what values mean beyond their encoding, by path. A field that was renamed has the paths of its aliases."""
    found: dict[str, set[str]] = {}

    def add(inner: Any, paths: Sequence[str]) -> None:
        for each in paths:
            for where, kinds in _logical_types(inner, each).items():
                found.setdefault(where, set()).update(kinds)

    for node in tree if isinstance(tree, list) else [tree]:
        if not isinstance(node, dict):
            if node != "null":
                found.setdefault(path, set()).add("a plain value")
            continue
        for part in node.get("fields", ()):
            add(part["type"], [f"{path}.{name}" for name in (part["name"], *part.get("aliases", ()))])
        for key, mark in (("items", "[]"), ("values", "{}")):
            if key in node:
                add(node[key], [path + mark])
        found.setdefault(path, set()).add(_shown(node) if "logicalType" in node else "a plain value")
    return found


def _connect_schema(tree: Any, path: str) -> dict[str, Any]:
    """Return the schema of Kafka Connect for a schema of its Avro converter."""
    node = _without_null(tree)
    if isinstance(node, list):
        raise ConfigurationError(f"{path}: a union of several types is not supported")
    node = node if isinstance(node, dict) else {"type": node}
    kind = str(node["type"])
    found: dict[str, Any] = {"type": node.get("connect.type", _IN_CONNECT.get(kind, kind))}
    found["optional"] = isinstance(tree, list)
    for key in ("name", "version", "parameters", "default"):
        if f"connect.{key}" in node:
            found[key] = node[f"connect.{key}"]
    if isinstance(found.get("default"), str) and found["type"] == "bytes":
        found["default"] = base64.standard_b64encode(found["default"].encode("latin-1")).decode()
    if kind == "record":
        found["fields"] = [
            _connect_schema(each["type"], f"{path}.{each['name']}") | {"field": each["name"]} for each in node["fields"]
        ]
    elif kind == "array":
        found["items"] = _connect_schema(node["items"], f"{path}[]")
    elif kind == "map":
        found |= {"keys": {"type": "string"}, "values": _connect_schema(node["values"], f"{path}{{}}")}
    elif kind not in _IN_CONNECT:
        raise ConfigurationError(f"{path}: Avro's {kind} is not supported")
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
}
_RULES = {"type", "format", "properties", "required", "additionalProperties", "items", "oneOf", "anyOf"}
_ANNOTATIONS = {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated"}


def _shape_of_json(node: Any, path: str) -> _Shape:
    node = node if isinstance(node, dict) else {}
    for key in ("oneOf", "anyOf"):
        others = [each for each in node.get(key, ()) if each != {"type": "null"}]
        if len(others) == 1 and len(others) < len(node[key]):
            rest = {name: value for name, value in node.items() if name != key} | others[0]
            return replace(_shape_of_json(rest, path), nullable=True)
    types = node["type"] if isinstance(node.get("type"), list) else [node.get("type")]
    others = [each for each in types if each != "null"]
    rules = [each for each in node if each not in _RULES | _ANNOTATIONS and not each.startswith("connect.")]
    if rules or len(others) != 1 or "oneOf" in node or "anyOf" in node:
        what = f"the rule {rules[0]!r}" if rules else "a schema without exactly one type"
        raise ConfigurationError(f"{path}: {what} is not supported, as Spark does not check it")
    kind, nullable, more = others[0], len(others) < len(types), node.get("additionalProperties", True)
    if kind == "object" and "properties" not in node and isinstance(more, dict) and not node.get("required"):
        return _Shape("object", ("map",), nullable, of=_shape_of_json(more, f"{path}{{}}"))
    if kind == "object":
        if isinstance(more, dict):
            raise ConfigurationError(f"{path}: 'properties' with a schema for others is not supported")
        fields = {
            name: (_shape_of_json(each, f"{path}.{name}"), name in node.get("required", ()))
            for name, each in node.get("properties", {}).items()
        }
        return _Shape("object", ("struct",), nullable, fields)
    if kind == "array":
        return _Shape("array", ("array",), nullable, of=_shape_of_json(node.get("items"), f"{path}[]"))
    fitting = _IN_JSON.get(f"{kind}:{node['format']}" if "format" in node else kind)
    if fitting is None:
        raise ConfigurationError(f"{path}: JSON's {kind} {node.get('format', '')} is not supported")
    return _Shape(str(kind), fitting, nullable, test=_is_no_number if kind == "number" else None)


# Columns and schemas. -------------------------------------------------------------------------------------------------

_Test: TypeAlias = "Callable[[Column], Column]"
"""A function from a value to whether the schema can't hold it."""


@dataclass(frozen=True)
class _Shape:
    """What a schema can hold at one place: Spark's ``kinds``, with a ``test`` of each value.

    ``fields`` has a struct's fields, with their own shape and whether a column must be there; ``of`` is for elements.
    """

    shown: str
    kinds: tuple[str, ...]
    nullable: bool = False
    fields: Mapping[str, tuple[_Shape, bool]] = field(default_factory=dict)
    of: _Shape | None = None
    test: Callable[[DataType], _Test | None] | None = None


def _is_no_millisecond(_: DataType) -> _Test:
    from pyspark.sql import functions as F  # noqa: N812  # its usual name

    return lambda value: F.date_trunc("MILLISECOND", value) != value


def _is_no_number(kind: DataType) -> _Test | None:
    """JSON has no NaN and no infinity."""
    from pyspark.sql import functions as F  # noqa: N812  # its usual name

    if kind.typeName() not in ("float", "double"):
        return None
    return lambda value: F.isnan(value) | (F.abs(value) == F.lit(float("inf")))


def _faults(kind: DataType, shape: _Shape, may_be_null: bool, path: str) -> Iterator[tuple[_Test, str]]:
    """Compare a Spark type with a schema by the names of the fields, and yield the tests that values still need.

    Raises:
        ConfigurationError: they do not fit. The error names the field, the column's type and the schema's.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its usual name
    from pyspark.sql import types as T  # noqa: N812  # its usual name

    is_other_key = isinstance(kind, T.MapType) and not isinstance(kind.keyType, T.StringType)
    if is_other_key or not {kind.typeName(), kind.simpleString()} & {*shape.kinds}:
        raise ConfigurationError(f"{path}: Spark's {kind.simpleString()} does not fit the schema's {shape.shown}")
    if may_be_null and not shape.nullable:
        yield lambda value: value.isNull(), f"{path} is null, which the schema does not allow"
    if shape.test and (test := shape.test(kind)):
        yield test, f"{path} has a value that the schema's {shape.shown} can't hold exactly"
    match kind:
        case T.StructType():
            _refuse_other_fields(kind, shape, path)
            for each in kind:
                inner = _faults(each.dataType, shape.fields[each.name][0], each.nullable, f"{path}.{each.name}")
                yield from ((_in_field(each.name, test), told) for test, told in inner)
        case T.ArrayType() if shape.of:
            inner = _faults(kind.elementType, shape.of, kind.containsNull, f"{path}[]")
            yield from ((_in_any(test, lambda array: array), told) for test, told in inner)
        case T.MapType() if shape.of:
            inner = _faults(kind.valueType, shape.of, kind.valueContainsNull, f"{path}{{}}")
            yield from ((_in_any(test, F.map_values), told) for test, told in inner)


def _refuse_other_fields(kind: StructType, shape: _Shape, path: str) -> None:
    for name in kind.names:
        if name not in shape.fields:
            raise ConfigurationError(f"{path}: the schema has no field for the column {name!r}")
        if kind.names.count(name) > 1:
            raise ConfigurationError(f"{path}: two columns have the name {name!r}")
    for name, (_, is_required) in shape.fields.items():
        if is_required and name not in kind.names:
            raise ConfigurationError(f"{path}: there is no column for the field {name!r}, which can't be left out")


def _in_field(name: str, test: _Test) -> _Test:
    return lambda value: value.isNotNull() & test(value.getField(name))


def _in_any(test: _Test, elements: _Test) -> _Test:
    from pyspark.sql import functions as F  # noqa: N812  # its usual name

    return lambda value: F.exists(elements(value), test)
