"""Each kind of trigger, and batches without data, at the end of a query, and beside another query."""

import shutil
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its customary name

from tests.spark.conftest import Hold, Pipeline, rows
from tests.support.waiting import until
from twopc.errors import ConfigurationError
from twopc.events import BatchFinished, Event
from twopc.phases import Phase
from twopc.spark import stop
from twopc.spark.engine import _require_repeatable

WAIT_S = 60


@pytest.mark.long
def test_a_query_with_a_processing_time_writes_what_comes_until_it_is_stopped(pipeline: Pipeline) -> None:
    pipeline.add_batch(rows(0))
    query = pipeline.start(pipeline.writer(), trigger={"processingTime": "100 milliseconds"})
    until(lambda: pipeline.archived_ids() == [0])
    pipeline.add_batch(rows(1))
    until(lambda: pipeline.archived_ids() == [0, 1])
    stop(query)
    assert pipeline.decided_batches() == [0, 1]
    assert len(pipeline.entries("close")) == 1


def test_a_bounded_query_ends_only_after_its_last_batch_is_committed(pipeline: Pipeline, hold: Hold) -> None:
    pipeline.add_batch(rows(1))
    pipeline.add_batch(rows(2))
    hold.at(Phase.COMMITTING, 1)
    query = pipeline.start(pipeline.writer())
    assert hold.reached.wait(WAIT_S)
    assert not query.awaitTermination(0.5)
    assert pipeline.archived_ids() == [1]
    hold.released.set()
    query.awaitTermination()
    assert pipeline.archived_ids() == [1, 2]


@pytest.mark.long
def test_a_batch_that_all_sinks_have_is_passed_by_one_run_when_the_log_is_lost(pipeline: Pipeline) -> None:
    """As the runbook has it: the run ends after that batch, also when there is more to read."""
    pipeline.add_batch(rows(0))
    pipeline.run(pipeline.writer())
    pipeline.add_batch(rows(1))
    writer = pipeline.writer()

    def killed_after(batch: DataFrame, batch_id: int) -> None:
        writer(batch, batch_id)
        raise RuntimeError("the driver was killed")

    with pytest.raises(StreamingQueryException):
        pipeline.run(killed_after)
    shutil.rmtree(pipeline.log)
    pipeline.add_batch(rows(2))
    with pytest.raises(StreamingQueryException, match="first_batch_id=1"):
        pipeline.run(pipeline.writer())
    passing = pipeline.writer({"unused": pipeline.beside("unused").files()}, first_batch_id=1)
    pipeline.start(passing, trigger={"once": True}).awaitTermination()
    passing.close()
    assert pipeline.decided_batches() == [1]
    pipeline.run(pipeline.writer())
    assert pipeline.archived_ids() == [0, 1, 2]


@pytest.mark.long
def test_a_source_that_cannot_give_its_records_again_is_refused_before_anything_is_written(pipeline: Pipeline) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        lines = pipeline.spark.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
        query = lines.writeStream.foreachBatch(pipeline.writer()).start()
        with server.accept()[0] as connection:
            connection.sendall(b"a line\n")
            with pytest.raises(StreamingQueryException, match="can't give a batch's records again after a crash"):
                query.awaitTermination(WAIT_S)
    assert not pipeline.log.exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("trigger", "options", "says"),
    [
        ({"realTime": "5 minutes"}, {}, "REAL_TIME_MODE"),
        ({"continuous": "1 second"}, {}, "not supported with continuous trigger"),
        ({"processingTime": "0 seconds"}, {"asyncProgressTrackingEnabled": "true"}, "async progress tracking"),
    ],
)
def test_spark_itself_refuses_what_has_no_batches_that_can_be_repeated(
    pipeline: Pipeline, trigger: Any, options: dict[str, str], says: str
) -> None:
    pipeline.add_batch(rows(0))
    if "realTime" in trigger and pyspark.__version__ < "4.1":
        pytest.skip("Spark has real-time mode from 4.1 on")
    with pytest.raises(Exception, match=says):
        pipeline.source().writeStream.foreachBatch(pipeline.writer()).options(**options).trigger(**trigger).start()


@pytest.mark.parametrize(
    ("engine", "trigger", "says"),
    [
        ("MicroBatchExecution", "RealTimeTrigger", "real-time mode passes records on before"),
        ("AsyncProgressTrackingMicroBatchExecution", "ProcessingTimeTrigger", "Remove that option"),
    ],
)
def test_what_spark_was_told_not_to_refuse_is_refused_here(engine: str, trigger: str, says: str) -> None:
    def of_class(name: str) -> Any:
        return SimpleNamespace(getClass=lambda: SimpleNamespace(getName=lambda: f"org.apache.spark.{name}"))

    query = of_class(engine)
    query.trigger = lambda: of_class(trigger)
    with pytest.raises(ConfigurationError, match=says):
        _require_repeatable(query)


