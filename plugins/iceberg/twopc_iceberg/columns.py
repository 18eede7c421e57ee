"""The types of Arrow that fit into those of Iceberg, and records as a data file has them. It makes no request.

Columns are found by name, as Spark's own Iceberg writer does by default for streams. A type fits if each of its values
is kept as it is: an integer or a float in a wider one, a decimal in one with more digits, text in ``uuid``.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Mapping

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import types
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

from twopc.bad_records import are_utf8, first_bad
from twopc.errors import RecordRefused, SchemaMismatch

Fits = Callable[[pa.DataType], bool]


def _is_int(given: pa.DataType) -> bool:
    return bool(_is_long(given) and (given.bit_width < 32 or given == pa.int32()))


def _is_long(given: pa.DataType) -> bool:
    return bool(types.is_integer(given) and given != pa.uint64())


def _is_text(given: pa.DataType) -> bool:
    return bool(types.is_string(given) or types.is_large_string(given))


def _is_bytes(given: pa.DataType) -> bool:
    return bool(types.is_binary(given) or types.is_large_binary(given))


def _is_coarse(given: pa.DataType) -> bool:
    """Whether a time or timestamp has microseconds at most, as Iceberg's have."""
    return bool(given.unit != "ns")


_HOLDS: Mapping[type[IcebergType], Fits] = {
    BooleanType: types.is_boolean,
    IntegerType: _is_int,
    LongType: _is_long,
    FloatType: lambda given: given in (pa.float16(), pa.float32()),
    DoubleType: types.is_floating,
    DateType: types.is_date32,
    TimeType: lambda given: types.is_time(given) and _is_coarse(given),
    TimestampType: lambda given: types.is_timestamp(given) and given.tz is None and _is_coarse(given),
    TimestamptzType: lambda given: types.is_timestamp(given) and given.tz is not None and _is_coarse(given),
    StringType: _is_text,
    BinaryType: lambda given: _is_bytes(given) or types.is_fixed_size_binary(given),
    UUIDType: lambda given: given in (pa.uuid(), pa.binary(16)),
}
"""Iceberg's type → whether every value of an Arrow type fits. Those with parameters and parts: below."""


def check_columns(records: pa.Schema, table: Schema, what: str) -> None:
    """Make sure that records of a schema fit into the table. ``what`` names the table.

    Raises:
        SchemaMismatch: names the column.
    """
    if len({*records.names}) < len(records.names):
        raise SchemaMismatch(f"two columns of the records for {what} have one name. Rename or drop one.")
    _check_struct(list(records), table.as_struct(), what, "")


def _check_struct(given: list[pa.Field], wanted: StructType, what: str, path: str) -> None:
    by_name = {field.name: field for field in wanted.fields}
    for field in given:
        name = f"{path}{field.name}"
        if field.name not in by_name:
            raise SchemaMismatch(f"{what} has no column {name!r}. It has: {', '.join(by_name)}. Drop or rename it.")
        _check(field.type, by_name[field.name].field_type, what, name)
    missing = [f"{path}{field.name}" for field in wanted.fields if field.required]
    missing = [name for name in missing if name not in [f"{path}{field.name}" for field in given]]
    if missing:
        raise SchemaMismatch(f"column {missing[0]!r} of {what} is required: add it")


def _check(given: pa.DataType, wanted: IcebergType, what: str, name: str) -> None:
    if types.is_dictionary(given):
        given = given.value_type
    match wanted:
        case StructType() if types.is_struct(given):
            _check_struct(list(given), wanted, what, f"{name}.")
        case ListType() if types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given):
            _check(given.value_type, wanted.element_type, what, f"{name}.element")
        case MapType() if types.is_map(given):
            _check(given.key_type, wanted.key_type, what, f"{name}.key")
            _check(given.item_type, wanted.value_type, what, f"{name}.value")
        case _ if not _fits(given, wanted, is_nested="." in name):
            raise SchemaMismatch(
                f"column {name!r} has the Arrow type {given}, of which not every value fits into {wanted}, the type"
                f" that it has in {what}. Cast it, or change the table."
            )


def _fits(given: pa.DataType, wanted: IcebergType, is_nested: bool) -> bool:
    match wanted:
        case DecimalType():
            whole_digits = wanted.precision - wanted.scale
            is_decimal = types.is_decimal(given)
            return bool(is_decimal and given.scale <= wanted.scale and given.precision - given.scale <= whole_digits)
        case FixedType():
            # Of variable length, each value is looked at as it is written.
            return given == pa.binary(wanted.root) or (_is_bytes(given) and not is_nested)
        case UUIDType() if _is_text(given):
            return not is_nested
        case _:
            fits = _HOLDS.get(type(wanted))
            return fits is not None and fits(given)


# Records. -------------------------------------------------------------------------------------------------------


_EPOCH = dt.date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = (dt.date.min - _EPOCH).days, (dt.date.max - _EPOCH).days
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


