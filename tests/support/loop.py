"""A loop without Spark that writes batches to several sinks atomically, as a separate process.

Its source is the number of the batch. Like any engine it keeps its own position, and reruns a batch that it has not
recorded as done. It kills itself in one batch, at the moment that its ``Job`` names.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import twopc
from tests.support.keyed_changes import Change, change, state_of
from tests.support.kills import KillAt, run_killed, run_to_the_end
from twopc.errors import RoundAborted
from twopc.participant import Vote

KEYED = pa.schema({"key": pa.string(), "value": pa.string()})
"""The schema of records for a table with a key."""


@dataclass(frozen=True)
class Job:
    """The configuration of a loop, passed as JSON in its first argument.

    Attributes:
        folder: the folder of its log and its position.
        sinks: name → backend and its options.
        sinks_file: a file that describes the sinks instead.
        batches: the total number of batches.
        partitions, records: the number of partitions per batch, and of records per partition.
        kill_in, kill_at: the batch and the moment of the kill, see ``KillAt``; or ``vote 2``, after the second vote.
        runs_again: whether a batch is run again after its round was aborted.
        keys: the number of keys in a table to which batches make ``keyed_changes``; 0 to append ``values``.
    """

    folder: str
    sinks: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    sinks_file: str = ""
    owner: str = "loop"
    batches: int = 2
    partitions: int = 2
    records: int = 3
    kill_in: int = 0
    kill_at: str = ""
    replay_copies: str = ""
    commits_at_once: int = 16
    runs_again: bool = False
    keys: int = 0

    def run(self) -> None:
        """Run the loop in a separate process, and check how it ends."""
        run = run_killed if self.kill_at else run_to_the_end
        run("-m", "tests.support.loop", json.dumps(asdict(self)))

    def values(self, batch_id: int, partition: int) -> list[str]:
        return [f"{batch_id}-{partition}-{n}" for n in range(self.records)]

    def all_values(self, batches: int | None = None) -> list[str]:
        """Return the values of the first ``batches`` batches, or of all."""
        every = range(self.batches if batches is None else batches)
        return [
            value for batch in every for partition in range(self.partitions) for value in self.values(batch, partition)
        ]

    def rows(self) -> list[tuple[str, ...]]:
        """Return the rows of a table after all batches."""
        if not self.keys:
            return [(value,) for value in self.all_values()]
        return [(f"k{key}", f"{batch_id}") for key, batch_id in state_of(self.batches, self.keys).items()]

    def changes(self, batch_id: int, of: Change, partition: int) -> list[tuple[str, str | None]]:
        """Return the records that a task writes, or its deletes. Each batch moves a key to another task."""
        own = (key for key in range(self.keys) if (key + batch_id) % self.partitions == partition)
        value = f"{batch_id}" if of is Change.WRITE else None
        return [(f"k{key}", value) for key in own if change(batch_id, key) is of]

    def write(self, participant: twopc.Participant, name: str, batch_id: int, partition: int) -> None:
        """Write a task's part of a batch into a sink."""
        if not self.keys:
            participant.write(name, pa.record_batch({"value": self.values(batch_id, partition)}))
            return
        for of, send in ((Change.DELETE, participant.delete), (Change.WRITE, participant.write)):
            rows = [dict(zip(KEYED.names, row, strict=True)) for row in self.changes(batch_id, of, partition)]
            send(name, pa.RecordBatch.from_pylist(rows, KEYED))


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    kill = KillAt(job.kill_in, job.kill_at)
    twopc.register_observer(kill)
    sinks = {name: twopc.create_sink(backend, options) for name, (backend, options) in job.sinks.items()}
    if job.sinks_file:
        from twopc.cli.sinks_file import Redaction, read_sinks

        sinks = dict(read_sinks(Path(job.sinks_file), Redaction()))

    def phase_one(round: twopc.Round) -> Iterator[Vote]:
        for partition in range(job.partitions):
            with twopc.Participant(sinks, round, partition=partition) as participant:
                for name in sinks:
                    job.write(participant, name, round.batch_id, partition)
                yield participant.pre_commit()
            kill.reached(round.batch_id, f"vote {partition + 1}")

    position = Path(job.folder) / "position"
    with twopc.Coordinator(
        sinks,
        f"{job.folder}/log",
        owner=job.owner,
        replay_copies=job.replay_copies or None,
        commits_at_once=job.commits_at_once,
    ) as coordinator:
        for batch_id in range(int(position.read_text()) if position.exists() else 0, job.batches):
            try:
                coordinator.run(batch_id, phase_one)
            except RoundAborted:
                if not job.runs_again:
                    raise
                coordinator.run(batch_id, phase_one)
            position.write_text(str(batch_id + 1))


if __name__ == "__main__":
    main()
