"""The ledger of promises: the invariants of the design, checked at every effect and at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from tests.campaigns.simulation.database_model import KeyedTable
from tests.campaigns.simulation.disk import Disk, Folder, Inode
from tests.campaigns.simulation.kafka_model import Broker, Fate, Written
from tests.campaigns.simulation.promises import Promise, Violation
from tests.campaigns.simulation.table_ledger import TableLedger
from tests.campaigns.simulation.table_model import Table
from tests.campaigns.simulation.world import Actor
from twopc.errors import OperatorRequired, OutcomeUnknown, TransactionLost
from twopc.log import entries
from twopc.log.entry_json import entry_name, parse
from twopc.transaction import Committable
from twopc_files.file_names import decidable_files

DecidedKey: TypeAlias = "tuple[str, int, int]"


class Ledger:
    """Reads every log entry as it becomes durable, and checks everything else against the log."""

    def __init__(self, broker: Broker, disk: Disk, tables: Mapping[str, Table | KeyedTable]) -> None:
        self._broker, self._disk = broker, disk
        self._tables = TableLedger(tables)
        self._top = -1
        self._first_unresolved: int | None = None
        self.incarnation = 0
        self.newest_incarnation: Callable[[], int] = lambda: self.incarnation
        self.decided_batch: int | None = None
        self._written: dict[DecidedKey, Written] = {}
        self._batch_of: dict[DecidedKey, int] = {}
        self._ever_decided: set[DecidedKey] = set()
        self._staged: dict[str, int] = {}
        self._completed: dict[str, int] = {}
        self.first_completed = 0
        self.opened_at = 0
        self.decided_at = 0
        self.expired = self._expired_undone = False
        broker.on_commit_asked = self.commit_is_asked
        broker.before_end = self.transaction_ends
        broker.on_complete = self.batch_is_complete
        broker.on_announce = self.batch_is_announced
        disk.renamed = self.file_is_renamed
        self._tables.before_commit = self.table_is_committed

    # As it happens. -------------------------------------------------------------------------------------------------

    def entry_is_durable(self, slot: int, data: bytes) -> None:
        """Invariant 3: at most one decision per batch and per slot, and none by a fenced coordinator."""
        if slot <= self._top:
            return  # a zombie that was asleep fills a pruned slot: it must have no consequence
        entry = parse(data, "the simulated log")
        if slot != self._top + 1:
            raise Violation(Promise.LOG_IN_ORDER, f"slot {slot} is filled after slot {self._top}")
        self._top = slot
        self._is_resolved({decision.batch_id for decision in entry.unresolved})
        self._first_unresolved = entry.unresolved[0].batch_id if entry.unresolved else None
        self._tables.entry_is_durable(entry.unresolved)
        match entry.kind:
            case "open":
                if entry.incarnation != self.incarnation + 1:
                    raise Violation(
                        Promise.LOG_IN_ORDER, f"incarnation {entry.incarnation} opens after {self.incarnation}"
                    )
                self.incarnation = entry.incarnation
                self.opened_at = self._broker.world.steps
            case _:
                if entry.incarnation != self.incarnation:
                    raise Violation(
                        Promise.LOG_IN_ORDER,
                        f"incarnation {entry.incarnation} writes {entry.kind} after {self.incarnation}",
                    )
        if entry.kind == "decide":
            self._decided(entry.unresolved[-1])
            self._tables.batch_is_decided(entry)
        elif entry.kind == "amend":
            self._amended(entry.unresolved)

    def _is_resolved(self, unresolved: Collection[int]) -> None:
        """Invariant 2: everything that the log records as committed is committed."""
        undone: list[object] = [
            key for key, batch in self._batch_of.items() if batch not in unresolved and not self._is_committed(key)
        ]
        if self._staged:
            undone += [name for name in self._uncommitted_files() if self._staged.get(name) not in (None, *unresolved)]
        undone += self._tables.undone(lambda batch: batch not in unresolved)
        if undone:
            raise Violation(
                Promise.RESOLVED_WHEN_COMMITTED,
                f"the log records all batches except {unresolved} as committed, but {undone} is not",
            )

    def _decided(self, decision: entries.Decision) -> None:
        expected = 0 if self.decided_batch is None else self.decided_batch + 1
        if decision.batch_id != expected:
            raise Violation(Promise.DECIDED_ONCE, f"batch {decision.batch_id} is decided instead of batch {expected}")
        self.decided_batch = decision.batch_id
        self.decided_at = self._broker.world.steps
        for key in self._keys(decision):
            self._is_decided_now(key)

    def _amended(self, unresolved: Iterable[entries.Decision]) -> None:
        """Only transactions that the target system rolled back are written again."""
        amended = {key: decision.batch_id for decision in unresolved for key in self._keys(decision)}
        for key in [key for key, batch in self._batch_of.items() if batch in amended.values() and key not in amended]:
            written = self._written.pop(key)
            del self._batch_of[key]
            if written.fate is not Fate.TIMED_OUT:
                raise Violation(
                    Promise.AMENDED_WHEN_LOST, f"{key} is replaced by an amendment, but is {written.fate.value}"
                )
        for key, batch in amended.items():
            if key not in self._written:
                self._is_decided_now(key)
                self._batch_of[key] = batch

    def _keys(self, decision: entries.Decision) -> list[DecidedKey]:
        """Return the Kafka transactions of a decision, and note its pending files."""
        keys = []
        for committables in decision.committables.values():
            for committable in committables:
                if "files" in committable.handle:
                    for file in decidable_files(committable):
                        self._staged.setdefault(file.pending, decision.batch_id)
                elif "producer_id" in committable.handle:
                    keys.append(_key(committable.transaction_id, committable.handle))
        for key in keys:
            self._batch_of.setdefault(key, decision.batch_id)
        return keys

    def _is_decided_now(self, key: DecidedKey) -> None:
        written = self._broker.newest.get(key)
        if written is None or written.fate not in (Fate.OPEN, Fate.TIMED_OUT):
            raise Violation(
                Promise.DECIDED_WHEN_OPEN,
                f"{key} is decided, but was {written.fate.value if written else 'never begun'}",
            )
        seen_at = [at for at in self._broker.described_at.get(written.name, {}).values() if at >= written.made_at]
        if not seen_at:
            raise Violation(Promise.DECIDED_WHEN_OPEN, f"{key} is decided, but nobody has checked whether it is open")
        # The process that decides has checked. A fenced one may later see how the transaction ended.
        if written.ended_at is not None and written.ended_at < min(seen_at):
            raise Violation(Promise.DECIDED_WHEN_OPEN, f"{key} is decided, although it was seen to have timed out")
        self._written[key] = written
        self._ever_decided.add(key)

    def ids_expire(self) -> None:
        """Note that ids expire. Nobody needs to ask Kafka about a batch that the log records as committed."""
        self.expired = True
        self._expired_undone |= self._first_unresolved is not None

    def commit_is_asked(self, name: str, producer_id: int, epoch: int) -> None:
        """Invariant 1, in intent: whatever the broker answers, no commit is requested before its decision."""
        if (name, producer_id, epoch) not in self._ever_decided:
            raise Violation(
                Promise.COMMITTED_WHEN_DECIDED,
                f"a commit of {name}, epoch {epoch}, is requested without a durable decision",
            )

    def transaction_ends(self, written: Written, fate: Fate) -> None:
        """Invariants 1 and 5: nothing is visible before its decision, and no client rolls back what is decided."""
        key = (written.name, written.producer_id, written.producer_epoch)
        is_decided = self._written.get(key) is written
        if fate is Fate.COMMITTED and not is_decided:
            raise Violation(Promise.COMMITTED_WHEN_DECIDED, f"{key} is committed without a durable decision")
        if fate is Fate.COMMITTED:
            earlier = [k for k, batch in self._batch_of.items() if batch < self._batch_of[key]]
            if any(self._written[k].fate is Fate.OPEN for k in earlier if k in self._written):
                raise Violation(Promise.COMMITTED_IN_ORDER, f"{key} is committed before an earlier batch")
            if undone := self._tables.undone(lambda batch: batch < self._batch_of[key]):
                raise Violation(Promise.COMMITTED_IN_ORDER, f"{key} is committed before {undone}")
            if commits_last(_sink_of(key)) and (ahead_of := self._undone_in_others(self._batch_of[key])):
                raise Violation(Promise.PROGRESS_LAST, f"{key} is committed before {ahead_of}")
        if fate in (Fate.ABORTED, Fate.REPLACED) and is_decided:
            raise Violation(Promise.DECIDED_IS_KEPT, f"{key} is decided, but {fate.value}")

    def file_is_renamed(self, source: tuple[str, ...], target: tuple[str, ...]) -> None:
        if target[0] == "data" and source[-1] not in self._staged:
            raise Violation(Promise.COMMITTED_WHEN_DECIDED, f"{target[-1]} is visible without a durable decision")

    def table_is_committed(self, newest: int) -> None:
        """Invariant 2, for the batch that becomes visible in a table."""
        if any(self._written[key].fate is Fate.OPEN for key, batch in self._batch_of.items() if batch < newest):
            raise Violation(Promise.COMMITTED_IN_ORDER, f"batch {newest} of a table is committed before an earlier one")

    def batch_is_complete(self, sink: str, batch_id: int) -> None:
        """A sink's ``complete`` is called when every sink has committed the batch, except those that commit last, and
        the sink's own part is visible. The first calls for successive batches come in order."""
        undone = self._undone_in_others(batch_id)
        undone += [
            key
            for key, batch in self._batch_of.items()
            if batch <= batch_id and _sink_of(key) == sink and not self._written[key].is_visible
        ]
        if undone:
            raise Violation(
                Promise.COMPLETE_WHEN_COMMITTED, f"batch {batch_id} is reported complete, but {undone} is not committed"
            )
        newest = self._completed.get(sink, self.first_completed - 1)
        if batch_id > newest + 1:
            raise Violation(
                Promise.COMPLETE_WHEN_COMMITTED,
                f"batch {batch_id} is reported complete in sink {sink} after batch {newest}",
            )
        self._completed[sink] = max(newest, batch_id)

    def batch_is_announced(self, batch_id: int, committed: Mapping[str, Sequence[Committable]]) -> None:
        """A batch is announced with its transactions as the log has them, when each of them is visible and its sink
        knows that the batch is complete."""
        mine = {key for key, batch in self._batch_of.items() if batch == batch_id}
        undone: list[object] = [key for key in mine if not self._written[key].is_visible]
        undone += [name for name in committed if self._completed.get(name, self.first_completed - 1) < batch_id]
        if undone := undone + self._undone_in_others(batch_id):
            raise Violation(Promise.ANNOUNCED_WHEN_COMPLETE, f"batch {batch_id} is announced before {undone}")
        announced = {_key(each.transaction_id, each.handle) for of_sink in committed.values() for each in of_sink
                     if "producer_id" in each.handle}  # fmt: skip
        if announced != mine:
            raise Violation(
                Promise.ANNOUNCED_WHEN_COMPLETE, f"batch {batch_id} is announced with {announced}, and is {mine}"
            )

    def _undone_in_others(self, batch_id: int) -> list[object]:
        """Return what is not committed of the batches up to this one, in sinks that do not commit last."""
        undone: list[object] = [
            key
            for key, batch in self._batch_of.items()
            if batch <= batch_id and not commits_last(_sink_of(key)) and not self._is_committed(key)
        ]
        undone += [name for name in self._uncommitted_files() if self._staged.get(name, batch_id + 1) <= batch_id]
        return undone + self._tables.undone(lambda batch: batch <= batch_id)

    def _is_committed(self, key: DecidedKey) -> bool:
        return self._written[key].fate is Fate.COMMITTED

    def query_stops(self, error: OperatorRequired, has_copies: bool, recomputes: bool) -> None:
        """Invariant 2: a query stops for an operator only if something is really lost, or its outcome is unknown.

        ``has_copies``: lost records can be written again from copies. ``recomputes``: those of the newest batch can be
        computed again.
        """
        loses_nothing = has_copies or (recomputes and error.batch_id == max(self._batch_of.values(), default=None))
        timed_out = any(written.fate is Fate.TIMED_OUT for written in self._written.values()) or self._tables.lost()
        if isinstance(error, TransactionLost) and timed_out and not loses_nothing:
            return
        if isinstance(error, OutcomeUnknown) and self._tables.restored:
            return
        if isinstance(error, OutcomeUnknown) and (self._expired_undone or (self.expired and timed_out)):
            return  # including a transaction that was decided while its id expired
        raise Violation(Promise.STOPS_WITH_REASON, f"the query stops without a reason: {type(error).__name__}: {error}")

    # At the end. ----------------------------------------------------------------------------------------------------

    def check_contents(self, expected: Iterable[str]) -> None:
        """Invariants 2, 4, 6: the contents are those of a run without faults."""
        found = self._broker.visible + self._rows_in_files() + self._tables.rows()
        wanted = Counter(expected)
        if found != wanted:
            raise Violation(
                Promise.SAME_CONTENTS, f"missing: {sorted(wanted - found)[:4]}; too many: {sorted(found - wanted)[:4]}"
            )

    def check_completions(self, sinks: Iterable[str], newest: int) -> None:
        """Every sink was informed of every complete batch."""
        if any(self._completed.get(sink) != newest for sink in sinks):
            raise Violation(
                Promise.COMPLETE_WHEN_COMMITTED,
                f"batches up to {newest} are complete, but sinks were informed only up to {self._completed}",
            )

    def check_contents_after_a_stop(self) -> None:
        """A lost transaction is lost as a whole, and nothing else that is decided is left undone."""
        # Batches are committed in order, so nothing after the lost one can be committed.
        lost = [self._batch_of[key] for key, written in self._written.items() if written.fate is Fate.TIMED_OUT]
        lost += self._tables.lost()
        if (self.expired or self._tables.restored) and self._first_unresolved is not None:
            lost.append(self._first_unresolved)
        last = min(lost, default=self.decided_batch or 0)
        undone = [
            key
            for key, written in self._written.items()
            if written.fate is Fate.OPEN and self._batch_of[key] <= last - commits_last(_sink_of(key))
        ]
        undone_files = [name for name in self._uncommitted_files() if self._staged.get(name, last + 1) <= last]
        undone_in_tables = self._tables.undone_after_a_stop(last)
        if undone or undone_files or undone_in_tables:
            raise Violation(
                Promise.STOPS_AFTER_THE_REST,
                f"the query has stopped and left undone {undone} {undone_files} {undone_in_tables}",
            )
        # A committed transaction that hangs becomes visible when the query continues and completes the batch.
        hanging = [written for held in self._broker.held.values() for written in held.transactions]
        wanted: Counter[str] = Counter()
        for written in self._written.values():
            if written.fate is Fate.COMMITTED and written not in hanging:
                wanted.update(written.rows)
        if self._broker.visible != wanted:
            raise Violation(
                Promise.SAME_CONTENTS,
                f"after a stop, too many: {self._broker.visible - wanted}; missing: {wanted - self._broker.visible}",
            )
        twice = [row for row, times in self._rows_in_files().items() if times > 1]
        if twice:
            raise Violation(Promise.SAME_CONTENTS, f"after a stop, these rows are in files twice: {twice}")

    @property
    def is_restored(self) -> bool:
        """Whether a table was restored from a backup that lacks a batch which is recorded as committed."""
        return bool(self._tables.restored)

    def check_complete(self) -> None:
        """The log records every batch as committed, without waiting for the next decision."""
        if self._first_unresolved is not None:
            raise Violation(
                Promise.RESOLVED_AT_REST, f"batch {self._first_unresolved} is complete, but the log does not record it"
            )

    def check_swept(self, before: int) -> None:
        """Undecided transactions of participants that had ended before this step are gone. If a broker was cut off,
        they may be gone later."""
        if self._broker.was_cut_off:
            return
        open_ = [known.written for known in self._broker.ids.values() if known.state == "Ongoing" and known.written]
        for written in open_:
            key = (written.name, written.producer_id, written.producer_epoch)
            if _ended(written.made_by, written.made_at, before) and self._written.get(key) is not written:
                raise Violation(Promise.SWEPT, f"{written.name} is open and was not swept, and nobody will end it")
        self._check_nothing_hangs(before)
        self._check_no_note_is_left(before)
        for folder in self._sink_folders():
            for staging in folder.entries.values():
                if isinstance(staging, Folder):
                    for name, file in staging.entries.items():
                        assert isinstance(file, Inode)
                        if _ended(file.made_by, file.made_at, before) and name not in self._staged:
                            raise Violation(
                                Promise.SWEPT, f"{name} is pending and was not swept, and nobody will commit it"
                            )

    def _check_no_note_is_left(self, before: int) -> None:
        for name, made in self._tables.notes().items():
            if _ended(made.by, made.at, before):
                raise Violation(Promise.SWEPT, f"{name} has a note and was not swept, and nobody will commit it")

    def _check_nothing_hangs(self, before: int) -> None:
        known = {id.producer_id for id in self._broker.ids.values()}  # nobody can attribute a forgotten one
        for producer_id, held in self._broker.held.items():
            for written in held.transactions if producer_id in known else ():
                if written.fate in _ROLLED_BACK and _ended(written.made_by, written.made_at, before):
                    raise Violation(Promise.SWEPT, f"{written.name} hangs, was not swept, and holds back readers")

    def check_quiescent(self) -> None:
        """Nothing is left: no open transaction, which would hold back readers, and no pending file or replay copy."""
        dangling = [known.name for known in self._broker.ids.values() if known.state in _NOT_ENDED]
        copies = sorted(self._disk.folder(("stage",)).entries)
        # When Kafka has forgotten an id, nobody can attribute its hanging transaction.
        known = {known.producer_id for known in self._broker.ids.values()}
        held = [open_ for open_ in self._broker.open_transactions() if open_.producer_id in known or not self.expired]
        pending = [*sorted(self._staged_files()), *self._tables.left()]
        if dangling or held or copies or pending:
            raise Violation(Promise.NOTHING_LEFT, f"left open: {dangling} {held} {pending} {copies}")

    def _rows_in_files(self) -> Counter[str]:
        rows: Counter[str] = Counter()
        for folder in self._sink_folders():
            for file in folder.entries.values():
                if isinstance(file, Inode):
                    rows.update(file.content.decode().split())
        return rows

    def _staged_files(self) -> set[str]:
        return {
            name
            for folder in self._sink_folders()
            for staging in folder.entries.values()
            if isinstance(staging, Folder)
            for name in staging.entries
        }

    def _uncommitted_files(self) -> set[str]:
        """Return the pending files that are not published. A power cut may have left a file both of its names."""
        return {
            name
            for folder in self._sink_folders()
            for staging in folder.entries.values()
            if isinstance(staging, Folder)
            for name, file in staging.entries.items()
            if file not in folder.entries.values()
        }

    def _sink_folders(self) -> list[Folder]:
        data = self._disk.root.entries["data"]
        assert isinstance(data, Folder)
        return [folder for folder in data.entries.values() if isinstance(folder, Folder)]