def by_minute(source: DataFrame) -> DataFrame:
    """Count by minute. A count is emitted when the watermark has passed its minute. ``id`` is in seconds."""
    at = source.select(F.timestamp_seconds("id").alias("at")).withWatermark("at", "30 seconds")
    minute = at.groupBy(F.window("at", "1 minute").alias("minute")).count()
    return minute.select(F.unix_timestamp("minute.start").alias("id"), F.col("count").cast("string").alias("name"))


@pytest.mark.long
def test_a_batch_without_data_is_decided_too_and_its_output_is_there_once_if_spark_repeats_it(
    pipeline: Pipeline, events: list[Event]
) -> None:
    """Spark plans a batch without data if the watermark has advanced, because windows may have ended."""
    pipeline.add_batch(rows(0, 10, 70, 150))
    pipeline.run(pipeline.writer(), by_minute)
    without_data = 1
    assert pipeline.decided_batches() == [0, without_data]
    assert sum(committable["records"] for committable in pipeline.decided(without_data)["sink"]) > 0
    for file in (pipeline.checkpoint / "commits").glob(f"*{without_data}*"):
        file.unlink()  # as if the driver had died before Spark recorded the batch
    events.clear()
    pipeline.add_batch(rows(400))
    pipeline.run(pipeline.writer(), by_minute)

    finished = [event for event in events if isinstance(event, BatchFinished)]
    assert [event.batch_id for event in finished if event.already_decided] == [without_data]
    assert pipeline.decided_batches() == [0, 1, 2, 3]
    counted = sorted((row["id"], row["name"]) for row in pipeline.archived())
    assert counted == [(0, "2"), (60, "1"), (120, "1")]


@pytest.mark.long
def test_a_frame_that_is_not_made_of_the_batch_is_refused_before_anything_is_written(pipeline: Pipeline) -> None:
    pipeline.add_batch(rows(1))
    others = {
        "LogicalRelation": pipeline.spark.read.json(str(pipeline.folder / "source"), "id LONG").where("id > 0"),
        "Range": pipeline.spark.range(3),
    }
    write = pipeline.writer()
    for reads, other in others.items():
        query = pipeline.start(lambda _, number, other=other: write(other, number))  # type: ignore[misc]
        with pytest.raises(StreamingQueryException, match=f"not made of the query's batch: it only reads {reads}"):
            query.awaitTermination()
    assert pipeline.decided_batches() == []


def test_a_query_without_a_checkpoint_of_its_own_is_refused_at_its_first_batch(pipeline: Pipeline) -> None:
    pipeline.add_batch(rows(1))
    query = pipeline.source().writeStream.foreachBatch(pipeline.writer()).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="ConfigurationError: the query has no checkpointLocation"):
        query.awaitTermination()
    assert not pipeline.log.exists()
    assert pipeline.archived() == []
    pipeline.run(pipeline.writer())  # with one
    assert pipeline.archived_ids() == [1]


@pytest.mark.long
def test_a_frame_that_was_made_of_the_batch_in_any_way_is_written(pipeline: Pipeline) -> None:
    pipeline.add_batch(rows(0, name="0"))
    other = pipeline.spark.read.schema("id LONG, name STRING").json(str(pipeline.folder / "source"))
    ways: tuple[Callable[[DataFrame], DataFrame], ...] = (
        lambda batch: other.select("name").join(batch, "name").select(batch.id, "name"),
        lambda batch: batch.localCheckpoint(),
        lambda batch: batch.persist(),
        lambda batch: batch.sparkSession.createDataFrame(batch.collect(), batch.schema),
    )
    for number, made in enumerate(ways, 1):
        write = pipeline.writer()
        pipeline.run(lambda batch, batch_id, write=write, made=made: write(made(batch), batch_id))  # type: ignore[misc]
        pipeline.add_batch(rows(number, name=f"{number}"))
    assert pipeline.archived_ids() == [0, 1, 2, 3]


@pytest.mark.long
def test_a_log_in_use_is_refused_to_a_second_query_and_the_first_goes_on(pipeline: Pipeline) -> None:
    other = pipeline.beside("other")
    pipeline.add_batch(rows(1))
    other.add_batch(rows(100))
    query = pipeline.start(pipeline.writer(), trigger={"processingTime": "100 milliseconds"})
    until(lambda: pipeline.archived_ids() == [1])
    with pytest.raises(StreamingQueryException, match=f"the commit log belongs to query {query.id}"):
        other.run(pipeline.writer(other.files()))
    assert other.archived() == []

    pipeline.add_batch(rows(2))
    until(lambda: pipeline.archived_ids() == [1, 2])
    stop(query)
    assert {entry["incarnation"] for entry in pipeline.entries("decide")} == {1}  # it was not fenced


@pytest.mark.long
def test_one_writer_in_two_queries_is_refused_to_the_second(pipeline: Pipeline) -> None:
    other = pipeline.beside("other")
    pipeline.add_batch(rows(1))
    other.add_batch(rows(100))
    write = pipeline.writer()
    pipeline.run(write)
    with pytest.raises(StreamingQueryException, match="the commit log belongs to query"):
        other.run(write)
    pipeline.add_batch(rows(2))
    pipeline.run(write)
    assert pipeline.archived_ids() == [1, 2]
