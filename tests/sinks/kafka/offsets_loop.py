"""A loop that writes records and, on the same decision, the offsets that it has read; killed in its second batch.

``test_offsets_sink.py`` runs it in its own process and in another. Each record read is one record written to each
partition of a topic, so offsets and records can be compared. It begins after the last batch that its log has decided.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

import twopc
from tests.support.kills import KillAt
from twopc.participant import Vote

BATCHES, PARTITIONS, RECORDS = 3, 2, 3
KILLED_IN = 1


@dataclass(frozen=True)
class Job:
    servers: str
    topic: str
    group: str
    prefix: str
    log: str
    progress: Mapping[str, str] = field(default_factory=dict)
    """More options of the progress."""


def values(batches: int) -> list[str]:
    """What is written to the topic in so many batches."""
    return [f"{partition}-{n}" for partition in range(PARTITIONS) for n in range(RECORDS * batches)]


def run(job: Job) -> None:
    common = {"bootstrap.servers": job.servers, "transactional.id.prefix": job.prefix}
    progress = twopc.create_sink("kafka-offsets", {**common, "group.id": job.group, **job.progress})
    orders = twopc.create_sink("kafka", {**common, "topic": job.topic})
    schema = pa.schema({"topic": "string", "partition": "int32", "offset": "int64"})

    def phase_one(round: twopc.Round) -> Iterator[Vote]:
        end = RECORDS * (round.batch_id + 1)
        for partition in range(PARTITIONS):
            with twopc.Participant({"orders": orders}, round, partition=partition) as participant:
                read = [f"{partition}-{n}" for n in range(end - RECORDS, end)]
                participant.write("orders", pa.record_batch({"value": read}))
                yield participant.pre_commit()
        with twopc.Participant({"a-progress": progress}, round, partition=0) as participant:
            columns = [[job.topic] * PARTITIONS, list(range(PARTITIONS)), [end] * PARTITIONS]
            participant.write("a-progress", pa.record_batch(columns, schema))
            yield participant.pre_commit()

    sinks = {"a-progress": progress, "orders": orders}  # by name the progress comes first, and one after the other
    with twopc.Coordinator(sinks, job.log, owner="loop", commits_at_once=1) as coordinator:
        decided = coordinator.recover().decided
        for batch_id in range(0 if decided is None else decided + 1, BATCHES):
            coordinator.run(batch_id, phase_one)


if __name__ == "__main__":
    twopc.register_observer(KillAt(KILLED_IN, sys.argv[2]))
    run(Job(**json.loads(sys.argv[1])))
