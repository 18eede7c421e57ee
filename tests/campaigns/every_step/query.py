"""A query in plain Python: three batches, with one lost coordinator and one lost task."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

import twopc
from tests.campaigns.every_step.place import Place, Sinks
from tests.support.keyed_changes import Change, change, state_of
from twopc.events import Event, TransactionCommitted
from twopc.participant import Vote

BATCHES, PARTITIONS, RECORDS = 3, 2, 4
KINDS = "ab"
FILES = BATCHES * PARTITIONS * len(KINDS)
LOSES_ITS_COORDINATOR, LOSES_A_TASK = 1, 2

Record = tuple[int, int, int, str]
SCHEMA = pa.schema({"batch": pa.int64(), "partition": pa.int64(), "n": pa.int64(), "kind": pa.string()})
KEY = "partition,n"
"""What a record replaces, and a delete removes, where a table has a key."""


def records(batch_id: int) -> list[Record]:
    """Return the records of a batch: batch, partition, number, kind."""
    return [(batch_id, partition, n, KINDS[n % len(KINDS)]) for partition in range(PARTITIONS) for n in range(RECORDS)]


def deletes(batch_id: int, partition: int) -> list[Record]:
    """Return the deletes of a batch into tables with a key."""
    return [_keyed(batch_id, key) for key in _keys(partition) if change(batch_id, key) is Change.DELETE]


def upserts(batch_id: int, partition: int) -> list[Record]:
    """Return the records of a batch into tables with a key."""
    return [_keyed(batch_id, key) for key in _keys(partition) if change(batch_id, key) is Change.WRITE]


def state(batches: int) -> list[Record]:
    """Return what a table with a key has after so many batches."""
    return [_keyed(batch_id, key) for key, batch_id in state_of(batches, PARTITIONS * RECORDS).items()]


def _keys(partition: int) -> range:
    return range(partition * RECORDS, (partition + 1) * RECORDS)


def _keyed(batch_id: int, key: int) -> Record:
    """A row gets into another partition of the table each time."""
    return (batch_id, key // RECORDS, key % RECORDS, KINDS[(key + batch_id) % len(KINDS)])


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
            coordinator.run(batch_id, partial(_phase_one, sinks, place.is_keyed))
            position.with_suffix(".new").write_text(str(batch_id + 1))
            position.with_suffix(".new").replace(position)


def _phase_one(sinks: Sinks, is_keyed: bool, round: twopc.Round) -> Iterator[Vote]:
    if round.batch_id == LOSES_A_TASK:
        _attempt(sinks, is_keyed, round, partition=0, serial=1)  # it votes, and the vote is lost
    for partition in range(PARTITIONS):
        yield _attempt(sinks, is_keyed, round, partition, serial=0)


def _attempt(sinks: Sinks, is_keyed: bool, round: twopc.Round, partition: int, serial: int) -> Vote:
    batch_id = round.batch_id
    written = [record for record in records(batch_id) if record[1] == partition]
    with twopc.Participant(sinks, round, partition=partition, serial=serial) as participant:
        for name in sinks:
            if is_keyed:
                participant.delete(name, _batch([(None, *key, None) for _, *key, _ in deletes(batch_id, partition)]))
            participant.write(name, _batch(upserts(batch_id, partition) if is_keyed else written))
        return participant.pre_commit()


def _batch(rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
