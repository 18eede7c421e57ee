"""Transactions that hang: their coordinator has ended them, but a partition lacks the marker (KAFKA-20734).

Up to Kafka 4.3.1 a coordinator leaves the marker out if a partition has no leader for a moment, and still reports the
transaction as complete. In that partition, a committed transaction is then invisible and holds back readers. The
records of a rolled-back transaction become visible with the next commit of its producer. This module finds both kinds
of transaction and writes the missing marker.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from typing import TypeAlias

from twopc.errors import OperatorRequired, Retriable
from twopc.transaction import Committable, JsonValue
from twopc_kafka.answers import OpenInPartition, Outcome, TransactionState, hangs
from twopc_kafka.client.control import Control
from twopc_kafka.client.leaders import Away, Leaders, Seen, TopicPartition
from twopc_kafka.client.requests import Partitions
from twopc_kafka.ending import outcome_of, require_markers
from twopc_kafka.handles import identity_of

logger = logging.getLogger(__name__)

LOOK_MAX_AGE_S = 1.0
"""How long the result of a look that found no hanging transaction is reused. It spares the sweep right after a
completed batch a look of its own."""

_WHERE = "hanging"  # the key in a hanging transaction's handle; its value is the partition in which it hangs

_BY_KAFKAS_TOOL = "Or abort the transaction in this partition with kafka-transactions.sh."
_UNLESS_COMMITTED = "Do not abort it with kafka-transactions.sh: its records would be lost."

Listed: TypeAlias = "Callable[[list[int]], Iterable[tuple[str, TransactionState]]]"
"""Producer ids → the names and states of this log's transactions that have one of them."""


class Hanging:
    """The partitions that this sink's transactions wrote to, and the result of the last look at their leaders.

    Args:
        topic: the topic of the sink's options. All of its partitions are looked at.
    """

    def __init__(self, topic: str | None) -> None:
        self._topic = topic
        self._written_to: dict[str, set[int]] = {}
        self._nothing_hung_s = -math.inf  # time.monotonic of the last look that found none
        self.away: frozenset[TopicPartition] = frozenset()

    def note_written(self, partitions: Partitions) -> None:
        """Note partitions to look at. Kafka forgets a transaction's partitions when it ends the transaction."""
        for topic, numbers in partitions.items():
            self._written_to.setdefault(topic, set()).update(numbers)

    def look(self, leaders: Leaders) -> Seen:
        """Return the transactions that are open where this sink may have written. Note which partitions can't be asked,
        and whether nothing was open."""
        since_s = time.monotonic()
        seen = leaders.open_transactions(self._written_to, self._topic)
        self._note_away(seen.away)
        self._nothing_hung_s = -math.inf if seen.open or seen.away else since_s
        return seen

    def forget_last_look(self) -> None:
        """Make the next sweep look again, whatever the last look found."""
        self._nothing_hung_s = -math.inf

    def take_nothing_hung(self) -> bool:
        """Return whether a recent look found no hanging transaction. A look counts for one call only: the sweep right
        after a completed batch may rely on it, but a later sweep follows an abort or a lost attempt."""
        is_recent, self._nothing_hung_s = time.monotonic() - self._nothing_hung_s < LOOK_MAX_AGE_S, -math.inf
        return is_recent

    def found(self, control: Control, listed: Listed) -> list[Committable]:
        """Return the transactions that were rolled back, but hang in a partition where Kafka left out the marker.

        Upholds: nothing undecided is ever visible. The records in that partition would become visible with the next
        commit of the same producer.
        """
        away: dict[TopicPartition, Away] = {}
        while open_ := self._open(control.leaders, listed, away):
            # A transaction that is being rolled back may hang afterwards.
            ending = [
                transaction
                for transaction, state in open_
                if state.state != "PrepareCommit"
                and outcome_of(state, transaction, control.end_txn_version) is Outcome.ENDING
            ]
            if not ending:
                break
            require_markers(control, ending)
        self._note_away(away)
        version = control.end_txn_version
        return [transaction for transaction, state in open_ if hangs(state, identity_of(transaction)[1], version)]

    def _open(
        self, leaders: Leaders, listed: Listed, away: dict[TopicPartition, Away]
    ) -> list[tuple[Committable, TransactionState]]:
        """Return the transactions of this log that are open where this sink may have written, each with the state that
        its coordinator reported before the last look. Add partitions that can't be asked to ``away``."""
        before = leaders.open_transactions(self._written_to, self._topic)
        away |= before.away
        if not before.open:
            return []
        of_producer = {state.producer_id: (name, state) for name, state in listed([o.producer_id for o in before.open])}
        # Look again: only a transaction that a partition has open *after* its coordinator reported the end hangs.
        after = leaders.open_transactions(self._written_to, self._topic)
        away |= after.away
        still_open = set(before.open).intersection(after.open)
        found = [(each, *of_producer[each.producer_id]) for each in still_open if each.producer_id in of_producer]
        return [(Committable(name, _handle_of(each)), state) for each, name, state in found]

    def _note_away(self, away: Mapping[TopicPartition, Away]) -> None:
        """Log which partitions can no longer be asked, and which can be asked again."""
        if new := away.keys() - self.away:
            logger.warning(
                "%s can't be asked for hanging transactions: %s. Batches that write there wait; other batches continue."
                " Each sweep asks again",
                _named(new),
                away[min(new)].reason,
            )
        if back := self.away - away.keys():
            logger.warning("%s can be asked again", _named(back))
        self.away = frozenset(away)


