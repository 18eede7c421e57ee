"""A loop that writes batches of numbers to several topics with batch markers, until it is killed.

``test_markers.py`` starts it again and again, and kills it. It begins after the last batch that its log has decided.
How many records a batch has follows from its number, so that it is the same whenever it is written.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

import twopc

TASKS = 4


@dataclass(frozen=True)
class Job:
    servers: str
    topics: list[str]
    markers: str
    prefix: str
    log: str
    replay_copies: str
    batches: int


def numbers(batch_id: int) -> range:
    """Return the numbers that a batch consists of. No two batches share one."""
    return range(1000 * batch_id, 1000 * batch_id + 1 + (batch_id * 257) % 1000)


def run(job: Job) -> None:
    options = {"bootstrap.servers": job.servers, "transactional.id.prefix": job.prefix, "batch.markers": job.markers}
    sinks = {"numbers": twopc.create_sink("kafka", options)}

    def phase_one(round: twopc.Round) -> Iterator[twopc.Vote]:
        for task in range(TASKS):
            own = numbers(round.batch_id)[task::TASKS]
            with twopc.Participant(sinks, round, partition=task) as participant:
                topics = [job.topics[number % len(job.topics)] for number in own]
                participant.write("numbers", pa.record_batch({"value": [*map(str, own)], "topic": topics}))
                yield participant.pre_commit()

    with twopc.Coordinator(sinks, job.log, owner="loop", replay_copies=job.replay_copies) as coordinator:
        decided = coordinator.recover().decided
        for batch_id in range(0 if decided is None else decided + 1, job.batches):
            coordinator.run(batch_id, phase_one)


if __name__ == "__main__":
    run(Job(**json.loads(sys.argv[1])))
