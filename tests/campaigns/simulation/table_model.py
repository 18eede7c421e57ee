"""A model of a lake table and its catalog, and a sink that commits a batch as one version of the table.

A version lists files and has the mark of each sink. The catalog accepts a version only if it follows the newest one
(compare and swap). The store of files and notes is durable, and so is the catalog. The sink follows the order of the
sinks for Iceberg and Delta; only the target system is simpler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tests.campaigns.simulation.world import Actor, Fault, Op, World
from twopc.errors import LogMismatch, OutcomeUnknown, Retriable, RoundAborted, TransactionLost
from twopc.sink import WholeBatchSink
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import TransactionId

if TYPE_CHECKING:
    from typing_extensions import Self

ATTEMPTS = 3
"""How often in a row another writer may be faster."""

MARK = "mark"
"""In the handle of a decided transaction: the table's mark before the decision."""


def _no_answer() -> Exception:
    return Retriable("the catalog did not answer")


def _not_written() -> Exception:
    return RoundAborted("a file or a note was not written")


_OTHERS = (Fault.FOREIGN_COMMIT, Fault.TABLE_RESTORED)

NOTE = Op("table: write a note", _not_written, changes=True)
WRITE = Op("table: write a file", _not_written, changes=True)
LOOK = Op("table: look for a note", _not_written)
DISCARD = Op("table: discard a file and its note", _not_written, changes=True)
LOAD = Op("table: load", _no_answer, Fault.SUSPENDED, *_OTHERS)
FILES = Op("table: look for files", _no_answer, Fault.SUSPENDED, *_OTHERS)
COMMIT = Op("table: commit", _no_answer, Fault.SUSPENDED, Fault.DELAYED, *_OTHERS, changes=True)
TOGETHER = Op(
    "tables: commit together", _no_answer, Fault.SUSPENDED, Fault.DELAYED, Fault.PARTLY, *_OTHERS, changes=True
)
SETTLE = Op("table: remove notes", _no_answer, Fault.DELAYED, changes=True)
LIST = Op("table: list notes", _no_answer)
REMOVE = Op("table: remove a file", _no_answer, Fault.DELAYED, changes=True)


class Conflict(Exception):
    """The version does not follow the newest one."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the table.

    Attributes:
        id: its id, which no other version ever has.
        files: its files. A transaction's file has the transaction's name.
        mark: the newest batch of the sink.
    """

    id: int = 0
    files: tuple[str, ...] = ()
    mark: int | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """Who wrote a note, and when."""

    by: Actor | None
    at: int


