"""The partitions of a table: the text of a value in the log, the name of its folder, and which records share a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from twopc.bad_records import are_in_years
from twopc.columns import require, require_each
from twopc.errors import RecordRefused
from twopc.open_files import split_by

IN_LOG = (types.is_string, types.is_boolean, types.is_integer, types.is_date32, types.is_decimal)
"""Types of partition columns whose values have one form in the log that every reader takes back."""

_NULL = "__HIVE_DEFAULT_PARTITION__"
_READ_AS_NULL = ("", _NULL)
"""Texts that readers take for null in a partition column: the second one polars, and Spark where it rewrites a file."""

_ESCAPED = {code: f"%{code:02X}" for code in (*range(32), 127, *map(ord, "\"#%'*/:=?\\{[]^"))}
"""The characters that Spark escapes in a folder's name (``ExternalCatalogUtils``), and NUL. polars reads the name."""


def folder_of(column: str, text: str | None) -> str:
    """Return the name of a partition's folder. It has the whole value, as Spark writes it."""
    return f"{column.translate(_ESCAPED)}={_NULL if text is None else text.translate(_ESCAPED)}"


def require_readable(values: pa.Array, column: str, longest_folder_bytes: int) -> None:
    """Raise RecordRefused for a value of a partition column that some reader would not take back as it was, or whose
    folder has a longer name than the store takes."""
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
        if len(folder_of(column, _text(value)).encode()) > longest_folder_bytes:
            raise RecordRefused(
                f"the value's folder would have a name of more than {longest_folder_bytes} bytes, which the store does"
                " not take. Partition by a shorter column, such as a hash of this one",
                record=pc.index(encoded.indices, number).as_py(),
                column=column,
            )


Partition = tuple[str | None, ...]
"""The values of a partition as the log has them, in the order of the table's partition columns."""


def split(batch: pa.RecordBatch, partition_by: Sequence[str]) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """Yield the records of each partition in their order, without the partition columns."""
    if not partition_by:
        yield (), batch
        return
    columns = [batch.column(name) for name in partition_by]
    for first, records in split_by(batch.drop_columns(list(partition_by)), columns):
        yield tuple(_text(column[first].as_py()) for column in columns), records


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        return format(value, "f")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
