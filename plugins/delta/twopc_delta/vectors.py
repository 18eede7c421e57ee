"""Deletion vectors: which rows of a file a version of the table no longer has, as Delta's protocol stores them."""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap64

if TYPE_CHECKING:
    from twopc_delta.storage import Storage

_MAGIC = struct.pack("<i", 1681511377)
"""Begins a bitmap in the portable format. Its rest is what CRoaring calls that, too."""

_FILE_FORMAT = b"\x01"

_RFC_1924 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_UUID_CHARACTERS = 20


def path_of(name: uuid.UUID, prefix: str = "") -> str:
    """Return where the file of a vector is, below the table's folder."""
    return f"{prefix}/deletion_vector_{name}.bin".lstrip("/")


def file_of(vectors: Mapping[str, BitMap64], name: uuid.UUID) -> tuple[bytes, dict[str, dict[str, object]]]:
    """Return the content of a file with several vectors, and for each key of ``vectors`` its descriptor in the log."""
    content, descriptors = bytearray(_FILE_FORMAT), dict[str, dict[str, object]]()
    for key, rows in vectors.items():
        data = _MAGIC + rows.serialize()
        descriptors[key] = {
            "storageType": "u",
            "pathOrInlineDv": base64.b85encode(name.bytes).translate(bytes.maketrans(_RFC_1924, _Z85)).decode(),
            "offset": len(content),
            "sizeInBytes": len(data),
            "cardinality": len(rows),
        }
        content += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    return bytes(content), descriptors


def read(storage: Storage, descriptor: Mapping[str, Any]) -> BitMap64:
    """Return the rows of a vector. Errors of the store pass through.

    Raises:
        ValueError: it is damaged, or is none of this table's folder.
    """
    kind, where, size = descriptor["storageType"], descriptor["pathOrInlineDv"], int(descriptor["sizeInBytes"])
    if kind == "i":
        data = _from_z85(where)[:size]
    elif kind == "u":
        name = uuid.UUID(bytes=_from_z85(where[-_UUID_CHARACTERS:]))
        path = path_of(name, where[:-_UUID_CHARACTERS])
        try:
            found = storage.read(path, int(descriptor.get("offset") or 0), size + 8)
        except FileNotFoundError:
            raise ValueError(f"deletion vector {path} is gone") from None
        data = _checked(found, size, path)
    else:
        raise ValueError(f"a deletion vector is outside of the table's folder: {where}")
    if not data.startswith(_MAGIC):
        raise ValueError("a deletion vector has an unknown format")
    rows = BitMap64.deserialize(data[len(_MAGIC) :])
    if len(rows) != descriptor["cardinality"]:
        raise ValueError("a deletion vector has another number of rows than the log has of it")
    return rows


def _checked(found: bytes, size: int, path: str) -> bytes:
    data, rest = found[4 : 4 + size], found[4 + size :]
    if found[:4] != struct.pack(">i", size) or rest != struct.pack(">I", zlib.crc32(data)):
        raise ValueError(f"deletion vector {path} is damaged")
    return data


def _from_z85(text: str) -> bytes:
    return base64.b85decode(text.encode().translate(bytes.maketrans(_Z85, _RFC_1924)))
