"""Conversion of Kafka Connect's records from Avro to Connect's JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from twopc.errors import ConfigurationError
from twopc_kafka.registry import avro_schemas
from twopc_kafka.registry.avro import by_own_schema, in_spark
from twopc_kafka.registry.subjects import Subject


def connect_json(column: str | Column, *, subject: str | Sequence[str], registry: SchemaRegistryClient) -> Column:
    """Convert records that Kafka Connect wrote in Avro to Connect's JSON with its schema, for ``twopc.spark.debezium``.

    Use it for the keys and for the values. Each record keeps the fields of its own schema. The arguments and errors are
    those of ``from_avro``.
    """

    def wrapped(body: Column, tree: Any) -> Column:
        schema = json.dumps(_in_connect(tree, "the record"))
        # Without logical types, dates are numbers and decimals are bytes, as in Connect's JSON.
        decoded = in_spark(body, tree, avro_schemas.without_null(tree), logical_types=False)
        payload = F.to_json(decoded, {"ignoreNullFields": "false"})
        return F.encode(F.concat(F.lit(f'{{"schema":{schema},"payload":'), payload, F.lit("}")), "UTF-8")

    return by_own_schema(column, Subject.to_read(registry, subject, "AVRO"), wrapped)


def _in_connect(tree: Any, path: str) -> dict[str, Any]:
    """Return Kafka Connect's schema for a schema that its Avro converter wrote."""
    node = avro_schemas.single(tree, path)
    kind = str(node["type"])
    found: dict[str, Any] = {
        "type": node.get("connect.type", _IN_CONNECT.get(kind, kind)),
        "optional": avro_schemas.nullable(tree),
    }
    for key in ("name", "version", "parameters", "default"):
        if f"connect.{key}" in node:
            found[key] = node[f"connect.{key}"]
    if isinstance(found.get("default"), str) and found["type"] == "bytes":
        found["default"] = base64.standard_b64encode(found["default"].encode("latin-1")).decode()
    if kind == "record":
        found["fields"] = [
            _in_connect(each["type"], f"{path}.{each['name']}") | {"field": each["name"]} for each in node["fields"]
        ]
    elif kind == "array" and found["type"] == "array":  # else a map whose keys are not strings
        found["items"] = _in_connect(node["items"], f"{path}[]")
    elif kind == "map":
        found |= {"keys": {"type": "string"}, "values": _in_connect(node["values"], f"{path}{{}}")}
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
