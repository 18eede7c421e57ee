"""The log of complete batches in a folder of files, for readers that must see only whole batches.

Each batch has an entry, such as ``13``, which lists the files of the batch. Every tenth entry, such as ``19.compact``,
lists the files of all batches so far. So the newest compact entry and those after it list all files of complete
batches. Spark's own file sink keeps its log in the same layout (CompactibleFileStreamLog). A ``LogFormat`` defines the
contents of an entry.

Entry 0 lists the files that the folder had when the log was created. Entry *n* + 1 is batch *n*.

Entries are created by put-if-absent and never changed. A zombie that wakes up in the middle of a call can therefore
only create a missing entry. An entry is only missing if a newer process has pruned it, and no reader needs a pruned
entry.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

from twopc.errors import ConfigurationError, CorruptLog, OperatorRequired, Retriable
from twopc.failures import mapped
from twopc.stores.errors import TEMPORARY, NotSynced, Unusable
from twopc.stores.remote import durable_folder, meaning

COMPACTION_INTERVAL = 10
"""Spark's default (spark.sql.streaming.fileSink.log.compactInterval). Readers use their own setting while the log has
fewer than two compact entries."""

KEPT_FOR_S = 600.0
"""How long a reader may take between listing the entries and reading them. Spark's default
(spark.sql.streaming.fileSink.log.cleanupDelay)."""

_MAY_PASS = TEMPORARY | {errno.ENOSPC, errno.EDQUOT}

ResultT = TypeVar("ResultT")

_ENTRY = re.compile(r"(0|[1-9][0-9]*)(\.compact)?")


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file of a complete batch.

    Attributes:
        path: its path below the sink's folder, such as ``day=2024-01-01/part-….parquet``.
        size_bytes: its size.
        records: its number of records; None if unknown.
        listed_ms: when the log listed it, in milliseconds since 1970; set by the log.
    """

    path: str
    size_bytes: int
    records: int | None = None
    listed_ms: int = 0


class LogFormat(Protocol):
    """The contents of an entry.

    Attributes:
        folder: the log's folder below the sink's own. Starts with an underscore, which hides it.
    """

    folder: ClassVar[str]

    def encode(self, owner: str, files: Sequence[CommittedFile]) -> bytes:
        """Return the bytes of an entry."""

    def decode(self, data: bytes) -> tuple[str | None, list[CommittedFile]]:
        """Return the owner and the files of an entry. The owner is None if the entry does not name one.

        Raises:
            ValueError, LookupError, TypeError: the data is not an entry of this format.
        """


def digest(lines: Sequence[bytes]) -> str:
    """Return the digest of an entry's file lines, which the entry's header line records. The digest detects damage that
    no parser would notice, such as a missing line."""
    return hashlib.sha256(b"\n".join(lines)).hexdigest()


def require_digest(of_entry: str | None, lines: Sequence[bytes]) -> None:
    """Raise ValueError if an entry's file lines don't match the digest that the entry records. Entries written by older
    releases, or by Spark's own sink, record no digest and are accepted."""
    if of_entry not in (None, digest(lines)):
        raise ValueError("its lines are not those that were written")


