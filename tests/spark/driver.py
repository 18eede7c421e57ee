"""A driver to be killed: a stateful query into Kafka, PostgreSQL and files, run as a process of its own.

``python -m tests.spark.driver '{"folder": ..., "kafka": {...}, "postgres": {...}, "kills": {"1": "deciding", ...}}'``

``kills`` names, for a batch, the event at which the driver kills itself and all that it started, once for each batch.
The next start goes on from there. What the coordinator tells is appended to ``events.jsonl``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import twopc
from tests.support.spark_session import session, write_all
from twopc.events import BatchFinished, Event, PhaseEntered, TransactionAborted, TransactionCommitted
from twopc.spark import foreach_batch
from twopc_files.sink import FileSink, FileTransaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twopc import Committable

HELD_S = 60


class HeldFileSink(FileSink):
    """Its tasks wait before they pre-commit, for as long as there is a folder to wait for."""

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
    """Records every event, and kills the driver at those it was told."""

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


def run_query(
    spark: SparkSession, folder: Path, kafka: dict[str, str] | None = None, postgres: dict[str, str] | None = None
) -> None:
    """Count events by user and minute, with a watermark of one minute; updates go to Kafka and PostgreSQL, if given,
    and files."""
    shutil.rmtree(folder / "hold", ignore_errors=True)
    events = spark.readStream.schema("at TIMESTAMP, user STRING").option("maxFilesPerTrigger", 1)
    counts = (
        events.json(str(folder / "source"))
        .withWatermark("at", "1 minute")
        .groupBy("user", _minute())
        .count()
        .selectExpr("user", "CAST(minute.start AS STRING) AS minute", "count")
    )
    sinks: dict[str, Any] = {}
    if kafka is not None:
        sinks["orders"] = (twopc.create_sink("kafka", kafka), ["user AS key", "to_json(struct(*)) AS value"])
    if postgres is not None:
        sinks["counts"] = twopc.create_sink("postgres", postgres)
    sinks["archive"] = HeldFileSink({"path": str(folder / "archive"), "format": "parquet"}, folder / "hold")
    writer = counts.writeStream.foreachBatch(foreach_batch(sinks, log=(folder / "log").as_uri())).outputMode("update")
    write_all(writer, folder / "checkpoint")


def _minute() -> Any:
    from pyspark.sql import functions as F  # noqa: N812  # its customary name

    return F.window("at", "1 minute").alias("minute")


def main() -> None:
    job = json.loads(sys.argv[1])
    folder = Path(job["folder"])
    twopc.register_observer(Killer(folder, job["kills"]))
    run_query(session(), folder, job["kafka"], job["postgres"])


if __name__ == "__main__":
    main()
