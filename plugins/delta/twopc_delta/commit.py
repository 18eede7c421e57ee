"""One batch as one entry of a table's log: look, commit, look again.

The entry has the batch's files and its number under the sink's mark (Delta's application transaction). It is put as the
version after the one that was looked at, and only there: if another writer was faster, none is written, and the table
is looked at anew. So the mark, the table's id and its columns are compared with exactly the version that the entry
follows, whoever writes beside us. Whatever answer an attempt gets, only the table shows whether it has the batch.

delta-rs reads all active files of a table to load it, so each look would take longer as the table grows. The handle of
a table whose newest entry is ours is kept, and only what came after it is read. The entry shows that the table is still
the same one: no other table and no older copy of this one has it. The handle is kept until the next checkpoint: each
update makes the next ones slower.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import orjson
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.transaction import AddAction, RemoveAction

from twopc.errors import Retriable
from twopc.transaction import Committable, JsonValue
from twopc_delta import outcomes
from twopc_delta.columns import type_names
from twopc_delta.notes import Note, Notes, digest
from twopc_delta.storage import Storage
from twopc_delta.table import TableView

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

ATTEMPTS = 20
"""How often a commit may lose the race for a version of the log before an operator is told."""

CHECKPOINT_INTERVAL = 10
"""Entries between two checkpoints, where the table does not set it: as Spark's Delta writer has it."""

LOOKS_AT_ONCE = 32
"""Requests for files at a time, at a store."""


@dataclass(frozen=True)
class Sealed:
    """A table as it was before the batch was decided. Each transaction of the decision has it.

    Attributes:
        table: the table's id.
        follows: the newest batch of this sink that was in the table; -1 if there was none.
        version: of the table's log.
    """

    table: str
    follows: int
    version: int

    @classmethod
    def of(cls, committable: Committable) -> Sealed:
        handle: Mapping[str, Any] = committable.handle
        return cls(handle["table"], handle["follows"], handle["version"])


@dataclass(frozen=True)
class Snapshot:
    """A table as a look has found it.

    Attributes:
        table: delta-rs's handle of exactly this version.
        view: the same, as a value.
        mark: the newest batch of this sink that is in the table.
        entry: the newest entry of the table's log, if it is ours.
    """

    table: DeltaTable
    view: TableView
    mark: int | None
    entry: bytes | None = None

    @property
    def newest(self) -> int:
        """The mark, or -1 if there is none."""
        return -1 if self.mark is None else self.mark

    def has(self, batch_id: int) -> bool:
        """Whether the table has this batch of the sink, which commits batches in order."""
        return self.newest >= batch_id


def load(storage: Storage, what: str, is_decided: bool = False) -> DeltaTable:
    """Load the newest version of a table, without anything kept from an earlier look.

    Raises:
        ConfigurationError: there is no table, or the store refuses; OutcomeUnknown or OperatorRequired after a
            decision.
        Retriable: no answer.
    """
    try:
        return DeltaTable(storage.url, storage_options=storage.delta_options())
    except outcomes.FAILURES as error:
        raise outcomes.look_failed(outcomes.Failure.of(error, storage), what, is_decided) from None


def mark_of(scope: str) -> str:
    """Return the name of a sink's mark in a table."""
    return f"twopc.committed.{scope.rstrip('.')}"


