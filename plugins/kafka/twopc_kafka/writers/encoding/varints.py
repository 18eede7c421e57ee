"""Zig-zag varints, the integers of Kafka's records, encoded for whole columns at once.

A column of n integers becomes several columns of n bytes: one for the first byte of each varint, one for the second,
and so on. Each comes with a mask of the rows whose varint is long enough to have that byte. With the columns side by
side, the masked bytes, read row by row, are the encoded integers one after another.
Source: the protocol guide's "Varint" and "Varlong", which are those of Protocol Buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers: TypeAlias = npt.NDArray[np.int64]

_BITS = np.uint64(7)  # bits of the integer per byte
_LOW = np.uint64(0x7F)
_MORE = np.uint64(0x80)  # set in every byte but the last
_NOTHING = np.uint64(0)


@dataclass(frozen=True, slots=True)
class Varints:
    """A column of encoded integers.

    Attributes:
        columns: the first bytes, the second bytes, and so on, each with a mask of the rows that have such a byte, or
            None if all rows have one.
        size: the number of bytes of each integer.
    """

    columns: Sequence[tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_] | None]]
    size: Integers

    def __len__(self) -> int:
        return len(self.size)


def varints(values: Integers) -> Varints:
    """Encode each of ``values`` as a varint of 1 to 10 bytes."""
    rest = _zigzag(values)
    columns = []
    used, size = None, np.ones(len(values), np.int64)
    for _ in range(_width(rest) - 1):
        low, rest = rest & _LOW, rest >> _BITS
        more = rest != _NOTHING
        columns.append(((low | (more * _MORE)).astype(np.uint8), used))
        used = more
        size += more
    return Varints([*columns, (rest.astype(np.uint8), used)], size)


def sizes(values: Integers) -> Integers:
    """Return how many bytes each of ``values`` takes as a varint."""
    rest = _zigzag(values)
    size = np.ones(len(values), np.int64)
    for column in range(1, _width(rest)):
        size += rest >> np.uint64(7 * column) != _NOTHING
    return size


def rows(parts: Sequence[Varints]) -> pa.Array:
    """Return a binary array whose row *i* is the concatenation of the encoded integers *i* of all ``parts``."""
    columns = [column for part in parts for column in part.columns]
    count = len(parts[0])
    together = np.empty((count, len(columns)), np.uint8)
    used = np.ones(together.shape, np.bool_)
    for number, (encoded, reaching) in enumerate(columns):
        together[:, number] = encoded
        if reaching is not None:
            used[:, number] = reaching
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(sum(part.size for part in parts), out=ends[1:])
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(together[used])])


def _zigzag(values: Integers) -> npt.NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _width(zigzag: npt.NDArray[np.uint64]) -> int:
    return max(1, -(-int(zigzag.max(initial=0)).bit_length() // 7))