@dataclass(eq=False)
class Table:
    """A table that outlives every process. Each sink has its own.

    Attributes:
        history: all versions, newest last.
        files: file → its rows.
        notes: transaction → who wrote its note. A note makes recovery find the transaction.
        seen: transaction → when somebody last saw its file.
        cleaned: the files that the clean-up job has removed.
        acknowledged: the newest batch of which any process knows that it is in the table.
    """

    world: World
    history: list[Version] = field(default_factory=lambda: [Version()])
    files: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notes: dict[str, Made] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    cleaned: set[str] = field(default_factory=set)
    acknowledged: int = -1
    before_commit: Callable[[Table, Version], None] = lambda _table, _version: None
    on_change: Callable[[Table], None] = lambda _table: None
    may_be_restored: Callable[[Table], bool] = lambda _table: False
    on_restored: Callable[[Table, Collection[str]], None] = lambda _table, _lost: None

    def __post_init__(self) -> None:
        self._ids = 0

    @property
    def newest(self) -> Version:
        return self.history[-1]

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def shows(self, name: str) -> bool:
        """Whether a reader sees the transaction."""
        return name in self.newest.files and name in self.files

    def is_lost(self, name: str) -> bool:
        """Whether the clean-up job has removed the transaction's file."""
        return name in self.cleaned and name not in self.newest.files

    def rows(self) -> Counter[str]:
        """Return the rows that a reader sees, without those of other writers."""
        found: Counter[str] = Counter()
        for file in self.newest.files:
            found.update(self.files.get(file, ()))
        return Counter({row: times for row, times in found.items() if not row.startswith("foreign")})

    # Requests. ------------------------------------------------------------------------------------------------------

    def write_note(self, name: str, by: Actor | None) -> None:
        self.notes[name] = Made(by, self.world.steps)

    def write(self, name: str, rows: Sequence[str]) -> None:
        self.files[name] = tuple(rows)
        self.cleaned.discard(name)

    def load(self) -> Version:
        self._others()
        return self.newest

    def gone(self, names: Collection[str]) -> list[str]:
        """Return the files that are not there."""
        self._others()
        self.seen.update((name, self.world.steps) for name in names if name in self.files)
        return [name for name in names if name not in self.files]

    def commit(self, follows: Version | None, version: Version) -> None:
        """Make ``version`` the newest one, if ``follows`` is; without it, whatever the newest one is.

        Raises:
            Conflict: another version is.
        """
        self._others()
        if follows is not None and follows.id != self.newest.id:
            raise Conflict(f"version {self.newest.id} is the newest, not {follows.id}")
        self.before_commit(self, version)
        self._append(version)

    def remove_notes(self, names: Iterable[str]) -> None:
        for name in names:
            self.notes.pop(name, None)

    def remove(self, name: str) -> None:
        self.files.pop(name, None)
        self.on_change(self)

    def discard(self, name: str) -> None:
        self.remove(name)
        self.remove_notes([name])

    # Effects of others, and of time. --------------------------------------------------------------------------------

    def time_out(self) -> None:
        """Let the table's clean-up job remove every file that the newest version does not have, and commit that. So a
        request from before is refused."""
        unused = self.files.keys() - set(self.newest.files)
        if unused:
            for name in unused:
                del self.files[name]
            self.cleaned |= unused
            self._append(replace(self.newest, id=self.next_id()))

    def _append(self, version: Version) -> None:
        self.history.append(version)
        self.on_change(self)

    def _others(self) -> None:
        """Let another writer be faster, if that is the fault of this step."""
        match self.world.special:
            case Fault.FOREIGN_COMMIT:
                number = self.next_id()
                self.files[f"foreign-{number}"] = (f"foreign-{number}",)
                newest = self.newest
                self._append(replace(newest, id=number, files=(*newest.files, f"foreign-{number}")))
            case Fault.TABLE_RESTORED if self.may_be_restored(self):
                self._restore()

    def _restore(self) -> None:
        """Restore the backup of the version before the sink's newest batch. That version is the newest one again."""
        lost = self.newest
        self.history = [version for version in self.history if version.mark != lost.mark]
        self.on_restored(self, set(lost.files) - set(self.newest.files))
        self.on_change(self)


@dataclass(frozen=True, slots=True)
class Change:
    """A version for one table, and the version that it follows."""

    table: Table
    follows: Version
    version: Version


def change_together(changes: Sequence[Change]) -> None:
    """Commit to several tables by one request. The catalog compares all versions first, then makes one change after the
    other.

    Raises:
        Conflict: in one of the tables, another version is the newest. A part of the changes may have been made.
    """
    for change in changes:
        if change.follows.id != change.table.newest.id:
            raise Conflict(f"version {change.table.newest.id} is the newest, not {change.follows.id}")
    for number, change in enumerate(changes):
        if number and change.table.world.special is Fault.PARTLY:
            raise Conflict("another version came meanwhile")
        change.table.commit(change.follows, change.version)


class TableTransaction(Transaction):
    """The rows of one task attempt."""

    def __init__(self, transaction_id: TransactionId) -> None:
        super().__init__(transaction_id)
        self.rows: list[str] = []


