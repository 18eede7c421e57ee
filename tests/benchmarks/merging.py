"""Spark's own ``MERGE`` of changes into a table, in an environment that has the fitting Spark.

``python -m tests.benchmarks.merging delta FOLDER`` creates a table of the files in ``FOLDER/rows``. Then it merges each
file that a line of standard input names, and prints the seconds that it took.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.lake_append import FORMATS, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = "rows"

TABLES = {
    "iceberg": ("lake.db.rows", "'format-version' = '2', 'write.merge.mode' = 'merge-on-read'"),
    "delta": ("delta.`{}/theirs`", "'delta.enableDeletionVectors' = 'true'"),
}
"""Format → the name of the table, and the properties with which a change rewrites no file."""

TUNED = {
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}
"""With Spark's defaults, a merge writes what it sorts to the disk, and Delta reads its log in 50 tasks."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("format", choices=list(TABLES))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    spark, (named, properties) = started(FORMATS[given.format], given.folder, TUNED), TABLES[given.format]
    table = named.format(given.folder)
    columns = "id BIGINT, name STRING, v DOUBLE"
    spark.sql(f"CREATE TABLE {table} ({columns}) USING {given.format} TBLPROPERTIES ({properties})")
    for part in sorted((given.folder / ROWS).iterdir()):
        spark.read.parquet(str(part)).coalesce(1).writeTo(table).append()
    before = spark.table(table).count()
    for line in sys.stdin:
        print(_merge(spark, table, line.strip()), flush=True)  # noqa: T201  # the result
    assert spark.table(table).count() == before, "each change replaces a row"
    spark.stop()


def _merge(spark: SparkSession, table: str, changes: str) -> float:
    spark.read.parquet(changes).createOrReplaceTempView("changes")
    began_s = time.perf_counter()
    spark.sql(
        f"MERGE INTO {table} t USING changes s ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    return time.perf_counter() - began_s


if __name__ == "__main__":
    main()
