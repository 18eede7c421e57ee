"""The MySQL sink: one XA transaction per task attempt, prepared by its task and committed by the coordinator.

``XA PREPARE`` makes a transaction durable under a name, and the end of its session detaches it. Any session of the
server can then commit it or roll it back. The server forgets the name of a transaction that has ended.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pymysql

from twopc.bad_records import written_by_halves
from twopc.checks import CheckResult
from twopc.datasets import Dataset
from twopc.errors import (
    ConfigurationError,
    RecordRefused,
    Retriable,
    RoundAborted,
    TwoPhaseCommitError,
)
from twopc.keyed import KeyedSink
from twopc.prepared import MARKERS, marker_missing, require_prepared, undone_if_refused
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import Round, TransactionId
from twopc_mysql.columns import Column, check_columns, check_types, check_upsert
from twopc_mysql.options import MysqlOptions
from twopc_mysql.outcomes import GONE, commit_failed, number, request_failed, write_failed
from twopc_mysql.sessions import WRITE_TIMEOUT_S, Connection, ask, connect, end, release, session
from twopc_mysql.tables import Table, can_prepare, is_read_only, prepared, settings, xid

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_SCOPE = 76
"""The longest scope of a sink, in bytes. A name has at most 128; the rest is for its five numbers."""

HELD_S = 2.0
"""How long a commit waits for the session that has prepared the transaction, before it reports that. The server notices
within milliseconds that a session has ended."""

LEFT_AFTER_S = 10
"""After how many seconds the server ends the session of a prepared transaction whose task is silent, such as on a
machine that is gone. Until then, nobody else can end the transaction."""

_DATABASE = "database"
"""The part of a committable's handle that says where the marker is."""


class MysqlTransaction(Transaction):
    """A live transaction and its connection.

    Attributes:
        schema: the records' columns; empty before the first write.
        columns: the table's columns. They keep their types until the transaction ends.
        most_bytes: the longest statement that the server takes.
        is_partial: whether a write has failed, so that the transaction may have only a part of its records.
    """

    def __init__(self, transaction_id: TransactionId, connection: Connection) -> None:
        super().__init__(transaction_id)
        self.connection = connection
        self.schema = pa.schema([])
        self.columns: list[Column] = []
        self.most_bytes = 0
        self.is_partial = False


