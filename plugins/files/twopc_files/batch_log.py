"""The log of complete batches in a folder of files, for readers that want whole batches only.

An entry for every batch, ``13``, lists the batch's files; every tenth, ``19.compact``, lists all files there are. So
all files of complete batches are in the newest compact entry and in those after it. That is the layout of the log that
Spark's own file sink keeps (CompactibleFileStreamLog), and each ``LogFormat`` defines the contents of an entry.

Entry 0 lists what was in the folder when the log was begun; batch *n* is entry *n* + 1.

Entries are created by put-if-absent and never changed. The older of two processes, which wakes up in the middle of
its call, can therefore only create what is missing: an entry that the newer one has pruned, which no reader needs.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from twopc.durable_files import NotSynced, Unusable, durable_folder
from twopc.errors import ConfigurationError, CorruptLog, OperatorRequired, Retriable
from twopc_files.outcomes import NEEDS_AN_OPERATOR

COMPACTION_INTERVAL = 10
"""Spark's default (spark.sql.streaming.fileSink.log.compactInterval). A reader whose log has one compact entry or none
goes by its own setting."""

KEPT_FOR_S = 600.0
"""How long a reader may hold on to entries that it has listed. Spark's default
(spark.sql.streaming.fileSink.log.cleanupDelay)."""

ResultT = TypeVar("ResultT")

_ENTRY = re.compile(r"(0|[1-9][0-9]*)(\.compact)?")


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file of a complete batch.

    Attributes:
        path: below the sink's folder, such as ``day=2024-01-01/part-….parquet``.
        size_bytes: its size.
        records: how many it has; None where that is not known.
        listed_ms: when the log listed it, in milliseconds since 1970; the log sets it.
    """

    path: str
    size_bytes: int
    records: int | None = None
    listed_ms: int = 0


class LogFormat(Protocol):
    """The contents of an entry."""

    @property
    def folder(self) -> str:
        """The log's folder below the sink's own. Starts with an underscore, which hides it."""

    def encode(self, owner: str, files: Sequence[CommittedFile]) -> bytes:
        """A whole entry."""

    def decode(self, data: bytes) -> tuple[str | None, list[CommittedFile]]:
        """Return the owner, None where the entry names none, and the files.

        Raises:
            ValueError, LookupError, TypeError: the data is no such entry.
        """


