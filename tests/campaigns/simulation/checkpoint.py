"""A model of Spark's checkpoint: the planned batches, what each reads, and which are done.

As in reality, a batch's contents follow from its offsets, not from its number: a batch that is planned again has a
different number of records. Spark syncs none of these files, so the newest may be lost. A restored backup is an older
state as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.campaigns.simulation.world import OF_THE_CHECKPOINT, Fault, Op
from twopc.log.entries import Entry


class ConcurrentUpdate(Exception):
    """Another driver has written this file. Spark detects this only after the sink has run (SPARK-26425)."""


class Damaged(Exception):
    """The checkpoint is damaged, and Spark does not start a query from it."""


READ = Op("spark: read the checkpoint", None, *OF_THE_CHECKPOINT)
PLAN = Op("spark: plan the batch", OSError, changes=True)
NOTE = Op("spark: note that the batch is done", OSError, changes=True)


class Checkpoint:
    """The folders ``offsets``, with the end of each batch, and ``commits``."""

    def __init__(self, rows_a_batch: int) -> None:
        self.ends: dict[int, int] = {}
        self.done: set[int] = set()
        self.has_fallen_back = False
        self.repairs = 0
        self._rows_a_batch = rows_a_batch
        self._plans: Counter[int] = Counter()

    # Calls of drivers. ------------------------------------------------------------------------------------------------

    def next_batch(self) -> tuple[int, int, int | None]:
        """Return the batch that a driver starts with: its number, its start, and its end if it is already planned.

        Raises:
            Damaged: the previous batch is missing.
        """
        if not self.ends:
            return 0, 0, None
        newest = max(self.ends)
        if newest and newest - 1 not in self.ends:
            raise Damaged(f"batch {newest - 1} doesn't exist")
        if newest in self.done:
            return newest + 1, self.ends[newest], None
        return newest, self.ends.get(newest - 1, 0), self.ends[newest]

    def plan(self, batch_id: int, start: int) -> int:
        """Plan a batch that ends where the source ends now. Return that offset."""
        if batch_id in self.ends:
            raise ConcurrentUpdate(batch_id)
        self.ends[batch_id] = start + self._rows_a_batch + self._plans[batch_id] % 2
        self._plans[batch_id] += 1
        return self.ends[batch_id]

    def note(self, batch_id: int) -> None:
        if batch_id in self.done:
            raise ConcurrentUpdate(batch_id)
        self.done.add(batch_id)

    @property
    def noted(self) -> int:
        """The next batch. A driver that outlives a restore may record a batch as done whose plan is gone. Spark then
        starts with the newest batch that has a plan."""
        return max(self.done & self.ends.keys(), default=-1) + 1

    # Damage and repair. -----------------------------------------------------------------------------------------------

    def fall_back(self, fault: Fault) -> None:
        if not self.ends:
            return
        self.has_fallen_back = True
        newest = max(self.ends)
        match fault:
            case Fault.ONE_BEHIND:
                self.lose(1)
            case Fault.TWO_BEHIND:
                self.lose(2)
            case Fault.COMMIT_LOST:
                self.done.discard(newest)
            case Fault.PLAN_LOST:
                del self.ends[newest]

    def lose(self, batches: int) -> None:
        for batch_id in sorted(self.ends)[-batches:]:
            del self.ends[batch_id]
            self.done.discard(batch_id)

    def repair(self, log: Sequence[Entry]) -> None:
        """Repair as an operator does, from the entries that the log keeps. Afterwards the newest decided batch is
        planned as it was decided, and no later batch is planned."""
        reads: dict[Any, Any] = {entry.decided: entry.reads["end"] for entry in log if isinstance(entry.reads, dict)}
        decided = log[-1].decided
        if decided is None:
            return
        self.ends = {batch_id: end for batch_id, end in self.ends.items() if batch_id < decided}
        self.done = {batch_id for batch_id in self.done if batch_id < decided}
        for batch_id in range(decided):
            # Spark requires the file of a batch that is pruned from the log, but nobody reads it.
            self.ends[batch_id] = reads.get(batch_id, self.ends.get(batch_id, 0))
            self.done.add(batch_id)
        self.ends[decided] = reads[decided]
        self.has_fallen_back = False
        self.repairs += 1
