"""Transactions that hang: their coordinator has ended them, and a partition has no marker of that (KAFKA-20734).

Up to Kafka 4.3.1 a coordinator leaves the marker out where a partition has no leader for a moment, and reports the
transaction as complete. A transaction that was committed so is not visible, and holds back readers. One that was rolled
back so becomes visible with the next commit of its producer in that partition. A marker from here ends both.
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
from twopc_kafka.answers import Outcome, TransactionState, hangs
from twopc_kafka.client.control import Control
from twopc_kafka.client.leaders import RECENT_S, Away, Leaders, OpenInPartition, Seen, TopicPartition
from twopc_kafka.client.requests import Partitions
from twopc_kafka.ending import outcome_of, wait_for_markers
from twopc_kafka.handles import identity_of

logger = logging.getLogger(__name__)

_WHERE = "hanging"  # in the handle of a transaction that hangs: its partition

_BY_KAFKAS_TOOL = "Or have kafka-transactions.sh abort it there."
_UNLESS_COMMITTED = "Don't have kafka-transactions.sh abort it: its records would be lost."

Listed: TypeAlias = "Callable[[list[int]], Iterable[tuple[str, TransactionState]]]"
"""Lists this log's transactions of some producer ids, with their states."""


class Hanging:
    """Where this sink's transactions wrote, and what its last look at the leaders of those partitions has shown.

    Args:
        topic: the sink's, all of whose partitions are looked at.
    """

    def __init__(self, topic: str | None) -> None:
        self._topic = topic
        self._written_to: dict[str, set[int]] = {}
        self._nothing_hung_s = -math.inf  # the last look that found so, by time.monotonic
        self.away: frozenset[TopicPartition] = frozenset()

    def note_written(self, partitions: Partitions) -> None:
        """Note where to look. Kafka forgets with the end of a transaction where it wrote."""
        for topic, numbers in partitions.items():
            self._written_to.setdefault(topic, set()).update(numbers)

    def look(self, leaders: Leaders) -> Seen:
        """Return all that is open where this sink may have written, and note the partitions that can't be asked."""
        seen = leaders.open_transactions(self._written_to, self._topic)
        self._note_away(seen.away)
        return seen

    def note_nothing_hung(self, since_s: float) -> None:
        """Note that a look at ``since_s`` or later has shown nothing."""
        self._nothing_hung_s = since_s

    def forget_last_look(self) -> None:
        """Have the next sweep look again, whatever the last look has shown."""
        self._nothing_hung_s = -math.inf

    def take_nothing_hung(self) -> bool:
        """Whether a look a moment ago has shown nothing. Counts once: the sweep right after a completed batch need not
        look again, and a later sweep follows an abort or a lost attempt."""
        is_recent, self._nothing_hung_s = time.monotonic() - self._nothing_hung_s < RECENT_S, -math.inf
        return is_recent

    def found(self, control: Control, listed: Listed) -> list[Committable]:
        """Return the transactions that were rolled back but for a partition of which Kafka left out the marker.

        Upholds: nothing undecided is ever visible. It would be with the next commit of its producer there.
        """
        away: dict[TopicPartition, Away] = {}
        while open_ := self._open(control.leaders, listed, away):
            # A transaction that is being rolled back may hang when that has ended.
            ending = [
                transaction
                for transaction, state in open_
                if state.state != "PrepareCommit"
                and outcome_of(state, transaction, control.end_txn_version) is Outcome.ENDING
            ]
            if not ending:
                break
            wait_for_markers(control, ending)
        self._note_away(away)
        version = control.end_txn_version
        return [transaction for transaction, state in open_ if hangs(state, identity_of(transaction)[1], version)]

    def _open(
        self, leaders: Leaders, listed: Listed, away: dict[TopicPartition, Away]
    ) -> list[tuple[Committable, TransactionState]]:
        """The transactions of this log that are open where it may have written, and what the coordinator knew of each
        id before. Partitions that can't be asked are put into ``away``."""
        before = leaders.open_transactions(self._written_to, self._topic)
        away |= before.away
        if not before.open:
            return []
        of_producer = {state.producer_id: (name, state) for name, state in listed([o.producer_id for o in before.open])}
        # Once more, as its coordinator must be seen to have ended it before a partition is seen to have it open.
        after = leaders.open_transactions(self._written_to, self._topic)
        away |= after.away
        still_open = set(before.open).intersection(after.open)
        found = [(each, *of_producer[each.producer_id]) for each in still_open if each.producer_id in of_producer]
        return [(Committable(name, _handle_of(each)), state) for each, name, state in found]

    def _note_away(self, away: Mapping[TopicPartition, Away]) -> None:
        """Log which partitions can't be asked, and which can be again."""
        if new := away.keys() - self.away:
            logger.warning(
                "%s can't be asked what hangs there: %s. Batches that don't write there go on; those that do wait. Each"
                " sweep asks again",
                _named(new),
                away[min(new)].reason,
            )
        if back := self.away - away.keys():
            logger.warning("%s can be asked again", _named(back))
        self.away = frozenset(away)


def end(leaders: Leaders, transaction: OpenInPartition, name: str, commit: bool) -> None:
    """Write the marker that is missing. Its epoch lets it end this transaction and no later one.

    Raises:
        OperatorRequired: the brokers deny it.
    """
    error = leaders.write_marker(transaction, commit)
    ended = "committed" if commit else "rolled back"
    match error:
        case "NO_ERROR":
            logger.warning(
                "wrote a marker that Kafka had left out (KAFKA-20734): %s is %s in %s, too", name, ended, transaction
            )
        case "INVALID_PRODUCER_EPOCH" | "PRODUCER_FENCED":
            pass  # its producer has gone on there, so it was ended
        case "CLUSTER_AUTHORIZATION_FAILED":
            raise OperatorRequired(
                f"Kafka has left out a marker (KAFKA-20734): transaction {name} is {ended} and hangs in {transaction},"
                " where it holds back readers, and the brokers deny this principal to write the marker. Grant it ALTER"
                " on the cluster, if only while 'twopc resolve' runs as it, and start again."
                f" {_UNLESS_COMMITTED if commit else _BY_KAFKAS_TOOL}"
            )
        case _:
            raise Retriable(f"the marker of {name} in {transaction} was not written: {error}")


def where(committable: Committable) -> OpenInPartition | None:
    """The partition that a transaction of ``Hanging.found`` hangs in; None for any other transaction."""
    found = committable.handle.get(_WHERE)
    return OpenInPartition(**found) if isinstance(found, dict) else None  # type: ignore[arg-type]


def unasked(away: Mapping[TopicPartition, Away]) -> str:
    """Why partitions can't be asked, for an error."""
    return f"{_named(away)} can't be asked: {away[min(away)].reason}"


def _named(partitions: Collection[TopicPartition]) -> str:
    topic, number = min(partitions)
    others = f" (and {len(partitions) - 1} other partitions)" if len(partitions) > 1 else ""
    return f"partition {topic}-{number}{others}"


def _handle_of(open_: OpenInPartition) -> dict[str, JsonValue]:
    producer_id, epoch = open_.identity
    return {"producer_id": producer_id, "producer_epoch": epoch, _WHERE: asdict(open_)}
