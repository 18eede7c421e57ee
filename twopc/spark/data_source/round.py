"""A round whose steps run in different processes, as Spark's data sources require.

``Rounds.open`` runs before the tasks, ``PhaseOne.write`` in each task, and ``Rounds.finish`` or ``Rounds.recover``
after them. The processes share no memory, so each step creates its own coordinator. The incarnation connects them:
``open`` opens it, and ``finish`` continues it or finds that it is fenced.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from twopc import repetition
from twopc.checkpoint.folder import CheckpointFolder
from twopc.checkpoint.source_files import read_before
from twopc.coordinator import START_TIMEOUT_S, Coordinator
from twopc.errors import ConfigurationError, LogMismatch, RoundAborted
from twopc.events import BatchFailed
from twopc.keyed import KeyedSink
from twopc.log.commit_log import on_store, read_tail
from twopc.log.notices import noted
from twopc.log.steps import resume_log
from twopc.log.store import open_store
from twopc.metrics import NO_OPENING, Opening
from twopc.observers.json_lines import JsonLinesObserver
from twopc.observing import notify, register_observer, unregister_observer
from twopc.participant import Participant, Vote
from twopc.plugins import create_sink
from twopc.sink import TwoPhaseCommitSink
from twopc.spark.data_source.flow import Flow
from twopc.spark.task import PickledSinks, spare_garbage_collection
from twopc.stores.places import refuse_within_checkpoint, refuse_within_outputs
from twopc.transaction import JsonValue
from twopc.transactional_ids import Round

logger = logging.getLogger(__name__)

FLUSH_TIMEOUT_S = 1.0
"""How long the end of a call waits until events are on disk: Spark may end the process right afterwards."""

SINK = "sink"
"""The sink's name in the log, the same as in ``foreach_batch`` with one sink, so a query can change between the two."""


def sink_alone(backend: str, options: Mapping[str, Any]) -> TwoPhaseCommitSink[Any]:
    """Return the sink of a data source. Raises ConfigurationError: ``create_sink`` rejects the options, or the sink
    needs one record per key, and a data source can't bring the records of a key together."""
    sink = create_sink(backend, options)
    if isinstance(sink, KeyedSink) and sink.key and not sink.takes_repeated_keys:
        raise ConfigurationError(
            f"the sink {backend!r} with 'upsert_by' needs one record per key in a batch, and format('twopc') can't"
            " bring the records of a key together: write with foreach_batch. Nothing was written.",
            option="upsert_by",
        )
    return sink


@dataclass(frozen=True, slots=True)
class Incarnation:
    """An incarnation that was opened before the tasks."""

    start: str  # identifies the query's start that opened it, so that its failures count once
    log_id: str  # the log's id, which another log in its place does not have
    number: int  # the incarnation's number in the log
    began_s: float  # the driver's ``time.perf_counter`` before any task began
    opening: Opening = NO_OPENING  # the metrics of the opening, which count for the batch


@dataclass(frozen=True)
class TaskVote(WriterCommitMessage):
    """A task's message to the driver. ``vote`` is empty if the task wrote nothing. Only the task of partition 0, which
    every batch has, returns ``reads``."""

    incarnation: Incarnation
    vote: Vote
    reads: JsonValue


