"""A model of a database with keyed tables, below the real sink for SQL.

The sink's statements are replaced by the same changes in memory. A database transaction locks the rows that it names,
and takes effect at its commit. The server ends a session that holds a lock for which another waits, if its process does
not run.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy.exc import IntegrityError, OperationalError

from tests.campaigns.simulation.records import Records
from tests.campaigns.simulation.table_model import Made
from tests.campaigns.simulation.world import Actor, Fault, Op, World
from twopc.failures import Lag
from twopc.transaction import Committable
from twopc_sql.options import SqlOptions
from twopc_sql.sink import SqlSink, SqlTransaction
from twopc_sql.tables import OPEN


def _no_answer() -> Exception:
    return OperationalError("", None, sqlite3.OperationalError("no answer"), connection_invalidated=True)


LOOK = Op("database: read", _no_answer)
LOCK = Op("database: lock rows", _no_answer, Fault.SUSPENDED)
COMMIT = Op("database: commit", _no_answer, Fault.SUSPENDED, Fault.DELAYED, changes=True)

_COMES_LATER = (Fault.DELAYED, Fault.DIES_IN_FLIGHT, Fault.MACHINE_DIES_IN_FLIGHT)


class Database:
    """A server that outlives every process, with the rows that are locked."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.locks: dict[str, Session] = {}

    def time_out(self) -> None:
        """End the sessions that hold locks."""
        for session in {*self.locks.values()}:
            session.end()


class Session:
    """A connection of a process, and its database transaction."""

    def __init__(self, database: Database) -> None:
        self._database, self.world = database, database.world
        self.process: Actor | None = self.world.current
        self._effects: list[Callable[[], object]] = []
        self._has_ended = self._commit_is_under_way = False

    def look(self, op: Op, look: Callable[[], Any]) -> Any:
        return self.world.step(op, self._in_time, look)

    def lock(self, rows: Collection[str]) -> None:
        """Lock rows until the database transaction ends. Waits for the processes that hold them, if these run."""
        if any(holder._is_waited_for for holder in self._holders(rows)):
            self.world.wait(lambda: not any(holder._is_waited_for for holder in self._holders(rows)))
        for holder in self._holders(rows):
            holder.end()
        self.look(LOCK, lambda: self._locked(rows))

    def change(self, effect: Callable[[], object]) -> None:
        """Let ``effect`` happen at the commit."""
        self._effects.append(effect)

    @contextlib.contextmanager
    def begin(self) -> Iterator[Session]:
        try:
            yield self
        except BaseException:
            self.rollback()
            raise
        self._commit()

    def rollback(self) -> None:
        self._effects.clear()
        self._unlock()

    def end(self) -> None:
        """End the session, as the server does."""
        self._has_ended = True
        self.rollback()

    def close(self) -> None:
        if not self._commit_is_under_way:
            self.end()

    def _commit(self) -> None:
        if not self._effects:
            return
        number = self.world.steps
        try:
            self.world.step(COMMIT, self._in_time, self._take_effect)
        finally:
            self._commit_is_under_way = self.world.happened.get(number) in _COMES_LATER

    def _take_effect(self) -> None:
        self._commit_is_under_way = False
        for effect in self._effects:
            effect()
        self.rollback()

    def _in_time(self, effect: Callable[[], Any]) -> Any:
        if self._has_ended:
            raise _no_answer()
        return effect()

    def _holders(self, rows: Iterable[str]) -> list[Session]:
        held = self._database.locks
        return [held[row] for row in rows if held.get(row, self) is not self]

    @property
    def _is_waited_for(self) -> bool:
        return self._commit_is_under_way or (self.process is not None and self.world.alive(self.process))

    def _locked(self, rows: Iterable[str]) -> None:
        if self._holders(rows):  # another was faster
            raise _no_answer()
        self._database.locks.update((row, self) for row in rows)

    def _unlock(self) -> None:
        held = self._database.locks
        for row in [row for row, holder in held.items() if holder is self]:
            del held[row]


