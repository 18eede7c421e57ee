"""The SQL sink: tasks write to staging tables, and one database transaction moves a decided batch into the table.

The sink requires nothing of a database except transactions:

- A task reads its staged records back, and refuses a record that the database has changed.
- Before the decision, the batch is moved in a database transaction that is rolled back. So a table that refuses the
  batch does so before the decision.
- A commit moves the batch and sets the mark in one database transaction, so a repeated commit finds the mark and does
  nothing. If the mark is older than the batch, a transaction without a row in ``twopc_transactions`` was rolled back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from twopc.bad_records import written_by_halves
from twopc.checks import CheckResult
from twopc.columns import check_names
from twopc.datasets import Dataset
from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    OutcomeUnknown,
    RecordRefused,
    Refused,
    Retriable,
    RoundAborted,
    SchemaMismatch,
    TransactionLost,
    TwoPhaseCommitError,
)
from twopc.failures import Lag, mapped, older_log
from twopc.keyed import KeyedSink, check_key
from twopc.retry import until_answered
from twopc.sink import WholeBatchSink
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import TransactionId
from twopc_sql.options import SqlOptions
from twopc_sql.records import check_kinds
from twopc_sql.sessions import (
    advice,
    connect_failed,
    engine,
    first_line,
    is_refusal,
    request_failed,
    staging_failed,
    trial_failed,
    write_failed,
)
from twopc_sql.tables import LONGEST_SCOPE, OPEN, PREPARED, RESERVED, Tables

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

_TABLE = "table"
"""The key in a committable's handle for the name of the table that the records were written for."""


class SqlTransaction(Transaction):
    """A live transaction.

    Attributes:
        columns: the sorted names of its records' columns; empty before the first record.
        staged: the name of the staging table for its records.
        deletes: the name of the staging table for the keys of rows to delete; empty before the first key.
        ordinal: the number of the next record or key.
    """

    def __init__(self, transaction_id: TransactionId) -> None:
        super().__init__(transaction_id)
        self.columns: list[str] = []
        self.staged = ""
        self.deletes = ""
        self.ordinal = 0


