"""Commits a batch as one entry of a table's log: look, commit, look again.

The entry adds the batch's files, and sets the sink's mark (a Delta application transaction) to the batch's number. The
entry can only become the version directly after the one that was read. If another writer was faster, nothing is
written, and the next attempt looks again. So the mark, the table's id and its columns are always checked in exactly the
version that the entry follows, even with other writers. No response to an attempt is trusted: only the table shows
whether it has the batch.

delta-rs loads a table with all of its active files, which takes longer as the table grows. So the result of a look is
cached if the newest entry adds files, and the next look reads only later entries. If the cached entry is still in the
log, the table was not replaced: no other table has an entry with these files, and an older copy of the table lacks the
entry. If an entry changes the table's metadata or protocol, delta-rs loads the table again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

import orjson
import pyarrow as pa
from deltalake import DeltaTable

from twopc.errors import Retriable, TwoPhaseCommitError
from twopc.failures import older_log
from twopc.stores.errors import NotSynced
from twopc.transaction import Committable, JsonValue
from twopc_delta import changes, outcomes
from twopc_delta.changes import Keys, actions_of, live_files
from twopc_delta.columns import type_names
from twopc_delta.entry import Entry, entry_of
from twopc_delta.log_files import LogFiles
from twopc_delta.notes import Note, digest
from twopc_delta.prepared import Prepared, without_note
from twopc_delta.receipts import Receipt, Receipts
from twopc_delta.storage import Storage
from twopc_delta.table import CHECKPOINT_PROTECTION, TableView

logger = logging.getLogger(__name__)

ATTEMPTS = 20
"""How many races for a version of the log a commit may lose before it raises Retriable."""

CHECKPOINT_INTERVAL = 10
"""The number of entries between two checkpoints if the table does not set one, as in Spark's Delta writer."""


@dataclass(frozen=True)
class Sealed:
    """The state of a table when a batch was sealed. Stored in the handle of each of its transactions.

    Attributes:
        table: the table's id.
        follows: the newest batch of this sink that was in the table; -1 if there was none.
        version: the version of the table's log.
        entry: the digest of this version's entry, which no other table has; None if only a checkpoint covers the
            version.
    """

    table: str
    follows: int
    version: int
    entry: str | None

    @classmethod
    def of(cls, committable: Committable) -> Sealed:
        handle: Mapping[str, Any] = committable.handle
        # Logs of the first releases have no entry.
        return cls(handle["table"], handle["follows"], handle["version"], handle.get("entry"))


@dataclass(frozen=True)
class Snapshot:
    """The state of a table, as returned by ``TableLog.look``.

    Attributes:
        view: the table at exactly this version.
        mark: the newest batch of this sink that is in the table.
        entry: the newest entry of the table's log; None if only a checkpoint covers it.
        adds_files: whether that entry adds files. If so, no other table has the same entry, since file names are
            unique.
        before: the version and the entry of the cached look from which this look continued. The entry is still in the
            log. None if delta-rs loaded the table.
    """

    view: TableView
    mark: int | None
    entry: bytes | None
    adds_files: bool
    before: tuple[int, bytes] | None = None

    @property
    def newest(self) -> int:
        """The mark, or -1 if there is none."""
        return -1 if self.mark is None else self.mark

    def has(self, batch_id: int) -> bool:
        """Return whether the table has this batch of the sink, which commits batches in order."""
        return self.newest >= batch_id


def load(storage: Storage, what: str, is_decided: bool = False) -> DeltaTable:
    """Load the newest version of a table, without using a cache.

    Raises:
        ConfigurationError: there is no table, or the store refuses access. Once the batch is decided, OutcomeUnknown or
            OperatorRequired is raised instead.
        Retriable: the store did not respond.
    """
    is_again = False
    while True:
        try:
            return DeltaTable(storage.delta_url, storage_options=storage.delta_options())
        except outcomes.FAILURES as error:
            failure = outcomes.Failure.of(error, storage)
        if not failure.is_of_content:
            raise outcomes.look_failed(failure, what, is_decided)
        if is_again:
            raise _damage(storage, what, is_decided) or outcomes.look_failed(failure, what, is_decided)
        is_again = True  # the log may have been cleaned up or restored during the read


