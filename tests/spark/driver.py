"""A Spark driver as a process of its own, for tests that kill it or lose its executors.

``python -m tests.spark.driver '{"scene": NAME, "folder": ..., ...}'``, as ``driver`` starts it. The scenes:

- ``counts``: a stateful query into Kafka, PostgreSQL and files. ``kills`` maps a batch to the event at which the driver
  kills itself and its process group, once per batch. The next start continues from there. Events of the coordinator are
  appended to ``events.jsonl``.
- ``routed``: valid rows into Kafka, the others into files. ``kills`` as above.
- ``data-source``: a query into Kafka by ``format("twopc")``. Every fault left in the folder ``faults`` kills the driver
  and its process group.
- ``exiting``: a query into files, by ``foreach_batch`` or ``format("twopc")``, that ends with an exit code.
- ``files``: a query into files, with its log wherever ``log`` says, by ``foreach_batch`` or ``format("twopc")``. Faults
  as above.
- ``cluster``: two executors, each a process of its own. Three runs share one session, because executors take long to
  start. What was seen is written to ``seen.json``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import twopc
from tests.support.kills import kill_all_of
from tests.support.pages import ROOT
from tests.support.spark_session import session, write_all
from twopc.events import BatchFinished, Event, PhaseEntered, TransactionAborted, TransactionCommitted
from twopc.spark import Output, TwoPhaseCommitDataSource, exiting, foreach_batch, until_stopped
from twopc_files.sink import FileSink, FileTransaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from twopc import Committable

BACKENDS = Path(__file__).with_name("backends")
"""Backends with faults, for the processes that find them by entry point."""

FILES = "faulty-files"

HELD_S = 60


@contextlib.contextmanager
def driver(job: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Iterator[subprocess.Popen[bytes]]:
    """Start a driver, and end it and everything that it started. Its output is appended to ``driver.log``."""
    with (Path(job["folder"]) / "driver.log").open("ab") as log:
        command = [sys.executable, "-m", "tests.spark.driver", json.dumps(job)]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment, start_new_session=True)
        try:
            yield process
        finally:
            kill_all_of(process)


# A query that is killed. -------------------------------------------------------------------------------------------


class HeldFileSink(FileSink):
    """A sink whose tasks wait before they pre-commit, as long as the folder ``hold`` exists."""

    def __init__(self, options: dict[str, str], hold: Path) -> None:
        super().__init__(options)
        self.hold = hold

    def pre_commit(self, transaction: FileTransaction) -> Committable:
        deadline = time.monotonic() + HELD_S
        while self.hold.exists() and time.monotonic() < deadline:
            (self.hold / "reached").touch()
            time.sleep(0.02)
        return super().pre_commit(transaction)


class Killer:
    """Records every event, and kills the driver at the events that it was given."""

    def __init__(self, folder: Path, kills: dict[str, str]) -> None:
        self.folder = folder
        self.kills = kills

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        told = describe(event)
        with (self.folder / "events.jsonl").open("a") as file:
            file.write(json.dumps(told) + "\n")
        batch = str(told.get("batch"))
        due = self.kills.get(batch) == told["event"]
        if due and not (done := self.folder / f"killed-in-{batch}").exists():
            done.touch()
            if told["event"] == "pre-committing":
                (self.folder / "hold").mkdir()
                threading.Thread(target=self.kill_while_tasks_write).start()
            else:
                kill()

    def kill_while_tasks_write(self) -> None:
        while not (self.folder / "hold" / "reached").exists():
            time.sleep(0.02)
        kill()


def kill() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def describe(event: Event) -> dict[str, Any]:
    match event:
        case PhaseEntered():
            return {"event": event.phase.value, "batch": event.batch_id}
        case TransactionCommitted():
            return {
                "event": "committed",
                "batch": event.batch_id,
                "sink": event.sink,
                "transaction": event.committable.transaction_id,
                "recovered": event.recovered,
            }
        case TransactionAborted():
            return {"event": "aborted", "sink": event.sink, "recovered": event.recovered}
        case BatchFinished():
            return {"event": "finished", "batch": event.batch_id, "already_decided": event.already_decided}
        case _:
            return {"event": type(event).__name__}


def count_events(
    spark: SparkSession, folder: Path, kafka: dict[str, str] | None = None, postgres: dict[str, str] | None = None
) -> None:
    """Count events by user and minute, with a watermark of one minute. Updates go to files, and to Kafka and PostgreSQL
    if given."""
    from pyspark.sql import functions as F  # noqa: N812  # its customary name

    shutil.rmtree(folder / "hold", ignore_errors=True)
    events = spark.readStream.schema("at TIMESTAMP, user STRING").option("maxFilesPerTrigger", 1)
    counts = (
        events.json(str(folder / "source"))
        .withWatermark("at", "1 minute")
        .groupBy("user", F.window("at", "1 minute").alias("minute"))
        .count()
        .selectExpr("user", "CAST(minute.start AS STRING) AS minute", "count")
    )
    sinks: dict[str, Any] = {}
    if kafka is not None:
        sinks["orders"] = Output(twopc.create_sink("kafka", kafka), ["user AS key", "to_json(struct(*)) AS value"])
    if postgres is not None:
        sinks["counts"] = twopc.create_sink("postgres", postgres)
    sinks["archive"] = HeldFileSink({"path": str(folder / "archive"), "format": "parquet"}, folder / "hold")
    write = foreach_batch(sinks, log=(folder / "log").as_uri())
    write_all(counts.writeStream.foreachBatch(write).outputMode("update"), folder / "checkpoint")


def run_counts(job: dict[str, Any]) -> None:
    folder = Path(job["folder"])
    twopc.register_observer(Killer(folder, job["kills"]))
    spark = session()
    count_events(spark, folder, job["kafka"], job["postgres"])


def run_routed(job: dict[str, Any]) -> None:
    folder = Path(job["folder"])
    twopc.register_observer(Killer(folder, job["kills"]))
    shutil.rmtree(folder / "hold", ignore_errors=True)
    dead = HeldFileSink({"path": str(folder / "archive"), "format": "json"}, folder / "hold")
    orders = twopc.create_sink("kafka", job["kafka"])
    outputs = {
        "orders": Output(orders, ["CAST(id AS STRING) AS value"], "name = 'valid'"),
        "dead": Output(dead, where="name != 'valid'"),
    }
    rows = session().readStream.schema("id LONG, name STRING").option("maxFilesPerTrigger", 1)
    write = foreach_batch(outputs, log=str(folder / "log"), unrouted="refuse", on_loss="recompute")
    write_all(rows.json(str(folder / "source")).writeStream.foreachBatch(write), folder / "checkpoint")


# A query by format("twopc"). ---------------------------------------------------------------------------------------


def write_distinct(spark: SparkSession, folder: Path, options: dict[str, str]) -> None:
    """Write each value once, as far as the state knows it."""
    spark.dataSource.register(TwoPhaseCommitDataSource)
    records = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 1).json(str(folder / "source"))
    writer = records.dropDuplicates(["value"]).writeStream.format("twopc").options(**options)
    write_all(writer, folder / "checkpoint")


def run_data_source(job: dict[str, Any]) -> None:
    folder = Path(job["folder"])
    for fault in folder.glob("faults/*"):
        fault.write_text(f"kill {os.getpgrp()}")
    spark = session(settings={"spark.executorEnv.PYTHONPATH": str(BACKENDS)})
    write_distinct(spark, folder, job["options"])


# A query that ends with an exit code. ------------------------------------------------------------------------------


def run_exiting(job: dict[str, Any]) -> None:
    folder = Path(job["folder"])
    with exiting():
        spark = session()
        options = {"path": str(folder / "archive"), "format": "json", "faults": str(folder / "faults")}
        log = str(folder / "log")
        writer = spark.readStream.schema("value STRING").json(str(folder / "source")).writeStream
        if job["mode"] == "foreach_batch":
            writer = writer.foreachBatch(foreach_batch(twopc.create_sink("faulty-files", options), log=log))
        else:
            spark.dataSource.register(TwoPhaseCommitDataSource)
            writer = writer.format("twopc").options(sink="faulty-files", log=log, **options)
        if job["ends"]:
            writer = writer.trigger(availableNow=True)
        until_stopped(writer.option("checkpointLocation", str(folder / "checkpoint")).start())


def run_files(job: dict[str, Any]) -> None:
    folder = Path(job["folder"])
    for fault in folder.glob("faults/*"):
        fault.write_text(f"kill {os.getpgrp()}")
    spark = session(settings={"spark.executorEnv.PYTHONPATH": str(BACKENDS)})
    source = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 1)
    writer = source.json(str(folder / "source")).repartition(2).writeStream
    options = {"path": job["path"], "format": "json", "faults": str(folder / "faults")}
    if job["way"] == "foreach_batch":
        sys.path.insert(0, str(BACKENDS))
        writer = writer.foreachBatch(foreach_batch({"archive": twopc.create_sink(FILES, options)}, log=job["log"]))
    else:
        spark.dataSource.register(TwoPhaseCommitDataSource)
        writer = writer.format("twopc").options(sink=FILES, log=job["log"], **options)
    write_all(writer, folder / "checkpoint")


# Two executors. ----------------------------------------------------------------------------------------------------


def write_shuffled(spark: SparkSession, folder: Path, sinks: dict[str, Any], partitions: int) -> None:
    """Write two files per batch, from two executors, through a shuffle."""
    source = spark.readStream.schema("id LONG, name STRING").option("maxFilesPerTrigger", 2)
    write = foreach_batch(sinks, log=str(folder / "log"))

    def shuffled(batch: DataFrame, number: int) -> None:
        write(batch.repartition(partitions, "id"), number)

    write_all(source.json(str(folder / "source")).writeStream.foreachBatch(shuffled), folder / "checkpoint")


def failure(spark: SparkSession, folder: Path, sinks: dict[str, Any], partitions: int = 4) -> str:
    """Return the error of a query that fails."""
    from pyspark.errors import StreamingQueryException

    try:
        write_shuffled(spark, folder, sinks, partitions)
    except StreamingQueryException as error:
        return str(error)
    return "it did not fail"


def most_attempts(spark: SparkSession) -> int:
    """Return how often the stage ran that ran most often."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    jobs = context.statusStore().jobsList(None)
    stages = [jobs.apply(number).stageIds() for number in range(jobs.size())]
    ids = [of_job.apply(number) for of_job in stages for number in range(of_job.size())]
    return 1 + max(int(context.statusStore().lastStageAttempt(stage).attemptId()) for stage in ids)


