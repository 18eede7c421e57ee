"""A query into four targets, each of which asks for a secret: run as a process of its own, which tells all it can.

It reads from standard input what to do: ``{"folder": ..., "sinks": {"orders": ["kafka", {}], ...}, "wrong": {...}}``.

It runs one batch; then one that a target refuses in a task; then, for each sink in ``wrong``, a start with that one in
the place of the right one. ``logging`` is at DEBUG, here and (by ``sitecustomize``) in the tasks.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import twopc
from tests.support.spark_session import session, write_all
from twopc.events import Event
from twopc.spark import Output, foreach_batch

logger = logging.getLogger("driver")

RECORD = ["CAST(id AS STRING) AS key", "to_json(struct(*)) AS value"]


class Telling:
    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        logger.info("event: %r", event)


def run(spark: SparkSession, folder: Path, described: dict[str, Any]) -> None:
    sinks: dict[str, Any] = {name: twopc.create_sink(*sink) for name, sink in described.items()}
    logger.info("sinks: %r", sinks)
    writer = foreach_batch(
        {name: Output(sink, RECORD) if described[name][0] == "kafka" else sink for name, sink in sinks.items()},
        log=(folder / "log").as_uri(),
    )
    logger.info("writer: %r", writer)
    records = spark.readStream.schema("id LONG").json(str(folder / "source"))
    write_all(records.writeStream.foreachBatch(writer), folder / "checkpoint")
    writer.close()


def put(folder: Path, name: str, number: int) -> None:
    (folder / "source").mkdir(exist_ok=True)
    aside = folder / name
    aside.write_text(json.dumps({"id": number}))
    aside.rename(folder / "source" / name)


def main() -> None:
    job = json.load(sys.stdin)
    folder, sinks = Path(job["folder"]), job["sinks"]
    twopc.register_observer(Telling())
    events = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": (folder / "spark-events").as_uri()}
    spark = session(settings=events, log_level="")
    put(folder, "0.json", 1)
    run(spark, folder, sinks)
    put(folder, "1.json", -1)  # the table's constraint refuses it, in a task
    for wrong in ({}, *({name: sink} for name, sink in job["wrong"].items())):
        try:
            run(spark, folder, sinks | wrong)
        except StreamingQueryException:
            logger.exception("as expected of %s", sorted(wrong) or "the record")
        else:
            raise AssertionError(f"{sorted(wrong)} did not fail")
    spark.stop()


if __name__ == "__main__":
    main()
