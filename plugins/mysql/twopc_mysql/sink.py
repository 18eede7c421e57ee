"""The MySQL sink: one XA transaction per task attempt, prepared by its task and committed by the coordinator.

``XA PREPARE`` makes a transaction durable under a name, and the end of its session detaches it. Any session of the
server can then commit it or roll it back. The server forgets the name of a transaction that has ended.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pymysql

from twopc.checks import CheckResult
from twopc.columns import check_columns
from twopc.errors import ConfigurationError, OutcomeUnknown, Retriable
from twopc.prepared import MARKERS, PreparedSink, PreparedTransaction
from twopc.transactional_ids import Round
from twopc_mysql.columns import Column, check_upsert
from twopc_mysql.options import MysqlOptions
from twopc_mysql.outcomes import GONE, IS_NAMED, commit_failed, number, request_failed, write_failed
from twopc_mysql.sessions import WRITE_TIMEOUT_S, Connection, ask, bounded, connect, end, release, session
from twopc_mysql.tables import Table, can_prepare, is_read_only, prepared, settings, xid

if TYPE_CHECKING:
    import pyarrow as pa

    from twopc.transactional_ids import TransactionId

HELD_S = 2.0
"""How long a commit waits for the session that prepared the transaction before it raises ``Retriable``. The server
notices the end of a session within milliseconds."""

LEFT_AFTER_S = 10
"""After how many seconds the server ends the session of a prepared transaction if the task is silent, for example
because the task's machine has failed. Until then, no other session can end the transaction."""

LOSES_COMMITS = {"innodb_flush_log_at_trx_commit": ("0", "2"), "innodb_doublewrite": ("0", "OFF")}
"""Settings of the server → values with which a power failure can lose acknowledged commits."""


class MysqlTransaction(PreparedTransaction[Connection, Column]):
    """A live transaction and its connection.

    Attributes:
        most_bytes: the longest statement that the server accepts.
    """

    most_bytes = 0


