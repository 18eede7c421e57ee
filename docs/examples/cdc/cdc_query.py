"""The driver: changes of two tables → copies in Iceberg, Delta and PostgreSQL, six sinks in one decision.

The part between the two rules is all that a user writes. The rest kills this process at a chosen moment.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from bank import TABLES
from capture import TOPICS
from observer import AROUND_THE_DECISION, Moments, Observer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from settings import Settings, session

import twopc
from twopc.events import Event, TransactionCommitted
from twopc.spark import Output, debezium, foreach_batch


@dataclass(frozen=True)
class CdcSettings(Settings):
    """A driver's settings. ``mirror`` is the connection string of the second PostgreSQL."""

    mirror: str = ""


# ---------------------------------------------------------------------------------------------------------------------


def options(copy: str, table: str, settings: CdcSettings) -> dict[str, str]:
    """Return the options of a sink."""
    of_copy = {
        "iceberg": {
            "table": f"bank.{table}",
            "catalog.uri": f"sqlite:///{settings.folder}/catalog.db",
            "catalog.warehouse": f"file://{settings.folder}/iceberg",
        },
        "delta": {"path": f"{settings.folder}/delta/{table}"},
        "postgres": {"conninfo": settings.mirror, "table": table},
    }
    return {**of_copy[copy], "upsert_by": "id"}


def changes(batch: DataFrame, table: str) -> DataFrame:
    """Return the changes of one table in a batch of Kafka records."""
    of_table = batch.where(f"topic = '{TOPICS[table]}'")
    return debezium(of_table, key=["id"], schema=TABLES[table], replace_null_with_default=False)


def exactly_once(spark: SparkSession, settings: CdcSettings) -> StreamingQuery:
    """Start the query that is demonstrated: two tables, three copies of each, one decision."""
    outputs = {
        f"{copy}-{table}": Output(
            twopc.create_sink(copy, options(copy, table, settings)),
            [column.split()[0] for column in schema.split(", ")],
            where=f"_topic = '{TOPICS[table]}'",
            delete_where="_op = 'd'",
            latest_by="_order",
        )
        for table, schema in TABLES.items()
        for copy in ("iceberg", "delta", "postgres")
    }
    write = foreach_batch(outputs, log=f"{settings.folder}/log")

    def apply(batch: DataFrame, batch_id: int) -> None:
        accounts, transfers = changes(batch, "accounts"), changes(batch, "transfers")
        write(accounts.unionByName(transfers, allowMissingColumns=True), batch_id)

    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.servers)
        .option("subscribe", ",".join(TOPICS.values()))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings.records_per_batch)
        .load()
    )
    writer = records.writeStream.foreachBatch(apply).option("checkpointLocation", f"{settings.folder}/checkpoint")
    # A driver that is to be killed waits for changes. The last one ends when it has applied all changes.
    return (writer if settings.die_at else writer.trigger(availableNow=True)).start()


# ---------------------------------------------------------------------------------------------------------------------


def _commits(event: Event, copy: str) -> bool:
    return isinstance(event, TransactionCommitted) and not event.recovered and event.sink.startswith(copy)


MOMENTS: Moments = {
    **AROUND_THE_DECISION,
    "after a commit in Iceberg": lambda event: _commits(event, "iceberg"),
    "after a commit in PostgreSQL": lambda event: _commits(event, "postgres"),
}


def main() -> None:
    """Run the query until all changes are applied."""
    settings = CdcSettings(**json.loads(sys.argv[1]))
    twopc.register_observer(Observer(settings, MOMENTS))
    spark = session(settings)
    exactly_once(spark, settings).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