class SimulatedTableSink(WholeBatchSink[TableTransaction]):
    """Writes each transaction to a file of a table, and commits a batch as one version with the batch's mark."""

    may_time_out = True  # the clean-up job removes the files of a batch that is not committed for long

    def __init__(self, table: Table, on_complete: Callable[[str, int], None], has_joint_commits: bool) -> None:
        self._table, self._on_complete, self._has_joint_commits = table, on_complete, has_joint_commits
        self._step = table.world.step

    # On the participant. --------------------------------------------------------------------------------------------

    def validate(self, schema: object) -> None:
        """Accept all: the simulation's records are not Arrow data."""

    def begin(self, transaction_id: TransactionId) -> TableTransaction:
        self._step(NOTE, self._table.write_note, transaction_id.exact, self._table.world.current)
        return TableTransaction(transaction_id)

    def write(self, transaction: TableTransaction, batch: Any) -> None:
        transaction.rows += batch.rows

    def pre_commit(self, transaction: TableTransaction) -> Committable:
        name = transaction.id.exact
        self._step(WRITE, self._table.write, name, transaction.rows)
        if not self._step(LOOK, self._table.notes.__contains__, name):
            raise RoundAborted(f"transaction {name} was rolled back while it was written")
        return Committable(name, {"file": name}, transaction.records)

    def discard(self, transaction: TableTransaction) -> None:
        self._step(DISCARD, self._table.discard, transaction.id.exact)

    # On the coordinator. --------------------------------------------------------------------------------------------

    def open(self) -> None:
        self._load()

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:
        """Veto what can't be committed, and note what the table's mark is before the decision."""
        if not committables:
            return committables
        batch_id = self.transactional_ids.round_of(committables[0].transaction_id).batch_id
        mark = self._load().mark
        if mark is not None and mark >= batch_id:
            raise LogMismatch(f"the table has batch {mark}, and the log is about to decide batch {batch_id}")
        if gone := self._gone(committables):
            raise RoundAborted(f"{gone} is gone")
        return [replace(each, handle={**each.handle, MARK: mark}) for each in committables]

    @property
    def commit_group(self) -> str | None:
        return "the catalog" if self._has_joint_commits else None

    @classmethod
    def commit_together(cls, batch_id: int, due: Mapping[Self, Sequence[Committable]]) -> None:
        for _ in range(ATTEMPTS):
            found = [sink._change(batch_id, committables) for sink, committables in due.items()]
            changes = [change for change in found if change is not None]
            if len(changes) < 2:
                return
            try:
                changes[0].table.world.step(TOGETHER, change_together, changes)
            except Conflict:
                continue
            return

    def _change(self, batch_id: int, committables: Sequence[Committable]) -> Change | None:
        """Return what a joint commit asks of the table; None if it is done, or if its own commit raises."""
        newest = self._load()
        try:
            if self._is_visible(newest, batch_id, committables) or self._gone(committables):
                return None
        except OutcomeUnknown:
            return None
        return Change(self._table, newest, self._next(newest, batch_id, committables))

    def commit_batch(self, batch_id: int, committables: Sequence[Committable]) -> None:
        for _ in range(ATTEMPTS):
            newest = self._load()
            if self._is_visible(newest, batch_id, committables):
                self._settle(batch_id, committables)
                return
            if gone := self._gone(committables):
                raise TransactionLost(f"the clean-up job has removed {gone}")
            try:
                self._propose(newest, batch_id, committables)
            except Conflict:
                continue
            self._settle(batch_id, committables)
            return
        raise Retriable("other writers were faster each time")

    def _is_visible(self, newest: Version, batch_id: int, committables: Sequence[Committable]) -> bool:
        """Whether the table has the batch. Raises OutcomeUnknown if its mark is older than before the decision."""
        if newest.mark is not None and newest.mark >= batch_id:
            return True
        before = mark_before(committables)
        if before is not None and (newest.mark is None or newest.mark < before):
            raise OutcomeUnknown(f"the table's mark was {before} and is {newest.mark}: it was restored from a backup")
        return False

    def _propose(self, newest: Version, batch_id: int, committables: Sequence[Committable]) -> None:
        """Ask once for the version that follows ``newest``."""
        self._ask(newest, self._next(newest, batch_id, committables))

    def _next(self, newest: Version, batch_id: int, committables: Sequence[Committable]) -> Version:
        files = (*newest.files, *(each.transaction_id for each in committables))
        return Version(self._table.next_id(), files, batch_id)

    def _ask(self, follows: Version | None, version: Version) -> None:
        self._step(COMMIT, self._table.commit, follows, version)

    def _settle(self, batch_id: int, committables: Sequence[Committable]) -> None:
        """The table has the batch: let go of what recovery would need."""
        self._table.acknowledged = max(self._table.acknowledged, batch_id)
        self._step(SETTLE, self._table.remove_notes, [each.transaction_id for each in committables])

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:
        self._on_complete(self.transactional_ids.sink, batch_id)

    def abort(self, committable: Committable) -> None:
        self._step(REMOVE, self._table.remove, committable.transaction_id)
        self._step(SETTLE, self._table.remove_notes, [committable.transaction_id])

    def recover(self) -> Iterable[Committable]:
        names = self._step(LIST, lambda: sorted(self._table.notes))
        return [Committable(name, {}) for name in names if self.transactional_ids.owns_exact(name)]

    # Requests. ------------------------------------------------------------------------------------------------------

    def _load(self) -> Version:
        return self._step(LOAD, self._table.load)

    def _gone(self, committables: Sequence[Committable]) -> list[str]:
        return self._step(FILES, self._table.gone, [each.transaction_id for each in committables])


def mark_before(committables: Iterable[Committable]) -> int | None:
    """Return the table's mark before the decision."""
    return max((mark for each in committables if isinstance(mark := each.handle.get(MARK), int)), default=None)


def tables_of(world: World, names: Iterable[str]) -> Mapping[str, Table]:
    """Return the table of each sink that has one."""
    return {name: Table(world) for name in names if name.endswith("t")}