class MysqlSink(KeyedSink[MysqlTransaction]):
    """Writes records to a table. A record's values go into the columns of the same names.

    Args:
        options: ``url``: the server and how to reach it. ``table``: ``name`` or ``database.name``. ``upsert_by``: the
            columns by which a record replaces a row. ``lock_timeout_s``: how long a task waits for a lock.

    Raises:
        ConfigurationError: an option is unknown, missing or wrong. The sink made no connection.
    """

    takes_repeated_keys = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = MysqlOptions.parse(options)
        self._table = Table(self._options)

    def __repr__(self) -> str:
        return f"MysqlSink({self._options})"

    @property
    def key(self) -> tuple[str, ...]:
        return self._options.upsert_by

    # On the participant. ----------------------------------------------------------------------------------------

    def begin(self, transaction_id: TransactionId) -> MysqlTransaction:
        lock_s = self._options.lock_timeout_s
        with self._writing(transaction_id):
            connection = connect(
                self._options.connection, lock_timeout_s=lock_s, answer_timeout_s=lock_s + WRITE_TIMEOUT_S
            )
        try:
            with self._writing(transaction_id):
                ask(connection, f"XA START {xid(transaction_id.exact)}")
        except BaseException:
            end(connection)
            raise
        return MysqlTransaction(transaction_id, connection)

    def write(self, transaction: MysqlTransaction, batch: pa.RecordBatch) -> None:
        self._require_columns(transaction, batch.schema)
        with self._changing(transaction, batch.schema.names):
            self._table.insert(transaction.connection, batch, transaction.columns, transaction.most_bytes)

    def _require_columns(self, transaction: MysqlTransaction, schema: pa.Schema) -> None:
        """Check the table, which may have been changed since the schema was validated, and keep it as it is until the
        transaction ends."""
        if schema == transaction.schema:
            return
        with self._writing(transaction.id):
            self._table.try_insert(transaction.connection, schema.names)  # from here on, ALTER TABLE waits
            self._read_columns(transaction)
        check_columns(schema, transaction.columns, str(self._options))
        transaction.schema = schema

    def _read_columns(self, transaction: MysqlTransaction) -> None:
        transaction.columns = self._table.columns(transaction.connection)
        [(transaction.most_bytes,)] = ask(transaction.connection, "SELECT @@max_allowed_packet")

    def delete(self, transaction: MysqlTransaction, keys: pa.RecordBatch) -> None:
        self._require_keys(transaction, keys.schema)
        with self._changing(transaction, keys.schema.names):
            self._table.delete(transaction.connection, keys, transaction.columns, transaction.most_bytes)

    def _require_keys(self, transaction: MysqlTransaction, schema: pa.Schema) -> None:
        if not transaction.columns:
            with self._writing(transaction.id):
                self._table.try_delete(transaction.connection)
                self._read_columns(transaction)
        check_types(schema, transaction.columns, str(self._options))

    def delete_valid(self, transaction: MysqlTransaction, keys: pa.RecordBatch) -> Iterator[RecordRefused]:
        self._require_keys(transaction, keys.schema)
        return written_by_halves(lambda some: self._do_or_undo(transaction, self.delete, some), keys)

    def write_valid(self, transaction: MysqlTransaction, batch: pa.RecordBatch) -> Iterator[RecordRefused]:
        self._require_columns(transaction, batch.schema)  # a savepoint would give the table's lock back
        return written_by_halves(lambda records: self._do_or_undo(transaction, self.write, records), batch)

    def _do_or_undo(
        self,
        transaction: MysqlTransaction,
        do: Callable[[MysqlTransaction, pa.RecordBatch], None],
        batch: pa.RecordBatch,
    ) -> None:
        def execute(statement: str) -> None:
            with self._writing(transaction.id):
                ask(transaction.connection, statement)

        try:
            with undone_if_refused(execute):
                do(transaction, batch)
        except RecordRefused:
            transaction.is_partial = False
            raise

    def pre_commit(self, transaction: MysqlTransaction) -> Committable:
        connection, name = transaction.connection, transaction.id.exact
        if transaction.is_partial:  # only the failed statement was rolled back
            raise RoundAborted(f"transaction {name} to {self._options} lacks the records of a failed write")
        with self._writing(transaction.id):
            self._table.mark(connection, transaction.id, self.transactional_ids.scope)
            ask(connection, "SET SESSION wait_timeout = %s", LEFT_AFTER_S)
            ask(connection, f"XA END {xid(name)}")
            ask(connection, f"XA PREPARE {xid(name)}")
        end(connection)
        return Committable(name, {_DATABASE: self._options.database}, transaction.records)

    @contextlib.contextmanager
    def _changing(self, transaction: MysqlTransaction, columns: Sequence[str]) -> Iterator[None]:
        """Note that the transaction may lack records if a change of its rows fails."""
        try:
            with self._writing(transaction.id, columns):
                yield
        except BaseException:
            transaction.is_partial = True
            raise

    @contextlib.contextmanager
    def _writing(self, transaction_id: TransactionId, columns: Sequence[str] = ()) -> Iterator[None]:
        try:
            yield
        except pymysql.MySQLError as error:
            raise write_failed(error, f"transaction {transaction_id.exact} to {self._options}", columns) from error

    # On the coordinator. ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make sure that the server can prepare transactions, and create the marker table.

        Raises:
            ConfigurationError: the server is too old or writes its binary log by statements, the marker table is not of
                InnoDB, or the names would be too long.
            Retriable: the server does not answer.
        """
        scope = self.transactional_ids.scope
        if len(scope) > LONGEST_SCOPE:
            raise ConfigurationError(
                f"transaction names that start with {scope!r} exceed the server's limit of 128 bytes: give the sink a"
                " shorter name"
            )
        with self._requesting(f"opening {self._options}") as connection:
            self._require_able(connection)
            self._table.make_markers(connection)
            self._require_transactional(connection, MARKERS)

    def _require_able(self, connection: Connection) -> dict[str, str]:
        found = settings(connection)
        if not can_prepare(found["version"]):
            raise ConfigurationError(
                f"the server of {self._options} is version {found['version']}, which does not keep every prepared"
                " transaction. Use MariaDB 10.5 or MySQL 8.0.29, or a newer one. Nothing was written."
            )
        if found["log_bin"] == "1" and found["binlog_format"] == "STATEMENT":
            raise ConfigurationError(
                f"the server of {self._options} has binlog_format=STATEMENT, with which it refuses writes at the"
                " isolation level READ COMMITTED. Set it to MIXED or ROW. Nothing was written."
            )
        return found

    def _require_transactional(self, connection: Connection, name: str) -> None:
        engine = self._table.engine(connection, name)
        if engine is None:
            raise ConfigurationError(
                f"{self._options.database}.{name} does not exist or is a view. Create the table; the sink does not."
            )
        if engine != "InnoDB":
            raise ConfigurationError(
                f"table {self._options.database}.{name} has the engine {engine}, which can't roll a record back once"
                " it is written. Nothing was written. Run ALTER TABLE … ENGINE=InnoDB."
            )

    def validate(self, schema: pa.Schema) -> None:
        with self._requesting(f"reading the definition of {self._options}") as connection:
            self._require_transactional(connection, self._options.table)
            columns = self._table.columns(connection)
            keys = self._table.unique_keys(connection)
        check_columns(schema, columns, str(self._options))
        check_upsert(self._options.upsert_by, schema.names, keys, columns, str(self._options))

    def validate_deletes(self) -> None:
        with self._requesting(f"looking whether rows of {self._options} can be deleted") as connection:
            self._table.try_delete(connection)

    def check(self) -> Iterator[CheckResult]:
        with self._requesting(f"reading the definition of {self._options}") as connection:
            found = self._require_able(connection)
            yield CheckResult.passed("server", f"{found['version']}, binlog_format {_binlog(found)}")
            self._require_transactional(connection, self._options.table)
            columns = self._table.columns(connection)
            names = [each.name for each in columns if not each.is_generated]
            by = self._options.upsert_by
            given = [each.name for each in columns if each.name in names and not each.is_auto_increment]
            keys = self._table.unique_keys(connection)
            check_upsert(by, {*given, *by} & {*names}, keys, columns, str(self._options))
            yield CheckResult.passed(f"{self._options}: existence", f"columns {', '.join(names)}")
            yield from self._check_durability(found)
            yield from self._check_upsert_key([key.columns for key in keys])
            yield from self._check_prepared(prepared(connection))
            has_markers = self._table.engine(connection, MARKERS) is not None
        if not has_markers:
            markers = f"marker table {self._options.database}.{MARKERS}"
            yield CheckResult.passed(markers, "none yet: the first start creates it")
        yield CheckResult.of("trial transaction", lambda: self._try(names, has_markers))

    def _check_durability(self, found: Mapping[str, str]) -> Iterator[CheckResult]:
        check = "durability of acknowledged commits"
        weak: dict[str, tuple[str, ...]] = {
            "innodb_flush_log_at_trx_commit": ("0", "2"),
            "innodb_doublewrite": ("0", "OFF"),
        }
        if found["log_bin"] == "1":
            weak["sync_binlog"] = tuple(filter("1".__ne__, [found["sync_binlog"]]))
        off = [f"{name}={found[name]}" for name, values in weak.items() if found[name] in values]
        if off:
            lost = f"{', '.join(off)}: a power failure can lose acknowledged commits"
            yield CheckResult.warning(check, lost, "set each to 1")
        else:
            yield CheckResult.passed(check)

    def _check_upsert_key(self, keys: Sequence[frozenset[str | None]]) -> Iterator[CheckResult]:
        if self._options.upsert_by and keys[0] != frozenset(self._options.upsert_by):
            yield CheckResult.warning(
                f"{self._options}: key of 'upsert_by'",
                "not the primary key: a prepared transaction also locks the gap before each row that it replaces, so"
                " tasks of one batch may wait for each other until 'lock_timeout_s'",
                "make it the primary key, or write each batch from one partition",
            )

    def _check_prepared(self, names: Sequence[str]) -> Iterator[CheckResult]:
        own = sum(map(self.transactional_ids.owns_exact, names))
        check, seen = "prepared transactions", f"{own} of this query, {len(names) - own} of other queries"
        if names:
            held = f"{seen}: they hold their rows locked"
            yield CheckResult.warning(check, held, "start their queries again, or list them with XA RECOVER")
        else:
            yield CheckResult.passed(check, "none")

    def _try(self, names: Sequence[str], has_markers: bool) -> None:
        """Prepare a transaction without a record and roll it back. Raises the same errors as a task's calls."""
        transaction = self.begin(self.transactional_ids.allocate(Round(0, 0), partition=0))
        try:
            with self._writing(transaction.id):
                self._table.try_insert(transaction.connection, names)
            if has_markers:
                self.pre_commit(transaction)
        finally:
            self.discard(transaction)

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:  # noqa: ARG002
        """Veto the batch if a transaction is no longer prepared."""
        if committables:
            with self._requesting(f"listing the transactions prepared for {self._options}") as connection:
                found = set(prepared(connection))
            require_prepared(committables, found, str(self._options))
        return committables

    def commit(self, committable: Committable) -> None:
        name = self.transactional_ids.exact(committable.transaction_id)
        what = f"transaction {name} ({committable.records} records) to {self._options} is decided"
        with self._requesting(what, commit_failed) as connection:
            if is_read_only(connection):  # a replica may not have the transaction yet, and reports it as gone
                raise Retriable(f"{what}, and the server is read-only, as a replica is")
            if self._ended(connection, "COMMIT", name, what):
                return
            table = self._table_of(committable)
            if not table.is_committed(connection, name):
                ids = self.transactional_ids
                has_older = table.has_markers(connection, ids.scope, ids.round_of(name).batch_id)
                raise marker_missing(what, has_older, "'url'", "XA ROLLBACK")

    def _table_of(self, committable: Committable) -> Table:
        """Return the table that has the transaction's marker: the option may name another one since."""
        database = committable.handle.get(_DATABASE)
        return Table(replace(self._options, database=database)) if isinstance(database, str) else self._table

    def _ended(self, connection: Connection, verb: str, name: str, what: str) -> bool:
        """End a prepared transaction. Return False if the server has no such transaction any more.

        Raises:
            Retriable: a session still holds the transaction, or another process is ending it: the server reports
                XAER_NOTA, as for one that is gone, but lists it.
        """
        deadline = time.monotonic() + HELD_S
        while True:
            try:
                ask(connection, f"XA {verb} {xid(name)}")
                return True
            except pymysql.MySQLError as error:
                if number(error) not in GONE:
                    raise
            if name not in prepared(connection):
                return False
            if time.monotonic() > deadline:
                raise Retriable(f"{what}, and another session of the server still holds the transaction")
            time.sleep(0.005)

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:  # noqa: ARG002
        """Remove the markers of the previous batches. This batch is decided, so the log records those as complete, and
        they are not committed again."""
        with self._requesting(f"removing the markers of batches before {batch_id} for {self._options}") as connection:
            self._table.prune_markers(connection, self.transactional_ids.scope, batch_id)

    def datasets(self, committables: Sequence[Committable]) -> Sequence[Dataset] | None:  # noqa: ARG002
        dataset = self._options.dataset
        return None if dataset is None else [dataset]

    def discard(self, transaction: MysqlTransaction) -> None:
        for request in ("XA END", "XA ROLLBACK"):  # so that no lock is held until the server notices the end
            with contextlib.suppress(pymysql.MySQLError):
                ask(transaction.connection, f"{request} {xid(transaction.id.exact)}")
        end(transaction.connection)  # the server rolls back a transaction that is not prepared
        super().discard(transaction)

    def abort(self, committable: Committable) -> None:
        name = self.transactional_ids.exact(committable.transaction_id)
        what = f"rolling back transaction {name}"
        with self._requesting(what) as connection:
            self._ended(connection, "ROLLBACK", name, what)

    def recover(self) -> Iterable[Committable]:
        with self._requesting(f"listing the transactions prepared for {self._options}") as connection:
            found = prepared(connection)
        return [Committable(name, {}) for name in found if self.transactional_ids.owns_exact(name)]

    def close(self) -> None:
        release(self._options.connection)

    @contextlib.contextmanager
    def _requesting(
        self, what: str, failed: Callable[[pymysql.MySQLError, str], TwoPhaseCommitError] = request_failed
    ) -> Iterator[Connection]:
        """Lend a connection, and map its errors. ``what`` names the request."""
        try:
            with session(self._options.connection) as connection:
                yield connection
        except pymysql.MySQLError as error:
            raise failed(error, what) from error


def _binlog(found: Mapping[str, str]) -> str:
    return found["binlog_format"] if found["log_bin"] == "1" else "without a binary log"
