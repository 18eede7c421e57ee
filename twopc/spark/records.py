"""Records in Spark's SQL and in Arrow: column names, types, sizes and hashes."""

from __future__ import annotations

import inspect
import itertools
import zlib
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.functions import expr
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    UserDefinedType,
)

from twopc.errors import SchemaMismatch


def quoted(name: str) -> str:
    """Return a column's name as a quoted SQL identifier."""
    return f"`{name.replace('`', '``')}`"


# Types. Sinks get only Arrow's types. -------------------------------------------------------------------------------

FIXED = frozenset(
    {
        *("BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "DecimalType"),
        *("DateType", "TimestampType", "TimestampNTZType", "TimeType", "DayTimeIntervalType", "NullType"),
    }
)
"""The types with values of a fixed size, by name, because earlier versions of Spark lack some of the types."""

_UNCHANGED = FIXED | {"StringType", "CharType", "VarcharType", "BinaryType"}
"""Types without parts that a sink gets unchanged. Spark passes a variant as a struct of two binary values, and can't
pass an interval of months."""

_TEXT = {"VariantType": "to_json({})"}  # type → SQL that converts a value to text; other types can be cast

# Spark 4.2 requires a time zone for timestamps; earlier versions use UTC. Sinks accept any.
_ZONE = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the record batches that a task gets for ``schema``. Raises SchemaMismatch: Arrow lacks
    the type of a column."""
    for field in schema:
        if (found := unkept(field.dataType)) is not None:
            name = field.name if field.name.isascii() and field.name.isidentifier() else quoted(field.name)
            text = _TEXT.get(type(found).__name__, "CAST({} AS STRING)").format(name)
            raise SchemaMismatch(
                f"column {field.name!r} has Spark's type {found.simpleString().upper()}, which a sink would get as"
                f" another type. Nothing was written. Write it as text, such as by {text} AS {name}, or drop it."
            )
    return to_arrow_schema(schema, **_ZONE)  # type: ignore[arg-type]  # depends on the version


def unkept(of_spark: DataType) -> DataType | None:
    """Return ``of_spark``, or the first of its parts, if a sink would get another type in its place. Return None if a
    sink gets the same type."""
    match of_spark:
        case StructType():
            parts = [field.dataType for field in of_spark]
        case ArrayType():
            parts = [of_spark.elementType]
        case MapType():
            parts = [of_spark.keyType, of_spark.valueType]
        case UserDefinedType():
            parts = [of_spark.sqlType()]
        case _:
            return None if type(of_spark).__name__ in _UNCHANGED else of_spark
    return next((found for found in map(unkept, parts) if found is not None), None)


def row_of(schema: StructType) -> Column:
    """Return a column that contains the rows of a frame in a form that Arrow accepts. Its fields have unique names.
    Fields whose type Arrow lacks are converted to text."""
    row, taken = expr("struct(*)"), StructType()
    for each in schema:
        numbers = itertools.count(2)
        name = each.name
        while name in taken.names:
            name = f"{each.name}_{next(numbers)}"
        is_plain = unkept(each.dataType) is None
        taken.add(name, each.dataType if is_plain else StringType(), each.nullable or not is_plain)
    return row if taken == schema else row.cast(taken)


# Sizes. ------------------------------------------------------------------------------------------------------------

_FIXED_BYTES = 16
"""An upper bound in bytes, both for a value of fixed size and for what Arrow adds to the bytes or parts of any other
value."""


class _SizeUnknown(Exception):
    """SQL can't compute the size of a type's values."""


def is_larger(schema: StructType, most_bytes: int) -> str | None:
    """Return a SQL condition that is true for records of more than ``most_bytes``; ``false`` if no record can be
    larger. None if SQL can't compute the size, or if every record is larger."""
    try:
        fixed, varying = _size("", schema)
    except _SizeUnknown:
        return None
    if fixed > most_bytes:
        return None
    return f"{' + '.join(varying)} > {most_bytes - fixed}" if varying else "false"


def _size(value: str, of_spark: DataType, depth: int = 0) -> tuple[int, list[str]]:
    """Return the fixed part of a value's size in bytes, and SQL expressions whose sum is the rest. ``value`` is the
    value in SQL; ``""`` stands for the whole record."""
    match of_spark:
        case StringType() | BinaryType():
            return _FIXED_BYTES, [f"coalesce(octet_length({value}), 0)"]
        case StructType() if len({name.lower() for name in of_spark.names}) == len(of_spark):  # otherwise ambiguous
            within = f"{value}." if value else ""
            parts = [_size(f"{within}{quoted(field.name)}", field.dataType, depth) for field in of_spark]
        case ArrayType():
            parts = [_size_of_all(value, of_spark.elementType, depth)]
        case MapType():
            keys, values = f"map_keys({value})", f"map_values({value})"
            parts = [_size_of_all(keys, of_spark.keyType, depth), _size_of_all(values, of_spark.valueType, depth)]
        case _ if type(of_spark).__name__ in FIXED:
            return _FIXED_BYTES, []
        case _:
            raise _SizeUnknown
    return sum(fixed for fixed, _ in parts), [sql for _, varying in parts for sql in varying]


def _size_of_all(values: str, of_spark: DataType, depth: int) -> tuple[int, list[str]]:
    each = f"each{depth}"
    fixed, varying = _size(each, of_spark, depth + 1)
    if not varying:
        return _FIXED_BYTES, [f"{fixed} * coalesce(size({values}), 0)"]
    added = " + ".join([f"{fixed}", *varying])
    return _FIXED_BYTES, [f"coalesce(aggregate({values}, 0L, (sum{depth}, {each}) -> sum{depth} + {added}), 0L)"]


# Hashes. -----------------------------------------------------------------------------------------------------------

_BOUND = f"{0x9E37_79B9_7F4A_7C15 - 2**64}L"  # a number that no value of a record is likely to be


def hash_of(columns: Mapping[str, StructField]) -> str:
    """Return the SQL of a record's hash. ``columns`` must be columns of the frame: evaluating an expression such as
    rand() again would give another value. The names are hashed too, because another plan may have swapped two
    columns."""
    names = zlib.crc32("\n".join(field.name for field in columns.values()).encode())
    values = _hash_separately({value: field.dataType for value, field in columns.items()})
    return f"xxhash64({', '.join(values)}) ^ {names}L"


def _hash_separately(values: Mapping[str, DataType], depth: int = 0) -> list[str]:
    """Return the SQL expressions that hash several values, with a separator in between. Spark's hash skips nulls:
    without a separator, a single value would hash the same in whichever column it is."""
    inputs = (_hash_inputs(value, of_spark, depth) for value, of_spark in values.items())
    return [each for of_value in inputs for each in (_BOUND, *of_value)][1:]


def _hash_inputs(value: str, of_spark: DataType, depth: int) -> list[str]:
    """Return SQL expressions that are equal only for equal values, up to hash collisions.

    Spark's hash ignores where arrays and structs begin and end, so it is the same for ``[1], [2, 3]`` and
    ``[1, 2], [3]``. The size of a null array depends on the session.
    """
    match of_spark:
        case StructType():
            fields = {f"{value}.{quoted(field.name)}": field.dataType for field in of_spark}
            return [*_hash_separately(fields, depth), f"{value} IS NULL"]
        case ArrayType():
            each = f"each{depth}"
            element = f"xxhash64({', '.join(_hash_inputs(each, of_spark.elementType, depth + 1))})"
            return [f"transform({value}, {each} -> {element})", f"coalesce(size({value}), -1)", f"{value} IS NULL"]
    return [value]
