"""Fits records into a table: checks which columns and types the table accepts, and converts values without loss."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema
from pyarrow import types

from twopc.columns import check_names, has_room, require_each
from twopc.errors import SchemaMismatch
from twopc.refusals import KEY_TWICE, NOT_UTF8, Rule, checker, first_null, is_list, parts
from twopc_delta.partitions import IN_LOG, require_readable
from twopc_delta.storage import LONGEST_NAME_ON_DISKS
from twopc_delta.table import TableView

_NO_NAME = re.compile(r"[ ,;{}()\n\t=]|^$")
"""Characters that Delta forbids in column names without column mapping. delta-rs would accept them."""


@dataclass(frozen=True)
class Fit:
    """How records of one schema map to a table.

    Attributes:
        schema: the columns in the records' order, with the table's names and types.
        partition_by: the table's partition columns.
        longest_folder_bytes: the maximum length of a partition folder's name.
    """

    schema: pa.Schema
    partition_by: tuple[str, ...]
    view: TableView
    longest_folder_bytes: int = LONGEST_NAME_ON_DISKS

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert records to the table's names and types.

        Raises:
            RecordRefused: a value is null in a NOT NULL column, is too long, or would be misread by readers.
        """
        schema = self.nullable
        columns = [values.cast(field.type) for values, field in zip(batch.columns, schema, strict=True)]
        records = pa.record_batch(columns, schema=schema)
        checker(self.schema, _RULES)(records)
        for values, field in zip(columns, self.schema, strict=True):
            if (longest := self.view.longest_text(field.name)) is not None:
                is_short = pc.less_equal(pc.utf8_length(values), longest)
                require_each(is_short, f"the text is longer than the table's varchar({longest})", field.name)
            if field.name in self.partition_by:
                require_readable(values, field.name, self.longest_folder_bytes)
        return records

    @property
    def nullable(self) -> pa.Schema:
        """The schema of converted records, with every column nullable. The sink checks NOT NULL itself, so that it can
        report the record."""
        return pa.schema([_nullable(field) for field in self.schema])


_RULES = (
    Rule(
        lambda field: not field.nullable,
        first_null,
        "the table's column is NOT NULL, and the record has a null there",
    ),
    NOT_UTF8,
    KEY_TWICE,
)


def missing(schema: pa.Schema, view: TableView) -> list[pa.Field]:
    """Return the columns of ``schema`` that the table lacks."""
    known = {name.lower() for name in view.schema.names}
    return [field for field in schema if field.name.lower() not in known]


def as_added(new: Sequence[pa.Field], view: TableView, table: str) -> pa.Schema:
    """Return the columns to add to a table for ``new``. All of them are nullable.

    Raises:
        SchemaMismatch: a column can't be added. The error names the column.
    """
    added = []
    for field in new:
        for inner in parts(field):
            if _NO_NAME.search(inner.name):
                raise SchemaMismatch(f"column {inner.name!r} can't be added to {table}: Delta takes no such name")
            if types.is_timestamp(inner.type) and inner.type.tz is None and "timestampNtz" not in view.features:
                raise SchemaMismatch(
                    f"column {inner.name!r} is a timestamp without a zone, which {table} does not hold without the"
                    " table feature timestampNtz. Cast it, or add the column with ALTER TABLE."
                )
        try:
            converted = Schema.from_arrow(pa.schema([pa.field(field.name, field.type)]))
        except Exception:  # noqa: BLE001  # delta-rs raises a bare Exception here
            raise SchemaMismatch(
                f"column {field.name!r} can't be added to {table}: Delta has no type for Arrow's {field.type}"
            ) from None
        if why := replace(view, fields=tuple(json.loads(converted.to_json())["fields"])).obstacle():
            raise SchemaMismatch(f"column {field.name!r} can't be added to {table}: {why}")
        added += pa.schema(converted.to_arrow())
    return pa.schema(added)


