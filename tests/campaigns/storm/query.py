"""The driver that the storm kills: Kafka → Kafka and Parquet, or Kafka and two lake tables, in one decision, on two
executors."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.readwriter import DataStreamWriter

import twopc
from tests.campaigns.model.recording import record
from tests.support.kills import DiesIfWished
from tests.support.spark_session import session
from twopc.errors import InDoubt, RoundAborted, TwoPhaseCommitError
from twopc.events import Event, TransactionReplayed
from twopc.spark import ForeachBatch, Output, foreach_batch

REPLAYED = TransactionReplayed.__name__

TARGETS = 3
"""How many topics a query with batch markers writes to."""

DAEMON = "tests.campaigns.storm.daemon"
RUN_AGAIN = (RoundAborted, InDoubt)
"""Errors after which the query starts again in the same driver, as ``twopc.errors`` says. Others end the driver."""


@dataclass(frozen=True)
class Settings:
    """A driver's settings, passed as JSON in its first argument.

    Attributes:
        without_timeout: whether the brokers grant transactions without a timeout and the sink requires them.
        catalog: the URI of the Iceberg catalog. If it is empty, the query writes to Parquet files and to no lake table.
        markers: the topic of the batch markers. If it is empty, there are none, and one target topic instead of three.
        classes: an archive of the JVM's loaded classes, with which it starts in half the time.
        to_the_end: whether to end when everything that the source has now is written.
        is_rehearsal: whether to create that archive.
    """

    servers: str
    jars: str
    folder: str
    source: str
    target: str
    transaction_timeout_ms: int
    without_timeout: bool
    commit_margin_ms: int
    writer: str
    catalog: str
    markers: str
    classes: str
    to_the_end: bool = False
    is_rehearsal: bool = False

    @property
    def targets(self) -> list[str]:
        """The topics that the query writes to."""
        return [f"{self.target}-{number}" for number in range(TARGETS)] if self.markers else [self.target]

    @property
    def steps(self) -> Path:
        """The file of what the query does."""
        return Path(self.folder) / "steps.jsonl"


def wish(settings: Settings) -> Path:
    """Return the file that contains the moment at which the next driver to reach it kills itself."""
    return Path(settings.folder) / "die-at"


class Notes:
    """An observer that records replays, and the errors that ``Noted`` sees."""

    def __init__(self, settings: Settings) -> None:
        self._file = (Path(settings.folder) / "events.jsonl").open("a", encoding="utf-8")

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        """Handle an event of the coordinator."""
        if isinstance(event, TransactionReplayed):
            self.note(REPLAYED, event.lost.transaction_id)

    def note(self, kind: str, what: str) -> None:
        """Write one line that survives a later kill."""
        self._file.write(json.dumps({"event": kind, "what": what}) + "\n")
        self._file.flush()


class Noted:
    """Writes batches with ``write``, and records the names of their errors."""

    def __init__(self, write: ForeachBatch, notes: Notes) -> None:
        self._write, self._notes = write, notes
        self.error: TwoPhaseCommitError | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write a batch. Spark calls this."""
        self.error = None
        try:
            # For readers of tables, which see whether a batch is whole.
            self._write(batch.withColumn("batch", functions.lit(batch_id).cast("long")), batch_id)
        except TwoPhaseCommitError as error:
            self.error = error
            self._notes.note("error", type(error).__name__)
            raise


def main() -> None:
    """Run until killed, or to the current end of the source."""
    settings = Settings(**json.loads(sys.argv[1]))
    notes = Notes(settings)
    twopc.register_observer(notes)  # before the next one, so that a replay is recorded before the process ends
    twopc.register_observer(DiesIfWished(wish(settings)))
    record(settings.steps)
    spark = session_of(settings)
    start_python(spark)
    write = exactly_once(settings)
    noted = Noted(write, notes)
    writer = source(spark, settings).writeStream.foreachBatch(noted)
    writer = writer.option("checkpointLocation", f"{settings.folder}/checkpoint")
    run(writer.trigger(availableNow=True) if settings.to_the_end else writer, noted)
    write.close()
    spark.stop()
    end_jvm()


def run(writer: DataStreamWriter, noted: Noted) -> None:
    """Run the query, and run it again as long as its error permits that."""
    while True:
        try:
            writer.start().awaitTermination()
            return
        except StreamingQueryException as error:
            print(error, file=sys.stderr, flush=True)  # the driver's log
            if not isinstance(noted.error, RUN_AGAIN):
                raise


def end_jvm() -> None:
    """Let the JVM exit normally, so that it writes its archive."""
    gateway = SparkContext._gateway  # there is no other way to wait for the JVM
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def session_of(settings: Settings) -> SparkSession:
    """Start Spark with two executors, each in its own JVM, that start fast and are given up fast."""
    archive = "-XX:ArchiveClassesAtExit" if settings.is_rehearsal else "-XX:SharedArchiveFile"
    master = "local[1]" if settings.is_rehearsal else "local-cluster[2,1,700]"
    of_storm = {
        "spark.app.name": "storm",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "700m",
        "spark.executor.memory": "600m",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.daemon.module": DAEMON,
        # The first batch's transactions must not wait for executors that are still starting.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.task.maxFailures": "16",
        "spark.deploy.maxExecutorRetries": "-1",
        # A paused executor is given up soon, and continues as a zombie when it wakes.
        "spark.network.timeout": "20s",
        "spark.network.timeoutInterval": "5s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": "20s",
        "spark.executor.heartbeatInterval": "2s",
    }
    return session(master, of_storm, jars=settings.jars, java=f"{archive}={settings.classes}", log_level="")


def start_python(spark: SparkSession) -> None:
    """Start Python on both executors before a transaction has to wait for it."""
    spark.range(0, 2, numPartitions=2).mapInArrow(lambda batches: batches, "id long").collect()


def source(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the producer's records as a stream of small batches."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.servers)
        .option("subscribe", settings.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 4000)
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
    )


def exactly_once(settings: Settings) -> ForeachBatch:
    """Return the writer of all sinks, with replay copies."""
    kafka = twopc.create_sink(
        "kafka",
        {
            "bootstrap.servers": settings.servers,
            **({"batch.markers": settings.markers} if settings.markers else {"topic": settings.target}),
            "transaction.timeout.ms": settings.transaction_timeout_ms,
            "commit.margin.ms": settings.commit_margin_ms,
            "writer": settings.writer,
            **({"two.phase.commit": "require"} if settings.without_timeout else {}),
        },
    )
    return foreach_batch(
        {"kafka": Output(kafka, ["value AS key", "value", *more_columns(settings)]), **beside_kafka(settings)},
        log=f"{settings.folder}/log",
        on_loss=twopc.ReplayCopies(f"{settings.folder}/stage"),
    )


def more_columns(settings: Settings) -> list[str]:
    """Return the columns that name each record's topic, and its batch independently of twopc."""
    if not settings.markers:
        return []
    header = "named_struct('key', 'batch', 'value', CAST(CAST(batch AS STRING) AS BINARY))"
    return [f"concat('{settings.target}-', CAST(value AS BIGINT) % {TARGETS}) AS topic", f"array({header}) AS headers"]


def beside_kafka(settings: Settings) -> dict[str, twopc.TwoPhaseCommitSink[Any]]:
    if not settings.catalog:
        return {"parquet": twopc.create_sink("files", {"path": f"{settings.folder}/parquet"})}
    from tests.campaigns.storm.lake import tables  # which imports this module

    return {name: table.sink() for name, table in tables(settings).items()}


if __name__ == "__main__":
    main()
