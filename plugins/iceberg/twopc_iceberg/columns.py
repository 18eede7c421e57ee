"""Checks that Arrow types fit into Iceberg types, and converts records for a data file. No I/O.

Columns are matched by name, as in Spark's own Iceberg writer by default for streams. A type fits if the column
preserves every value: an integer or a float fits into a wider one, a decimal into one with more digits, text into
``uuid``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import types
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from twopc.columns import ADVICE, check_names, has_room, require_each
from twopc.errors import RecordRefused, SchemaMismatch
from twopc.refusals import KEY_TWICE, NOT_UTF8, TIMES, YEARS, Rule, checker, first_null, is_list

_INTS = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())
_TEXTS = (pa.string(), pa.large_string())
_BYTES = (pa.binary(), pa.large_binary())
_TIMESTAMPS = (pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"))


@dataclass(frozen=True, slots=True)
class Kept:
    """The Arrow types whose values a column of one Iceberg type preserves. The sink refuses all others.

    Attributes:
        given: the Arrow types.
        cast: the Spark SQL type to cast a refused column to.
        more: further types with parameters, in words.
    """

    given: tuple[pa.DataType, ...]
    cast: str
    more: str = ""


KEPT: Mapping[type[IcebergType], Kept] = {
    BooleanType: Kept((pa.bool_(),), "BOOLEAN"),
    IntegerType: Kept(_INTS, "INT"),
    LongType: Kept((*_INTS, pa.int64(), pa.uint32()), "BIGINT"),
    FloatType: Kept((pa.float16(), pa.float32()), "FLOAT"),
    DoubleType: Kept((pa.float16(), pa.float32(), pa.float64()), "DOUBLE"),
    DecimalType: Kept((), "DECIMAL", "decimals with at most as many digits before and after the point"),
    DateType: Kept((pa.date32(),), "DATE"),
    TimeType: Kept((pa.time32("s"), pa.time32("ms"), pa.time64("us")), "TIME"),
    TimestampType: Kept(_TIMESTAMPS, "TIMESTAMP_NTZ"),
    TimestamptzType: Kept((), "TIMESTAMP", "timestamps with a zone in s, ms or us"),
    StringType: Kept(_TEXTS, "STRING"),
    BinaryType: Kept(_BYTES, "BINARY", "fixed_size_binary"),
    FixedType: Kept((), "BINARY", "fixed_size_binary of that length; in a top-level column also binary, large_binary"),
    UUIDType: Kept((pa.uuid(), pa.binary(16)), "STRING", "in a top-level column also string, large_string"),
}
"""The type of a column → the Arrow types that fit. ``list``, ``map`` and ``struct`` accept their Arrow counterparts
if the nested types fit. A dictionary-encoded column is checked by its value type."""


def _is_kept(given: pa.DataType, wanted: IcebergType, is_nested: bool) -> bool:
    match wanted:
        case DecimalType() if types.is_decimal(given):
            return has_room(given, wanted.precision, wanted.scale)
        case TimestamptzType() if types.is_timestamp(given):
            return given.tz is not None and pa.timestamp(given.unit) in _TIMESTAMPS
        case BinaryType() if types.is_fixed_size_binary(given):
            return True
        case FixedType():  # binary of variable length is checked value by value when written
            return given == pa.binary(wanted.root) or (given in _BYTES and not is_nested)
        case UUIDType() if given in _TEXTS:
            return not is_nested
        case _:
            return type(wanted) in KEPT and given in KEPT[type(wanted)].given


def check_columns(records: pa.Schema, table: Schema, what: str) -> None:
    """Check that records of a schema fit into the table. ``what`` names the table in errors.

    Raises:
        SchemaMismatch: a column does not fit. The error names the column.
    """
    _check_struct(list(records), table.as_struct(), what, "")


def _check_struct(given: list[pa.Field], wanted: StructType, what: str, path: str) -> None:
    by_name = {f"{path}{field.name}": field for field in wanted.fields}
    names = [f"{path}{field.name}" for field in given]
    check_names(names, by_name, what)
    for name, field in zip(names, given, strict=True):
        _check(field.type, by_name[name].field_type, what, name, is_nested=bool(path))
    for name, field in by_name.items():
        if name not in names and (field.required or field.write_default is not None):
            why = "is required" if field.required else "has a default, which the sink does not write"
            raise SchemaMismatch(f"column {name!r} of {what} {why}: add it")


def _check(given: pa.DataType, wanted: IcebergType, what: str, name: str, is_nested: bool = True) -> None:
    if types.is_dictionary(given):
        given = given.value_type
    match wanted:
        case StructType() if types.is_struct(given):
            _check_struct(list(given), wanted, what, f"{name}.")
        case ListType() if is_list(given):
            _check(given.value_type, wanted.element_type, what, f"{name}.element")
        case MapType() if types.is_map(given):
            _check(given.key_type, wanted.key_type, what, f"{name}.key")
            _check(given.item_type, wanted.value_type, what, f"{name}.value")
        case _ if not _is_kept(given, wanted, is_nested):
            parameters = f"({wanted.precision}, {wanted.scale})" if isinstance(wanted, DecimalType) else ""
            cast = f" to {KEPT[type(wanted)].cast}{parameters}" if type(wanted) in KEPT else ""
            raise SchemaMismatch(
                f"column {name!r} has the Arrow type {given}, of which not every value fits into {wanted}, the type"
                f" that it has in {what}. Cast it{cast} in the query, or change the table."
            )


# Records. -------------------------------------------------------------------------------------------------------


_RULES = (NOT_UTF8, TIMES, YEARS, KEY_TWICE)
"""Rules that refuse values that readers would misread or that pyiceberg can't represent. Without these rules, a value
that pyiceberg can't represent would not fail until pyiceberg computes the file's statistics."""

_REQUIRED = Rule(
    lambda field: not field.nullable, first_null, f"the value is null, and the column is required. {ADVICE}"
)
"""Parquet would accept a null in a required nested column."""


def aligned(batch: pa.RecordBatch, schema: Schema, arrow_schema: pa.Schema) -> pa.RecordBatch:
    """Return the records in the layout of a data file: the table's columns in its order, with null for a missing one.

    Args:
        batch: records whose schema ``check_columns`` has accepted.
        schema: the table's schema.
        arrow_schema: the table's schema for pyarrow.

    Raises:
        RecordRefused: a value does not fit. The error names the column and the record's position in ``batch``.
        SchemaMismatch: the records have a column that the table lacks. Its values would be lost.
    """
    check_names(batch.schema.names, [field.name for field in schema.fields], "the table")
    checker(batch.schema, _RULES)(batch)
    columns = []
    for field, target in zip(schema.fields, arrow_schema, strict=True):
        position = batch.schema.get_field_index(field.name)
        given = pa.nulls(batch.num_rows, target.type) if position < 0 else batch.column(position)
        columns.append(_converted(given, field, target))
    records = pa.record_batch(columns, schema=arrow_schema)
    checker(schema_to_pyarrow(schema), (_REQUIRED,))(records)
    return records


def _converted(given: pa.Array, field: NestedField, target: pa.Field) -> pa.Array:
    if types.is_dictionary(given.type):
        given = given.dictionary_decode()
    if isinstance(field.field_type, UUIDType) and given.type in _TEXTS:
        given = _uuids(given, field.name)
    if isinstance(field.field_type, FixedType) and given.type in _BYTES:
        is_of_length = pc.equal(pc.binary_length(given), field.field_type.root)
        require_each(is_of_length, f"the value is no {field.field_type}", field.name)
    return given if given.type == target.type else given.cast(target.type)


def _uuids(given: pa.Array, column: str) -> pa.Array:
    """Parse text as ``uuid`` values, for which Spark has no type."""
    found = []
    for position, value in enumerate(given.to_pylist()):
        try:
            found.append(None if value is None else uuid.UUID(value).bytes)
        except ValueError:
            raise RecordRefused(f"the value is no UUID. {ADVICE}", column=column, record=position) from None
    return pa.array(found, pa.binary(16))
