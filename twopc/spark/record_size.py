"""The size of a record in Arrow, as a condition that Spark evaluates before it passes the record on."""

from __future__ import annotations

from typing import TypeAlias

from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from twopc.spark.sql_names import quoted

_Size: TypeAlias = "tuple[int, list[str]]"
"""The bytes that every value takes, and SQL expressions of those that vary."""

_FIXED_BYTES = 16
"""What a value of fixed size takes at most, and what Arrow needs for a value beside its bytes or its parts."""

_FIXED = frozenset(
    {
        *("BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "DecimalType"),
        *("DateType", "TimestampType", "TimestampNTZType", "TimeType", "DayTimeIntervalType", "NullType"),
    }
)
"""Types of Spark by name, because earlier versions lack some."""


def is_larger(schema: StructType, most_bytes: int) -> str | None:
    """Return a condition in SQL that is true for a record of more than ``most_bytes``; ``false`` if no record can be
    larger. None if Spark can't tell the size of a record, or if each is larger."""
    size = _size_of_fields("", schema)
    if size is None or (left := most_bytes - size[0]) < 0:
        return None
    return f"{' + '.join(size[1])} > {left}" if size[1] else "false"


def _size_of_fields(within: str, fields: StructType, depth: int = 0) -> _Size | None:
    if len({name.lower() for name in fields.names}) < len(fields):  # Spark can't tell them apart
        return None
    sizes = [_size(f"{within}{quoted(field.name)}", field.dataType, depth) for field in fields]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    return sum(fixed for fixed, _ in known), [sql for _, varying in known for sql in varying]


def _size(value: str, of_spark: DataType, depth: int) -> _Size | None:
    match of_spark:
        case StringType() | BinaryType():
            return _FIXED_BYTES, [f"coalesce(octet_length({value}), 0)"]
        case StructType():
            return _size_of_fields(f"{value}.", of_spark, depth)
        case ArrayType():
            return _size_of_all(value, of_spark.elementType, depth)
        case MapType():
            keys = _size_of_all(f"map_keys({value})", of_spark.keyType, depth)
            values = _size_of_all(f"map_values({value})", of_spark.valueType, depth)
            return None if keys is None or values is None else (keys[0] + values[0], keys[1] + values[1])
    return (_FIXED_BYTES, []) if type(of_spark).__name__ in _FIXED else None


def _size_of_all(values: str, of_spark: DataType, depth: int) -> _Size | None:
    each = f"each{depth}"
    if (size := _size(each, of_spark, depth + 1)) is None:
        return None
    fixed, varying = size
    if not varying:
        return _FIXED_BYTES, [f"{fixed} * coalesce(size({values}), 0)"]
    added = " + ".join([f"{fixed}", *varying])
    return _FIXED_BYTES, [f"coalesce(aggregate({values}, 0L, (sum{depth}, {each}) -> sum{depth} + {added}), 0L)"]
