"""A round's steps one after the other in this process, as Spark's processes run them: with files, and no session."""

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from tests.support.commit_log import CommitLog
from tests.support.raising import raising
from twopc import Committable
from twopc.errors import ConfigurationError, Fenced, LogMismatch, RepeatedFailure, SchemaMismatch
from twopc.events import BatchCommitted, BatchFailed, BatchFinished
from twopc.log.commit_log import read_tail
from twopc.log.entries import Entry
from twopc.log.store import open_store
from twopc.observers.json_lines import EventReader, JsonLinesObserver
from twopc.spark.data_source import round as data_source_round
from twopc.spark.data_source.round import PhaseOne, Rounds, TaskVote
from twopc.spark.data_source.source import StreamWriter, to_record_batches
from twopc.spark.records import arrow_schema
from twopc.transaction import JsonValue
from twopc_files.sink import FileSink

SCHEMA = pa.schema({"id": pa.int64()})
RECORDS = pa.record_batch({"id": [1]})


@pytest.fixture(autouse=True)
def _observers_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Those of event files live as long as a process of Spark's, which this one is not."""
    made: dict[str, JsonLinesObserver] = {}

    def observer(path: str) -> JsonLinesObserver:
        if path not in made:
            made[path] = JsonLinesObserver(path)
        return made[path]

    monkeypatch.setattr(data_source_round, "_observer", observer)
    yield
    for each in made.values():
        each.close()


@pytest.fixture
def rounds(tmp_path: Path) -> Rounds:
    options = {"path": str(tmp_path / "archive"), "format": "json"}
    return Rounds("files", options, str(tmp_path / "log"), "a-query", None, 0)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A task's context, until the test ends."""
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    context = TaskContext._getOrCreate()
    context._partitionId, context._taskAttemptId = 0, 7
    context._localProperties = {"sql.streaming.queryId": "a-query", "streaming.sql.batchId": "0"}
    return context


def written(phase_one: PhaseOne, batch_id: int = 0) -> list[TaskVote]:
    return [phase_one.write(batch_id, iter([RECORDS]))]


def archived(rounds: Rounds) -> int:
    return len(list(Path(rounds.options["path"]).glob("part-*")))


def staged(rounds: Rounds) -> int:
    return len(list(Path(rounds.options["path"]).glob("_twopc/*")))


def tail_of(rounds: Rounds) -> Entry:
    newest = read_tail(open_store(rounds.log))
    assert newest is not None
    return newest[1]


@pytest.mark.long
def test_a_round_is_decided_by_the_incarnation_that_was_opened_before_its_tasks(rounds: Rounds, task: Any) -> None:
    for batch_id in range(3):
        rounds.finish(batch_id, written(rounds.open(SCHEMA), batch_id))
    assert archived(rounds) == 3
    tail = tail_of(rounds)
    assert (tail.kind, tail.incarnation, tail.decided) == ("close", 3, 2)


def test_a_commit_that_is_called_again_changes_nothing(rounds: Rounds, task: Any) -> None:
    votes = written(rounds.open(SCHEMA))
    rounds.finish(0, votes)
    rounds.finish(0, votes)
    assert archived(rounds) == 1


