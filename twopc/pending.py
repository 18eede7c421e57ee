"""The pending-transaction ordered map: transactions that are decided and not yet known to be committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from twopc.transaction import Committable


class PendingTransactions(Mapping[int, tuple[Committable, ...]]):
    """Batch id → pre-committed transactions of one sink, oldest batch first.

    Phase two commits *through* a batch: every pending batch up to it, in order. A crash may have left older batches
    decided and uncommitted. (Flink's ``TwoPhaseCommitSinkFunction`` keeps the same map.)
    """

    def __init__(self) -> None:
        self._batches: dict[int, tuple[Committable, ...]] = {}

    def add(self, batch_id: int, committables: Sequence[Committable]) -> None:
        """Remember a decided batch.

        Raises:
            ValueError: ``batch_id`` is not newer than every pending batch.
        """
        if self._batches and batch_id <= next(reversed(self._batches)):
            raise ValueError(f"batch {batch_id} is not newer than the pending {list(self._batches)}")
        self._batches[batch_id] = tuple(committables)

    def through(self, batch_id: int) -> tuple[int, ...]:
        """Return the ids of the pending batches up to and including ``batch_id``, oldest first."""
        return tuple(pending for pending in self._batches if pending <= batch_id)

    def amend(self, batch_id: int, committables: Sequence[Committable]) -> None:
        """Replace the transactions of a pending batch by those of the amended decision."""
        assert batch_id in self._batches
        self._batches[batch_id] = tuple(committables)

    def settle(self, batch_id: int) -> None:
        """Forget a batch whose every transaction is known to be committed. A batch that is not pending is ignored."""
        self._batches.pop(batch_id, None)

    def __getitem__(self, batch_id: int) -> tuple[Committable, ...]:
        return self._batches[batch_id]

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._batches))

    def __len__(self) -> int:
        return len(self._batches)
