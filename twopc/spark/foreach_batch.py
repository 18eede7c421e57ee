"""The callable for ``DataStreamWriter.foreachBatch``: passes Spark's micro-batches through the coordinator."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from twopc.coordinator import START_TIMEOUT_S, Coordinator
from twopc.errors import ConfigurationError, RecordRefused
from twopc.events import BatchFinished, CallRetried, LeftOut
from twopc.failures import located
from twopc.keyed import KeyedSink
from twopc.log.store import LogStore
from twopc.participant import Participant, Vote
from twopc.recompute import Wanted, hashes_of
from twopc.replay import ReplayCopies
from twopc.retry import until_answered
from twopc.sink import TwoPhaseCommitSink
from twopc.spark.bad_records import BadRecord, as_output_takes, schema_of
from twopc.spark.batch_input import OFFSETS_SCHEMA
from twopc.spark.changes import ByKey
from twopc.spark.collecting import Collecting
from twopc.spark.engine import ClassicEngine, ConnectEngine, Engine, Input, UnknownPlans, is_connected
from twopc.spark.output import Output, by_key, projected, require_conditions_of_rows
from twopc.spark.passing import passing_failures
from twopc.spark.pickled_sinks import PickledSinks
from twopc.spark.stopping import STOP_PATIENCE_S, Turn, interrupts_in_few_words, writers
from twopc.spark.task import VOTE_SCHEMA, Task, Written, portable, refusals_from_tasks
from twopc.spark.tuning import LimitedByRows, Plan, Plans, on_few_tasks
from twopc.stores.places import refuse_within_checkpoint, refuse_within_outputs, refuse_within_source
from twopc.transactional_ids import Round

_Otherwise: TypeAlias = Literal["count", "refuse"]

_OFFSETS, _BAD_RECORDS = "offsets", "bad_records"
"""The names in the log of the sinks that the driver writes to."""

MAX_BAD_RECORDS = 1_000


def foreach_batch(
    sinks: TwoPhaseCommitSink[Any] | Output | Mapping[str, TwoPhaseCommitSink[Any] | Output],
    log: str | os.PathLike[str] | LogStore,
    *,
    first_batch_id: int = 0,
    replay_copies: str | os.PathLike[str] | ReplayCopies | None = None,
    recompute: bool = False,
    offsets: TwoPhaseCommitSink[Any] | None = None,
    otherwise: _Otherwise = "count",
    on_bad_record: TwoPhaseCommitSink[Any] | Output | None = None,
    max_bad_records: int = MAX_BAD_RECORDS,
    checkpoint: str | os.PathLike[str] | None = None,
    coalesce: bool = True,
    collect: bool = True,
    uncapped: bool = True,
    start_timeout_s: float = START_TIMEOUT_S,
) -> ForeachBatch:
    """Return a callable for ``DataStreamWriter.foreachBatch`` that writes each batch to all ``sinks``, exactly once.

    Args:
        sinks: a sink, which gets all columns of all rows; or an ``Output``, which chooses; or a dictionary of these by
            names of your choice. The names go into transactional ids and the log: keep them over restarts.
        log: the folder of the commit log, one per query, in a place that the driver reaches wherever it is restarted;
            or the result of ``twopc.open_store`` for a URL with options.
        first_batch_id: see ``Coordinator``; only for a query that ran without twopc before.
        replay_copies: a folder for copies of the records, or None; see ``Coordinator``. Executors must reach it.
        recompute: if a target system rolls back a decided transaction, write its records again when Spark repeats the
            batch, provided that they are the same: see docs/spark.md. Each record gets a hash for that, and small
            batches keep their tasks, as with ``coalesce=False`` and ``collect=False``.
        offsets: a sink of backend ``kafka-offsets``, or None. With each batch's decision, a consumer group gets the
            offsets at which the query's Kafka sources end. The sink is committed after all ``sinks``.
        otherwise: what becomes of a row for which the condition of every output is false or null: ``count`` it in
            ``last_progress.unrouted``, or ``refuse`` the batch before its decision.
        on_bad_record: the sink that gets a record that another one refuses, such as one that is too large, in the same
            decision; or None, so that such a record fails the batch. It gets the columns ``sink`` (which one refused
            the record), ``reason`` and ``row`` (of the batch, as JSON), or what an ``Output`` makes of these. See
            docs/spark.md.
        max_bad_records: how many records of a batch may go there. One more fails the batch before its decision.
        checkpoint: the query's ``checkpointLocation``. Only for Spark Connect, whose server runs this function in a
            process that can't ask Spark for it; Python must be able to read it there.
        coalesce: write a batch that is likely to be small on at most as many tasks as there are cores, if its plan
            consists of sources, columns, filters and unions. Each task saved is 10 to 20 ms.
        collect: write a batch of up to 10,000 records and 16 MiB on the driver, without Python tasks, if it reads from
            Kafka alone and its plan consists of columns and filters: see docs/spark.md.
        uncapped: end Arrow record batches by Spark's limit of rows alone, while records are small, if the query has no
            state and only the sinks run Python. Spark's check of its limit of bytes may take longer than everything
            else: see docs/spark.md.
        start_timeout_s: how long a target system may give no answer before the query's first batch is decided. Then the
            query fails with the reason. Later batches wait without limit, except for the last check of a sink before
            each decision: after 120 seconds the batch is rolled back.

    Raises:
        ConfigurationError: there is no sink, an argument is wrong, or the log can't be kept there.
    """
    _require_types(locals())
    if recompute and replay_copies is not None:
        raise ConfigurationError(
            "lost transactions are written again either from 'replay_copies' or by recompute=True: give one of them"
        )
    named = sinks if isinstance(sinks, Mapping) else {"sink": sinks}
    on_driver = {_OFFSETS: offsets, _BAD_RECORDS: on_bad_record}
    for name in [name for name, given in on_driver.items() if given is not None and name in named]:
        argument = "offsets" if name == _OFFSETS else "on_bad_record"
        raise ConfigurationError(f"{name!r} is the name of {argument!r} in the log: give that sink another name")
    return ForeachBatch(
        _Settings(
            outputs={name: Output.of(given) for name, given in named.items()},
            log=log,
            first_batch_id=first_batch_id,
            replay_copies=replay_copies,
            recompute=recompute,
            offsets=None if offsets is None else Output.of(offsets).sink,
            otherwise=otherwise,
            on_bad_record=None if on_bad_record is None else _taker(on_bad_record),
            max_bad_records=max_bad_records,
            checkpoint=None if checkpoint is None else os.fspath(checkpoint),
            coalesce=coalesce and not recompute,
            collect=collect and not recompute,
            uncapped=uncapped,
            start_timeout_s=start_timeout_s,
        )
    )


_FOLDER = (str, os.PathLike, type(None))

_TYPES: Mapping[str, tuple[tuple[type, ...], str, Callable[[Any], bool]]] = {
    "first_batch_id": ((int,), "a whole number, 0 or more", lambda given: given >= 0),
    "replay_copies": ((*_FOLDER, ReplayCopies), "a folder, given as path or URL, or None", lambda _: True),
    "recompute": ((bool,), "True or False", lambda _: True),
    "offsets": ((TwoPhaseCommitSink, type(None)), "a sink, or None", lambda _: True),
    "otherwise": ((str,), "'count' or 'refuse'", lambda given: given in get_args(_Otherwise)),
    "max_bad_records": ((int,), "a whole number, 1 or more", lambda given: given >= 1),
    "checkpoint": (_FOLDER, "a folder, given as path or URL, or None", lambda _: True),
    "coalesce": ((bool,), "True or False", lambda _: True),
    "collect": ((bool,), "True or False", lambda _: True),
    "uncapped": ((bool,), "True or False", lambda _: True),
    "start_timeout_s": ((int, float), "seconds, 0 or more", lambda given: given >= 0),
}
"""The types of an argument, in words, and which of their values it takes."""


def _require_types(given: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for an argument of another type, such as text. No value is repeated: it may be a secret
    that was given to the wrong argument."""
    for name, (types, must_be, takes) in _TYPES.items():
        value = given[name]
        is_of_type = isinstance(value, types) and (bool in types or not isinstance(value, bool))
        if not is_of_type or not takes(value):
            but = "" if is_of_type else f", not of type {type(value).__name__}"
            raise ConfigurationError(f"the argument {name!r} of foreach_batch must be {must_be}{but}", option=name)
    names = [*given["sinks"]] if isinstance(given["sinks"], Mapping) else []
    if any(not isinstance(name, str) for name in names):
        raise ConfigurationError("the argument 'sinks' of foreach_batch must have text as names", option="sinks")


