"""Deletion vectors as Delta and Iceberg store them: a file's deleted rows, as a portable Roaring bitmap; no I/O."""

from __future__ import annotations

import struct
import zlib

_MAGIC = struct.pack("<i", 1681511377)


def vector_of(bitmap: bytes) -> bytes:
    """Return the vector of a serialized bitmap."""
    return _MAGIC + bitmap


def bitmap_of(vector: bytes) -> bytes:
    """Return the serialized bitmap of a vector. Raises ValueError."""
    if not vector.startswith(_MAGIC):
        raise ValueError("a deletion vector has an unknown format")
    return vector[len(_MAGIC) :]


def framed(vector: bytes) -> bytes:
    """Return a vector as stored in a file, with its length and a checksum."""
    return struct.pack(">i", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))


def unframed(content: bytes) -> bytes:
    """Return the vector that ``framed`` was given. Raises ValueError."""
    vector = content[4:-4]
    if content != framed(vector):
        raise ValueError("a deletion vector is cut short, or its checksum is wrong")
    return vector
