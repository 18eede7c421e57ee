"""The callable for ``DataStreamWriter.foreachBatch``: passes Spark's micro-batches through the coordinator."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame

from twopc.checkpoint.offsets import grown, partitions_by_topic
from twopc.coordinator import START_TIMEOUT_S, Coordinator
from twopc.effects import Wanted
from twopc.errors import ConfigurationError
from twopc.events import BatchFinished, CallRetried, LeftOut
from twopc.failures import located
from twopc.keyed import KeyedSink
from twopc.log.store import LogStore
from twopc.participant import Participant, Vote
from twopc.prepared import PreparedSink
from twopc.replay import ReplayCopies
from twopc.retry import until_answered
from twopc.sink import TwoPhaseCommitSink
from twopc.spark.bad_records import BadRecords, records_for_sink, schema_of
from twopc.spark.engine import OFFSETS_SCHEMA, BatchReads, ClassicEngine, ConnectEngine, Engine, Input, is_connected
from twopc.spark.output import Output, Projection
from twopc.spark.stopping import STOP_PATIENCE_S, Turn, passing_failures, shorten_interrupts, turns
from twopc.spark.task import VOTE_SCHEMA, PickledSinks, Task, Written, portable, refusals_from_tasks
from twopc.spark.tuning import Collecting, LimitedByRows, Plan, Plans, merge_tasks
from twopc.stores.places import refuse_within_checkpoint, refuse_within_outputs, refuse_within_source
from twopc.transaction import hashes_of
from twopc.transactional_ids import Round

logger = logging.getLogger(__name__)

_OFFSETS, _BAD_RECORDS = "offsets", "bad_records"
"""The log's names for the sinks that the driver writes to: the names of the arguments."""


def foreach_batch(
    sinks: TwoPhaseCommitSink[Any] | Output | Mapping[str, TwoPhaseCommitSink[Any] | Output],
    log: str | os.PathLike[str] | LogStore,
    *,
    unrouted: Literal["count", "refuse"] = "count",
    bad_records: TwoPhaseCommitSink[Any] | BadRecords | None = None,
    offsets: TwoPhaseCommitSink[Any] | None = None,
    on_loss: Literal["stop", "recompute"] | ReplayCopies = "stop",
    small_batches: Literal["driver", "few-tasks", "all-tasks"] = "driver",
    checkpoint: str | os.PathLike[str] | None = None,
    first_batch_id: int = 0,
    start_timeout_s: float = START_TIMEOUT_S,
) -> ForeachBatch:
    """Return a callable for ``DataStreamWriter.foreachBatch`` that writes each batch to all ``sinks``, exactly once.

    Args:
        sinks: a sink, which gets all columns of all rows; or an ``Output``, which selects; or a dictionary of these by
            names of your choice. The names go into transactional ids and the log: keep them across restarts.
        log: the folder of the commit log, one per query, in a place that the driver reaches wherever it is restarted;
            or the result of ``twopc.open_store`` for a URL with options.
        unrouted: what to do with a row for which every output's condition is false or null: ``count`` it in
            ``last_progress.unrouted``, or ``refuse`` the batch before its decision.
        bad_records: the sink for records that another sink refuses, such as records that are too large, in the same
            decision; or ``BadRecords``, to set columns and a limit. None: such a record fails the batch.
        offsets: a sink of backend ``kafka-offsets``, or None. With each batch's decision, a consumer group gets the
            offsets at which the query's Kafka sources end. The sink is committed after all ``sinks``.
        on_loss: what to do when a target system has rolled back a decided transaction, as Kafka does after a timeout.
            ``stop`` ends the query. ``recompute`` computes the records again when Spark repeats the batch, and writes
            them if they are the same; each record is hashed for that, and ``small_batches`` is ``all-tasks``.
            ``twopc.ReplayCopies(url)`` keeps a copy of each record until its commit, in a folder that executors reach,
            and writes the copy. See docs/spark.md.
        small_batches: who writes a batch that is likely to be small. ``driver``: the driver itself, if the batch has at
            most 10,000 records and 16 MiB and comes from Kafka through columns and filters; else as ``few-tasks``: at
            most as many tasks as there are cores, if the plan consists of sources, columns, filters and unions.
            ``all-tasks``: the tasks of the plan. Each task saved is 10 to 20 ms.
        checkpoint: the query's ``checkpointLocation``. Only for Spark Connect, whose server runs this function in a
            process that can't ask Spark for the folder; Python must be able to read it there.
        first_batch_id: see ``Coordinator``; only for a query that ran without twopc before, or lost its log.
        start_timeout_s: how long a target system may give no answer before the query's first batch is decided. Then the
            query fails with the reason. Later batches wait without limit, except for the last check of a sink before
            each decision: after 120 seconds the batch is rolled back.

    Raises:
        ConfigurationError: there is no sink, an argument is wrong, or the log can't be kept there.
    """
    _require_types(locals())
    named = sinks if isinstance(sinks, Mapping) else {"sink": sinks}
    for name, given in ((_OFFSETS, offsets), (_BAD_RECORDS, bad_records)):
        if given is not None and name in named:
            raise ConfigurationError(f"{name!r} is the name of a sink of twopc's in the log: give yours another name")
    return ForeachBatch(
        _Settings(
            outputs={name: Output.of(given) for name, given in named.items()},
            log=log,
            unrouted=unrouted,
            bad_records=None if bad_records is None else BadRecords.of(bad_records),
            offsets=None if offsets is None else offsets.unbound(),
            on_loss=on_loss,
            small_batches="all-tasks" if on_loss == "recompute" else small_batches,
            checkpoint=None if checkpoint is None else os.fspath(checkpoint),
            first_batch_id=first_batch_id,
            start_timeout_s=start_timeout_s,
        )
    )


