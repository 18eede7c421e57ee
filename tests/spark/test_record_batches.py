"""Spark's limit of bytes per record batch is lifted while records are small, if only sinks run Python."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its customary name
from pyspark.sql.functions import pandas_udf  # type: ignore[attr-defined]  # it is there

from tests.spark.conftest import Pipeline
from twopc.spark import Output
from twopc_files.sink import FileSink

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


class Watched:
    """What tasks see: one line per record batch, with its receiver, its rows and the limit of bytes that Spark's own
    writer of record batches finds."""

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


@pytest.mark.variants
@pytest.mark.parametrize(
    "plan",
    [
        lambda source: source,
        lambda source: source.selectExpr("id", "array(name) AS names", "map(name, id) AS ids", "struct(name) AS of"),
        lambda source: source.join(F.broadcast(source.sparkSession.range(10_000)), "id"),
        lambda source: source.select("id", F.explode(F.array("name")).alias("name")).where("id >= 0"),
    ],
    ids=["plain", "nested", "join", "explode"],
)
def test_a_query_without_state_and_python_has_the_limit_of_rows_alone(
    pipeline: Pipeline, watched: Watched, plan: Callable[[DataFrame], DataFrame]
) -> None:
    pipeline.run(pipeline.writer(watched.sink), plan)
    assert watched.limits("sink") == [NO_LIMIT] * 2
    assert len(pipeline.archived()) == 2 * ROWS_A_RECORD_BATCH


@pytest.mark.long
def test_tasks_that_lock_rows_run_once_with_the_limit_of_bytes(
    pipeline: Pipeline, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second job of the round would wait for what tasks of the first have prepared."""
    monkeypatch.setattr(sys.modules["twopc.spark.foreach_batch"], "PreparedSink", FileSink)
    pipeline.run(pipeline.writer(watched.sink))
    assert watched.limits("sink") == [None] * 2


@pytest.mark.long
def test_outputs_of_other_columns_have_it_too(pipeline: Pipeline, watched: Watched) -> None:
    other = FileSink({"path": str(pipeline.folder / "other"), "format": "json"})
    outputs: Any = {"names": Output(watched.sink, ["name"], where="id >= 0"), "all": other}
    pipeline.run(pipeline.writer(outputs))
    assert watched.limits("sink") == [NO_LIMIT] * 2


@pytest.mark.long
@pytest.mark.parametrize("outputs", [1, 2], ids="{} outputs".format)
def test_a_record_larger_than_its_share_of_the_limit_brings_the_limit_back(
    pipeline: Pipeline, watched: Watched, outputs: int
) -> None:
    large = 64 * 2**20 // ROWS_A_RECORD_BATCH + 1  # a record batch of these would exceed Spark's limit
    pipeline.add_batch([{"id": 2000, "name": "a"}])
    other: Any = Output(FileSink({"path": str(pipeline.folder / "other")}), ["id"])
    pipeline.run(
        pipeline.writer({"all": watched.sink, **({"ids": other} if outputs == 2 else {})}),
        lambda source: source.withColumn("name", F.expr(f"repeat('x', if(id BETWEEN 1099 AND 1999, {large}, 1))")),
    )
    # The second batch is written again with the limit, and so is the third at once.
    assert set(watched.limits("sink")[:1]) == {NO_LIMIT}
    assert set(watched.limits("sink")[-2:]) == {None}
    assert pipeline.archived_ids() == [*range(100), *range(1000, 1100), 2000]
    assert pipeline.pending_files() == []


@pytest.mark.parametrize(("name", "value"), [(LIMIT, SOME_LIMIT), pytest.param(ROWS, "0", marks=pytest.mark.long)])
def test_a_limit_that_the_user_has_set_stays_and_no_job_runs_twice_for_large_records(
    pipeline: Pipeline, watched: Watched, name: str, value: str
) -> None:
    with setting(pipeline.spark, name, value):
        pipeline.run(
            pipeline.writer(watched.sink), lambda source: source.withColumn("name", F.expr(f"repeat('x', {LARGE})"))
        )
    assert set(watched.limits("sink")) == {value if name == LIMIT else None}
    assert sum(rows for _, rows, _ in watched.seen) == 2 * ROWS_A_RECORD_BATCH


@pytest.mark.long
def test_a_function_of_the_users_gets_record_batches_within_the_limit(pipeline: Pipeline, watched: Watched) -> None:
    with setting(pipeline.spark, LIMIT, SOME_LIMIT):
        pipeline.run(pipeline.writer(watched.sink), watched.function)
    rows = [rows for who, rows, _ in watched.seen if who == "function"]
    assert sum(rows) == 2 * ROWS_A_RECORD_BATCH
    assert max(rows) <= SOME_BYTES // LARGE + 1
    assert {row["size"] for row in pipeline.archived()} == {LARGE}


def aggregation(source: DataFrame) -> DataFrame:
    """It keeps state, which advances when it is evaluated."""
    return source.groupBy("id").agg(F.count("*").alias("times"))


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


@pytest.mark.long
@pytest.mark.parametrize("plan", [python, aggregation, in_arrow, grouped, beside, of_a_table_function, through_an_rdd])
def test_the_limit_of_bytes_stays_wherever_there_is_state_or_other_python(
    pipeline: Pipeline, watched: Watched, plan: Callable[[DataFrame], DataFrame]
) -> None:
    pipeline.run(pipeline.writer(watched.sink), plan, "update" if plan is aggregation else "append")
    assert set(watched.limits("sink")) == {None}


@pytest.mark.long
@pytest.mark.parametrize("change", [python, lambda batch: batch.localCheckpoint(eager=False)])
def test_the_limit_of_bytes_stays_where_a_function_for_foreach_batch_runs_python(
    pipeline: Pipeline, watched: Watched, change: Callable[[DataFrame], DataFrame]
) -> None:
    write = pipeline.writer(watched.sink)
    pipeline.run(lambda batch, batch_id: write(change(batch), batch_id))
    assert set(watched.limits("sink")) == {None}


@pytest.mark.long
def test_the_limit_of_bytes_stays_where_a_sinks_columns_run_python(pipeline: Pipeline, watched: Watched) -> None:
    pipeline.spark.udf.register("same_name", lambda text: text, "string")
    pipeline.run(pipeline.writer(Output(watched.sink, ["id", "same_name(name) AS name"])))
    assert set(watched.limits("sink")) == {None}
