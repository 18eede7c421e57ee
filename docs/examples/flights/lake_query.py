"""The driver of the lakehouse demonstration: Kafka → enrichment → Kafka, an Iceberg table and a Delta table.

The part between the two rules is all that a user writes. The rest kills this process at a chosen moment.
"""

from __future__ import annotations

import json
import sys

from lake_tables import delta_options, iceberg_options
from observer import AROUND_THE_DECISION, Moments, Observer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its customary name
from pyspark.sql.streaming.query import StreamingQuery
from query import TO_KAFKA, enriched
from settings import TARGET, Settings, session

import twopc
from twopc.events import Event, TransactionCommitted
from twopc.spark import Output, foreach_batch

# ---------------------------------------------------------------------------------------------------------------------


def exactly_once(flights: DataFrame, settings: Settings) -> StreamingQuery:
    """Start the query that is demonstrated: three sinks, one decision."""
    kafka = twopc.create_sink(
        "kafka", {"bootstrap.servers": settings.servers, "topic": TARGET, "writer": settings.writer}
    )
    iceberg = twopc.create_sink("iceberg", iceberg_options(settings.folder))
    delta = twopc.create_sink("delta", delta_options(settings.folder))
    write = foreach_batch(
        {"kafka": Output(kafka, TO_KAFKA), "iceberg": iceberg, "delta": delta}, log=f"{settings.folder}/log"
    )
    return (
        flights.writeStream
        # Records carry the batch id only so that the demonstration can check that batches are whole.
        .foreachBatch(lambda batch, batch_id: write(batch.withColumn("batch", F.lit(batch_id)), batch_id))
        .option("checkpointLocation", f"{settings.folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )


# ---------------------------------------------------------------------------------------------------------------------


def _commits(event: Event) -> bool:
    return isinstance(event, TransactionCommitted) and not event.recovered


MOMENTS: Moments = {
    **AROUND_THE_DECISION,
    "after the commit in Kafka": lambda event: _commits(event) and event.sink == "kafka",
    "after the commit in one table": lambda event: _commits(event) and event.sink != "kafka",
}


def main() -> None:
    """Run the query until the source is read to its end."""
    settings = Settings(**json.loads(sys.argv[1]))
    twopc.register_observer(Observer(settings, MOMENTS))
    spark = session(settings)
    exactly_once(enriched(spark, settings), settings).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
