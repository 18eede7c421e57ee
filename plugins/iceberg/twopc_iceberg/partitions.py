"""The partition of each record, by the transforms of the table's partition spec. It makes no request."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import types
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, TruncateTransform, UnknownTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, DecimalType, FixedType, IcebergType, IntegerType, LongType, StructType

from twopc.errors import ConfigurationError
from twopc_iceberg.columns import require

LONGEST_NAME = 200

WIDEST = 2**30
"""The widest ``truncate``. Iceberg for Java adds the width to the remainder of an ``int`` in 32 bits: with a wider one
it looks for a record in another partition."""


@dataclass(frozen=True, slots=True)
class Partition:
    """The records of one partition.

    Attributes:
        values: one per field of the spec, as manifests have them.
        folder: the same as part of a file's path, for people; empty for a table without partitions. Two partitions may
            have one folder: null and the text ``null`` do.
        records: those of the partition, in their order.
        content: the kind of file that they go to.
    """

    values: Record
    folder: str
    records: pa.Table
    content: DataFileContent = DataFileContent.DATA

    @property
    def key(self) -> tuple[str, ...]:
        """What distinguishes this partition from every other of its spec, and from deletes."""
        return (self.content.name, *(repr(self.values[place]) for place in range(len(self.values))))


def check_spec(spec: PartitionSpec, schema: Schema, what: str) -> None:
    """Make sure that every transform of the spec is known, and that all readers understand its partitions.

    Raises:
        ConfigurationError: one is not, or they don't.
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


def split(records: pa.Table, spec: PartitionSpec, schema: Schema) -> Iterator[Partition]:
    """Yield the partitions of ``records``, which have the columns of ``schema`` in its order.

    Records are grouped by codes of values, not by comparing values: NaN equals no other value, not even NaN, and would
    be in no partition.
    """
    if not spec.fields:
        yield Partition(Record(), "", records)
        return
    columns = [transformed(records, field, schema) for field in spec.fields]
    encoded = [column.dictionary_encode(null_encoding="encode") for column in columns]
    codes = np.stack([each.indices.to_numpy(zero_copy_only=False) for each in encoded], axis=1)
    keys, group_of = np.unique(codes, axis=0, return_inverse=True)
    group_of = group_of.reshape(-1)
    for number, key in enumerate(keys):
        found = zip(encoded, key, strict=True)
        values = Record(*[_physical(each.dictionary, int(code)) for each, code in found])
        chosen = records if len(keys) == 1 else records.take(pa.array(np.flatnonzero(group_of == number)))
        yield Partition(values, _folder(spec.partition_to_path(values, schema)), chosen)


def transformed(records: pa.Table, field: PartitionField, schema: Schema) -> pa.Array:
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
        return pc.binary_slice(column, 0, field.transform.width)  # pyiceberg truncates no large_binary
    found = _one_chunk(field.transform.pyarrow_transform(source.field_type)(column))
    if isinstance(field.transform, TruncateTransform):
        _require_held(found, column, source.field_type, field.name, schema.find_column_name(field.source_id))
    return found


def _require_held(found: pa.Array, column: pa.Array, of_type: IcebergType, name: str, source: str | None) -> None:
    """Refuse a record whose truncated value its type can't hold. Truncation is towards minus infinity: the least
    integers wrap around to the largest, and a decimal gets one digit more. No reader would look for the record there.
    """
    match of_type:
        case IntegerType() | LongType():
            fits = pc.less_equal(found, column)
        case DecimalType():
            least = decimal.Decimal((1, (9,) * of_type.precision, -of_type.scale))
            fits = pc.greater_equal(found, pa.scalar(least, found.type))
        case _:
            return
    require(fits, str(source), f"is in a partition whose {name} is below the least {of_type}")


def _source(records: pa.Table, schema: Schema, source_id: int) -> pa.Array:
    """Return the column of a field, which may be within structs. Found by its id, as names may have dots."""
    for position, top in enumerate(schema.fields):
        if path := _path_to(top.field_type, source_id, (top.field_id,)):
            column, within = _one_chunk(records.column(position)), top.field_type
            for field_id in path[1:]:
                assert isinstance(within, StructType)
                place = [field.field_id for field in within.fields].index(field_id)
                column, within = pc.struct_field(column, [place]), within.fields[place].field_type
            return column
    raise ConfigurationError(
        f"the partition spec has a source with the id {source_id}, which is no column of the table"
    )


def _path_to(kind: Any, field_id: int, path: tuple[int, ...]) -> tuple[int, ...] | None:
    if path[-1] == field_id:
        return path
    if not isinstance(kind, StructType):
        return None
    found = (_path_to(field.field_type, field_id, (*path, field.field_id)) for field in kind.fields)
    return next(filter(None, found), None)


def _folder(path: str) -> str:
    """Return a path whose every name a disk takes: at most 255 bytes. A folder's name means nothing to readers."""
    return "/".join(
        name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 17]}-{sha256(name.encode()).hexdigest()[:16]}"
        for name in path.split("/")
    )


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _physical(dictionary: pa.Array, code: int) -> Any:
    """Return a value as Avro has it: dates and times as whole numbers."""
    kind = dictionary.type
    if types.is_date32(kind):
        dictionary = dictionary.cast(pa.int32())
    elif types.is_temporal(kind):
        dictionary = dictionary.cast(pa.int64())
    return dictionary[code].as_py()
