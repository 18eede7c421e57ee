"""The Pravega sink: one transaction per task attempt, written by its task and committed by the coordinator.

A Pravega transaction belongs to no connection: any process that knows its id can commit it or roll it back. The
controller rolls it back by itself when its lease ends.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from twopc.checks import CheckResult
from twopc.datasets import Dataset
from twopc.errors import (
    ConfigurationError,
    CorruptLog,
    OperatorRequired,
    OutcomeUnknown,
    Retriable,
    RoundAborted,
    TransactionLost,
    TwoPhaseCommitError,
)
from twopc.failures import mapped
from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import TransactionId
from twopc_pravega.controller import Begun, Controller, Ping, State, Txn, controller_of, release, renewal_due
from twopc_pravega.events import blocks, check_columns, check_records, routed
from twopc_pravega.options import PravegaOptions
from twopc_pravega.outcomes import ERRORS, PravegaError, is_missing, request_failed, write_failed
from twopc_pravega.register import Register
from twopc_pravega.segments import Appender, Place

VISIBLE_PATIENCE_S = 10.0
"""How long one call of ``commit`` waits until readers see a transaction. After that the coordinator repeats it."""

_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.002, 0.1

_PINGS_PER_LEASE = 4


class PravegaTransaction(Transaction):
    """A live transaction, and a connection for each segment that it has written to.

    Attributes:
        token_due_s: when to renew its token, by ``time.monotonic``; None for never.
        pinged_s: when its lease was last requested, by ``time.monotonic``. The lease began then or later.
        appenders: position of a segment → its writer.
        turn: the position of the segment that received the last block without keys. Tasks begin with different ones.
    """

    def __init__(self, transaction_id: TransactionId, begun: Begun, pinged_s: float) -> None:
        super().__init__(transaction_id)
        self.txn, self.segments, self.token = begun.txn, begun.segments, begun.token
        self.token_due_s = renewal_due(begun.token)
        self.pinged_s = pinged_s
        self.appenders: dict[int, Appender] = {}
        self.turn = random.randrange(len(begun.segments))  # noqa: S311  # not for security

    def close(self) -> None:
        for appender in self.appenders.values():
            appender.close()
        self.appenders = {}


class PravegaSink(TwoPhaseCommitSink[PravegaTransaction]):
    """Writes records to a stream: the column ``value`` is the event, ``key`` its routing key.

    Args:
        options: ``controller``: its address. ``stream``: ``scope/stream``. ``lease_s``: how long Pravega keeps a
            transaction from which it hears nothing. ``username``, ``password``, ``ca_file``.

    Raises:
        ConfigurationError: an option is unknown, missing or wrong. The sink made no connection.
    """

    may_time_out = True
    refuses_before_writing = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = PravegaOptions.parse(options)

    def __repr__(self) -> str:
        return f"PravegaSink({self._options})"

    @property
    def _controller(self) -> Controller:
        return controller_of(self._options.server)

    @property
    def _register(self) -> Register:
        return Register(self._controller, self._options.stream.scope, self.transactional_ids.scope)

    # On the participant. ----------------------------------------------------------------------------------------

    def begin(self, transaction_id: TransactionId) -> PravegaTransaction:
        """Begin a transaction and enter it in the register. If a crash comes between, the transaction ends with its
        lease."""
        pinged_s = time.monotonic()
        with self._writing(transaction_id):
            begun = self._controller.begin(self._options.stream, self._options.lease_ms)
        try:
            with self._writing(transaction_id):
                self._register.add(transaction_id.exact, begun.txn)
        except BaseException:
            with contextlib.suppress(*ERRORS):
                self._controller.abort(begun.txn)
            raise
        return PravegaTransaction(transaction_id, begun, pinged_s)

    def write(self, transaction: PravegaTransaction, batch: pa.RecordBatch) -> None:
        check_records(batch)
        with self._writing(transaction.id):
            self._keep_alive(transaction)
            for position, values in routed(batch, transaction.segments):
                for block, events in blocks(values):
                    self._appender(transaction, position).append(block, events)

    def _keep_alive(self, transaction: PravegaTransaction) -> None:
        """Renew the lease and the token when they are due."""
        if time.monotonic() > transaction.pinged_s + self._options.lease_ms / 1000 / _PINGS_PER_LEASE:
            self._ping(transaction)
        if transaction.token_due_s is not None and time.monotonic() > transaction.token_due_s:
            transaction.token = self._controller.token(transaction.txn.stream)
            transaction.token_due_s = renewal_due(transaction.token)
            for appender in transaction.appenders.values():
                appender.renew(transaction.token)

    def _ping(self, transaction: PravegaTransaction) -> None:
        pinged_s = time.monotonic()
        answer = self._controller.ping(transaction.txn, self._options.lease_ms)
        if answer is not Ping.OK:
            raise self._ended(transaction.id.exact, answer)
        transaction.pinged_s = pinged_s

    def _appender(self, transaction: PravegaTransaction, position: int | None) -> Appender:
        if position is None:
            position = transaction.turn = (transaction.turn + 1) % len(transaction.segments)
        if position not in transaction.appenders:
            txn, segment = transaction.txn, transaction.segments[position].id
            place = Place(self._controller, txn.stream, segment, txn.id)
            transaction.appenders[position] = Appender(place, transaction.token)
        return transaction.appenders[position]

    def pre_commit(self, transaction: PravegaTransaction) -> Committable:
        with self._writing(transaction.id):
            for appender in transaction.appenders.values():
                appender.flush()
            self._ping(transaction)  # the lease begins with the vote
        transaction.close()
        return Committable(transaction.id.exact, transaction.txn.to_json(), transaction.records)

    def discard(self, transaction: PravegaTransaction) -> None:
        transaction.close()
        self.abort(Committable(transaction.id.exact, transaction.txn.to_json()))

    def _writing(self, transaction_id: TransactionId) -> contextlib.AbstractContextManager[None]:
        return mapped(ERRORS, self._write_failed, f"transaction {transaction_id.exact} to {self._options}")

    def _write_failed(self, error: PravegaError, what: str) -> TwoPhaseCommitError:
        return self._no_stream() if is_missing(error) else write_failed(error, what)

    # On the coordinator. ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Create the register.

        Raises:
            ConfigurationError: there is no such stream.
            OperatorRequired: the cluster has no register, but the log contains decided transactions that the register
                must list.
            Retriable: Pravega does not answer.
        """
        with self._requesting(f"opening {self._options}"):
            self._require_stream()
            if self.pending and not self._register.exists():
                raise self._other_cluster()
            self._register.create()

    def _other_cluster(self) -> OperatorRequired:
        """Return the error for a cluster without the register. Pravega's transaction ids are small numbers, so other
        transactions may have the same ids on this cluster."""
        register = self._register.stream
        return OperatorRequired(
            f"{self._options}: batch {next(iter(self.pending))} is decided, and this cluster does not have {register},"
            " which lists its transactions. Set 'controller' back to the cluster that has the batch. If there is none"
            " any more, write the batch by other means, and give it up with 'twopc abandon'."
        )

    def validate(self, schema: pa.Schema) -> None:
        check_columns(schema)
        with self._requesting(f"looking for {self._options}"):
            self._require_stream()

    def _require_stream(self) -> None:
        if not self._controller.exists(self._options.stream):
            raise self._no_stream()

    def _no_stream(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self._options} does not exist. Create it and its scope; the sink does not.", option="stream"
        )

    def check(self) -> Iterator[CheckResult]:
        with self._requesting(f"looking for {self._options}"):
            self._require_stream()
            segments = len(self._controller.segments(self._options.stream))
            yield CheckResult.passed(f"{self._options}: existence", f"segments: {segments}")
        yield CheckResult.of(f"trial transaction with a lease of {self._options.lease_ms / 1000:g} s", self._try)

    def _try(self) -> None:
        """Begin a transaction without a register entry, and roll it back."""
        with self._requesting(f"beginning a transaction of {self._options}"):
            with mapped(ERRORS, write_failed, f"a transaction of {self._options}"):
                begun = self._controller.begin(self._options.stream, self._options.lease_ms)
            place = Place(self._controller, begun.txn.stream, begun.segments[0].id, begun.txn.id)
            try:
                Appender(place, begun.token).close()
            finally:
                self._controller.abort(begun.txn)

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:  # noqa: ARG002
        """Renew the lease of every transaction, or veto the batch if one has ended."""
        with self._requesting(f"renewing the leases of {len(committables)} transactions of {self._options}"):
            answers = self._controller.ping_each(map(self._txn, committables), self._options.lease_ms)
        for committable, answer in zip(committables, answers, strict=True):
            if answer is Ping.DISCONNECTED:
                raise Retriable(f"the controller of transaction {committable.transaction_id} is shutting down")
            if answer is not Ping.OK:
                raise self._ended(committable.transaction_id, answer)
        return committables

    def _ended(self, name: str, answer: Ping) -> RoundAborted:
        """Return the error for an undecided transaction that can't be kept open."""
        if answer is Ping.MAX_EXECUTION_TIME_EXCEEDED:
            return RoundAborted(
                f"transaction {name} to {self._options} can't be kept open for longer: the controller has a limit for"
                " the whole life of a transaction, a day by default. Make batches smaller, or lower 'lease_s'."
            )
        return RoundAborted(
            f"transaction {name} to {self._options} can't be committed any more: the controller answers {answer.name}."
            f" Its lease was {self._options.lease_ms / 1000:g} s. If phase one takes longer, raise 'lease_s' and the"
            " controller's transaction.lease.count.max, or make batches smaller."
        )

    def commit(self, committable: Committable) -> None:
        txn = self._txn(committable)
        what = f"transaction {committable.transaction_id} ({committable.records} records, {txn}) is decided"
        with self._requesting(what):
            granted = self._controller.commit(txn)
            deadline, pause_s = time.monotonic() + VISIBLE_PATIENCE_S, _FIRST_LOOK_S
            while (state := self._controller.state(txn)) is not State.COMMITTED:
                if state in (State.ABORTED, State.ABORTING):
                    raise self._lost(what)
                if state is State.UNKNOWN:
                    raise self._unknown(what)
                if not granted or time.monotonic() > deadline:
                    raise Retriable(f"{what}, and the controller reports it as {state.name}")
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_LOOK_S)

    def _lost(self, what: str) -> TransactionLost:
        return TransactionLost(
            f"{what}, but the controller has rolled it back: its lease of {self._options.lease_ms / 1000:g} s has"
            " ended, or somebody has aborted it. Its records are not in the stream. Write them by other means, give the"
            " transaction up with 'twopc abandon', and start the query again. Raise 'lease_s' if the query may be down"
            " for longer."
        )

    def _unknown(self, what: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{what}, but the controller does not know it. It forgets transactions a day after their end, and those of"
            " a stream that is deleted. Check whether the records are in the stream. If they are not, write them by"
            " other means. Then give the transaction up with 'twopc abandon', and start the query again."
        )

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:  # noqa: ARG002
        """Truncate the register up to the first transaction that is still open."""
        committed = {committable.transaction_id for committable in committables}
        with self._requesting(f"truncating the register of {self._options}"):
            register = self._register
            entries = register.entries()
            others = [entry for entry in entries if entry.name not in committed]
            states = self._controller.state_each(entry.txn for entry in others)
            open_ = {entry.end for entry, state in zip(others, states, strict=True) if state is State.OPEN}
            offset = 0
            for entry in entries:
                if entry.end in open_:
                    break
                offset = entry.end
            if offset:
                register.truncate(offset)

    def datasets(self, committables: Sequence[Committable]) -> Sequence[Dataset]:  # noqa: ARG002
        return [Dataset(f"pravega://{self._options.server.target}", str(self._options.stream))]

    def abort(self, committable: Committable) -> None:
        txn = self._txn(committable)
        with self._requesting(f"rolling back transaction {committable.transaction_id}, {txn}"):
            if not self._controller.abort(txn) and self._controller.state(txn) is State.OPEN:
                raise Retriable(f"the controller has not rolled back transaction {committable.transaction_id}")

    def recover(self) -> Iterable[Committable]:
        with self._requesting(f"reading the register of {self._options}"):
            entries = self._register.entries()
            states = self._controller.state_each(entry.txn for entry in entries)
        return [
            Committable(entry.name, entry.txn.to_json())
            for entry, state in zip(entries, states, strict=True)
            if state is State.OPEN and self.transactional_ids.owns_exact(entry.name)
        ]

    def _txn(self, committable: Committable) -> Txn:
        """Return the transaction's name in Pravega. Raises CorruptLog if it belongs to another sink."""
        self.transactional_ids.exact(committable.transaction_id)
        try:
            return Txn.from_json(committable.handle)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptLog(
                f"the handle of transaction {committable.transaction_id} names no Pravega transaction: {error!r}."
                " Nothing was touched. Was the log edited? Restore it."
            ) from error

    def close(self) -> None:
        release(self._options.server)

    def _requesting(self, what: str) -> contextlib.AbstractContextManager[None]:
        return mapped(ERRORS, request_failed, what)
