"""A driver to be killed: a query into Kafka by ``format("twopc")``, run as a process of its own.

``python -m tests.spark.data_source_driver '{"folder": ..., "backends": ..., "options": {...}}'``

Every fault that is left in the folder ``faults`` kills it, and all that it started.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.spark_session import session, write_all
from twopc.spark import TwoPhaseCommitDataSource


def run_query(spark: SparkSession, folder: Path, options: dict[str, str]) -> None:
    """Write each record once, as far as the state knows it."""
    spark.dataSource.register(TwoPhaseCommitDataSource)
    records = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 1).json(str(folder / "source"))
    writer = records.dropDuplicates(["value"]).writeStream.format("twopc").options(**options)
    write_all(writer, folder / "checkpoint")


def main() -> None:
    job = json.loads(sys.argv[1])
    folder = Path(job["folder"])
    for fault in folder.glob("faults/*"):
        fault.write_text(f"kill {os.getpgrp()}")
    spark = session(settings={"spark.executorEnv.PYTHONPATH": job["backends"]})
    run_query(spark, folder, job["options"])


if __name__ == "__main__":
    main()