@pytest.mark.long
def test_what_is_sealed_is_as_old_as_the_round_not_as_the_process_that_commits(
    rounds: Rounds, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages: list[float] = []

    def seal(sink: FileSink, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:
        ages.append(age_s)
        return committables

    monkeypatch.setattr(FileSink, "seal", seal)
    [vote] = written(rounds.open(SCHEMA))
    long_ago = replace(vote.incarnation, began_s=time.perf_counter() - 1000)
    rounds.finish(0, [replace(vote, incarnation=long_ago)])
    assert ages[0] >= 1000


def test_votes_of_two_rounds_are_never_one_decision(rounds: Rounds, task: Any) -> None:
    older = written(rounds.open(SCHEMA))
    newer = written(rounds.open(SCHEMA))
    with pytest.raises(ValueError, match="too many values"):
        rounds.finish(0, older + newer)
    with pytest.raises(Fenced):
        rounds.finish(0, older)
    rounds.recover(0, older)  # does not touch the newer round's files
    assert staged(rounds) == 1
    rounds.finish(0, newer)
    assert archived(rounds) == 1


def test_the_events_of_a_batch_have_what_was_done_for_it_in_both_processes(
    rounds: Rounds, task: Any, tmp_path: Path
) -> None:
    rounds = replace(rounds, events=str(tmp_path / "events.jsonl"))
    rounds.finish(0, written(rounds.open(SCHEMA)), SCHEMA)
    events = [recorded.event for recorded in EventReader(str(rounds.events)).read()]
    [committed] = [event for event in events if isinstance(event, BatchCommitted)]
    assert committed.parts[0].schema == SCHEMA
    [finished] = [event for event in events if isinstance(event, BatchFinished)]
    assert [*finished.phases_ms][:2] == ["recovering", "pre-committing"]


@pytest.mark.long
def test_a_failed_batch_is_reported_once_whichever_process_finds_it_failed(
    rounds: Rounds, task: Any, tmp_path: Path
) -> None:
    rounds = replace(rounds, events=str(tmp_path / "events.jsonl"))
    rounds.recover(0, [None])  # its tasks failed
    votes = written(rounds.open(SCHEMA))
    CommitLog.open(open_store(rounds.log), rounds.owner)
    with pytest.raises(Fenced):
        rounds.finish(0, votes)
    rounds.recover(0, votes)
    with pytest.raises(LogMismatch):
        rounds.open(SCHEMA, 7)
    assert failed(rounds) == [(0, "RoundAborted"), (0, "Fenced"), (7, "LogMismatch")]


def failed(rounds: Rounds) -> list[tuple[int, str]]:
    events = [recorded.event for recorded in EventReader(str(rounds.events)).read()]
    return [(each.batch_id, type(each.error).__name__) for each in events if isinstance(each, BatchFailed)]


def test_the_third_start_whose_task_fails_in_the_same_way_stops_for_an_operator(
    rounds: Rounds, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> None:
        phase_one = rounds.open(SCHEMA)
        try:
            votes = written(phase_one)
        except Exception:
            with pytest.raises(Exception, match="no plan"):
                written(phase_one)  # the next attempt of the task
            rounds.recover(0, [None])
            raise
        rounds.finish(0, votes)

    with monkeypatch.context() as patched:
        patched.setattr(FileSink, "pre_commit", raising(ValueError("no plan for 'x'")))
        for kind in (ValueError, ValueError, RepeatedFailure, RepeatedFailure):
            with pytest.raises(kind, match="no plan for 'x'"):
                start()
        patched.setattr(FileSink, "pre_commit", raising(SchemaMismatch("no plan for column 'x'")))
        with pytest.raises(SchemaMismatch):
            start()
    start()
    assert archived(rounds) == 1


@pytest.mark.parametrize("times", [1, 2])
def test_a_start_counts_once_in_however_many_of_its_processes_it_fails(
    rounds: Rounds, task: Any, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (KeyError, KeyError, RepeatedFailure):
        votes = written(rounds.open(SCHEMA))
        with monkeypatch.context() as patched:
            patched.setattr(FileSink, "open", raising(KeyError("broken")))
            with pytest.raises(kind, match="broken"):
                rounds.finish(0, votes)
            if times == 1:
                patched.undo()
            rounds.recover(0, votes)


def test_tasks_that_are_lost_are_not_counted_where_a_newer_driver_has_decided_their_batch(
    rounds: Rounds, task: Any
) -> None:
    rounds.open(SCHEMA)
    rounds.finish(0, written(rounds.open(SCHEMA)))
    rounds.recover(0, [None])  # of the older driver
    assert open_store(rounds.log).posted() == b""


def test_a_checkpoint_that_cannot_be_read_at_any_start_calls_an_operator(
    planned: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned.open(SCHEMA)
    close = Mock()
    monkeypatch.setattr(FileSink, "close", close)
    monkeypatch.setattr(data_source_round, "read_before", raising(KeyError("broken")))
    for kind in (KeyError, KeyError, RepeatedFailure):
        with pytest.raises(kind, match="broken"):
            planned.open(SCHEMA)
    assert close.call_count == 3


@pytest.mark.parametrize("has_voted", [False, True])
def test_tasks_whose_process_is_lost_for_an_hour_are_told(
    rounds: Rounds, task: Any, tmp_path: Path, has_voted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = replace(rounds, events=str(tmp_path / "events.jsonl"))
    monkeypatch.setattr("twopc.repetition.MINUTES_AT_MOST", 3)
    for minute in range(3):
        monkeypatch.setattr("twopc.log.entries.time.time", lambda now=60 * minute: now)
        phase_one = rounds.open(SCHEMA)
        rounds.recover(0, [*(written(phase_one) if has_voted else ()), None])
    assert [kind for _, kind in failed(rounds)[-2:]] == ["RoundAborted", "RepeatedFailure"]


@pytest.mark.parametrize("by", ["task", "driver"])
def test_a_fenced_driver_counts_no_failure(rounds: Rounds, task: Any, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fenced = rounds.open(SCHEMA)
    votes = written(fenced) if by == "driver" else []
    rounds.open(SCHEMA)
    if votes:
        rounds.recover(0, [*votes, None])
    else:
        monkeypatch.setattr(FileSink, "pre_commit", raising(ValueError("no plan")))
        with pytest.raises(ValueError, match="no plan"):
            written(fenced)
    assert open_store(rounds.log).posted() == b""


def test_records_that_end_early_are_no_failure_of_the_sink(rounds: Rounds, task: Any) -> None:
    def interrupted() -> Iterator[pa.RecordBatch]:
        yield RECORDS
        raise EOFError

    for _ in range(4):
        with pytest.raises(EOFError):
            rounds.open(SCHEMA).write(0, interrupted())
    assert tail_of(rounds).repetition is None
    assert archived(rounds) == 0


def test_a_log_that_a_task_does_not_reach_does_not_hide_its_failure(
    rounds: Rounds, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase_one = rounds.open(SCHEMA)
    monkeypatch.setattr(data_source_round, "open_store", raising(ConfigurationError("no such store")))
    monkeypatch.setattr(FileSink, "pre_commit", raising(ValueError("no plan")))
    with pytest.raises(ValueError, match="no plan"):
        written(phase_one)


@pytest.mark.variants
@pytest.mark.parametrize(
    ("of", "fails"), [(data_source_round, "create_sink"), (FileSink, "assume_valid"), (FileSink, "seal")]
)
def test_a_batch_whose_commit_fails_is_reported_once(
    rounds: Rounds, task: Any, tmp_path: Path, of: Any, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = replace(rounds, events=str(tmp_path / "events.jsonl"))
    votes = written(rounds.open(SCHEMA))
    with monkeypatch.context() as patched:
        patched.setattr(of, fails, raising(ConfigurationError("no")))
        with pytest.raises(ConfigurationError):
            rounds.finish(0, votes, SCHEMA)
    rounds.recover(0, votes)
    assert failed(rounds) == [(0, "ConfigurationError")]


def test_a_log_that_can_not_be_closed_after_the_batch_fails_the_batch(
    rounds: Rounds, task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = replace(rounds, events=str(tmp_path / "events.jsonl"))
    votes = written(rounds.open(SCHEMA))
    monkeypatch.setattr("twopc.protocol.close", raising(Fenced("a newer one")))
    with pytest.raises(Fenced):
        rounds.finish(0, votes)
    assert failed(rounds) == [(0, "Fenced")]
    assert archived(rounds) == 1


def test_a_task_of_another_query_writes_nothing(rounds: Rounds, task: Any) -> None:
    writer = StreamWriter(rounds, rounds.open(SCHEMA), StructType())
    task._localProperties["sql.streaming.queryId"] = "another-query"
    with pytest.raises(
        LogMismatch, match="this is query another-query, and its checkpoint folder belongs to query a-query"
    ):
        writer.write(iter([RECORDS]))
    assert staged(rounds) == 0


# What the batch reads, according to the checkpoint. ------------------------------------------------------------------


def plan(rounds: Rounds, batch_id: int, end: int) -> None:
    """Write to the checkpoint what Spark writes before it plans a batch."""
    assert rounds.checkpoint
    offsets = Path(rounds.checkpoint) / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    text = f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":5,"conf":{{}}}}\n{{"orders":{{"0":{end}}}}}'
    (offsets / str(batch_id)).write_text(text)


def reads(end: int) -> JsonValue:
    metadata: JsonValue = {"batchWatermarkMs": 0, "batchTimestampMs": 5, "conf": {}}
    return {"sources": [{"orders": {"0": end}}], "metadata": metadata, "version": "v1"}


@pytest.fixture
def planned(rounds: Rounds, tmp_path: Path) -> Rounds:
    """The rounds of a query whose batch 0 is planned to end at 100."""
    query = replace(rounds, checkpoint=str(tmp_path / "checkpoint"))
    plan(query, 0, 100)
    return query


def test_a_decision_has_what_the_batch_reads(planned: Rounds, task: Any) -> None:
    planned.finish(0, written(planned.open(SCHEMA)))
    assert tail_of(planned).reads == reads(100)


def test_only_the_first_partition_returns_what_the_batch_reads(planned: Rounds, task: Any) -> None:
    phase_one = planned.open(SCHEMA)
    votes = []
    for partition in (1, 0, 2):
        task._partitionId, task._taskAttemptId = partition, partition
        votes += written(phase_one)
    assert [vote.reads for vote in votes] == [None, reads(100), None]
    planned.finish(0, votes)
    assert archived(planned) == 3


def test_a_decided_batch_that_is_planned_again_from_elsewhere_is_refused_before_its_tasks(
    planned: Rounds, task: Any
) -> None:
    planned.finish(0, written(planned.open(SCHEMA)))
    plan(planned, 0, 300)
    with pytest.raises(LogMismatch, match=r"sources\.0\.orders\.0: decided 100, now 300 \(\+200\)"):
        planned.open(SCHEMA)
    plan(planned, 0, 100)
    planned.finish(0, written(planned.open(SCHEMA)))  # as Spark repeats it
    assert archived(planned) == 1


@pytest.mark.advice("and the newest batch in the checkpoint was")
def test_a_task_of_another_batch_than_was_planned_writes_nothing(planned: Rounds, task: Any) -> None:
    with pytest.raises(LogMismatch, match="a task of batch 1, and the newest batch in the checkpoint was 0"):
        written(planned.open(SCHEMA), 1)
    assert staged(planned) == 0
    planned.finish(0, written(planned.open(SCHEMA)))  # by the one driver that is left
    assert archived(planned) == 1


@pytest.mark.advice("does not say what the batch reads")
def test_a_checkpoint_that_can_not_be_read_is_refused_before_the_log_is_opened(planned: Rounds, task: Any) -> None:
    away = shutil.move(str(planned.checkpoint), f"{planned.checkpoint}-away")
    with pytest.raises(
        ConfigurationError, match=r"does not say what the batch reads .* be able to read the checkpoint"
    ):
        planned.open(SCHEMA)
    assert read_tail(open_store(planned.log)) is None
    shutil.move(away, str(planned.checkpoint))
    planned.finish(0, written(planned.open(SCHEMA)))
    assert archived(planned) == 1


@pytest.mark.long
def test_rows_of_spark_4_0_become_record_batches_of_the_same_schema_one_at_a_time() -> None:
    schema = StructType([StructField("id", LongType()), StructField("names", ArrayType(StringType()))])
    taken = 0

    def rows() -> Iterator[Row]:
        nonlocal taken
        for taken in range(25_000):
            yield Row(id=taken, names=None if taken % 2 else [str(taken)])

    batches = to_record_batches(rows(), schema)
    first = next(batches)
    assert taken == first.num_rows - 1
    rest = list(batches)
    assert [batch.num_rows for batch in (first, *rest)] == [10_000, 10_000, 5_000]
    assert all(batch.schema == arrow_schema(schema) for batch in (first, *rest))
    assert rest[-1].to_pylist()[-2:] == [{"id": 24_998, "names": ["24998"]}, {"id": 24_999, "names": None}]
