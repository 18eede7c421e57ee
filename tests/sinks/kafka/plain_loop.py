"""A plain Python loop that drives a coordinator, without Spark: run by test_kill.py as a process of its own.

Its source is the number of the batch. As any engine it keeps its own position, which says what to run next; a batch
that it had not noted as done is run again.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import twopc
from twopc.events import Event, PhaseEntered, TransactionCommitted
from twopc.participant import Vote
from twopc.phases import Phase

BATCHES, PARTITIONS, RECORDS = 4, 2, 5
KILLED_IN = 2
"""The batch in which it is killed."""


def values(batch_id: int, partition: int) -> list[str]:
    return [f"{batch_id}-{partition}-{n}" for n in range(RECORDS)]


class Kill:
    """Ends this process, as a crash does, at one instruction of the coordinator."""

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
    parser = argparse.ArgumentParser()
    for name in ("servers", "topic", "prefix", "folder"):
        parser.add_argument(name)
    parser.add_argument("--kill-at")
    given = parser.parse_args()
    if given.kill_at:
        twopc.register_observer(Kill(given.kill_at))
    sink = twopc.create_sink(
        "kafka",
        {"bootstrap.servers": given.servers, "topic": given.topic, "transactional.id.prefix": given.prefix},
    )

    def phase_one(round: twopc.Round) -> Iterator[Vote]:
        for partition in range(PARTITIONS):
            with twopc.Participant({"orders": sink}, round, partition=partition) as participant:
                participant.write("orders", pa.record_batch({"value": values(round.batch_id, partition)}))
                yield participant.pre_commit()

    position = Path(given.folder) / "position"
    with twopc.Coordinator({"orders": sink}, f"{given.folder}/log", owner="plain-loop") as coordinator:
        for batch_id in range(int(position.read_text()) if position.exists() else 0, BATCHES):
            coordinator.run(batch_id, phase_one)
            position.write_text(str(batch_id + 1))


if __name__ == "__main__":
    main()
