"""Byte buffers in memory that Arrow's pool reuses. Getting new memory from the system takes three times as long as
copying."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes: TypeAlias = npt.NDArray[np.uint8]

LARGEST_BYTES = 8 * 1024 * 1024
"""More bytes than any single NumPy array takes while a chunk is encoded."""


@functools.cache
def keep_freed_memory() -> None:
    """Make this process keep memory that NumPy frees, up to twice ``LARGEST_BYTES``, instead of returning it.

    Encoding 10,000 records took 250 page faults, which were a third of its CPU time. glibc returns freed memory above a
    limit to the system. It raises that limit by itself, to twice the size of a large allocation that is freed: see
    ``M_MMAP_THRESHOLD`` in mallopt(3). Other C libraries ignore this.
    """
    np.empty(LARGEST_BYTES, np.uint8)  # no page of it is touched


def bytes_of(array: pa.Array) -> Bytes:
    """Return the data buffer of a binary array, which also holds the rows that a slice leaves out."""
    return np.frombuffer(array.buffers()[2] or b"", np.uint8)


def offsets_of(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return where in ``bytes_of`` each row of a binary array begins, and where the last row ends."""
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)


def joined(parts: Sequence[Bytes], room_bytes: int) -> pa.Buffer:
    """Return a buffer with the parts one after another, preceded by ``room_bytes`` for the caller to fill."""
    buffer = pa.allocate_buffer(room_bytes + sum(map(len, parts)))
    np.concatenate(parts, out=np.frombuffer(buffer, np.uint8)[room_bytes:])
    return buffer


def view(buffer: pa.Buffer) -> memoryview:
    """Return a writable view of a buffer's bytes."""
    return memoryview(buffer).cast("B")
