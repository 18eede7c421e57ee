"""The common part of the sinks for databases that prepare a transaction under a name, such as PostgreSQL and MySQL.

Such a database forgets the name of a transaction that has ended. So each transaction writes a row, its marker, which
exists exactly if the transaction is committed.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from twopc.bad_records import written_by_halves
from twopc.checks import CheckResult
from twopc.columns import TableColumn, check_columns, check_types, require_keys
from twopc.datasets import Dataset
from twopc.errors import (
    ConfigurationError,
    OutcomeUnknown,
    RecordRefused,
    RoundAborted,
    SchemaMismatch,
    TransactionLost,
)
from twopc.failures import Lag, mapped
from twopc.keyed import KeyedSink
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import Round, TransactionId

ConnectionT = TypeVar("ConnectionT")
ColumnT = TypeVar("ColumnT", bound=TableColumn)

Change: TypeAlias = Callable[[Any, pa.RecordBatch], None]
"""Changes rows, within a transaction."""

MARKERS = "twopc_committed"
"""The table of the markers."""


BYTES = pa.large_binary()


def joined(*parts: pa.Array | str, by: str = "") -> pa.Array:
    """Concatenate the texts of each record, with ``by`` between them, as ``BYTES``; null where one of them is null."""
    all_bytes = [pa.scalar(part.encode(), BYTES) if isinstance(part, str) else part for part in (*parts, by)]
    return pc.binary_join_element_wise(*all_bytes)


class MarkedTable(ABC, Generic[ConnectionT]):
    """All SQL for a sink's table and its markers. The methods raise the errors of the database's client.

    A marker exists exactly if its transaction is committed, whichever process ended it. A failover or a restore from a
    backup undoes both together.
    """

    markers: str  # the marker table, as quoted in a statement
    _waiting: ClassVar[str] = ""  # ends a SELECT that must wait for the transaction that wrote the row

    @abstractmethod
    def columns(self, connection: ConnectionT) -> Sequence[TableColumn]:
        """Return the table's columns; none if there is no table."""

    @abstractmethod
    def make_markers(self, connection: ConnectionT) -> None:
        """Create the marker table if it is missing."""

    @abstractmethod
    def prune_markers(self, connection: ConnectionT, scope: str, before_batch_id: int) -> None:
        """Remove the markers of older batches. Keep the newest ones, which prove that the table was not emptied."""

    @abstractmethod
    def _of_markers(self, connection: ConnectionT, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement. ``{markers}`` stands for the marker table; other names in braces stand for values."""

    def mark(self, connection: ConnectionT, transaction_id: TransactionId, scope: str) -> None:
        """Write a transaction's marker, within the transaction."""
        name, batch_id = transaction_id.exact, transaction_id.round.batch_id
        insert = "INSERT INTO {markers} (transaction_id, scope, batch_id) VALUES ({name}, {scope}, {batch_id})"
        self._of_markers(connection, insert, name=name, scope=scope, batch_id=batch_id)

    def is_committed(self, connection: ConnectionT, transaction_id: str) -> bool:
        """Return whether a transaction that is no longer prepared was committed."""
        ask = "SELECT 1 FROM {markers} WHERE transaction_id = {name}"
        return bool(self._of_markers(connection, ask + self._waiting, name=transaction_id))

    def has_markers(self, connection: ConnectionT, scope: str, before_batch_id: int) -> bool:
        """Return whether a transaction of an older batch has left a marker. Markers of the same batch prove nothing,
        because their transactions may have been committed after the markers were removed."""
        ask = "SELECT 1 FROM {markers} WHERE scope = {scope} AND batch_id < {before} LIMIT 1"
        return bool(self._of_markers(connection, ask, scope=scope, before=before_batch_id))

    def newest(self, connection: ConnectionT, scope: str) -> int | None:
        """Return the newest batch that has left a marker; None if there is no marker."""
        ask = "SELECT max(batch_id) FROM {markers} WHERE scope = {scope}"
        [(newest,)] = self._of_markers(connection, ask, scope=scope)
        return cast("int | None", newest)


class PreparedTransaction(Transaction, Generic[ConnectionT, ColumnT]):
    """A live transaction and its connection. ``schema`` contains the columns of the records. ``columns`` contains the
    columns of the table, by name, whose types stay fixed until the transaction ends. Both are empty before the first
    record. ``is_partial``: whether a write has failed, so that records may be missing."""

    def __init__(self, transaction_id: TransactionId, connection: ConnectionT) -> None:
        super().__init__(transaction_id)
        self.connection = connection
        self.schema = pa.schema([])
        self.columns: dict[str, ColumnT] = {}
        self.is_partial = False


PreparedT = TypeVar("PreparedT", bound=PreparedTransaction[Any, Any])


@contextlib.contextmanager
def _whole(transaction: PreparedTransaction[Any, Any]) -> Iterator[None]:
    """Mark the transaction as partial if a write fails. Upholds: a transaction that may lack records is not
    prepared."""
    try:
        yield
    except BaseException:
        transaction.is_partial = True
        raise


class PreparedSink(KeyedSink[PreparedT], Generic[PreparedT, ConnectionT]):
    """A database sink with one transaction per task attempt. The task prepares it, and the coordinator ends it."""

    takes_repeated_keys = True

    # Subclasses set these.
    _options_type: ClassVar[Any]  # parses the options; their ``str`` names the table and its server, for messages
    _table_type: ClassVar[Any]  # makes a ``MarkedTable`` from the options
    _connections: ClassVar[str]  # the option with the connection's parameters, for ``_session``, ``_release``
    _session: ClassVar[Any]  # lends a connection of the coordinator, in autocommit mode
    _release: ClassVar[Any]  # closes idle connections
    _error: ClassVar[type[Exception]]  # what the database's client raises
    _write_failed: ClassVar[Callable[..., Exception]]  # the error for a participant's call, with the records' columns
    _request_failed: ClassVar[Callable[..., Exception]]  # the error for a coordinator's request that may be repeated
    _commit_failed: ClassVar[Callable[..., Exception]]  # the error for a commit
    _longest_name: ClassVar[int]  # the server's limit on a transaction's name, in bytes
    _longest_scope: ClassVar[int]  # how much of it the sink's scope may take; five numbers follow
    _place: ClassVar[str]  # the key in a committable's handle, and the option, for the place of the marker
    _server_option: ClassVar[str]  # the option that selects the server
    _rollback: ClassVar[str]  # the statement with which an operator rolls back a prepared transaction

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options: Any = self._options_type.parse(options)
        self._table: Any = self._table_type(self._options)
        self._lag = Lag()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options})"

    @property
    def key(self) -> tuple[str, ...]:
        return cast("tuple[str, ...]", self._options.upsert_by)

    # Implemented for each database. -----------------------------------------------------------------------------------

    @abstractmethod
    def _execute(self, connection: ConnectionT, statement: str) -> None:
        """Run a statement that has no result."""

    @abstractmethod
    def _keep(self, transaction: PreparedT, written: Sequence[str]) -> None:
        """Lock the table's definition until the transaction ends. ``written``: the columns of the records; none before
        a delete."""

    @abstractmethod
    def _insert(self, transaction: PreparedT, batch: pa.RecordBatch) -> None:
        """Write records. Raises RecordRefused for a record that the database can't store, or would store changed."""

    @abstractmethod
    def _remove(self, transaction: PreparedT, keys: pa.RecordBatch) -> None:
        """Delete the rows with these keys. Raises the same errors as ``_insert``."""

    @abstractmethod
    def _prepare(self, transaction: PreparedT) -> None:
        """Write the transaction's marker, prepare the transaction, and close its connection."""

    @abstractmethod
    def _commit(self, connection: ConnectionT, name: str, what: str, table: Any) -> bool:
        """Commit a prepared transaction. Return False if the server no longer has the transaction, or did not confirm
        the commit. ``table`` holds the marker."""

    @abstractmethod
    def _roll_back(self, connection: ConnectionT, name: str, what: str, table: Any) -> None:
        """Roll back a prepared transaction, if it exists. ``table`` holds the marker."""

    @abstractmethod
    def _listed(self, connection: ConnectionT) -> Collection[str]:
        """Return the names of prepared transactions that may belong to this sink and that this process can end."""

    def _left(self, connection: ConnectionT) -> Collection[str]:
        """Return the names of transactions that an earlier process may have left, including transactions that this
        process can't end. The default lists only transactions that this process can end."""
        return self._listed(connection)

    @abstractmethod
    def _require_able(self, connection: ConnectionT) -> object:
        """Raise ConfigurationError if the server can't prepare transactions."""

    @abstractmethod
    def _require_current(self, connection: ConnectionT, what: str) -> object:
        """Make sure that the server's next answer reflects every commit, and does not come from a lagging replica.

        Raises:
            Retriable: the server is a replica.
            Exception: an error of the database's client.
        """

    # On the participant. ----------------------------------------------------------------------------------------------

    def write(self, transaction: PreparedT, batch: pa.RecordBatch) -> None:
        self._require_columns(transaction, batch.schema)
        self._change(transaction, batch, self._insert)

    def delete(self, transaction: PreparedT, keys: pa.RecordBatch) -> None:
        self._require_keys(transaction, keys.schema)
        self._change(transaction, keys, self._remove)

    def write_valid(self, transaction: PreparedT, batch: pa.RecordBatch) -> Iterator[RecordRefused]:
        self._require_columns(transaction, batch.schema)  # not within a savepoint, whose rollback frees the lock
        return written_by_halves(lambda records: self._change_or_undo(transaction, records, self._insert), batch)

    def delete_valid(self, transaction: PreparedT, keys: pa.RecordBatch) -> Iterator[RecordRefused]:
        self._require_keys(transaction, keys.schema)
        return written_by_halves(lambda some: self._change_or_undo(transaction, some, self._remove), keys)

    def _require_columns(self, transaction: PreparedT, schema: pa.Schema) -> None:
        """Check the table, which may have changed since the schema was validated, and lock its definition until the
        transaction ends."""
        with _whole(transaction):
            if schema != transaction.schema:
                before, names = sorted(transaction.schema.names), sorted(schema.names)
                if before and before != names:  # an upsert writes all records at its end, with the same columns
                    raise SchemaMismatch(f"a task's records have the columns {before}, and then {names}")
                self._read_columns(transaction, schema.names)
                check_columns(schema, transaction.columns.values(), str(self._options))
                transaction.schema = schema

    def _require_keys(self, transaction: PreparedT, schema: pa.Schema) -> None:
        with _whole(transaction):
            if not transaction.columns:
                self._read_columns(transaction, ())
            check_types(schema, transaction.columns.values(), str(self._options))

    def _read_columns(self, transaction: PreparedT, written: Sequence[str]) -> None:
        with self._writing(transaction.id):
            self._keep(transaction, written)
            transaction.columns = {each.name: each for each in self._table.columns(transaction.connection)}

    def _change(self, transaction: PreparedT, batch: pa.RecordBatch, change: Change) -> None:
        with _whole(transaction):
            require_keys(batch, self.key)
            with self._writing(transaction.id, batch.schema.names):
                change(transaction, batch)

    def _change_or_undo(self, transaction: PreparedT, batch: pa.RecordBatch, change: Change) -> None:
        """Change rows, and undo the change if a record is refused."""
        was_partial = transaction.is_partial
        self._run(transaction, "SAVEPOINT twopc_valid")
        try:
            self._try_change(transaction, batch, change)
        except RecordRefused:
            self._run(transaction, "ROLLBACK TO SAVEPOINT twopc_valid")
            self._run(transaction, "RELEASE SAVEPOINT twopc_valid")
            transaction.is_partial = was_partial
            raise
        self._run(transaction, "RELEASE SAVEPOINT twopc_valid")

    def _try_change(self, transaction: PreparedT, batch: pa.RecordBatch, change: Change) -> None:
        """Change rows, and detect now what ``_prepare`` would refuse. By default, ``_change`` detects all of it."""
        self._change(transaction, batch, change)

    def _run(self, transaction: PreparedT, statement: str) -> None:
        with self._writing(transaction.id):
            self._execute(transaction.connection, statement)

    def pre_commit(self, transaction: PreparedT) -> Committable:
        name = transaction.id.exact
        if transaction.is_partial:  # the server may not know that it is
            raise RoundAborted(f"transaction {name} to {self._options} lacks the records of a failed write")
        with self._writing(transaction.id, transaction.schema.names):
            self._prepare(transaction)
        return Committable(name, {self._place: getattr(self._options, self._place)}, transaction.records)

    def _writing(
        self, transaction_id: TransactionId, columns: Collection[str] | None = None
    ) -> AbstractContextManager[None]:
        """Map the errors of a participant's call. ``columns``: the columns of the records; None if no record can have
        caused the error."""
        return mapped(
            self._error, self._write_failed, f"transaction {transaction_id.exact} to {self._options}", columns
        )

    @contextlib.contextmanager
    def _trial(self) -> Iterator[PreparedT]:
        """Begin a transaction that is rolled back."""
        transaction = self.begin(self.transactional_ids.allocate(Round(0, 0), partition=0))
        try:
            yield transaction
        finally:
            self.discard(transaction)

    # On the coordinator. ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make sure that the server can prepare transactions, and create the marker table.

        Raises:
            ConfigurationError: the server can't prepare transactions, or the names would be too long.
            LogMismatch: the markers end before the last batch that is committed according to the log.
            Retriable: the server does not answer.
        """
        scope = self.transactional_ids.scope
        if len(scope) > self._longest_scope:
            raise ConfigurationError(
                f"transaction names that start with {scope!r} exceed the server's limit of {self._longest_name} bytes:"
                " give the sink a shorter name"
            )
        with self._requesting(f"opening {self._options}") as connection:
            self._require_able(connection)
            self._table.make_markers(connection)
            self._require_last_batch(connection)

    def _require_last_batch(self, connection: ConnectionT) -> None:
        """Raise an error if the database lacks the last committed batch. Upholds: no batch follows a lost one, for
        example after the database was restored while the query was down.

        If there is no marker at all, this may be another database: the log knows only the sink's name. The newest
        batch keeps its markers.
        """
        scope, last = self.transactional_ids.scope, self.last_committed_batch_id
        found = None if last is None else self._table.newest(connection, scope)
        if last is not None and found is not None and found < last:
            self._require_current(
                connection, f"{self._options} shows batch {found} of this query, and not batch {last}"
            )
            found = self._table.newest(connection, scope)
        if last is None or found is None or found >= last:
            self._lag.end()
            return
        markers = self._table.markers
        change = f"INSERT INTO {markers} VALUES ('{scope}{last}', '{scope}', {last})"  # noqa: S608  # for an operator
        raise self._lag.failure(
            f"{self._options} had batch {last} of this query, and {markers} shows batch {found}",
            f"Restore what is lost; or write the missing records by other means, run {change}, and start again.",
        )

    def _check_prepared(self, names: Collection[str], held: str, listed_by: str) -> CheckResult:
        """Return the check of the server's prepared transactions. ``held``: a clause that says what these transactions
        hold in the meantime."""
        check, own = "prepared transactions", sum(map(self.transactional_ids.owns_exact, names))
        if not names:
            return CheckResult.passed(check, "none")
        seen = f"{own} of this query, {len(names) - own} of others: {held}"
        return CheckResult.warning(check, seen, f"start their queries again, or list them with {listed_by}")

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:  # noqa: ARG002
        """Veto the batch if a transaction is no longer prepared."""
        if committables:
            with self._requesting(f"listing the transactions prepared for {self._options}") as connection:
                found = {*self._listed(connection)}
            for committable in committables:
                if committable.transaction_id not in found:
                    raise RoundAborted(
                        f"transaction {committable.transaction_id} was prepared for {self._options}, but no longer is:"
                        " another session has ended it, or participants and coordinator connect to different servers"
                        " or as different users"
                    )
        return committables

    def commit(self, committable: Committable) -> None:
        name = self.transactional_ids.exact(committable.transaction_id)
        what = f"transaction {name} ({committable.records} records) to {self._options} is decided"
        with self._requesting(what, self._commit_failed) as connection:
            table = self._table_of(committable)
            if not self._commit(connection, name, what, table) and not table.is_committed(connection, name):
                ids = self.transactional_ids
                raise self._missing(what, table.has_markers(connection, ids.scope, ids.round_of(name).batch_id))

    def _missing(self, what: str, has_older: bool) -> TransactionLost | OutcomeUnknown:
        """Return the error for a decided transaction, ``what``, that is not prepared and has no marker.
        ``has_older``: whether an older batch has a marker, which proves that markers were not removed."""
        what += f", but it is not prepared and has no marker in {MARKERS}"
        advice = (
            f"If '{self._server_option}' was changed, set it back. If the transaction was rolled back by hand"
            f" ({self._rollback}), or the server was restored, or replaced by a standby that did not have the"
            " transaction: make sure that its records are not in the table, write them by other means, give the"
            " transaction up with 'twopc abandon', and start the query again."
        )
        if has_older:
            return TransactionLost(f"{what}. {advice}")
        return OutcomeUnknown(
            f"{what}, and no older batch has one either. It belongs to the first batch, or the markers were removed."
            f" Check whether its records are in the table. If they are, only give the transaction up. {advice}"
        )

    def _table_of(self, committable: Committable) -> Any:
        """Return the table that holds the transaction's marker. By now, the option may name another table."""
        place = committable.handle.get(self._place)
        if not isinstance(place, str):
            return self._table
        return self._table_type(replace(self._options, **{self._place: place}))

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:  # noqa: ARG002
        """Remove the markers of previous batches. Because this batch is decided, the log records the previous batches
        as complete, and they are not committed again."""
        with self._requesting(f"removing the markers of batches before {batch_id} for {self._options}") as connection:
            self._table.prune_markers(connection, self.transactional_ids.scope, batch_id)

    def datasets(self, committables: Sequence[Committable]) -> Sequence[Dataset] | None:  # noqa: ARG002
        dataset = self._options.dataset
        return None if dataset is None else [dataset]

    def abort(self, committable: Committable) -> None:
        name = self.transactional_ids.exact(committable.transaction_id)
        what = f"rolling back transaction {name}"
        with self._requesting(what) as connection:
            self._roll_back(connection, name, what, self._table_of(committable))

    def recover(self) -> Iterable[Committable]:
        with self._requesting(f"listing the transactions prepared for {self._options}") as connection:
            found = self._left(connection)
        return [Committable(name, {}) for name in found if self.transactional_ids.owns_exact(name)]

    def close(self) -> None:
        self._release(getattr(self._options, self._connections))

    @contextlib.contextmanager
    def _requesting(self, what: str, failed: Callable[..., Exception] | None = None) -> Iterator[ConnectionT]:
        """Lend a connection, and map its errors. ``what``: the request, for messages."""
        lent = self._session(getattr(self._options, self._connections))
        with mapped(self._error, failed or self._request_failed, what), lent as connection:
            yield connection
