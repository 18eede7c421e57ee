"""A round's steps one after the other, as Spark's processes run them, in this process: files, and no session."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

from twopc import Committable
from twopc.errors import ConfigurationError, Fenced, LogMismatch
from twopc.log.commit_log import read_tail
from twopc.log.store import open_store
from twopc.spark.data_source.round import PhaseOne, Target, TaskVote
from twopc.spark.data_source.source import StreamWriter
from twopc.transaction import JsonValue
from twopc_files.sink import FileSink

SCHEMA = pa.schema({"id": pa.int64()})
RECORDS = pa.record_batch({"id": [1]})


@pytest.fixture
def target(tmp_path: Path) -> Target:
    options = {"path": str(tmp_path / "archive"), "format": "json"}
    return Target("files", options, str(tmp_path / "log"), "a-query", None, 0)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The context that Spark gives a task, until the test ends."""
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    context = TaskContext._getOrCreate()
    context._partitionId, context._taskAttemptId = 0, 7
    context._localProperties = {"sql.streaming.queryId": "a-query", "streaming.sql.batchId": "0"}
    return context


def written(phase_one: PhaseOne, batch_id: int = 0) -> list[TaskVote]:
    return [phase_one.write(batch_id, iter([RECORDS]))]


def archived(target: Target) -> int:
    return len(list(Path(target.options["path"]).glob("part-*")))


def staged(target: Target) -> int:
    return len(list(Path(target.options["path"]).glob("_twopc/*")))


def test_a_round_is_decided_by_the_incarnation_that_was_opened_before_its_tasks(target: Target, task: Any) -> None:
    for batch_id in range(3):
        target.finish(batch_id, written(target.open(SCHEMA), batch_id))
    assert archived(target) == 3
    newest = read_tail(open_store(target.log))
    assert newest is not None
    assert (newest[1].kind, newest[1].incarnation, newest[1].decided) == ("close", 3, 2)


def test_a_commit_that_is_called_again_changes_nothing(target: Target, task: Any) -> None:
    votes = written(target.open(SCHEMA))
    target.finish(0, votes)
    target.finish(0, votes)
    assert archived(target) == 1


def test_what_is_sealed_is_as_old_as_the_round_not_as_the_process_that_commits(
    target: Target, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages: list[float] = []

    def seal(sink: FileSink, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:
        ages.append(age_s)
        return committables

    monkeypatch.setattr(FileSink, "seal", seal)
    [vote] = written(target.open(SCHEMA))
    long_ago = replace(vote.incarnation, began_s=time.perf_counter() - 1000)
    target.finish(0, [replace(vote, incarnation=long_ago)])
    assert ages[0] >= 1000


def test_votes_of_two_rounds_are_never_one_decision(target: Target, task: Any) -> None:
    older = written(target.open(SCHEMA))
    newer = written(target.open(SCHEMA))
    with pytest.raises(ValueError, match="too many values"):
        target.finish(0, older + newer)
    with pytest.raises(Fenced):
        target.finish(0, older)
    target.recover(older)  # which leaves alone what is the newer one's
    assert staged(target) == 1
    target.finish(0, newer)
    assert archived(target) == 1


def test_a_task_of_another_query_writes_nothing(target: Target, task: Any) -> None:
    writer = StreamWriter(target, target.open(SCHEMA), StructType())
    task._localProperties["sql.streaming.queryId"] = "another-query"
    with pytest.raises(LogMismatch, match="this is query another-query, and its checkpoint folder is of query a-query"):
        writer.write(iter([RECORDS]))
    assert staged(target) == 0


# What the batch reads, by the checkpoint. -------------------------------------------------------------------------


def plan(target: Target, batch_id: int, end: int) -> None:
    """What Spark writes to the checkpoint before it plans a batch."""
    assert target.checkpoint
    offsets = Path(target.checkpoint) / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    text = f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":5,"conf":{{}}}}\n{{"orders":{{"0":{end}}}}}'
    (offsets / str(batch_id)).write_text(text)


def reads(end: int) -> JsonValue:
    metadata: JsonValue = {"batchWatermarkMs": 0, "batchTimestampMs": 5, "conf": {}}
    return {"sources": [{"orders": {"0": end}}], "metadata": metadata, "version": "v1"}


@pytest.fixture
def planned(target: Target, tmp_path: Path) -> Target:
    """A query's, whose batch 0 is planned to end at 100."""
    query = replace(target, checkpoint=str(tmp_path / "checkpoint"))
    plan(query, 0, 100)
    return query


def test_a_decision_has_what_the_batch_reads(planned: Target, task: Any) -> None:
    planned.finish(0, written(planned.open(SCHEMA)))
    newest = read_tail(open_store(planned.log))
    assert newest is not None
    assert newest[1].reads == reads(100)


def test_only_the_first_partition_returns_what_the_batch_reads(planned: Target, task: Any) -> None:
    phase_one = planned.open(SCHEMA)
    votes = []
    for partition in (1, 0, 2):
        task._partitionId, task._taskAttemptId = partition, partition
        votes += written(phase_one)
    assert [vote.reads for vote in votes] == [None, reads(100), None]
    planned.finish(0, votes)
    assert archived(planned) == 3


def test_a_decided_batch_that_is_planned_again_from_elsewhere_is_refused_before_its_tasks(
    planned: Target, task: Any
) -> None:
    planned.finish(0, written(planned.open(SCHEMA)))
    plan(planned, 0, 300)
    with pytest.raises(LogMismatch, match=r"sources\.0\.orders\.0: decided 100, now 300 \(\+200\)"):
        planned.open(SCHEMA)
    plan(planned, 0, 100)
    planned.finish(0, written(planned.open(SCHEMA)))  # as Spark repeats it
    assert archived(planned) == 1


def test_a_task_of_another_batch_than_was_planned_writes_nothing(planned: Target, task: Any) -> None:
    with pytest.raises(LogMismatch, match="a task of batch 1, and the newest batch in the checkpoint was 0"):
        written(planned.open(SCHEMA), 1)
    assert staged(planned) == 0


def test_a_checkpoint_that_can_not_be_read_is_refused_before_the_log_is_opened(planned: Target) -> None:
    shutil.rmtree(str(planned.checkpoint))
    with pytest.raises(ConfigurationError, match="offsets does not say what the batch reads"):
        planned.open(SCHEMA)
    assert read_tail(open_store(planned.log)) is None
