"""A driver to be killed, run in its own process: ``python -m tests.campaigns.spark.driver '{...}'``.

Its argument is a ``Job`` as JSON. It continues where the previous driver was killed, and ends when everything is
written.
"""

import functools
import importlib
import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its customary name
from twopc_faulty import Faults  # type: ignore[import-not-found]  # on the path of this process alone

import twopc
from tests.campaigns.spark import connect, pipeline
from tests.campaigns.spark.job import (
    CONNECT,
    CONNECT_FOREACH_BATCH,
    FOREACH_BATCH,
    FORMAT_BATCH,
    FORMAT_STREAM,
    PIPELINE,
    TO_KAFKA,
    UNPACKED,
    Job,
)
from tests.campaigns.spark.plans import BATCHES, IS_BAD, PLANS, SCHEMA
from tests.support.rolling_back import roll_back
from tests.support.spark_session import session, settings_of, write_all
from twopc.events import Event, PhaseEntered
from twopc.spark import Output, TwoPhaseCommitDataSource, foreach_batch
from twopc_kafka.client.control import control_of

UNFIT = f"IF({IS_BAD}, array(struct(CAST(NULL AS STRING) AS key, CAST(NULL AS BINARY) AS value)), NULL) AS headers"
"""A header without a key, which Kafka does not allow."""

DAEMON = "tests.campaigns.storm.daemon"


class Phases:
    """Turns each phase of the coordinator into a step at which a fault can happen."""

    def __init__(self, faults: str) -> None:
        self._faults = Faults(faults)

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        """Handle an event of the coordinator."""
        if isinstance(event, PhaseEntered):
            self._faults.at(event.phase.value)


@functools.cache
def observe(faults: str) -> None:
    """Observe the coordinators of this process, which runs the batches."""
    twopc.register_observer(Phases(faults))


def plant(job: Job) -> None:
    """Plan each strike at its step, in its batch or in the first later batch that has such a step."""
    shutil.rmtree(job.faults, ignore_errors=True)
    job.faults.mkdir()
    whom = {"kill": f" {os.getpgrp()}", "hold": f" {job.outlived}", "orphan": f" {job.client} {job.outlived}"}
    for what, step, batch in job.strikes:
        (job.faults / step).write_text(f"{what}{whom.get(what, '')} once {job.begun(batch)}")


def settings(job: Job) -> dict[str, str]:
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # More than there are cores, so that small batches have fewer tasks than their state has partitions.
        "spark.sql.shuffle.partitions": "4",
        "spark.executor.memory": "600m",
        "spark.eventLog.dir": job.events.as_uri(),
        **packages(job),
        **job.settings,
    }


def packages(job: Job) -> dict[str, str]:
    """Return the settings by which the executors find Python packages."""
    if job.archive:
        return {"spark.archives": f"{job.archive}#{UNPACKED}"}
    return {"spark.python.daemon.module": DAEMON, "spark.executorEnv.PYTHONPATH": f"{job.backends}:{Path.cwd()}"}


def require_packed(spark: SparkSession) -> None:
    """Raise unless the executors have twopc, the backends and their clients from the archive."""

    def found(_: object) -> list[str]:
        names = ("twopc", "twopc_kafka", "twopc_faulty", "pyarrow")
        return [str(importlib.import_module(name).__file__) for name in names]

    origins = spark.sparkContext.parallelize(range(2), 2).map(found).collect()
    assert all(f"/{UNPACKED}/lib/" in file for files in origins for file in files), origins


def java(job: Job) -> str:
    """With a matching archive of loaded classes, a JVM starts in half the time."""
    return f"-XX:SharedArchiveFile={job.classes}"


def source(spark: SparkSession, job: Job) -> DataFrame:
    """Return the input as a stream."""
    if PLANS[job.plan].source == "files":
        files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return files.json(f"{job.folder}/source")
    topic = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job.servers)
        .option("subscribe", job.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", -(-job.records // BATCHES))
        .load()
    )
    return topic.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("record")).select("record.*")


