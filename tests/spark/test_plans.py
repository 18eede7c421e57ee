"""What is known of a batch's plan before its tasks begin, and when a batch is refused because of it."""

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from tests.spark.conftest import Pipeline, Topic
from tests.support.spark_session import write_all
from twopc.errors import ConfigurationError
from twopc.log.entry_json import LONGEST_DECISION, MOST_TRANSACTIONS
from twopc.spark import Output, tuning
from twopc.spark.engine import BatchInput
from twopc.spark.tuning import LimitedByRows, Plan, Plans


def test_a_batch_of_as_many_transactions_as_a_decision_has_room_for_is_not_refused() -> None:
    Plan(tasks=MOST_TRANSACTIONS).refuse_too_many_tasks(7, sinks=1)
    Plan(tasks=MOST_TRANSACTIONS // 4).refuse_too_many_tasks(7, sinks=4)
    Plan(tasks=None).refuse_too_many_tasks(7, sinks=1)


def test_a_batch_of_more_transactions_than_a_decision_has_room_for_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Plan(tasks=MOST_TRANSACTIONS // 4 + 1).refuse_too_many_tasks(7, sinks=4)
    assert refused.value.message == (
        "batch 7 has 25001 tasks, each of which may begin a transaction in each of 4 sinks: 100004, and a decision in"
        " the commit log has room for 100000. Nothing was written. Use fewer tasks, by coalesce or repartition in the"
        " query or a lower spark.sql.shuffle.partitions, and start again."
    )


def test_a_decision_has_room_for_three_hundred_bytes_a_transaction() -> None:
    assert LONGEST_DECISION // MOST_TRANSACTIONS >= 300


def test_a_frame_of_spark_connect_is_written_as_it_is() -> None:
    """It has no context, and nothing is known of its plan."""
    frame: Any = object()
    assert LimitedByRows().run(lambda given: given is frame, frame, Plan(), in_structs=False)


@pytest.mark.parametrize("columns", [["*"], pytest.param(["id", "upper(name) AS name"], marks=pytest.mark.long)])
def test_it_is_refused_before_its_tasks_begin(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, columns: list[str]
) -> None:
    monkeypatch.setattr(tuning, "MOST_TRANSACTIONS", 3)
    pipeline.add_batch([{"id": number, "name": "a"} for number in range(20)])
    writer = pipeline.writer(Output(pipeline.files(), columns))
    with pytest.raises(StreamingQueryException, match=r"ConfigurationError: batch 0 has 4 tasks.* Nothing was written"):
        pipeline.run(writer, lambda source: source.repartition(4))
    assert not (pipeline.folder / "archive").exists()
    assert pipeline.entries("decide") == []

    pipeline.run(writer, lambda source: source.repartition(3))
    assert pipeline.archived_ids() == list(range(20))


@pytest.mark.long
def test_a_spark_that_shows_no_plan_writes_all_the_same(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Plan] = []
    of = Plans.of

    def of_a_query_without_plan(plans: Plans, frame: DataFrame) -> Plan:
        plans._query = frame.sparkSession._jvm.java.lang.Object()  # type: ignore[union-attr]
        found.append(of(plans, frame))
        return found[-1]

    monkeypatch.setattr(Plans, "of", of_a_query_without_plan)
    for batch in range(2):
        pipeline.add_batch([{"id": batch, "name": "a"}])
    pipeline.run(pipeline.writer())
    assert found == [Plan()] * 2
    assert pipeline.archived_ids() == [0, 1]


@pytest.mark.long
def test_a_query_of_a_topic_is_known(pipeline: Pipeline, topic: Topic) -> None:
    topic.fill(range(20))
    found: list[tuple[int | None, bool, bool, int]] = []
    plans: list[Plans] = []

    def look(batch: DataFrame, _: int) -> None:
        session = batch.sparkSession
        query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query_id is not None
        if not plans:
            plans.append(Plans(session, BatchInput(session, query_id).query))
        plan = plans[0].of(batch.selectExpr("value AS key", "value"))
        found.append((plan.tasks, plan.repeatable, plan.mergeable, plan.rows_before()))
        batch.collect()

    source = topic.stream(pipeline.spark, 10)
    query = source.selectExpr("CAST(value AS STRING) AS value").where("value IS NOT NULL").writeStream
    write_all(query.foreachBatch(look), pipeline.checkpoint)
    assert found == [(2, True, True, 0), (2, True, True, 10)]
