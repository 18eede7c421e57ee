"""Bytes put together in memory that Arrow keeps for the next: what the system gives anew costs three times a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes: TypeAlias = npt.NDArray[np.uint8]


def bytes_of(array: pa.Array) -> Bytes:
    """All that a binary array has, its own rows and what it was sliced from."""
    return np.frombuffer(array.buffers()[2] or b"", np.uint8)


def offsets_of(array: pa.Array) -> npt.NDArray[np.int64]:
    """Where in ``bytes_of`` each row of a binary array begins, and where the last one ends."""
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)


def joined(parts: Sequence[Bytes], room_bytes: int) -> pa.Buffer:
    """The parts one behind another, after so much room for what is yet to come before them."""
    buffer = pa.allocate_buffer(room_bytes + sum(map(len, parts)))
    np.concatenate(parts, out=np.frombuffer(buffer, np.uint8)[room_bytes:])
    return buffer


def view(buffer: pa.Buffer) -> memoryview:
    """The bytes of a buffer, to read and to write."""
    return memoryview(buffer).cast("B")
