"""Equality deletes: files of keys beside a batch's records, so that a record replaces the row with its key.

A delete file applies to every data file with a smaller sequence number. All files of a snapshot share its number, so a
batch never deletes its own records. Rows that a compaction has moved are still deleted: Iceberg gives rewritten files
the number of the snapshot that they were read from. A commit reads none of the table's rows, so a decided batch can be
committed however other writers have changed the rows.

The files belong to an unpartitioned spec: by the specification, only such deletes apply to all partitions. A table that
was created with partitions has no such spec. Before its decision, the first batch adds an unpartitioned spec
(``require_spec``), without changing the table's default spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table.update import AddPartitionSpecUpdate, AssertTableUUID
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from twopc.columns import not_whole, require_key_columns, require_keys
from twopc.errors import ConfigurationError
from twopc_iceberg.columns import aligned

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

KEY_TYPES = (
    *(BooleanType, IntegerType, LongType, DecimalType, DateType, TimestampType, TimestamptzType),
    *(StringType, BinaryType),
)
"""The types whose values all readers compare alike. Iceberg forbids floating-point keys. Iceberg for Java misorders
``uuid``, and so skips delete files; Spark has no ``time``."""


def require_key(schema: Schema, key: Sequence[str], what: str) -> None:
    """Check that the table can be keyed by these columns. ``what`` names the table in errors.

    Raises:
        ConfigurationError: the table lacks a column of the key, or the column's type is not one of ``KEY_TYPES``.
    """
    by_name = {field.name: field for field in schema.fields}
    require_key_columns(key, by_name, what)
    for name in key:
        if not isinstance(found := by_name[name].field_type, KEY_TYPES):
            kinds = ", ".join(sorted(str(kind.__name__.removesuffix("Type").lower()) for kind in KEY_TYPES))
            raise ConfigurationError(
                f"column {name!r} of {what}, which 'upsert_by' names, is of the type {found}. Readers do not agree on"
                f" which of its values are equal. Use a column of one of these types: {kinds}.",
                option="upsert_by",
            )


def require_whole(records: pa.Schema, table: Schema, what: str) -> None:
    """Check that records contain every column of the table, because a record replaces a whole row.

    Raises:
        SchemaMismatch: a column is missing. The error names the column.
    """
    if lacking := _lacking(pa.struct([*records]), table.as_struct(), ""):
        raise not_whole(lacking, what)


def _lacking(given: pa.DataType, wanted: IcebergType, path: str) -> str | None:
    match wanted:
        case StructType():
            for field in wanted.fields:
                place = given.get_field_index(field.name)
                name = f"{path}{field.name}"
                found = name if place < 0 else _lacking(given[place].type, field.field_type, f"{name}.")
                if found:
                    return found
        case ListType():
            return _lacking(given.value_type, wanted.element_type, f"{path}element.")
        case MapType():
            return _lacking(given.item_type, wanted.value_type, f"{path}value.")
    return None


@dataclass(frozen=True, slots=True)
class Deletes:
    """The columns and the partition spec of equality delete files.

    Attributes:
        schema: the columns of the key, in the key's order.
        file_schema: the columns of the key, under names that every reader accepts.
        spec: the unpartitioned spec.
    """

    schema: Schema
    file_schema: Schema
    spec: PartitionSpec

    @classmethod
    def of(cls, metadata: TableMetadata, key: Sequence[str], what: str) -> Deletes:
        """Return the columns and the spec for deletes by ``key``. Raises the errors of ``require_key``."""
        require_key(metadata.schema(), key, what)
        by_name = {field.name: field for field in metadata.schema().fields}
        schema = Schema(*[by_name[name] for name in key])
        return cls(schema, sanitize_column_names(schema), spec_of_deletes(metadata))

    @property
    def equality_ids(self) -> list[int]:
        return [field.field_id for field in self.schema.fields]

    def keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the keys of a batch in the layout of a delete file.

        Raises:
            RecordRefused: a key contains a null, which equals null in Iceberg, or a value that does not fit its column.
                The error contains the record's position.
        """
        require_keys(batch, self.schema.column_names)
        keys = batch.select(self.schema.column_names)
        return aligned(keys, self.schema, schema_to_pyarrow(self.file_schema))


def spec_of_deletes(metadata: TableMetadata) -> PartitionSpec:
    """Return the table's partition spec without fields, or the spec that ``require_spec`` will add.

    In a table that was upgraded from version 1, a spec whose fields were all dropped has ``void`` fields. Not every
    reader treats it as a spec without fields.
    """
    found = (spec for spec in metadata.partition_specs if not spec.fields)
    return next(found, PartitionSpec(spec_id=max(spec.spec_id for spec in metadata.partition_specs) + 1))


def require_spec(table: Table) -> bool:
    """Add a spec without fields to the table if it has none. Return whether the table was changed. Errors of the
    catalog pass through."""
    spec = spec_of_deletes(table.metadata)
    if spec in table.metadata.partition_specs:
        return False
    same = AssertTableUUID(uuid=table.metadata.table_uuid)
    table.catalog.commit_table(table, (same,), (AddPartitionSpecUpdate(spec=spec),))
    return True
