"""The comparison of a column with a schema, and the tests that the column's values still need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # its usual name
from pyspark.sql import types as T  # noqa: N812  # its usual name

from twopc.errors import ConfigurationError

Fault: TypeAlias = "Callable[[Column], Column]"
"""A predicate for values that the schema can't hold."""

_Within: TypeAlias = "Callable[[Fault], Fault]"
"""A function that turns the test for a fault of a part into a test of the whole value."""


@dataclass(frozen=True)
class Shape:
    """What a schema can hold at one place.

    Attributes:
        shown: the schema's type, for errors.
        kinds: the names of the Spark types that fit.
        fields: field → its schema, and whether a column is required.
        of: the schema of elements, or of a map's values.
        key: the schema of a map's keys, unless they are text.
        fault: the test for values of these types that the schema can't hold.
        one_of: groups of fields. At most one field of each group may have a value.
    """

    shown: str
    kinds: tuple[str, ...]
    nullable: bool
    fields: Mapping[str, tuple[Any, bool]] = field(default_factory=dict)
    of: Any = None
    fault: Fault | None = None
    key: Any = None
    one_of: Sequence[Sequence[str]] = ()


def faults(
    kind: T.DataType, schema: Any, shape_of: Callable[[Any, str], Shape], path: str, may_be_null: bool = False
) -> Iterator[tuple[Fault, str]]:
    """Compare a Spark type with a schema, field by field. Yield each fault that a value may have, with a message.

    Raises:
        ConfigurationError: the type does not fit. The error names the field, the column's type and the schema's.
    """
    shape = shape_of(schema, path)
    is_other_key = isinstance(kind, T.MapType) and not (shape.key or isinstance(kind.keyType, T.StringType))
    if is_other_key or not {kind.typeName(), kind.simpleString()} & {*shape.kinds}:
        raise ConfigurationError(f"{path}: Spark's {kind.simpleString()} does not fit the schema's {shape.shown}")
    if may_be_null and not shape.nullable:
        yield F.isnull, f"{path} is null, which the schema does not allow"
    if isinstance(kind, T.StringType):
        yield _is_no_text, f"{path} has a value that is not UTF-8"
    if shape.fault:
        yield shape.fault, f"{path} has a value that the schema's {shape.shown} can't hold exactly"
    for names in shape.one_of:
        there = [each for each in names if isinstance(kind, T.StructType) and each in kind.names]
        if len(there) > 1:
            yield partial(_are_several, there), f"{path} has several of {there}, of which the schema allows one"
    for part, inner, inner_schema, is_nullable, within in _parts(kind, shape, path):
        for fault, message in faults(inner, inner_schema, shape_of, path + part, is_nullable):
            yield within(fault), message


def _parts(kind: T.DataType, shape: Shape, path: str) -> Iterator[tuple[str, T.DataType, Any, bool, _Within]]:
    """Yield each part of a type: its path, type and schema, whether it may be null, and how to test it within the whole
    value."""
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


def _in_field(name: str, fault: Fault) -> Fault:
    return lambda value: value.isNotNull() & fault(value.getField(name))


def _in_any(elements: Fault, fault: Fault) -> Fault:
    return lambda value: F.exists(elements(value), fault)


def _is_no_text(value: Column) -> Column:
    """Find text that is not UTF-8. ``CAST(value AS STRING)`` accepts any bytes, but other readers do not."""
    return ~F.is_valid_utf8(value)


def _are_several(names: Sequence[str], value: Column) -> Column:
    return sum((value.getField(each).isNotNull().cast("int") for each in names), F.lit(0)) > 1


def is_no_millisecond(value: Column) -> Column:
    """Return whether a timestamp has a fraction of a millisecond."""
    return F.date_trunc("MILLISECOND", value) != value