class MysqlSink(PreparedSink[MysqlTransaction, Connection]):
    """Writes records to a table, matching columns by name.

    Args:
        options: ``url``: the server and how to reach it. ``table``: ``name`` or ``database.name``. ``upsert_by``: the
            columns by which a record replaces a row. ``lock_timeout_s``: how long a task waits for a lock.

    Raises:
        ConfigurationError: an option is unknown, missing or wrong. The sink made no connection.
    """

    _options_type, _table_type = MysqlOptions, Table
    _connections, _session, _release = "connection", staticmethod(session), staticmethod(release)
    _error, _write_failed = pymysql.MySQLError, staticmethod(write_failed)
    _request_failed, _commit_failed = staticmethod(request_failed), staticmethod(commit_failed)
    _longest_name, _longest_scope = 128, 76
    _place = "database"
    _server_option, _rollback = "url", "XA ROLLBACK"

    _options: MysqlOptions
    _table: Table

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

    def _keep(self, transaction: MysqlTransaction, written: Sequence[str]) -> None:
        if written:
            self._table.try_insert(transaction.connection, written)  # from now on, ALTER TABLE waits
        else:
            self._table.try_delete(transaction.connection)
        [(transaction.most_bytes,)] = ask(transaction.connection, "SELECT @@max_allowed_packet")

    def _insert(self, transaction: MysqlTransaction, batch: pa.RecordBatch) -> None:
        self._table.insert(transaction.connection, batch, transaction.columns, transaction.most_bytes)

    def _remove(self, transaction: MysqlTransaction, keys: pa.RecordBatch) -> None:
        self._table.delete(transaction.connection, keys, transaction.columns, transaction.most_bytes)

    def _execute(self, connection: Connection, statement: str) -> None:
        ask(connection, statement)

    def _prepare(self, transaction: MysqlTransaction) -> None:
        connection, name = transaction.connection, xid(transaction.id.exact)
        ask(connection, "SET SESSION wait_timeout = %s", LEFT_AFTER_S)  # before the marker, for ``_left``
        self._table.mark(connection, transaction.id, self.transactional_ids.scope)
        ask(connection, f"XA END {name}")
        ask(connection, f"XA PREPARE {name}")
        end(connection)

    def discard(self, transaction: MysqlTransaction) -> None:
        for request in ("XA END", "XA ROLLBACK"):  # releases locks before the server notices the end of the session
            with contextlib.suppress(pymysql.MySQLError):
                ask(transaction.connection, f"{request} {xid(transaction.id.exact)}")
        end(transaction.connection)  # the server rolls back a transaction that is not prepared
        super().discard(transaction)

    # On the coordinator. ----------------------------------------------------------------------------------------

    def open(self) -> None:
        super().open()
        with self._requesting(f"opening {self._options}") as connection:
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

    def _require_current(self, connection: Connection, what: str) -> None:
        _require_writable(connection, what)

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
            written = [each for each in columns if not each.is_generated]
            names, by = [each.name for each in written], self._options.upsert_by
            given = [each.name for each in written if each.name in by or not each.is_auto_increment]
            keys = self._table.unique_keys(connection)
            check_upsert(by, given, keys, columns, str(self._options))
            yield CheckResult.passed(f"{self._options}: existence", f"columns {', '.join(names)}")
            yield self._check_durability(found)
            if by and keys[0].columns != {*by}:
                yield CheckResult.warning(
                    f"{self._options}: key of 'upsert_by'",
                    "not the primary key: a prepared transaction also locks the gap before each row that it replaces,"
                    " so tasks of one batch may wait for each other until 'lock_timeout_s'",
                    "make it the primary key, or write each batch from one partition",
                )
            yield self._check_prepared(prepared(connection), "they hold their rows locked", "XA RECOVER")
            has_markers = self._table.engine(connection, MARKERS) is not None
        if not has_markers:
            markers = f"marker table {self._options.database}.{MARKERS}"
            yield CheckResult.passed(markers, "none yet: the first start creates it")
        yield CheckResult.of("trial transaction", lambda: self._try(names, has_markers))

    def _check_durability(self, found: Mapping[str, str]) -> CheckResult:
        check = "durability of acknowledged commits"
        off = [f"{name}={found[name]}" for name, values in LOSES_COMMITS.items() if found[name] in values]
        if found["log_bin"] == "1" and found["sync_binlog"] != "1":
            off.append(f"sync_binlog={found['sync_binlog']}")
        if not off:
            return CheckResult.passed(check)
        lost = f"{', '.join(off)}: a power failure can lose acknowledged commits"
        return CheckResult.warning(check, lost, "set each to 1")

    def _try(self, names: Sequence[str], has_markers: bool) -> None:
        """Begin a transaction, insert no rows, prepare it if the marker table exists, and roll it back. Raises the same
        errors as a task's calls."""
        with self._trial() as transaction:
            with self._writing(transaction.id):
                self._table.try_insert(transaction.connection, names)
            if has_markers:
                self.pre_commit(transaction)

    def _commit(self, connection: Connection, name: str, what: str, table: Table) -> bool:
        _require_writable(connection, what)  # a replica may not have the transaction yet, and reports it as gone
        return self._ended(connection, "COMMIT", name, what, table)

    def _roll_back(self, connection: Connection, name: str, what: str, table: Table) -> None:
        self._ended(connection, "ROLLBACK", name, what, table)

    def _ended(self, connection: Connection, verb: str, name: str, what: str, table: Table) -> bool:
        """End a prepared transaction. Return whether its marker is visible, which alone proves that it was committed.

        MariaDB frees a transaction's name before the session that prepared it has left the transaction. An XA
        statement in between succeeds but ends only the name: the transaction stays prepared, and nothing lists it.
        Upholds invariants 2 and 10.

        Raises:
            Retriable: a session still holds the transaction, or another process is ending it. The server then reports
                XAER_NOTA, as if the transaction were gone, but still lists the transaction or stores its marker.
        """
        deadline = time.monotonic() + HELD_S
        while True:
            self._end_name(connection, verb, name, what, deadline)
            if (is_visible := table.marker(connection, name)) is not None:
                return is_visible
            self._adopt(connection, verb, name, what, table)
            _wait_until(deadline, what)

    def _end_name(self, connection: Connection, verb: str, name: str, what: str, deadline: float) -> bool:
        """End the transaction with this name. Return False if there is no such transaction, or if the server rolls it
        back. Raises like ``_ended``."""
        while True:
            try:
                ask(connection, f"XA {verb} {xid(name)}")
                return True
            except pymysql.MySQLError as error:
                if number(error) not in GONE:
                    raise
            if name not in prepared(connection):
                return False
            _wait_until(deadline, what)

    def _adopt(self, connection: Connection, verb: str, name: str, what: str, table: Table) -> None:
        """Restore the name of a prepared transaction on the server, so that an XA statement finds it.

        Raises:
            OutcomeUnknown: the server would respond to XA COMMIT with a rollback, because the transaction with the
                restored name wrote nothing. A trial with another name has shown that.
        """
        if verb == "COMMIT":  # the next start rolls back a trial that a crash has left
            trial = self.transactional_ids.allocate(Round(0, 0), 0, serial=uuid.uuid4().int >> 65).exact
            self._prepare_empty(trial, table, writes=True)
            if not self._end_name(connection, verb, trial, what, time.monotonic() + HELD_S):
                raise OutcomeUnknown(
                    f"{what}, and the server has lost its name. Restart the server: XA RECOVER then lists the"
                    " transaction. Then start the query again, which repeats the commit."
                )
        self._prepare_empty(name, table, writes=verb == "COMMIT")

    def _prepare_empty(self, name: str, table: Table, *, writes: bool) -> None:
        """Prepare an empty transaction with this name. With ``writes``, the server treats the transaction as one that
        has written rows."""
        session = bounded(self._options.connection)
        try:
            if writes:
                table.write_nothing(session)  # so that the insert below finds the row
            ask(session, f"XA START {xid(name)}")
            if writes:
                table.write_nothing(session)
            ask(session, f"XA END {xid(name)}")
            ask(session, f"XA PREPARE {xid(name)}")
        except pymysql.MySQLError as error:
            if number(error) != IS_NAMED:  # another process has adopted it, or a session is about to prepare it
                raise
        finally:
            end(session)

    def _listed(self, connection: Connection) -> list[str]:
        _require_writable(connection, f"a batch for {self._options} is not decided")
        return prepared(connection)

    def _left(self, connection: Connection) -> list[str]:
        """Return the names of prepared transactions. They include names that a session is about to prepare, and names
        that the server has ended without their transactions, which a crash may bring back."""
        return sorted({*prepared(connection), *self._table.undecided(connection, self.transactional_ids.scope)})


def _require_writable(connection: Connection, what: str) -> None:
    """Raise Retriable if the server is read-only. Tasks of a user with all privileges could still write to it."""
    if is_read_only(connection):
        raise Retriable(f"{what}, and the server is read-only, as a replica is")


def _wait_until(deadline: float, what: str) -> None:
    """Wait briefly. Raises Retriable after the deadline, given in seconds of ``time.monotonic``."""
    if time.monotonic() > deadline:
        raise Retriable(f"{what}, and another session of the server still holds the transaction")
    time.sleep(0.005)


def _binlog(found: Mapping[str, str]) -> str:
    return found["binlog_format"] if found["log_bin"] == "1" else "without a binary log"