def _taker(given: TwoPhaseCommitSink[Any] | Output) -> Output:
    output = Output.of(given)
    for option in ("where", "delete_where", "latest_by"):
        if getattr(output, option) is not None:
            raise ConfigurationError(f"the output of 'on_bad_record' gets every bad record: leave out its {option!r}")
    return output


@dataclass(frozen=True)
class _Settings:
    """The arguments of ``foreach_batch``, checked. ``outputs`` are by name."""

    outputs: Mapping[str, Output]
    log: str | os.PathLike[str] | LogStore
    first_batch_id: int
    replay_copies: str | os.PathLike[str] | ReplayCopies | None
    recompute: bool
    offsets: TwoPhaseCommitSink[Any] | None
    otherwise: _Otherwise
    on_bad_record: Output | None
    max_bad_records: int
    checkpoint: str | None
    coalesce: bool
    collect: bool
    uncapped: bool
    start_timeout_s: float

    @property
    def sinks(self) -> dict[str, TwoPhaseCommitSink[Any]]:
        """The sinks that tasks write to."""
        return {name: output.sink for name, output in self.outputs.items()}

    @property
    def on_driver(self) -> dict[str, TwoPhaseCommitSink[Any]]:
        """The sinks that the driver writes to, when all tasks have voted."""
        given = {_OFFSETS: self.offsets, _BAD_RECORDS: self.on_bad_record.sink if self.on_bad_record else None}
        return {name: sink for name, sink in given.items() if sink is not None}

    @property
    def all_sinks(self) -> dict[str, TwoPhaseCommitSink[Any]]:
        return {**self.sinks, **self.on_driver}

    @property
    def hashed(self) -> list[str]:
        """The sinks whose records get hashes."""
        return [name for name, sink in self.sinks.items() if sink.may_time_out] if self.recompute else []

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


