"""The pending-transaction ordered map: what is decided and not yet known to be committed."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from twopc.transaction import Committable


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """The pre-committed transactions of one batch. ``since_s`` is a reading of this process's monotonic clock."""

    batch_id: int
    committables: tuple[Committable, ...]
    since_s: float


class PendingTransactions:
    """Batch id → pre-committed transactions, oldest batch first.

    Committing batch *n* commits every pending batch up to *n*, in order, because the word that *n* is decided may
    be late or skip a batch (Flink's TwoPhaseCommitSinkFunction keeps the same map).
    """

    def __init__(self) -> None:
        self._batches: OrderedDict[int, PendingBatch] = OrderedDict()

    def add(self, batch_id: int, committables: Sequence[Committable]) -> None:
        """Remember a decided batch. Batches are added in ascending order.

        Raises:
            ValueError: ``batch_id`` is not newer than every pending one.
        """
        if self._batches and batch_id <= next(reversed(self._batches)):
            raise ValueError(f"batch {batch_id} is not newer than the pending {list(self._batches)}")
        self._batches[batch_id] = PendingBatch(batch_id, tuple(committables), time.monotonic())

    def through(self, batch_id: int) -> tuple[PendingBatch, ...]:
        """The pending batches up to and including ``batch_id``, oldest first."""
        return tuple(batch for batch in self._batches.values() if batch.batch_id <= batch_id)

    def replace(self, batch_id: int, committables: Sequence[Committable]) -> None:
        """Put what was decided instead in the place of a pending batch's transactions."""
        self._batches[batch_id] = replace(self._batches[batch_id], committables=tuple(committables))

    def settle(self, batch_id: int) -> None:
        """Forget a batch of which every transaction is known to be committed. A batch not pending is ignored."""
        self._batches.pop(batch_id, None)

    def __iter__(self) -> Iterator[PendingBatch]:
        return iter(tuple(self._batches.values()))

    def __len__(self) -> int:
        return len(self._batches)
