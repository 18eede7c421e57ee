"""One round of which each step runs in another process, as Spark's data sources have it.

``open`` before the tasks, ``PhaseOne.write`` in each task, ``finish`` or ``recover`` after them. Nothing stays in
memory in between, so the coordinator of every step is a new one. What holds them together is the incarnation: a round
has one of its own, opened before its tasks begin, and ``finish`` goes on with that one or learns that it is fenced.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from twopc.checkpoint.folder import CheckpointFolder
from twopc.checkpoint.source_files import read_before
from twopc.coordinator import START_TIMEOUT_S, Coordinator
from twopc.errors import LogMismatch
from twopc.log.batch_identity import is_known
from twopc.log.commit_log import CommitLog
from twopc.log.store import open_store
from twopc.participant import Participant, Vote
from twopc.places import refuse_within_checkpoint, refuse_within_outputs
from twopc.plugins import create_sink
from twopc.sink import TwoPhaseCommitSink
from twopc.spark.pickled_sinks import Shipped
from twopc.transaction import JsonValue
from twopc.transactional_ids import Round

logger = logging.getLogger(__name__)

SINK = "sink"
"""The sink's name in the log, as in ``foreach_batch`` with one sink: a query can change from one to the other."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """An incarnation that was opened before the tasks.

    Attributes:
        log_id: the log's, which tells it from one that took its place.
        number: the one that the log counts.
        began_s: a reading of the driver's ``time.perf_counter`` before any task began.
    """

    log_id: str
    number: int
    began_s: float


@dataclass(frozen=True)
class TaskVote(WriterCommitMessage):
    """What a task returns. ``vote`` is empty where it wrote nothing, and ``reads`` but in partition 0's: every batch
    has one."""

    incarnation: Incarnation
    vote: Vote
    reads: JsonValue


@dataclass(frozen=True)
class PhaseOne:
    """What travels to the tasks.

    Attributes:
        sinks: by name.
        incarnation: the round's.
        batch_id: the batch that was planned.
        reads: what it reads, or None in a batch write.
        is_decided: whether it was decided before this round. No other batch can be before ``finish``.
    """

    sinks: Shipped
    incarnation: Incarnation
    batch_id: int
    reads: JsonValue
    is_decided: bool

    def write(self, batch_id: int, batches: Iterable[pa.RecordBatch]) -> TaskVote:
        """Write and pre-commit one partition, in a task.

        A decided batch is evaluated and not written: Spark's state store and watermark advance only with the
        evaluation, and after a crash must be where they would be without one.

        Raises:
            LogMismatch: it is another batch than the one that was planned, so what it reads was not compared.
        """
        context = TaskContext.get()
        assert context is not None
        if batch_id != self.batch_id:
            raise LogMismatch(
                f"this is a task of batch {batch_id}, and the newest batch in the checkpoint was {self.batch_id} when"
                " it was planned. Nothing was written. Does another driver write to the same checkpoint? Stop all but"
                " one, and start the query again."
            )
        reads = self.reads if context.partitionId() == 0 else None
        if self.is_decided:
            for _ in batches:
                pass
            return TaskVote(self.incarnation, {}, reads)
        round = Round(self.incarnation.number, batch_id)
        sinks = self.sinks.arrived()
        with Participant(sinks, round, partition=context.partitionId(), serial=context.taskAttemptId()) as participant:
            for batch in batches:
                participant.write(SINK, batch)
            return TaskVote(self.incarnation, participant.pre_commit(), reads)


@dataclass(frozen=True)
class Target:
    """All that a process needs to make the coordinator. ``options`` are the sink's, which may hold credentials, and
    ``checkpoint`` the query's folder, or None for batch writes."""

    backend: str
    options: Mapping[str, str] = field(repr=False)
    log: str
    owner: str
    replay_copies: str | None
    first_batch_id: int
    checkpoint: str | None = None
    start_timeout_s: float = START_TIMEOUT_S

    def open(self, schema: pa.Schema, batch_id: int | None = None) -> PhaseOne:
        """Open a new incarnation and recover, before any task begins.

        The batch is the newest that the query's checkpoint has: Spark writes what it reads there just before. In a
        batch write it is ``batch_id``, or the log's next.

        Raises:
            LogMismatch: the batch can't come now, or was decided with other input.
            TwoPhaseCommitError: like ``Coordinator.recover``; or the sink can't write records of ``schema``.
        """
        reads = follows = None
        if self.checkpoint is not None:
            checkpoint = CheckpointFolder(self.checkpoint)
            batch_id, reads = checkpoint.newest()
            follows = read_before(checkpoint, batch_id)
        sink = create_sink(self.backend, self.options)
        if self.checkpoint is not None:
            refuse_within_outputs("the checkpoint", self.checkpoint, {SINK: sink})
            refuse_within_checkpoint(self.log, self.checkpoint)
        coordinator = self._coordinator(sink)
        try:
            coordinator.validate({SINK: schema})
            tail = coordinator.recover()
        finally:
            sink.close()
        if batch_id is None:
            batch_id = self.first_batch_id if tail.decided is None else tail.decided + 1
        is_decided = is_known(batch_id, reads, tail, self.first_batch_id, open_store(self.log), follows)
        incarnation = Incarnation(tail.log_id, tail.incarnation, time.perf_counter())
        return PhaseOne(Shipped.of({SINK: sink}), incarnation, batch_id, reads, is_decided)

    def finish(self, batch_id: int, messages: Sequence[TaskVote]) -> None:
        """Seal, decide and commit what the tasks pre-committed. Raises like ``Coordinator.run``."""
        [incarnation] = {message.incarnation for message in messages}
        with self._coordinator(create_sink(self.backend, self.options)) as coordinator:
            coordinator.resume(incarnation.log_id, incarnation.number)
            votes = [message.vote for message in messages]
            reads = next((message.reads for message in messages if message.reads is not None), None)
            coordinator.run(batch_id, lambda _: votes, reads=reads, began_s=incarnation.began_s)
        # Leaving it has closed the log: nobody tells a data source when its query ends.

    def recover(self, messages: Sequence[TaskVote | None], opened: Incarnation | None = None) -> None:
        """Roll back a round that failed, or finish one that was decided before it failed.

        A decision of unknown outcome may still land in the log, so nothing is aborted in its incarnation: a new one
        settles first whether it did. Where nobody tells the incarnation, the next start does it: to open one would
        fence a newer driver.
        """
        incarnations = {message.incarnation for message in messages if message is not None}
        incarnations |= set() if opened is None else {opened}
        if not incarnations:
            return
        try:
            for incarnation in incarnations:
                # Raises Fenced: it is a newer driver's now.
                CommitLog.resume(open_store(self.log), incarnation.log_id, incarnation.number)
            with self._coordinator(create_sink(self.backend, self.options)) as coordinator:
                coordinator.recover()
        except Exception as error:  # noqa: BLE001  # Spark would tell this one instead of why the round failed
            logger.warning("could not clean up after the failed batch, which the next start does: %s", error)

    def _coordinator(self, sink: TwoPhaseCommitSink[Any]) -> Coordinator:
        return Coordinator(
            {SINK: sink},
            self.log,
            owner=self.owner,
            first_batch_id=self.first_batch_id,
            replay_copies=self.replay_copies,
            start_timeout_s=self.start_timeout_s,
        )