def _ended(by: Actor | None, at: int, before: int) -> bool:
    return by is not None and by.ended_at is not None and max(by.ended_at, at) < before


_ROLLED_BACK = (Fate.ABORTED, Fate.REPLACED, Fate.TIMED_OUT)
_NOT_ENDED = ("Ongoing", "PrepareCommit", "PrepareAbort")


def commits_last(sink: str) -> bool:
    return sink.endswith("p")


def _sink_of(key: DecidedKey) -> str:
    return key[0].split(".")[-3]  # token and batch follow


def _key(name: str, handle: Mapping[str, object]) -> DecidedKey:
    producer_id, epoch = handle["producer_id"], handle["producer_epoch"]
    assert isinstance(producer_id, int)
    assert isinstance(epoch, int)
    return name, producer_id, epoch


class FolderAsLog:
    """Reports a log entry on the disk to the ledger once its name and content are synced."""

    def __init__(self, disk: Disk, ledger: Ledger, folder: Folder) -> None:
        self._ledger, self._folder = ledger, folder
        self._told: set[str] = set()
        disk.folder_synced = self.synced
        ledger.newest_incarnation = self.newest_incarnation

    def newest_incarnation(self) -> int:
        """Return the incarnation of the newest entry that processes see. Its name may not be synced yet."""
        name = max(filter(_is_entry, self._folder.entries))
        entry = self._folder.entries[name]
        assert isinstance(entry, Inode)
        return parse(entry.content, name).incarnation

    def synced(self, folder: Folder) -> None:
        if folder is not self._folder:
            return
        for name in sorted(folder.synced.keys() - self._told):
            file = folder.synced[name]
            if _is_entry(name) and isinstance(file, Inode) and file.synced:
                self._told.add(name)
                self._ledger.entry_is_durable(int(name.removesuffix(".json")), file.synced)


def _is_entry(name: str) -> bool:
    return name[0].isdecimal() and name.endswith(".json")  # not a note beside the entries


assert entry_name(7) == "00000000000000000007.json"
