"""The driver that the storm kills: Kafka → Kafka and Parquet on one decision, on two executors, with speculation."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import twopc
from twopc.events import BatchFinished, Event, TransactionReplayed
from twopc.spark import foreach_batch


@dataclass(frozen=True)
class Settings:
    """What a driver is told, as JSON in its first argument."""

    servers: str
    jars: str
    folder: str
    source: str
    target: str
    transaction_timeout_ms: int
    to_the_end: bool = False


class Observer:
    """Writes down which batches were finished."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        """Called by the coordinator."""
        if isinstance(event, (BatchFinished, TransactionReplayed)):
            self._file.write(json.dumps({"event": type(event).__name__, **asdict(event)}) + "\n")
            self._file.flush()


def main() -> None:
    """Run until killed, or to the end of what the source has now."""
    settings = Settings(**json.loads(sys.argv[1]))
    twopc.register_observer(Observer(Path(settings.folder) / "events.jsonl"))
    spark = (
        SparkSession.builder.master("local-cluster[2,1,700]")
        .appName("storm")
        .config("spark.jars", settings.jars)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "700m")
        .config("spark.executor.memory", "600m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.speculation", "true")
        .config("spark.speculation.multiplier", "1.5")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.minTaskRuntime", "300ms")
        .config("spark.task.maxFailures", "16")
        .config("spark.deploy.maxExecutorRetries", "-1")
        # A paused executor is given up soon, and goes on as a zombie when it wakes.
        .config("spark.network.timeout", "20s")
        .config("spark.network.timeoutInterval", "5s")
        .config("spark.storage.blockManagerHeartbeatTimeoutMs", "20s")
        .config("spark.executor.heartbeatInterval", "2s")
        .getOrCreate()
    )
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.servers)
        .option("subscribe", settings.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 4000)
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
    )
    kafka = twopc.create_sink(
        "kafka",
        {
            "bootstrap.servers": settings.servers,
            "topic": settings.target,
            "transaction.timeout.ms": settings.transaction_timeout_ms,
            "message.timeout.ms": min(10_000, settings.transaction_timeout_ms),
        },
    )
    parquet = twopc.create_sink("files", {"path": f"{settings.folder}/parquet"})
    write = foreach_batch(
        {"kafka": (kafka, ["value AS key", "value"]), "parquet": parquet},
        log=f"{settings.folder}/log",
        stage=f"{settings.folder}/stage",
    )
    writer = source.writeStream.foreachBatch(write).option("checkpointLocation", f"{settings.folder}/checkpoint")
    query = (writer.trigger(availableNow=True) if settings.to_the_end else writer).start()
    query.awaitTermination()
    write.close()
    spark.stop()


if __name__ == "__main__":
    main()
