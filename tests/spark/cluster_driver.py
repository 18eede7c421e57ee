"""A driver with two executors, each a process of its own.

``python -m tests.spark.cluster_driver '{"folder": ..., ...}'``

Runs the three scenes of ``test_cluster.py`` in one session, as executors take long to start, and writes down what was
seen to ``seen.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import twopc
from tests.support.spark_session import session, write_all
from twopc.spark import foreach_batch


def run(spark: SparkSession, folder: Path, sinks: dict[str, Any], partitions: int) -> None:
    """Write two files a batch, from two executors, through a shuffle."""
    source = spark.readStream.schema("id LONG, name STRING").option("maxFilesPerTrigger", 2)
    write = foreach_batch(sinks, log=str(folder / "log"))

    def shuffled(batch: DataFrame, number: int) -> None:
        write(batch.repartition(partitions, "id"), number)

    write_all(source.json(str(folder / "source")).writeStream.foreachBatch(shuffled), folder / "checkpoint")


def refusal(spark: SparkSession, folder: Path, sinks: dict[str, Any], partitions: int = 4) -> str:
    """What a query says that fails."""
    try:
        run(spark, folder, sinks, partitions)
    except StreamingQueryException as error:
        return str(error)
    return "it did not fail"


def most_attempts(spark: SparkSession) -> int:
    """How often a stage was run, that one which was run most often."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    jobs = context.statusStore().jobsList(None)
    stages = [jobs.apply(number).stageIds() for number in range(jobs.size())]
    ids = [of_job.apply(number) for of_job in stages for number in range(of_job.size())]
    return 1 + max(int(context.statusStore().lastStageAttempt(stage).attemptId()) for stage in ids)


def main() -> None:
    job = json.loads(sys.argv[1])
    folder = Path(job["folder"])
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "600m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.task.maxFailures": "2",
        # With its imports done: workers that die are back at once.
        "spark.python.daemon.module": "tests.campaigns.storm.daemon",
        "spark.executorEnv.PYTHONPATH": str(Path.cwd()),
    }
    spark = session("local-cluster[2,1,600]", settings, log_level="OFF")
    sys.path.insert(0, job["backends"])  # of this process alone
    faults = folder / "faults"
    faults.mkdir()
    archive = {"path": str(folder / "archive"), "format": "json", "faults": str(faults)}
    sinks = {
        "archive": twopc.create_sink("faulty-files", archive),
        "orders": (twopc.create_sink("kafka", job["kafka"]), ["CAST(id AS STRING) AS value"]),
    }
    seen: dict[str, Any] = {"missing": refusal(spark, folder, sinks)}

    spark.sparkContext.environment["PYTHONPATH"] = f"{job['backends']}:{Path.cwd()}"
    # Now on the executors, too, of which one is lost after a vote, with its part of the shuffle. In the second batch a
    # sink vetoes, so that it is repeated, with fewer partitions.
    (faults / "pre_commit").write_text("lose")
    (faults / "seal").write_text(f"raise once {folder / 'checkpoint' / 'offsets' / '1'}")
    seen["vetoed"] = refusal(spark, folder, sinks)
    seen["stage_attempts"] = most_attempts(spark)
    run(spark, folder, sinks, partitions=1)
    seen["faults_left"] = [file.name for file in faults.iterdir()]
    (folder / "seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
