"""Spark's limit of bytes per record batch is lifted if records are small and only sinks run Python."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812  # its customary name
from pyspark.sql.functions import pandas_udf  # type: ignore[attr-defined]  # it is there

from twopc.spark import Output, foreach_batch
from twopc.spark.tuning import limited_by_rows
from twopc_files.sink import FileSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Pipeline

pytestmark = pytest.mark.spark

ROWS, LIMIT = "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"
SOME_LIMIT, SOME_BYTES, NO_LIMIT = str(64 * 1024), 64 * 1024, str(2**31 - 1)
ROWS_A_RECORD_BATCH = 100  # by the session's limit of rows
LARGE = 5000  # a hundred of these exceed SOME_BYTES, and are far below Spark's own limit


@contextlib.contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name) if before is None else spark.conf.set(name, before)


def in_a_job(spark: SparkSession) -> str | None:
    """The limit of bytes that Spark's own writer of record batches finds in a task."""

    def look(_: Any) -> Any:
        context = TaskContext.get()
        assert context is not None
        yield pd.DataFrame({"limit": [context.getLocalProperty(LIMIT)]})

    limit: str | None = spark.range(1).mapInPandas(look, "limit string").collect()[0].limit
    return limit


def test_the_limit_of_bytes_is_lifted_where_records_are_small_and_comes_back(spark: SparkSession) -> None:
    with limited_by_rows(spark, record_bytes=100):
        assert in_a_job(spark) == NO_LIMIT
    assert in_a_job(spark) is None


@pytest.mark.parametrize("record_bytes", [0, 2**30 / ROWS_A_RECORD_BATCH])
def test_the_limit_of_bytes_stays_where_records_are_large_or_not_known(
    spark: SparkSession, record_bytes: float
) -> None:
    with limited_by_rows(spark, record_bytes):
        assert in_a_job(spark) is None


def test_the_limit_of_bytes_stays_where_there_is_none_of_rows(spark: SparkSession) -> None:
    with setting(spark, ROWS, "0"), limited_by_rows(spark, record_bytes=1):
        assert in_a_job(spark) is None


def test_the_limit_of_other_threads_stays(spark: SparkSession) -> None:
    """A function for foreachBatch may write to several target systems at once."""
    with limited_by_rows(spark, record_bytes=100), ThreadPoolExecutor(1) as pool:
        assert pool.submit(in_a_job, spark).result() is None


def test_a_limit_that_the_user_has_set_stays(spark: SparkSession) -> None:
    with setting(spark, LIMIT, SOME_LIMIT), limited_by_rows(spark, record_bytes=1):
        assert in_a_job(spark) == SOME_LIMIT


class Watched:
    """What tasks see: one line per record batch, with its receiver, its rows and the limit of bytes."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._file = pipeline.folder / "seen"
        self.sink = _watched_sink(pipeline, self._file)

    @property
    def seen(self) -> list[tuple[str, int, str | None]]:
        return [tuple(json.loads(line)) for line in self._file.read_text().splitlines()]

    def limits(self, who: str) -> list[str | None]:
        return [limit for name, _, limit in self.seen if name == who]

    def function(self, source: DataFrame) -> DataFrame:
        """Return ``source`` with the length of a large column, computed by a user's function."""
        file = self._file

        def look(texts: pd.Series) -> pd.Series:
            _note(file, "function", len(texts))
            return texts.str.len()

        size = pandas_udf(look, "long")(F.expr(f"repeat('x', {LARGE})"))
        return source.select("id", size.alias("size"))


def _note(file: Path, who: str, rows: int) -> None:
    context = TaskContext.get()
    assert context is not None
    with file.open("a") as lines:
        lines.write(json.dumps([who, rows, context.getLocalProperty(LIMIT)]) + "\n")


def _watched_sink(pipeline: Pipeline, file: Path) -> FileSink:
    note = _note

    # A local class, because it is pickled by value: a worker could not import it.
    class Watching(FileSink):
        def write(self, transaction: Any, batch: Any) -> None:
            note(file, "sink", batch.num_rows)
            super().write(transaction, batch)

    return Watching({"path": str(pipeline.folder / "archive"), "format": "json"})


@pytest.fixture
def watched(pipeline: Pipeline) -> Watched:
    """Two batches of one record batch each."""
    for batch in range(2):
        pipeline.add_batch([{"id": 1000 * batch + number, "name": "a"} for number in range(ROWS_A_RECORD_BATCH)])
    return Watched(pipeline)


def test_a_query_has_the_limit_of_rows_alone_from_its_second_batch_on(pipeline: Pipeline, watched: Watched) -> None:
    pipeline.run(foreach_batch(watched.sink, log=str(pipeline.log)))
    assert watched.limits("sink") == [None, NO_LIMIT]
    assert len(pipeline.archived()) == 2 * ROWS_A_RECORD_BATCH


