"""One batch to two systems: one evaluation, one decision, exactly once in both."""

import json
import secrets
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its customary name

from tests.spark.conftest import Pipeline, Topic, descriptions, finished_jobs, rows
from twopc.spark import ForeachBatch, Output, foreach_batch

AS_JSON = ["CAST(id AS STRING) AS key", "to_json(struct(*)) AS value"]


def test_each_batch_reaches_kafka_and_files_exactly_once_from_one_evaluation(pipeline: Pipeline, topic: Topic) -> None:
    context = pipeline.spark.sparkContext
    evaluated = context.accumulator(0)

    @F.udf("string")
    def counted(name: str) -> str:
        evaluated.add(1)
        return name.upper()

    for batch in (range(250), range(250, 300), range(300, 301)):
        pipeline.add_batch(rows(*batch))
    pipeline.run(
        pipeline.writer({"orders": Output(topic.sink(), AS_JSON), "archive": pipeline.files()}),
        lambda source: source.repartition(3).withColumn("name", counted("name")),
    )

    expected = rows(*range(301), name="A")
    assert sorted(pipeline.archived(), key=lambda row: int(row["id"])) == expected
    assert topic.shows([json.dumps(row, separators=(",", ":")) for row in expected])
    assert evaluated.value == 301  # once for each record, though two sinks got it
    # One job of ours per batch. The shuffle is a job of Spark's own before it.
    assert [job for job in descriptions(pipeline.spark)[:6] if job.startswith("twopc")] == [
        f"twopc: pre-commit batch {batch} of orders, archive" for batch in (2, 1, 0)
    ]
    assert (pipeline.pending_files(), topic.ongoing()) == ([], [])
    assert pipeline.decided_batches() == [0, 1, 2]


@pytest.mark.long
def test_the_metrics_of_the_last_batch_are_kept(pipeline: Pipeline) -> None:
    write = pipeline.writer({"all": pipeline.files(), "few": Output(pipeline.files(), ["id"])})
    for batch in ([1, 2, 3], [4]):
        pipeline.add_batch(rows(*batch))
    assert write.last_progress is None
    pipeline.run(write)
    metrics: Any = write.last_progress
    assert (metrics.batch_id, metrics.records, metrics.transactions) == (1, {"all": 1, "few": 1}, {"all": 1, "few": 1})
    assert metrics.bytes["all"] > metrics.bytes["few"] > 0
    assert metrics.phases_ms["pre-committing"] > 0
    assert metrics.owner == pipeline.entries("decide")[0]["owner"]


@pytest.mark.long
def test_jobs_are_described_in_sparks_ui_and_the_former_description_comes_back(pipeline: Pipeline) -> None:
    context = pipeline.spark.sparkContext
    writer = pipeline.writer({"archive": pipeline.files(), "orders": pipeline.files()})
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


@pytest.mark.long
def test_the_driver_collects_votes_and_no_records(pipeline: Pipeline) -> None:
    records, bytes_each = 2000, 2000
    # Random, because Spark compresses what it collects.
    pipeline.add_batch([{"id": i, "name": secrets.token_hex(bytes_each // 2)} for i in range(records)])
    pipeline.run(pipeline.writer(), lambda source: source.repartition(2))

    context = pipeline.spark.sparkContext._jsc.sc()
    assert len(pipeline.archived()) == records
    stage = max(finished_jobs(pipeline.spark)[0].stageIds().apply(number) for number in range(2))
    result_bytes = context.statusStore().lastStageAttempt(stage).resultSize()
    # Measured: 5 kB for two tasks, nearly all of it Spark's own metrics.
    assert 0 < result_bytes < 20_000 < records * bytes_each / 100


@pytest.mark.long
def test_an_empty_partition_begins_no_transaction(pipeline: Pipeline) -> None:
    pipeline.add_batch(rows(7, 7, 7))
    pipeline.run(pipeline.writer(), lambda source: source.repartition(4, "id"))
    [committable] = pipeline.decided(0)["sink"]
    assert committable["records"] == 3
    assert pipeline.archived_ids() == [7, 7, 7]
    assert pipeline.pending_files() == []


@pytest.mark.long
def test_an_empty_batch_is_decided_all_the_same(pipeline: Pipeline, topic: Topic) -> None:
    for number in range(3):
        pipeline.add_batch(rows(number))
    pipeline.run(
        pipeline.writer({"orders": Output(topic.sink(), AS_JSON), "archive": pipeline.files()}),
        lambda source: source.where("id <> 1"),
    )
    assert pipeline.decided_batches() == [0, 1, 2]
    assert pipeline.decided(1) == {"archive": [], "orders": []}
    assert pipeline.archived_ids() == [0, 2]
    assert topic.shows(['{"id":0,"name":"a"}', '{"id":2,"name":"a"}'])


@pytest.mark.variants
@pytest.mark.parametrize(
    ("columns", "named"),
    [(["name AS value", "id AS amount"], "'amount'"), (["name AS key"], "'value'"), (["id AS value"], "'value'")],
)
def test_a_wrong_column_for_kafka_is_refused_by_name_before_anything_is_written(
    pipeline: Pipeline, topic: Topic, columns: list[str], named: str
) -> None:
    pipeline.add_batch(rows(1))
    writer = foreach_batch(
        {"archive": pipeline.files(), "orders": Output(topic.sink(), columns)}, log=str(pipeline.log)
    )
    before = len(finished_jobs(pipeline.spark))
    with pytest.raises(StreamingQueryException) as refused:
        pipeline.run(writer)

    assert "SchemaMismatch" in str(refused.value)
    assert named in str(refused.value)
    assert len(finished_jobs(pipeline.spark)) == before  # no task was started
    assert not (pipeline.folder / "archive").exists()
    assert not pipeline.log.exists()
    assert (topic.values(), topic.ongoing()) == ([], [])


@pytest.mark.long
def test_one_sink_object_may_serve_two_names(pipeline: Pipeline) -> None:
    archive = pipeline.files()
    pipeline.add_batch(rows(1, 2))
    pipeline.run(
        pipeline.writer({"all": archive, "again": Output(archive, ["id + 10 AS id"])}),
        lambda source: source.coalesce(1),
    )
    assert pipeline.archived_ids() == [1, 2, 11, 12]
    assert pipeline.pending_files() == []


@pytest.mark.long
def test_two_queries_of_one_application_write_at_the_same_time(pipeline: Pipeline) -> None:
    first, second = pipelines = [pipeline.beside(name) for name in ("first", "second")]
    shared = first.files()  # one sink object for both, as a user may well write it
    both_inside = threading.Barrier(2, timeout=30)

    def meeting(write: ForeachBatch) -> Callable[[DataFrame, int], None]:
        def meet_and_write(batch: DataFrame, batch_id: int) -> None:
            both_inside.wait()  # fails if the other query is not in its batch at the same time
            write(batch, batch_id)

        return meet_and_write

    for number in range(3):
        first.add_batch(rows(number))
        second.add_batch(rows(100 + number))
    queries = [each.start(meeting(each.writer(shared))) for each in pipelines]
    for query in queries:
        query.awaitTermination()

    assert first.archived_ids() == [0, 1, 2, 100, 101, 102]
    assert first.pending_files() == []
    for each in pipelines:
        decided = [(entry["decided"], entry["incarnation"]) for entry in each.entries("decide")]
        assert decided == [(0, 1), (1, 1), (2, 1)]
