"""A query in plain Python: three batches, with one lost coordinator and one lost task."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import pyarrow as pa

import twopc
from tests.campaigns.every_step.place import Place, Sinks
from twopc.events import Event, TransactionCommitted
from twopc.participant import Vote

BATCHES, PARTITIONS, RECORDS = 3, 2, 4
KINDS = "ab"
FILES = BATCHES * PARTITIONS * len(KINDS)
LOSES_ITS_COORDINATOR, LOSES_A_TASK = 1, 2

Record = tuple[int, int, int, str]


def records(batch_id: int) -> list[Record]:
    """Return the records of a batch: batch, partition, number, kind."""
    return [(batch_id, partition, n, KINDS[n % len(KINDS)]) for partition in range(PARTITIONS) for n in range(RECORDS)]


class Lost(BaseException):
    """Ends the coordinator while the process continues."""


class LoseCoordinator:
    """Ends the coordinator during the commits of a batch: one transaction is committed, the other is not."""

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        if isinstance(event, TransactionCommitted) and event.batch_id == LOSES_ITS_COORDINATOR:
            raise Lost


def run(place: Place) -> None:
    """Run the batches with two coordinators. The second one recovers from the first."""
    lose = LoseCoordinator()
    twopc.register_observer(lose)
    try:
        with contextlib.suppress(Lost):
            finish(place)
    finally:
        twopc.unregister_observer(lose)
    finish(place)


def finish(place: Place) -> None:
    """Recover, then run every batch that is not recorded as done, as a restart does."""
    sinks = place.sinks()
    # One commit at a time, so that the order of steps is the same as far as the store permits.
    with twopc.Coordinator(sinks, place.log, owner="plain-loop", commits_at_once=1) as coordinator:
        coordinator.recover()
        position = place.work / "position"
        for batch_id in range(int(position.read_text()) if position.exists() else 0, BATCHES):
            coordinator.run(batch_id, partial(_phase_one, sinks))
            position.with_suffix(".new").write_text(str(batch_id + 1))
            position.with_suffix(".new").replace(position)


def _phase_one(sinks: Sinks, round: twopc.Round) -> Iterator[Vote]:
    if round.batch_id == LOSES_A_TASK:
        _attempt(sinks, round, partition=0, serial=1)  # it votes, and the vote is lost
    for partition in range(PARTITIONS):
        yield _attempt(sinks, round, partition, serial=0)


def _attempt(sinks: Sinks, round: twopc.Round, partition: int, serial: int) -> Vote:
    columns = zip(*(record for record in records(round.batch_id) if record[1] == partition), strict=True)
    batch = pa.record_batch(dict(zip(("batch", "partition", "n", "kind"), map(list, columns), strict=True)))
    with twopc.Participant(sinks, round, partition=partition, serial=serial) as participant:
        for name in sinks:
            participant.write(name, batch)
        return participant.pre_commit()
