"""A lost transaction that is computed again: its batch is run again, and its records are recognized.

A target system that rolls back a decided transaction (Kafka, after a timeout) would lose the records. The batch can be
computed again, as its decision has what it reads. But a plan may yield other records the second time: it calls
``rand()`` or ``current_timestamp()``, or its source has changed. Then to write them would lose some and double others.
So they count only if their number and the sum of their hashes are those of the lost transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from twopc.errors import (
    OperatorRequired,
    Refused,
    Retriable,
    RoundAborted,
    TransactionLost,
    TwoPhaseCommitError,
)
from twopc.failures import sentence
from twopc.transaction import Committable
from twopc.transactional_ids import Round

if TYPE_CHECKING:
    import pyarrow as pa

    from twopc._bound_sink import CommitCall
    from twopc.participant import Vote
    from twopc.sink import TwoPhaseCommitSink

Wanted: TypeAlias = "Mapping[str, Collection[int]]"
"""Sink's name → the partitions of the batch that it has lost."""

Recompute: TypeAlias = "Callable[[Round, Wanted], Iterable[Vote]]"
"""Has participants write the records of these partitions to these sinks again, and returns their votes."""

EVERY_PARTITION = range(2**31)

_HASHES = 2**64


class RecomputableLoss(TransactionLost):
    """Target systems have lost transactions of a decided batch, and their records can be computed again.

    Attributes:
        lost: the transactions, by the sink's name. All others of the batch are committed, except in sinks that commit
            last.
    """

    def __init__(self, lost: Mapping[str, Sequence[Committable]], message: str) -> None:
        super().__init__(message)
        self.lost = lost

    @property
    def wanted(self) -> Wanted:
        return {name: frozenset(_partition(each) for each in of_sink) for name, of_sink in self.lost.items()}


def is_recomputable(call: CommitCall, error: Exception) -> bool:
    """Whether a commit failed because its transactions are lost, and their records can be computed again."""
    return isinstance(error, TransactionLost) and all(each.fingerprint is not None for each in call.committables)


def loss_of(failed: Sequence[tuple[CommitCall, Exception]]) -> RecomputableLoss | None:
    """Return what the failed commits have lost; None if one of them failed otherwise, or can't be computed again."""
    lost: dict[str, list[Committable]] = {}
    errors = []
    for call, error in failed:
        if not isinstance(error, TransactionLost) or not is_recomputable(call, error):
            return None
        lost.setdefault(call.sink, []).extend(call.committables)
        errors.append(error)
    way_out = "Its records can be computed again: start the query with recompute=True before you do any of this."
    loss = RecomputableLoss(lost, f"{sentence(errors[0])} {way_out}")
    loss.__cause__ = errors[0]
    return loss


def refuse_changed_sinks(loss: RecomputableLoss, sinks: Mapping[str, TwoPhaseCommitSink[Any]], batch_id: int) -> None:
    """Raise if a sink may not lose transactions any more, such as one that delivers at least once now. Upholds: nothing
    becomes visible before its decision. Records of such a sink have no hashes, and may be visible when written."""
    for name in loss.lost:
        if not sinks[name].may_time_out:
            raise OperatorRequired(
                f"sink {name!r} has other options than when it lost transactions of batch {batch_id}, which is decided:"
                " what is written to it now can't be recognized. Nothing was written again. Give it the options that"
                " it had, such as 'delivery', and start again.",
                sink=name,
                batch_id=batch_id,
            )


def hashes_of(batch: pa.RecordBatch) -> pa.Int64Array:
    """Return a hash of each record, for the few records that a driver writes."""
    import pyarrow as pa

    digests = [hashlib.blake2b(repr(each).encode(), digest_size=8).digest() for each in batch.to_pylist()]
    return pa.array([int.from_bytes(digest, "big", signed=True) for digest in digests], pa.int64())


def sum_of_hashes(hashes: pa.Int64Array, before: int) -> int:
    """Return ``before`` plus each of ``hashes``, modulo 2**64: the order of the records does not matter."""
    import pyarrow.compute as pc

    return int((before + pc.sum(hashes).as_py()) % _HASHES)  # Arrow's sum wraps around, too


def recognized(lost: Sequence[Committable], votes: Iterable[Committable]) -> list[Committable]:
    """Return the votes of a sink that have the records of ``lost``, in its order, each in the same partition.

    Raises:
        TransactionLost: a partition has no vote, or one with other records.
    """
    by_partition = {_partition(vote): vote for vote in votes if vote.fingerprint is not None}
    return [_recognized(each, by_partition.get(_partition(each))) for each in lost]


def _recognized(lost: Committable, vote: Committable | None) -> Committable:
    what = f"transaction {lost.transaction_id} ({lost.records} records) was rolled back by its target system"
    partition = _partition(lost)
    if vote is None:
        raise TransactionLost(
            f"{what}, and the batch that was computed again has no record for partition {partition}. {_OTHERS}"
        )
    if _contents(vote) != _contents(lost):
        other = "other records" if vote.records == lost.records else f"{vote.records} records"
        raise TransactionLost(f"{what}, and its partition {partition}, computed again, has {other}. {_OTHERS}")
    return vote


def recognized_anywhere(lost: Sequence[Committable], votes: Iterable[Committable]) -> list[Committable] | None:
    """Return the votes of a sink that have the records of ``lost``, in its order, whatever their partitions; None if
    there is none for one of them.

    Spark may number a batch's partitions otherwise when it repeats the batch. With a Kafka source of two, three or four
    partitions, Spark 4.2 did so after a restart.
    """
    left = [vote for vote in votes if vote.fingerprint is not None]
    found = []
    for each in lost:
        same = next((vote for vote in left if _contents(vote) == _contents(each)), None)
        if same is None:
            return None
        left.remove(same)  # two partitions may have equal records
        found.append(same)
    return found


def not_computed_again(error: Exception, round: Round) -> Exception | None:
    """Return what ``error`` means for a decided batch, or None if it means the same as anywhere else."""
    what = f"{round} is decided. A part that its target system had rolled back could not be computed again"
    match error:
        case Refused():
            return OperatorRequired(f"{what}: {error.message} Correct that and start again.")
        case TwoPhaseCommitError() if not isinstance(error, RoundAborted):
            return None
    return Retriable(f"{what} ({type(error).__name__}: {error}). Start again.")


_OTHERS = (
    "The query does not yield the same records twice: it calls something like rand() or current_timestamp(), or there"
    " was a change of its source, its number of tasks, its outputs, or what the target system takes. Nothing was"
    " written again. Undo the change if there was one, and start again. Otherwise write the records by other means,"
    " then give the transaction up with 'twopc abandon --even-if-repairable'."
)


def _partition(committable: Committable) -> int:
    assert committable.fingerprint is not None
    return committable.fingerprint.partition


def _contents(committable: Committable) -> tuple[int | None, int]:
    assert committable.fingerprint is not None
    return committable.records, committable.fingerprint.hash
