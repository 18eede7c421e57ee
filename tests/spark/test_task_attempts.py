"""One attempt of each task counts. The others' transactions are rolled back."""

import os
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812  # its customary name

from tests.spark.conftest import Pipeline, Topic, rows
from twopc import Committable, Coordinator, Participant, Round, TwoPhaseCommitSink, Vote
from twopc.events import Event, TransactionAborted
from twopc.spark import Output
from twopc.spark.task import ENOUGH_RECORDS
from twopc_files.sink import FileSink
from twopc_kafka import KafkaSink

VALUE = ["CAST(id AS STRING) AS value"]


def aborted(events: list[Event]) -> dict[str, list[str]]:
    """The transactions that the coordinator rolled back, by sink."""
    found: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event, TransactionAborted):
            found.setdefault(event.sink, []).append(event.committable.transaction_id)
    return found


@pytest.mark.long
@pytest.mark.crash
def test_an_attempt_that_died_after_its_vote_leaves_nothing(
    pipeline: Pipeline, topic: Topic, events: list[Event]
) -> None:
    # Local classes, because they are pickled by value: a worker could not import them.
    class DyingFiles(FileSink):
        def pre_commit(self, transaction: Any) -> Committable:
            committable = super().pre_commit(transaction)
            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() == 0:
                os._exit(1)  # the vote exists and never arrives
            return committable

    archive = DyingFiles({"path": str(pipeline.folder / "archive"), "format": "json"})
    pipeline.add_batch(rows(*range(300)))
    pipeline.run(
        # Pre-committed in this order, so the attempt that died had pre-committed both.
        pipeline.writer({"orders": Output(topic.sink(), VALUE), "archive": archive})
    )

    assert pipeline.archived_ids() == list(range(300))
    assert topic.shows([str(number) for number in range(300)])
    assert {sink: len(transactions) for sink, transactions in aborted(events).items()} == {"archive": 1, "orders": 1}
    assert (pipeline.pending_files(), topic.ongoing()) == ([], [])


@pytest.mark.long
def test_an_attempt_that_failed_half_way_leaves_nothing(pipeline: Pipeline, topic: Topic) -> None:
    written = pipeline.folder / "written"

    class FailsAtFirst(KafkaSink):
        def write(self, transaction: Any, batch: pa.RecordBatch) -> None:
            super().write(transaction, batch)
            attempt = TaskContext.get().attemptNumber()  # type: ignore[union-attr]
            with written.open("a") as file:
                file.write(f"{attempt}\n")
            if attempt == 0 and written.read_text().count("0") == 2:
                raise RuntimeError("the first attempt fails half way")

    pipeline.add_batch([{"id": number} for number in range(3 * ENOUGH_RECORDS)])
    orders = Output(FailsAtFirst(topic.options), VALUE)
    pipeline.run(pipeline.writer({"orders": orders, "archive": pipeline.files()}))

    assert written.read_text().split() == ["0"] * 2 + ["1"] * 3
    assert pipeline.archived_ids() == list(range(3 * ENOUGH_RECORDS))
    assert topic.shows([str(number) for number in range(3 * ENOUGH_RECORDS)])
    assert (pipeline.pending_files(), topic.ongoing()) == ([], [])


@pytest.mark.long
def test_a_batch_of_which_every_attempt_fails_leaves_nothing_and_a_restarted_query_writes_it(
    pipeline: Pipeline, topic: Topic
) -> None:
    broken = pipeline.folder / "broken"
    broken.touch()

    @F.udf("long")
    def fails_while_broken(number: int) -> int:
        if number == 999 and broken.exists():
            raise RuntimeError("the input is broken")
        return number

    writer = pipeline.writer({"orders": Output(topic.sink(), VALUE), "archive": pipeline.files()})
    pipeline.add_batch(rows(*range(3 * ENOUGH_RECORDS)))
    with pytest.raises(StreamingQueryException) as failed:
        pipeline.run(writer, lambda source: source.withColumn("id", fails_while_broken("id")))
    assert "RoundAborted" in str(failed.value)
    assert "batch 0, incarnation 1 failed before its decision" in str(failed.value)
    assert "the input is broken" in str(failed.value)
    assert (pipeline.archived(), topic.values()) == ([], [])
    assert (pipeline.pending_files(), topic.ongoing()) == ([], [])

    broken.unlink()
    pipeline.run(writer, lambda source: source.withColumn("id", fails_while_broken("id")))
    assert pipeline.archived_ids() == list(range(3 * ENOUGH_RECORDS))
    assert topic.shows([str(number) for number in range(3 * ENOUGH_RECORDS)])
    assert [entry["incarnation"] for entry in pipeline.entries("decide")] == [2]


@pytest.mark.parametrize("winner", [0, pytest.param(1, marks=pytest.mark.long)])
def test_of_two_attempts_at_the_same_time_only_the_vote_that_came_back_is_committed(
    pipeline: Pipeline, topic: Topic, events: list[Event], winner: int
) -> None:
    sinks: dict[str, TwoPhaseCommitSink[Any]] = {"orders": topic.sink(), "archive": pipeline.files()}

    def phase_one(round: Round) -> list[Vote]:
        batch = pa.record_batch({"value": ["only once"]})
        attempts = [Participant(sinks, round, partition=0, serial=number) for number in (0, 1)]
        for attempt in attempts:
            for name in sinks:
                attempt.write(name, batch)
        return [[attempt.pre_commit() for attempt in attempts][winner]]

    with Coordinator(sinks, str(pipeline.log), owner="query") as coordinator:
        coordinator.run(0, phase_one)

    assert pipeline.archived() == [{"value": "only once"}]
    assert topic.shows(["only once"])
    assert {sink: len(transactions) for sink, transactions in aborted(events).items()} == {"archive": 1, "orders": 1}
    assert (pipeline.pending_files(), topic.ongoing()) == ([], [])