def run_cluster(job: dict[str, Any]) -> None:
    folder = Path(job["folder"])
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "600m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.task.maxFailures": "2",
        # A daemon that has done its imports: workers that die are back at once.
        "spark.python.daemon.module": "tests.campaigns.storm.daemon",
        "spark.executorEnv.PYTHONPATH": str(Path.cwd()),
    }
    spark = session("local-cluster[2,1,600]", settings, log_level="OFF")
    sys.path.insert(0, str(BACKENDS))  # of this process only
    faults = folder / "faults"
    faults.mkdir()
    archive = {"path": str(folder / "archive"), "format": "json", "faults": str(faults)}
    sinks = {
        "archive": twopc.create_sink("faulty-files", archive),
        "orders": Output(twopc.create_sink("kafka", job["kafka"]), ["CAST(id AS STRING) AS value"]),
    }
    seen: dict[str, Any] = {"missing": failure(spark, folder, sinks)}

    spark.sparkContext.environment["PYTHONPATH"] = f"{BACKENDS}:{Path.cwd()}"
    # Now the backend is on the executors, too. One executor is lost after a vote, with its part of the shuffle. In the
    # second batch a sink vetoes, so that the batch is repeated, with fewer partitions.
    (faults / "pre_commit").write_text("lose")
    (faults / "seal").write_text(f"raise once {folder / 'checkpoint' / 'offsets' / '1'}")
    seen["vetoed"] = failure(spark, folder, sinks)
    seen["stage_attempts"] = most_attempts(spark)
    write_shuffled(spark, folder, sinks, partitions=1)
    seen["faults_left"] = [file.name for file in faults.iterdir()]
    (folder / "seen.json").write_text(json.dumps(seen))


SCENES = {
    "counts": run_counts,
    "routed": run_routed,
    "data-source": run_data_source,
    "exiting": run_exiting,
    "files": run_files,
    "cluster": run_cluster,
}

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    SCENES[given["scene"]](given)