def fit(schema: pa.Schema, view: TableView, table: str) -> Fit:
    """Return how records of ``schema`` map to the table. Names are case-insensitive, as in Spark.

    Raises:
        SchemaMismatch: a column does not fit into the table. The error names the column.
    """
    check_names(schema.names, view.schema.names, table, str.lower, ", or add it by setting 'merge_schema' to true")
    by_name = {field.name.lower(): field for field in view.schema}
    fields = [by_name[name.lower()] for name in schema.names]
    for given, field in zip(schema, fields, strict=True):
        if not _fits(given.type, field.type):
            raise SchemaMismatch(
                f"column {given.name!r} has the Arrow type {given.type}, of which not every value fits into"
                f" {field.type}, the type that it has in {table}. Cast it to that type in the query."
            )
    there = {field.name for field in fields}
    for field in view.schema:
        if field.name not in there and (not field.nullable or field.name in view.partition_by):
            why = "a partition column" if field.name in view.partition_by else "NOT NULL"
            raise SchemaMismatch(f"column {field.name!r} of {table} is {why}: add it to the records")
        if field.name in view.partition_by and not any(is_type(field.type) for is_type in IN_LOG):
            raise SchemaMismatch(
                f"partition column {field.name!r} of {table} has type {field.type}, which has no one form in the log"
                " that every reader takes back. Partition by a string, integer, boolean, decimal or date."
            )
    if there <= {*view.partition_by}:
        raise SchemaMismatch("all columns are partition columns, which leaves none for the files")
    return Fit(pa.schema(fields), view.partition_by, view)


def type_names(fields: Iterable[pa.Field]) -> dict[str, str]:
    """Return each column's type as comparable text, ignoring nullability."""
    return {field.name: str(_nullable_type(field.type, _quoted)) for field in fields}


def _quoted(name: str) -> str:
    """Return the name, quoted as JSON if it would be ambiguous in a type's text."""
    return name if name.isidentifier() else json.dumps(name)


def _fits(given: pa.DataType, field: pa.DataType) -> bool:
    """Return whether the table's type preserves every value of ``given``."""
    return bool(given.equals(field) or _nested_fits(given, field) or _number_fits(given, field)) or any(
        is_given(given) and is_field(field)
        for is_given, is_field in (
            (types.is_float32, types.is_float64),
            (_is_other_text, types.is_string),
            (_is_other_binary, types.is_binary),
        )
    )


def _nested_fits(given: pa.DataType, field: pa.DataType) -> bool:
    if is_list(given) and types.is_list(field):
        return _fits(given.value_type, field.value_type)
    if types.is_map(given) and types.is_map(field):
        return _fits(given.key_type, field.key_type) and _fits(given.item_type, field.item_type)
    if types.is_struct(given) and types.is_struct(field):
        pairs = list(zip(given, field, strict=False))
        same = len(given) == len(field) and all(one.name == other.name for one, other in pairs)
        return same and all(_fits(one.type, other.type) for one, other in pairs)
    return False


def _number_fits(given: pa.DataType, field: pa.DataType) -> bool:
    if types.is_signed_integer(given) and types.is_signed_integer(field):
        return bool(given.bit_width <= field.bit_width)
    if types.is_decimal(given) and types.is_decimal(field):
        return has_room(given, field.precision, field.scale)
    if types.is_timestamp(given) and types.is_timestamp(field):
        return given.unit == "us" and (given.tz is None) == (field.tz is None)
    return False


def _is_other_text(type: pa.DataType) -> bool:
    return bool(types.is_large_string(type) or types.is_string_view(type))


def _is_other_binary(type: pa.DataType) -> bool:
    return bool(types.is_large_binary(type) or types.is_binary_view(type))


def _nullable(field: pa.Field) -> pa.Field:
    """Return the field with every part nullable. The sink checks NOT NULL itself, so that it can report the record."""
    return pa.field(field.name, _nullable_type(field.type))


def _nullable_type(type: pa.DataType, named: Callable[[str], str] = str) -> pa.DataType:
    if types.is_list(type):
        return pa.list_(pa.field("element", _nullable_type(type.value_type, named)))
    if types.is_map(type):
        return pa.map_(_nullable_type(type.key_type, named), _nullable_type(type.item_type, named))
    if types.is_struct(type):
        return pa.struct([(named(each.name), _nullable_type(each.type, named)) for each in type])
    return type