def end(leaders: Leaders, transaction: OpenInPartition, name: str, commit: bool) -> None:
    """Write the missing marker of a transaction. The marker's epoch ensures that it can't end a later transaction.

    Raises:
        Retriable: the marker was not written.
        OperatorRequired: the brokers deny this principal the right.
    """
    error = leaders.write_marker(transaction, commit)
    ended = "committed" if commit else "rolled back"
    match error:
        case "NO_ERROR":
            logger.warning(
                "wrote a marker that Kafka had left out (KAFKA-20734): %s is now %s in %s too", name, ended, transaction
            )
        case "INVALID_PRODUCER_EPOCH" | "PRODUCER_FENCED":
            pass  # this partition has a newer epoch of the producer, so the transaction has ended there
        case "CLUSTER_AUTHORIZATION_FAILED":
            raise OperatorRequired(
                f"Kafka has left out a marker (KAFKA-20734): transaction {name} is {ended} but hangs in {transaction},"
                " where it holds back readers, and the brokers deny this principal the right to write the marker."
                " Grant it ALTER on the cluster, if only while 'twopc resolve' runs as this principal, and start again."
                f" {_UNLESS_COMMITTED if commit else _BY_KAFKAS_TOOL}"
            )
        case _:
            raise Retriable(f"the marker of {name} in {transaction} was not written: {error}")


def where(committable: Committable) -> OpenInPartition | None:
    """Return the partition in which a transaction of ``Hanging.found`` hangs, or None for any other transaction."""
    found = committable.handle.get(_WHERE)
    return OpenInPartition(**found) if isinstance(found, dict) else None  # type: ignore[arg-type]


def unasked(away: Mapping[TopicPartition, Away]) -> str:
    """Return a phrase for an error's message: which partitions can't be asked, and why."""
    return f"{_named(away)} can't be asked: {away[min(away)].reason}"


def _named(partitions: Collection[TopicPartition]) -> str:
    topic, number = min(partitions)
    others = f" (and {len(partitions) - 1} other partitions)" if len(partitions) > 1 else ""
    return f"partition {topic}-{number}{others}"


def _handle_of(open_: OpenInPartition) -> dict[str, JsonValue]:
    producer_id, epoch = open_.identity
    return {"producer_id": producer_id, "producer_epoch": epoch, _WHERE: asdict(open_)}
