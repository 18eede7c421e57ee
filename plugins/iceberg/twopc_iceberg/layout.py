"""The columns and the partition spec with which files were written. Checks whether a table can still read the files. No
I/O.

Iceberg finds columns by id, and reads null for a column that a file lacks. So a table can read files written before its
columns were renamed, dropped, reordered or widened, or before optional columns were added. The result is as if the
files had been committed before the change.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns and the partition spec with which files were written.

    Attributes:
        columns: the columns, with their ids.
        spec: the partition spec.
    """

    columns: StructType
    spec: PartitionSpec

    @classmethod
    def of(cls, schema: Schema, spec: PartitionSpec) -> Layout:
        return cls(schema.as_struct(), spec)

    @classmethod
    def from_manifest(cls, schema: str, spec_id: int, fields: str) -> Layout:
        """Parse the schema and the partition fields, which a manifest's header stores as JSON."""
        spec = PartitionSpec(*map(PartitionField.model_validate, json.loads(fields)), spec_id=spec_id)
        return cls.of(Schema.model_validate_json(schema), spec)

    @property
    def fingerprint(self) -> str:
        text = self.columns.model_dump_json() + self.spec.model_dump_json()
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def partition_types(self) -> list[IcebergType]:
        """Return the type of each partition field's values."""
        return [field.field_type for field in self.spec.partition_type(Schema(*self.columns.fields)).fields]

    def unreadable_by(self, table: Layout) -> str | None:
        """Return why a table with layout ``table`` can't read the files; None if it can."""
        if self.spec != table.spec:
            return f"its partition spec {self.spec.spec_id} is another one now"
        if not {field.field_id for field in self.columns.fields} & {field.field_id for field in table.columns.fields}:
            return "none of its columns is one that was written"
        return _unreadable(self.columns, table.columns, "")


def _unreadable(written: IcebergType, now: IcebergType, path: str) -> str | None:
    before = {field.field_id: field for field in _parts(written)}
    for field in _parts(now):
        name = f"{path}{field.name}"
        if (file := before.get(field.field_id)) is None:
            if field.required:
                return f"its column {name!r} is required, and was not written"
            continue
        if field.required and not file.required:
            return f"its column {name!r} is required, and was optional when it was written"
        if not _reads(file.field_type, field.field_type):
            return f"its column {name!r} is of type {field.field_type}, and {file.field_type} was written"
        if found := _unreadable(file.field_type, field.field_type, f"{name}."):
            return found
    return None


def _parts(of: IcebergType) -> tuple[NestedField, ...]:
    match of:
        case StructType():
            return of.fields
        case ListType():
            return (of.element_field,)
        case MapType():
            return (of.key_field, of.value_field)
        case _:
            return ()


def _reads(written: IcebergType, now: IcebergType) -> bool:
    """Return whether values written with one type can be read as another, by the type promotions of format version
    2."""
    match written, now:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return written.scale == now.scale and written.precision <= now.precision
        case PrimitiveType(), _:
            return written == now
        case _:
            return type(written) is type(now)
