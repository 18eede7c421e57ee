"""A query is stopped in each phase of a batch, by ``twopc.spark.stop`` and by Spark alone."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

import twopc
from tests.spark.conftest import Hold, Pipeline, rows
from tests.support.observing import observing
from tests.support.waiting import until
from twopc import Committable
from twopc.errors import ConfigurationError, Retriable, RoundAborted
from twopc.events import Event, PhaseEntered, TransactionAborted, TransactionCommitted
from twopc.phases import Phase
from twopc.spark import stop, stopping
from twopc.spark.stopping import Turn, shorten_interrupts
from twopc_files.sink import FileSink, FileTransaction

HELD_S = 60


def in_background(call: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def is_interrupted(query: Any) -> bool:
    return bool(query._jsq.streamingQuery().queryExecutionThread().isInterrupted())


def noted(pipeline: Pipeline) -> list[str]:
    """The batches that Spark has recorded as done."""
    return sorted(file.name for file in (pipeline.checkpoint / "commits").glob("[0-9]*"))


# Spark's own stop. -----------------------------------------------------------------------------------------------

PHASES = {
    Phase.RECOVERING: False,
    Phase.PRE_COMMITTING: False,
    Phase.SEALING: True,
    Phase.DECIDING: True,
    Phase.COMMITTING: True,
    Phase.SWEEPING: True,
}
"""The phase of a batch when Spark's stop() comes, and whether the batch is finished all the same."""


@pytest.mark.long
def test_a_batch_that_sparks_stop_interrupts_is_rolled_back_or_finished_and_there_once_after_a_restart(
    pipeline: Pipeline, hold: Hold
) -> None:
    for number, (phase, is_finished) in enumerate(PHASES.items()):
        pipeline.add_batch(rows(number))
        hold.at(phase, number)
        query = pipeline.start(pipeline.writer())
        assert hold.reached.wait(HELD_S)
        stopping = in_background(query.stop)
        until(lambda query=query: is_interrupted(query))  # type: ignore[misc]
        hold.released.set()
        stopping.join(HELD_S)
        assert query.exception() is None
        assert query.status["message"] == "Stopped"  # the query's thread has not died
        assert pipeline.archived_ids() == pipeline.decided_batches() == list(range(number + is_finished))

    pipeline.run(pipeline.writer())
    assert pipeline.archived_ids() == pipeline.decided_batches() == list(range(len(PHASES)))
    assert pipeline.pending_files() == []


class WaitingTasks(FileSink):
    """A sink whose tasks wait before they pre-commit, as long as ``folder`` exists."""

    def __init__(self, options: dict[str, str], folder: Path) -> None:
        super().__init__(options)
        self.folder = folder

    def pre_commit(self, transaction: FileTransaction) -> Committable:
        deadline = time.monotonic() + HELD_S
        while self.folder.exists() and time.monotonic() < deadline:
            (self.folder / "reached").touch()
            time.sleep(0.02)
        return super().pre_commit(transaction)


@pytest.mark.long
def test_sparks_stop_amid_the_tasks_rolls_the_batch_back(pipeline: Pipeline) -> None:
    waiting = pipeline.folder / "waiting"
    waiting.mkdir()
    options = {"path": str(pipeline.folder / "archive"), "format": "json"}
    pipeline.add_batch(rows(1, 2))
    query = pipeline.start(pipeline.writer(WaitingTasks(options, waiting)))
    until((waiting / "reached").exists)
    query.stop()
    assert query.exception() is None
    assert query.status["message"] == "Stopped"
    assert pipeline.decided_batches() == pipeline.archived_ids() == []

    (waiting / "reached").unlink()
    waiting.rmdir()
    pipeline.run(pipeline.writer())
    assert pipeline.archived_ids() == [1, 2]
    assert pipeline.pending_files() == []


@pytest.mark.long
def test_a_query_is_not_started_again_while_the_batch_that_was_to_stop_still_runs(
    pipeline: Pipeline, hold: Hold
) -> None:
    configuration = pipeline.spark.conf
    configuration.set("spark.sql.streaming.stopTimeout", "300")
    try:
        pipeline.add_batch(rows(1))
        hold.at(Phase.COMMITTING, 0)
        query = pipeline.start(pipeline.writer())
        assert hold.reached.wait(HELD_S)
        for attempt in (query.stop, lambda: pipeline.start(pipeline.writer())):
            with pytest.raises(Py4JJavaError, match="failed to stop within 300"):
                attempt()
        assert len(pipeline.entries("open")) == 1
        hold.released.set()
        query.awaitTermination()
    finally:
        hold.released.set()
        configuration.unset("spark.sql.streaming.stopTimeout")

    pipeline.add_batch(rows(2))
    pipeline.run(pipeline.writer())
    assert pipeline.archived_ids() == [1, 2]
    assert pipeline.decided_batches() == [0, 1]