def _damage(storage: Storage, what: str, is_decided: bool) -> TwoPhaseCommitError | None:
    """Find the damaged file that delta-rs does not name. Return the error for a damaged entry, a gap in the log or a
    damaged checkpoint; None if the log is intact. Entries that a checkpoint covers are skipped, because no reader needs
    them."""
    files = LogFiles(storage)
    try:
        damaged, is_complete = files.damaged_checkpoint()
        if damaged:
            return outcomes.damaged_checkpoint(what, damaged, is_complete, is_decided)
        versions, checkpoint = files.after_checkpoint()
        for version, older in zip_longest(versions, versions[1:], fillvalue=checkpoint):
            try:
                Entry.of(files.entry(version) or b"")
            except ValueError as error:
                return outcomes.invalid_entry(what, version, str(error), is_decided)
            if older != version - 1:
                return outcomes.invalid_entry(what, version, f"it has no version {version - 1}", is_decided)
    except OSError as error:
        raise outcomes.look_failed(outcomes.Failure.of(error, storage), what, is_decided) from None
    return None


def mark_of(scope: str) -> str:
    """Return the name of a sink's mark in a table."""
    return f"twopc.committed.{scope.rstrip('.')}"


class TableLog:
    """The log of one table, for one sink of one query.

    Args:
        storage: the table's folder.
        mark: the name of the sink's mark.
        name: the table's name in messages.
    """

    def __init__(self, storage: Storage, mark: str, name: str) -> None:
        self._storage = storage
        self._mark = mark
        self._name = name
        self._files = LogFiles(storage)
        self._prepared = Prepared(storage, name)
        self._receipts = Receipts(storage, mark)
        self._kept: deque[Snapshot] = deque(maxlen=1)  # pop() gives one thread exclusive use

    def look(self, what: str, is_decided: bool = False) -> Snapshot:
        """Return the newest version of the table, with the sink's mark. Raises the errors of ``load``."""
        with outcomes.looking(self._storage, what, is_decided):
            if (kept := self._caught_up(what, is_decided)) is not None:
                return kept
            found = self._loaded(what, is_decided)
            if found.entry is None:  # the table may have been restored from a copy during the load
                found = self._loaded(what, is_decided)
            return found

    def _caught_up(self, what: str, is_decided: bool) -> Snapshot | None:
        """Return the newest version by reading only the entries after the cached one; None if nothing is cached, or if
        delta-rs must load the table again.

        Upholds: a look never returns entries that are no longer in the log. The table may be restored from a copy at
        any moment, so the cached entry is compared with the log only after the newer entries were read.
        """
        try:
            found = kept = self._kept.pop()
        except IndexError:
            return None
        newest = self._files.newest_after(kept.view.version)
        if newest is None:
            return None
        for version in range(kept.view.version + 1, newest + 1):
            data = self._files.entry(version)
            if data is None or (entry := self._parsed(version, data, what, is_decided)).changes_table:
                return None
            view = replace(kept.view, version=version)
            found = Snapshot(view, entry.marks.get(self._mark, found.mark), data, entry.adds_files)
        if kept.entry is None or self._files.entry(kept.view.version) != kept.entry:
            return None
        return replace(found, before=(kept.view.version, kept.entry))

    def _parsed(self, version: int, data: bytes, what: str, is_decided: bool) -> Entry:
        try:
            return Entry.of(data)
        except ValueError as error:
            raise outcomes.invalid_entry(what, version, str(error), is_decided) from None

    def _loaded(self, what: str, is_decided: bool) -> Snapshot:
        table = load(self._storage, what, is_decided)
        version = table.version()
        data = self._files.entry(version)
        entry = self._parsed(version, data or b"", what, is_decided)
        own = entry.marks.get(self._mark)  # if it has one, older entries do not matter
        mark = table.transaction_version(self._mark) if own is None else own
        return Snapshot(TableView.of(table), mark, data, entry.adds_files)

    def _keep(self, snapshot: Snapshot) -> None:
        """Cache a snapshot for the next look. The caller must no longer use it."""
        if snapshot.adds_files:
            self._kept.append(snapshot)

    def _failure(self, error: Exception) -> outcomes.Failure:
        return outcomes.Failure.of(error, self._storage)

    def seal(self, committables: Sequence[Committable], batch_id: int) -> list[Committable]:
        """Return the transactions with the table's id and mark added, if the batch could be committed now.

        Raises:
            LogMismatch: the table already has the batch, or has lost the batch of its receipt.
            RoundAborted: the batch could not be committed.
        """
        what = f"batch {batch_id} of {self._name}"
        snapshot = self.look(what)
        if snapshot.has(batch_id):
            raise older_log(self._name, snapshot.newest, batch_id)
        self._prepared.keep(committables)
        notes = self._prepared.notes(committables)
        if isinstance(notes, list):
            raise outcomes.not_decided(
                what, f"{notes[0]} is not there as it was written: do all processes have the same disk at this path?"
            )
        if why := _unfit(notes.values(), snapshot.view):
            raise outcomes.not_decided(what, f"the table was changed meanwhile: {why}")
        if gone := self._prepared.gone(notes):
            raise outcomes.not_decided(what, f"{gone[0]} is not there as it was written")
        self._require_committed(snapshot, what)
        entry = None if snapshot.entry is None else digest(snapshot.entry)
        sealed = Sealed(snapshot.view.id, snapshot.newest, snapshot.view.version, entry)
        facts: dict[str, JsonValue] = asdict(sealed)
        self._keep(snapshot)
        return [without_note(each, facts) for each in committables]

    def opened(self, last: int | None) -> TableView:
        """Return the table at the start of a query. ``last`` is the last batch that the commit log records as committed
        to it.

        Upholds: no batch follows a lost one, for example after the table's folder was restored while the query was
        stopped. A table without a receipt passes. The log's batches may have gone to another table, because the commit
        log identifies the sink only by name; or an operator may have resolved the loss.

        Raises:
            LogMismatch: the table has lost batch ``last``. Errors of ``load`` pass through.
        """
        what = f"a look at {self._name}"
        snapshot = self.look(what)
        if last is not None and snapshot.newest < last:
            with outcomes.looking(self._storage, what, is_decided=False), contextlib.suppress(ValueError):
                receipt = self._receipts.newest()  # ``seal`` reports a damaged receipt
                if receipt is not None and receipt.table == snapshot.view.id:
                    self._receipts.forget()
                    raise outcomes.batches_lost(self._name, last, snapshot.mark, self._receipts.place)
        self._keep(snapshot)
        return snapshot.view

    def _require_committed(self, snapshot: Snapshot, what: str) -> None:
        """Raise LogMismatch if the table has lost the batch of its newest receipt. Upholds: no batch follows a gap.
        Without interference, a mark only grows and entries are never replaced."""
        place = self._receipts.place
        with outcomes.looking(self._storage, what, is_decided=False):
            try:
                receipt = self._receipts.newest()
            except ValueError as error:
                raise outcomes.damaged_receipt(what, place, str(error)) from None
            if receipt is None or receipt.table != snapshot.view.id:
                return
            is_there = snapshot.newest >= receipt.batch and self._is_unchanged(snapshot, receipt.version, receipt.entry)
        if not is_there:
            self._receipts.forget()  # an operator will remove the receipt, and may restart the query in this process
            raise outcomes.batch_gone(what, receipt, snapshot.mark, place)

    def _is_unchanged(self, snapshot: Snapshot, version: int, entry: str) -> bool:
        """Return whether an entry has this digest. An entry that was cleaned up counts as unchanged, because a
        checkpoint covers the entry."""
        before, data = snapshot.before or (-1, None)
        if version != before:
            data = self._files.entry(version)
        return data is None or digest(data) == entry

    def commit(self, batch_id: int, committables: Sequence[Committable]) -> None:
        """Put the batch into the table's log, unless it is already there.

        Raises:
            Retriable: the store did not respond, or other writers were faster each time.
            TransactionLost: files are gone, and nothing is visible.
            OutcomeUnknown: the table was replaced, or restored to an earlier state.
            OperatorRequired: the table was changed, or a permission is missing.
        """
        records = sum(each.records or 0 for each in committables)
        what = f"batch {batch_id} ({records} records) of {self._name}"
        sealed = Sealed.of(committables[0])
        failure: outcomes.Failure | None = None
        for _ in range(ATTEMPTS):
            snapshot = self.look(f"{what} is decided", is_decided=True)
            if self._has(snapshot, batch_id, sealed, what):
                self._settle(snapshot, sealed, batch_id, committables)
                return
            if failure is not None:
                raise outcomes.commit_failed(failure, what) from None
            self._require_same(snapshot, sealed, what)
            found = self._prepared.notes(committables)
            gone = found if isinstance(found, list) else self._prepared.gone(found)
            if gone:
                # Another coordinator may have committed the batch since the last look, and removed its notes.
                if self._has(self.look(what, is_decided=True), batch_id, sealed, what):
                    continue
                raise outcomes.files_gone(what, gone)
            assert not isinstance(found, list)
            if why := _unfit(found.values(), snapshot.view):
                raise outcomes.table_changed(what, why)
            try:
                self._put(snapshot, batch_id, found)
            except (FileExistsError, FileNotFoundError):
                # Another writer was faster, or our entry landed and its response was lost, or the folder is gone. The
                # next look shows which.
                failure = None
            except OSError as error:
                failure = self._failure(error)
            except ValueError as error:
                raise outcomes.unreadable(what, str(error)) from None
            self._keep(snapshot)
        raise Retriable(f"{what} is decided and not committed yet: other writers were faster, {ATTEMPTS} times")

    def _has(self, snapshot: Snapshot, batch_id: int, sealed: Sealed, what: str) -> bool:
        """Return whether the table has the batch. If the table has no mark, it may have forgotten the mark. Then the
        entries since the seal are searched for the batch.

        Raises:
            OutcomeUnknown: the table has no mark, and one of these entries is gone; or the table has the batch's mark,
                but may not be the one for which the batch was sealed.
        """
        if snapshot.view.id != sealed.table:
            if snapshot.has(batch_id):
                self._require_entry_of(sealed, snapshot.view.id, what)
                return True
            return False
        if snapshot.mark is not None:
            return snapshot.has(batch_id)
        # Newest first. An entry that a slow driver has put behind a checkpoint follows a gap, and is not reached.
        for version in range(snapshot.view.version, sealed.version, -1):
            entry = self._entry(version, what)
            if entry is None:
                raise outcomes.entry_gone(what, version)
            if entry.marks.get(self._mark, -1) >= batch_id:
                return True
        return False

    def _require_entry_of(self, sealed: Sealed, found: str, what: str) -> None:
        """Raise OutcomeUnknown unless the log still contains the entry that was the newest one when the batch was
        sealed. Upholds: a batch counts as committed only in the log for which it was sealed. The table's id does not
        identify the log, because CREATE OR REPLACE keeps the log but changes the id."""
        with self._asking():
            data = self._files.entry(sealed.version)
        if data is None or sealed.entry is None:
            raise outcomes.perhaps_into_another_table(what, sealed.table, found)
        if digest(data) != sealed.entry:
            raise outcomes.into_another_table(what, sealed.table, found)

    def _entry(self, version: int, what: str) -> Entry | None:
        with self._asking():
            data = self._files.entry(version)
        return None if data is None else self._parsed(version, data, what, is_decided=True)

    def _asking(self) -> contextlib.AbstractContextManager[None]:
        return outcomes.looking(self._storage, f"the log of {self._name}", is_decided=True)

    def _require_same(self, snapshot: Snapshot, sealed: Sealed, what: str) -> None:
        """Check that the table is the one for which the batch was sealed, and that it has lost no batch since. Upholds:
        a batch goes only into the table for which it was decided, and only once. Without interference, a mark only
        grows."""
        if sealed.table != snapshot.view.id:
            raise outcomes.another_table(what, sealed.table, snapshot.view.id)
        if snapshot.newest < sealed.follows:
            if why := snapshot.view.obstacle():  # for example, the table forgets marks
                raise outcomes.table_changed(what, why)
            raise outcomes.mark_fell_back(what, sealed.follows, snapshot.mark)

    def _put(self, snapshot: Snapshot, batch_id: int, notes: Mapping[str, Note]) -> None:
        """Put the batch's entry directly after the version of ``snapshot``, or put nothing. Raises the errors of
        ``LogFiles.put``.

        Upholds: if another table takes the place of this one meanwhile, its log keeps no entry that follows a gap. Such
        an entry would make the table unreadable.
        """
        files, version = [file for note in notes.values() for file in note.files], snapshot.view.version
        key = next((note.key for note in notes.values() if note.key), ())
        changes = self._changes(snapshot.view, key, notes) if key else []
        entry = entry_of(files, snapshot.view.partition_by, self._mark, batch_id, key, changes)
        self._files.put(version + 1, entry)
        if not self._files.has(version):
            self._files.withdraw(version + 1, entry)

    def _changes(self, view: TableView, key: Sequence[str], notes: Mapping[str, Note]) -> list[dict[str, Any]]:
        """Return the actions that delete the rows with the batch's keys from the files of exactly this version.

        Raises:
            FileExistsError: the log has a newer version, whose writer may have removed searched files.
            ValueError: a searched file is gone or can't be read. Errors of the store pass through.
        """
        paths = [file.path for note in notes.values() for file in (*note.files, *note.deletes)]
        columns = pa.schema([view.schema.field(name).with_nullable(True) for name in key])
        keys = Keys(columns, paths, self._storage)
        try:
            return [*actions_of(self._storage, keys, live_files(self._files, view.version), int(time.time() * 1000))]
        except ValueError as error:
            if self._files.newest_after(view.version) != view.version:
                raise FileExistsError(errno.EEXIST, "a newer version") from error
            raise

    def _settle(self, snapshot: Snapshot, sealed: Sealed, batch_id: int, committables: Sequence[Committable]) -> None:
        """Make a committed batch survive a power cut, then remove the notes that its recovery would need."""
        receipt = self._receipt(snapshot, sealed, batch_id)
        try:
            self._files.sync(snapshot.view.version, 0 if receipt is None else receipt.version)
        except NotSynced as error:  # the kernel reports this only once, so this process can't repair it
            raise outcomes.not_synced(f"batch {batch_id} of {self._name}", str(error)) from None
        except OSError as error:
            raise Retriable(
                f"batch {batch_id} is in the log of {self._name}, and perhaps not on its disk: {error}"
            ) from None
        if receipt is not None and receipt.batch == snapshot.newest:  # else a newer coordinator has written a newer one
            try:
                self._receipts.write(receipt)
            except OSError as error:  # the previous receipt is still valid
                logger.warning("no receipt of batch %d of %s: %s", batch_id, self._name, self._failure(error).text)
        try:
            self._prepared.settle(committables)
        except OSError as error:  # the sweep removes them
            logger.debug("notes of batch %d of %s stay: %s", batch_id, self._name, error)
        self._keep(snapshot)
        self._maintain(snapshot.view)

    def _receipt(self, snapshot: Snapshot, sealed: Sealed, batch_id: int) -> Receipt | None:
        """Return a receipt for the batch's entry in the log; None if the entry was cleaned up."""
        newest = snapshot.view.version
        # The newest entry, then from the oldest: after a crash, other writers may have added thousands after the
        # batch's.
        for version in (newest, *range(sealed.version + 1, newest)):
            with self._asking():
                data = snapshot.entry if version == newest else self._files.entry(version)
            if data is None:
                break
            with contextlib.suppress(ValueError):  # a damaged entry behind a checkpoint
                if Entry.of(data).marks.get(self._mark) == batch_id:
                    return Receipt(snapshot.view.id, batch_id, version, digest(data))
        return None

    def _maintain(self, view: TableView) -> None:
        """Write a checkpoint when one is due, as every writer of a table should, and remove expired entries behind
        it."""
        try:
            interval = int(view.configuration.get("delta.checkpointInterval", CHECKPOINT_INTERVAL))
            # Not only at multiples of the interval: other writers may take all of those versions.
            if view.version - self._files.last_checkpoint() < interval:
                return
            table = load(self._storage, "a checkpoint")
            table.create_checkpoint()
            self._files.sync_checkpoint(table.version())
            if view.configuration.get("delta.enableExpiredLogCleanup", "true") != "true":
                return
            if CHECKPOINT_PROTECTION in view.features:
                return
            if self._files.has_part_of_a_checkpoint():  # delta-rs would treat it as complete
                logger.warning("entries of %s do not expire: a checkpoint lacks parts. Remove it.", self._name)
            else:
                table.cleanup_metadata()
        except (*outcomes.FAILURES, TwoPhaseCommitError, ValueError) as error:
            logger.warning("no checkpoint of %s at version %d: %s", self._name, view.version, self._failure(error).text)


def _unfit(notes: Iterable[Note], view: TableView) -> str | None:
    """Return why the table can't accept the files of ``notes``; None if it can."""
    notes = [*notes]
    if obstacle := view.obstacle() or (changes.obstacle(view) if any(note.key for note in notes) else None):
        return obstacle
    now = type_names(view.schema)
    seen: set[bytes] = set()
    for note in notes:
        shape = orjson.dumps([note.table_id, note.columns, note.required, note.partition_by])
        if shape in seen:
            continue
        seen.add(shape)
        if note.table_id != view.id:
            return f"its id was {note.table_id} and is {view.id}"
        if tuple(note.partition_by) != view.partition_by:
            return "its partition columns"
        known = {tuple(column) for column in note.required}
        for name, type in note.columns.items():
            if type != now.get(name):
                return f"column {name!r} was {type} and is {now.get(name, 'gone')}"
        for column in view.required:
            is_inside_of_a_new_one = column[0] not in note.columns and len(column) > 1
            if column not in known and not is_inside_of_a_new_one:
                return f"column {'.'.join(column)!r} is NOT NULL by now"
    return None
