"""``format("twopc")`` on a real Spark, real files and a real broker: queries, batch writes, faults at every step."""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its customary name
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.conftest import Pipeline, Topic, rows
from tests.support.waiting import until
from twopc.spark import Output

pytestmark = pytest.mark.usefixtures("data_source")

VALUE = ["CAST(id AS STRING) AS value"]


@dataclass(frozen=True)
class Target:
    """The output of a query in one of two backends: options, visible records and open transactions."""

    pipeline: Pipeline
    topic: Topic | None

    @property
    def options(self) -> dict[str, str]:
        if self.topic:
            return {"sink": "faulty-kafka", "faults": str(self.faults), **self.topic.options}
        archive = str(self.pipeline.folder / "archive")
        return {"sink": "faulty-files", "faults": str(self.faults), "path": archive, "format": "json"}

    @property
    def faults(self) -> Path:
        return self.pipeline.folder / "faults"

    def fault(self, step: str, what: str) -> None:
        self.faults.mkdir(exist_ok=True)
        (self.faults / step).write_text(what)

    def shows(self, *ids: int) -> bool:
        if self.topic:
            return self.topic.shows([str(number) for number in ids])
        return Counter(int(row["value"]) for row in self.pipeline.archived()) == Counter(ids)

    def open(self) -> list[str]:
        return self.topic.ongoing() if self.topic else self.pipeline.pending_files()


@pytest.fixture(params=["files", pytest.param("kafka", marks=[pytest.mark.long])])
def target(request: pytest.FixtureRequest, pipeline: Pipeline) -> Target:
    return Target(pipeline, request.getfixturevalue("topic") if request.param == "kafka" else None)


@pytest.fixture
def files(pipeline: Pipeline) -> Target:
    return Target(pipeline, None)


def run(target: Target, *arguments: Any, **more: Any) -> None:
    """Run the query over all added batches. Raises StreamingQueryException."""
    start(target, *arguments, **more).awaitTermination()


def start(
    target: Target,
    plan: Callable[[DataFrame], DataFrame] = lambda source: source,
    mode: str = "append",
    columns: Sequence[str] = VALUE,
    **more: str | None,
) -> StreamingQuery:
    """Start the query. An option that is None is left out."""
    pipeline = target.pipeline
    options = {"checkpointLocation": str(pipeline.checkpoint), "log": str(pipeline.log), **target.options, **more}
    return (
        plan(pipeline.source())
        .selectExpr(*columns)
        .writeStream.format("twopc")
        .options(**{name: value for name, value in options.items() if value is not None})
        .outputMode(mode)
        .trigger(availableNow=True)
        .start()
    )


# Queries. --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_query_may_have_a_name(files: Target) -> None:
    files.pipeline.add_batch(rows(1))
    run(files, queryName=f"named_{files.pipeline.folder.name}")
    assert files.shows(1)


@pytest.mark.long
def test_a_query_goes_on_after_a_stop_with_another_parallelism(target: Target) -> None:
    target.pipeline.add_batch(rows(1, 2))
    target.pipeline.add_batch(rows(3))
    run(target)
    target.pipeline.add_batch(rows(*range(4, 10)))
    run(target, lambda source: source.repartition(3))

    assert target.shows(*range(1, 10))
    assert target.open() == []
    assert target.pipeline.decided_batches() == [0, 1, 2]
    entries = target.pipeline.entries("open") + target.pipeline.entries("close")
    assert sorted(entry["incarnation"] for entry in entries) == [1, 1, 2, 2, 3, 3]  # each batch has its own


FAULTS = [
    ("seal", "raise", False),
    ("commit", "die", True),
    ("seal", "die", False),
    ("commit", "raise", True),
    ("complete", "die", True),
    ("close", "die", True),
]
"""The step at which the committing process fails, how, and whether the batch is decided by then. At the last step,
everything is done and Spark has not recorded it."""


