"""The callable for ``DataStreamWriter.foreachBatch``: Spark's micro-batches through the coordinator."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.streaming.query import StreamingQuery

from twopc.coordinator import START_TIMEOUT_S, Coordinator
from twopc.errors import ConfigurationError
from twopc.events import BatchFinished, CallRetried
from twopc.log.store import LogStore
from twopc.participant import Participant, Vote
from twopc.places import refuse_within_checkpoint, refuse_within_outputs, refuse_within_source
from twopc.replay import ReplayCopies
from twopc.sink import TwoPhaseCommitSink
from twopc.spark import refusals
from twopc.spark.batch_input import BatchInput
from twopc.spark.output import ALL, projected
from twopc.spark.pickled_sinks import Shipped, body
from twopc.spark.plans import Plans
from twopc.spark.progress import OFFSETS_SCHEMA, end_offsets
from twopc.spark.record_batches import limited_by_rows
from twopc.spark.small_batches import on_few_tasks
from twopc.spark.stopping import STOP_PATIENCE_S, Turn, interrupts_as_spark_knows_them, writers
from twopc.spark.task import VOTE_SCHEMA, Task, load_vote
from twopc.transactional_ids import Round

Sink: TypeAlias = "TwoPhaseCommitSink[Any]"
Target: TypeAlias = "Sink | tuple[Sink, Sequence[str]]"

_OFFSETS = "offsets"
_QUERY_ID = "sql.streaming.queryId"
_DESCRIPTION = "spark.job.description"


def foreach_batch(
    sinks: Target | Mapping[str, Target],
    log: str | os.PathLike[str] | LogStore,
    *,
    first_batch_id: int = 0,
    replay_copies: str | os.PathLike[str] | ReplayCopies | None = None,
    offsets: Sink | None = None,
    coalesce: bool = True,
    uncapped: bool = True,
    start_timeout_s: float = START_TIMEOUT_S,
) -> ForeachBatch:
    """What to pass to ``DataStreamWriter.foreachBatch`` to write each batch to all ``sinks``, exactly once.

    Args:
        sinks: a sink; or a sink and the SQL expressions of the columns it gets, such as ``["id AS key"]``, all columns
            where there are none; or a dictionary of these by names of your choice. The names go into transactional
            ids and the log: keep them over restarts.
        log: the folder of the commit log, one for each query, that the driver reaches wherever it is restarted; or what
            ``twopc.open_store`` makes of a URL with options.
        first_batch_id: see ``Coordinator``; only for a query that ran without twopc before.
        replay_copies: a folder for copies of what is written, or None; see ``Coordinator``. Executors must reach it.
        offsets: a sink of backend ``kafka-offsets``, or None: in each batch's decision a consumer group gets the
            offsets at which the query's Kafka sources end with it. It is committed after all ``sinks``.
        coalesce: write a batch that is likely to be small on no more tasks than there are cores, where its plan is
            nothing but sources, columns and filters. Each task saved is 10 to 20 ms.
        uncapped: end Arrow record batches by Spark's limit of rows alone, where records are small and only the sinks
            run Python. Spark's check of its limit of bytes may take longer than everything else.
        start_timeout_s: how long a target system may give no answer before the query's first batch is decided; then
            the query fails with the reason. Afterwards it waits as long as it takes.

    Raises:
        ConfigurationError: there is no sink, or the log can't be kept there.
    """
    named = dict(sinks) if isinstance(sinks, Mapping) else {"sink": sinks}
    if offsets is not None and _OFFSETS in named:
        raise ConfigurationError(f"{_OFFSETS!r} is the name of 'offsets' in the log: give that sink another")
    targets = {name: _target(target) for name, target in named.items()}
    offsets = None if offsets is None else _target(offsets).sink
    return ForeachBatch(targets, log, replay_copies, first_batch_id, offsets, coalesce, uncapped, start_timeout_s)


@dataclass(frozen=True)
class _Target:
    sink: Sink
    columns: tuple[str, ...]


def _target(target: Target) -> _Target:
    sink, columns = target if isinstance(target, tuple) else (target, ALL)
    if not isinstance(sink, TwoPhaseCommitSink):
        raise ConfigurationError(f"{sink!r} is no sink: make one with twopc.create_sink, or subclass one")
    if isinstance(columns, str):
        raise ConfigurationError(f"the columns of a sink are a list of SQL expressions, not the text {columns!r}")
    # A caller's sink may serve under two names or in two queries, which would sweep away each other's transactions if
    # they shared its binding. Sinks can be pickled, so a shallow copy shares nothing live.
    return _Target(sink.unbound(), tuple(columns))


class ForeachBatch:
    """Calls of it are batches. It can be pickled; a copy opens the log anew at its first batch."""

    def __init__(
        self,
        targets: Mapping[str, _Target],
        log: str | os.PathLike[str] | LogStore,
        replay_copies: str | os.PathLike[str] | ReplayCopies | None,
        first_batch_id: int,
        offsets: Sink | None,
        coalesce: bool,
        uncapped: bool,
        start_timeout_s: float,
    ) -> None:
        self._targets = dict(targets)
        self._log = log
        self._replay_copies = replay_copies
        self._first_batch_id = first_batch_id
        self._offsets = offsets
        self._coalesce = coalesce
        self._uncapped = uncapped
        self._start_timeout_s = start_timeout_s
        self._plans = Plans()
        self._last_progress: BatchFinished | None = None
        self._coordinator: Coordinator | None = None
        self._query_id: str | None = None
        self._input: BatchInput | None = None
        self._record_bytes = 0.0
        self._turn = Turn()
        self._new_coordinator("not started")  # wrong arguments are refused here, not at the first batch

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch. Called by Spark.

        Raises:
            TwoPhaseCommitError: see ``twopc.errors``. The query stops; started again, it recovers first.
        """
        if not isinstance(batch, ClassicDataFrame):
            raise ConfigurationError(
                "foreach_batch does not work through Spark Connect: there it runs in a process of the server's that is"
                " not told its query's id, by which the log knows its query. Nothing was written. Use"
                " writeStream.format('twopc'), which does."
            )
        context = batch.sparkSession.sparkContext
        with interrupts_as_spark_knows_them(batch_id, self._is_stopped), self._turn.of_batch(context):
            self._write(context, batch, batch_id)

    def _write(self, context: SparkContext, batch: DataFrame, batch_id: int) -> None:
        query_id = _query_id(context)
        coordinator = self._coordinator_of(query_id)
        batch_input = self._input_of(batch.sparkSession, query_id)
        frame, columns = projected(batch, {name: target.columns for name, target in self._targets.items()})
        # Here rather than in each task, and before the log is opened.
        schemas = columns.schemas(frame)
        coordinator.validate(schemas if self._offsets is None else {**schemas, _OFFSETS: OFFSETS_SCHEMA})
        plan = self._plans.of(frame, query_id)
        plan.refuse_too_many_tasks(batch_id, len(self._targets))
        frame = on_few_tasks(frame, plan) if self._coalesce else frame
        offsets = end_offsets(batch.sparkSession, query_id) if self._offsets else None
        names = ", ".join(self._targets)

        def phase_one(round: Round) -> list[Vote]:
            task = Task(Shipped.of(self._sinks()), columns, round)
            description = f"twopc: pre-commit batch {batch_id} of {names}"
            record_bytes = self._record_bytes if self._uncapped and not plan.python else 0
            by_rows = limited_by_rows(batch.sparkSession, record_bytes)
            with _described(context, description), by_rows, refusals.of_tasks():
                rows = frame.mapInArrow(body(task), VOTE_SCHEMA).collect()
            self._record_bytes = max([self._record_bytes, *(row.record_bytes for row in rows)])
            votes = [load_vote(row.vote) for row in rows]
            return votes if offsets is None else [*votes, self._pre_commit_offsets(round, offsets)]

        follows, reads = batch_input.before(batch_id), batch_input.reads(batch_id)
        self._last_progress = coordinator.run(batch_id, phase_one, reads=reads, follows=follows)
        if self._last_progress.already_decided:
            # Spark's state store and watermark advance only where the plan is evaluated, and must after a crash be
            # where they would be without one. A plan without state can't be told from here, so it is evaluated too.
            with _described(context, f"twopc: evaluate batch {batch_id} of {names} again, which is committed"):
                batch.write.format("noop").mode("overwrite").save()

    @property
    def last_progress(self) -> BatchFinished | None:
        """The figures of the last batch that ended well, or None before the first."""
        return self._last_progress

    def between_batches(self, query: StreamingQuery) -> contextlib.AbstractContextManager[None]:
        """See ``Turn.between_batches``."""
        return self._turn.between_batches(query, self._waits_in_vain)

    def _waits_in_vain(self) -> bool:
        """Whether the batch under way has waited too long for a target system to let it finish."""
        return self._coordinator is not None and self._coordinator.waited_s > STOP_PATIENCE_S

    def close(self) -> None:
        """Record a clean stop in the log, of a query that has ended by itself; ``stop`` does it for one that runs.
        Without it the next start recovers."""
        if self._coordinator is not None:
            self._coordinator.close()

    def _pre_commit_offsets(self, round: Round, offsets: pa.RecordBatch) -> Vote:
        """Here on the driver, when all tasks have voted."""
        assert self._offsets is not None
        with Participant({_OFFSETS: self._offsets}, round, partition=0) as participant:
            participant.write(_OFFSETS, offsets)
            return participant.pre_commit()

    def _coordinator_of(self, query_id: str) -> Coordinator:
        if self._coordinator is None or query_id != self._query_id:
            self._query_id, self._coordinator, self._input = query_id, self._new_coordinator(query_id), None
        writers[query_id] = self
        return self._coordinator

    def _input_of(self, session: SparkSession, query_id: str) -> BatchInput:
        if self._input is None or not self._input.is_active:
            self._input = BatchInput(session, query_id)
            self._refuse_shared_folders(self._input)
        return self._input

    def _refuse_shared_folders(self, batch_input: BatchInput) -> None:
        """Refuse what the query's checkpoint or sources share with a sink, the log or the replay copies."""
        refuse_within_outputs("the checkpoint", batch_input.checkpoint, self._sinks())
        refuse_within_checkpoint(_url(self._log), batch_input.checkpoint)
        for source in batch_input.file_sources:
            refuse_within_source("the commit log", _url(self._log), source)
            if self._replay_copies is not None:
                refuse_within_source("the folder of replay copies", _url(self._replay_copies), source)

    def _sinks(self) -> dict[str, Sink]:
        return {name: target.sink for name, target in self._targets.items()}

    def _new_coordinator(self, query_id: str) -> Coordinator:
        sinks = self._sinks() if self._offsets is None else {**self._sinks(), _OFFSETS: self._offsets}
        return Coordinator(
            sinks,
            self._log,
            owner=query_id,
            first_batch_id=self._first_batch_id,
            replay_copies=self._replay_copies,
            start_timeout_s=self._start_timeout_s,
            gives_up=self._gives_up,
        )

    def _gives_up(self, event: CallRetried) -> bool:
        """Whether to end the wait for a target system, as the query was stopped."""
        return event.waited_s > STOP_PATIENCE_S and self._is_stopped()

    def _is_stopped(self) -> bool:
        return self._input is not None and not self._input.is_active

    def __reduce__(self) -> tuple[object, ...]:
        given = (self._targets, self._log, self._replay_copies, self._first_batch_id, self._offsets)
        return ForeachBatch, (*given, self._coalesce, self._uncapped, self._start_timeout_s)


def _url(place: str | os.PathLike[str] | LogStore | ReplayCopies) -> str:
    return os.fspath(place) if isinstance(place, str | os.PathLike) else place.url


def _query_id(context: SparkContext) -> str:
    query_id = context.getLocalProperty(_QUERY_ID)
    if query_id is None:
        raise ConfigurationError("this is to be called by a streaming query: df.writeStream.foreachBatch(...)")
    return query_id


@contextlib.contextmanager
def _described(context: SparkContext, description: str) -> Iterator[None]:
    """Show ``description`` in Spark's UI for the jobs inside."""
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, description)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]  # None clears it
