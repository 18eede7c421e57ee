"""The notes and files of a batch's prepared transactions.

Votes carry the notes to the driver, which keeps them until the commit. Before the commit, the driver checks with one
listing that all notes still exist, but reads none of them. After a crash, the next driver reads the notes. The decision
contains only their digests, because notes contain column values and may be long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from twopc.transaction import Committable, JsonValue
from twopc_delta import outcomes
from twopc_delta.notes import Note, Notes, digest
from twopc_delta.storage import Storage

_NOTE = "note"
"""The key of the note in a vote's handle."""

_LONGEST_IN_VOTE = 64 * 1024
"""The maximum length of a note in a vote, in bytes, which keeps votes small. The driver reads longer notes from the
store."""


def vote_of(transaction_id: str, data: bytes, files: int, records: int) -> Committable:
    """Return the vote of a transaction with the note ``data``."""
    handle: dict[str, JsonValue] = {"digest": digest(data), "files": files}
    if len(data) <= _LONGEST_IN_VOTE:
        handle[_NOTE] = data.decode()
    return Committable(transaction_id, handle, records)


class Prepared:
    """The notes and files of a table's transactions, for one process.

    Args:
        storage: the table's folder.
        name: the table's name in messages.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._notes = Notes(storage)
        self._kept: dict[tuple[str, object], Note] = {}  # by transaction and digest

    def keep(self, votes: Sequence[Committable]) -> None:
        """Keep the notes in ``votes``, replacing those of the previous batch."""
        self._kept = {}
        for vote in votes:
            if isinstance(brought := vote.handle.get(_NOTE), str):
                self._remember(vote, brought.encode())

    def _remember(self, committable: Committable, data: bytes) -> bool:
        """Return whether a note is unchanged since its transaction wrote it, and keep the note if so."""
        is_same = digest(data) == committable.handle.get("digest")
        if is_same:
            self._kept[_key(committable)] = Note.from_bytes(data)
        return is_same

    def notes(self, committables: Sequence[Committable]) -> dict[str, Note] | list[str]:
        """Return the notes of pre-committed transactions; or the names of missing and changed notes, if there are any.

        Upholds: a late driver commits nothing that was rolled back. A transaction without a note has ended.
        """
        kept = self._kept
        with self._asking("notes beside"):
            there = {*self._notes.transaction_ids()} if kept else set[str]()
            unread = [each for each in committables if each.transaction_id not in there or _key(each) not in kept]
            contents = self._storage.at_once(self._notes.read, [each.transaction_id for each in unread])
        gone = [
            f"the note of {each.transaction_id}"
            for each, data in zip(unread, contents, strict=True)
            if data is None or not self._remember(each, data)
        ]
        return gone or {each.transaction_id: kept[_key(each)] for each in committables}

    def gone(self, notes: Mapping[str, Note]) -> list[str]:
        """Return the files that are missing, or whose size has changed since they were written."""
        files = [file for note in notes.values() for file in (*note.files, *note.deletes)]
        with self._asking("files of"):
            sizes = self._storage.sizes_bytes([file.path for file in files])
        return [file.path for file, size in zip(files, sizes, strict=True) if size != file.size_bytes]

    def _asking(self, what: str) -> AbstractContextManager[None]:
        return outcomes.looking(self._storage, f"the {what} {self._name}", is_decided=True)

    def settle(self, committables: Sequence[Committable]) -> None:
        """Remove the notes of a batch that is in the table. Raises OSError if a note could not be removed. The sweep
        will remove the note later."""
        self._kept = {}
        self._notes.remove(*(committable.transaction_id for committable in committables))


def without_note(vote: Committable, facts: Mapping[str, JsonValue]) -> Committable:
    """Return a vote as it goes into the decision: without its note, and with ``facts``."""
    handle = {name: value for name, value in vote.handle.items() if name != _NOTE}
    return replace(vote, handle={**handle, **facts})


def _key(committable: Committable) -> tuple[str, object]:
    return committable.transaction_id, committable.handle.get("digest")