class SqlSink(WholeBatchSink[SqlTransaction], KeyedSink[SqlTransaction]):
    """Writes records to a database table, matching columns by name.

    Args:
        options: ``url``: SQLAlchemy's URL. ``table``: ``name`` or ``schema.name``. ``upsert_by``: the columns by which
            a record replaces a row. ``lock_timeout_s``: how long a task waits for a lock.

    Raises:
        ConfigurationError: an option is unknown, missing or wrong. The sink made no connection.
    """

    takes_repeated_keys = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = SqlOptions.parse(options)
        self._tables = Tables(self._options)
        self._lag = Lag()

    def __repr__(self) -> str:
        return f"SqlSink({self._options})"

    @property
    def key(self) -> tuple[str, ...]:
        return self._options.upsert_by

    # On the participant. ----------------------------------------------------------------------------------------

    def begin(self, transaction_id: TransactionId) -> SqlTransaction:
        with self._writing(transaction_id) as connection:
            self._tables.begin(connection, transaction_id.exact, self.transactional_ids.scope)
        return SqlTransaction(transaction_id)

    def write(self, transaction: SqlTransaction, batch: pa.RecordBatch) -> None:
        columns = sorted(batch.schema.names)
        if not transaction.columns:
            transaction.staged = self._staging_of(transaction.id, columns)
            transaction.columns = columns
        elif transaction.columns != columns:
            raise SchemaMismatch(f"a task's records have the columns {transaction.columns}, and then {columns}")
        self._stage(transaction, batch, staged=transaction.staged)

    def delete(self, transaction: SqlTransaction, keys: pa.RecordBatch) -> None:
        if not transaction.deletes:
            transaction.deletes = self._staging_of(transaction.id, self._options.upsert_by, deletes=True)
        self._stage(transaction, keys, deletes=transaction.deletes)

    def _stage(self, transaction: SqlTransaction, batch: pa.RecordBatch, **staged: str) -> None:
        """Record the staging table in the transaction's row, and write records or keys to it."""
        [table], name = staged.values(), transaction.id.exact
        with self._writing(transaction.id, OPEN) as connection:
            self._tables.change(connection, name, **staged)
            with mapped(DBAPIError, staging_failed, f"writing to {self._options}"):
                self._tables.stage(connection, table, name, transaction.ordinal, batch)
        transaction.ordinal += batch.num_rows

    def delete_valid(self, transaction: SqlTransaction, keys: pa.RecordBatch) -> Iterator[RecordRefused]:
        return written_by_halves(lambda some: self.delete(transaction, some), keys)

    def _staging_of(self, transaction_id: TransactionId, columns: Sequence[str], deletes: bool = False) -> str:
        """Create a staging table if it is missing, and return its name. Other tasks may create the same table at the
        same time."""
        for attempt in (1, 2):
            try:
                with self._connected(transaction_id.exact) as connection, connection.begin():
                    return self._tables.make_staging(connection, columns, deletes)
            except DBAPIError as error:
                if attempt == 2:
                    raise write_failed(error, f"the staging table of {self._options}") from error
        raise AssertionError

    def write_valid(self, transaction: SqlTransaction, batch: pa.RecordBatch) -> Iterator[RecordRefused]:
        return written_by_halves(lambda records: self.write(transaction, records), batch)

    def pre_commit(self, transaction: SqlTransaction) -> Committable:
        with self._writing(transaction.id, OPEN) as connection:
            self._tables.change(connection, transaction.id.exact, state=PREPARED)
        return Committable(transaction.id.exact, {_TABLE: self._options.qualified}, transaction.records)

    @contextlib.contextmanager
    def _writing(self, transaction_id: TransactionId, state: str | None = None) -> Iterator[sa.Connection]:
        """Open a database transaction for a ``with`` block. If ``state`` is given, first lock the transaction's row,
        which must be in that state."""
        name = transaction_id.exact
        failing = mapped(DBAPIError, write_failed, f"transaction {name} to {self._options}")
        with failing, self._connected(name) as connection, connection.begin():
            if state is not None:
                row = self._tables.locked(connection, [name]).get(name)
                if row is None or row.state != state:
                    raise RoundAborted(f"transaction {name} to {self._options} was rolled back while it was written")
            yield connection

    def _connected(self, name: str) -> sa.Connection:
        """Return a connection. Retries for up to the lock timeout, because only one process at a time can open a DuckDB
        file."""

        def connect() -> sa.Connection:
            with mapped(DBAPIError, connect_failed, f"connecting to write {name}"):
                return self._engine.connect()

        try:
            return until_answered(f"connect to write {name}", connect, patience_s=self._options.lock_timeout_s)
        except Retriable as error:
            raise RoundAborted(f"{error.message} The batch can be run again.") from error

    # On the coordinator. ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Create the tables that every query needs.

        Raises:
            ConfigurationError: the names of the transactions would be too long.
            LogMismatch: the mark is older than the last batch that the log records as committed.
            Retriable: the database does not respond.
        """
        scope = self.transactional_ids.scope
        if len(scope) > LONGEST_SCOPE:
            raise ConfigurationError(
                f"transaction names that start with {scope!r} are longer than the sink's tables allow: give the sink a"
                " shorter name"
            )
        with self._mapping(f"creating the sink's tables beside {self._options}"):
            self._tables.make(self._engine)
        self._require_last_batch()

    def _require_last_batch(self) -> None:
        """Raise an error if the database lacks the last committed batch. Upholds: no batch follows a lost one, for
        example after the database was restored while the query was stopped. A database without a mark passes, because
        the log's batches may have gone to another database: the log identifies the sink only by name."""
        last = self.last_committed_batch_id
        mark = None if last is None else self._mark()
        if last is not None and mark is not None and mark < last:
            mark = self._mark(lock=True)  # a replica, which may lag, refuses the lock
        if last is None or mark is None or mark >= last:
            self._lag.end()
            return
        marks, scope = self._tables.marks, self.transactional_ids.scope
        change = f"UPDATE {marks} SET batch_id = {last} WHERE scope = '{scope}'"  # noqa: S608  # for an operator
        raise self._lag.failure(
            f"{self._options} had batch {last} of this query, and {marks} shows batch {mark}",
            f"Restore what is lost; or write the missing records by other means, run {change}, and start again.",
        )

    def _mark(self, lock: bool = False) -> int | None:
        with self._requesting(f"comparing {self._options} with the commit log") as connection:
            return self._tables.mark(connection, self.transactional_ids.scope, lock)

    def validate(self, schema: pa.Schema) -> None:
        columns = self._columns()
        check_names(schema.names, columns, str(self._options))
        if reserved := {*schema.names} & {*RESERVED}:
            raise SchemaMismatch(f"the column name {reserved.pop()!r} is reserved: rename the column")
        for name in {*self._options.upsert_by} & {*schema.names}:
            if pa.types.is_floating(schema.field(name).type):
                raise ConfigurationError(
                    f"column {name!r} is one of 'upsert_by', and a floating-point number. The database takes 0.0 and"
                    " -0.0 for one key. Nothing was written. Cast it to a decimal or a text.",
                    option="upsert_by",
                )
        if not self._options.dialect.tries_other_kinds:
            check_kinds(schema, columns, str(self._options))
        self._try(schema.names)

    def _columns(self) -> dict[str, Any]:
        with self._mapping(f"looking at {self._options}"), self._engine.connect() as connection:
            if not sa.inspect(connection).has_table(self._options.table, self._options.schema):
                raise ConfigurationError(f"{self._options} does not exist. Create it; the sink does not create it.")
            return self._tables.columns(connection, self._options.table)

    def _try(self, columns: Sequence[str]) -> None:
        """Check that the database accepts the statement of a commit."""
        with self._mapping(f"looking at {self._options}"), self._engine.connect() as connection:
            faults = [*self._options.dialect.faults(connection, self._options.schema, self._options.table)]
            self._check_key(connection, columns)
            what_to_do = "Correct that."
            try:
                self._tables.try_without_rows(connection, columns)
            except DBAPIError as error:
                if not is_refusal(error):
                    raise
                faults.append(f"the database refuses the statement of a commit: {first_line(error)}")
                what_to_do = advice(error)
            if faults:
                raise ConfigurationError(f"{self._options} can't be written to: {'; '.join(faults)}. {what_to_do}")

    def _check_key(self, connection: sa.Connection, columns: Sequence[str]) -> None:
        if key := self._options.upsert_by:
            indexes, table = self._tables.unique_indexes(connection), str(self._options)
            check_key(key, columns, indexes, table, any_replaces=self._options.dialect.any_replaces)

    def validate_deletes(self) -> None:
        with self._mapping(f"looking at {self._options}"), self._engine.connect() as connection:
            try:
                self._tables.try_delete(connection)
            except DBAPIError as error:
                if not is_refusal(error):
                    raise
                raise ConfigurationError(
                    f"{self._options}: rows can't be deleted: {first_line(error)}. {advice(error)}"
                ) from error

    def check(self) -> Iterator[CheckResult]:
        yield CheckResult.passed(f"{self._options}: existence", f"columns {', '.join(self._columns())}")
        with self._mapping(f"looking at {self._options}"), self._engine.connect() as connection:
            columns = [*self._options.upsert_by] or self._tables.writable(connection)
        yield CheckResult.of("trial of a commit's statement", lambda: self._try(columns))

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:  # noqa: ARG002
        """Try to move the batch, in a database transaction that is then rolled back.

        Raises:
            LogMismatch: the database already has this batch, although the log has not decided it. The log is older than
                the database.
        """
        if not committables:
            return committables
        ids = self.transactional_ids
        batch_id = ids.round_of(ids.exact(committables[0].transaction_id)).batch_id
        what = f"batch {batch_id} of {len(committables)} transactions to {self._options} was tried before its decision"
        with self._mapping(what, trial_failed), self._engine.connect() as connection:
            mark = self._tables.mark(connection, self.transactional_ids.scope)
            if mark is not None and mark >= batch_id:
                raise older_log(f"the database of {self._options}", mark, batch_id)
            try:
                self._move(connection, committables, mark, what, is_trial=True)
            except OperatorRequired as error:  # nothing is decided
                raise RoundAborted(f"{error.message}") from error
            finally:
                connection.rollback()
        return committables

    def commit_batch(self, batch_id: int, committables: Sequence[Committable]) -> None:
        with self._requesting(f"committing batch {batch_id} to {self._options}") as connection:
            self._commit(connection, batch_id, committables)

    def _commit(self, connection: sa.Connection, batch_id: int, committables: Sequence[Committable]) -> None:
        """Make a batch visible in the given database transaction. Upholds: the mark, the records and the rows of their
        transactions change together, so a repeated or late commit finds either all of that or none of it."""
        scope = self.transactional_ids.scope
        mark = self._tables.mark(connection, scope, lock=True)
        if mark is not None and mark >= batch_id:
            return
        what = f"batch {batch_id} of {len(committables)} transactions to {self._options} is decided"
        try:
            self._move(connection, committables, mark, what)
        except OutcomeUnknown:  # there was no mark to lock, so another process may have committed the batch meanwhile
            if (mark := self._tables.mark(connection, scope)) is None or mark < batch_id:
                raise
            return
        self._tables.set_mark(connection, scope, batch_id, is_first=mark is None)

    def _move(
        self,
        connection: sa.Connection,
        committables: Sequence[Committable],
        mark: int | None,
        what: str,
        is_trial: bool = False,
    ) -> None:
        for table in {committable.handle.get(_TABLE) for committable in committables} - {self._options.qualified}:
            raise OperatorRequired(
                f"{what}, and was written for table {table!r}: set 'table' back and start again. When the batch is"
                " committed, the option can be changed."
            )
        names = [self.transactional_ids.exact(committable.transaction_id) for committable in committables]
        found = self._tables.locked(connection, names)
        if missing := [name for name in names if name not in found or found[name].state != PREPARED]:
            raise self._lost(missing, mark, what)
        records = sum(c.records or 0 for c in committables)
        moved, left = self._tables.move(connection, [*found.values()], is_trial)
        if left:
            again = f"{what}, and {left} rows that it deletes are there again: another session has written them, or a"
            again += " trigger keeps them. Nothing of the batch is visible."
            raise RoundAborted(f"{again} It can be run again.") if is_trial else Retriable(again)
        if moved < records and is_trial and self._tables.staged(connection, [*found.values()]) == records:
            raise Refused(
                f"{what}, and the table leaves out {records - moved} of its {records} records, by a trigger or a rule."
                " Filter such records in the query, or change the trigger. Nothing of the batch is visible."
            )
        if moved != records:
            raise TransactionLost(
                f"{what}, and of its {records} records only {moved} could be moved: another program has changed the"
                " staging tables, or a trigger of the table leaves records out. Nothing of the batch is visible. Write"
                " it by other means, and give it up with 'twopc abandon'."
            )
        self._tables.forget(connection, [*found.values()])

    def _lost(self, missing: Sequence[str], mark: int | None, what: str) -> TransactionLost | OutcomeUnknown:
        """Return the error for transactions that are not prepared, although the mark is older than their batch."""
        what += f", but {len(missing)} of them are not prepared, such as {missing[0]}"
        advice = (
            "If 'url' or 'table' was changed, set it back. If the database was restored from a backup, or rows of"
            " twopc_transactions were removed by hand: make sure that the batch's records are not in the table, write"
            " them by other means, give the batch up with 'twopc abandon', and start the query again."
        )
        if mark is not None:
            return TransactionLost(f"{what}. The newest batch in the table is {mark}. {advice}")
        return OutcomeUnknown(
            f"{what}, and twopc_batches has no mark of this query. It is the first batch, or the mark was removed."
            f" Check whether the batch's records are in the table. If they are, only give the batch up. {advice}"
        )

    @property
    def commit_group(self) -> Hashable | None:
        return self._options.url, self._options.lock_timeout_s

    @classmethod
    def commit_together(cls, batch_id: int, due: Mapping[Self, Sequence[Committable]]) -> None:
        """Move the batch to several tables in one database transaction."""
        first = next(iter(due))
        with first._requesting(f"committing batch {batch_id} to {len(due)} tables") as connection:  # noqa: SLF001
            for sink, committables in due.items():
                sink._commit(connection, batch_id, committables)  # noqa: SLF001  # its own class

    def datasets(self, committables: Sequence[Committable]) -> Sequence[Dataset] | None:  # noqa: ARG002
        dataset = self._options.dataset
        return None if dataset is None else [dataset]

    def abort(self, committable: Committable) -> None:
        name = self.transactional_ids.exact(committable.transaction_id)
        with self._requesting(f"rolling back transaction {name} to {self._options}") as connection:
            self._tables.forget(connection, [*self._tables.locked(connection, [name]).values()])

    def recover(self) -> Iterable[Committable]:
        with self._requesting(f"listing the transactions to {self._options}") as connection:
            found = self._tables.of_scope(connection, self.transactional_ids.scope)
        return [Committable(name, {}) for name in found if self.transactional_ids.owns_exact(name)]

    @property
    def _engine(self) -> sa.Engine:
        return engine(self._options)

    @contextlib.contextmanager
    def _requesting(self, what: str) -> Iterator[sa.Connection]:
        """Open a database transaction for a ``with`` block, and map its errors. ``what`` names the request in error
        messages."""
        with self._mapping(what), self._engine.begin() as connection:
            yield connection

    def _mapping(
        self, what: str, failed: Callable[[DBAPIError, str], TwoPhaseCommitError] = request_failed
    ) -> contextlib.AbstractContextManager[None]:
        return mapped(DBAPIError, failed, what)