class BatchLog:
    """The log of the complete batches of one folder.

    Args:
        fs: an fsspec file system.
        folder: the sink's folder, as a path of ``fs``.
        format: the format of the entries.
        owner: the sink and commit log that complete batches here; empty for a reader.
        kept_for_s: how many seconds an entry is kept after it was written. Later it may be pruned.
    """

    def __init__(
        self, fs: Any, folder: str, format: LogFormat, owner: str = "", kept_for_s: float = KEPT_FOR_S
    ) -> None:
        self._fs = fs
        self._folder = folder.rstrip("/")
        self._format = format
        self._owner = owner
        self._kept_for_s = kept_for_s
        self._following: int | None = None  # the entry after the newest one that this process has seen or written
        self.path = f"{self._folder}/{format.folder}"
        self._entries = durable_folder(fs, self.path)

    def open(self) -> None:
        """Check that this writer can keep the log here, and that no other writer does. Leave the folder as it was.

        Raises:
            ConfigurationError: another program, or a query with another commit log, completes batches here; or the
                store can't keep such a log.
            Retriable, OperatorRequired: as for ``complete``.
        """
        with self._opening():
            newest = self._newest()
        try:
            self.require_put_if_absent()
        except ConfigurationError as error:
            if newest is None:
                raise
            raise OperatorRequired(error.message) from error  # a decided batch may be waiting for its completion
        if newest is not None:
            with self._opening():
                self._require_owner()

    def begin(self) -> None:
        """Create the log if it is missing, and check its owner. Runs before the first commit of an incarnation.

        Raises: the same errors as ``open``.
        """
        with self._opening():
            if self._newest() is None:
                # Listed before the put. If two processes create the log, the later put fails.
                self._put(0, self._present())
            self._require_owner()

    def _require_owner(self) -> None:
        owner = self._read(lambda newest: self._entry(newest)[0])
        if owner != self._owner:
            whose = f"{owner!r}, another query or a lost commit log" if owner else "another program"
            raise ConfigurationError(
                f"the log of complete batches {self.path} was written by {whose}, not by {self._owner!r}. Nothing"
                " was written. Use another folder; or, if no program writes to this one any more, remove that log: the"
                " new one begins with all files in the folder."
            )

    def require_put_if_absent(self) -> None:
        """Try put-if-absent, and leave the folder as it was. In a store without put-if-absent, a zombie could overwrite
        the entry of a newer process.

        Raises:
            ConfigurationError: the store has no put-if-absent, or this process may not create files there.
            Retriable: the store does not answer.
        """
        with self._opening():
            try:
                self._entries.try_put_if_absent()
            except Unusable as error:
                raise ConfigurationError(
                    f"a log of complete batches can't be kept at {self.path}: {error}. No entry was written. Give this"
                    " process the right to make files there, or leave the log out of 'batch_logs'.",
                    option="batch_logs",
                ) from error

    def complete(self, batch_id: int, files: Sequence[CommittedFile]) -> None:
        """Atomically make a batch visible to readers of the log. ``files`` are all files of the batch. Idempotent.

        Raises:
            Retriable: the store could not answer. Repeating the call is safe.
            OperatorRequired: the log was removed, belongs to another writer, or a permission is missing.
        """
        with self._asking(f"batch {batch_id} is committed, and can't be listed in {self.path} yet"):
            slot, newest = batch_id + 1, self._newest()
            if newest is None:
                raise OperatorRequired(
                    f"batch {batch_id} is committed, and {self.path}, which should list it, is gone. Start the query"
                    " again: it begins a new log with all files in the folder."
                )
            if newest < slot and self._put(slot, self._catch_up(newest, slot, files)):
                self._prune(slot)
            else:
                self._verify(batch_id, files)
            self._following = slot + 1

    def files(self) -> list[CommittedFile]:
        """Return all files of complete batches, in the order in which the log listed them.

        Raises:
            FileNotFoundError: there is no log.
            CorruptLog: an entry is missing, or was not written by ``complete``.
        """
        return self._read(lambda newest: [file for slot in _needed(newest) for file in self._entry(slot)[1]])

    # Writing. ---------------------------------------------------------------------------------------------------

    def _put(self, slot: int, files: Sequence[CommittedFile]) -> bool:
        """Create an entry. Return False if the entry exists already, because another process was faster or a reply to
        this process was lost."""
        now_ms = int(time.time() * 1000)
        listed = [replace(file, listed_ms=now_ms) for file in files]
        if _is_compact(slot):
            listed = self.files() + listed
        try:
            self._entries.put_if_absent(_name(slot), self._format.encode(self._owner, listed))
        except FileExistsError:
            return False
        return True

    def _catch_up(self, newest: int, slot: int, files: Sequence[CommittedFile]) -> Sequence[CommittedFile]:
        """Create the entries between ``newest`` and ``slot``, whose batches were committed without this log.

        Spark rejects a log with a gap, and reads only files that the log lists. So the first of these entries lists
        all other files in the folder.

        Returns:
            The ``files`` that no entry lists yet. Entry 0 may already list some files of a batch that a crash
            interrupted. If a file were listed twice, readers would see its records twice.
        """
        if newest + 1 == slot == self._following:
            return files
        listed = {file.path for file in self.files()}
        if newest + 1 < slot:
            known = listed.union(file.path for file in files)
            found = [file for file in self._present() if file.path not in known]
            for gap in range(max(newest + 1, _base(slot - 1)), slot):
                self._put(gap, found)
                found = []
        return [file for file in files if file.path not in listed]

    def _verify(self, batch_id: int, files: Sequence[CommittedFile]) -> None:
        """Make sure that the existing entry, from an earlier call or another process, lists the batch.

        Upholds: a batch counts as listed only if the log lists each of its files.
        """
        self._entries.sync(_name(batch_id + 1))  # its writer may have died before the sync
        missing = {file.path for file in files} - {file.path for file in self.files()}
        if missing:
            raise OperatorRequired(
                f"batch {batch_id} is committed, and {self.path} is at a later batch and lacks {len(missing)} of its"
                f" files, such as {min(missing)}: readers of the log don't see them. Has another query used the log?"
                " Stop that query, remove the log, and start this query again: it begins a new log with all files in"
                " the folder."
            )

    def _prune(self, slot: int) -> None:
        """After a compact entry, remove the entries that no reader needs, oldest first.

        The last two compact entries stay, because Spark derives the interval from them.
        """
        if not _is_compact(slot):
            return
        for old in self._slots():
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                path = self._path(old)
                if old >= slot - COMPACTION_INTERVAL or not self._is_expired(path):
                    return
                self._fs.rm_file(path)

    def _is_expired(self, path: str) -> bool:
        # This compares the clocks of two machines, which is safe: only slow readers depend on the result.
        return bool(self._fs.modified(path).timestamp() <= time.time() - self._kept_for_s)

    # Looking. ---------------------------------------------------------------------------------------------------

    def _slots(self) -> list[int]:
        return sorted(int(match[1]) for match in map(_ENTRY.fullmatch, self._entries.names()) if match)

    def _newest(self) -> int | None:
        return max(self._slots(), default=None)

    def _read(self, read: Callable[[int], ResultT]) -> ResultT:
        """Return the result of ``read`` for the newest entry. If an entry was pruned meanwhile, read again from a newer
        one."""
        newest = self._newest()
        while newest is not None:
            try:
                return read(newest)
            except FileNotFoundError as error:
                before, newest = newest, self._newest()  # after pruning, there is a newer compact entry
                if newest == before:
                    raise CorruptLog(f"{self.path} lacks an entry: {error}. Restore it, or remove the log") from error
        raise FileNotFoundError(f"there is no log of complete batches at {self.path}")

    def _entry(self, slot: int) -> tuple[str | None, list[CommittedFile]]:
        data = self._entries.read(_name(slot))
        try:
            return self._format.decode(data)
        except (ValueError, LookupError, TypeError) as error:
            raise CorruptLog(
                f"{self._path(slot)} is not an entry of a log of complete batches ({type(error).__name__}: {error})."
                " Nothing was changed. Restore it; or remove the log: the query then begins a new one with all files in"
                " the folder."
            ) from error

    def _path(self, slot: int) -> str:
        return f"{self.path}/{_name(slot)}"

    def _present(self) -> list[CommittedFile]:
        """Return all files that readers of the folder see. As in Spark, ``.x`` and ``_x`` are hidden."""
        self._fs.invalidate_cache()
        found = self._fs.find(self._folder, detail=True)
        sizes = {path.removeprefix(f"{self._folder}/"): int(info["size"]) for path, info in sorted(found.items())}
        return [CommittedFile(path, size) for path, size in sizes.items() if not any(map(_is_hidden, path.split("/")))]

    def _opening(self) -> contextlib.AbstractContextManager[None]:
        return self._asking(f"the log of complete batches {self.path} can't be opened")

    def _asking(self, what: str) -> contextlib.AbstractContextManager[None]:
        return mapped(Exception, self._step_failed, what)

    def _step_failed(self, error: Exception, what: str) -> Retriable | OperatorRequired:
        """Return the error to raise for an error of the store. Any step is safe to repeat, whatever its outcome."""
        if isinstance(error, NotSynced):  # a repeated step would take for durable a name that may get lost
            return OperatorRequired(f"{what}: {error}. Check the disk, and start the query again.")
        if not isinstance(error, Unusable) and meaning(self._fs, error).errno in _MAY_PASS:
            return Retriable(f"{what}: {error}")
        return OperatorRequired(
            f"{what}: {error}. Give this process the right to make files there, or correct what the store names; then"
            " start the query again, which repeats the step."
        )


def _name(slot: int) -> str:
    return f"{slot}.compact" if _is_compact(slot) else f"{slot}"


def _is_compact(slot: int) -> bool:
    return (slot + 1) % COMPACTION_INTERVAL == 0


def _base(slot: int) -> int:
    """Return the newest compact entry that is not after ``slot``, or entry 0 if there is none."""
    return max(0, (slot + 1) // COMPACTION_INTERVAL * COMPACTION_INTERVAL - 1)


def _needed(newest: int) -> range:
    """Return the entries that together list all files through entry ``newest``."""
    return range(_base(newest), newest + 1)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