@pytest.mark.long
@pytest.mark.crash
def test_a_batch_that_failed_at_any_step_is_there_once_after_a_restart(target: Target) -> None:
    pipeline = target.pipeline
    committed: list[int] = []
    # Only the first two steps involve the broker.
    for number, (step, what, was_decided) in enumerate(FAULTS[:2] if target.topic else FAULTS):
        # The state knows the previous record if it came through the previous batches as without a fault.
        pipeline.add_batch(rows(*range(max(number - 1, 0), number + 1)))
        target.fault(step, what)
        with pytest.raises(StreamingQueryException):
            run(target, lambda source: source.dropDuplicates(["id"]))
        # Spark has called abort, which has finished a decided batch and rolled back an undecided one.
        assert target.shows(*committed, *([number] if was_decided else []))
        assert target.open() == []

        target.fault("pre_commit", f"touch {pipeline.folder / f'written-{number}'}")
        run(target, lambda source: source.dropDuplicates(["id"]))
        assert (pipeline.folder / f"written-{number}").exists() != was_decided  # a decided batch is only evaluated
        committed.append(number)
        assert target.shows(*committed)
        assert target.open() == []
    assert pipeline.decided_batches() == committed


@pytest.mark.long
@pytest.mark.crash
def test_an_attempt_that_died_after_its_vote_leaves_nothing(target: Target) -> None:
    target.pipeline.add_batch(rows(1, 2))
    target.fault("pre_commit", "die")
    run(target)
    assert target.shows(1, 2)
    assert target.open() == []
    assert target.pipeline.decided_batches() == [0]


def _has_a_finished_task(pipeline: Pipeline) -> bool:
    """Whether Spark's driver has the vote of a task of the stage that runs."""
    tracker = pipeline.spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return any(stage is not None and stage.numCompletedTasks > 0 for stage in stages)


@pytest.mark.long
def test_a_task_that_fails_for_good_takes_along_what_another_had_pre_committed(
    pipeline: Pipeline, topic: Topic
) -> None:
    target = Target(pipeline, topic)
    voted, counted = pipeline.folder / "voted", pipeline.folder / "counted"

    @F.udf("long")
    def failing(number: int) -> int:
        deadline = time.monotonic() + 60
        while number == 199 and not counted.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return 1 // (number - 199) + number

    pipeline.add_batch(rows(*range(100, 200)))
    target.fault("pre_commit", f"touch {voted}")
    query = start(target, lambda source: source.repartition(2, "id").withColumn("id", failing("id")))
    until(lambda: voted.exists() and _has_a_finished_task(pipeline))
    counted.touch()
    with pytest.raises(StreamingQueryException, match="ZeroDivisionError"):
        query.awaitTermination()
    assert voted.exists()
    assert target.shows()
    assert target.open() == []
    assert pipeline.entries("decide") == []

    run(target, lambda source: source.repartition(3))
    assert target.shows(*range(100, 200))


@pytest.mark.long
def test_a_query_that_is_stopped_amid_a_batch_leaves_nothing_and_goes_on_with_it(
    pipeline: Pipeline, topic: Topic
) -> None:
    target = Target(pipeline, topic)
    reached = pipeline.folder / "reached"

    @F.udf("long")
    def holding(number: int) -> int:
        deadline = time.monotonic() + 60
        while number == 999 and time.monotonic() < deadline:
            reached.touch()
            time.sleep(0.02)
        return number

    # Large records, because Spark passes on at least 64 kB at a time: the task has begun when it reaches the last one.
    pipeline.add_batch([{"id": number, "name": "x" * 1000} for number in range(1000)])
    query = start(target, lambda source: source.withColumn("id", holding("id")), columns=[*VALUE, "name AS key"])
    until(reached.exists)
    query.stop()
    assert target.shows()
    until(lambda: target.open() == [])
    assert pipeline.entries("decide") == []

    run(target)
    assert target.shows(*range(1000))
    assert target.open() == []