@dataclass(frozen=True)
class PhaseOne:
    """The round as the planner sends it to its tasks."""

    sinks: PickledSinks  # the pickled sinks, by name
    incarnation: Incarnation  # the round's incarnation
    batch_id: int  # the planned batch
    reads: JsonValue  # what the batch reads, or None in a batch write
    # Whether the batch was decided before this round. No other batch can be decided before ``finish``.
    is_decided: bool
    log: str  # the URL of the commit log
    entry_id: str  # the id of its newest entry

    def write(self, batch_id: int, batches: Iterable[pa.RecordBatch]) -> TaskVote:
        """Write and pre-commit one partition, in a task.

        A decided batch is evaluated but not written: Spark's state store and watermark advance only when it is
        evaluated, and a crash must not hold them back.

        Raises:
            LogMismatch: this is not the planned batch, so its input was not compared with the log.
            RepeatedFailure: the task failed at every start. The failure is counted here, because the task's error does
                not reach any process on the driver.
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
        sinks = self.sinks.load()
        with Participant(sinks, round, partition=context.partitionId(), serial=context.taskAttemptId()) as participant:
            for batch in batches:  # an error of the iterator, such as a stop, is not a failure of the sink
                with self._failures_counted():
                    participant.write(SINK, batch)
            with self._failures_counted():
                vote = participant.pre_commit()
        spare_garbage_collection()
        return TaskVote(self.incarnation, vote, reads)

    @contextlib.contextmanager
    def _failures_counted(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if (meant := _counted(self.log, error, self.batch_id, self.incarnation, self.entry_id)) is error:
                raise
            raise meant from error


@dataclass(frozen=True)
class Rounds:
    """The rounds of a query or of batch writes, with everything that a process needs to create a coordinator."""

    backend: str  # the sink's entry-point name
    options: Mapping[str, str] = field(repr=False)  # the sink's options, which may hold credentials
    log: str  # the URL of the commit log
    owner: str  # the query's id; see ``Coordinator``
    replay_copies: str | None  # the URL of the folder of replay copies, or None
    first_batch_id: int  # see ``Coordinator``
    checkpoint: str | None = None  # the URL of the query's checkpoint folder, or None for batch writes
    flow: Flow | None = None  # the pipeline's flow that the query runs, if any
    start_timeout_s: float = START_TIMEOUT_S  # see ``Coordinator``
    events: str | None = None  # the path of the file for events, or None

    def open(self, schema: pa.Schema, batch_id: int | None = None) -> PhaseOne:
        """Open a new incarnation and recover, before any task begins.

        The batch is the newest one in the query's checkpoint: Spark has just recorded its input there. A batch write
        writes the batch ``batch_id``, or the next batch of the log if ``batch_id`` is None.

        Raises:
            LogMismatch: the batch is not the next batch, was decided with other input, or is the first batch after a
                full refresh of the flow.
            TwoPhaseCommitError: in the same cases as ``Coordinator.recover``, or if the sink can't write records of
                ``schema``.
        """
        reads = follows = None
        start, sink = uuid.uuid4().hex[:12], sink_alone(self.backend, self.options)
        with contextlib.closing(sink):
            coordinator = self._coordinator(sink, start)
            with coordinator.failures_counted():
                if self.checkpoint is not None:
                    checkpoint = CheckpointFolder(self.checkpoint)
                    batch_id, reads = checkpoint.newest()
                    follows = read_before(checkpoint, batch_id)
                    refuse_within_outputs("the checkpoint", self.checkpoint, {SINK: sink})
                    refuse_within_checkpoint(self.log, self.checkpoint)
                if self.events is not None:
                    refuse_within_outputs("the events file", self.events, {SINK: sink})
                if self.flow is not None and batch_id == 0:
                    self.flow.refuse_full_refresh(self.log, self.owner)
            with spool(self.events):
                try:
                    coordinator.validate({SINK: schema})
                    tail = coordinator.recover()
                    if batch_id is None:
                        batch_id = self.first_batch_id if tail.decided is None else tail.decided + 1
                    is_decided = coordinator.has_decided(batch_id, reads, follows)
                except Exception as error:
                    self._failed(batch_id, error, dict(coordinator.opening.phases_ms))
                    raise
        spare_garbage_collection()
        incarnation = Incarnation(start, tail.log_id, tail.incarnation, time.perf_counter(), coordinator.opening)
        sinks = PickledSinks.of({SINK: sink})
        return PhaseOne(sinks, incarnation, batch_id, reads, is_decided, self.log, tail.entry_id)

    def finish(self, batch_id: int, messages: Sequence[TaskVote], schema: pa.Schema | None = None) -> None:
        """Seal, decide and commit the tasks' transactions. Raises the same errors as ``Coordinator.run``.

        ``schema`` is the one that ``open`` was called with, for observers.
        """
        with spool(self.events), contextlib.ExitStack() as leaves:
            with self._failure_reported(batch_id):
                [incarnation] = {message.incarnation for message in messages}
                sink = sink_alone(self.backend, self.options)
                if schema is not None:
                    sink.assume_valid(schema)
                coordinator = leaves.enter_context(self._coordinator(sink, incarnation.start))
                coordinator.resume(incarnation.log_id, incarnation.number)
            votes = [message.vote for message in messages]
            reads = next((message.reads for message in messages if message.reads is not None), None)
            began_s, opening = incarnation.began_s, incarnation.opening
            coordinator.run(batch_id, lambda _: votes, reads=reads, began_s=began_s, opening=opening)
            with self._failure_reported(batch_id):
                coordinator.close()  # Spark does not notify a data source when its query ends
        spare_garbage_collection()

    def recover(self, batch_id: int, messages: Sequence[TaskVote | None], opened: Incarnation | None = None) -> None:
        """Roll back a failed round, or finish it if it was decided before it failed.

        A decision without an answer may still land in the log, so nothing is aborted in the incarnation of that
        decision. A new incarnation first finds out whether the decision has landed. If no message contains the
        incarnation, recovery is left to the next start, because opening an incarnation here could fence a newer driver.
        """
        with spool(self.events):
            opened = next((message.incarnation for message in messages if message is not None), opened)
            if None in messages:  # otherwise 'finish' has reported why the batch failed
                failed = RoundAborted(
                    f"a task of batch {batch_id} failed, or the query was stopped while it ran.", batch_id=batch_id
                )
                self._failed(batch_id, _counted(self.log, failed, batch_id, opened), {})
            if opened is None:
                return
            try:
                store = open_store(self.log)
                on_store(store, resume_log(store.url, opened.log_id, opened.number))  # a newer driver may have the log
                with self._coordinator(sink_alone(self.backend, self.options), opened.start) as coordinator:
                    coordinator.recover()
            except Exception as error:  # noqa: BLE001  # Spark would report this error instead of the round's
                logger.warning("cleanup after the failed batch is left to the next start: %s", error)

    @contextlib.contextmanager
    def _failure_reported(self, batch_id: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed(batch_id, error, {})
            raise

    def _failed(self, batch_id: int | None, error: Exception, phases_ms: dict[str, float]) -> None:
        """Report to observers that a batch failed outside of ``Coordinator.run``."""
        if batch_id is not None:
            notify(BatchFailed(batch_id, error, phases_ms, self.owner))

    def _coordinator(self, sink: TwoPhaseCommitSink[Any], start: str) -> Coordinator:
        coordinator = Coordinator(
            {SINK: sink},
            self.log,
            owner=self.owner,
            first_batch_id=self.first_batch_id,
            replay_copies=self.replay_copies,
            start_timeout_s=self.start_timeout_s,
        )
        coordinator._turns.start = start  # noqa: SLF001  # not part of the public API
        return coordinator


def _counted(
    log: str, error: Exception, batch_id: int, opened: Incarnation | None, entry_id: str | None = None
) -> Exception:
    """Count a failure, and return the error to raise: ``RepeatedFailure`` if it recurs at every start
    (``repetition.counted``).

    Failures of a fenced driver do not count. A task passes ``entry_id``, the id of the entry that its start opened. The
    driver has none, and counts only failures that no task of this start has counted, such as the loss of a process.
    Spark then ends the query with its own error, so the meaning is logged. If ``opened`` is unknown because every task
    is lost, the failure counts while the batch is undecided. A newer driver's decision clears it.
    """
    try:
        store = open_store(log)
        newest = read_tail(store)
        if newest is None:
            return error
        tail = newest[1]
        if entry_id is not None:
            is_of_another = entry_id != tail.entry_id
        elif opened is not None:
            is_of_another = (opened.log_id, opened.number) != (tail.log_id, tail.incarnation)
        else:
            is_of_another = tail.kind != "open" or (tail.decided is not None and tail.decided >= batch_id)
        if is_of_another or (entry_id is None and noted(store, tail)):
            return error
        start = tail.entry_id if opened is None else opened.start
        meant = on_store(store, repetition.counted(tail, error, batch_id, start))
    except Exception as unread:  # noqa: BLE001  # the caller raises the original error
        logger.warning("a failure could not be counted: %s", unread)
        return error
    if entry_id is None and meant is not error:
        logger.error("%s", meant)
    return meant


@contextlib.contextmanager
def spool(path: str | None) -> Iterator[None]:
    """Append the events of the calls inside to the file at ``path``, if given. The observer is removed afterwards,
    because Spark reuses the process for other queries."""
    if path is None:
        yield
        return
    observer = _observer(path)
    register_observer(observer)
    try:
        yield
    finally:
        unregister_observer(observer)
        observer.flush(FLUSH_TIMEOUT_S)


@functools.lru_cache(maxsize=100)
def _observer(path: str) -> JsonLinesObserver:
    """Return the observer that writes to a file. Each file has a single observer, so that a failure to write is logged
    once."""
    return JsonLinesObserver(path)
