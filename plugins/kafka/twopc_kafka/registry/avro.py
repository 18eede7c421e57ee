"""Columns to Avro and back, with the id of their schema in front."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its usual name
from pyspark.sql import types as T  # noqa: N812  # its usual name
from pyspark.sql.avro import functions as avro

from twopc.errors import ConfigurationError
from twopc_kafka.registry import avro_schemas
from twopc_kafka.registry.fitting import Fault, Shape, faults, is_no_millisecond
from twopc_kafka.registry.framing import by_id, framed, literal
from twopc_kafka.registry.subjects import WRITING, Subject

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
    """Encode a column of ``frame`` as Avro, with the id of its schema in front. Null stays null.

    A value that the schema can't hold fails the batch before its decision. The error names the field.

    Args:
        frame: the DataFrame with the column, which determines the column's type.
        column: the column to encode, such as ``struct("id", "note")``.
        subject: the subject in the registry, such as ``orders-value``.
        registry: Confluent's client.
        schema: the Avro schema. None selects the subject's newest schema or, if the subject has none, a schema made
            from the column's type, with null as the default of nullable fields. Confluent's ``Schema`` can have
            references.
        register: whether to register ``schema``. If False, the subject must already contain it.

    Raises:
        ConfigurationError: the registry refuses the schema, for example as incompatible, or does not contain it; or the
            column does not fit it. No record was written.
        Retriable: the registry did not answer.
    """
    if frame.sparkSession.conf.get(_REBASING) == "LEGACY":
        raise ConfigurationError(f"{_REBASING} = LEGACY writes dates before 1582 as others: set it to CORRECTED")
    kind = frame.select(column).schema[0].dataType
    name = re.sub(r"^(?=\d)|[^A-Za-z0-9_]", "_", subject)
    target = Subject(registry, subject, "AVRO", WRITING)
    found, known_id = target.chosen(schema, lambda: json.dumps(_schema_of(kind, name)))
    tree = avro_schemas.expanded(target, found)
    possible = [*faults(kind, tree, _shape, subject)]
    schema_id = target.id_of(found, known_id, register)
    return framed(column, schema_id, possible, lambda value: avro.to_avro(value, avro_schemas.text(tree)))


def from_avro(
    column: str | Column,
    *,
    subject: str | Sequence[str],
    registry: SchemaRegistryClient,
    reader: str | Schema | None = None,
) -> Column:
    """Decode Avro to Spark's types, each record by the schema of its own id. Null stays null.

    The ids are those of the subject's schemas at the time of the call, including deleted schemas. A record with another
    id, or a record that can't be read exactly as ``reader``, fails the batch. If schemas are registered while a query
    runs, call this for each batch, in the function for ``foreachBatch``.

    Args:
        column: the binary column, such as ``value`` of Spark's Kafka source.
        subject: the subject in the registry, or several if the records use schemas of several subjects.
        registry: Confluent's client.
        reader: the Avro schema that all records are resolved to. None selects the newest schema of the (first) subject.

    Raises:
        ConfigurationError: the registry does not know the subject or refuses the request, or no schema of the subject
            can be read as ``reader``.
        Retriable: the registry did not answer.
    """
    first, *_ = subjects = Subject.to_read(registry, subject, "AVRO")
    found, _ = first.chosen(reader)
    expected = avro_schemas.without_null(avro_schemas.expanded(first, found))

    def decoded(body: Column, tree: Any) -> Column:
        avro_schemas.refuse_unresolvable(avro_schemas.without_null(tree), expected)
        return in_spark(body, tree, expected)

    return by_own_schema(column, subjects, decoded)


def in_spark(body: Column, tree: Any, reader: Any, *, logical_types: bool = True) -> Column:
    """Decode records of the schema ``tree`` to Spark's types, resolved to ``reader``. A damaged record fails the
    batch."""
    texts = [avro_schemas.text(each, logical_types=logical_types) for each in (tree, reader)]
    options = {"mode": "FAILFAST", "avroSchema": texts[1], "datetimeRebaseMode": "CORRECTED"}
    return avro.from_avro(body, texts[0], options)


def by_own_schema(
    column: str | Column, subjects: Sequence[Subject], decoded: Callable[[Column, Any], Column]
) -> Column:
    """Decode each record by ``decoded``, called with the record's body and its own schema's tree. Null stays null."""

    def of_schema(body: Column, subject: Subject, schema: Schema) -> Column:
        tree = avro_schemas.expanded(subject, schema)
        if not avro_schemas.nullable(tree):
            return decoded(body, tree)
        # Spark's decoder does not accept a nullable record. The branch of a union is a zigzag varint.
        is_null = F.substring(body, 1, 1) == literal(bytes([2 * tree.index("null")]))
        return F.when(is_null, F.lit(None)).otherwise(decoded(body, tree))

    return by_id(column, subjects, of_schema)


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
"""Avro's type, with its logical type → the Spark types that it holds without loss."""


def _is_no_uuid(value: Column) -> Column:
    return ~value.rlike("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


_FAULTS: Mapping[str, Fault] = {
    "timestamp-millis": is_no_millisecond,
    "local-timestamp-millis": is_no_millisecond,
    "uuid": _is_no_uuid,
}


def _shape(tree: Any, path: str) -> Shape:
    node = avro_schemas.single(tree, path)
    kind, logical, shown = node["type"], node.get("logicalType"), avro_schemas.shown(node)
    fields = {each["name"]: (each["type"], not avro_schemas.nullable(each["type"])) for each in node.get("fields", ())}
    kinds = _IN_AVRO.get(f"{kind}:{logical}" if logical else kind, (shown,) if logical == "decimal" else None)
    if kinds is None:
        raise ConfigurationError(f"{path}: Avro's {shown} is not supported")
    of, fault = node.get("items", node.get("values")), _FAULTS.get(str(logical))
    return Shape(shown, kinds, avro_schemas.nullable(tree), fields, of, fault)


def _schema_of(kind: T.DataType, name: str, nullable: bool = False) -> Any:
    """Return an Avro schema for a Spark type. Nullable fields default to null, so that adding one is compatible."""
    found: Any
    match kind:
        case T.StructType():
            if odd := [each for each in kind.names if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", each)]:
                raise ConfigurationError(f"{name}: Avro does not allow the name {odd[0]!r}: rename the column")
            fields = [
                {"name": each.name, "type": _schema_of(each.dataType, f"{name}.{each.name}", each.nullable)}
                | ({"default": None} if each.nullable else {})
                for each in kind
            ]  # Each struct's name is the namespace of the structs inside it, so all full names differ.
            found = {"type": "record", "name": name, "fields": fields}
        case T.ArrayType():
            found = {"type": "array", "items": _schema_of(kind.elementType, f"{name}.item", kind.containsNull)}
        case T.MapType():
            found = {"type": "map", "values": _schema_of(kind.valueType, f"{name}.value", kind.valueContainsNull)}
        case T.DecimalType():
            found = {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        case _:
            fitting = [avro for avro, kinds in _IN_AVRO.items() if kind.typeName() in kinds and "-millis" not in avro]
            if not fitting:
                raise ConfigurationError(f"Avro has no type for {kind.simpleString()} ({name}): cast it")
            primitive, _, logical = fitting[0].partition(":")
            found = {"type": primitive, "logicalType": logical} if logical else primitive
    return ["null", found] if nullable else found
