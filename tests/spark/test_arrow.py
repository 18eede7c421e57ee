"""Spark's types and rows as Arrow's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType, TimestampType

import twopc
from twopc.spark import foreach_batch
from twopc.spark.arrow import arrow_schema, in_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.spark.conftest import Pipeline

SCHEMA = StructType([StructField("id", LongType()), StructField("names", ArrayType(StringType()))])


@pytest.mark.spark
def test_foreach_batch_writes_timestamps(pipeline: Pipeline) -> None:
    archive = twopc.create_sink("files", {"path": str(pipeline.folder / "archive")})
    pipeline.add_batch([{"id": 1793138400}])
    pipeline.run(
        foreach_batch(archive, log=str(pipeline.log)),
        lambda source: source.selectExpr("timestamp_seconds(id) AS at"),
    )
    [file] = (pipeline.folder / "archive").glob("part-*")
    assert [row["at"].timestamp() for row in pq.read_table(file).to_pylist()] == [1793138400]


def test_rows_become_record_batches_of_the_same_schema_one_at_a_time() -> None:
    taken = 0

    def rows() -> Iterator[Row]:
        nonlocal taken
        for taken in range(25_000):
            yield Row(id=taken, names=None if taken % 2 else [str(taken)])

    batches = in_batches(rows(), SCHEMA)
    first = next(batches)
    assert taken == first.num_rows - 1
    rest = list(batches)
    assert [batch.num_rows for batch in (first, *rest)] == [10_000, 10_000, 5_000]
    assert all(batch.schema == arrow_schema(SCHEMA) for batch in (first, *rest))
    assert rest[-1].to_pylist()[-2:] == [{"id": 24_998, "names": ["24998"]}, {"id": 24_999, "names": None}]


def test_a_timestamp_has_a_time_zone_in_every_version_of_spark() -> None:
    schema = arrow_schema(StructType([StructField("at", TimestampType())]))
    assert schema.field("at").type.tz == "UTC"
