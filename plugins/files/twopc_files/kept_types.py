"""The Arrow types that each format keeps, as one table.

A format keeps a type if Spark, DuckDB and pyarrow read equal values from its files (ORC: Spark and pyarrow). A type
that has no row, or whose row does not list the format, is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types

from twopc.refusals import is_bytes, is_list, is_string


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table.

    Attributes:
        name: the types, as the README names them.
        includes: returns whether a given type is one of these types.
        formats: the names of the formats that keep them, separated by spaces.
        instead: what to do about such a column in another format. ``c`` stands for the column.
    """

    name: str
    includes: Callable[[pa.DataType], bool]
    formats: str
    instead: str = "drop it"


def _is_binary(type_: pa.DataType) -> bool:
    return is_bytes(type_) or bool(types.is_fixed_size_binary(type_))


def _is_of_spark_alone(type_: pa.DataType) -> bool:
    """Whether a struct is Spark's form of a VARIANT, GEOMETRY or GEOGRAPHY, according to the metadata of its fields."""
    if not types.is_struct(type_):
        return False
    marks = [type_.field(number).metadata or {} for number in range(type_.num_fields)]
    return any({b"variant", b"geometry", b"geography"} & {*mark} for mark in marks)


def _has_microseconds(type_: pa.DataType) -> bool:
    return bool(type_.unit != "ns")


KINDS = (
    Kind("boolean", types.is_boolean, "parquet json csv orc", "CAST(c AS STRING)"),
    Kind("int8 to int64", types.is_signed_integer, "parquet json csv orc", "CAST(c AS STRING)"),
    Kind("uint8 to uint64", types.is_unsigned_integer, "parquet json csv", "cast it to a wider signed integer"),
    Kind(
        "float32, float64",
        lambda type_: bool(types.is_float32(type_) or types.is_float64(type_)),
        "parquet json csv orc",
        "CAST(c AS STRING)",
    ),
    Kind(
        "decimal128",
        lambda type_: bool(types.is_decimal128(type_)) and type_.scale >= 0,
        "parquet json csv orc",
        "CAST(c AS STRING)",
    ),
    Kind("string, large_string", is_string, "parquet json csv orc text"),
    Kind("binary, large_binary, fixed_size_binary", _is_binary, "parquet json orc", "base64(c)"),
    Kind("date32", types.is_date32, "parquet json csv orc", "CAST(c AS STRING)"),
    Kind(
        "time32, time64 of microseconds",
        lambda type_: bool(types.is_time(type_)) and _has_microseconds(type_),
        "parquet json csv",
        "CAST(c AS STRING)",
    ),
    Kind(
        "timestamp with a zone, to microseconds",
        lambda type_: bool(types.is_timestamp(type_)) and _has_microseconds(type_) and type_.tz is not None,
        "parquet json csv orc",
        "CAST(c AS STRING)",
    ),
    Kind(
        "timestamp without a zone, to microseconds",
        lambda type_: bool(types.is_timestamp(type_)) and _has_microseconds(type_),
        "parquet json csv",
        "CAST(c AS TIMESTAMP)",
    ),
    Kind("list, large_list, fixed_size_list", is_list, "parquet json orc", "to_json(c)"),
    Kind("VARIANT, GEOMETRY, GEOGRAPHY of Spark", _is_of_spark_alone, "", "to_json(c), or st_asbinary(c)"),
    Kind("struct", types.is_struct, "parquet json orc", "to_json(c)"),
    Kind("map", types.is_map, "parquet json orc", "to_json(c)"),
    # In no format, for advice. ------------------------------------------------------------------------------
    Kind("duration: INTERVAL DAY TO SECOND of Spark", types.is_duration, "", "CAST(c AS STRING)"),
    Kind("time64 of nanoseconds: TIME of Spark", types.is_time, "", "CAST(c AS STRING)"),
    Kind("timestamp of nanoseconds", types.is_timestamp, "", "cast it to timestamp[us]"),
    Kind("string_view", types.is_string_view, "", "cast it to string"),
    Kind("binary_view", types.is_binary_view, "", "cast it to binary"),
    Kind("date64", types.is_date64, "", "cast it to date32"),
    Kind("float16", types.is_float16, "", "cast it to float32"),
    Kind("decimals of other widths, or with a negative scale", types.is_decimal, "", "cast it to decimal128"),
    Kind("null: VOID of Spark", types.is_null, "", "CAST(c AS STRING), or drop it"),
)
"""The table. The first row that includes a type applies. A dictionary is kept like its values."""


def require_kept(format: str, schema: pa.Schema) -> None:
    """Make sure that ``format`` keeps the columns of ``schema``, and everything nested in them.

    Raises:
        TypeError: the format does not keep a column's type. The message names the part of the type, and what to do.
    """
    for field in schema:
        _require(format, field.type)


def _require(format: str, type_: pa.DataType) -> None:
    if types.is_dictionary(type_):
        if type_.value_type.num_fields:
            raise TypeError("a dictionary of nested values: cast it to its values")
        return _require(format, type_.value_type)
    if (types.is_fixed_size_list(type_) and not type_.list_size) or type_ == pa.binary(0):
        raise TypeError(f"not every reader knows {type_}, of size 0")
    kind = next((kind for kind in KINDS if kind.includes(type_)), None)
    if kind is None:
        raise TypeError(f"{type_} is not in the table of the file sink's README")
    if format not in kind.formats.split():
        where = f"kept by {kind.formats.replace(' ', ', ')} alone" if kind.formats else "kept by no format"
        raise TypeError(f"{kind.name}: {where}. Instead: {kind.instead}")
    for number in range(type_.num_fields):
        _require(format, type_.field(number).type)
    if types.is_struct(type_):
        _require_names(type_)
    if types.is_map(type_):
        _require_key(format, type_)
    return None


def _require_names(type_: pa.DataType) -> None:
    names = [type_.field(number).name.casefold() for number in range(type_.num_fields)]
    if not names:
        raise TypeError("a struct without fields has no form in a file")
    if len({*names}) < len(names):
        raise TypeError(f"{type_} has two fields of one name, and readers do not distinguish upper and lower case")


def _require_key(format: str, type_: pa.DataType) -> None:
    key = type_.key_type
    if key.num_fields:
        raise TypeError(f"the keys of {type_} are nested. Instead: to_json(c)")
    if format == "json" and not (is_string(key) or types.is_integer(key)):
        raise TypeError(f"the keys of {type_} must be text or integers to become names in a JSON object")
