"""A batch on no more tasks than there are cores, where it is likely to be small.

To begin a task takes 10 to 20 ms in Spark, in Python and in the target, however few its records are, and tasks beyond
the cores wait for each other: see docs/performance.md. Nothing is lost where the batch turns out to be large: as many
tasks run at once as before.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

RECORDS_A_TASK = 10_000
"""Up to so many are few. Spark hands them to Python at once, by default."""


def on_few_tasks(frame: DataFrame, records_before: int | None) -> DataFrame:
    """``frame`` on as many tasks as there are cores, if it had more, where the batch before had few records.

    ``records_before``: how many those were; None where there was no batch before.
    """
    cores = frame.sparkSession.sparkContext.defaultParallelism
    if records_before is None or records_before > cores * RECORDS_A_TASK:
        return frame
    return frame.coalesce(cores)
