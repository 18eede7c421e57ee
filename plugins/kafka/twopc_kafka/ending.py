"""Transactions that Kafka is ending. Kafka answers EndTxn before it has written the markers, and may get stuck."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from twopc.errors import OperatorRequired, Retriable
from twopc.retry import until_answered
from twopc.transaction import Committable
from twopc_kafka.answers import (
    EPOCH_BUMPING_END_TXN,
    EndTxnAnswer,
    Outcome,
    TransactionState,
    denied,
    outcome,
    to_end,
)
from twopc_kafka.client.control import Control
from twopc_kafka.handles import identity_of, is_ongoing, version_of

if TYPE_CHECKING:
    from twopc_kafka.client.cluster import OpenTransaction

MARKERS_TIMEOUT_S = 1.0
"""How long to wait for markers before the call fails and is reported. Callers repeat it. Markers take 1 to 3 ms."""

MARKERS_INTERVALS_S = 0.0002, 0.005
"""The first and the longest pause between two checks for markers. Each pause is twice as long as the one before."""

STUCK_S = 40.0
"""How long a transaction looks stuck before the query stops with ``OperatorRequired``. A coordinator whose replicas are
slow looks stuck, too, until it drops them from the in-sync replicas after ``replica.lag.time.max.ms``, 30 s by
default."""

LONGEST_GAP_S = 10.0
"""The longest gap between two checks that find a transaction stuck. After a longer one, ``STUCK_S`` starts again: this
process may have been paused in between."""

ABORT_TIMEOUT_S = 10.0
"""How long a participant tries to roll back a failed transaction, once its requests in flight are answered. After that,
the coordinator's sweep rolls it back."""

_PENDING = "CONCURRENT_TRANSACTIONS"
"""A coordinator's answer to EndTxn while it is still busy with an earlier one."""

_MEND = "raise it to 1 or more (kafka-features.sh upgrade --feature transaction.version=1) and restart the brokers"
ADVICE = (
    "If this persists, are all brokers up? A transaction ends only while each partition that it wrote to, and its"
    " partition of __transaction_state, has a leader and as many replicas in sync as min.insync.replicas asks for: see"
    " kafka-topics.sh --describe with --unavailable-partitions and --under-min-isr-partitions. If transaction.version"
    f" was lowered below 1 recently, {_MEND}"
)
"""What to do about a transaction that Kafka does not end: the last part of the error's message."""


def outcome_of(described: TransactionState | None, committable: Committable, version_now: int | None = None) -> Outcome:
    """Return what became of the transaction. ``version_now``, the version of EndTxn that would end the transaction now,
    stands in for a version that the transaction's record lacks.

    Raises:
        OutcomeUnknown: the transaction's record lacks the producer id, the epoch or, without ``version_now``, the
            version.
    """
    return outcome(described, *identity_of(committable), version_of(committable, version_now))


def wait_for_markers(control: Control, ended: Sequence[Committable]) -> list[Committable]:
    """Wait until the coordinators have finished ending these transactions. A coordinator may report that it has
    finished although it has left markers out.

    Returns:
        The transactions that were not finished within ``MARKERS_TIMEOUT_S``.
    """
    pause_s, longest_s = MARKERS_INTERVALS_S
    deadline = time.monotonic() + MARKERS_TIMEOUT_S
    left = _without_markers(control, ended)
    while left and time.monotonic() < deadline:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)
        left = _without_markers(control, left)
    return left


def _without_markers(control: Control, ended: Sequence[Committable]) -> list[Committable]:
    described = control.describe([committable.transaction_id for committable in ended])
    version = control.end_txn_version
    return [c for c in ended if outcome_of(described.get(c.transaction_id), c, version) is Outcome.ENDING]


def require_markers(control: Control, ended: Sequence[Committable]) -> None:
    """Wait like ``wait_for_markers``. Raises Retriable if a transaction was not finished in time."""
    if left := wait_for_markers(control, ended):
        raise unmarked(left[0])