@pytest.mark.parametrize(
    "plan",
    [
        lambda source: source.groupBy("id").agg(F.count("*").alias("times")),
        lambda source: source.dropDuplicates(["id"]).repartition(1),
        lambda source: source.join(F.broadcast(source.sparkSession.range(10_000)), "id"),
        lambda source: source.select("id", F.explode(F.array("name")).alias("name")).where("id >= 0"),
    ],
    ids=["aggregation", "deduplication", "join", "explode"],
)
def test_a_query_whose_plan_is_the_jvms_alone_has_the_limit_of_rows_alone(
    pipeline: Pipeline, watched: Watched, plan: Callable[[DataFrame], DataFrame]
) -> None:
    pipeline.run(foreach_batch(watched.sink, log=str(pipeline.log)), plan, "update")
    assert watched.limits("sink")[-1] == NO_LIMIT


def test_it_is_switched_off_by_an_argument(pipeline: Pipeline, watched: Watched) -> None:
    pipeline.run(foreach_batch(watched.sink, log=str(pipeline.log), uncapped=False))
    assert watched.limits("sink") == [None] * 2


def test_a_query_takes_the_limit_of_bytes_back_for_larger_records(pipeline: Pipeline, watched: Watched) -> None:
    large = 64 * 2**20 // ROWS_A_RECORD_BATCH // 4  # a record batch of these might come near Spark's limit
    pipeline.add_batch([{"id": 2000, "name": "a"}])
    pipeline.run(
        foreach_batch(watched.sink, log=str(pipeline.log)),
        lambda source: source.withColumn("name", F.expr(f"repeat('x', if(id < 1000, 1, {large}))")),
    )
    assert watched.limits("sink") == [None, NO_LIMIT, None]


def test_a_function_of_the_users_gets_record_batches_within_the_limit(pipeline: Pipeline, watched: Watched) -> None:
    with setting(pipeline.spark, LIMIT, SOME_LIMIT):
        pipeline.run(foreach_batch(watched.sink, log=str(pipeline.log)), watched.function)
    rows = [rows for who, rows, _ in watched.seen if who == "function"]
    assert sum(rows) == 2 * ROWS_A_RECORD_BATCH
    assert max(rows) <= SOME_BYTES // LARGE + 1
    assert {row["size"] for row in pipeline.archived()} == {LARGE}


def python(source: DataFrame) -> DataFrame:
    return source.withColumn("name", F.udf(lambda name: name, "string")("name"))


def in_arrow(source: DataFrame) -> DataFrame:
    return source.mapInArrow(lambda batches: batches, source.schema)


def grouped(source: DataFrame) -> DataFrame:
    return source.groupBy("id").applyInPandas(lambda rows: rows, source.schema)


def of_a_table_function(source: DataFrame) -> DataFrame:
    class Same:
        def eval(self, number: int) -> Iterator[tuple[int]]:
            yield (number,)

    source.sparkSession.udtf.register("same", F.udtf(Same, returnType="id long"))  # type: ignore[arg-type]
    source.createOrReplaceTempView("numbers")
    return source.sparkSession.sql("SELECT made.id FROM numbers, LATERAL same(numbers.id) AS made(id)")


def beside(source: DataFrame) -> DataFrame:
    """A function in the static side of a join."""
    static = python(source.sparkSession.range(10_000).withColumn("name", F.lit("b")))
    return source.drop("name").join(F.broadcast(static), "id")


def through_an_rdd(source: DataFrame) -> DataFrame:
    session = source.sparkSession
    static = session.createDataFrame(session.sparkContext.range(10_000).map(lambda number: (number,)), "id long")
    return source.join(F.broadcast(static), "id")


@pytest.mark.parametrize("plan", [python, in_arrow, grouped, of_a_table_function, beside, through_an_rdd])
def test_the_limit_of_bytes_stays_wherever_else_python_may_run(
    pipeline: Pipeline, watched: Watched, plan: Callable[[DataFrame], DataFrame]
) -> None:
    pipeline.run(foreach_batch(watched.sink, log=str(pipeline.log)), plan)
    assert set(watched.limits("sink")) == {None}


@pytest.mark.parametrize("change", [python, lambda batch: batch.localCheckpoint(eager=False)])
def test_the_limit_of_bytes_stays_where_a_function_for_foreach_batch_runs_python(
    pipeline: Pipeline, watched: Watched, change: Callable[[DataFrame], DataFrame]
) -> None:
    write = foreach_batch(watched.sink, log=str(pipeline.log))
    pipeline.run(lambda batch, batch_id: write(change(batch), batch_id))
    assert set(watched.limits("sink")) == {None}


def test_the_limit_of_bytes_stays_where_a_sinks_columns_run_python(pipeline: Pipeline, watched: Watched) -> None:
    pipeline.spark.udf.register("same_name", lambda text: text, "string")
    pipeline.run(foreach_batch(Output(watched.sink, ["id", "same_name(name) AS name"]), log=str(pipeline.log)))
    assert set(watched.limits("sink")) == {None}
