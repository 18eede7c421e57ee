"""What the sinks of databases share that prepare a transaction under a name, such as PostgreSQL and MySQL.

Such a database forgets the name of a transaction that has ended. So a transaction writes a row about itself, its
marker, which exists exactly if the transaction is committed.
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
    """Return the texts of each record put together, as ``BYTES``; null where one of them is null."""
    all_bytes = [pa.scalar(part.encode(), BYTES) if isinstance(part, str) else part for part in (*parts, by)]
    return pc.binary_join_element_wise(*all_bytes)


class MarkedTable(ABC, Generic[ConnectionT]):
    """All SQL of such a sink: of its table, and of the markers. The methods raise the errors of the database's client.

    A marker exists exactly if its transaction is committed, whichever process ended it. A failover or a restore from a
    backup undoes both together.
    """

    markers: str  # the marker table, as it stands in a statement
    _waiting: ClassVar[str] = ""  # the end of a SELECT that waits for the transaction that has written a row

    @abstractmethod
    def columns(self, connection: ConnectionT) -> Sequence[TableColumn]:
        """Return the table's columns; none if there is no table."""

    @abstractmethod
    def make_markers(self, connection: ConnectionT) -> None:
        """Create the marker table if it is missing."""

    @abstractmethod
    def prune_markers(self, connection: ConnectionT, scope: str, before_batch_id: int) -> None:
        """Remove the markers of older batches, but keep the newest, which prove that the table was not emptied."""

    @abstractmethod
    def _of_markers(self, connection: ConnectionT, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement. ``{markers}`` stands for the marker table, and other names in braces for values."""

    def mark(self, connection: ConnectionT, transaction_id: TransactionId, scope: str) -> None:
        """Write the transaction's own marker."""
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
    """A live transaction and its connection. ``schema`` has the records' columns, and ``columns`` the table's by name,
    which keep their types until the transaction ends; both are empty before the first record. ``is_partial``: whether a
    write has failed, so that the transaction may have only a part of its records."""

    def __init__(self, transaction_id: TransactionId, connection: ConnectionT) -> None:
        super().__init__(transaction_id)
        self.connection = connection
        self.schema = pa.schema([])
        self.columns: dict[str, ColumnT] = {}
        self.is_partial = False


PreparedT = TypeVar("PreparedT", bound=PreparedTransaction[Any, Any])


@contextlib.contextmanager
def _whole(transaction: PreparedTransaction[Any, Any]) -> Iterator[None]:
    """Upholds: a transaction that may lack records is not prepared."""
    try:
        yield
    except BaseException:
        transaction.is_partial = True
        raise


class PreparedSink(KeyedSink[PreparedT], Generic[PreparedT, ConnectionT]):
    """A sink of a database: one transaction per task attempt, prepared by its task and ended by the coordinator."""

    takes_repeated_keys = True

    # Subclasses set these.
    _options_type: ClassVar[Any]  # parses the options; their ``str`` names the table and its server, for messages
    _table_type: ClassVar[Any]  # makes a ``MarkedTable`` of the options
    _connections: ClassVar[str]  # the option that says how to reach the server, for ``_session`` and ``_release``
    _session: ClassVar[Any]  # lends a connection of the coordinator, in which each statement is a transaction
    _release: ClassVar[Any]  # closes the idle ones
    _error: ClassVar[type[Exception]]  # what the database's client raises
    _write_failed: ClassVar[Callable[..., Exception]]  # the error for a participant's call, with the records' columns
    _request_failed: ClassVar[Callable[..., Exception]]  # the error for a coordinator's request that may be repeated
    _commit_failed: ClassVar[Callable[..., Exception]]  # the error for a commit
    _longest_name: ClassVar[int]  # the most bytes of a transaction's name
    _longest_scope: ClassVar[int]  # the most of them for the sink's scope: five numbers follow it
    _place: ClassVar[str]  # the part of a committable's handle, and the option, that says where the marker is
    _server_option: ClassVar[str]  # the option that says which server it is
    _rollback: ClassVar[str]  # the statement by which an operator can roll a prepared transaction back

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options: Any = self._options_type.parse(options)
        self._table: Any = self._table_type(self._options)
        self._lag = Lag()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options})"

    @property
    def key(self) -> tuple[str, ...]:
        return cast("tuple[str, ...]", self._options.upsert_by)

    # What each database has. ------------------------------------------------------------------------------------------

    @abstractmethod
    def _execute(self, connection: ConnectionT, statement: str) -> None:
        """Run a statement that has no result."""

    @abstractmethod
    def _keep(self, transaction: PreparedT, written: Sequence[str]) -> None:
        """Keep the table's definition as it is until the transaction ends. ``written``: the columns of the records;
        none before a delete."""

    @abstractmethod
    def _insert(self, transaction: PreparedT, batch: pa.RecordBatch) -> None:
        """Write records. Raises RecordRefused for one that the database does not hold, or would change."""

    @abstractmethod
    def _remove(self, transaction: PreparedT, keys: pa.RecordBatch) -> None:
        """Delete the rows of keys. Raises like ``_insert``."""

    @abstractmethod
    def _prepare(self, transaction: PreparedT) -> None:
        """Write the transaction's marker, prepare the transaction, and close its connection."""

    @abstractmethod
    def _commit(self, connection: ConnectionT, name: str, what: str, table: Any) -> bool:
        """Commit a prepared transaction. Return False if the server has no such transaction any more, or does not prove
        that it has committed it. ``table`` has its marker."""

    @abstractmethod
    def _roll_back(self, connection: ConnectionT, name: str, what: str, table: Any) -> None:
        """Roll a prepared transaction back, if it is there. ``table`` has its marker."""

    @abstractmethod
    def _listed(self, connection: ConnectionT) -> Collection[str]:
        """Return the names of the prepared transactions that may be of this sink, and that this process can end."""

    def _left(self, connection: ConnectionT) -> Collection[str]:
        """Return the names of the transactions that an earlier process may have left, also of those that this one can't
        end. The default lists the others."""
        return self._listed(connection)

    @abstractmethod
    def _require_able(self, connection: ConnectionT) -> object:
        """Raise ConfigurationError if the server can't prepare transactions."""

    @abstractmethod
    def _require_current(self, connection: ConnectionT, what: str) -> object:
        """Make sure that what the server shows next is what it has committed, and no older copy of it.

        Raises:
            Retriable: it is a replica. Raises otherwise the errors of the database's client.
        """

    # On the participant. ----------------------------------------------------------------------------------------------

    def write(self, transaction: PreparedT, batch: pa.RecordBatch) -> None:
        self._require_columns(transaction, batch.schema)
        self._change(transaction, batch, self._insert)

    def delete(self, transaction: PreparedT, keys: pa.RecordBatch) -> None:
        self._require_keys(transaction, keys.schema)
        self._change(transaction, keys, self._remove)

    def write_valid(self, transaction: PreparedT, batch: pa.RecordBatch) -> Iterator[RecordRefused]:
        self._require_columns(transaction, batch.schema)  # a savepoint would give the table's lock back
        return written_by_halves(lambda records: self._change_or_undo(transaction, records, self._insert), batch)

    def delete_valid(self, transaction: PreparedT, keys: pa.RecordBatch) -> Iterator[RecordRefused]:
        self._require_keys(transaction, keys.schema)
        return written_by_halves(lambda some: self._change_or_undo(transaction, some, self._remove), keys)

    def _require_columns(self, transaction: PreparedT, schema: pa.Schema) -> None:
        """Check the table, which may have been changed since the schema was validated, and keep it as it is until the
        transaction ends."""
        with _whole(transaction):
            if schema != transaction.schema:
                before, names = sorted(transaction.schema.names), sorted(schema.names)
                if before and before != names:  # an upsert writes the columns of all of them at its end
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
        """Change rows, and undo that if a record is refused."""
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
        """Change rows, and find out now what ``_prepare`` would refuse. The default has all of it done here."""
        self._change(transaction, batch, change)

    def _run(self, transaction: PreparedT, statement: str) -> None:
        with self._writing(transaction.id):
            self._execute(transaction.connection, statement)

    def pre_commit(self, transaction: PreparedT) -> Committable:
        name = transaction.id.exact
        if transaction.is_partial:  # to the server, the transaction may be as good as any
            raise RoundAborted(f"transaction {name} to {self._options} lacks the records of a failed write")
        with self._writing(transaction.id, transaction.schema.names):
            self._prepare(transaction)
        return Committable(name, {self._place: getattr(self._options, self._place)}, transaction.records)

    def _writing(
        self, transaction_id: TransactionId, columns: Collection[str] | None = None
    ) -> AbstractContextManager[None]:
        """Map the errors of a participant's call. ``columns``: those of the records; None if no record is involved, so
        that none can be the cause."""
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
            ConfigurationError: the server can't, or the names would be too long.
            LogMismatch: the markers end before the last batch that the log has as committed.
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
        """Upholds: no batch follows one that is gone, as in a database that was restored while the query was stopped.

        Without a marker, it may be another database than that of the log's batches: the log knows the sink's name
        alone. The newest batch keeps its markers.
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
        """Return the check of all prepared transactions of the server. ``held``: what they do meanwhile."""
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
        """Return the error for a decided transaction, ``what``, that is neither prepared nor has a marker.
        ``has_older``: whether an older batch has one, so that none was removed."""
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
        """Return the table that has the transaction's marker: the option may name another one since."""
        place = committable.handle.get(self._place)
        if not isinstance(place, str):
            return self._table
        return self._table_type(replace(self._options, **{self._place: place}))

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:  # noqa: ARG002
        """Remove the markers of the previous batches. This batch is decided, so the log records those as complete, and
        they are not committed again."""
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
        """Lend a connection, and map its errors. ``what`` names the request."""
        lent = self._session(getattr(self._options, self._connections))
        with mapped(self._error, failed or self._request_failed, what), lent as connection:
            yield connection