@pytest.mark.long
def test_a_round_that_a_newer_driver_has_fenced_shows_nothing_and_touches_nothing_of_it(
    pipeline: Pipeline, topic: Topic
) -> None:
    target = Target(pipeline, topic)
    pipeline.add_batch(rows(1))
    target.fault("pre_commit", f"fence {pipeline.log}")
    with pytest.raises(StreamingQueryException, match=r"errors\.Fenced: incarnation 1 can't go on"):
        run(target)
    assert target.shows()
    assert len(target.open()) == 1  # the newer driver rolls it back
    assert [entry["incarnation"] for entry in pipeline.entries("open")] == [1, 2]

    run(target)
    assert target.shows(1)
    assert target.open() == []


@pytest.mark.long
def test_a_decision_that_came_in_between_is_not_rolled_back(files: Target) -> None:
    """The newer driver finds the round's files only after the decision and commits them. This driver is fenced."""
    files.pipeline.add_batch(rows(1))
    files.fault("commit", f"fence {files.pipeline.log}")
    with pytest.raises(StreamingQueryException, match=r"errors\.Fenced"):
        run(files)
    files.pipeline.add_batch(rows(2))
    run(files)
    assert files.shows(1, 2)
    assert files.pipeline.decided_batches() == [0, 1]


def test_by_default_the_log_is_in_the_checkpoint_folder_and_a_deleted_checkpoint_takes_it_along(files: Target) -> None:
    checkpoint = files.pipeline.checkpoint
    files.pipeline.add_batch(rows(1))
    run(files, log=None, checkpointLocation=f"file:{checkpoint}")
    assert (checkpoint / "twopc-log" / f"{2:020d}.json").exists()

    shutil.rmtree(checkpoint)
    run(files, log=None)
    assert files.shows(1, 1)  # a new query reads all of its source again


@pytest.mark.long
def test_a_deleted_log_is_refused_before_a_task_writes(files: Target) -> None:
    for number in (1, 2):
        files.pipeline.add_batch(rows(number))
    run(files)
    shutil.rmtree(files.pipeline.log)
    files.pipeline.add_batch(rows(3))
    files.fault("pre_commit", "raise")
    with pytest.raises(StreamingQueryException, match=r"LogMismatch: the query is at batch 2, and its commit log"):
        run(files)
    assert (files.faults / "pre_commit").exists()

    (files.faults / "pre_commit").unlink()
    run(files, first_batch_id="2")
    assert files.shows(1, 2, 3)


@pytest.mark.long
def test_a_query_can_change_from_foreach_batch_and_back(files: Target) -> None:
    pipeline = files.pipeline

    def by_foreach_batch() -> None:
        pipeline.run(pipeline.writer(Output(pipeline.files(), VALUE)))

    for number, write in enumerate([by_foreach_batch, lambda: run(files), by_foreach_batch]):
        pipeline.add_batch(rows(number))
        write()
    assert files.shows(0, 1, 2)
    assert pipeline.decided_batches() == [0, 1, 2]


@pytest.mark.long
def test_names_stay_few_whatever_else_the_application_runs(pipeline: Pipeline, topic: Topic) -> None:
    target = Target(pipeline, topic)
    pipeline.spark.range(1000).repartition(50).count()  # task attempts that come before
    for number in range(6):
        pipeline.add_batch(rows(number))
    run(target)
    names = [[c["transaction_id"].rpartition(".")[0] for c in pipeline.decided(b)["sink"]] for b in range(6)]
    assert len({name for of_batch in names for name in of_batch}) == max(map(len, names))


def test_a_wrong_option_of_a_query_is_refused_before_anything_is_written(files: Target) -> None:
    files.pipeline.add_batch(rows(1))
    with pytest.raises(StreamingQueryException, match="needs the option 'sink'"):
        run(files, sink="")
    assert not files.pipeline.log.exists()
    assert not (files.pipeline.folder / "archive").exists()


@pytest.mark.long
def test_complete_output_mode_is_refused(files: Target) -> None:
    files.pipeline.add_batch(rows(1))
    with pytest.raises(StreamingQueryException, match="'complete' would replace committed records"):
        run(files, lambda source: source.groupBy("id").count(), mode="complete")
    assert not files.pipeline.log.exists()


