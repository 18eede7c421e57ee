"""Records that are computed again are recognized: by their number, and by the sum of their hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from twopc.errors import TransactionLost
from twopc.transaction import Committable, Vote
from twopc.transactional_ids import Round

if TYPE_CHECKING:
    import pyarrow as pa

Wanted: TypeAlias = "Mapping[str, Collection[int]]"
"""Sink's name → the partitions of the batch that it has lost."""

Recompute: TypeAlias = "Callable[[Round, Wanted], Iterable[Vote]]"
"""Has participants write the records of these partitions to these sinks again, and returns their votes."""

EVERY_PARTITION = range(2**31)

_HASHES = 2**64


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
    by_partition = {partition_of(vote): vote for vote in votes if vote.fingerprint is not None}
    return [_recognized(each, by_partition.get(partition_of(each))) for each in lost]


def _recognized(lost: Committable, vote: Committable | None) -> Committable:
    what = f"transaction {lost.transaction_id} ({lost.records} records) was rolled back by its target system"
    partition = partition_of(lost)
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


_OTHERS = (
    "The query does not yield the same records twice: it calls something like rand() or current_timestamp(), or there"
    " was a change of its source, its number of tasks, its outputs, or what the target system takes. Nothing was"
    " written again. Undo the change if there was one, and start again. Otherwise write the records by other means,"
    " then give the transaction up with 'twopc abandon --even-if-repairable'."
)


def partition_of(committable: Committable) -> int:
    """Return the partition of the batch that a transaction with a fingerprint has."""
    assert committable.fingerprint is not None
    return committable.fingerprint.partition


def _contents(committable: Committable) -> tuple[int | None, int]:
    assert committable.fingerprint is not None
    return committable.records, committable.fingerprint.hash
