"""A Spark query in place of the loop of ``driver``: ``foreachBatch`` on a local Spark. Its tasks run on the same host.

Spark's source numbers the batches and their tasks. The records are made from these, so they are those of the loop. All
attempts of a run of a batch have one name, since Spark does not tell which one has won.
"""

import os
import traceback

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.readwriter import DataStreamWriter

import twopc
from tests.campaigns.jepsen.driver import drive
from tests.campaigns.jepsen.workload import FILLER, TASKS, Settings, new_attempt
from tests.campaigns.storm.query import DAEMON, RUN_AGAIN
from tests.support.spark_home import set_java_and_python
from tests.support.spark_session import session
from twopc.errors import TwoPhaseCommitError
from twopc.spark import foreach_batch

LOOK_S = 0.2
"""How often the driver looks whether it is to stop."""


class Batches:
    """What ``foreachBatch`` calls.

    Attributes:
        done: how many batches this process has run.
        error: of the newest batch.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._history = settings, settings.history()
        self._write = foreach_batch(
            settings.sinks(),
            f"{settings.folder}/log",
            on_loss=twopc.ReplayCopies(f"{settings.folder}/copies") if settings.makes_copies else "stop",
            small_batches="all-tasks",
        )
        self.done = 0
        self.error: TwoPhaseCommitError | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        attempt, self.error = new_attempt(), None
        self._history.voted(batch_id, [attempt] * TASKS)
        try:
            self._write(records(batch, attempt, self._settings.records), batch_id)
        except TwoPhaseCommitError as error:
            self.error = error
            raise
        self._history.done(batch_id)
        self.done += 1

    def close(self) -> None:
        self._write.close()


def records(batch: DataFrame, attempt: str, most: int) -> DataFrame:
    """Return the records of a batch, of which the source has one row per task; see ``workload.record_batches``."""
    size = f"1 + ({most // 3} + batch * 131 + task * 37) % {most}"
    return (
        batch.selectExpr(f"value div {TASKS} AS batch", f"value % {TASKS} AS task")
        .selectExpr("batch", "task", f"explode(sequence(0, {size} - 1)) AS number")
        .withColumn("rest", functions.lit(f"{attempt}:{FILLER}"))
        .selectExpr(
            "CAST((batch + number) % 97 AS STRING) AS key", "concat_ws(':', batch, task, number, rest) AS value"
        )
    )


def started() -> SparkSession:
    set_java_and_python()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.driver.memory": "700m",
        "spark.python.daemon.module": DAEMON,
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.task.maxFailures": "4",
    }
    return session(f"local[{TASKS},4]", settings)


def run(writer: DataStreamWriter, batches: Batches, settings: Settings) -> None:
    """Run the query until told to stop, at least for one batch, so that each driver recovers. Run it again as long as
    its error permits that."""
    while True:
        query = writer.start()
        try:
            while not query.awaitTermination(LOOK_S):  # type: ignore[arg-type]  # it takes fractions
                if settings.stop.exists() and batches.done:
                    query.stop()
                    batches.close()
                    return
        except StreamingQueryException:
            traceback.print_exc()
            if not isinstance(batches.error, RUN_AGAIN):
                raise


def run_query(settings: Settings) -> None:
    """Run the query until told to stop."""
    spark, batches = started(), Batches(settings)
    source = spark.readStream.format("rate-micro-batch").option("numPartitions", TASKS).option("rowsPerBatch", TASKS)
    writer = source.load().writeStream.foreachBatch(batches)
    run(writer.option("checkpointLocation", f"{settings.folder}/checkpoint"), batches, settings)


if __name__ == "__main__":
    drive(run_query)
