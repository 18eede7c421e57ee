"""The files sink compared with Spark's Parquet sink on the same data, and phase two of many files by itself."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds

import twopc
from tests.benchmarks.appending import append_ratios
from tests.benchmarks.measuring import Row
from tests.benchmarks.protocol import run_batches
from tests.support.spark_home import set_java_and_python
from twopc.phases import Phase

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES = (1, 100, 1000)


def run(quick: bool) -> list[Row]:
    """Return the throughput as a ratio, and the milliseconds of phase two."""
    with tempfile.TemporaryDirectory() as folder:
        return [_throughput(Path(folder), quick), *(_phase_two(Path(folder), files, quick) for files in FILES)]


def _throughput(folder: Path, quick: bool) -> Row:
    set_java_and_python()
    from pyspark.sql import SparkSession

    from twopc.spark import foreach_batch

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    write = foreach_batch(twopc.create_sink("files", {"path": str(folder / "ours")}), log=f"{folder}/log")
    theirs = folder / "theirs"
    ratios, records = append_ratios(spark, folder, write, lambda batch: _spark_writes(batch, theirs), quick)
    spark.stop()
    for name in ("ours", "theirs"):
        assert ds.dataset(folder / name).count_rows() == records, f"the output of {name} is not complete"
    return Row("throughput of the Parquet sink, over Spark's own", "ratio", tuple(ratios), "parquet_vs_spark")


def _spark_writes(frame: DataFrame, folder: Path) -> None:
    frame.write.mode("append").parquet(str(folder))


def _phase_two(folder: Path, files: int, quick: bool) -> Row:
    """Measure the renames and their syncs, on a local disk."""
    sink = twopc.create_sink("files", {"path": f"{folder}/{uuid.uuid4().hex}"})
    batches = run_batches(sink, folder, files, 3 if quick else 10)
    took_ms = tuple(batch.phases_ms[Phase.COMMITTING.value] for batch in batches)
    return Row(f"phase two of {files} files on a disk", "ms", took_ms)