_TYPES: Mapping[str, tuple[tuple[type, ...], str, Callable[[Any], bool]]] = {
    "unrouted": ((str,), "'count' or 'refuse'", lambda given: given in ("count", "refuse")),
    "offsets": ((TwoPhaseCommitSink, type(None)), "a sink, or None", lambda _: True),
    "on_loss": (
        (str, ReplayCopies),
        "'stop', 'recompute' or twopc.ReplayCopies(folder)",
        lambda given: isinstance(given, ReplayCopies) or given in ("stop", "recompute"),
    ),
    "small_batches": (
        (str,),
        "'driver', 'few-tasks' or 'all-tasks'",
        lambda given: given in ("driver", "few-tasks", "all-tasks"),
    ),
    "checkpoint": ((str, os.PathLike, type(None)), "a folder, given as path or URL, or None", lambda _: True),
    "first_batch_id": ((int,), "a whole number, 0 or more", lambda given: given >= 0),
    "start_timeout_s": ((int, float), "seconds, 0 or more", lambda given: given >= 0),
}
"""Argument → its types, a description, and a check of the value."""


def _require_types(given: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if an argument has the wrong type. The message does not repeat the value, which may be a
    secret that was passed to the wrong argument."""
    for name, (types, must_be, takes) in _TYPES.items():
        value = given[name]
        is_of_type = isinstance(value, types) and not isinstance(value, bool)
        if not is_of_type or not takes(value):
            but = "" if is_of_type else f", not of type {type(value).__name__}"
            raise ConfigurationError(f"the argument {name!r} of foreach_batch must be {must_be}{but}", option=name)
    names = [*given["sinks"]] if isinstance(given["sinks"], Mapping) else []
    if any(not isinstance(name, str) for name in names):
        raise ConfigurationError("the argument 'sinks' of foreach_batch must have text as names", option="sinks")


@dataclass(frozen=True)
class _Settings:
    """The checked arguments of ``foreach_batch``. ``outputs`` maps names to outputs."""

    outputs: Mapping[str, Output]
    log: str | os.PathLike[str] | LogStore
    unrouted: str
    bad_records: BadRecords | None
    offsets: TwoPhaseCommitSink[Any] | None
    on_loss: str | ReplayCopies
    small_batches: str
    checkpoint: str | None
    first_batch_id: int
    start_timeout_s: float

    @property
    def sinks(self) -> dict[str, TwoPhaseCommitSink[Any]]:
        """The sinks that tasks write to."""
        return {name: output.sink for name, output in self.outputs.items()}

    @property
    def on_driver(self) -> dict[str, TwoPhaseCommitSink[Any]]:
        """The sinks that the driver writes to after all tasks have voted."""
        given = {_OFFSETS: self.offsets, _BAD_RECORDS: self.bad_records.sink if self.bad_records else None}
        return {name: sink for name, sink in given.items() if sink is not None}

    @property
    def all_sinks(self) -> dict[str, TwoPhaseCommitSink[Any]]:
        """All sinks, by their names in the log."""
        return {**self.sinks, **self.on_driver}

    @property
    def recomputes(self) -> bool:
        return self.on_loss == "recompute"

    @property
    def replay_copies(self) -> ReplayCopies | None:
        return self.on_loss if isinstance(self.on_loss, ReplayCopies) else None

    def projection(self) -> Projection:
        """Return the columns of all outputs, with hashes of the records that may have to be computed again."""
        hashed = [name for name, sink in self.sinks.items() if sink.may_time_out] if self.recomputes else []
        return Projection(self.outputs, hashed, with_source=self.bad_records is not None)

    def coordinator(self, query_id: str, gives_up: Callable[[CallRetried], bool]) -> Coordinator:
        """Return the coordinator of a query's batches."""
        return Coordinator(
            self.all_sinks,
            self.log,
            owner=query_id,
            first_batch_id=self.first_batch_id,
            replay_copies=self.replay_copies,
            start_timeout_s=self.start_timeout_s,
            gives_up=gives_up,
        )


@dataclass
class _Start:
    """Values that are looked up at the start of a query and used until it ends."""

    input: Input
    plans: Plans
    projection: Projection
    schemas_on_driver: Mapping[str, pa.Schema]
    collecting: Collecting | None
    limited_by_rows: LimitedByRows
    partitions: Mapping[str, set[str]] | None = None  # by topic, as of the previous batch

    def of_batch(self, batch_id: int, *, is_keyed: bool) -> BatchReads:
        """Return the input of a batch. If an output has a key, warn of topics that got new partitions since the
        previous batch."""
        found = self.input.of_batch(batch_id)
        if is_keyed:
            self._warn_of_new_partitions(found)
        return found

    def _warn_of_new_partitions(self, of_batch: BatchReads) -> None:
        before, self.partitions = self.partitions, partitions_by_topic(of_batch.reads)
        for topic, (had, has) in grown(before or partitions_by_topic(of_batch.follows or {}), self.partitions).items():
            logger.warning(
                "topic %r has %d partitions since batch %d, up from %d. If an older change of a key is still unread in"
                " another partition, it will replace the newer row: then compare the tables with the source.",
                *(topic, has, of_batch.batch_id, had),
            )


class ForeachBatch:
    """Writes one micro-batch per call. Created by ``foreach_batch``.

    A ``ForeachBatch`` can be pickled, unless its outputs contain Columns of a session in this process. A copy opens the
    log at its first batch.
    """

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        self._last_progress: BatchFinished | None = None
        self._query_id: str | None = None
        self._coordinator: Coordinator | None = None
        self._start: _Start | None = None
        self._left_out = LeftOut()
        self._turn = Turn(self._waits_in_vain, self.close)
        settings.coordinator("not started", self._gives_up)  # rejects wrong arguments before the first batch

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch. Called by Spark.

        Raises:
            TwoPhaseCommitError: see ``twopc.errors``. The query stops. When it is started again, it recovers first.
        """
        given: tuple[Any, Any] = batch, batch_id  # callers may not check types
        if not (isinstance(given[0], DataFrame) and isinstance(given[1], int)):
            raise ConfigurationError(
                "what foreach_batch returns takes a frame of Spark and the batch's number, not a"
                f" {type(batch).__name__} and a {type(batch_id).__name__}: pass it to df.writeStream.foreachBatch(...)"
            )
        session = batch.sparkSession
        if is_connected(batch):
            self._write(ConnectEngine(session, self._settings.checkpoint), batch, batch_id)
            return
        with shorten_interrupts(batch_id, self._is_stopped), self._turn.hold(session.sparkContext):
            self._write(ClassicEngine(session), batch, batch_id)

    def _write(self, engine: Engine, batch: DataFrame, batch_id: int) -> None:
        settings = self._settings
        coordinator = self._coordinator_of(engine.query_id)
        with coordinator.failures_counted(), passing_failures(engine.is_stopped):
            start = self._look(engine, batch)
            selected, rows = start.projection.apply(batch)
            plan = start.plans.of(selected)
            plan.refuse_too_many_tasks(batch_id, len(settings.outputs))
            keeps_tasks = settings.small_batches == "all-tasks"
            selected, tasks = (selected, plan.tasks) if keeps_tasks else merge_tasks(selected, plan)
            frame = start.projection.by_key(selected, rows, tasks)
            schemas = {**rows.schemas(frame), **start.schemas_on_driver}
            offsets = start.input.kafka_offsets() if settings.offsets else None
            of_batch = start.of_batch(batch_id, is_keyed=bool(rows.keyed))
        coordinator.validate(schemas)  # once, and before the log is opened

        def on_driver() -> DataFrame:
            return start.projection.by_key(selected.coalesce(1), rows, 1) if rows.keyed else frame

        names = ", ".join(settings.outputs)

        def write(what: str, round: Round, wanted: Wanted | None = None) -> list[Written]:
            task = Task(
                sinks=PickledSinks.of(settings.sinks),
                rows=rows,
                round=round,
                refuses_unrouted=settings.unrouted == "refuse",
                max_bad_records=settings.bad_records.limit if settings.bad_records else 0,
                wanted=wanted,
            )
            description = f"twopc: {what} batch {batch_id} of {names}"
            with passing_failures(engine.is_stopped), engine.describe(description):
                collecting, schema = start.collecting, frame.schema
                small = collecting and collecting.write(on_driver, schema, plan, of_batch.records, task)
                return [small] if small else _run(frame, task, plan, start.limited_by_rows)

        def phase_one(round: Round) -> Iterator[Vote]:
            by_task = write("pre-commit", round)
            bad = [each for task in by_task for each in task.bad_records]
            self._left_out = LeftOut(sum(task.unrouted for task in by_task), len(bad))
            yield from (task.vote for task in by_task)
            if offsets is not None:
                yield self._pre_commit_offsets(round, offsets)
            if bad and settings.bad_records is not None:
                with passing_failures(engine.is_stopped):
                    records = records_for_sink(bad, batch.sparkSession, settings.bad_records)
                yield self._pre_commit(round, _BAD_RECORDS, records)

        def compute_again(round: Round, wanted: Wanted) -> Iterator[Vote]:
            if not settings.sinks.keys().isdisjoint(wanted):
                yield from (task.vote for task in write("compute again what is lost of", round, wanted))
            if offsets is not None and _OFFSETS in wanted:
                yield self._pre_commit_offsets(round, offsets)

        def evaluate() -> None:
            # Spark's state store and watermark advance only when the plan is evaluated, and a crash must not hold them
            # back. A plan without state can't be recognized here, so it is evaluated too.
            description = f"twopc: evaluate batch {batch_id} of {names} again, which is committed"
            with passing_failures(engine.is_stopped), engine.describe(description):
                batch.write.format("noop").mode("overwrite").save()

        self._last_progress = coordinator.run(
            batch_id,
            phase_one,
            reads=of_batch.reads,
            follows=of_batch.follows,
            recompute=compute_again if settings.recomputes else None,
            left_out=lambda: self._left_out,
            already_decided=evaluate,
        )

    def _pre_commit_offsets(self, round: Round, offsets: pa.RecordBatch) -> Vote:
        return self._pre_commit(round, _OFFSETS, [offsets], hashed=self._settings.recomputes)

    def _pre_commit(self, round: Round, sink: str, batches: Sequence[pa.RecordBatch], hashed: bool = False) -> Vote:
        """Write and pre-commit records on the driver, after all tasks have voted."""
        with Participant(self._settings.on_driver, round, partition=0) as participant:
            for batch in batches:
                participant.write(sink, batch, hashes_of(batch) if hashed else None)
            return participant.pre_commit()

    @property
    def last_progress(self) -> BatchFinished | None:
        """The metrics of the last successful batch, or None before the first."""
        return self._last_progress

    def close(self) -> None:
        """Record a clean stop in the log after the query has ended by itself. ``stop`` does this for a running query.
        Without the record, the next start recovers."""
        if self._coordinator is not None:
            self._coordinator.close()

    def _coordinator_of(self, query_id: str) -> Coordinator:
        if self._coordinator is None or query_id != self._query_id:
            self._coordinator = self._settings.coordinator(query_id, self._gives_up)
            self._query_id, self._start = query_id, None
        turns[query_id] = self._turn
        return self._coordinator

    def _look(self, engine: Engine, batch: DataFrame) -> _Start:
        """Look up the query's input and checkpoint, once per start of the query. Refuse shared folders, and conditions
        that are not about a single row."""
        if self._start is None or not self._start.input.is_active:
            found = engine.look(batch)
            self._refuse_deletes()
            self._refuse_shared_folders(found)
            projection = self._settings.projection()
            projection.require_conditions_of_rows(batch)
            session, taker = batch.sparkSession, self._settings.bad_records
            schemas = {} if self._settings.offsets is None else {_OFFSETS: OFFSETS_SCHEMA}
            if taker is not None:
                schemas[_BAD_RECORDS] = schema_of(session, taker, _BAD_RECORDS)
            collecting = Collecting() if self._settings.small_batches == "driver" else None
            # The tasks of a second job would wait for rows that the first job has locked and prepared.
            runs_once = any(isinstance(sink, PreparedSink) for sink in self._settings.sinks.values())
            limited = LimitedByRows(is_over=runs_once)
            self._start = _Start(found, Plans(session, found.query), projection, schemas, collecting, limited)
        return self._start

    def _refuse_deletes(self) -> None:
        """Raise the sink's error if an output has a ``delete_where``, but its sink can't delete."""
        for name, output in self._settings.outputs.items():
            if output.delete_where is not None:
                assert isinstance(output.sink, KeyedSink)
                with located(sink=name):
                    until_answered(
                        f"look at what sink {name!r} deletes from",
                        output.sink.validate_deletes,
                        patience_s=self._settings.start_timeout_s,
                    )

    def _refuse_shared_folders(self, found: Input) -> None:
        """Refuse a checkpoint or a source in the same folder as a sink, the log or the replay copies."""
        settings = self._settings
        refuse_within_outputs("the checkpoint", found.checkpoint, settings.all_sinks)
        log = settings.log if isinstance(settings.log, str | os.PathLike) else settings.log.url
        refuse_within_checkpoint(os.fspath(log), found.checkpoint)
        for source in found.file_sources:
            refuse_within_source("the commit log", os.fspath(log), source)
            if settings.replay_copies is not None:
                refuse_within_source("the folder of replay copies", settings.replay_copies.url, source)

    def _waits_in_vain(self) -> bool:
        """Whether the current batch has waited too long for a target system."""
        return self._coordinator is not None and self._coordinator.waited_s > STOP_PATIENCE_S

    def _gives_up(self, event: CallRetried) -> bool:
        """Whether to stop waiting for a target system because the query was stopped."""
        return event.waited_s > STOP_PATIENCE_S and self._is_stopped()

    def _is_stopped(self) -> bool:
        return self._start is not None and not self._start.input.is_active

    def __reduce__(self) -> tuple[object, ...]:
        return ForeachBatch, (self._settings,)


def _run(frame: DataFrame, task: Task, plan: Plan, limited_by_rows: LimitedByRows) -> list[Written]:
    """Write and pre-commit a batch in the tasks of a Spark job."""

    def by_tasks(frame: DataFrame) -> list[Written]:
        return [Written.of(row) for row in frame.mapInArrow(portable(task), VOTE_SCHEMA).collect()]

    with refusals_from_tasks():
        return limited_by_rows.run(by_tasks, frame, plan, task.rows.in_structs)
