"""``stop(query, drain=True)`` commits what the sources have at the call, then ends the query and closes its log."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its customary name

from tests.spark.conftest import Hold, Pipeline, Topic, rows
from tests.support.waiting import until
from twopc.phases import Phase
from twopc.spark import stop
from twopc.spark.stopping import _Goal

OFTEN = {"processingTime": "50 milliseconds"}


@pytest.mark.long
def test_all_files_of_the_source_are_processed_before_the_query_ends(pipeline: Pipeline) -> None:
    for number in range(4):
        pipeline.add_batch(rows(number))
    query = pipeline.start(pipeline.writer(), trigger=OFTEN)  # one file per batch
    stop(query, drain=True)
    assert not query.isActive
    assert pipeline.archived_ids() == [0, 1, 2, 3]
    assert pipeline.decided_batches() == [0, 1, 2, 3]
    assert len(pipeline.entries("close")) == 1


def test_a_query_that_has_nothing_to_do_ends_at_once(pipeline: Pipeline) -> None:
    pipeline.add_batch(rows(0))
    query = pipeline.start(pipeline.writer(), trigger=OFTEN)
    until(lambda: pipeline.archived_ids() == [0])
    stop(query, drain=True)
    assert not query.isActive
    assert len(pipeline.entries("close")) == 1


@contextmanager
def fed(topic: Topic, first: int) -> Iterator[None]:
    """Produce records without a pause, after the ``first`` ones."""
    producer = confluent_kafka.Producer({"bootstrap.servers": topic.servers, "log_level": 0})
    ended = threading.Event()

    def feed() -> None:
        number = first
        while not ended.wait(0.002):
            producer.produce(topic.name, str(number), partition=number % 2)
            producer.poll(0)
            number += 1

    topic.fill(range(first))
    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield
    finally:
        ended.set()
        feeder.join()
        producer.flush(30)


@pytest.mark.long
def test_a_source_that_never_pauses_is_drained_to_where_it_was_at_the_call(pipeline: Pipeline, topic: Topic) -> None:
    with fed(topic, 2_000):
        source = topic.stream(pipeline.spark, 700).selectExpr("CAST(CAST(value AS STRING) AS LONG) AS id")
        query = (
            source.writeStream.foreachBatch(pipeline.writer())
            .option("checkpointLocation", str(pipeline.checkpoint))
            .trigger(**OFTEN)
            .start()
        )
        stop(query, drain=True)
    found = pipeline.archived_ids()
    assert set(range(2_000)) <= set(found)
    assert len(found) == len(set(found))
    assert len(pipeline.entries("close")) == 1


@pytest.mark.long
def test_windows_that_the_drained_records_close_are_emitted(pipeline: Pipeline) -> None:
    def counted(source: DataFrame) -> DataFrame:
        at = source.withColumn("at", F.timestamp_seconds("id")).withWatermark("at", "1 second")
        return at.groupBy(F.window("at", "10 seconds")).count().selectExpr("unix_seconds(window.start) AS id", "count")

    pipeline.add_batch(rows(1, 2, 11))
    pipeline.add_batch(rows(25))
    query = pipeline.start(pipeline.writer(), counted, trigger=OFTEN)
    stop(query, drain=True)
    assert sorted(pipeline.archived(), key=lambda row: int(row["id"])) == [
        {"id": 0, "count": 2},
        {"id": 10, "count": 1},
    ]


@pytest.mark.long
def test_a_query_that_fails_before_it_is_drained_says_so(pipeline: Pipeline, hold: Hold) -> None:
    def failing(source: DataFrame) -> DataFrame:
        return source.selectExpr("IF(name = 'bad', raise_error('no such name'), id) AS id")

    pipeline.add_batch(rows(0))
    pipeline.add_batch(rows(1, name="bad"))
    hold.at(Phase.COMMITTING, 0)
    query = pipeline.start(pipeline.writer(), failing, trigger=OFTEN)
    assert hold.reached.wait(60)
    hold.released.set()
    with pytest.raises(StreamingQueryException, match="no such name"):
        stop(query, drain=True)
    assert pipeline.archived_ids() == [0]


# The goal. ------------------------------------------------------------------------------------------------------------


def progress(batch_id: int, end: Any, latest: Any, stateful: bool = False) -> dict[str, Any]:
    return {
        "batchId": batch_id,
        "sources": [{"endOffset": end, "latestOffset": latest}],
        "stateOperators": [{}] if stateful else [],
    }


def called_after(batch_id: int) -> Callable[[dict[str, Any]], bool]:
    return _Goal(progress(batch_id, None, None)).is_reached


def topic_at(*offsets: int) -> str:
    return json.dumps({"t": {str(number): offset for number, offset in enumerate(offsets)}})


def test_a_batch_that_may_have_been_planned_before_the_call_tells_nothing() -> None:
    is_reached = called_after(0)
    assert not is_reached(progress(0, topic_at(5), topic_at(5)))
    assert not is_reached(progress(1, topic_at(5), topic_at(5)))  # may have been running at the call
    assert is_reached(progress(2, topic_at(5), topic_at(5)))


def test_a_call_before_the_first_progress_waits_for_the_second_batch() -> None:
    is_reached = _Goal(None).is_reached
    assert not is_reached(None)
    assert not is_reached(progress(7, topic_at(5), topic_at(5)))
    assert not is_reached(progress(7, topic_at(5), topic_at(5)))
    assert is_reached(progress(8, topic_at(5), topic_at(5)))


def test_the_goal_is_what_the_first_batch_after_the_call_could_have_read() -> None:
    is_reached = called_after(-1)
    assert not is_reached(progress(1, topic_at(5, 5), topic_at(9, 5)))
    assert not is_reached(progress(2, topic_at(8, 9), topic_at(20, 20)))
    assert is_reached(progress(3, topic_at(9, 9), topic_at(30, 30)))


def test_a_stateful_query_has_one_more_batch_for_what_the_last_one_closed() -> None:
    is_reached = called_after(-1)
    assert not is_reached(progress(1, topic_at(5), topic_at(5), stateful=True))
    assert not is_reached(progress(1, topic_at(5), topic_at(5), stateful=True))
    assert is_reached(progress(2, topic_at(6), topic_at(6), stateful=True))


def test_a_source_that_does_not_tell_how_far_it_could_be_read_reaches_no_goal() -> None:
    is_reached = called_after(-1)
    assert not is_reached(progress(1, {"logOffset": 3}, None))
    assert not is_reached(progress(2, {"logOffset": 4}, None))


def test_who_waits_for_long_is_told_what_for() -> None:
    goal = _Goal(progress(0, None, None))
    goal.is_reached(progress(1, topic_at(5), topic_at(5)))
    assert str(goal) == (
        "the newest batch that has ended is 1, and the offsets to reach are not known before a later batch ends"
    )
    goal.is_reached(progress(2, topic_at(5), topic_at(9)))
    assert str(goal) == "the newest batch that has ended is 2, and the offsets to reach are [{'t': {'0': 9}}]"
