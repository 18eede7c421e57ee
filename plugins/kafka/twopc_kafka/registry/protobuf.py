"""Columns to Protobuf and back, with the id of their schema and the indexes of their message in front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name
from pyspark.sql.protobuf import functions as protobuf

from twopc.errors import ConfigurationError
from twopc_kafka.registry.fitting import Fault, Shape, faults, is_no_millisecond
from twopc_kafka.registry.framing import after, by_id, framed, literal
from twopc_kafka.registry.protobuf_schemas import Message, differences, framings, shown, unreadable
from twopc_kafka.registry.subjects import WRITING, Subject


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
    """Encode a column of ``frame`` as Protobuf, with its schema's id and message's indexes in front. Null stays null.

    ``message`` is the message's full name, such as ``shop.Order.Line``; None selects the schema's first message. The
    other arguments and the errors are those of ``to_avro``, with the text of a ``.proto`` file as ``schema``.

    A proto3 field without ``optional`` needs no column, but the values of its column can't be null. At most one column
    of a ``oneof`` may have a value. Timestamps finer than milliseconds and unsigned numbers from 2**63 up are refused,
    because Spark can't encode them exactly.
    """
    kind = frame.select(column).schema[0].dataType
    target = Subject(registry, subject, "PROTOBUF", WRITING)
    found, known_id = target.chosen(schema)
    chosen = _message(target, found, message)
    possible = [*faults(kind, chosen.descriptor, _shape, subject)]
    place, (name, files) = framings(chosen.indexes)[0], _for_spark(chosen, frame.sparkSession)
    schema_id = target.id_of(found, known_id, register)

    def encoded(value: Column) -> Column:
        return F.concat(literal(place), protobuf.to_protobuf(value, name, binaryDescriptorSet=files))

    return framed(column, schema_id, possible, encoded)


def from_protobuf(
    column: str | Column,
    *,
    subject: str | Sequence[str],
    registry: SchemaRegistryClient,
    reader: str | Schema | None = None,
    message: str | None = None,
) -> Column:
    """Decode Protobuf to Spark's types. Null stays null.

    ``message`` is the message's full name, such as ``shop.Order.Line``; None selects the first message of ``reader``.
    The other arguments and the errors are those of ``from_avro``. A record of another message fails the batch.
    """
    first, *_ = subjects = Subject.to_read(registry, subject, "PROTOBUF")
    found, _ = first.chosen(reader)
    chosen = _message(first, found, message)
    if problem := next(unreadable(chosen.descriptor), None):
        raise ConfigurationError(problem)
    full_name, (name, files) = chosen.descriptor.full_name, _for_spark(chosen, SparkSession.active())

    def decoded(body: Column, own_subject: Subject, schema: Schema) -> Column:
        own = _message(own_subject, schema, full_name)
        if why := [*differences(own.descriptor, chosen.descriptor)]:
            raise ConfigurationError("; ".join(why))
        branches = F.raise_error(F.lit(f"a record's message is not the schema's {full_name}"))
        for place in framings(own.indexes):
            rest = after(body, len(place))
            value = protobuf.from_protobuf(rest, name, binaryDescriptorSet=files, options=_OPTIONS)
            branches = F.when(F.substring(body, 1, len(place)) == literal(place), value).otherwise(branches)
        return branches

    return by_id(column, subjects, decoded)


_OPTIONS = {
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
"""Protobuf's type → the Spark types that it holds without loss."""


def _message(subject: Subject, schema: Schema, name: str | None) -> Message:
    texts = {**subject.referenced(schema), "twopc_schema.proto": subject.text(schema)}
    try:
        return Message.chosen(texts, name)
    except ConfigurationError as error:
        raise ConfigurationError(f"the schema of subject {subject.name!r}: {error}") from None


def _for_spark(message: Message, session: SparkSession) -> tuple[str, bytes]:
    """Return the name and the files with which Spark finds a message. Refuse a session without Spark's package."""
    name, files = message.for_spark
    try:
        _ = session.range(0).select(protobuf.from_protobuf(literal(b""), name, binaryDescriptorSet=files)).schema
    except AnalysisException as error:
        if "NOT_LOADED" not in str(error.getCondition()):
            raise
        package = f"org.apache.spark:spark-protobuf_2.13:{session.version}"
        raise ConfigurationError(f"Protobuf needs {package}: add it to spark.jars.packages") from None
    return name, files


def _is_no_timestamp(value: Column) -> Column:
    """Find timestamps that Spark writes incorrectly: it drops microseconds, and gives a fraction of a second before
    1970 a sign that other readers refuse."""
    is_early = value < F.timestamp_seconds(F.lit(0))
    return is_no_millisecond(value) | (is_early & (F.date_trunc("SECOND", value) != value))


def _is_beyond(most: int, value: Column) -> Column:
    return (value < 0) | (value > most)


_FAULTS: Mapping[str, Fault] = {
    "google.protobuf.Timestamp": _is_no_timestamp,
    "uint32": partial(_is_beyond, 2**32 - 1),
    "uint64": partial(_is_beyond, 2**63 - 1),  # Spark fails above
}


def _shape(place: Any, path: str) -> Shape:
    """Return the shape of a message or a field. A field in a tuple stands for its elements, or for a map's values."""
    if hasattr(place, "fields"):
        fields = {each.name: (each, each.is_required) for each in place.fields}
        groups = [[each.name for each in group.fields] for group in place.oneofs]
        return Shape(place.full_name, ("struct",), False, fields, one_of=groups)
    is_element, [place] = (True, place) if isinstance(place, tuple) else (False, [place])
    if place.is_repeated and not is_element:
        kind = place.message_type
        if kind and kind.GetOptions().map_entry:
            return Shape(shown(place), ("map",), False, key=kind.fields[0], of=(kind.fields[1],))
        return Shape(shown(place), ("array",), False, of=(place,))
    name = shown(place).removeprefix("repeated ")
    may_be_null = place.has_presence and not (place.is_required or is_element or place.has_default_value)
    if kinds := ("string",) if place.enum_type else _IN_PROTOBUF.get(name):
        return Shape(name, kinds, may_be_null, fault=_FAULTS.get(name))
    if not place.message_type or name.startswith("google.protobuf."):
        raise ConfigurationError(f"{path}: Protobuf's {name} is not supported")
    return replace(_shape(place.message_type, path), nullable=may_be_null)
