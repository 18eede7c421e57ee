"""What Kafka's answers mean, as tables. No I/O: each row was measured on a broker (4.3.1) or read in its source.

An EndTxn of version 5 or later (Kafka 4.0, ``transaction.version`` 2) raises the producer's epoch by one when it ends
the transaction; up to version 4 it leaves the epoch alone. A roll-back by time-out raises it always. An error alone
does not tell a roll-back from a commit whose id was used again, so the transaction is described before judging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

EPOCH_BUMPING_END_TXN = 5


class Outcome(Enum):
    """What is known of a transaction that should be committed."""

    COMMITTED = "committed"
    ONGOING = "ongoing"
    ENDING = "ending"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


class Answer(Enum):
    """What to do about an error code of EndTxn."""

    DONE = "done"
    REPEAT = "repeat"
    DESCRIBE = "describe"
    DENIED = "denied"
    STUCK = "stuck"


ANSWERS: dict[str, Answer] = {
    "NO_ERROR": Answer.DONE,
    "CONCURRENT_TRANSACTIONS": Answer.REPEAT,
    "COORDINATOR_LOAD_IN_PROGRESS": Answer.REPEAT,
    "COORDINATOR_NOT_AVAILABLE": Answer.REPEAT,
    "NOT_COORDINATOR": Answer.REPEAT,
    "REQUEST_TIMED_OUT": Answer.REPEAT,
    "NETWORK_EXCEPTION": Answer.REPEAT,
    "UNKNOWN": Answer.REPEAT,
    "INVALID_TXN_STATE": Answer.DESCRIBE,
    "PRODUCER_FENCED": Answer.DESCRIBE,
    "INVALID_PRODUCER_EPOCH": Answer.DESCRIBE,
    "INVALID_PRODUCER_ID_MAPPING": Answer.DESCRIBE,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": Answer.DENIED,
    "CLUSTER_AUTHORIZATION_FAILED": Answer.DENIED,
    "UNSUPPORTED_VERSION": Answer.STUCK,
}
"""EndTxn's error → what to do. An error that is not here says nothing certain: describe."""


@dataclass(frozen=True, slots=True)
class TransactionState:
    """A transaction as its coordinator describes it, with the partitions that have no marker yet."""

    state: str
    producer_id: int
    producer_epoch: int
    partitions: Mapping[str, Sequence[int]] = field(default_factory=dict, compare=False)

    @property
    def may_go_on(self) -> bool:
        """Whether the id may be used again: its last transaction was committed. "Empty" tells nothing of what was
        before: it follows whenever anybody initialises the id, such as an operator's tool."""
        return self.state == "CompleteCommit"

    def precedes(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether nothing lies between this and what InitProducerId has answered. A new producer id leaves behind
        whatever hangs."""
        return producer_id != self.producer_id or producer_epoch == self.producer_epoch + 1


def outcome(described: TransactionState | None, producer_id: int, epoch: int, end_txn_version: int) -> Outcome:
    """What became of the transaction ``(producer_id, epoch)`` that was to be ended by ``end_txn_version``, or was ended
    by 4 as ``transaction.version`` had been lowered.

    ``described`` is what its id's coordinator says now; None where it does not know the id.
    """
    if described is None or described.producer_id != producer_id:
        return Outcome.UNKNOWN  # expired, or the epochs ran out and the id has another producer
    ended_by_us = epoch + (1 if end_txn_version >= EPOCH_BUMPING_END_TXN else 0)
    match described.state, described.producer_epoch:
        case "Ongoing", at if at == epoch:
            return Outcome.ONGOING
        case "PrepareCommit" | "PrepareAbort" | "PrepareEpochFence", at if at in (epoch, epoch + 1):
            return Outcome.ENDING
        case "CompleteCommit", at if at in (epoch, ended_by_us):
            return Outcome.COMMITTED
        case "CompleteAbort", at if at in (epoch, epoch + 1):
            return Outcome.ROLLED_BACK  # by its own writer, which leaves the epoch alone; by time-out or by us
        case _:
            return Outcome.UNKNOWN  # the id was initialised again since


def hangs(described: TransactionState, epoch: int, end_txn_version: int) -> bool:
    """Whether ``(described.producer_id, epoch)`` was rolled back, given that a partition has it open *after* it was
    described like this. What was committed by ``end_txn_version`` is not meant: ``complete`` sees to its markers.
    """
    since = described.producer_epoch - epoch
    match described.state:
        case "CompleteAbort":
            return since >= 0
        case "Empty" | "Ongoing":
            return since >= 1  # its id was initialised again, for which it must have ended
        case "CompleteCommit":
            return since > (1 if end_txn_version >= EPOCH_BUMPING_END_TXN else 0)  # a later one
        case _:
            return since > 1
