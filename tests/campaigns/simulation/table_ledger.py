"""The part of the ledger for tables: which batch each transaction belongs to, and what a reader sees of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.campaigns.simulation.database_model import KeyedTable
from tests.campaigns.simulation.promises import Promise, Violation
from tests.campaigns.simulation.records import latest_changes, rows_between
from tests.campaigns.simulation.table_model import Made, Table, Version, mark_before
from twopc.log.entries import Decision, Entry
from twopc.transaction import Committable


@dataclass(frozen=True, slots=True)
class InTable:
    """A decided transaction's place."""

    table: Table | KeyedTable
    batch_id: int


class TableLedger:
    """Checks every change of a table against the decisions.

    Attributes:
        restored: the tables from which a restored backup has removed a batch that nobody commits again.
        before_commit: called with the newest batch that becomes visible.
    """

    def __init__(self, tables: Mapping[str, Table | KeyedTable]) -> None:
        self._tables = tables
        self._decided: dict[str, InTable] = {}
        self._unresolved: Sequence[Decision] = ()
        self._excused: set[str] = set()
        self._shown: dict[KeyedTable, int] = {}
        self.restored: set[Table] = set()
        self._ends: dict[int, int] = {}
        self.before_commit: Callable[[int], None] = lambda _batch_id: None
        for table in tables.values():
            match table:
                case Table():
                    table.before_commit = self._version_is_committed
                    table.on_change = self._reader_looks
                    table.may_be_restored = self._may_be_restored
                    table.on_restored = self._is_restored
                case KeyedTable():
                    table.before_commit = self._changes_are_committed
                    table.on_change = self._reader_looks_up
                    table.before_forgotten = self._are_forgotten

    # Entries of the log. --------------------------------------------------------------------------------------------

    def entry_is_durable(self, unresolved: Sequence[Decision]) -> None:
        """Note what the log has decided and does not record as committed. A transaction of an amended batch that is
        named no more must be lost."""
        self._unresolved = unresolved
        for decision in unresolved:
            self._are_replaced(decision)
            for sink, committables in decision.committables.items():
                if sink in self._tables:
                    self._are_decided(self._tables[sink], decision.batch_id, committables)

    def batch_is_decided(self, entry: Entry) -> None:
        """Note the offset at which the batch ends."""
        match entry.reads:
            case {"end": int(end)}:
                self._ends[entry.unresolved[-1].batch_id] = end

    def _are_replaced(self, decision: Decision) -> None:
        named = {each.transaction_id for of_sink in decision.committables.values() for each in of_sink}
        for table in self._tables.values():
            names = [name for name, at in self._decided.items() if at == InTable(table, decision.batch_id)]
            replaced = [name for name in names if name not in named]
            if replaced and (not any(map(table.is_lost, names)) or any(map(table.shows, names))):
                raise Violation(Promise.AMENDED_WHEN_LOST, f"{replaced} are replaced by an amendment, but not lost")
            for name in replaced:
                del self._decided[name]

    def _are_decided(self, table: Table | KeyedTable, batch_id: int, committables: Iterable[Committable]) -> None:
        for name in (each.transaction_id for each in committables):
            if name not in self._decided and name not in table.seen:
                raise Violation(Promise.DECIDED_WHEN_OPEN, f"{name} is decided, but nobody has looked for its file")
            self._decided.setdefault(name, InTable(table, batch_id))

    # Changes of a table. --------------------------------------------------------------------------------------------

    def _version_is_committed(self, table: Table, version: Version) -> None:
        """Nothing is visible before its decision, twice, out of order, or in place of what others have committed."""
        added = Counter(version.files) - Counter(table.newest.files)
        self._require_decided(added)
        if lost := Counter(table.newest.files) - Counter(version.files):
            raise Violation(Promise.SAME_CONTENTS, f"a commit removes {sorted(lost)} from the table")
        if twice := [name for name, times in Counter(version.files).items() if times > 1]:
            raise Violation(Promise.SAME_CONTENTS, f"{twice} is in the table twice")
        self._require_order(added)
        if _mark(version) < _mark(table.newest):
            raise Violation(Promise.COMMITTED_IN_ORDER, f"mark {version.mark} replaces mark {table.newest.mark}")

    def _changes_are_committed(self, _: KeyedTable, names: Collection[str]) -> None:
        self._require_decided(names)

    def _require_decided(self, added: Iterable[str]) -> None:
        if undecided := [name for name in added if name not in self._decided]:
            raise Violation(Promise.COMMITTED_WHEN_DECIDED, f"{undecided} is committed without a durable decision")

    def _require_order(self, added: Iterable[str]) -> None:
        newest = max((self._decided[name].batch_id for name in added), default=0)
        if undone := self.undone(lambda batch_id: batch_id < newest):
            raise Violation(Promise.COMMITTED_IN_ORDER, f"batch {newest} is committed before {undone}")
        self.before_commit(newest)

    def _reader_looks_up(self, table: KeyedTable, names: Collection[str]) -> None:
        """A reader sees what the source's changes through a batch make of the table. No later reader sees a change that
        is older than the last one of its key through that batch."""
        shown = self._shown.get(table)
        newest = max(self._decided[name].batch_id for name in names)
        if shown is not None:
            changed = latest_changes(rows_between(0, self._ends[shown]))
            for key, offset in table.values.items():
                if key in changed and offset < abs(int(changed[key])):
                    what = f"after batch {shown} with change {changed[key]} of key {key}, batch {newest} shows {offset}"
                    raise Violation(Promise.NEVER_OLDER, what)
        newest = self._shown[table] = max(newest, newest if shown is None else shown)
        changed = latest_changes(rows_between(0, self._ends[newest]))
        expected = {key: int(change) for key, change in changed.items() if change[0] != "-"}
        if table.values != expected:
            what = f"after batch {newest}, {table.values} is visible instead of {expected}"
            raise Violation(Promise.CHANGES_IN_ORDER, what)
        self._require_order(names)

    def _are_forgotten(self, table: KeyedTable, names: Collection[str]) -> None:
        if undone := [name for name in names if name in self._decided and not table.shows(name)]:
            raise Violation(Promise.DECIDED_IS_KEPT, f"{undone} is decided, and its changes are removed")

    def _reader_looks(self, table: Table) -> None:
        """A reader sees all of a batch or nothing of it, and can read what it sees."""
        batches: dict[int, list[str]] = defaultdict(list)
        for name, at in self._decided.items():
            if at.table is table:
                batches[at.batch_id].append(name)
        for batch_id, names in batches.items():
            seen = [name for name in names if table.shows(name)]
            if seen and len(seen) < len(names):
                raise Violation(Promise.WHOLE_BATCHES, f"of batch {batch_id}, a reader sees only {seen}")
        if broken := [name for name in table.newest.files if name not in table.files]:
            raise Violation(Promise.SAME_CONTENTS, f"the table has {broken}, and the file is gone")

    def _may_be_restored(self, table: Table) -> bool:
        """Whether a sink can notice that its newest batch is gone: a later one is decided and was sealed after it. Or
        whether the batch will be committed again, because nobody knows yet that it was."""
        mark = table.newest.mark
        of_table = [
            (decision.batch_id, mark_before(committables))
            for decision in self._unresolved
            for sink, committables in decision.committables.items()
            if self._tables.get(sink) is table and committables
        ]
        if mark is None or not of_table:
            return False
        batch_id, before = of_table[0]
        return before == mark or (batch_id == mark and table.acknowledged != mark)

    def _is_restored(self, table: Table, lost: Collection[str]) -> None:
        pending = {decision.batch_id for decision in self._unresolved}
        gone = {name for name in lost if name in self._decided and self._decided[name].batch_id not in pending}
        if gone:
            self._excused |= gone
            self.restored.add(table)

    # What is left. --------------------------------------------------------------------------------------------------

    def undone(self, is_due: Callable[[int], bool]) -> list[str]:
        """Return the decided transactions of the batches that are due and that no reader sees."""
        return [
            name
            for name, at in self._decided.items()
            if is_due(at.batch_id) and name not in self._excused and not at.table.shows(name)
        ]

    def lost(self) -> list[int]:
        """Return the batches of which the clean-up job has removed a part."""
        return [at.batch_id for name, at in self._decided.items() if at.table.is_lost(name)]

    def undone_after_a_stop(self, last: int) -> list[str]:
        """Return what could have been committed of the batches through ``last``."""
        impossible = {at for name, at in self._decided.items() if at.table.is_lost(name) or at.table in self.restored}
        return [name for name in self.undone(lambda batch: batch <= last) if self._decided[name] not in impossible]

    def rows(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for table in self._tables.values():
            found += table.rows()
        return found

    def notes(self) -> dict[str, Made]:
        """Return the notes of transactions that are not decided."""
        return {
            name: made
            for table in self._tables.values()
            for name, made in table.notes.items()
            if name not in self._decided
        }

    def left(self) -> list[str]:
        return sorted(name for table in self._tables.values() for name in table.notes)


def _mark(version: Version) -> int:
    return -1 if version.mark is None else version.mark
