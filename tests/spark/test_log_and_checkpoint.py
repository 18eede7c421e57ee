"""A query, its checkpoint and its commit log belong together. Others are refused, with what to do."""

import pickle
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import twopc
from tests.spark.conftest import Pipeline, Topic, rows
from tests.support.raising import raising
from tests.support.spark_session import write_all
from twopc import Committable, ReplayCopies
from twopc.errors import RoundAborted
from twopc.spark import ForeachBatch, Output, TwoPhaseCommitDataSource, foreach_batch
from twopc_files.sink import FileSink


def refusal(pipeline: Pipeline, writer: ForeachBatch) -> str:
    """Return the text of the query's exception, which names the class of the error."""
    with pytest.raises(StreamingQueryException) as refused:
        pipeline.run(writer)
    assert "twopc.errors.LogMismatch" in str(refused.value)
    return str(refused.value)


def test_a_deleted_checkpoint_is_refused_by_the_log(pipeline: Pipeline) -> None:
    pipeline.add_batch(rows(1))
    pipeline.run(pipeline.writer())
    shutil.rmtree(pipeline.checkpoint)

    said = refusal(pipeline, pipeline.writer())
    assert "the commit log belongs to query" in said
    assert "Give the query its old checkpoint back, or a log of its own" in said
    assert pipeline.archived_ids() == [1]
    assert pipeline.pending_files() == []


@pytest.mark.long
def test_a_deleted_log_is_refused_until_its_first_batch_is_named(pipeline: Pipeline) -> None:
    pipeline.add_batch(rows(1))
    pipeline.add_batch(rows(2))
    pipeline.run(pipeline.writer())
    shutil.rmtree(pipeline.log)
    pipeline.add_batch(rows(3))

    said = refusal(pipeline, pipeline.writer())
    assert "Either the log was deleted: restore it" in said
    assert "start this log with first_batch_id=2" in said
    assert pipeline.archived_ids() == [1, 2]

    pipeline.run(pipeline.writer(first_batch_id=2))
    pipeline.add_batch(rows(4))
    pipeline.run(pipeline.writer(first_batch_id=2))
    assert pipeline.archived_ids() == [1, 2, 3, 4]


