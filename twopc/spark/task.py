"""What runs on the executors: one participant a task attempt, for all sinks at once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from twopc.participant import Participant, Vote
from twopc.spark import refusals
from twopc.spark.output import Columns
from twopc.spark.pickled_sinks import Shipped
from twopc.transaction import Committable
from twopc.transactional_ids import Round

VOTE_SCHEMA = StructType().add("vote", "string").add("record_bytes", "double")
"""As a value, which Spark need not ask the JVM about. ``record_bytes``: the largest mean size of the records of one
record batch, 0 where there was none."""


@dataclass(frozen=True)
class Task:
    """The body of ``mapInArrow``: the columns of all sinks in, one row with this attempt's vote out."""

    sinks: Shipped
    columns: Columns
    round: Round

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with refusals.in_task():
            yield self._returned(batches)

    def _returned(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
        context = TaskContext.get()
        assert context is not None
        sinks, record_bytes = self.sinks.arrived(), 0.0
        # Spark counts task attempts through all jobs of an application, so a retry of a whole stage has other numbers.
        with Participant(
            sinks, self.round, partition=context.partitionId(), serial=context.taskAttemptId()
        ) as participant:
            for batch in batches:
                record_bytes = max(record_bytes, batch.nbytes / (batch.num_rows or 1))
                for name, part in self.columns.apart(batch):
                    participant.write(name, part)
            vote = participant.pre_commit()
        return pa.RecordBatch.from_pylist([{"vote": _dump(vote), "record_bytes": record_bytes}])


def _dump(vote: Vote) -> str:
    return json.dumps({name: committable.to_json() for name, committable in vote.items()})


def load_vote(text: str) -> Vote:
    """The vote that a task returned."""
    return {name: Committable.from_json(value) for name, value in json.loads(text).items()}
