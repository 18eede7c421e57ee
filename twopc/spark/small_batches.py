"""A batch on no more tasks than there are cores, where it is likely to be small.

To begin a task takes 10 to 20 ms in Spark, in Python and in the target, however few its records are, and tasks beyond
the cores wait for each other: see docs/performance.md. Nothing is lost where the batch turns out to be large: as many
tasks run at once as before.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from twopc.events import BatchFinished

RECORDS_A_TASK = 10_000
"""Up to so many are few. Spark hands them to Python at once, by default."""


def on_few_tasks(frame: DataFrame, before: BatchFinished | None) -> DataFrame:
    """``frame`` on as many tasks as there are cores, if it had more, where the batch ``before`` had few records."""
    cores = frame.sparkSession.sparkContext.defaultParallelism
    # Empty where it had been decided before: then nobody has counted.
    if before is None or not before.records or max(before.records.values()) > cores * RECORDS_A_TASK:
        return frame
    return frame.coalesce(cores)