# A target system that gives no answer. -------------------------------------------------------------------------------

QUESTIONS = ("validate", "open", "seal", "commit", "complete", "recover")


class Silent(FileSink):
    """A sink whose target system does not answer a question if the folder ``silent`` has a file of its name."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__({"path": str(pipeline.folder / "archive"), "format": "json"})
        self.folder = pipeline.folder / "silent"

    def _ask(self, question: str) -> None:
        if (self.folder / question).exists():
            (self.folder / "asked").touch()
            raise Retriable("no server answers at silent:1")


def asked_first(question: str) -> Callable[..., Any]:
    def ask(sink: Silent, *arguments: Any) -> Any:
        sink._ask(question)
        return getattr(FileSink, question)(sink, *arguments)

    return ask


for each in QUESTIONS:
    setattr(Silent, each, asked_first(each))


@pytest.mark.long
@pytest.mark.advice("was interrupted: its query was stopped, or its job cancelled")
@pytest.mark.parametrize(
    ("end", "questions"),
    [
        pytest.param(stop, ("commit",), id="twopc.spark.stop"),
        pytest.param(stop, QUESTIONS, id="twopc.spark.stop at each"),
        pytest.param(StreamingQuery.stop, QUESTIONS, id="query.stop at each"),
    ],
)
def test_a_query_that_waits_for_a_silent_target_system_stops_within_seconds_and_goes_on_later(
    pipeline: Pipeline, end: Callable[[StreamingQuery], None], questions: Sequence[str]
) -> None:
    folder = pipeline.folder / "silent"
    folder.mkdir()
    for number, question in enumerate(questions):
        (folder / question).touch()
        pipeline.add_batch(rows(number))
        query = pipeline.start(pipeline.writer(Silent(pipeline)))
        until((folder / "asked").exists)
        began = time.monotonic()
        end(query)
        assert time.monotonic() - began < 15
        assert query.exception() is None
        (folder / question).unlink()
        (folder / "asked").unlink()
    pipeline.run(pipeline.writer())
    assert pipeline.archived_ids() == pipeline.decided_batches() == list(range(len(questions)))


@pytest.mark.long
@pytest.mark.parametrize("question", ["open", "validate", "recover"])
def test_a_first_start_without_an_answer_fails_in_bounded_time_with_the_reason(
    pipeline: Pipeline, question: str
) -> None:
    folder = pipeline.folder / "silent"
    folder.mkdir()
    (folder / question).touch()
    pipeline.add_batch(rows(1))
    with pytest.raises(StreamingQueryException, match=r"Retriable: .*no server answers at silent:1"):
        pipeline.run(pipeline.writer(Silent(pipeline), start_timeout_s=2))
    assert pipeline.decided_batches() == []


@pytest.mark.parametrize(
    ("raised", "told"),
    [(Retriable("no broker answers"), Retriable), (RoundAborted("the round failed before its decision"), RoundAborted)],
)
def test_a_stop_calls_a_batch_rolled_back_only_where_it_is(raised: Exception, told: type[Exception]) -> None:
    if isinstance(raised, RoundAborted):
        raised.__cause__ = Retriable("no broker answers")
    with pytest.raises(told, match="batch 7 was interrupted"), shorten_interrupts(7, lambda: True):
        raise raised


# twopc.spark.stop. -----------------------------------------------------------------------------------------------


def stopped_at(phase: Phase, pipeline: Pipeline, hold: Hold, write: Any) -> StreamingQuery:
    """Return a query that was asked to stop while its first batch was in a phase, and has ended since."""
    hold.at(phase, 0)
    query: StreamingQuery = pipeline.start(write)
    assert hold.reached.wait(HELD_S)
    stopping = in_background(lambda: stop(query))
    hold.released.set()
    stopping.join(HELD_S)
    return query


@pytest.mark.parametrize(
    "phase",
    [
        Phase.PRE_COMMITTING,
        *(pytest.param(each, marks=pytest.mark.long) for each in (Phase.RECOVERING, Phase.COMMITTING)),
    ],
)
def test_stop_finishes_the_current_batch_begins_no_other_and_closes_the_log(
    pipeline: Pipeline, hold: Hold, events: list[Event], phase: Phase
) -> None:
    for number in range(3):
        pipeline.add_batch(rows(number))
    query = stopped_at(phase, pipeline, hold, pipeline.writer())
    assert not query.isActive
    assert query.exception() is None
    assert query.status["message"] == "Stopped"
    assert (pipeline.decided_batches(), pipeline.archived_ids(), noted(pipeline)) == ([0], [0], ["0"])
    assert len(pipeline.entries("close")) == 1

    events.clear()
    pipeline.run(pipeline.writer())
    assert pipeline.archived_ids() == [0, 1, 2]
    assert pipeline.decided_batches() == [0, 1, 2]  # none was repeated
    recovered = (TransactionCommitted, TransactionAborted)
    assert not any(event.recovered for event in events if isinstance(event, recovered))


def test_stop_between_two_batches_returns_at_once_and_the_query_goes_on_later(pipeline: Pipeline) -> None:
    pipeline.add_batch(rows(1))
    write = pipeline.writer()
    for number in (1, 2):
        query = pipeline.start(write, trigger={"processingTime": "1 hour"})
        until(lambda number=number: len(noted(pipeline)) == number)  # type: ignore[misc]
        stop(query)
        assert len(pipeline.entries("close")) == number
        pipeline.add_batch(rows(number + 1))
    assert pipeline.decided_batches() == [0, 1]
    assert pipeline.archived_ids() == [1, 2]


def test_stop_closes_the_log_of_a_query_that_has_ended_and_stops_one_that_has_not_begun(pipeline: Pipeline) -> None:
    empty = pipeline.beside("empty")
    (empty.folder / "source").mkdir(parents=True)
    query = empty.start(empty.writer(), trigger={"processingTime": "1 hour"})
    stop(query)
    assert not query.isActive
    assert not empty.log.exists()

    pipeline.add_batch(rows(1))
    query = pipeline.start(pipeline.writer())
    query.awaitTermination()
    stop(query)
    assert len(pipeline.entries("close")) == 1


@pytest.mark.long
def test_stop_of_a_query_whose_batch_fails_returns_and_the_query_has_the_error(pipeline: Pipeline, hold: Hold) -> None:
    class Full(FileSink):
        def commit(self, committable: Committable) -> None:
            raise OSError("the disk is full")

    archive = Full({"path": str(pipeline.folder / "archive"), "format": "json"})
    pipeline.add_batch(rows(1))
    query = stopped_at(Phase.COMMITTING, pipeline, hold, pipeline.writer(archive))
    assert "the disk is full" in str(query.exception())

    pipeline.run(pipeline.writer())
    assert pipeline.archived_ids() == [1]


@pytest.mark.variants
@pytest.mark.parametrize("drain", [False, True])
def test_stop_from_within_a_batch_is_refused(drain: bool, pipeline: Pipeline) -> None:
    said: list[Exception] = []

    class Impatient:
        @twopc.hookimpl
        def twopc_event(self, event: Event) -> None:
            if isinstance(event, PhaseEntered) and event.phase is Phase.COMMITTING:
                try:
                    stop(pipeline.spark.streams.active[0], drain=drain)
                except ConfigurationError as error:
                    said.append(error)

    pipeline.add_batch(rows(1))
    with observing(Impatient()):
        pipeline.run(pipeline.writer())
    assert ["from within a batch" in str(error) for error in said] == [True]
    assert pipeline.archived_ids() == [1]


def test_stop_in_the_function_of_a_batch_after_its_writer_is_refused(pipeline: Pipeline) -> None:
    writer = pipeline.writer()

    def write(batch: Any, batch_id: int) -> None:
        writer(batch, batch_id)
        [query] = pipeline.spark.streams.active
        stop(query)

    pipeline.add_batch(rows(1))
    query = pipeline.start(write)
    try:
        with pytest.raises(StreamingQueryException, match="from within a batch"):
            assert query.awaitTermination(HELD_S), "it waits for itself"
    finally:
        query.stop()
    assert pipeline.archived_ids() == [1]


def test_a_thread_with_the_number_of_one_that_wrote_a_batch_may_stop_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function of a batch may write it in a thread that then ends, whose number Linux gives to the next one."""
    same = SimpleNamespace(get_ident=lambda: 1, current_thread=threading.current_thread)
    turn = Turn(lambda: False, lambda: None)
    monkeypatch.setattr(stopping, "threading", same)
    query: Any = SimpleNamespace(isActive=True)
    refused: list[bool] = []

    def write() -> None:
        with turn.hold(cast("Any", None)):
            refused.append(is_refused())

    def is_refused() -> bool:
        try:
            turn.refuse_within_batch(query)
        except ConfigurationError:
            return True
        return False

    for call in (write, lambda: refused.append(is_refused())):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert refused == [True, False]
