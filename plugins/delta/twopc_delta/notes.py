"""Recovery notes: a small file per open transaction, beside the data, that names the transaction's files.

A task writes the note before each new file. When it pre-commits, it writes the note one last time, with everything that
the commit needs. The committable contains the note's digest. The note is removed once the batch is in the table's log,
or together with the transaction's files when the transaction is rolled back. A transaction without a note has ended.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from twopc.stores.disk import LocalFolder, make_folder
from twopc.stores.remote import ObjectFolder
from twopc_delta.storage import NOTES, Storage

_ENDING = ".json"


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file of a transaction, as the log records it.

    Attributes:
        path: relative to the table's folder.
        size_bytes: the file's size.
        partition_values: column → value, encoded as in the log.
        modified_ms: when it was finished, in milliseconds since 1970.
        stats: its statistics, as JSON.
    """

    path: str
    size_bytes: int
    partition_values: Mapping[str, str | None]
    modified_ms: int
    stats: str


@dataclass(frozen=True, slots=True)
class Note:
    """The files and the table of one transaction.

    Attributes:
        paths: the paths of its files, including unfinished ones; empty once it is pre-committed.
        table_id: the id of the table for which it wrote.
        columns: name → type of each column that it wrote.
        required: the columns that were NOT NULL, as in ``TableView.required``.
        partition_by: the table's partition columns.
        files: the files to add; empty until it is pre-committed.
        key: the columns by which its records replace others; empty if it appends.
        deletes: files with the keys of its deletes, which never become part of the table.
    """

    paths: Sequence[str]
    table_id: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    required: Sequence[Sequence[str]] = ()
    partition_by: Sequence[str] = ()
    files: Sequence[AddedFile] = ()
    key: Sequence[str] = ()
    deletes: Sequence[AddedFile] = ()

    def to_bytes(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Note:
        """Parse ``to_bytes`` output. Raises ValueError for anything else."""
        try:
            value: dict[str, Any] = orjson.loads(data)
            files = [AddedFile(**file) for file in value["files"]]
            deletes = [AddedFile(**file) for file in value.get("deletes", ())]  # notes of older releases have none
            return cls(**{**value, "files": files, "deletes": deletes})
        except (KeyError, TypeError) as error:
            raise ValueError(repr(error)) from None


def digest(data: bytes) -> str:
    """Return a digest for comparing notes or log entries."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def replace_durably(folder: LocalFolder | ObjectFolder, name: str, data: bytes) -> None:
    """Create or replace a file in the folder of notes. Create the folder if it is missing."""
    try:
        _replace(folder, name, data)
    except FileNotFoundError:  # a starting query has created the folder for a trial, and removed it again
        _replace(folder, name, data)


def _replace(folder: LocalFolder | ObjectFolder, name: str, data: bytes) -> None:
    if isinstance(folder, LocalFolder):
        make_folder(Path(folder.path))
    folder.replace(name, data)
    folder.sync(name)


class Notes:
    """The notes of one table."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @functools.cached_property
    def _folder(self) -> LocalFolder | ObjectFolder:
        return self._storage.notes()  # created lazily, where its errors are handled: a client may fetch credentials

    def place(self, transaction_id: str) -> str:
        """Return the location of a transaction's note."""
        return f"{self._storage.url}/{NOTES}/{transaction_id}{_ENDING}"

    def write(self, transaction_id: str, note: Note) -> bytes:
        """Durably create or replace the note of a transaction, and return its content."""
        data = note.to_bytes()
        with self._storage.meaning():
            replace_durably(self._folder, transaction_id + _ENDING, data)
        return data

    def read(self, transaction_id: str) -> bytes | None:
        """Return the content of a note; None if there is none."""
        return self._storage.content(self._folder, transaction_id + _ENDING)

    def remove(self, *transaction_ids: str) -> None:
        """Remove notes, ignoring missing ones."""
        self._storage.remove_all([f"{NOTES}/{each}{_ENDING}" for each in transaction_ids])

    def transaction_ids(self) -> list[str]:
        """Return the ids of all transactions that have a note, including those of other queries."""
        with self._storage.meaning():
            return [name.removesuffix(_ENDING) for name in self._names() if name.endswith(_ENDING)]

    def _names(self) -> list[str]:
        if isinstance(self._folder, LocalFolder):
            return self._folder.names()
        # By prefix: for a folder without objects, s3fs would list the parent folder, with all files of the table.
        found = self._storage.filesystem.find(self._storage.path, prefix=f"{NOTES}/")
        return [path.rpartition("/")[2] for path in found]
