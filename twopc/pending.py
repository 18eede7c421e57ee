"""The pending-transaction ordered map: batches that are decided and not known to be committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from twopc.transaction import Committable


class PendingTransactions(Mapping[int, Mapping[str, tuple[Committable, ...]]]):
    """Batch id → sink name → pre-committed transactions, oldest batch first.

    A process keeps no other record of these transactions. The map is loaded from the log's newest entry when an
    incarnation begins, and each decision adds a batch. A sink's part of a batch is removed when the sink has completed
    the batch. The batch itself is removed when all sinks have announced it. (Flink's ``TwoPhaseCommitSinkFunction``
    keeps such a map per sink.)
    """

    def __init__(self) -> None:
        self._batches: dict[int, dict[str, tuple[Committable, ...]]] = {}

    def add(self, batch_id: int, parts: Mapping[str, Sequence[Committable]]) -> None:
        """Add a decided batch. Raises ValueError: ``batch_id`` is not newer than every pending batch."""
        if self._batches and batch_id <= next(reversed(self._batches)):
            raise ValueError(f"batch {batch_id} is not newer than the pending {list(self._batches)}")
        self._batches[batch_id] = {sink: tuple(committables) for sink, committables in parts.items()}

    def amend(self, batch_id: int, sink: str, committables: Sequence[Committable]) -> None:
        """Replace a sink's transactions in a pending batch with those of the amended decision."""
        assert sink in self._batches[batch_id]
        self._batches[batch_id][sink] = tuple(committables)

    def complete(self, batch_id: int, sink: str) -> None:
        """Remove a sink's part of a batch that the sink has completed."""
        del self._batches[batch_id][sink]

    def settle(self, batch_id: int) -> None:
        """Remove a batch that every sink has completed and announced."""
        assert not self._batches[batch_id]
        del self._batches[batch_id]

    def of(self, sink: str) -> Mapping[int, tuple[Committable, ...]]:
        """Return a view of one sink's transactions: batch id → transactions, oldest batch first."""
        return _Part(self._batches, sink)

    def __getitem__(self, batch_id: int) -> Mapping[str, tuple[Committable, ...]]:
        return self._batches[batch_id]

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._batches))

    def __len__(self) -> int:
        return len(self._batches)


class _Part(Mapping[int, tuple[Committable, ...]]):
    def __init__(self, batches: Mapping[int, Mapping[str, tuple[Committable, ...]]], sink: str) -> None:
        self._batches, self._sink = batches, sink

    def __getitem__(self, batch_id: int) -> tuple[Committable, ...]:
        return self._batches[batch_id][self._sink]

    def __iter__(self) -> Iterator[int]:
        return iter([batch_id for batch_id, parts in self._batches.items() if self._sink in parts])

    def __len__(self) -> int:
        return sum(1 for _ in self)
