"""Columns to JSON, with the id of their schema in front."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from twopc.errors import ConfigurationError
from twopc_kafka.registry.fitting import Shape, faults
from twopc_kafka.registry.framing import framed
from twopc_kafka.registry.subjects import WRITING, Subject


def to_json_schema(
    frame: DataFrame,
    column: str | Column,
    *,
    subject: str,
    registry: SchemaRegistryClient,
    schema: str | Schema | None = None,
    register: bool = True,
) -> Column:
    """Encode a column of ``frame`` as JSON, with the id of its schema in front. Null stays null.

    The arguments and errors are those of ``to_avro``. The JSON schema may contain types, ``properties``, ``required``,
    ``items``, ``additionalProperties`` and null as an alternative. Other rules, such as ``pattern``, are refused
    because Spark does not check them. Times are written in UTC with microseconds, bytes in base64.
    """
    kind = frame.select(column).schema[0].dataType
    target = Subject(registry, subject, "JSON", WRITING)
    found, known_id = target.chosen(schema)
    try:
        parsed = json.loads(target.text(found))
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"the schema of subject {subject!r} is not JSON: {error}") from None
    possible = [*faults(kind, parsed, _shape, subject)]
    schema_id = target.id_of(found, known_id, register)
    options = {
        "ignoreNullFields": "false",
        "timeZone": "UTC",
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    }
    return framed(column, schema_id, possible, lambda value: F.encode(F.to_json(value, options), "UTF-8"))


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


def _shape(node: Any, path: str) -> Shape:
    node = node if isinstance(node, dict) else {}
    rules = [each for each in node if each not in _ANNOTATIONS and not each.startswith("connect.")]
    if rules in (["oneOf"], ["anyOf"]):
        [rule] = rules
        others = [each for each in node[rule] if each != {"type": "null"}]
        if len(others) == len(node[rule]) - 1 == 1:
            shape = _shape(others[0], path)
            return replace(shape, nullable=rule == "anyOf" or not shape.nullable)  # with oneOf, null must not fit both
    types = node["type"] if isinstance(node.get("type"), list) else [node.get("type")]
    others = [each for each in types if each not in ("null", None)]
    unknown = [each for each in rules if each not in _RULES]
    if unknown or len(others) != 1:
        what = f"the rule {unknown[0]!r}" if unknown else "a schema without exactly one type"
        raise ConfigurationError(f"{path}: {what} is not supported, as Spark does not check it")
    kind, nullable, more = str(others[0]), len(others) < len(types), node.get("additionalProperties", True)
    properties, required = node.get("properties", {}), node.get("required", ())
    if kind == "object" and isinstance(more, dict) and not properties and not required:
        return Shape("object", ("map",), nullable, of=more)
    if kind == "object" and (isinstance(more, dict) or not {*required} <= {*properties}):
        raise ConfigurationError(f"{path}: only fields in 'properties' are supported, in 'required' too")
    kinds = _IN_JSON.get(f"{kind}:{node['format']}" if "format" in node else kind)
    if kinds is None:
        raise ConfigurationError(f"{path}: JSON's {kind} {node.get('format', '')} is not supported")
    fields = {name: (each, name in required) for name, each in properties.items()}
    return Shape(kind, kinds, nullable, fields, node.get("items"), _is_no_number if kind == "number" else None)


def _is_no_number(value: Column) -> Column:
    """Find NaN and infinity, which JSON can't represent. Spark orders NaN above infinity."""
    return F.abs(value.cast("double")) >= F.lit(float("inf"))