class BatchLog:
    """The complete batches of one folder.

    Args:
        fs: an fsspec file system.
        folder: of the sink, as ``fs`` names it.
        format: of the log's entries.
        owner: the sink and commit log that complete batches here; empty for a reader.
        kept_for_s: how long an entry that is no longer needed stays after it was written.
    """

    def __init__(
        self, fs: Any, folder: str, format: LogFormat, owner: str = "", kept_for_s: float = KEPT_FOR_S
    ) -> None:
        self._fs = fs
        self._folder = folder.rstrip("/")
        self._format = format
        self._owner = owner
        self._kept_for_s = kept_for_s
        self._following: int | None = None  # the entry after the newest that this process knows to be there
        self.path = f"{self._folder}/{format.folder}"
        self._entries = durable_folder(fs, self.path)

    def open(self) -> None:
        """Before the first commit of an incarnation: begin the log where there is none, and check its owner.

        Raises:
            ConfigurationError: another program, or a query with another commit log, completes batches here; or the
                store can't keep such a log.
            Retriable, OperatorRequired: as ``complete``.
        """
        with self._mapping_errors(f"the log of complete batches {self.path} can't be opened"):
            newest = self._newest()
        try:
            self.require_put_if_absent()
        except ConfigurationError as error:
            if newest is None:
                raise
            raise OperatorRequired(error.message) from error  # a decided batch may wait to be completed here
        with self._mapping_errors(f"the log of complete batches {self.path} can't be opened"):
            if newest is None:
                # Listed before the put, so that of two processes the later one's list never gets in.
                self._put(0, self._present())
            owner = self._read(lambda newest: self._entry(newest)[0])
        if owner != self._owner:
            whose = f"{owner!r}, another query or a lost commit log" if owner else "another program"
            raise ConfigurationError(
                f"the log of complete batches {self.path} was written by {whose}, and not by {self._owner!r}. Nothing"
                " was written. Use another folder; or, when no program writes this one any more, remove that log: the"
                " new one begins with all files that the folder has."
            )

    def require_put_if_absent(self) -> None:
        """Try whether an entry can be put if absent, and leave the folder as it was. Elsewhere a zombie could overwrite
        the entry of a newer process.

        Raises:
            ConfigurationError: it can't.
            Retriable: the store does not answer.
        """
        with self._mapping_errors(f"the log of complete batches {self.path} can't be opened"):
            try:
                self._entries.try_put_if_absent()
            except Unusable as error:
                raise ConfigurationError(
                    f"a log of complete batches can't be kept at {self.path}: {error}. No entry was written. Give this"
                    " process the right to make files there, or leave the log out of 'batch_logs'."
                ) from error

    def complete(self, batch_id: int, files: Sequence[CommittedFile]) -> None:
        """Show ``files``, all of batch ``batch_id``, to readers of the log: all at once. Idempotent.

        Raises:
            Retriable: the store could not answer. Repeating the call is safe.
            OperatorRequired: the log was removed or is not ours, or a right is missing.
        """
        with self._mapping_errors(f"batch {batch_id} is committed, and can't be listed in {self.path} yet"):
            slot, newest = batch_id + 1, self._newest()
            if newest is None:
                raise OperatorRequired(
                    f"batch {batch_id} is committed, and {self.path}, which should list it, is gone. Start the query"
                    " again: it begins a new log with all files that the folder has."
                )
            if newest < slot and self._put(slot, self._caught_up(newest, slot, files)):
                self._prune(slot)
            else:
                self._verify(batch_id, files)
            self._following = slot + 1

    def files(self) -> list[CommittedFile]:
        """Return all files of complete batches, in the order in which the log listed them.

        Raises:
            FileNotFoundError: there is no log.
            CorruptLog: an entry is missing, or is not what ``complete`` writes.
        """
        return self._read(lambda newest: [file for slot in _needed(newest) for file in self._entry(slot)[1]])

    # Writing. ---------------------------------------------------------------------------------------------------

    def _put(self, slot: int, files: Sequence[CommittedFile]) -> bool:
        """Create an entry. Return False where it exists: another process was quicker, or this one lost a reply."""
        now_ms = int(time.time() * 1000)
        listed = [replace(file, listed_ms=now_ms) for file in files]
        if _is_compact(slot):
            listed = self.files() + listed
        try:
            self._entries.put_if_absent(_name(slot), self._format.encode(self._owner, listed))
        except FileExistsError:
            return False
        return True

    def _caught_up(self, newest: int, slot: int, files: Sequence[CommittedFile]) -> Sequence[CommittedFile]:
        """Fill the entries between ``newest`` and ``slot``, which has batches that were committed without this log.

        Spark reads no log with a gap, and no file that is not in the log: so what the folder has is listed.

        Returns:
            Those of ``files`` that no entry lists: entry 0 may have some of a batch that a crash interrupted. To list
            a file twice would show its records twice.
        """
        if newest + 1 == slot == self._following:
            return files
        listed = {file.path for file in self.files()}
        if newest + 1 < slot:
            own = {file.path for file in files}
            found = [file for file in self._present() if file.path not in listed | own]
            for gap in range(max(newest + 1, _base(slot - 1)), slot):
                self._put(gap, found)
                found = []
        return [file for file in files if file.path not in listed]

    def _verify(self, batch_id: int, files: Sequence[CommittedFile]) -> None:
        """The entry is there: by an earlier call, or another process. Upholds: no batch is taken for listed."""
        self._entries.sync(_name(batch_id + 1))  # its writer may have died before it could
        missing = {file.path for file in files} - {file.path for file in self.files()}
        if missing:
            raise OperatorRequired(
                f"batch {batch_id} is committed, and {self.path} is at a later batch and lacks {len(missing)} of its"
                f" files, such as {min(missing)}: readers of the log don't see them. Has another query used it?"
                " Stop it, remove the log, and start this query again: it begins a new log with all files that the"
                " folder has."
            )

    def _prune(self, slot: int) -> None:
        """Remove what no reader needs, oldest first, after each compact entry.

        The compact entry before the newest is kept, too: Spark derives the interval from the two.
        """
        if not _is_compact(slot):
            return
        for old in self._slots():
            with contextlib.suppress(FileNotFoundError):  # another process was quicker
                path = self._path(old)
                if old >= slot - COMPACTION_INTERVAL or not self._is_expired(path):
                    return
                self._fs.rm_file(path)

    def _is_expired(self, path: str) -> bool:
        # Two machines' clocks: what hangs on it is only how patient a pruner is with slow readers.
        return bool(self._fs.modified(path).timestamp() <= time.time() - self._kept_for_s)

    # Looking. ---------------------------------------------------------------------------------------------------

    def _slots(self) -> list[int]:
        return sorted(int(match[1]) for match in map(_ENTRY.fullmatch, self._entries.names()) if match)

    def _newest(self) -> int | None:
        return max(self._slots(), default=None)

    def _read(self, read: Callable[[int], ResultT]) -> ResultT:
        """Return the result of ``read`` for the newest entry, and those that go with it."""
        newest = self._newest()
        while newest is not None:
            try:
                return read(newest)
            except FileNotFoundError as error:
                before, newest = newest, self._newest()  # pruned meanwhile? Then a newer compact entry is there
                if newest == before:
                    raise CorruptLog(f"{self.path} lacks an entry: {error}. Restore it, or remove the log") from error
        raise FileNotFoundError(f"there is no log of complete batches at {self.path}")

    def _entry(self, slot: int) -> tuple[str | None, list[CommittedFile]]:
        path = self._path(slot)
        try:
            return self._format.decode(self._fs.cat_file(path))
        except (ValueError, LookupError, TypeError) as error:
            raise CorruptLog(
                f"{path} is no entry of a log of complete batches ({type(error).__name__}: {error}). Nothing was"
                " changed. Restore it; or remove the log: the query then begins a new one with all files that the"
                " folder has."
            ) from error

    def _path(self, slot: int) -> str:
        return f"{self.path}/{_name(slot)}"

    def _present(self) -> list[CommittedFile]:
        """All files that a reader of the folder sees, by the rule of Spark: hidden are ``.x`` and ``_x``."""
        self._fs.invalidate_cache()
        found = self._fs.find(self._folder, detail=True)
        sizes = {path.removeprefix(f"{self._folder}/"): int(info["size"]) for path, info in sorted(found.items())}
        return [CommittedFile(path, size) for path, size in sizes.items() if not any(map(_is_hidden, path.split("/")))]

    @contextlib.contextmanager
    def _mapping_errors(self, what: str) -> Iterator[None]:
        """Map errors of the store. Every step may be repeated, whatever its outcome."""
        try:
            yield
        except NotSynced as error:  # a repeat by this process would take a lost name for a durable one
            raise OperatorRequired(f"{what}: {error}. Check the disk, and start the query again.") from error
        except OSError as error:
            if error.errno in NEEDS_AN_OPERATOR or isinstance(error, Unusable | FileNotFoundError | PermissionError):
                raise OperatorRequired(
                    f"{what}: {error}. Give this process the right to make files there; then start the query again,"
                    " which repeats the step."
                ) from error
            raise Retriable(f"{what}: {error}") from error


def _name(slot: int) -> str:
    return f"{slot}.compact" if _is_compact(slot) else f"{slot}"


def _is_compact(slot: int) -> bool:
    return (slot + 1) % COMPACTION_INTERVAL == 0


def _base(slot: int) -> int:
    """The newest compact entry that is not after ``slot``, or the first entry."""
    return max(0, (slot + 1) // COMPACTION_INTERVAL * COMPACTION_INTERVAL - 1)


def _needed(newest: int) -> range:
    """The entries that together list everything through ``newest``."""
    return range(_base(newest), newest + 1)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