def run_stream(spark: SparkSession, job: Job) -> None:
    """Write the whole input, batch by batch."""
    plan = PLANS[job.plan]
    output = plan.compute(source(spark, job))
    checkpoint = f"{job.folder}/checkpoint"
    if not job.is_foreach_batch:
        writer = output.selectExpr(*TO_KAFKA).writeStream.format("twopc").options(sink="faulty-kafka", **kafka(job))
    else:
        columns = [*TO_KAFKA, UNFIT] if plan.has_bad else TO_KAFKA
        sinks: dict[str, Any] = {"kafka": Output(twopc.create_sink("faulty-kafka", kafka(job)), columns)}
        if job.writes_files:
            sinks["files"] = twopc.create_sink("faulty-files", files(job))
        if plan.has_bad:
            from tests.campaigns.spark import refusing  # other environments have Kafka and files alone

            sinks.update(refusing.outputs(job))
        write = foreach_batch(
            sinks,
            log=f"{job.folder}/log",
            on_loss="recompute" if plan.is_lost else "stop",
            bad_records=twopc.create_sink("faulty-files", files(job, "bad")) if plan.has_bad else None,
            checkpoint=checkpoint if job.api == CONNECT_FOREACH_BATCH else None,
        )
        stateless = not plan.drops_late

        def written(batch: DataFrame, number: int) -> None:
            observe(str(job.faults))
            write(batch.repartition(job.parallelism) if stateless else batch, number)

        writer = output.writeStream.foreachBatch(written)
    write_all(writer.outputMode(plan.output_mode), checkpoint)


def run_batches(spark: SparkSession, job: Job) -> None:
    """Write each file of the source in its own batch write, as a scheduler does that records what is done."""
    done = Path(job.folder) / "done"
    for number in range(int(done.read_text()) if done.exists() else 0, BATCHES):
        job.begun(number).parent.mkdir(exist_ok=True)
        job.begun(number).touch()
        records = spark.read.schema(SCHEMA).json(f"{job.folder}/source/{number:03d}.json")
        output = PLANS[job.plan].compute(records.repartition(job.parallelism))
        writer = output.selectExpr(*TO_KAFKA).write.format("twopc").options(sink="faulty-kafka", **kafka(job))
        writer.options(log=f"{job.folder}/log", batch_id=number).mode("append").save()
        done.with_suffix(".new").write_text(str(number + 1))
        done.with_suffix(".new").rename(done)


def kafka(job: Job) -> dict[str, str]:
    return {
        "bootstrap.servers": job.servers,
        "topic": job.target,
        "transactional.id.prefix": job.target,
        "faults": str(job.faults),
    }


def files(job: Job, folder: str = "parquet") -> dict[str, str]:
    return {"path": f"{job.folder}/{folder}", "format": "parquet", "faults": str(job.faults)}


RUN = {
    FOREACH_BATCH: run_stream,
    FORMAT_STREAM: run_stream,
    FORMAT_BATCH: run_batches,
    CONNECT: connect.serve,
    CONNECT_FOREACH_BATCH: connect.serve,
}
"""``api`` of a job → the function that runs it."""


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    plant(job)
    if PLANS[job.plan].is_lost:
        roll_back(control_of({"bootstrap_servers": [job.servers]}), job.target)  # what the last driver has left open
    job.events.mkdir(exist_ok=True)
    versions = {"spark": pyspark.__version__, "python": platform.python_version()}
    (Path(job.folder) / "versions.json").write_text(json.dumps(versions))
    if job.api == PIPELINE:
        pipeline.run(job, settings_of(settings(job), jars=job.jars, java=java(job)))
        return
    spark = session(job.master, settings(job), jars=job.jars, java=java(job))
    if job.archive:
        require_packed(spark)
    spark.dataSource.register(TwoPhaseCommitDataSource)
    RUN[job.api](spark, job)
    spark.stop()


if __name__ == "__main__":
    main()