def unmarked(committable: Committable) -> Retriable:
    """Return the error for a transaction that ``wait_for_markers`` has returned."""
    name = committable.transaction_id
    return Retriable(f"Kafka has not written the markers of transaction {name} yet. {ADVICE}")


class Stuck:
    """Decided transactions that look stuck, and since when.

    A transaction gets stuck if ``transaction.version`` is lowered to 0 while Kafka is ending the transaction by a
    version of EndTxn that needs a higher ``transaction.version``. The coordinator can then proceed no further: the
    transaction stays ongoing while each EndTxn is refused, or stays in its "Prepare" state although all markers are
    written.
    """

    def __init__(self) -> None:
        # Identity → the first and the last look, by time.monotonic.
        self._looks_s: dict[tuple[int, int], tuple[float, float]] = {}

    def refuse(self, control: Control, committable: Committable, answer: str | None = None) -> None:
        """Raise if the transaction has looked stuck in every call for ``STUCK_S``. Callers repeat the call until then.

        Args:
            control: the connection to the cluster.
            committable: the transaction.
            answer: Kafka's answer to the latest EndTxn, if there is one.

        Raises:
            OperatorRequired: only the steps in the message help, and only until the transaction times out.
        """
        identity, now_s = identity_of(committable), time.monotonic()
        first_s, last_s = self._looks_s.pop(identity, (now_s, now_s))
        if not _looks_stuck(control, committable, answer):
            return
        if now_s - last_s > LONGEST_GAP_S:
            first_s = now_s
        if now_s - first_s > STUCK_S:
            raise stuck(committable.transaction_id)
        self._looks_s[identity] = first_s, now_s


def _looks_stuck(control: Control, committable: Committable, answer: str | None) -> bool:
    if version_of(committable, 0) < EPOCH_BUMPING_END_TXN or control.transaction_version > 0:
        return False
    name = committable.transaction_id
    state = control.describe([name]).get(name)
    match outcome_of(state, committable):
        case Outcome.ONGOING:
            return answer == _PENDING
        case Outcome.ENDING:
            return state is not None and not state.partitions
        case _:
            return False


def stuck(name: str) -> OperatorRequired:
    """Return the error for a transaction that its coordinator can't end."""
    return OperatorRequired(
        f"Kafka can't end transaction {name}: transaction.version was lowered below 1 meanwhile, and the coordinator"
        f" can't recover from that by itself. Nothing is lost yet. Before the transaction times out, {_MEND}, one after"
        " the other. Then start again: recovery continues where it stopped."
    )


def abort(control: Control, committable: Committable) -> None:
    """Roll the transaction back. Producer id and epoch identify it, so later transactions of the same name are safe.
    The call succeeds whenever the transaction is no longer ongoing, whatever the answer.

    Raises:
        Retriable: the transaction is still ongoing, or the cluster did not answer.
        OperatorRequired: the brokers deny this principal the right, or the coordinator can't end the transaction.
    """
    name, version = committable.transaction_id, version_of(committable, control.end_txn_version)
    error = control.end(name, *identity_of(committable), commit=False, version=version)
    match to_end(error):
        case EndTxnAnswer.DONE:
            return
        case EndTxnAnswer.DENIED:
            raise denied(f"{error} for {name}")
        case EndTxnAnswer.STUCK:
            raise stuck(name)
        case EndTxnAnswer.REPEAT | EndTxnAnswer.DESCRIBE:
            state = control.describe([name]).get(name)
            if is_ongoing(state, committable):
                raise Retriable(f"the broker answered {error} and describes the transaction as {state}. {ADVICE}")


def roll_back(control: Control, transaction: OpenTransaction) -> None:
    """Roll back a participant's own transaction. Make no attempt after ``ABORT_TIMEOUT_S``. Raises like ``abort``."""
    name = transaction.transactional_id
    committable = Committable(name, asdict(transaction.producer))
    until_answered(f"rollback of {name} by its writer", abort, control, committable, patience_s=ABORT_TIMEOUT_S)
