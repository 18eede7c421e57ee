"""After a small batch the next one runs on no more tasks than there are cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812  # its customary name

from twopc.spark import foreach_batch, small_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Pipeline

pytestmark = pytest.mark.spark

CORES, PARTITIONS = 2, 5
SHUFFLE = "spark.sql.shuffle.partitions"


def transactions_of_three_batches(pipeline: Pipeline) -> list[int]:
    for batch in range(3):
        pipeline.add_batch([{"id": 100 * batch + number, "name": "a"} for number in range(20)])
    write = foreach_batch(pipeline.files(), log=str(pipeline.log))
    pipeline.run(write, lambda source: source.repartition(PARTITIONS))
    assert pipeline.archived_ids() == [100 * batch + number for batch in range(3) for number in range(20)]
    return [len(pipeline.decided(batch)["sink"]) for batch in range(3)]


def test_what_comes_after_a_small_batch_is_written_by_as_many_tasks_as_there_are_cores(pipeline: Pipeline) -> None:
    assert transactions_of_three_batches(pipeline) == [PARTITIONS, CORES, CORES]


def test_what_comes_after_a_large_batch_is_written_by_a_task_a_partition(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_batches, "RECORDS_A_TASK", 1)
    assert transactions_of_three_batches(pipeline) == [PARTITIONS] * 3


@pytest.fixture
def partitions_of_state(spark: SparkSession) -> Iterator[int]:
    before = spark.conf.get(SHUFFLE)
    assert before
    spark.conf.set(SHUFFLE, PARTITIONS)
    yield PARTITIONS
    spark.conf.set(SHUFFLE, before)


def counted(source: DataFrame) -> DataFrame:
    return source.groupBy("id").agg(F.count("*").cast("string").alias("name"))


def once(source: DataFrame) -> DataFrame:
    return source.dropDuplicates(["id"])


@pytest.mark.parametrize(("plan", "new"), [(counted, ["1", "2", "3", "4"]), (once, ["a"])])
def test_a_task_of_several_partitions_keeps_the_state_of_each(
    pipeline: Pipeline, partitions_of_state: int, plan: Callable[[DataFrame], DataFrame], new: list[str]
) -> None:
    """Also over a restart, whose first batch has a task a partition again."""
    ids = range(4 * partitions_of_state)
    for _ in range(2):
        for _ in range(2):
            pipeline.add_batch([{"id": number, "name": "a"} for number in ids])
        pipeline.run(foreach_batch(pipeline.files(), log=str(pipeline.log)), plan, "update")
    written = sorted((row["id"], row["name"]) for row in pipeline.archived())
    assert written == [(number, name) for number in ids for name in new]
