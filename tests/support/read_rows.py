"""Converts rows of different readers to pyarrow's Python types."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyarrow import types


def as_drawn(row: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Return a row with maps as lists of pairs (polars returns lists of structs) and with bytes (JSON has base64)."""
    return {field.name: _as_drawn(row[field.name], field.type) for field in schema}


def _as_drawn(value: Any, type_: pa.DataType) -> Any:
    if value is None:
        return None
    if types.is_struct(type_):
        return {field.name: _as_drawn(value[field.name], field.type) for field in type_}
    if types.is_map(type_):
        pairs = [tuple(each.values()) if isinstance(each, dict) else each for each in value]
        return [(_as_drawn(key, type_.key_type), _as_drawn(item, type_.item_type)) for key, item in pairs]
    if types.is_list(type_):
        return [_as_drawn(each, type_.value_type) for each in value]
    if isinstance(value, str) and "binary" in str(type_):
        return base64.b64decode(value, validate=True)
    return value
