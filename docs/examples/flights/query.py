"""The driver of the demonstration: Kafka → enrichment → Kafka and Parquet, on one decision.

The part between the two rules is all that a user writes. The rest kills this process at a chosen moment.
"""

from __future__ import annotations

import json
import sys

from flights import airlines
from observer import AROUND_THE_DECISION, Moments, Observer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its customary name
from pyspark.sql.streaming.query import StreamingQuery
from settings import BASELINE, SOURCE, TARGET, Settings, session

import twopc
from twopc.events import TransactionCommitted
from twopc.spark import Output, foreach_batch

FLIGHT = (
    "id INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, dep_delay INT, arr_delay INT,"
    " distance INT"
)
TO_KAFKA = ["CAST(id AS STRING) AS key", "to_json(struct(*)) AS value"]


# ---------------------------------------------------------------------------------------------------------------------


def enriched(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the flights with the airline's name and the minutes made up in the air."""
    names = spark.createDataFrame(list(airlines().items()), "carrier STRING, airline STRING")
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.servers)
        .option("subscribe", SOURCE)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings.records_per_batch)
        .load()
    )
    flights = source.select(F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight")).select("flight.*")
    return flights.join(F.broadcast(names), "carrier").withColumn("made_up_min", F.expr("dep_delay - arr_delay"))


def exactly_once(flights: DataFrame, settings: Settings) -> StreamingQuery:
    """Start the query that is demonstrated: two sinks, one decision."""
    kafka = twopc.create_sink(
        "kafka", {"bootstrap.servers": settings.servers, "topic": TARGET, "writer": settings.writer}
    )
    parquet = twopc.create_sink("files", {"path": f"{settings.folder}/parquet", "format": "parquet"})
    write = foreach_batch({"kafka": Output(kafka, TO_KAFKA), "parquet": parquet}, log=f"{settings.folder}/log")
    return (
        flights.writeStream
        # Records carry the batch id only so that the demonstration can detect those that are visible too early.
        .foreachBatch(lambda batch, batch_id: write(batch.withColumn("batch", F.lit(batch_id)), batch_id))
        .option("checkpointLocation", f"{settings.folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )


def at_least_once(flights: DataFrame, settings: Settings) -> StreamingQuery:
    """Start the same query with Spark's own Kafka sink."""
    return (
        flights.selectExpr(*TO_KAFKA)
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.servers)
        .option("topic", BASELINE)
        .option("checkpointLocation", f"{settings.folder}/baseline-checkpoint")
        .trigger(availableNow=True)
        .start()
    )


# ---------------------------------------------------------------------------------------------------------------------

MOMENTS: Moments = {
    **AROUND_THE_DECISION,
    "in the middle of phase two": lambda event: isinstance(event, TransactionCommitted) and not event.recovered,
}


def main() -> None:
    """Run both queries until the source is read to its end, side by side if this driver is to be killed."""
    settings = Settings(**json.loads(sys.argv[1]))
    twopc.register_observer(Observer(settings, MOMENTS))
    spark = session(settings)
    flights = enriched(spark, settings)
    query = exactly_once(flights, settings)
    if settings.die_at is None:
        query.awaitTermination()  # the last driver runs one query at a time, so that each is timed alone
    at_least_once(flights, settings).awaitTermination()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