@pytest.mark.long
def test_records_that_the_sink_cannot_write_are_refused_before_the_log_is_opened(
    pipeline: Pipeline, topic: Topic
) -> None:
    with pytest.raises(AnalysisException, match="SchemaMismatch"):
        write(pipeline.spark.range(1), Target(pipeline, topic))
    assert not pipeline.log.exists()


# Batch writes. ---------------------------------------------------------------------------------------------------


def write(data: DataFrame, target: Target, mode: str = "append", **more: str) -> None:
    options = {**target.options, "log": str(target.pipeline.log), **more}
    data.write.format("twopc").options(**options).mode(mode).save()


def values(pipeline: Pipeline, *ids: int) -> DataFrame:
    return pipeline.spark.createDataFrame([(str(number),) for number in ids], "value STRING").repartition(2)


@pytest.mark.long
def test_a_batch_write_of_a_number_is_there_once_however_often_it_is_repeated(pipeline: Pipeline, topic: Topic) -> None:
    target = Target(pipeline, topic)
    write(values(pipeline, 1, 2), target, batch_id="0")
    write(values(pipeline, 1, 2), target, batch_id="0")
    write(values(pipeline, 3), target, batch_id="1")
    assert target.shows(1, 2, 3)
    for late in ("0", "3"):
        with pytest.raises(AnalysisException, match="so only 1 or 2 can come now"):
            write(values(pipeline, 4), target, batch_id=late)
    assert target.shows(1, 2, 3)
    assert target.open() == []
    assert pipeline.decided_batches() == [0, 1]


@pytest.mark.long
def test_a_batch_write_without_a_number_is_the_next_one(files: Target) -> None:
    for _ in range(2):
        write(values(files.pipeline, 1), files)
    assert files.shows(1, 1)
    assert files.pipeline.decided_batches() == [0, 1]


@pytest.mark.long
def test_a_batch_write_that_failed_is_there_once_after_it_is_repeated(files: Target) -> None:
    for number, (step, was_decided) in enumerate([("seal", False), ("commit", True)]):
        files.fault(step, "raise")
        with pytest.raises(PySparkException, match=f"a fault at {step}"):
            write(values(files.pipeline, number), files, batch_id=str(number))
        assert files.shows(*range(number), *([number] if was_decided else []))
        assert files.open() == []
        write(values(files.pipeline, number), files, batch_id=str(number))
        assert files.shows(*range(number + 1))
    assert files.pipeline.decided_batches() == [0, 1]


@pytest.mark.long
def test_a_batch_write_without_records_is_decided_too(files: Target) -> None:
    write(values(files.pipeline), files, batch_id="0")
    assert files.shows()
    assert files.pipeline.decided_batches() == [0]


@pytest.mark.variants
@pytest.mark.parametrize(
    ("mode", "said"), [("overwrite", "'overwrite' would replace"), ("append", "a batch write needs the option 'log'")]
)
def test_a_wrong_batch_write_is_refused_before_anything_is_written(files: Target, mode: str, said: str) -> None:
    with pytest.raises(AnalysisException, match=said):
        write(values(files.pipeline, 1), files, mode, log="")
    assert not files.pipeline.log.exists()


@pytest.mark.long
def test_the_log_of_a_query_is_refused_to_a_batch_write(files: Target) -> None:
    files.pipeline.add_batch(rows(1))
    run(files)
    with pytest.raises(AnalysisException, match="this is query batch writes"):
        write(values(files.pipeline, 2), files)
    assert files.shows(1)


@pytest.mark.long
def test_types_arrive_as_they_were_also_those_that_need_a_time_zone(files: Target) -> None:
    data = files.pipeline.spark.sql(
        "SELECT TIMESTAMP '2026-10-25 00:30:00' AS at, TIMESTAMP_NTZ '2026-10-25 00:30:00' AS local,"
        " DATE '2026-10-25' AS day, 1.50BD AS price, array(1) AS list, map('a', 1) AS map, named_struct('x', 1) AS part"
    )
    write(data, files, format="parquet")
    folder = files.pipeline.folder / "archive"
    assert files.pipeline.spark.read.parquet(f"{folder}/part-*.parquet").collect() == data.collect()