class ForeachBatch:
    """Writes one micro-batch per call. Created by ``foreach_batch``.

    It can be pickled. A copy opens the log anew at its first batch.
    """

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        self._last_progress: BatchFinished | None = None
        self._query_id: str | None = None
        self._coordinator: Coordinator | None = None
        self._input: Input | None = None
        self._plans: Plans | UnknownPlans | None = None
        self._schemas_on_driver: Mapping[str, pa.Schema] = {}
        self._collecting = Collecting()
        self._limited_by_rows = LimitedByRows()
        self._by_key = ByKey()
        self._left_out = LeftOut()
        self._turn = Turn()
        settings.coordinator("not started", self._gives_up)  # reject wrong arguments here, not at the first batch

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch. Called by Spark.

        Raises:
            TwoPhaseCommitError: see ``twopc.errors``. The query stops. When it is started again, it recovers first.
        """
        given: tuple[Any, Any] = batch, batch_id  # whatever their types say
        if not (isinstance(given[0], DataFrame) and isinstance(given[1], int)):
            raise ConfigurationError(
                "what foreach_batch returns takes a frame of Spark and the batch's number, not a"
                f" {type(batch).__name__} and a {type(batch_id).__name__}: pass it to df.writeStream.foreachBatch(...)"
            )
        session = batch.sparkSession
        if is_connected(batch):
            self._write(ConnectEngine(session, self._settings.checkpoint), batch, batch_id)
            return
        with interrupts_in_few_words(batch_id, self._is_stopped), self._turn.of_batch(session.sparkContext):
            self._write(ClassicEngine(session), batch, batch_id)

    def _write(self, engine: Engine, batch: DataFrame, batch_id: int) -> None:
        settings = self._settings
        coordinator = self._ensure_coordinator(engine.query_id)
        batch_input, plans = self._ensure_input(engine, batch)
        selected, rows = projected(batch, settings.outputs, settings.hashed, settings.on_bad_record is not None)
        plan = plans.of(selected)
        plan.refuse_too_many_tasks(batch_id, len(settings.outputs))
        selected, tasks = on_few_tasks(selected, plan) if settings.coalesce else (selected, plan.tasks)
        frame = by_key(selected, rows, self._by_key, tasks) if rows.keyed else selected
        schema = frame.schema
        # Here rather than in each task, and before the log is opened.
        coordinator.validate({**rows.schemas(frame), **self._schemas_on_driver})

        def on_driver() -> DataFrame:
            return by_key(selected.coalesce(1), rows, self._by_key, 1) if rows.keyed else frame

        offsets = batch_input.kafka_offsets() if settings.offsets else None
        names = ", ".join(settings.outputs)

        def written(what: str, round: Round, wanted: Wanted | None = None) -> list[Written]:
            task = Task(
                sinks=PickledSinks.of(settings.sinks),
                rows=rows,
                round=round,
                refuses_unrouted=settings.otherwise == "refuse",
                max_bad_records=settings.max_bad_records if settings.on_bad_record else 0,
                wanted=wanted,
            )
            with engine.described(f"twopc: {what} batch {batch_id} of {names}"), passing_failures():
                return self._run(frame, on_driver, schema, task, plan, of_batch.records)

        def phase_one(round: Round) -> Iterator[Vote]:
            by_task = written("pre-commit", round)
            bad = [each for task in by_task for each in task.bad_records]
            self._left_out = LeftOut(sum(task.unrouted for task in by_task), len(bad))
            yield from (task.vote for task in by_task)
            if offsets is not None:
                yield self._pre_commit_offsets(round, offsets)
            if bad:
                yield self._pre_commit_on_driver(round, _BAD_RECORDS, self._taken(bad, batch.sparkSession))

        def computed_again(round: Round, wanted: Wanted) -> Iterator[Vote]:
            if not settings.sinks.keys().isdisjoint(wanted):
                yield from (task.vote for task in written("compute again what is lost of", round, wanted))
            if offsets is not None and _OFFSETS in wanted:
                yield self._pre_commit_offsets(round, offsets)

        of_batch = batch_input.of_batch(batch_id)
        self._last_progress = coordinator.run(
            batch_id,
            phase_one,
            reads=of_batch.reads,
            follows=of_batch.follows,
            recompute=computed_again if settings.recompute else None,
            left_out=lambda: self._left_out,
        )
        if self._last_progress.already_decided:
            # Spark's state store and watermark advance only when the plan is evaluated, and after a crash they must be
            # where they would be without one. A plan without state can't be recognized here, so it is evaluated too.
            with engine.described(f"twopc: evaluate batch {batch_id} of {names} again, which is committed"):
                batch.write.format("noop").mode("overwrite").save()

    def _run(
        self,
        frame: DataFrame,
        on_driver: Callable[[], DataFrame],
        schema: StructType,
        task: Task,
        plan: Plan,
        records: int | None,
    ) -> list[Written]:
        """Write and pre-commit a batch, on the driver (what ``on_driver`` returns) or in the tasks of a Spark job."""
        settings = self._settings
        if settings.collect and (small := self._collecting.write(on_driver, schema, plan, records, task)):
            return [small]

        def by_tasks(frame: DataFrame) -> list[Written]:
            return [Written.of(row) for row in frame.mapInArrow(portable(task), VOTE_SCHEMA).collect()]

        with refusals_from_tasks():
            if not settings.uncapped:
                return by_tasks(frame)
            return self._limited_by_rows.run(by_tasks, frame, schema, plan, task.rows.in_structs)

    def _pre_commit_offsets(self, round: Round, offsets: pa.RecordBatch) -> Vote:
        return self._pre_commit_on_driver(round, _OFFSETS, [offsets], hashed=self._settings.recompute)

    def _pre_commit_on_driver(
        self, round: Round, sink: str, batches: Sequence[pa.RecordBatch], hashed: bool = False
    ) -> Vote:
        """Write and pre-commit on the driver, when all tasks have voted."""
        with Participant(self._settings.on_driver, round, partition=0) as participant:
            for batch in batches:
                participant.write(sink, batch, hashes_of(batch) if hashed else None)
            return participant.pre_commit()

    def _taken(self, bad: Sequence[BadRecord], session: SparkSession) -> list[pa.RecordBatch]:
        """Return bad records as their sink takes them.

        Raises:
            RecordRefused: there are more than a batch may have.
        """
        settings = self._settings
        assert settings.on_bad_record is not None
        if len(bad) > settings.max_bad_records:
            raise RecordRefused(
                f"the sinks refused {len(bad)} records of the batch, more than 'max_bad_records' ="
                f" {settings.max_bad_records}. The last one: {bad[-1].reason}",
                sink=bad[-1].sink,
            )
        return as_output_takes(bad, session, settings.on_bad_record)

    @property
    def last_progress(self) -> BatchFinished | None:
        """The metrics of the last successful batch, or None before the first."""
        return self._last_progress

    @property
    def _sinks(self) -> dict[str, TwoPhaseCommitSink[Any]]:
        """All sinks by their names in the log."""
        return self._settings.all_sinks

    @property
    def _log(self) -> str | os.PathLike[str] | LogStore:
        return self._settings.log

    def _refuse_within_batch(self) -> None:
        """See ``Turn.refuse_within_batch``."""
        self._turn.refuse_within_batch()

    def _between_batches(self, query: StreamingQuery) -> contextlib.AbstractContextManager[None]:
        """See ``Turn.between_batches``."""
        return self._turn.between_batches(query, self._waits_in_vain)

    def close(self) -> None:
        """Record a clean stop in the log when the query has ended by itself. ``stop`` does it for a running query.
        Without it, the next start recovers."""
        if self._coordinator is not None:
            self._coordinator.close()

    def _ensure_coordinator(self, query_id: str) -> Coordinator:
        if self._coordinator is None or query_id != self._query_id:
            self._query_id, self._input = query_id, None
            self._coordinator = self._settings.coordinator(query_id, self._gives_up)
        writers[query_id] = self
        return self._coordinator

    def _ensure_input(self, engine: Engine, batch: DataFrame) -> tuple[Input, Plans | UnknownPlans]:
        """Look up what the query reads and its checkpoint, once per start of the query. Refuse shared folders, and
        conditions that are not about a row."""
        if self._input is None or self._plans is None or not self._input.is_active:
            self._input, self._plans = engine.look(batch)
            self._collecting = Collecting()
            self._limited_by_rows = LimitedByRows()
            self._by_key = ByKey()
            self._refuse_deletes()
            self._refuse_shared_folders(self._input)
            require_conditions_of_rows(batch, self._settings.outputs)
            self._schemas_on_driver = self._look_at_schemas(batch.sparkSession)
        return self._input, self._plans

    def _look_at_schemas(self, session: SparkSession) -> dict[str, pa.Schema]:
        """Return the schemas of what the driver writes."""
        schemas = {} if self._settings.offsets is None else {_OFFSETS: OFFSETS_SCHEMA}
        if (taker := self._settings.on_bad_record) is not None:
            schemas[_BAD_RECORDS] = schema_of(session, taker, _BAD_RECORDS)
        return schemas

    def _refuse_deletes(self) -> None:
        """Have sinks look whether they can delete, where an output deletes."""
        for name, output in self._settings.outputs.items():
            if output.delete_where is not None:
                assert isinstance(output.sink, KeyedSink)
                with located(sink=name):
                    until_answered(
                        f"look at what sink {name!r} deletes from",
                        output.sink.validate_deletes,
                        patience_s=self._settings.start_timeout_s,
                    )

    def _refuse_shared_folders(self, batch_input: Input) -> None:
        """Refuse a checkpoint or a source that shares a folder with a sink, the log or the replay copies."""
        settings = self._settings
        refuse_within_outputs("the checkpoint", batch_input.checkpoint, {**settings.sinks, **settings.on_driver})
        refuse_within_checkpoint(_url(settings.log), batch_input.checkpoint)
        for source in batch_input.file_sources:
            refuse_within_source("the commit log", _url(settings.log), source)
            if settings.replay_copies is not None:
                refuse_within_source("the folder of replay copies", _url(settings.replay_copies), source)

    def _waits_in_vain(self) -> bool:
        """Whether the current batch has waited too long for a target system."""
        return self._coordinator is not None and self._coordinator.waited_s > STOP_PATIENCE_S

    def _gives_up(self, event: CallRetried) -> bool:
        """Whether to end the wait for a target system because the query was stopped."""
        return event.waited_s > STOP_PATIENCE_S and self._is_stopped()

    def _is_stopped(self) -> bool:
        return self._input is not None and not self._input.is_active

    def __reduce__(self) -> tuple[object, ...]:
        return ForeachBatch, (self._settings,)


def _url(place: str | os.PathLike[str] | LogStore | ReplayCopies) -> str:
    return os.fspath(place) if isinstance(place, str | os.PathLike) else place.url
