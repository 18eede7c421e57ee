"""A driver in plain Python, run as a process of its own and killed at one instruction of the coordinator.

    driver.py SINKS.toml FOLDER [kill-at] [stage]

It runs batches 0 and 1, of two partitions, through every sink of the file; the kill comes in batch 1.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import twopc
from twopc.cli.sinks_file import Redaction, read_sinks
from twopc.errors import RoundAborted
from twopc.events import Event, PhaseEntered, TransactionCommitted
from twopc.phases import Phase

KILLED_IN = 1


class Kill:
    def __init__(self, at: str) -> None:
        self._at = at

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        match event:
            case PhaseEntered(Phase() as phase, batch_id) if batch_id == KILLED_IN and phase.value == self._at:
                os.kill(os.getpid(), signal.SIGKILL)
            case TransactionCommitted(_, batch_id, _, _) if batch_id == KILLED_IN and self._at == "first commit":
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                pass


def main() -> None:
    sinks_file, folder, kill_at, stage = [*sys.argv[1:], "", ""][:4]
    if kill_at:
        twopc.register_observer(Kill(kill_at))
    sinks = read_sinks(Path(sinks_file), Redaction())

    def phase_one(round: twopc.Round) -> Iterator[twopc.Vote]:
        for partition in range(2):
            with twopc.Participant(sinks, round, partition=partition) as participant:
                values = [f"{round.batch_id}-{partition}-{n}" for n in range(3)]
                for name in sinks:
                    participant.write(name, pa.record_batch({"value": values}))
                yield participant.pre_commit()

    # One commit at a time: which transactions a kill leaves is the same in each run.
    with twopc.Coordinator(
        sinks, f"{folder}/log", owner="shop", replay_copies=stage or None, commits_at_once=1
    ) as coordinator:
        done = Path(folder) / "position"
        for batch_id in range(int(done.read_text()) if done.exists() else 0, 2):
            try:
                coordinator.run(batch_id, phase_one)
            except RoundAborted:  # a broker that has just started: run the batch again
                coordinator.run(batch_id, phase_one)
            done.write_text(str(batch_id + 1))


if __name__ == "__main__":
    main()
