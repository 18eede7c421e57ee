"""Spark's record batches keep to its limit of bytes, which it does not add up where records are small."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from twopc.spark import foreach_batch
from twopc.spark.record_batches import limited_by_rows
from twopc_files.sink import FileSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Pipeline

pytestmark = pytest.mark.spark

ROWS, LIMIT = "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"
SOME_LIMIT, NO_LIMIT = str(64 * 1024), str(2**31 - 1)
ROWS_A_RECORD_BATCH = 100  # by the session's limit of rows


@pytest.fixture
def limited(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with a limit of 64 KiB a record batch."""
    spark.conf.set(LIMIT, SOME_LIMIT)
    yield spark
    spark.conf.unset(LIMIT)


def test_the_limit_of_bytes_is_lifted_where_records_are_small_and_comes_back(limited: SparkSession) -> None:
    with limited_by_rows(limited, record_bytes=100):
        assert limited.conf.get(LIMIT) == NO_LIMIT
    assert limited.conf.get(LIMIT) == SOME_LIMIT


@pytest.mark.parametrize("record_bytes", [0, 200, 1_000_000])
def test_the_limit_of_bytes_stays_where_records_are_large_or_not_known(
    limited: SparkSession, record_bytes: int
) -> None:
    with limited_by_rows(limited, record_bytes):
        assert limited.conf.get(LIMIT) == SOME_LIMIT


def test_the_limit_of_bytes_stays_where_there_is_none_of_rows(limited: SparkSession) -> None:
    limited.conf.set(ROWS, "0")
    try:
        with limited_by_rows(limited, record_bytes=1):
            assert limited.conf.get(LIMIT) == SOME_LIMIT
    finally:
        limited.conf.set(ROWS, str(ROWS_A_RECORD_BATCH))


def test_a_query_lifts_the_limit_by_what_it_has_seen_and_takes_it_back_for_larger_records(
    pipeline: Pipeline, limited: SparkSession
) -> None:
    seen = pipeline.folder / "seen"

    # A local class, as what a worker could not import is pickled by value.
    class Watched(FileSink):
        def write(self, transaction: Any, batch: Any) -> None:
            with seen.open("a") as file:
                file.write(json.dumps([transaction.id.round.batch_id, batch.num_rows]) + "\n")
            super().write(transaction, batch)

    write = foreach_batch(Watched({"path": str(pipeline.folder / "archive"), "format": "json"}), log=str(pipeline.log))
    after: list[str | None] = []

    def watched(batch: DataFrame, batch_id: int) -> None:
        write(batch, batch_id)
        after.append(batch.sparkSession.conf.get(LIMIT))

    for name in ("small", "large" * 1000, "large" * 1000):
        pipeline.add_batch([{"id": number, "name": name} for number in range(ROWS_A_RECORD_BATCH)])
    pipeline.run(watched)

    record_batches = [json.loads(line) for line in seen.read_text().splitlines()]
    assert record_batches[:2] == [[0, ROWS_A_RECORD_BATCH], [1, ROWS_A_RECORD_BATCH]]  # the latter has 500 kB
    assert sum(rows for _, rows in record_batches[2:]) == ROWS_A_RECORD_BATCH
    assert all(rows * 5000 < 64 * 1024 + 5000 for _, rows in record_batches[2:])
    assert after == [SOME_LIMIT] * 3
    assert len(pipeline.archived()) == 3 * ROWS_A_RECORD_BATCH
