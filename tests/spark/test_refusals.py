"""What a task refuses is raised on the driver as what it is: with its class, its words and its attributes."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from twopc.errors import ConfigurationError, RecordRefused, Refused, TwoPhaseCommitError
from twopc.spark import foreach_batch, refusals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.spark.conftest import Pipeline, Topic


class OfAnotherDistribution(RecordRefused):
    """An error that the driver may not be able to import."""


class Spark(Exception):
    """As PySpark raises it: with the text of the task's traceback, and text of its own around."""


def on_driver(refused: BaseException) -> BaseException:
    """What the driver makes of an error that a task raised."""
    try:
        with refusals.in_task():
            raise refused
    except Exception:  # noqa: BLE001  # whatever it is
        told = f"Job aborted:\n{traceback.format_exc()}\n\tat org.apache.spark.api.python.BasePythonRunner\n"
    with pytest.raises(Exception, match=r".*") as raised, refusals.of_tasks():
        raise Spark(told)
    return raised.value


@pytest.mark.parametrize(
    "refused",
    [
        RecordRefused(
            "it is\nlarge: 'ä'\\", sink="orders", task=3, record=7, topic="a: b\n", partition=0, column="key"
        ),
        RecordRefused("it is large"),
        ConfigurationError("topic 'x' does not exist"),
        Refused("no"),
        Refused(),
    ],
    ids=str,
)
def test_a_refusal_arrives_whole(refused: Refused) -> None:
    arrived = on_driver(refused)
    assert (type(arrived), str(arrived), vars(arrived)) == (type(refused), str(refused), vars(refused))


def test_a_refusal_of_another_distributions_class_arrives_as_the_class_that_the_core_knows() -> None:
    arrived = on_driver(OfAnotherDistribution("no", record=1))
    assert type(arrived) is RecordRefused
    assert str(arrived) == "record 1: no"


def test_any_other_error_stays_what_spark_raised() -> None:
    assert type(on_driver(OSError("disk"))) is Spark
    assert type(on_driver(TwoPhaseCommitError("twopc.errors.Refused: no"))) is Spark


@pytest.mark.spark
@pytest.mark.kafka
def test_a_record_that_can_not_be_written_is_named_to_who_runs_the_query(pipeline: Pipeline, topic: Topic) -> None:
    raised: list[RecordRefused] = []
    columns = ["name AS value", "CAST(IF(id = 3, -1, id) AS TIMESTAMP) AS timestamp"]
    write = foreach_batch({"orders": (topic.sink(), columns)}, log=str(pipeline.log))

    def noted(batch: DataFrame, number: int) -> None:
        try:
            write(batch.coalesce(1), number)
        except RecordRefused as refused:
            raised.append(refused)
            raise

    pipeline.add_batch([{"id": number, "name": "hunter2"} for number in range(1, 6)])
    with pytest.raises(StreamingQueryException, match="RecordRefused: sink 'orders', task 0, record 2"):
        pipeline.run(noted)
    [refused] = raised
    assert (refused.sink, refused.task, refused.record, refused.column) == ("orders", 0, 2, "timestamp")
    assert "before 1970" in str(refused)
    assert "hunter2" not in str(refused)
    assert pipeline.entries("decide") == []
    assert topic.ongoing() == []
