"""A driver to be killed: a query into Kafka by ``format("twopc")``, run as a process of its own.

``python data_source_driver.py '{"folder": ..., "backends": ..., "options": {...}}'``

Every fault that is left in the folder ``faults`` kills it, and all that it started.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from twopc.spark import TwoPhaseCommitDataSource


def run_query(spark: SparkSession, folder: Path, options: dict[str, str]) -> None:
    """Write each record once, as far as the state knows it."""
    spark.dataSource.register(TwoPhaseCommitDataSource)
    (
        spark.readStream.schema("value STRING")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder / "source"))
        .dropDuplicates(["value"])
        .writeStream.format("twopc")
        .options(**options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def main() -> None:
    job = json.loads(sys.argv[1])
    folder = Path(job["folder"])
    for fault in folder.glob("faults/*"):
        fault.write_text(f"kill {os.getpgrp()}")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.executorEnv.PYTHONPATH", job["backends"])
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    run_query(spark, folder, job["options"])


if __name__ == "__main__":
    main()
