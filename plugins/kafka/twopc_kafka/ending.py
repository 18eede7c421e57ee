"""Transactions that Kafka is ending. Kafka answers EndTxn before it has written the markers, and may get stuck."""

from __future__ import annotations

import time
from collections.abc import Sequence

from twopc.errors import OperatorRequired, Retriable
from twopc.transaction import Committable
from twopc_kafka.answers import EPOCH_BUMPING_END_TXN, Outcome, TransactionState, outcome
from twopc_kafka.client.control import Control
from twopc_kafka.handles import identity_of, version_of

MARKERS_TIMEOUT_S = 1.0
"""How long to wait for markers before the call fails and is reported. Callers repeat it. Markers take 1 to 3 ms."""

MARKERS_INTERVAL_S = 0.0002
"""The first pause between two looks at whether markers are written. Each later one is twice as long."""

STUCK_S = 10.0
"""How long to watch a transaction that may be stuck before the query stops with ``OperatorRequired``. The operator must
act before the transaction times out."""

_STILL_ENDING = "CONCURRENT_TRANSACTIONS"

_MEND = "raise it to 1 or more (kafka-features.sh upgrade --feature transaction.version=1) and restart the brokers"
ADVICE = (
    "If this persists, are all brokers up? A transaction ends only while each partition that it wrote to, and its"
    " partition of __transaction_state, has a leader and as many replicas in sync as min.insync.replicas asks for: see"
    " kafka-topics.sh --describe with --unavailable-partitions and --under-min-isr-partitions. If transaction.version"
    f" was lowered below 1 recently, {_MEND}"
)
"""What to do about a transaction that Kafka does not end. It ends the error's message."""


def outcome_of(described: TransactionState | None, committable: Committable, version_now: int | None = None) -> Outcome:
    """Return what became of the transaction. ``version_now`` is the version of EndTxn that would end it now. It is used
    if the transaction's record has no version.

    Raises:
        OutcomeUnknown: the transaction's record lacks the producer id, the epoch, or the version while there is no
            ``version_now``.
    """
    return outcome(described, *identity_of(committable), version_of(committable, version_now))


def wait_for_markers(control: Control, ended: Sequence[Committable]) -> None:
    """Wait until the coordinators have finished ending these transactions. They may have left out markers.

    Raises:
        Retriable: a coordinator has not finished yet.
        OperatorRequired: a coordinator can't finish.
    """
    deadline, pause_s = time.monotonic() + MARKERS_TIMEOUT_S, MARKERS_INTERVAL_S
    while ended := _without_markers(control, ended):
        if time.monotonic() > deadline:
            refuse_stuck(control, ended[0])
            name = ended[0].transaction_id
            raise Retriable(f"Kafka has not written the markers of transaction {name} yet. {ADVICE}")
        time.sleep(pause_s)
        pause_s *= 2


def _without_markers(control: Control, ended: Sequence[Committable]) -> list[Committable]:
    described = control.describe([committable.transaction_id for committable in ended]) if ended else {}
    return [
        c for c in ended if outcome_of(described.get(c.transaction_id), c, control.end_txn_version) is Outcome.ENDING
    ]


def refuse_stuck(control: Control, committable: Committable) -> None:
    """Raise if the transaction is stuck: ``transaction.version`` was lowered to 0 while Kafka was ending the
    transaction by a version of EndTxn that needs a higher one. The coordinator can then proceed no further: the
    transaction stays ongoing while each EndTxn is refused, or stays in its "Prepare" state although all markers are
    written. Asks for the commit of an ongoing one.

    Raises:
        OperatorRequired: the transaction is stuck. Only the message's advice helps, and the transaction may time out.
    """
    if version_of(committable, 0) < EPOCH_BUMPING_END_TXN or control.transaction_version > 0:
        return
    name, deadline = committable.transaction_id, time.monotonic() + STUCK_S
    while _is_stuck(control, committable, control.describe([name]).get(name)):
        if time.monotonic() > deadline:
            raise stuck(name)
        time.sleep(STUCK_S / 10)


def _is_stuck(control: Control, committable: Committable, state: TransactionState | None) -> bool:
    match outcome_of(state, committable, control.end_txn_version):
        case Outcome.ONGOING:
            # Nobody else asks for its commit meanwhile. A coordinator that was starting accepts it by now.
            name, version = committable.transaction_id, version_of(committable)
            return control.end(name, *identity_of(committable), commit=True, version=version) == _STILL_ENDING
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
