"""One batch to two systems: one evaluation, one decision, exactly once in both."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812  # its customary name

import twopc
from twopc.spark import foreach_batch
from twopc.spark.task import Task

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Pipeline, Rows, Topic
    from twopc.events import Event

pytestmark = pytest.mark.spark

AS_JSON = ["CAST(id AS STRING) AS key", "to_json(struct(*)) AS value"]


def rows(*ids: int, name: str = "a") -> Rows:
    return [{"id": number, "name": name} for number in ids]


def finished_jobs(spark: SparkSession) -> list[Any]:
    """Spark's own records of its jobs, which its UI shows; the newest first."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    jobs = context.statusStore().jobsList(None)
    return [jobs.apply(number) for number in range(jobs.size())]


def descriptions(spark: SparkSession) -> list[str]:
    return [str(job.description().getOrElse(None)) for job in finished_jobs(spark)]


@pytest.mark.kafka
def test_each_batch_reaches_kafka_and_files_exactly_once_from_one_evaluation(
    pipeline: Pipeline, topic: Topic
) -> None:
    context = pipeline.spark.sparkContext
    evaluated = context.accumulator(0)

    @F.udf("string")
    def counted(name: str) -> str:
        evaluated.add(1)
        return name.upper()

    for batch in (range(250), range(250, 300), range(300, 301)):
        pipeline.add_batch(rows(*batch))
    before = len(finished_jobs(pipeline.spark))
    pipeline.run(
        foreach_batch({"orders": (topic.sink(), AS_JSON), "archive": pipeline.files()}, log=str(pipeline.log)),
        lambda source: source.repartition(3).withColumn("name", counted("name")),
    )

    expected = rows(*range(301), name="A")
    assert sorted(pipeline.archived(), key=lambda row: int(row["id"])) == expected
    assert topic.shows([json.dumps(row, separators=(",", ":")) for row in expected])
    assert evaluated.value == 301  # once for each record, though two sinks got it
    print(descriptions(pipeline.spark), [j.name() for j in finished_jobs(pipeline.spark)])
    assert len(finished_jobs(pipeline.spark)) - before == 3  # one job for each batch
    assert (pipeline.staged(), topic.ongoing()) == ([], [])
    assert [entry["decided"] for entry in pipeline.entries("decide")] == [0, 1, 2]


def test_jobs_are_described_in_sparks_ui_and_the_former_description_comes_back(pipeline: Pipeline) -> None:
    context = pipeline.spark.sparkContext
    writer = foreach_batch({"archive": pipeline.files(), "orders": pipeline.files()}, log=str(pipeline.log))
    after: list[str | None] = []

    def described(batch: DataFrame, batch_id: int) -> None:
        context.setJobDescription("before")
        writer(batch, batch_id)
        after.append(context.getLocalProperty("spark.job.description"))

    pipeline.add_batch(rows(1))
    before = len(finished_jobs(pipeline.spark))
    pipeline.run(described)

    new = len(finished_jobs(pipeline.spark)) - before
    assert descriptions(pipeline.spark)[:new] == ["twopc: pre-commit batch 0 of archive, orders"]
    assert after == ["before"]


def test_the_driver_collects_votes_and_no_records(pipeline: Pipeline) -> None:
    records, bytes_each = 2000, 2000
    pipeline.add_batch(rows(*range(records), name="x" * bytes_each))
    pipeline.run(foreach_batch(pipeline.files(), log=str(pipeline.log)), lambda source: source.repartition(2))

    context = pipeline.spark.sparkContext._jsc.sc()
    assert len(pipeline.archived()) == records
    stage = max(finished_jobs(pipeline.spark)[0].stageIds().apply(number) for number in range(2))
    result_bytes = context.statusStore().lastStageAttempt(stage).resultSize()
    # Measured: 5 kB for two tasks, nearly all of it Spark's own metrics.
    assert 0 < result_bytes < 20_000 < records * bytes_each / 100


def test_an_empty_partition_begins_no_transaction(pipeline: Pipeline) -> None:
    pipeline.add_batch(rows(7, 7, 7))
    pipeline.run(
        foreach_batch(pipeline.files(), log=str(pipeline.log)), lambda source: source.repartition(4, "id")
    )
    [committable] = pipeline.decided(0)["sink"]
    assert committable["records"] == 3
    assert pipeline.archived_ids() == [7, 7, 7]
    assert pipeline.staged() == []


@pytest.mark.kafka
def test_an_empty_batch_is_decided_all_the_same(pipeline: Pipeline, topic: Topic) -> None:
    for number in range(3):
        pipeline.add_batch(rows(number))
    pipeline.run(
        foreach_batch({"orders": (topic.sink(), AS_JSON), "archive": pipeline.files()}, log=str(pipeline.log)),
        lambda source: source.where("id <> 1"),
    )
    assert [entry["decided"] for entry in pipeline.entries("decide")] == [0, 1, 2]
    assert pipeline.decided(1) == {"archive": [], "orders": []}
    assert pipeline.archived_ids() == [0, 2]
    assert topic.shows(['{"id":0,"name":"a"}', '{"id":2,"name":"a"}'])


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("columns", "named"),
    [(["name AS value", "id AS amount"], "'amount'"), (["name AS key"], "'value'"), (["id AS value"], "'value'")],
)
def test_a_wrong_column_for_kafka_is_refused_by_name_before_anything_is_written(
    pipeline: Pipeline, topic: Topic, columns: list[str], named: str
) -> None:
    pipeline.add_batch(rows(1))
    writer = foreach_batch({"archive": pipeline.files(), "orders": (topic.sink(), columns)}, log=str(pipeline.log))
    before = len(finished_jobs(pipeline.spark))
    with pytest.raises(StreamingQueryException) as refused:
        pipeline.run(writer)

    assert "SchemaMismatch" in str(refused.value)
    assert named in str(refused.value)
    assert len(finished_jobs(pipeline.spark)) == before  # no task was started
    assert not (pipeline.folder / "archive").exists()
    assert not pipeline.log.exists()
    assert (topic.values(), topic.ongoing()) == ([], [])


def test_two_queries_of_one_application_write_at_the_same_time(
    spark: SparkSession, tmp_path: Path, events: list[Event]
) -> None:
    import threading

    from tests.spark.conftest import Pipeline

    both_inside = threading.Barrier(2, timeout=30)
    met: list[int] = []

    class Meeting(Task):
        """Nothing of it is used: it only names this module for the type checker."""

    del Meeting
    assert events == []
    first, second = Pipeline(spark, tmp_path / "first"), Pipeline(spark, tmp_path / "second")
    shared = first.files()  # one sink object for both is what a user may well write

    def meeting(writer: Any) -> Any:
        def write(batch: DataFrame, batch_id: int) -> None:
            met.append(both_inside.wait())
            writer(batch, batch_id)

        return write

    for pipeline, start in ((first, 0), (second, 100)):
        for number in range(3):
            pipeline.add_batch(rows(start + number))
    queries = [
        pipeline.start(meeting(foreach_batch(shared, log=str(pipeline.log)))) for pipeline in (first, second)
    ]
    for query in queries:
        query.awaitTermination()

    assert len(met) == 6
    assert first.archived_ids() == [0, 1, 2, 100, 101, 102]
    assert first.staged() == []
    for pipeline in (first, second):
        assert [entry["decided"] for entry in pipeline.entries("decide")] == [0, 1, 2]
        assert [entry["incarnation"] for entry in pipeline.entries("decide")] == [1, 1, 1]
    assert twopc.create_sink
