"""Transactions that Kafka is ending: it answers EndTxn before it has written its markers, and may get stuck."""

from __future__ import annotations

import time
from collections.abc import Sequence

from twopc.errors import OperatorRequired, Retriable
from twopc.transaction import Committable
from twopc_kafka.answers import EPOCH_BUMPING_END_TXN, Outcome, TransactionState, outcome
from twopc_kafka.client.control import Control
from twopc_kafka.handles import identity_of, version_of

MARKERS_TIMEOUT_S = 1.0
"""Markers take 1 to 3 ms. A wait of this long is reported to the operator, and the call repeated."""

MARKERS_INTERVAL_S = 0.001

STUCK_S = 10.0
"""How long a transaction that may never end is watched. Then an operator is called, who must act before its timeout."""

_MEND = "raise it to 1 or more (kafka-features.sh upgrade --feature transaction.version=1) and restart the brokers"
IF_IT_STAYS = f"If it stays so: if transaction.version was lowered below 1 lately, {_MEND}"


def outcome_of(described: TransactionState | None, committable: Committable, version_now: int | None = None) -> Outcome:
    """Return what became of the transaction. ``version_now`` is the version of EndTxn that would end it now, for one
    that has none recorded.

    Raises:
        OutcomeUnknown: the record of the transaction lacks its producer id, its epoch, or the version without a
            ``version_now``.
    """
    return outcome(described, *identity_of(committable), version_of(committable, version_now))


def wait_for_markers(control: Control, ended: Sequence[Committable]) -> None:
    """Return when the coordinators have written the markers of these transactions, or have left some out.

    Raises:
        Retriable: they have not yet.
        OperatorRequired: they never will.
    """
    deadline = time.monotonic() + MARKERS_TIMEOUT_S
    while ended := _without_markers(control, ended):
        if time.monotonic() > deadline:
            refuse_stuck(control, ended[0])
            name = ended[0].transaction_id
            raise Retriable(f"Kafka has not written the markers of {name} yet. {IF_IT_STAYS}")
        time.sleep(MARKERS_INTERVAL_S)


def _without_markers(control: Control, ended: Sequence[Committable]) -> list[Committable]:
    described = control.describe([committable.transaction_id for committable in ended]) if ended else {}
    return [
        c for c in ended if outcome_of(described.get(c.transaction_id), c, control.end_txn_version) is Outcome.ENDING
    ]


def refuse_stuck(control: Control, committable: Committable) -> None:
    """Find out whether ``transaction.version`` was lowered to 0 while Kafka was ending a transaction by a version of
    EndTxn that needs more. Its coordinator then stays where it was: before the end, or with all markers written and
    unable to note it.

    Raises:
        OperatorRequired: it was. Only what the message advises helps, and the transaction may time out.
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
            return True
        case Outcome.ENDING:
            return state is not None and not state.partitions
        case _:
            return False


def stuck(name: str) -> OperatorRequired:
    """The error for a transaction that its coordinator can't end."""
    return OperatorRequired(
        f"Kafka can't end transaction {name}: transaction.version was lowered below 1 meanwhile, and its coordinator"
        f" does not get over that. Nothing is lost yet. Before the transaction times out, {_MEND}, one after the other;"
        " then start again: recovery goes on where this stopped."
    )
