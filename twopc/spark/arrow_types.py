"""The types of Spark that a sink gets as what they are. A sink sees Arrow's types alone."""

from __future__ import annotations

import inspect

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, UserDefinedType

from twopc.errors import SchemaMismatch

_KEPT = frozenset(
    {
        *("NullType", "BooleanType", "StringType", "CharType", "VarcharType", "BinaryType"),
        *("ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "DecimalType"),
        *("DateType", "TimestampType", "TimestampNTZType", "TimeType", "DayTimeIntervalType"),
    }
)
"""Types by name, because earlier versions of Spark lack some. Spark passes a variant as a struct of two binary values,
and an interval of months not at all."""

_TEXT = {"VariantType": "to_json({})"}
"""How to make text of a value, by the type's name. The others can be cast."""

# Spark 4.2 asks for the time zone of timestamps. Earlier versions take UTC. A sink can write any.
_ZONE = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the record batches that a task gets for ``schema``.

    Raises:
        SchemaMismatch: a column has a type that Arrow does not have.
    """
    for field in schema:
        if (found := unkept(field.dataType)) is not None:
            text = _TEXT.get(type(found).__name__, "CAST({} AS STRING)").format(field.name)
            raise SchemaMismatch(
                f"column {field.name!r} has Spark's type {found.simpleString().upper()}, which a sink would get as"
                f" another type. Nothing was written. Write it as text, such as by {text} AS {field.name}, or drop it."
            )
    return to_arrow_schema(schema, **_ZONE)  # type: ignore[arg-type]  # by version


def unkept(of_spark: DataType) -> DataType | None:
    """Return the first type in a type that a sink would get as another one, or None."""
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
            return None if type(of_spark).__name__ in _KEPT else of_spark
    return next((found for found in map(unkept, parts) if found is not None), None)