@pytest.mark.long
@pytest.mark.parametrize("copied", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_a_pickled_copy_goes_on_with_the_same_log_and_brings_no_coordinator(
    pipeline: Pipeline, topic: Topic, copied: Any
) -> None:
    original = foreach_batch(
        {"orders": Output(topic.sink(), ["name AS value"]), "archive": pipeline.files()}, log=str(pipeline.log)
    )
    pipeline.add_batch(rows(1))
    pipeline.run(original)
    copy = pickle.loads(copied.dumps(original))  # noqa: S301  # our own
    assert original._coordinator is not None
    assert copy._coordinator is None

    pipeline.add_batch(rows(2))
    pipeline.run(copy)
    assert pipeline.archived_ids() == [1, 2]
    assert topic.shows(["a", "a"])
    assert [(entry["decided"], entry["incarnation"]) for entry in pipeline.entries("decide")] == [(0, 1), (1, 2)]


def test_a_query_that_failed_after_its_decision_goes_on_where_it_stopped(pipeline: Pipeline) -> None:
    full: list[str] = ["the disk is full"]

    class FullDisk(FileSink):
        def commit(self, committable: Committable) -> None:
            if full:
                raise OSError(full[0])
            super().commit(committable)

    archive = FullDisk({"path": str(pipeline.folder / "archive"), "format": "json"})
    write = pipeline.writer(archive)
    pipeline.add_batch(rows(1))
    with pytest.raises(StreamingQueryException, match="the disk is full"):
        pipeline.run(write)
    assert pipeline.archived() == []

    full.clear()
    pipeline.add_batch(rows(2))
    pipeline.run(write)
    assert pipeline.archived_ids() == [1, 2]
    assert pipeline.decided_batches() == [0, 1]


@pytest.mark.long
def test_a_function_may_run_a_batch_again_and_what_the_batch_reads_is_the_same(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of files and the batch before are looked at once per batch, not once per call."""
    write = pipeline.writer()

    def twice(batch: DataFrame, batch_id: int) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(FileSink, "seal", raising(RoundAborted("a target system was away for a moment")))
            with pytest.raises(RoundAborted, match="away for a moment"):
                write(batch, batch_id)
        write(batch, batch_id)

    for number in range(2):
        pipeline.add_batch(rows(number))
    pipeline.run(twice)
    reads = [entry["reads"] for entry in pipeline.entries("decide")]
    listed = [[line["path"] for line in each["files"]["0"][f"{n}"][1:]] for n, each in enumerate(reads)]
    assert [[path.rpartition("/")[2] for path in paths] for paths in listed] == [["00000.json"], ["00001.json"]]

    for file in (pipeline.checkpoint / "commits").glob("*1*"):
        file.unlink()  # as if the driver had died before Spark noted the batch
    pipeline.run(pipeline.writer())
    assert pipeline.archived_ids() == [0, 1]


def test_a_sink_that_vetoes_stops_the_query_with_its_own_message(pipeline: Pipeline) -> None:
    class Vetoing(FileSink):
        def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:
            raise RuntimeError(f"no, not {len(committables)} of them")

    veto = Vetoing({"path": str(pipeline.folder / "vetoed")})
    write: Callable[..., None] = pipeline.writer({"archive": pipeline.files(), "veto": veto})
    pipeline.add_batch(rows(1))
    with pytest.raises(StreamingQueryException, match="no, not 1 of them"):
        pipeline.run(write)
    assert pipeline.archived() == []  # the other sink did vote yes
    assert pipeline.pending_files() == []
    assert pipeline.entries("decide") == []


@pytest.mark.long
def test_a_checkpoint_in_the_output_of_a_sink_is_refused_before_anything_is_written(
    pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pipeline.add_batch(rows(1))
    log = tmp_path_factory.mktemp("elsewhere") / "log"
    archive = twopc.create_sink("files", {"path": str(pipeline.folder), "format": "json"})
    with pytest.raises(StreamingQueryException, match=r"the checkpoint is at .*, where sink 'sink' writes"):
        pipeline.run(foreach_batch(archive, log=str(log)))
    pipeline.spark.dataSource.register(TwoPhaseCommitDataSource)
    options = {"sink": "files", "path": str(pipeline.folder), "log": str(log)}
    writing = pipeline.source().writeStream.format("twopc").options(**options)
    with pytest.raises(StreamingQueryException, match=r"the checkpoint is at .*, where sink 'sink' writes"):
        write_all(writing, pipeline.folder / "another")
    assert not log.exists()
    assert list(pipeline.folder.glob("part-*")) == []


@pytest.mark.long
@pytest.mark.parametrize("place", ["", "offsets"])
def test_a_log_in_what_spark_has_in_its_checkpoint_is_refused_before_anything_is_written(
    place: str, pipeline: Pipeline
) -> None:
    pipeline.add_batch(rows(1))
    log = pipeline.checkpoint / place
    with pytest.raises(StreamingQueryException, match=r"the commit log is at .*, where Spark keeps the checkpoint"):
        pipeline.run(foreach_batch(pipeline.files(), log=str(log)))
    pipeline.spark.dataSource.register(TwoPhaseCommitDataSource)
    options = {"sink": "files", "path": str(pipeline.folder / "archive"), "log": str(log)}
    writing = pipeline.source().writeStream.format("twopc").options(**options)
    with pytest.raises(StreamingQueryException, match=r"the commit log is at .*, where Spark keeps the checkpoint"):
        write_all(writing, pipeline.checkpoint)
    assert list(log.glob("*.json")) == []
    assert pipeline.archived() == []


@pytest.mark.long
def test_a_log_among_the_files_that_a_query_reads_is_refused_before_anything_is_written(pipeline: Pipeline) -> None:
    pipeline.add_batch(rows(1))
    source = pipeline.folder / "source"
    with pytest.raises(
        StreamingQueryException, match=r"the commit log is at .*, and the query reads the files of file:"
    ):
        pipeline.run(foreach_batch(pipeline.files(), log=str(source)))
    assert [file.name for file in source.iterdir()] == ["00000.json"]
    pipeline.run(foreach_batch(pipeline.files(), log=str(source / "_log")))
    assert pipeline.archived_ids() == [1]


@pytest.mark.long
def test_a_copy_among_the_files_that_a_query_reads_is_refused_too(pipeline: Pipeline) -> None:
    pipeline.add_batch(rows(1))
    stage = f"file://{pipeline.folder}/source/stage"
    with pytest.raises(
        StreamingQueryException, match=r"replay copies is at .*, and the query reads the files of file:"
    ):
        pipeline.run(pipeline.writer(on_loss=ReplayCopies(stage)))
