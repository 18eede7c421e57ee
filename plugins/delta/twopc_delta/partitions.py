"""The partitions of a table: which values a partition column accepts, and how records are split into partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from twopc.bad_records import are_in_years
from twopc.columns import require, require_each
from twopc.errors import RecordRefused
from twopc.open_files import DEFAULT_PARTITION, partition_folder, partition_text, split_by

IN_LOG = (types.is_string, types.is_boolean, types.is_integer, types.is_date32, types.is_decimal)
"""Types of partition columns whose values are written to the log in a single text form, which all readers parse
alike."""

_READ_AS_NULL = ("", DEFAULT_PARTITION)
"""Strings that readers treat as null in a partition column. The second is read as null by polars, and by Spark when it
rewrites a file."""


def require_readable(values: pa.Array, column: str, longest_folder_bytes: int) -> None:
    """Raise RecordRefused for a value of a partition column that some reader would misread, or whose folder's name is
    too long for the store."""
    if types.is_string(values.type):
        is_text = pc.invert(pc.is_in(values, pa.array(_READ_AS_NULL, values.type)))
        why = "Delta's readers take an empty text and '__HIVE_DEFAULT_PARTITION__' in a partition column for null"
        require_each(is_text, why, column)
    elif types.is_date32(values.type):
        require(values, are_in_years, "a partition's date must be in the years 1 to 9999", column)
    elif types.is_decimal(values.type):
        is_read = pc.or_(pc.greater_equal(values, 0), pc.equal(pc.trunc(values), values))
        why = "deltalake reads no table with a negative decimal in a partition column, unless it is a whole number"
        require_each(is_read, why, column)
    encoded = values.dictionary_encode()
    for number, value in enumerate(encoded.dictionary.to_pylist()):
        if len(partition_folder(column, value).encode()) > longest_folder_bytes:
            raise RecordRefused(
                f"the value's folder would have a name of more than {longest_folder_bytes} bytes, which the store does"
                " not take. Partition by a shorter column, such as a hash of this one",
                record=pc.index(encoded.indices, number).as_py(),
                column=column,
            )


Partition = tuple[str | None, ...]
"""The values of a partition in the log's encoding, in the order of the table's partition columns."""


def split(batch: pa.RecordBatch, partition_by: Sequence[str]) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """Yield each partition with its records in their order, without the partition columns."""
    if not partition_by:
        yield (), batch
        return
    columns = [batch.column(name) for name in partition_by]
    for first, records in split_by(batch.drop_columns(list(partition_by)), columns):
        yield tuple(partition_text(column[first].as_py()) for column in columns), records
