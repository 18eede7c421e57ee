"""Deletion vectors, in the format of Delta's protocol: the deleted rows of a file."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap64

from twopc.deletion_vectors import bitmap_of, framed, unframed, vector_of

if TYPE_CHECKING:
    from twopc_delta.storage import Storage

_FILE_FORMAT = b"\x01"

_RFC_1924 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_UUID_CHARACTERS = 20


def path_of(name: uuid.UUID, prefix: str = "") -> str:
    """Return the path of a vector's file, relative to the table's folder."""
    return f"{prefix}/deletion_vector_{name}.bin".lstrip("/")


def file_of(vectors: Mapping[str, BitMap64], name: uuid.UUID) -> tuple[bytes, dict[str, dict[str, object]]]:
    """Return the content of a file with several vectors, and their descriptors for the log, by the keys of
    ``vectors``."""
    content, descriptors = bytearray(_FILE_FORMAT), dict[str, dict[str, object]]()
    for key, rows in vectors.items():
        data = vector_of(rows.serialize())
        descriptors[key] = {
            "storageType": "u",
            "pathOrInlineDv": base64.b85encode(name.bytes).translate(bytes.maketrans(_RFC_1924, _Z85)).decode(),
            "offset": len(content),
            "sizeInBytes": len(data),
            "cardinality": len(rows),
        }
        content += framed(data)
    return bytes(content), descriptors


def read(storage: Storage, descriptor: Mapping[str, Any]) -> BitMap64:
    """Return the rows of a vector. Errors of the store pass through.

    Raises:
        ValueError: the vector is damaged, or its file is missing or outside the table's folder.
    """
    kind, where, size = descriptor["storageType"], descriptor["pathOrInlineDv"], int(descriptor["sizeInBytes"])
    if kind == "i":
        data = _from_z85(where)[:size]
    elif kind == "u":
        name = uuid.UUID(bytes=_from_z85(where[-_UUID_CHARACTERS:]))
        path = path_of(name, where[:-_UUID_CHARACTERS])
        try:
            data = unframed(storage.read(path, int(descriptor.get("offset") or 0), size + 8))
        except FileNotFoundError:
            raise ValueError(f"deletion vector {path} is gone") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    else:
        raise ValueError(f"a deletion vector is outside of the table's folder: {where}")
    rows = BitMap64.deserialize(bitmap_of(data))
    if len(rows) != descriptor["cardinality"]:
        raise ValueError("a deletion vector has another number of rows than the log has of it")
    return rows


def _from_z85(text: str) -> bytes:
    return base64.b85decode(text.encode().translate(bytes.maketrans(_Z85, _RFC_1924)))
