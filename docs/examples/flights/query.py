"""The driver of the demonstration: Kafka → enrichment → Kafka and Parquet, on one decision.

The part between the two rules is all that a user writes. The rest kills this process at a chosen moment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flights import airlines
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its customary name
from pyspark.sql.streaming.query import StreamingQuery

import twopc
from twopc.events import BatchFinished, Event, PhaseEntered, TransactionAborted, TransactionCommitted
from twopc.phases import Phase
from twopc.spark import foreach_batch

FLIGHT = (
    "id INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, dep_delay INT, arr_delay INT,"
    " distance INT"
)
TO_KAFKA = ["CAST(id AS STRING) AS key", "to_json(struct(*)) AS value"]


@dataclass(frozen=True)
class Settings:
    """What a driver is told, as JSON in its first argument."""

    servers: str
    jars: str
    folder: str
    source: str
    target: str
    baseline: str
    records_per_batch: int
    writer: str
    die_at: str | None = None


# ---------------------------------------------------------------------------------------------------------------------


def enriched(spark: SparkSession, settings: Settings) -> DataFrame:
    """Flights with the airline's name and the minutes made up in the air."""
    names = spark.createDataFrame(list(airlines().items()), "carrier STRING, airline STRING")
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.servers)
        .option("subscribe", settings.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings.records_per_batch)
        .load()
    )
    flights = source.select(F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight")).select("flight.*")
    return flights.join(F.broadcast(names), "carrier").withColumn("made_up_min", F.expr("dep_delay - arr_delay"))


def exactly_once(flights: DataFrame, settings: Settings) -> StreamingQuery:
    """The query that this is about: two sinks, one decision."""
    kafka = twopc.create_sink(
        "kafka", {"bootstrap.servers": settings.servers, "topic": settings.target, "writer": settings.writer}
    )
    parquet = twopc.create_sink("files", {"path": f"{settings.folder}/parquet", "format": "parquet"})
    write = foreach_batch({"kafka": (kafka, TO_KAFKA), "parquet": parquet}, log=f"{settings.folder}/log")
    return (
        flights.writeStream
        # The batch's number goes into the records only so that the demonstration can tell what is visible too early.
        .foreachBatch(lambda batch, batch_id: write(batch.withColumn("batch", F.lit(batch_id)), batch_id))
        .option("checkpointLocation", f"{settings.folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )


def at_least_once(flights: DataFrame, settings: Settings) -> StreamingQuery:
    """The same with Spark's own Kafka sink."""
    return (
        flights.selectExpr(*TO_KAFKA)
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.servers)
        .option("topic", settings.baseline)
        .option("checkpointLocation", f"{settings.folder}/baseline-checkpoint")
        .trigger(availableNow=True)
        .start()
    )


# ---------------------------------------------------------------------------------------------------------------------

MOMENTS: dict[str, Callable[[Any], bool]] = {
    "between pre-commit and decision": lambda event: event == PhaseEntered(Phase.DECIDING, event.batch_id, event.owner),
    "right after the decision": lambda event: event == PhaseEntered(Phase.COMMITTING, event.batch_id, event.owner),
    "in the middle of phase two": lambda event: isinstance(event, TransactionCommitted) and not event.recovered,
}
EXPOSED_S = 0.5
"""How long everything is held before the kill, so that the watchers have time to see what they must not."""


class Observer:
    """Writes down what happened, and kills this driver with its JVM and workers at the moment asked for."""

    def __init__(self, settings: Settings) -> None:
        self._is_moment = MOMENTS.get(settings.die_at or "", lambda _: False)
        self._events = (Path(settings.folder) / "events.jsonl").open("a", encoding="utf-8")

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        """Called by the coordinator for all that happens."""
        if isinstance(event, (BatchFinished, TransactionCommitted, TransactionAborted)):
            self._write(type(event).__name__, asdict(event))
        if getattr(event, "batch_id", None) is not None and self._is_moment(event):
            time.sleep(EXPOSED_S)
            os.killpg(os.getpgrp(), signal.SIGKILL)

    def _write(self, kind: str, event: dict[str, object]) -> None:
        self._events.write(json.dumps({"event": kind, **event}) + "\n")
        self._events.flush()


def main() -> None:
    """Run both queries, side by side where this driver is to be killed, until the source is read to its end."""
    settings = Settings(**json.loads(sys.argv[1]))
    twopc.register_observer(Observer(settings))
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.jars", settings.jars)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        # It is killed after seconds: what matters is how soon it runs.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    flights = enriched(spark, settings)
    query = exactly_once(flights, settings)
    if settings.die_at is None:
        query.awaitTermination()  # the last driver has one after the other, so that times are of one query alone
    at_least_once(flights, settings).awaitTermination()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