class TableLog:
    """The log of one table, for one sink of one query.

    Args:
        storage: the table's folder.
        mark: the name of the sink's mark.
        name: the table, for messages.
    """

    def __init__(self, storage: Storage, mark: str, name: str) -> None:
        self._storage = storage
        self._mark = mark
        self._name = name
        self._notes = Notes(storage)
        self._kept: deque[Snapshot] = deque(maxlen=1)  # who takes it is the only one that has it

    def look(self, what: str, is_decided: bool = False) -> Snapshot:
        """Look at the newest version, and at the sink's mark in it. Raises like ``load``."""
        try:
            if (kept := self._caught_up()) is not None:
                return kept
            return self._snapshot(load(self._storage, what, is_decided))
        except outcomes.FAILURES as error:
            raise outcomes.look_failed(self._failure(error), what, is_decided) from None

    def _caught_up(self) -> Snapshot | None:
        """Return the newest version, read from the kept one on; None if none is kept, or the table is another one."""
        try:
            kept = self._kept.pop()
        except IndexError:
            return None
        if self._storage.entry(kept.view.version) != kept.entry:
            return None
        kept.table.update_incremental()
        if kept.table.version() == kept.view.version:
            return kept
        return self._snapshot(kept.table)

    def _snapshot(self, table: DeltaTable) -> Snapshot:
        mark = table.transaction_version(self._mark)
        newest = None if mark is None else self._storage.entry(table.version())
        is_ours = newest is not None and mark is not None and self._is_in(newest, mark)
        return Snapshot(table, TableView.of(table), mark, newest if is_ours else None)

    def _keep(self, snapshot: Snapshot) -> None:
        """Keep a snapshot, which the caller no longer uses, for the next look."""
        if snapshot.entry is not None:
            self._kept.append(snapshot)

    def _failure(self, error: Exception) -> outcomes.Failure:
        return outcomes.Failure.of(error, self._storage)

    def seal(self, committables: Sequence[Committable], batch_id: int) -> list[Committable]:
        """Return the transactions with the table's id and mark, if the batch could be committed now.

        Raises:
            LogMismatch: the table has the batch already.
            RoundAborted: it could not.
        """
        what = f"batch {batch_id} of {self._name}"
        snapshot = self.look(what)
        if snapshot.has(batch_id):
            raise outcomes.old_log(what, snapshot.mark)
        notes = self._read_notes(committables)
        if isinstance(notes, list):
            raise outcomes.not_decided(
                what, f"{notes[0]} is not there as it was written: do all processes have the same disk at this path?"
            )
        if why := _unfit(notes.values(), snapshot.view):
            raise outcomes.not_decided(what, f"the table was changed meanwhile: {why}")
        if gone := self._gone(notes):
            raise outcomes.not_decided(what, f"{gone[0]} is not there as it was written")
        facts: dict[str, JsonValue] = asdict(Sealed(snapshot.view.id, snapshot.newest, snapshot.view.version))
        self._keep(snapshot)
        return [replace(each, handle={**each.handle, **facts}) for each in committables]

    def commit(self, batch_id: int, committables: Sequence[Committable]) -> None:
        """Put the batch into the table's log, if it is not there.

        Raises:
            Retriable: no answer, or other writers were faster each time.
            TransactionLost: files are gone, and nothing is visible.
            OutcomeUnknown: the table was replaced, or restored to a time before.
            OperatorRequired: the table was changed, or a right is missing.
        """
        records = sum(each.records or 0 for each in committables)
        what = f"batch {batch_id} ({records} records) of {self._name}"
        sealed = Sealed.of(committables[0])
        failure: outcomes.Failure | None = None
        for _ in range(ATTEMPTS):
            snapshot = self.look(f"{what} is decided", is_decided=True)
            if self._has(snapshot, batch_id, sealed, what):
                self._settle(snapshot, batch_id, committables)
                return
            if failure is not None:
                raise outcomes.commit_failed(failure, what) from None
            self._require_same(snapshot, sealed, what)
            found = self._read_notes(committables)
            gone = found if isinstance(found, list) else self._gone(found)
            if gone:
                # Another coordinator may have committed the batch since our look, and removed its notes.
                if self._has(self.look(what, is_decided=True), batch_id, sealed, what):
                    continue
                raise outcomes.files_gone(what, gone)
            assert not isinstance(found, list)
            if why := _unfit(found.values(), snapshot.view):
                raise outcomes.table_changed(what, why)
            try:
                self._put(snapshot, batch_id, found)
            except outcomes.FAILURES as error:
                failure = None if outcomes.is_lost_race(error) else self._failure(error)
            self._keep(snapshot)
        raise Retriable(f"{what} is decided and not committed yet: other writers were faster, {ATTEMPTS} times")

    def _has(self, snapshot: Snapshot, batch_id: int, sealed: Sealed, what: str) -> bool:
        """Whether the table has the batch: by its mark, or by an entry since the seal if it has none, as it may have
        forgotten it.

        Raises:
            OutcomeUnknown: it has no mark, and such an entry is gone.
        """
        if snapshot.mark is not None or snapshot.view.id != sealed.table:
            return snapshot.has(batch_id)
        for version in range(sealed.version + 1, snapshot.view.version + 1):
            entry = self._entry(version)
            if entry is None:
                raise outcomes.entry_gone(what, version)
            if self._is_in(entry, batch_id):
                return True
        return False

    def _entry(self, version: int) -> bytes | None:
        try:
            return self._storage.entry(version)
        except OSError as error:
            raise Retriable(f"the log of {self._name}: no answer: {self._failure(error).text}") from None

    def _is_in(self, entry: bytes, batch_id: int) -> bool:
        """Whether an entry of the log has the mark of this batch, or of a later one."""
        marks = (orjson.loads(line).get("txn") for line in entry.splitlines() if line.strip())
        return any(mark and mark["appId"] == self._mark and mark["version"] >= batch_id for mark in marks)

    def _require_same(self, snapshot: Snapshot, sealed: Sealed, what: str) -> None:
        """Upholds: a batch goes into the table for which it was decided, and once. A mark only grows by itself."""
        if sealed.table != snapshot.view.id:
            raise outcomes.another_table(what, sealed.table, snapshot.view.id)
        if snapshot.newest < sealed.follows:
            if why := snapshot.view.obstacle():  # perhaps that it forgets marks
                raise outcomes.table_changed(what, why)
            raise outcomes.mark_fell_back(what, sealed.follows, snapshot.mark)

    def _put(self, snapshot: Snapshot, batch_id: int, notes: Mapping[str, Note]) -> None:
        """Put one entry after the version of ``snapshot``, or none."""
        adds: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.size_bytes,
                partition_values=file.partition_values,
                modification_time=file.modified_ms,
                data_change=True,
                stats=file.stats,
            )
            for note in notes.values()
            for file in note.files
        ]
        # The time decides nothing here. Should the table forget marks one day, Spark forgets those without at once.
        transaction = Transaction(self._mark, batch_id, int(time.time() * 1000))
        properties = CommitProperties(
            app_transactions=[transaction],
            max_commit_retries=0,  # delta-rs's own repeat would not look for the mark
            custom_metadata={"isBlindAppend": True},
        )
        hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
        table = snapshot.table
        partition_by = list(snapshot.view.partition_by)
        table.create_write_transaction(
            adds,
            "append",
            table.schema(),
            partition_by,
            commit_properties=properties,
            post_commithook_properties=hooks,
        )

    def _settle(self, snapshot: Snapshot, batch_id: int, committables: Sequence[Committable]) -> None:
        """The table has the batch: make that survive a power cut, then let go of what its recovery would need."""
        entry = orjson.dumps({"appId": self._mark, "version": batch_id}).decode()[1:-1]
        try:
            self._storage.sync_log(snapshot.view.version, entry)
        except OSError as error:
            raise Retriable(
                f"batch {batch_id} is in the log of {self._name}, and perhaps not on its disk: {error}"
            ) from None
        for committable in committables:
            try:
                self._notes.remove(committable.transaction_id)
            except OSError as error:  # the sweep removes it
                logger.debug("the note of %s stays: %s", committable.transaction_id, error)
        if not self._maintain(snapshot):
            self._keep(snapshot)

    def _maintain(self, snapshot: Snapshot) -> bool:
        """Write a checkpoint when one is due, as each writer of a table does, and remove expired entries behind it.
        Return whether one was due."""
        view = snapshot.view
        try:
            interval = int(view.configuration.get("delta.checkpointInterval", CHECKPOINT_INTERVAL))
            # Not at the versions that are multiples of it: other writers may take all of these.
            if view.version - self._storage.last_checkpoint() < interval:
                return False
            snapshot.table.create_checkpoint()
            self._storage.sync_checkpoint(view.version)
            if view.configuration.get("delta.enableExpiredLogCleanup", "true") == "true":
                snapshot.table.cleanup_metadata()
        except (*outcomes.FAILURES, ValueError) as error:
            logger.warning("no checkpoint of %s at version %d: %s", self._name, view.version, self._failure(error).text)
        return True

    # What transactions have. ------------------------------------------------------------------------------------

    def _read_notes(self, committables: Sequence[Committable]) -> dict[str, Note] | list[str]:
        """Return the notes of pre-committed transactions; or the names of those that are not as they were written."""
        names = [committable.transaction_id for committable in committables]
        contents = dict(zip(names, self._at_once(self._read, names), strict=True))
        found, gone = {}, []
        for committable in committables:
            data = contents[committable.transaction_id]
            if data is None or digest(data) != committable.handle.get("digest"):
                gone.append(f"the note of {committable.transaction_id}")
            else:
                found[committable.transaction_id] = Note.from_bytes(data)
        return gone or found

    def _at_once(self, call: Callable[[str], ResultT], names: Sequence[str]) -> list[ResultT]:
        with ThreadPoolExecutor(1 if self._storage.is_local else LOOKS_AT_ONCE) as pool:
            return list(pool.map(call, names))

    def _read(self, transaction_id: str) -> bytes | None:
        try:
            return self._notes.read(transaction_id)
        except OSError as error:
            raise Retriable(f"the notes beside {self._name}: no answer: {error}") from None

    def _gone(self, notes: Mapping[str, Note]) -> list[str]:
        """Return the files that are not there as they were written."""
        files = [file for note in notes.values() for file in note.files]
        try:
            sizes = self._at_once(self._storage.size_bytes, [file.path for file in files])
        except OSError as error:
            raise Retriable(f"the files of {self._name}: no answer: {error}") from None
        return [file.path for file, size in zip(files, sizes, strict=True) if size != file.size_bytes]


def _unfit(notes: Iterable[Note], view: TableView) -> str | None:
    """Return why the table does not take the files of ``notes``; None if it does."""
    if obstacle := view.obstacle():
        return obstacle
    now = type_names(view.schema)
    seen: set[str] = set()
    for note in notes:
        shape = json.dumps([note.table_id, note.columns, list(note.required), list(note.partition_by)])
        if shape in seen:
            continue
        seen.add(shape)
        if note.table_id != view.id:
            return f"its id was {note.table_id} and is {view.id}"
        if tuple(note.partition_by) != view.partition_by:
            return "its partition columns"
        for name, type in note.columns.items():
            if now.get(name) != type:
                return f"column {name!r} was {type} and is {now.get(name, 'gone')}"
        if stricter := {*view.required} - {*note.required}:
            return f"column {min(stricter)!r} is NOT NULL by now"
    return None
