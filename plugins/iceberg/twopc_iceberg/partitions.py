"""Splits records into partitions, by the transforms of the table's partition spec. No I/O."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field as of_dataclass
from hashlib import sha256
from typing import Any

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import types
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, TruncateTransform, UnknownTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, DecimalType, FixedType, IcebergType, IntegerType, LongType

from twopc.columns import require_each
from twopc.errors import ConfigurationError
from twopc.open_files import split_by

LONGEST_NAME = 200

WIDEST = 2**30
"""The greatest width of ``truncate``. Iceberg for Java adds the width to the remainder of an ``int`` in 32 bits. With a
greater width, the sum overflows, and Iceberg for Java looks for records in the wrong partition."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of one spec, and the content of its files.

    Attributes:
        key: its values as texts, which identify the partition within the spec. As a text, NaN equals itself.
        values: one per field of the spec, encoded as in manifests.
        folder: the values as a readable part of a file's path; empty for a table without partitions. Two partitions may
            share a folder: null and the text ``null`` do.
        content: whether its files are data or delete files.
    """

    key: tuple[str, ...]
    values: Record = of_dataclass(compare=False)
    folder: str = of_dataclass(compare=False)
    content: DataFileContent = DataFileContent.DATA

    def to_path(self) -> str:
        """Return the folder. pyiceberg's location providers call this."""
        return self.folder


WHOLE = Partition((), Record(), "")
"""The only partition of a table without partition fields."""


def check_spec(spec: PartitionSpec, schema: Schema, what: str) -> None:
    """Check that every transform of the spec is known, and that all readers interpret its partitions alike.

    Raises:
        ConfigurationError: a transform is unknown, or readers interpret its partitions differently.
    """
    for field in spec.fields:
        source = schema.find_type(field.source_id) if field.source_id in schema.field_ids else None
        if isinstance(field.transform, IdentityTransform) and isinstance(source, FixedType):
            raise ConfigurationError(
                f"{what} is partitioned by {field.name!r}, the identity of a column of the type {source}. pyiceberg and"
                " Iceberg for Java write such partitions differently, and neither can read the other's manifests. Use"
                " the transform bucket, or a column of the type binary."
            )
        if isinstance(field.transform, UnknownTransform):
            raise ConfigurationError(
                f"{what} is partitioned by {field.name!r} with the transform {field.transform}, which pyiceberg does"
                " not know."
            )
        if isinstance(field.transform, TruncateTransform) and field.transform.width > WIDEST:
            raise ConfigurationError(
                f"{what} is partitioned by {field.name!r} with the transform {field.transform}, and Iceberg for Java"
                f" finds no records in such partitions. Use a width of {WIDEST} at most."
            )


def split(records: pa.RecordBatch, spec: PartitionSpec, schema: Schema) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """Yield each partition with its records in their order. ``records`` must contain the columns of ``schema``, in the
    same order."""
    if not spec.fields:
        yield WHOLE, records
        return
    columns = [transformed(records, field, schema) for field in spec.fields]
    for first, part in split_by(records, columns):
        values = Record(*[_physical(column[first]) for column in columns])
        key = tuple(repr(values[place]) for place in range(len(values)))  # NaN equals no other value, not even NaN
        yield Partition(key, values, _folder(spec.partition_to_path(values, schema))), part


def transformed(records: pa.Table | pa.RecordBatch, field: PartitionField, schema: Schema) -> pa.Array:
    """Return the values of a partition field, one per record."""
    if isinstance(field.transform, VoidTransform):
        return pa.nulls(records.num_rows, pa.int32())
    source = schema.find_field(field.source_id)
    column = _source(records, schema, field.source_id)
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if isinstance(field.transform, IdentityTransform):
        return column
    if isinstance(field.transform, TruncateTransform) and isinstance(source.field_type, BinaryType):
        return pc.binary_slice(column, 0, field.transform.width)  # pyiceberg can't truncate large_binary
    found = _one_chunk(field.transform.pyarrow_transform(source.field_type)(column))
    if isinstance(field.transform, TruncateTransform):
        _require_held(found, column, source.field_type, field.name, schema.find_column_name(field.source_id))
    return found


def _require_held(found: pa.Array, column: pa.Array, of_type: IcebergType, name: str, source: str | None) -> None:
    """Refuse a record whose truncated value overflows its type. Truncation rounds toward minus infinity: the smallest
    integers wrap around to the largest, and a decimal gets an extra digit. No reader would look for the record there.
    """
    match of_type:
        case IntegerType() | LongType():
            fits = pc.less_equal(found, column)
        case DecimalType():
            least = decimal.Decimal((1, (9,) * of_type.precision, -of_type.scale))
            fits = pc.greater_equal(found, pa.scalar(least, found.type))
        case _:
            return
    require_each(fits, f"the value is in a partition whose {name} is below the least {of_type}", str(source))


def _source(records: pa.Table | pa.RecordBatch, schema: Schema, source_id: int) -> pa.Array:
    """Return the column with a field id, which may be nested in structs. A column can't be looked up by name, because
    names may contain dots."""
    place = schema.accessor_for_field(source_id)
    column = _one_chunk(records.column(place.position))
    while place.inner is not None:
        place = place.inner
        column = pc.struct_field(column, [place.position])
    return column


def _folder(path: str) -> str:
    """Shorten each name in a path to fit into the 255 bytes that a disk accepts. Readers do not interpret folder
    names."""
    return "/".join(
        name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 17]}-{sha256(name.encode()).hexdigest()[:16]}"
        for name in path.split("/")
    )


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _physical(value: pa.Scalar) -> Any:
    """Return a value in its Avro encoding: dates and times are integers."""
    if types.is_date32(value.type):
        value = value.cast(pa.int32())
    elif types.is_temporal(value.type):
        value = value.cast(pa.int64())
    return value.as_py()
