"""The choice of each record's partition: the one it names, else one by its key, as in Spark's own sink and Java.

Records with neither go to one partition until a Kafka record batch is full or the Arrow record batch ends, and then to
the next partition. Spreading single records would turn one large batch into many small ones (KIP-480). With all records
in one partition, batches would wait for each other, because each partition has one batch in flight at a time.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from twopc_kafka.writers.encoding.buffers import bytes_of, offsets_of
from twopc_kafka.writers.encoding.varints import Integers

Hashes: TypeAlias = npt.NDArray[np.uint32]

_SEED = np.uint32(0x9747B28C)
_FACTOR = np.uint32(0x5BD1E995)
_POSITIVE = np.uint32(0x7FFF_FFFF)


def choose(count: int, otherwise: Integers, key: pa.Array | None, named: pa.Array | None) -> Integers:
    """Return the partition of each record.

    Args:
        count: how many partitions the topic has.
        otherwise: per record, the partition to use if the record has neither key nor partition.
        key: binary, or None if no record has a key.
        named: int32, the partitions that records name, all of which exist; None if there is no such column.
    """
    chosen = otherwise
    if key is not None:
        by_key = (murmur2(key) & _POSITIVE).astype(np.int64) % count
        chosen = np.where(_valid(key), by_key, chosen)
    if named is not None:
        chosen = np.where(_valid(named), pc.fill_null(named, 0).to_numpy().astype(np.int64), chosen)
    return chosen


def grouped(chosen: Integers) -> tuple[Integers, dict[int, slice]]:
    """Return the records' positions, stably sorted by partition, and the slice of them for each partition."""
    order = np.argsort(chosen.astype(np.min_scalar_type(chosen.max())), kind="stable")  # narrow integers sort faster
    ordered = chosen[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    stops = np.append(starts[1:], len(order))
    parts = {int(ordered[a]): slice(int(a), int(b)) for a, b in zip(starts, stops, strict=True)}
    return order, parts


def murmur2(keys: pa.Array) -> Hashes:
    """Return the hash of each binary key, the same as that of Java's ``Utils.murmur2``. Hashes of nulls are undefined.

    The loop mixes in the next four bytes of all keys at once. The keys are sorted with the longest first, so the keys
    that have four more bytes are always a prefix.
    """
    offsets = offsets_of(keys)
    longest = np.argsort(offsets[:-1] - offsets[1:], kind="stable")
    start, length = offsets[:-1][longest], np.diff(offsets)[longest]
    data = bytes_of(keys)
    words = np.ndarray(max(0, data.size - 3), np.dtype("<u4"), data, strides=(1,))  # they overlap: one per byte
    state = _SEED ^ length.astype(np.uint32)
    whole = length // 4
    for number in range(int(whole[0]) if len(whole) else 0):
        going_on = int(np.searchsorted(-whole, -number, side="left"))
        mixed = words[start[:going_on] + 4 * number] * _FACTOR
        mixed = (mixed ^ (mixed >> np.uint32(24))) * _FACTOR
        state[:going_on] = (state[:going_on] * _FACTOR) ^ mixed
    hashed: Hashes = np.empty_like(state)
    hashed[longest] = _finish(_mix_last_bytes(state, data, start + 4 * whole, length % 4))
    return hashed


def _mix_last_bytes(state: Hashes, data: npt.NDArray[np.uint8], start: Integers, left: Integers) -> Hashes:
    """Mix in the last one to three bytes of each key."""
    for number in (2, 1, 0):
        there = left > number
        state[there] ^= data[start[there] + number].astype(np.uint32) << np.uint32(8 * number)
    state[left > 0] *= _FACTOR
    return state


def _finish(state: Hashes) -> Hashes:
    state ^= state >> np.uint32(13)
    state *= _FACTOR
    state ^= state >> np.uint32(15)
    return state


def _valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid
