"""Converts records to COPY's text format, and finds values that PostgreSQL would not keep. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from twopc.bad_records import are_in_years, are_utf8
from twopc.columns import CHANGED_JSON, are_kept_json
from twopc.prepared import BYTES, joined
from twopc.refusals import is_bytes, is_string

if TYPE_CHECKING:
    from twopc_postgres.columns import Column

BYTES_AT_ONCE = 1 << 23
"""How many bytes of a batch are converted at a time."""

_BYTES_EACH = 16
"""The least number of bytes that a value takes as text: Arrow's offset and a few characters."""

_LEAST_EXPONENT = -16_383
"""The least exponent of a ``numeric``: PostgreSQL keeps up to 16,383 digits after the decimal point."""


def lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield the lines of records in COPY's format ``text``."""
    length = max(batch.nbytes, _BYTES_EACH * sum(map(_count, batch.columns)), 1)
    at_once = max(1, batch.num_rows * BYTES_AT_ONCE // length)
    for first in range(0, batch.num_rows, at_once):
        fields = [_escaped(values) for values in batch.slice(first, at_once).columns]
        null = {"null_handling": "replace", "null_replacement": rb"\N"}
        rows = pc.binary_join_element_wise(*fields, pa.scalar(b"\t", BYTES), **null)
        yield b"\n".join([*rows.to_pylist(), b""])


def _count(values: pa.Array) -> int:
    """Return the number of values in a column, counting lists and their elements."""
    return len(values) + (_count(values.flatten()) if pa.types.is_nested(values.type) else 0)


def _escaped(values: pa.Array) -> pa.Array:
    texts = _texts(values)
    if is_string(values.type) or pa.types.is_nested(values.type) or is_bytes(values.type):
        for plain, escaped in (b"\\", rb"\\"), (b"\n", rb"\n"), (b"\r", rb"\r"), (b"\t", rb"\t"):
            texts = pc.replace_substring(texts, plain, escaped)
    return texts


def _texts(values: pa.Array) -> pa.Array:
    """Return values as texts that PostgreSQL reads unambiguously under any settings."""
    type = values.type
    if is_string(type):
        return values.cast(BYTES)
    if is_bytes(type):
        return pa.array([None if each is None else f"\\x{each.hex()}".encode() for each in values.to_pylist()], BYTES)
    if pa.types.is_nested(type):
        return _texts_of_lists(values)
    if pa.types.is_timestamp(type) and type.tz:
        return joined(_texts(values.cast(pa.int64()).cast(pa.timestamp(type.unit))), "+00")
    if pa.types.is_float32(type):
        values = values.cast(pa.float64())  # all digits, for a float8
    return values.cast(pa.string()).cast(BYTES)


def _texts_of_lists(lists: pa.Array) -> pa.Array:
    texts = _texts(lists.flatten())
    for special in b"\\", b'"':
        texts = pc.replace_substring(texts, special, b"\\" + special)
    elements = pc.fill_null(joined('"', texts, '"'), pa.scalar(b"NULL", BYTES))
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    inner = pc.binary_join(pa.ListArray.from_arrays(offsets, elements), pa.scalar(b",", BYTES))
    return pc.if_else(lists.is_valid(), joined("{", inner, "}"), None)


def refusals(type: pa.DataType, column: Column) -> Iterator[tuple[Callable[[pa.Array], bool], str]]:
    """Yield the checks for values that PostgreSQL would not keep: a predicate that is true for acceptable values, and
    the reason to report for others."""
    of_one = type.value_type if pa.types.is_nested(type) else type
    if is_string(of_one):
        yield are_utf8, "it is text that is not UTF-8"
    if pa.types.is_date(of_one) or pa.types.is_timestamp(of_one):
        yield lambda part: are_in_years(single(part)), "it is a time outside of the years 1 to 9999"
    if column.type == "jsonb":
        yield _are_kept_as_jsonb, CHANGED_JSON


def single(values: pa.Array) -> pa.Array:
    """Return the values of a column, or the elements of its lists, without nulls."""
    return (values.flatten() if pa.types.is_nested(values.type) else values).drop_null()


def _are_kept_as_jsonb(values: pa.Array) -> bool:
    return are_kept_json(single(values).to_pylist(), _is_kept)


def _is_kept(spelled: str) -> bool:
    number = Decimal(spelled)
    is_negative_zero = number.is_signed() and number.is_zero()
    return int(number.as_tuple().exponent) >= _LEAST_EXPONENT and not is_negative_zero