def aligned(batch: pa.RecordBatch, schema: Schema, arrow_schema: pa.Schema) -> pa.Table:
    """Return the records as a data file has them: the table's columns, in its order, with null where one is missing.

    Args:
        batch: records that ``check_columns`` has accepted.
        schema: the table's.
        arrow_schema: the same for pyarrow.

    Raises:
        RecordRefused: a value does not fit; with its column and its position in ``batch``.
        SchemaMismatch: the records have a column that the table lacks. Its values would be lost.
    """
    known = {field.name for field in schema.fields}
    if unknown := [name for name in batch.schema.names if name not in known]:
        raise SchemaMismatch(f"the table has no column {unknown[0]!r}. Drop or rename it.")
    columns = []
    for field, target in zip(schema.fields, arrow_schema, strict=True):
        position = batch.schema.get_field_index(field.name)
        given = pa.nulls(batch.num_rows, target.type) if position < 0 else batch.column(position)
        columns.append(_converted(given, field, target))
    return pa.Table.from_arrays(columns, schema=arrow_schema)


def _converted(given: pa.Array, field: NestedField, target: pa.Field) -> pa.Array:
    if types.is_dictionary(given.type):
        given = given.dictionary_decode()
    _require_values(given, field, field.name)
    if isinstance(field.field_type, UUIDType) and _is_text(given.type):
        given = _uuids(given, field.name)
    if isinstance(field.field_type, FixedType) and _is_bytes(given.type):
        require(pc.equal(pc.binary_length(given), field.field_type.root), field.name, f"is no {field.field_type}")
    return given if given.type == target.type else given.cast(target.type)


def _require_values(given: pa.Array, field: NestedField, path: str) -> None:
    """Refuse a null where none may be. Parquet would take it in a nested column."""
    if field.required and given.null_count:
        require(pc.is_valid(given), path, "is null, and the column is required")
    match field.field_type:
        case StructType() as wanted:
            present = pc.is_valid(given)
            for child in wanted.fields:
                if given.type.get_field_index(child.name) < 0:
                    continue
                values = pc.struct_field(given, child.name)
                if child.required and values.null_count:
                    is_fine = pc.or_(pc.invert(present), pc.is_valid(values))
                    require(is_fine, f"{path}.{child.name}", "is null, and the column is required")
                nested = child if not child.required else child.model_copy(update={"required": False})
                _require_values(values, nested, f"{path}.{child.name}")
        case ListType() as wanted:
            _require_parts(given, pc.list_flatten, pc.list_parent_indices, wanted.element_field, f"{path}.element")
        case MapType() as wanted:
            entries = given.cast(pa.list_(pa.struct([("key", given.type.key_type), ("value", given.type.item_type)])))
            value = wanted.value_field
            parts = StructType(wanted.key_field, value)
            whole = NestedField(-1, "entries", parts, required=False)
            _require_parts(entries, pc.list_flatten, pc.list_parent_indices, whole, path)
        case _:
            _require_held(given, path)


def _require_held(given: pa.Array, path: str) -> None:
    """Refuse a value that pyiceberg can't hold. It would find out when it makes the file's statistics, and fail."""
    if _is_text(given.type):
        if (position := first_bad(given, are_utf8)) is not None:
            raise _refused(position, path, "is text that is not UTF-8")
    elif types.is_date32(given.type) or types.is_timestamp(given.type):
        is_date = types.is_date32(given.type)
        numbers = given.cast(pa.int32() if is_date else pa.int64())
        per_day = 1 if is_date else _PER_DAY[given.type.unit]
        first, end = _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day
        bounds = pc.min_max(numbers)
        if bounds["min"].is_valid and not first <= bounds["min"].as_py() <= bounds["max"].as_py() < end:
            is_held = pc.and_(pc.greater_equal(numbers, first), pc.less(numbers, end))
            require(is_held, path, "is outside of the years 1 to 9999, which pyiceberg can't write")


def _require_parts(
    given: pa.Array,
    parts_of: Callable[[pa.Array], pa.Array],
    parents_of: Callable[[pa.Array], pa.Array],
    field: NestedField,
    path: str,
) -> None:
    """Look at the elements of lists. A refusal names the record, not the element."""
    try:
        _require_values(parts_of(given), field, path)
    except RecordRefused as refused:
        refused.record = parents_of(given)[refused.record].as_py()
        raise


def require(is_fine: pa.Array, column: str, but: str) -> None:
    """Refuse the first record for which ``is_fine`` is false. Null counts as fine."""
    position = pc.index(is_fine, False).as_py()
    if position >= 0:
        raise _refused(position, column, but)


def _refused(position: int, column: str, but: str) -> RecordRefused:
    return RecordRefused(f"the value {but}. Correct or filter such records.", column=column, record=position)


def _uuids(given: pa.Array, column: str) -> pa.Array:
    """Return the values of text as those of ``uuid``, which Spark has no type for."""
    found = []
    for position, value in enumerate(given.to_pylist()):
        try:
            found.append(None if value is None else uuid.UUID(value).bytes)
        except ValueError:
            reason = "the value is no UUID. Correct or filter such records."
            raise RecordRefused(reason, column=column, record=position) from None
    return pa.array(found, pa.binary(16))
