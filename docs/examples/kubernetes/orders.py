"""A query from Kafka to Kafka and S3, as a driver for Kubernetes. See docs/kubernetes.md."""

from __future__ import annotations

import os
from pathlib import Path

import twopc
from twopc.spark import ForeachBatch, Output, doctor, exiting, foreach_batch, until_stopped

SERVERS = os.environ.get("KAFKA_SERVERS", "kafka:9092")
BUCKET = os.environ.get("BUCKET", "orders")


def write() -> ForeachBatch:
    """Return the function that writes each batch. ``twopc doctor --query orders:write`` checks it."""
    orders = twopc.create_sink("kafka", {"bootstrap.servers": SERVERS, "topic": "orders"})
    archive = twopc.create_sink("files", {"path": f"s3://{BUCKET}/archive", "format": "parquet"})
    return foreach_batch(
        {"orders": Output(orders, ["key", "value"]), "archive": archive}, log=f"s3://{BUCKET}/twopc-log"
    )


def main() -> None:
    """Run the query until it fails or receives SIGTERM."""
    from pyspark.sql import SparkSession

    Path("/tmp/driver.pid").write_text(str(os.getpid()))  # noqa: S108  # for the SparkApplication's preStop
    with exiting(hold=os.environ.get("TWOPC_HOLD")):
        writer = write()
        doctor(writer).raise_for_failed()
        spark = SparkSession.builder.appName("orders").getOrCreate()
        events = spark.readStream.format("kafka").option("kafka.bootstrap.servers", SERVERS)
        query = (
            events.option("subscribe", "events")
            .load()
            .writeStream.foreachBatch(writer)
            .option("checkpointLocation", f"s3a://{BUCKET}/checkpoint")
            .start()
        )
        until_stopped(query)


if __name__ == "__main__":
    main()
