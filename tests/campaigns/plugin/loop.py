"""A plain loop that writes to Kafka, PostgreSQL and files in one decision, without Spark: run as a process of its own.

``python -m tests.campaigns.plugin.loop '{"folder": ..., "sinks": {"kafka": {...}, ...}, "batches": 3, "kill": ...}'``

Each batch is written by several participants. The process kills itself in the last batch, at the step that ``kill``
names; without one it ends by itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import twopc
from twopc.events import Event, PhaseEntered, TransactionCommitted
from twopc.participant import Vote

PARTITIONS, RECORDS = 3, 5
SINKS = ("files", "kafka", "postgres")

STEPS = (
    *(f"vote {n}" for n in range(1, PARTITIONS + 1)),
    *("sealing", "deciding", "committing"),
    *(f"commit {n}" for n in range(1, PARTITIONS * len(SINKS) + 1)),
    "sweeping",
)
"""After the n-th vote or commit; as a phase is entered."""


def values(batch_id: int) -> list[str]:
    """Of all records of a batch."""
    return [f"{batch_id}-{partition}-{n}" for partition in range(PARTITIONS) for n in range(RECORDS)]


class Kill:
    """Ends this process, as a crash does."""

    def __init__(self, batch_id: int, step: str | None) -> None:
        self._batch_id, self._step = batch_id, step
        self._commits = 0

    def reached(self, batch_id: int | None, step: str) -> None:
        if (batch_id, step) == (self._batch_id, self._step):
            os.kill(os.getpid(), signal.SIGKILL)

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        match event:
            case PhaseEntered(phase, batch_id):
                self.reached(batch_id, phase.value)
            case TransactionCommitted(_, batch_id, _, _) if batch_id == self._batch_id:
                self._commits += 1
                self.reached(batch_id, f"commit {self._commits}")
            case _:
                pass


def main() -> None:
    job = json.loads(sys.argv[1])
    folder = Path(job["folder"])
    kill = Kill(job["batches"] - 1, job["kill"])
    twopc.register_observer(kill)
    sinks = {name: twopc.create_sink(name, job["sinks"][name]) for name in SINKS}

    def phase_one(round: twopc.Round) -> Iterator[Vote]:
        records = values(round.batch_id)
        for partition in range(PARTITIONS):
            batch = pa.record_batch({"value": records[partition * RECORDS : (partition + 1) * RECORDS]})
            with twopc.Participant(sinks, round, partition=partition) as participant:
                for name in sinks:
                    participant.write(name, batch)
                yield participant.pre_commit()
            kill.reached(round.batch_id, f"vote {partition + 1}")

    # As any engine it keeps its own position; a batch that it had not noted as done is run again.
    position = folder / "position"
    with twopc.Coordinator(sinks, (folder / "log").as_uri(), owner="loop") as coordinator:
        for batch_id in range(int(position.read_text()) if position.exists() else 0, job["batches"]):
            coordinator.run(batch_id, phase_one)
            position.write_text(str(batch_id + 1))


if __name__ == "__main__":
    main()
