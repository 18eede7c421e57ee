"""Converts records to events: checks the records, frames them for a segment, and assigns each key to a segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twopc.bad_records import are_utf8, first_bad
from twopc.columns import check_fixed_columns, require
from twopc.errors import RecordRefused
from twopc.refusals import is_bytes, is_string
from twopc_pravega.controller import Segment

COLUMNS = {"value": "string or binary", "key": "string"}

LARGEST_EVENT = 8 * 1024 * 1024 - 8
"""The longest value, in bytes. Pravega's readers accept 8 MiB, including the event's header."""

BLOCK_BYTES = 1024 * 1024
"""The largest size of a block of events, unless a single event is larger."""

_KEY_HASH_SEED = 1_741_865_571  # "EventRouter".hashCode() in Java


def check_columns(schema: pa.Schema) -> None:
    """Refuse a schema that can't be written.

    Raises:
        SchemaMismatch: a column is missing, unknown or of the wrong type. The message names it.
    """
    check_fixed_columns(schema, "pravega", COLUMNS, _fits, lambda name, _: f"CAST({name} AS STRING)")


def _fits(name: str, type: pa.DataType) -> bool:
    return is_string(type) or (name == "value" and is_bytes(type))


def check_records(batch: pa.RecordBatch) -> None:
    """Refuse a record that can't be an event.

    Raises:
        RecordRefused: a record can't be an event. The error names the first of these records.
    """
    values = batch.column("value")
    if values.null_count:
        raise RecordRefused(
            "it is null, and Pravega has no event without a value. Filter such records.",
            record=first_bad(values, lambda part: part.null_count == 0),
            column="value",
        )
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    if longest > LARGEST_EVENT:
        raise RecordRefused(
            f"it has {longest} bytes, and Pravega's events have {LARGEST_EVENT} at most. Split or filter such records.",
            record=first_bad(values, lambda part: (pc.max(pc.binary_length(part)).as_py() or 0) <= LARGEST_EVENT),
            column="value",
        )
    if "key" in batch.schema.names:
        require(batch.column("key"), are_utf8, "the key is not UTF-8", "key")


def blocks(values: pa.Array) -> Iterator[tuple[memoryview, int]]:
    """Yield blocks of events in the form of a segment, and the number of events in each."""
    ends = np.cumsum(pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64) + 8)
    first = 0
    while first < len(values):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + BLOCK_BYTES, side="right")))
        yield _frame(values.slice(first, last - first)), last - first
        first = last


def _frame(values: pa.Array) -> memoryview:
    """Return events one after the other: type 0, length, value. Arrow joins them, without a loop in Python."""
    payloads = values.cast(pa.large_binary())
    lengths = pc.binary_length(payloads).to_numpy(zero_copy_only=False)
    header = np.zeros((len(lengths), 2), ">i4")
    header[:, 1] = lengths
    headers = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(lengths), [None, pa.py_buffer(header)])
    joined = pc.binary_join_element_wise(headers.cast(pa.large_binary()), payloads, pa.scalar(b"", pa.large_binary()))
    offsets = np.frombuffer(joined.buffers()[1], np.int64, len(joined) + 1, joined.offset * 8)
    return memoryview(joined.buffers()[2])[int(offsets[0]) : int(offsets[-1])]


def unframed(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the events of a segment, and the offset at which each ends.

    Raises:
        ValueError: the bytes are not events.
    """
    at = 0
    while at < len(data):
        type, length = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
        end = at + 8 + length
        if type or end > len(data):
            raise ValueError(f"there is no event at offset {at}")
        yield data[at + 8 : end], end
        at = end


# Keys. ----------------------------------------------------------------------------------------------------------


def routed(batch: pa.RecordBatch, segments: Sequence[Segment]) -> Iterator[tuple[int | None, pa.Array]]:
    """Yield the position of each segment, and the values whose keys belong to it, in order. Values without a key are
    yielded with the position None, and may go to any segment."""
    values = batch.column("value")
    keys = batch.column("key") if "key" in batch.schema.names else pa.nulls(len(values), pa.string())
    if keys.null_count == len(keys):
        yield None, values
        return
    encoded = keys.dictionary_encode()
    ends = [segment.range_end for segment in segments[:-1]]
    positions = np.searchsorted(ends, [key_position(key) for key in encoded.dictionary.to_pylist()], side="right")
    of_records = pa.array(positions, pa.int32()).take(encoded.indices)
    for position in pc.unique(of_records).to_pylist():
        chosen = pc.is_null(of_records) if position is None else pc.equal(of_records, position)
        yield position, values.filter(chosen)


def key_position(key: str) -> float:
    """Return the position of a routing key between 0 and 1, as Pravega's Java client computes it."""
    bits = mmh3.hash64(key.encode("utf-16-le"), _KEY_HASH_SEED, x64arch=True, signed=False)[0]
    return (bits >> 12) / 2.0**52
