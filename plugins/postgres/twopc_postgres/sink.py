"""The PostgreSQL sink: one transaction per task attempt, prepared by its task and committed by the coordinator.

``PREPARE TRANSACTION`` makes a transaction durable under a name and detaches it from its session. Any session of the
same role and database can then commit it or roll it back. PostgreSQL forgets the name of a transaction that has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa

from twopc.checks import CheckResult
from twopc.columns import check_columns
from twopc.errors import ConfigurationError, RecordRefused, RoundAborted, TwoPhaseCommitError
from twopc.keyed import UniqueIndex
from twopc.prepared import Change, PreparedSink, PreparedTransaction
from twopc.sink import OpenTransactions
from twopc.transactional_ids import TransactionId
from twopc_postgres import server
from twopc_postgres.columns import EXACT_ENCODINGS, Column, check_upsert, made_up
from twopc_postgres.options import PostgresOptions
from twopc_postgres.outcomes import commit_failed, request_failed, write_failed
from twopc_postgres.sessions import Connection, connect, release, session, set_up
from twopc_postgres.tables import Table

if TYPE_CHECKING:
    from psycopg import sql


class PostgresTransaction(PreparedTransaction[Connection, Column]):
    """A live transaction and its connection.

    Attributes:
        upsert_table: the table that collects records that replace rows; None if records go directly to the table.
        ordinal: the number of the next record.
        deletes: the number of keys whose rows are deleted.
    """

    def __init__(self, transaction_id: TransactionId, connection: Connection) -> None:
        super().__init__(transaction_id, connection)
        self.upsert_table: sql.Identifier | None = None
        self.ordinal = 0
        self.deletes = 0

    def written(self) -> list[Column]:
        """Return the columns of the records."""
        return [self.columns[name] for name in self.schema.names]


class PostgresSink(PreparedSink[PostgresTransaction, Connection]):
    """Writes records to a table, matching columns by name.

    Args:
        options: ``conninfo``: libpq's connection string. ``table``: ``name`` or ``schema.name``. ``upsert_by``: the
            columns by which a record replaces a row. ``lock_timeout_s``: how long a task waits for a lock.

    Raises:
        ConfigurationError: an option is unknown, missing or wrong. The sink made no connection.
    """

    _options_type, _table_type = PostgresOptions, Table
    _connections, _session, _release = "conninfo", staticmethod(session), staticmethod(release)
    _error, _write_failed = psycopg.Error, staticmethod(write_failed)
    _request_failed, _commit_failed = staticmethod(request_failed), staticmethod(commit_failed)
    _longest_name, _longest_scope = 199, 120
    _place = "schema"
    _server_option, _rollback = "conninfo", "ROLLBACK PREPARED"

    _options: PostgresOptions
    _table: Table

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

    def _keep(self, transaction: PostgresTransaction, written: Sequence[str]) -> None:  # noqa: ARG002
        self._table.keep(transaction.connection)

    def _insert(self, transaction: PostgresTransaction, batch: pa.RecordBatch) -> None:
        connection, upsert_table = transaction.connection, transaction.upsert_table
        self._table.copy(connection, batch, transaction.columns, upsert_table, transaction.ordinal)
        transaction.ordinal += batch.num_rows

    def _remove(self, transaction: PostgresTransaction, keys: pa.RecordBatch) -> None:
        """Write the keys to the upsert table, with negative ordinals from ``-1`` down."""
        transaction.deletes += keys.num_rows
        connection, upsert_table = transaction.connection, transaction.upsert_table
        self._table.copy(connection, keys, transaction.columns, upsert_table, -transaction.deletes)

    def write_valid(self, transaction: PostgresTransaction, batch: pa.RecordBatch) -> Iterator[RecordRefused]:
        if transaction.upsert_table is not None and not transaction.ordinal:
            with self._writing(transaction.id):
                self._table.index_upsert_table(transaction.connection, transaction.upsert_table)
        return super().write_valid(transaction, batch)

    def _try_change(self, transaction: PostgresTransaction, batch: pa.RecordBatch, change: Change) -> None:
        """Also apply the records or keys from the upsert table to the table, and undo the change. The upsert table
        lacks the constraints that may refuse a record or a key."""
        ordinal, deletes = transaction.ordinal, transaction.deletes
        super()._try_change(transaction, batch, change)
        if transaction.upsert_table is None:
            return
        self._run(transaction, "SAVEPOINT twopc_tried")
        with self._writing(transaction.id, transaction.schema.names):
            if transaction.deletes > deletes:
                self._table.delete(transaction.connection, transaction.upsert_table, -deletes)
            else:
                ordinals = range(ordinal, transaction.ordinal)
                written = transaction.written()
                self._table.merge(transaction.connection, transaction.upsert_table, written, ordinals)
        self._run(transaction, "ROLLBACK TO SAVEPOINT twopc_tried")

    def _execute(self, connection: Connection, statement: str) -> None:
        connection.execute(statement.encode())

    def _prepare(self, transaction: PostgresTransaction) -> None:
        connection = transaction.connection
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

    def discard(self, transaction: PostgresTransaction) -> None:
        transaction.connection.close()  # the server rolls back a transaction that is not prepared
        super().discard(transaction)

    # On the coordinator. ----------------------------------------------------------------------------------------

    def _require_able(self, connection: Connection) -> None:
        if server.room_for_prepared(connection) == 0:
            raise ConfigurationError(
                f"the server of {self._options} can't prepare transactions: its max_prepared_transactions is 0,"
                " which is PostgreSQL's default. Set it to at least twice the number of tasks of a batch, such as 400,"
                " and restart the server. Nothing was written."
            )
        if (encoding := connection.info.parameter_status("server_encoding")) not in EXACT_ENCODINGS:
            raise ConfigurationError(
                f"the database of {self._options} has the encoding {encoding}, which may not keep each character."
                " Nothing was written. Use a database with the encoding UTF8, or the backend 'sql', which tries each"
                " value."
            )

    def _require_current(self, connection: Connection, what: str) -> None:  # noqa: ARG002
        server.prove_current(connection)

    def validate(self, schema: pa.Schema) -> None:
        with self._requesting(f"reading the definition of {self._options}") as connection:
            columns, unique, _ = self._definition(connection)
        check_columns(schema, columns, str(self._options))
        check_upsert(self._options.upsert_by, schema.names, columns, unique, str(self._options))

    def validate_deletes(self) -> None:
        with self._requesting(f"reading the definition of {self._options}") as connection:
            self._definition(connection)
            has_policies, rules, _ = self._table.programs(connection, deletes=True)
            may_delete = self._table.may_delete(connection)
        if not may_delete:
            raise ConfigurationError(f"{self._options}: the role may not delete rows. GRANT DELETE on the table to it.")
        if rules:
            raise ConfigurationError(
                f"{self._options} has the rules {', '.join(rules)} ON DELETE, which could keep rows. Nothing"
                " was written. Replace them by triggers."
            )
        if has_policies:
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
        has_policies, rules, triggers = self._table.programs(connection)
        if rules:
            raise ConfigurationError(
                f"{self._options} has the rules {', '.join(rules)}, which COPY does not apply and ON CONFLICT"
                " does not allow. Nothing was written. Replace them by triggers."
            )
        if has_policies and not self._options.upsert_by:
            raise ConfigurationError(
                f"{self._options} has row level security, under which PostgreSQL allows no COPY. Nothing was written."
                " Use 'upsert_by', the backend 'sql', or a role with BYPASSRLS."
            )
        return columns, self._table.unique_indexes(connection), triggers

    def check(self) -> Iterator[CheckResult]:
        with self._requesting(f"reading the definition of {self._options}") as connection:
            self._require_able(connection)
            yield CheckResult.passed("max_prepared_transactions", str(server.room_for_prepared(connection)))
            columns, unique, triggers = self._definition(connection)
            names = [column.name for column in columns if not column.is_generated]
            check_upsert(self._options.upsert_by, names, columns, unique, str(self._options))
            yield CheckResult.passed(f"{self._options}: existence", f"columns {', '.join(names)}")
            yield server.durability(connection)
            found = server.all_prepared(connection)
            held = "they hold locks, and keep VACUUM from removing rows"
            if found:
                held = f"the oldest {max(found.values()):.0f} s old; {held}"
            yield self._check_prepared(found, held, "pg_prepared_xacts")
        yield CheckResult.of("trial transaction", lambda: self._try(names))
        if triggers:
            yield self._check_triggers(columns, triggers)

    def _check_triggers(self, columns: Sequence[Column], triggers: Sequence[str]) -> CheckResult:
        """Try the row triggers with a made-up row, because some of their actions fail only in PREPARE TRANSACTION."""
        check = f"{self._options}: row triggers {', '.join(triggers)}"
        row = made_up(columns)
        try:
            self._try([*row], row)
        except (RecordRefused, RoundAborted) as error:
            untried = f"not tried, as the table does not take a made-up row: {error.message}"
            return CheckResult.warning(check, untried, "let no trigger use NOTIFY or a temporary table")
        except TwoPhaseCommitError as error:
            return CheckResult.failed_by(check, error)
        return CheckResult.passed(check, "tried with a made-up row")

    def _try(self, names: Sequence[str], *rows: Mapping[str, str]) -> None:
        """Prepare a transaction and roll it back. Raises the same errors as a task's calls."""
        batch = pa.RecordBatch.from_pylist(rows, pa.schema([(name, pa.string()) for name in names]))
        with self._trial() as transaction:
            with self._writing(transaction.id, names):
                self._table.make_markers(transaction.connection)
                self._table.keep(transaction.connection)
                self._table.copy_rows(transaction.connection, batch, transaction.upsert_table)
                transaction.columns = {column.name: column for column in self._table.columns(transaction.connection)}
            transaction.schema = batch.schema
            self.pre_commit(transaction)
        with self._requesting(f"committing an empty transaction on the server of {self._options}") as connection:
            server.prove_current(connection)

    def _commit(self, connection: Connection, name: str, what: str, table: object) -> bool:  # noqa: ARG002
        try:
            connection.tpc_commit(name)
        except psycopg.errors.UndefinedObject:
            server.prove_current(connection)
            return False
        if not connection.waits:
            server.prove_current(connection)
        return True

    def _roll_back(self, connection: Connection, name: str, what: str, table: object) -> None:  # noqa: ARG002
        with contextlib.suppress(psycopg.errors.UndefinedObject):
            connection.tpc_rollback(name)

    def _listed(self, connection: Connection) -> Mapping[str, float]:
        return server.prepared(connection, self.transactional_ids.scope)

    def _left(self, connection: Connection) -> Mapping[str, float]:
        return server.prepared(connection, self.transactional_ids.scope, by_others=True)

    def open_transactions(self) -> OpenTransactions:
        with self._requesting(f"listing the transactions prepared for {self._options}") as connection:
            found = self._left(connection)
        ages_s = [age_s for name, age_s in found.items() if self.transactional_ids.owns_exact(name)]
        return OpenTransactions(len(ages_s), max(ages_s, default=0.0))
