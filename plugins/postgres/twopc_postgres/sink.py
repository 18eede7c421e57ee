"""The PostgreSQL sink: one transaction per task attempt, prepared by its task and committed by the coordinator.

``PREPARE TRANSACTION`` makes a transaction durable under a name and detaches it from its session. Any session of the
same role and database can then commit it or roll it back. PostgreSQL forgets the name of a transaction that has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa

from twopc.bad_records import written_by_halves
from twopc.checks import CheckResult
from twopc.datasets import Dataset
from twopc.errors import (
    ConfigurationError,
    RecordRefused,
    RoundAborted,
    TwoPhaseCommitError,
)
from twopc.keyed import KeyedSink
from twopc.open_transactions import OpenTransactions
from twopc.prepared import marker_missing, require_prepared, undone_if_refused
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import Round, TransactionId
from twopc_postgres import tables
from twopc_postgres.columns import Column, UniqueIndex, check_columns, check_types, check_upsert, made_up
from twopc_postgres.options import PostgresOptions
from twopc_postgres.outcomes import commit_failed, request_failed, write_failed
from twopc_postgres.sessions import Connection, connect, release, session, set_up
from twopc_postgres.tables import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import sql

LONGEST_SCOPE = 120
"""The longest scope of a sink, in bytes. PostgreSQL limits a prepared transaction's name to 199 bytes; the rest is for
the five numbers of the name."""

_SCHEMA = "schema"
"""The part of a committable's handle that says where the marker is."""


class PostgresTransaction(Transaction):
    """A live transaction and its connection.

    Attributes:
        upsert_table: the table that collects records that replace rows; None if records go directly to the table.
        schema: the records' columns; empty before the first write.
        columns: the table's columns, by name. They keep their types until the transaction ends. Empty before the first
            record or delete.
        ordinal: the number of the next record.
        deletes: the number of keys whose rows are deleted.
        is_partial: whether a write has failed, so that the transaction may have only a part of its records.
    """

    def __init__(self, transaction_id: TransactionId, connection: Connection) -> None:
        super().__init__(transaction_id)
        self.connection = connection
        self.upsert_table: sql.Identifier | None = None
        self.schema = pa.schema([])
        self.columns: dict[str, Column] = {}
        self.ordinal = 0
        self.deletes = 0
        self.is_partial = False

    def written(self) -> list[Column]:
        """Return the columns that the records have."""
        return [self.columns[name] for name in self.schema.names]


