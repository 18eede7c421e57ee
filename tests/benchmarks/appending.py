"""A sink compared with Spark's own writer of the same format: the same batches, in turns, in one query."""

import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from twopc.spark import ForeachBatch

RECORDS = 4_000_000
PARTITIONS = 4
COLUMNS = "id BIGINT, shop BIGINT, price DOUBLE, name STRING"


def append_ratios(
    spark: SparkSession, folder: Path, ours: ForeachBatch, theirs: Callable[[DataFrame], None], quick: bool
) -> tuple[list[float], int]:
    """Return the throughput of ours over theirs in each turn, and how many records each has written in all.

    The first turn is not counted: both are warm afterwards.
    """
    records, turns = RECORDS // (10 if quick else 1), 2 if quick else 8
    ratios = []

    def turn(batch: DataFrame, number: int) -> None:
        seconds = {}
        for contestant in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
            started = time.perf_counter()
            if contestant == "ours":
                ours(batch, number)
            else:
                theirs(batch)
            seconds[contestant] = time.perf_counter() - started
        if number > 0:
            ratios.append(seconds["theirs"] / seconds["ours"])

    source = _source(spark, folder, records, turns + 1)
    query = source.writeStream.foreachBatch(turn).option("checkpointLocation", f"{folder}/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    ours.close()
    return ratios, records * (turns + 1)


def _source(spark: SparkSession, folder: Path, records: int, batches: int) -> DataFrame:
    """Return a stream of equal batches, each with one file per partition."""
    columns = ["id", "id % 1000 AS shop", "rand(7) AS price", "CAST(id AS STRING) AS name"]
    frame = spark.range(0, records, numPartitions=PARTITIONS).selectExpr(*columns)
    frame.write.parquet(str(folder / "once"))
    (folder / "source").mkdir()
    for number in range(batches):
        for file in (folder / "once").glob("*.parquet"):
            (folder / "source" / f"{number}-{file.name}").hardlink_to(file)
    stream = spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", PARTITIONS)
    return stream.parquet(str(folder / "source"))