class Engine:
    """Replaces SQLAlchemy's engine."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextlib.contextmanager
    def connect(self) -> Iterator[Session]:
        session = Session(self._database)
        try:
            yield session
        finally:
            session.close()

    @contextlib.contextmanager
    def begin(self) -> Iterator[Session]:
        with self.connect() as session, session.begin():
            yield session


@dataclass(frozen=True, slots=True)
class Row:
    """The row of a transaction that is not committed, with its staged changes."""

    name: str
    made: Made
    state: str = OPEN
    changes: tuple[str, ...] = ()


@dataclass(eq=False)
class KeyedTable:
    """A table in a database, with the sink's own tables. Each sink has its own.

    Attributes:
        name: the sink's name.
        values: key → the offset of the record that gave it its value.
        transactions: the rows of the transactions that are not committed.
        mark: the newest batch of the sink.
        applied: every transaction that was committed.
        seen: transaction → when somebody last saw its row.
    """

    name: str
    database: Database
    values: dict[str, int] = field(default_factory=dict)
    transactions: dict[str, Row] = field(default_factory=dict)
    mark: int | None = None
    applied: set[str] = field(default_factory=set)
    seen: dict[str, int] = field(default_factory=dict)
    before_commit: Callable[[KeyedTable, Collection[str]], None] = lambda _table, _names: None
    on_change: Callable[[KeyedTable, Collection[str]], None] = lambda _table, _names: None
    before_forgotten: Callable[[KeyedTable, Collection[str]], None] = lambda _table, _names: None

    @property
    def notes(self) -> dict[str, Made]:
        """The transactions that are not committed → who began each."""
        return {name: row.made for name, row in self.transactions.items()}

    def shows(self, name: str) -> bool:
        return name in self.applied

    def is_lost(self, _: str) -> bool:
        return False  # a database never rolls back what is prepared

    def rows(self) -> Counter[str]:
        """Return the rows that a reader sees."""
        return Counter(f"{self.name}/{key}={offset}" for key, offset in self.values.items())

    def time_out(self) -> None:
        self.database.time_out()

    def apply(self, names: Collection[str], changes: Iterable[str]) -> None:
        """Replace and delete rows, as a batch asks."""
        self.before_commit(self, names)
        for change in changes:
            key, is_upsert, offset = change.rpartition("/")[2].partition("=")
            if is_upsert:
                self.values[key] = int(offset)
            else:
                self.values.pop(key, None)
        self.applied.update(names)
        self.on_change(self, names)

    def forget(self, names: Collection[str]) -> None:
        self.before_forgotten(self, names)
        for name in names:
            self.transactions.pop(name, None)


class ModelTables:
    """The sink's statements, on the model. Replaces ``Tables``."""

    marks = "twopc_batches"

    def __init__(self, table: KeyedTable) -> None:
        self.table = table
        self._mark = f"the mark of {table.name}"

    def make(self, engine: Engine) -> None:
        """Do nothing: the tables are there."""

    def make_staging(self, session: Session, columns: Sequence[str], deletes: bool) -> str:
        return "deletes" if deletes else "staged"

    def begin(self, session: Session, name: str, _scope: str) -> None:
        def insert() -> None:
            self.table.transactions[name] = Row(name, Made(session.process, session.world.steps))

        session.change(insert)

    def locked(self, session: Session, names: Sequence[str]) -> dict[str, Row]:
        session.lock([name for name in names if name in self.table.transactions])
        found = {name: row for name in names if (row := self.table.transactions.get(name))}
        self.table.seen.update(dict.fromkeys(found, session.world.steps))
        return found

    def change(self, session: Session, name: str, **values: str) -> None:
        if "state" in values:
            session.change(lambda: self._replace(name, state=values["state"]))

    def stage(self, session: Session, _staged: str, name: str, _first: int, batch: Records) -> None:
        session.change(lambda: self._replace(name, changes=(*self.table.transactions[name].changes, *batch.rows)))

    def _replace(self, name: str, **values: Any) -> None:
        self.table.transactions[name] = replace(self.table.transactions[name], **values)

    def of_scope(self, session: Session, _scope: str) -> list[str]:
        return session.look(LOOK, lambda: sorted(self.table.transactions))  # type: ignore[no-any-return]  # by a step

    def mark(self, session: Session, _scope: str, lock: bool = False) -> int | None:
        if lock and self.table.mark is not None:
            session.lock([self._mark])
            return self.table.mark
        return session.look(LOOK, lambda: self.table.mark)  # type: ignore[no-any-return]  # by a step

    def set_mark(self, session: Session, _scope: str, batch_id: int, is_first: bool) -> None:
        def write() -> None:
            if is_first and self.table.mark is not None:
                raise IntegrityError("", None, sqlite3.IntegrityError("UNIQUE constraint failed"))
            self.table.mark = batch_id

        session.change(write)

    def move(self, session: Session, rows: Sequence[Row], _is_trial: bool) -> tuple[int, int]:
        changes = [change for row in rows for change in row.changes]
        session.change(lambda: self.table.apply([row.name for row in rows], changes))
        return len(changes), 0

    def forget(self, session: Session, rows: Sequence[Row]) -> None:
        if rows:
            session.change(lambda: self.table.forget([row.name for row in rows]))


_OPTIONS = SqlOptions.parse({"url": "sqlite:////simulated.db", "table": "accounts", "upsert_by": "id"})


class SimulatedSqlSink(SqlSink):
    """The real sink, connected to the model."""

    def __init__(self, table: KeyedTable, on_complete: Callable[[str, int], None]) -> None:
        self._options, self._lag = _OPTIONS, Lag()
        self._tables = ModelTables(table)  # type: ignore[assignment]
        self._to_model, self._on_complete = Engine(table.database), on_complete

    @property
    def _engine(self) -> Any:
        return self._to_model

    def validate(self, schema: object) -> None:
        """Accept all: the simulation's records are not Arrow data."""

    def write(self, transaction: SqlTransaction, batch: Any) -> None:
        """Write the upserts of a batch, and the deletes."""
        upserts, deletes = batch.divided()
        if upserts.rows:
            super().write(transaction, upserts)
        if deletes.rows:
            self.delete(transaction, deletes)

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:
        self._on_complete(self.transactional_ids.sink, batch_id)


def keyed_tables(world: World, names: Iterable[str]) -> Mapping[str, KeyedTable]:
    """Return the table of each sink that has a keyed one. One database has all."""
    database = Database(world)
    return {name: KeyedTable(name, database) for name in names if name.endswith("d")}