class PostgresSink(KeyedSink[PostgresTransaction]):
    """Writes records to a table. A record's values go into the columns of the same names.

    Args:
        options: ``conninfo``: libpq's connection string. ``table``: ``name`` or ``schema.name``. ``upsert_by``: the
            columns by which a record replaces a row. ``lock_timeout_s``: how long a task waits for a lock.

    Raises:
        ConfigurationError: an option is unknown, missing or wrong. The sink made no connection.
    """

    takes_repeated_keys = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = PostgresOptions.parse(options)
        self._table = Table(self._options)

    def __repr__(self) -> str:
        return f"PostgresSink({self._options})"

    @property
    def key(self) -> tuple[str, ...]:
        return self._options.upsert_by

    # On the participant. ----------------------------------------------------------------------------------------

    def begin(self, transaction_id: TransactionId) -> PostgresTransaction:
        with self._writing(transaction_id):
            transaction = PostgresTransaction(transaction_id, connect(self._options.conninfo))
        try:
            with self._writing(transaction_id):
                transaction.connection.tpc_begin(transaction_id.exact)
                set_up(transaction.connection, self._options.lock_timeout_s)
                if self._options.upsert_by:
                    transaction.upsert_table = self._table.make_upsert_table(transaction.connection, transaction_id)
        except BaseException:
            transaction.connection.close()
            raise
        return transaction

    def write(self, transaction: PostgresTransaction, batch: pa.RecordBatch) -> None:
        self._require_columns(transaction, batch.schema)
        upsert_table = transaction.upsert_table
        with self._changing(transaction):
            self._table.copy(transaction.connection, batch, transaction.columns, upsert_table, transaction.ordinal)
            transaction.ordinal += batch.num_rows

    def _require_columns(self, transaction: PostgresTransaction, schema: pa.Schema) -> None:
        """Check the table, which may have been changed since the schema was validated, and keep it as it is until the
        transaction ends."""
        if schema == transaction.schema:
            return
        columns = self._kept_columns(transaction)
        check_columns(schema, columns, str(self._options))
        transaction.schema = schema

    def _kept_columns(self, transaction: PostgresTransaction) -> list[Column]:
        with self._writing(transaction.id):
            self._table.keep(transaction.connection)
            columns = self._table.columns(transaction.connection)
        transaction.columns = {column.name: column for column in columns}
        return columns

    def delete(self, transaction: PostgresTransaction, keys: pa.RecordBatch) -> None:
        assert transaction.upsert_table is not None
        columns = [*transaction.columns.values()] or self._kept_columns(transaction)
        check_types(keys.schema, columns, str(self._options))
        with self._changing(transaction):
            self._table.copy_deletes(
                transaction.connection, keys, transaction.columns, transaction.upsert_table, transaction.deletes
            )
            transaction.deletes += keys.num_rows

    def delete_valid(self, transaction: PostgresTransaction, keys: pa.RecordBatch) -> Iterator[RecordRefused]:
        if not transaction.columns:
            self._kept_columns(transaction)
        return written_by_halves(lambda some: self._delete_or_undo(transaction, some), keys)

    def write_valid(self, transaction: PostgresTransaction, batch: pa.RecordBatch) -> Iterator[RecordRefused]:
        self._require_columns(transaction, batch.schema)  # a savepoint would give the lock back
        if transaction.upsert_table is not None and not transaction.ordinal:
            with self._writing(transaction.id):
                self._table.index_upsert_table(transaction.connection, transaction.upsert_table)
        return written_by_halves(lambda records: self._write_or_undo(transaction, records), batch)

    def _write_or_undo(self, transaction: PostgresTransaction, batch: pa.RecordBatch) -> None:
        ordinals = range(transaction.ordinal, transaction.ordinal + batch.num_rows)
        self._do_or_undo(
            transaction,
            lambda: self.write(transaction, batch),
            lambda made: self._table.merge(transaction.connection, made, transaction.written(), ordinals),
        )

    def _delete_or_undo(self, transaction: PostgresTransaction, keys: pa.RecordBatch) -> None:
        before = -transaction.deletes
        self._do_or_undo(
            transaction,
            lambda: self.delete(transaction, keys),
            lambda upsert_table: self._table.delete(transaction.connection, upsert_table, before),
        )

    def _do_or_undo(
        self, transaction: PostgresTransaction, do: Callable[[], None], try_out: Callable[[sql.Identifier], None]
    ) -> None:
        """Have records or keys written, and undone if the table refuses them. ``try_out`` moves them on from the upsert
        table, which has none of the table's rules."""

        def execute(statement: str) -> None:
            with self._writing(transaction.id):
                transaction.connection.execute(statement.encode())

        try:
            with undone_if_refused(execute):
                do()
                if transaction.upsert_table is not None:
                    execute("SAVEPOINT twopc_tried")
                    with self._writing(transaction.id):
                        try_out(transaction.upsert_table)
                    execute("ROLLBACK TO SAVEPOINT twopc_tried")
        except RecordRefused:
            transaction.is_partial = False
            raise

    def pre_commit(self, transaction: PostgresTransaction) -> Committable:
        connection = transaction.connection
        if transaction.is_partial:  # the transaction may be as good as any to the server
            raise RoundAborted(
                f"transaction {transaction.id.exact} to {self._options} lacks the records of a failed write"
            )
        with self._writing(transaction.id):
            if transaction.upsert_table is not None:
                if transaction.deletes:
                    self._table.delete(connection, transaction.upsert_table)
                if transaction.schema.names:
                    self._table.merge(connection, transaction.upsert_table, transaction.written())
                self._table.drop(connection, transaction.upsert_table)
            # This statement fails in a failed transaction. PREPARE would roll the transaction back and report success.
            self._table.mark(connection, transaction.id, self.transactional_ids.scope)
            connection.tpc_prepare()
        connection.close()
        if connection.unreplicated:
            raise RoundAborted(
                f"transaction {transaction.id.exact} to {self._options} is prepared, but perhaps not on the"
                f" standbys: {connection.unreplicated}. The batch can be run again."
            )
        return Committable(transaction.id.exact, {_SCHEMA: self._options.schema}, transaction.records)

    @contextlib.contextmanager
    def _changing(self, transaction: PostgresTransaction) -> Iterator[None]:
        """Note that the transaction may lack records unless a change of its rows succeeds."""
        transaction.is_partial = True
        with self._writing(transaction.id):
            yield
        transaction.is_partial = False

    @contextlib.contextmanager
    def _writing(self, transaction_id: TransactionId) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise write_failed(error, f"transaction {transaction_id.exact} to {self._options}") from error

    # On the coordinator. ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make sure that the server can prepare transactions, and create the marker table.

        Raises:
            ConfigurationError: prepared transactions are disabled on the server, or the names would be too long.
            Retriable: the server does not answer.
        """
        scope = self.transactional_ids.scope
        if len(scope) > LONGEST_SCOPE:
            raise ConfigurationError(
                f"transaction names that start with {scope!r} exceed PostgreSQL's limit of 199 bytes: give the sink a"
                " shorter name"
            )
        with self._requesting(f"opening {self._options}") as connection:
            self._require_prepared(connection)
            self._table.make_markers(connection)

    def _require_prepared(self, connection: Connection) -> None:
        if tables.room_for_prepared(connection) == 0:
            raise ConfigurationError(
                f"the server of {self._options} can't prepare transactions: its max_prepared_transactions is 0,"
                " which is PostgreSQL's default. Set it to at least twice the number of tasks of a batch, such as 400,"
                " and restart the server. Nothing was written."
            )

    def validate(self, schema: pa.Schema) -> None:
        with self._requesting(f"reading the definition of {self._options}") as connection:
            columns, unique, _ = self._definition(connection)
        check_columns(schema, columns, str(self._options))
        check_upsert(self._options.upsert_by, schema.names, columns, unique, str(self._options))

    def validate_deletes(self) -> None:
        with self._requesting(f"reading the definition of {self._options}") as connection:
            self._definition(connection)
            programs = self._table.programs(connection, deletes=True)
            may_delete = self._table.may_delete(connection)
        if not may_delete:
            raise ConfigurationError(f"{self._options}: the role may not delete rows. GRANT DELETE on the table to it.")
        if programs.rules:
            raise ConfigurationError(
                f"{self._options} has the rules {', '.join(programs.rules)} ON DELETE, which could keep rows. Nothing"
                " was written. Replace them by triggers."
            )
        if programs.has_policies:
            raise ConfigurationError(
                f"{self._options} has row level security, which hides rows from a DELETE without an error. Nothing was"
                " written. Use a role with BYPASSRLS."
            )

    def _definition(self, connection: Connection) -> tuple[list[Column], list[UniqueIndex], Sequence[str]]:
        """Return the table's columns, its unique indexes, and the names of its row triggers."""
        columns = self._table.columns(connection)
        if not columns:
            raise ConfigurationError(f"{self._options} does not exist. Create it; the sink does not create tables.")
        if unlogged := self._table.unlogged(connection):
            raise ConfigurationError(
                f"{self._options}: table {unlogged} is UNLOGGED, so PostgreSQL empties it after a crash, including"
                f" prepared records. Nothing was written. Run ALTER TABLE {unlogged} SET LOGGED."
            )
        programs = self._table.programs(connection)
        if programs.rules:
            raise ConfigurationError(
                f"{self._options} has the rules {', '.join(programs.rules)}, which COPY does not apply and ON CONFLICT"
                " does not allow. Nothing was written. Replace them by triggers."
            )
        if programs.has_policies and not self._options.upsert_by:
            raise ConfigurationError(
                f"{self._options} has row level security, under which PostgreSQL allows no COPY. Nothing was written."
                " Use 'upsert_by', the backend 'sql', or a role with BYPASSRLS."
            )
        return columns, self._table.unique_indexes(connection), programs.triggers

    def check(self) -> Iterator[CheckResult]:
        with self._requesting(f"reading the definition of {self._options}") as connection:
            self._require_prepared(connection)
            yield CheckResult.passed("max_prepared_transactions", str(tables.room_for_prepared(connection)))
            columns, unique, triggers = self._definition(connection)
            names = [column.name for column in columns if not column.is_generated]
            check_upsert(self._options.upsert_by, names, columns, unique, str(self._options))
            yield CheckResult.passed(f"{self._options}: existence", f"columns {', '.join(names)}")
            yield tables.durability(connection)
            yield self._check_prepared(tables.all_prepared(connection))
        yield CheckResult.of("trial transaction", lambda: self._try(names))
        if triggers:
            yield self._check_triggers(columns, triggers)

    def _check_prepared(self, found: Mapping[str, float]) -> CheckResult:
        check = "prepared transactions"
        if not found:
            return CheckResult.passed(check, "none")
        own, oldest_s = sum(map(self.transactional_ids.owns_exact, found)), max(found.values())
        return CheckResult.warning(
            check,
            f"{own} of this query, {len(found) - own} of others, the oldest {oldest_s:.0f} s old: they hold locks,"
            " and keep VACUUM from removing rows",
            "start their queries again, or look into pg_prepared_xacts",
        )

    def _check_triggers(self, columns: Sequence[Column], triggers: Sequence[str]) -> CheckResult:
        """Try the row triggers by a made-up row: some of what they may do fails only when it is prepared."""
        check = f"{self._options}: row triggers {', '.join(triggers)}"
        names, row = made_up(columns)
        try:
            self._try(names, row)
        except (RecordRefused, RoundAborted) as error:
            untried = f"not tried, as the table does not take a made-up row: {error.message}"
            return CheckResult.warning(check, untried, "let no trigger use NOTIFY or a temporary table")
        except TwoPhaseCommitError as error:
            return CheckResult.failed_by(check, error)
        return CheckResult.passed(check, "tried with a made-up row")

    def _try(self, names: Sequence[str], *rows: Sequence[Any]) -> None:
        """Prepare a transaction and roll it back. Raises the same errors as a task's calls."""
        transaction = self.begin(self.transactional_ids.allocate(Round(0, 0), partition=0))
        try:
            with self._writing(transaction.id):
                self._table.make_markers(transaction.connection)
                self._table.keep(transaction.connection)
                written = self._table.copy_rows(transaction.connection, names, rows, transaction.upsert_table)
                self._table.require_all(transaction.connection, written, len(rows))
                transaction.columns = {column.name: column for column in self._table.columns(transaction.connection)}
            transaction.schema = pa.schema([(name, pa.string()) for name in names])
            self.pre_commit(transaction)
        finally:
            self.discard(transaction)
        with self._requesting(f"committing an empty transaction on the server of {self._options}") as connection:
            tables.prove_current(connection)

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:  # noqa: ARG002
        """Veto the batch if a transaction is no longer prepared."""
        if committables:
            with self._requesting(f"listing the transactions prepared for {self._options}") as connection:
                found = {*tables.prepared(connection, self.transactional_ids.scope)}
            require_prepared(committables, found, str(self._options))
        return committables

    def commit(self, committable: Committable) -> None:
        name = self.transactional_ids.exact(committable.transaction_id)
        what = f"transaction {name} ({committable.records} records) to {self._options} is decided"
        with self._requesting(what, commit_failed) as connection:
            try:
                connection.tpc_commit(name)
                if not connection.waits:
                    tables.prove_current(connection)
            except psycopg.errors.UndefinedObject:
                tables.prove_current(connection)
                table = self._table_of(committable)
                if not table.is_committed(connection, name):
                    ids = self.transactional_ids
                    has_older = table.has_markers(connection, ids.scope, ids.round_of(name).batch_id)
                    raise marker_missing(what, has_older, "'conninfo'", "ROLLBACK PREPARED") from None

    def _table_of(self, committable: Committable) -> Table:
        """Return the table that has the transaction's marker: the option may name another one since."""
        schema = committable.handle.get(_SCHEMA)
        return Table(replace(self._options, schema=schema)) if isinstance(schema, str) else self._table

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:  # noqa: ARG002
        """Remove the markers of the previous batches. This batch is decided, so the log records those as complete, and
        they are not committed again."""
        with self._requesting(f"removing the markers of batches before {batch_id} for {self._options}") as connection:
            self._table.prune_markers(connection, self.transactional_ids.scope, batch_id)

    def datasets(self, committables: Sequence[Committable]) -> Sequence[Dataset] | None:  # noqa: ARG002
        dataset = self._options.dataset
        return None if dataset is None else [dataset]

    def discard(self, transaction: PostgresTransaction) -> None:
        transaction.connection.close()  # the server rolls back a transaction that is not prepared
        super().discard(transaction)

    def abort(self, committable: Committable) -> None:
        name = self.transactional_ids.exact(committable.transaction_id)
        gone = contextlib.suppress(psycopg.errors.UndefinedObject)
        with self._requesting(f"rolling back transaction {name}") as connection, gone:
            connection.tpc_rollback(name)

    def recover(self) -> Iterable[Committable]:
        return [Committable(name, {}) for name in self._prepared()]

    def open_transactions(self) -> OpenTransactions:
        ages_s = self._prepared().values()
        return OpenTransactions(len(ages_s), max(ages_s, default=0.0))

    def _prepared(self) -> dict[str, float]:
        """Return this log's prepared transactions → their ages in seconds."""
        with self._requesting(f"listing the transactions prepared for {self._options}") as connection:
            found = tables.prepared(connection, self.transactional_ids.scope)
        return {name: age_s for name, age_s in found.items() if self.transactional_ids.owns_exact(name)}

    def close(self) -> None:
        release(self._options.conninfo)

    @contextlib.contextmanager
    def _requesting(
        self, what: str, failed: Callable[[psycopg.Error, str], TwoPhaseCommitError] = request_failed
    ) -> Iterator[Connection]:
        """Lend a connection, and map its errors. ``what`` names the request."""
        try:
            with session(self._options.conninfo) as connection:
                yield connection
        except psycopg.Error as error:
            raise failed(error, what) from error
