"""A note per open transaction, in a hidden folder of the table, by which recovery finds the files of a dead task.

A note names every file of its transaction, and is written before them. So recovery never lists the table, which would
fail for hashed paths. The order of steps ensures that a file of a visible batch is never removed:

1. The task writes the note, then the files it names.
2. The commit durably removes the notes of a decided batch before it sends a request to the catalog.
3. An abort removes files only while their note exists, and removes the note last.

On a disk, a note is first written to a temporary file. A temporary file that a killed task has left counts as a note,
and is removed in the same way.

Spark's ``remove_orphan_files`` skips the folder, as it does every folder whose name begins with ``_``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twopc.errors import OperatorRequired
from twopc_iceberg.files import ASIDE, DurableFileIO
from twopc_iceberg.outcomes import reading

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

FOLDER = "_twopc"


@dataclass(frozen=True, slots=True)
class Note:
    """The content of a note.

    Attributes:
        manifest: the manifest's location; it may not exist yet.
        files: the locations of data files, of delete files and of their manifest; some may not exist yet.
    """

    manifest: str
    files: tuple[str, ...]

    def to_json(self) -> bytes:
        return json.dumps({"manifest": self.manifest, "files": self.files}).encode()

    @classmethod
    def from_json(cls, name: str, data: bytes) -> Note:
        """Parse ``to_json`` output.

        Raises:
            ValueError: the data is not such output, or names a file of another transaction than ``name``, which an
                abort of ``name`` would otherwise remove.
        """
        match json.loads(data):
            case {"manifest": str(manifest), "files": [*files]} if all(isinstance(each, str) for each in files):
                of_transaction = re.compile(rf"(.*[/-])?{re.escape(name)}-(m[01]\.avro|\d+\.parquet)")
                if all(of_transaction.fullmatch(each) for each in (manifest, *files)):
                    return cls(manifest, tuple(files))
        raise ValueError("it does not name the files of its transaction")


class Notes:
    """The notes of one sink of one log. Errors of the store pass through.

    Args:
        io: access to the table's files.
        location: the table's location.
        scope: the prefix of the sink's transaction names.
    """

    def __init__(self, io: DurableFileIO, location: str, scope: str) -> None:
        self._io = io
        self._folder = f"{location.rstrip('/')}/{FOLDER}/{scope.rstrip('.')}"

    def names(self) -> list[str]:
        """Return the names of the transactions that have a note."""
        return sorted({name.removesuffix(ASIDE) for name in self._io.names_in(self._folder)})

    def write(self, name: str, note: Note) -> None:
        """Create or replace the note of transaction ``name``."""
        self._io.write(self._note(name), note.to_json())

    def read(self, name: str) -> Note | None:
        """Return the note of transaction ``name``; None if there is none. Raises Damaged."""
        try:
            data = self._io.read(self._note(name))
        except FileNotFoundError:
            return None
        with reading(self._note(name)):
            return Note.from_json(name, data)

    def exists(self, name: str) -> bool:
        return self._io.new_input(self._note(name)).exists()

    def remove(self, names: Iterable[str]) -> None:
        """Remove notes. Once this returns, the removal survives a power cut."""
        self._io.remove([location for name in names for location in self._io.written(self._note(name))])

    def _note(self, name: str) -> str:
        return f"{self._folder}/{name}"


# Marks. ---------------------------------------------------------------------------------------------------------------


PREFIX = "twopc.committed."

SCOPE, BATCH = "twopc.scope", "twopc.batch"
"""Keys in the summary of a batch's snapshot, in addition to the mark in the table's properties."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of one sink of one log: a table property with the newest visible batch.

    Attributes:
        scope: the prefix of the sink's transaction names, without the last dot.
    """

    scope: str

    @property
    def property(self) -> str:
        """The name of the property."""
        return f"{PREFIX}{self.scope}"

    def found(self, metadata: TableMetadata) -> int | None:
        """Return the newest visible batch, from the table's property; None if the table has no such property.

        Raises:
            OperatorRequired: the property is not a number, so it is unknown which batches are visible.
        """
        value = metadata.properties.get(self.property)
        if value is not None and not (value.isascii() and value.isdecimal()):
            raise OperatorRequired(
                f"the table's property {self.property!r} is {value[:50]!r}, and must be a number: it was changed by"
                " hand. Set it to the newest batch of this query that the table has, which the summary of the batch's"
                f" snapshot has as {BATCH!r}, or remove it if there is none. Then start again."
            )
        return None if value is None else int(value)

    def snapshot(self, metadata: TableMetadata, batch_id: int) -> int | None:
        """Return the id of the snapshot that added the batch, if the table still has it."""
        wanted = str(batch_id)
        for snapshot in reversed(metadata.snapshots):
            found = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if found.get(BATCH) == wanted and found.get(SCOPE) == self.scope:
                return snapshot.snapshot_id
        return None
