"""Avro schemas of a registry: names are replaced by definitions, and schemas compared by Avro's rules of resolution."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from avro.compatibility import ReaderWriterCompatibilityChecker
from avro.errors import AvroException
from avro.schema import parse
from confluent_kafka.schema_registry import Schema
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from twopc.errors import ConfigurationError
from twopc_kafka.registry.subjects import Subject


def expanded(subject: Subject, schema: Schema) -> Any:
    """Return a schema in which each name is replaced by its definition, even one from another subject."""
    texts = [*subject.referenced(schema).values(), subject.text(schema)]
    named: dict[str, Any] = {}
    try:
        return [parse_schema(json.loads(text), named_schemas=named, expand=True) for text in texts][-1]
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"the schema of subject {subject.name!r} is no Avro schema: {error!r}") from None


def text(tree: Any, *, logical_types: bool = True) -> str:
    """Return a schema for Java's parser, which accepts a definition once, and adds a namespace to names without one."""
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


def nullable(tree: Any) -> bool:
    """Return whether a type is a union with null."""
    return isinstance(tree, list) and "null" in tree


def without_null(tree: Any) -> Any:
    """Return a type without its alternative null."""
    types = _types(tree)
    return types[0] if len(types) == 1 else types


def single(tree: Any, path: str) -> dict[str, Any]:
    """Return the type of a schema, ignoring null. Raises ConfigurationError: there is more than one type."""
    types = _types(tree)
    if len(types) != 1:
        raise ConfigurationError(f"{path}: a union of several types is not supported")
    return types[0]


def _types(tree: Any) -> list[dict[str, Any]]:
    """Return the types of a union, or the single type, without null."""
    each = tree if isinstance(tree, list) else [tree]
    return [node if isinstance(node, dict) else {"type": node} for node in each if node != "null"]


def shown(node: Mapping[str, Any]) -> str:
    """Return the name of a type for error messages."""
    if node.get("logicalType") == "decimal":
        return f"decimal({node.get('precision')},{node.get('scale', 0)})"
    return str(node.get("logicalType", node["type"]))


def refuse_unresolvable(writer: Any, reader: Any) -> None:
    """Raise ConfigurationError unless the reader's schema reads each value of the writer's schema unchanged."""
    if writer == reader:
        return
    checker: Any = ReaderWriterCompatibilityChecker  # it has no types
    try:
        result = checker().get_compatibility(*(parse(text(each, logical_types=False)) for each in (reader, writer)))
    except AvroException as error:
        raise ConfigurationError(f"it is no Avro schema: {error}") from None
    why = sorted(f"{each.value} ({', '.join(sorted(result.messages))})" for each in result.incompatibilities)
    if why := why or [*_changes(writer, reader, "the record")]:
        raise ConfigurationError("; ".join(why))


def _changes(writer: Any, reader: Any, path: str) -> Iterator[str]:
    """Yield the places where Avro would change a value. Avro resolves schemas by their encoding alone, and so would
    read milliseconds as microseconds."""
    for written in _types(writer):
        same = [each for each in _types(reader) if each["type"] == written["type"]]
        for read in [each for each in same if each.get("name") == written.get("name")] or same or _types(reader):
            if not _means_the_same(written, read):
                yield f"{path}: {shown(written)} would be read as {shown(read)}"
            for key, mark in (("items", "[]"), ("values", "{}")):
                if key in written and key in read:
                    yield from _changes(written[key], read[key], path + mark)
            fields = {each["name"]: each["type"] for each in written.get("fields", ())}
            for each in read.get("fields", ()):
                name = next((name for name in (each["name"], *each.get("aliases", ())) if name in fields), None)
                if name is not None:
                    yield from _changes(fields[name], each["type"], f"{path}.{name}")


_INEXACT = {("int", "float"), ("long", "float"), ("long", "double")}


def _means_the_same(written: Mapping[str, Any], read: Mapping[str, Any]) -> bool:
    first, second = (None if each.get("logicalType") == "uuid" else each.get("logicalType") for each in (written, read))
    if first == second == "decimal":
        is_wider = read.get("precision", 0) >= written.get("precision", 0)
        return bool(is_wider and read.get("scale", 0) == written.get("scale", 0))
    return first == second and (written["type"], read["type"]) not in _INEXACT
