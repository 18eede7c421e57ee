"""Spark's own ``MERGE`` of changes into a table, in an environment that has the fitting Spark.

``python -m tests.benchmarks.merging delta FOLDER`` prints the seconds of each turn as JSON. ``FOLDER/rows`` has the
table's files, and ``FOLDER/changes`` those of the turns. The first turn warms up, and is not counted.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.lake_append import FORMATS, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, CHANGES = "rows", "changes"

TABLES = {
    "iceberg": ("lake.db.rows", "'format-version' = '2', 'write.merge.mode' = 'merge-on-read'"),
    "delta": ("delta.`{}/theirs`", "'delta.enableDeletionVectors' = 'true'"),
}
"""Format → the name of the table, and the properties with which a change rewrites no file."""


def merges(name: str, folder: Path) -> list[float]:
    """Return the seconds of each turn but the first."""
    spark, (table, properties) = started(FORMATS[name], folder), TABLES[name]
    table = table.format(folder)
    spark.sql(f"CREATE TABLE {table} (id BIGINT, name STRING, v DOUBLE) USING {name} TBLPROPERTIES ({properties})")
    for part in sorted((folder / ROWS).iterdir()):
        spark.read.parquet(str(part)).coalesce(1).writeTo(table).append()
    before = spark.table(table).count()
    took = [_merge(spark, table, changes) for changes in sorted((folder / CHANGES).iterdir())]
    assert spark.table(table).count() == before, "each change replaces a row"
    spark.stop()
    return took[1:]


def _merge(spark: SparkSession, table: str, changes: Path) -> float:
    spark.read.parquet(str(changes)).createOrReplaceTempView("changes")
    began_s = time.perf_counter()
    spark.sql(
        f"MERGE INTO {table} t USING changes s ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("format", choices=list(TABLES))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    print(json.dumps(merges(given.format, given.folder)))  # noqa: T201  # the result


if __name__ == "__main__":
    main()
