"""After a small batch, the next one runs on at most as many tasks as there are cores, if its plan is cheap."""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its customary name
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.functions import pandas_udf  # type: ignore[attr-defined]  # it is there
from pyspark.sql.types import StructType

from tests.spark.conftest import Pipeline, dynamic_allocation
from twopc.spark import ForeachBatch, Output, tuning

pytestmark = pytest.mark.long

CORES, PARTITIONS = 2, 5
BATCHES = 2
ROWS, BYTES_A_ROW = 20, 25


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that reads a batch's file in five partitions, and shuffles into five."""
    settings = {
        "spark.sql.files.maxPartitionBytes": f"{ROWS * BYTES_A_ROW // PARTITIONS}b",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
    }
    before = {name: str(spark.conf.get(name)) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture
def source(session: SparkSession, pipeline: Pipeline) -> Pipeline:
    """Two batches of five partitions, each with some records."""
    assert session.conf.get("spark.sql.shuffle.partitions") == str(PARTITIONS)
    for batch in range(BATCHES):
        pipeline.add_batch([{"id": 100 * (batch + 1) + number, "name": "a"} for number in range(ROWS)])
    return pipeline


def columns(source: DataFrame) -> DataFrame:
    return source.selectExpr("id", "upper(name) AS name").where("id > 0")


def transactions(
    pipeline: Pipeline,
    plan: Callable[[DataFrame], DataFrame] = columns,
    write: Callable[[ForeachBatch], Callable[[DataFrame, int], None]] = lambda writer: writer,
    output_mode: str = "append",
    **arguments: Any,
) -> list[int]:
    """Return the number of transactions of each batch. Every task has records."""
    writer = pipeline.writer(**arguments)
    pipeline.run(write(writer), plan, output_mode)
    return [len(pipeline.decided(batch)["sink"]) for batch in range(BATCHES)]


def test_what_comes_after_a_small_batch_is_written_by_as_many_tasks_as_there_are_cores(source: Pipeline) -> None:
    assert transactions(source) == [PARTITIONS, CORES]
    assert len(source.archived()) == BATCHES * ROWS


def test_the_union_of_sources_is_written_by_as_many_tasks_as_there_are_cores(source: Pipeline) -> None:
    other = source.beside("other")
    other.add_batch([{"id": 1, "name": "b"}])
    assert transactions(source, lambda frame: frame.union(other.source()))[1:] == [CORES]


def test_a_query_that_is_started_again_has_a_task_a_partition_in_its_first_batch(source: Pipeline) -> None:
    writer = source.writer()
    source.run(writer, columns)
    for batch in range(BATCHES, 2 * BATCHES):
        source.add_batch([{"id": 100 * (batch + 1) + number, "name": "a"} for number in range(ROWS)])
    source.run(writer, columns)
    assert [len(source.decided(batch)["sink"]) for batch in range(BATCHES, 2 * BATCHES)] == [PARTITIONS, CORES]


def test_what_comes_after_a_large_batch_is_written_by_a_task_a_partition(
    source: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "RECORDS_PER_CORE", 1)
    assert transactions(source) == [PARTITIONS] * BATCHES


def test_a_batch_is_large_by_what_it_reads_however_little_of_that_is_written(
    source: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "RECORDS_PER_CORE", ROWS // CORES - 1)
    assert transactions(source, lambda frame: frame.where("id % 2 = 0")) == [PARTITIONS] * BATCHES


def test_it_is_switched_off_by_an_argument(source: Pipeline) -> None:
    assert transactions(source, small_batches="all-tasks") == [PARTITIONS] * BATCHES


def test_where_spark_asks_for_executors_by_waiting_tasks_none_is_merged_away(source: Pipeline) -> None:
    with dynamic_allocation(source.spark):
        assert transactions(source) == [PARTITIONS] * BATCHES


class Numbers(DataSource):
    """A source whose tasks run Python. Each batch has a number for each of five partitions."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "id LONG, name STRING"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        return NumbersReader()


class NumbersReader(DataSourceStreamReader):
    def __init__(self) -> None:
        self._batch = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        return {"batch": 0}

    def latestOffset(self, *_: object) -> dict[str, int]:  # noqa: N802  # Spark's name
        self._batch += 1
        return {"batch": self._batch}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        assert start != end
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        yield partition.value, "a"


def test_a_source_that_runs_python_keeps_its_tasks(session: SparkSession, pipeline: Pipeline) -> None:
    session.dataSource.register(Numbers)
    writer = pipeline.writer()
    seen: list[int] = []

    def watched(batch: DataFrame, batch_id: int) -> None:
        writer(batch, batch_id)
        assert writer.last_progress is not None
        seen.append(writer.last_progress.transactions["sink"])

    numbers = session.readStream.format("numbers").load()
    query = numbers.writeStream.foreachBatch(watched).option("checkpointLocation", str(pipeline.checkpoint)).start()
    while query.isActive and len(seen) < BATCHES:
        time.sleep(0.05)
    query.stop()
    assert seen[:BATCHES] == [PARTITIONS] * BATCHES


def python(source: DataFrame) -> DataFrame:
    return source.withColumn("name", F.udf(lambda name: name, "string")("name"))


def pandas(source: DataFrame) -> DataFrame:
    def same(names: pd.Series) -> pd.Series:
        return names

    return source.withColumn("name", pandas_udf(same, "string")("name"))


def scala(source: DataFrame) -> DataFrame:
    vector = array_to_vector(F.array(F.lit(1.0)))
    return source.withColumn("name", vector_to_array(vector).cast("string"))


def in_arrow(source: DataFrame) -> DataFrame:
    return source.mapInArrow(lambda batches: batches, source.schema)


def counted(source: DataFrame) -> DataFrame:
    return source.groupBy("id").agg(F.count("*").cast("string").alias("name"))


def joined(source: DataFrame) -> DataFrame:
    return source.join(F.broadcast(source.sparkSession.range(1000)), "id")


@pytest.mark.parametrize(
    "plan",
    [
        *(python, pandas, in_arrow, scala, joined, counted),
        pytest.param(lambda source: source.repartition(PARTITIONS), id="repartition"),
        pytest.param(lambda source: source.dropDuplicates(["id"]), id="deduplication"),
        pytest.param(lambda source: source.select("id", F.explode(F.array("name")).alias("name")), id="explode"),
    ],
)
def test_whatever_may_be_expensive_keeps_its_tasks(source: Pipeline, plan: Callable[[DataFrame], DataFrame]) -> None:
    assert transactions(source, plan, output_mode="update") == [PARTITIONS] * BATCHES


def through_an_rdd(batch: DataFrame) -> DataFrame:
    return batch.sparkSession.createDataFrame(batch.rdd.map(lambda row: row), batch.schema)


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch.repartition(PARTITIONS),
        python,
        scala,
        through_an_rdd,
        lambda batch: batch.localCheckpoint(eager=False),
    ],
    ids=["repartition", "python", "scala", "rdd", "checkpoint"],
)
def test_whatever_a_function_for_foreach_batch_makes_of_its_batch_keeps_its_tasks(
    source: Pipeline, change: Callable[[DataFrame], DataFrame]
) -> None:
    assert (
        transactions(source, write=lambda writer: lambda batch, batch_id: writer(change(batch), batch_id))
        == [PARTITIONS] * BATCHES
    )


def test_columns_and_filters_of_a_function_for_foreach_batch_are_as_cheap_as_the_querys(source: Pipeline) -> None:
    def through(writer: ForeachBatch) -> Callable[[DataFrame, int], None]:
        return lambda batch, batch_id: writer(batch.withColumn("batch", F.lit(batch_id)).where("id > 0"), batch_id)

    assert transactions(source, write=through) == [PARTITIONS, CORES]


def test_a_function_in_the_columns_of_a_sink_keeps_its_tasks(source: Pipeline) -> None:
    name = f"same_{uuid.uuid4().hex}"
    source.spark.udf.register(name, lambda text: text, "string")
    writer = source.writer(Output(source.files(), ["id", f"{name}(name) AS name"]))
    source.run(writer)
    assert [len(source.decided(batch)["sink"]) for batch in range(BATCHES)] == [PARTITIONS] * BATCHES
