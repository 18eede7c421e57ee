"""A batch on no more tasks than there are cores, where it is likely to be small and its plan is cheap.

To begin a task takes 10 to 20 ms in Spark, in Python and in the target, however few its records are, and tasks beyond
the cores wait for each other: see docs/performance.md. As many tasks run at once as before, so a batch that turns out
to be large takes no longer.

Spark merges the partitions of the whole stage that writes. So it must be nothing but sources, columns and filters: a
stage with functions or state of the user's keeps its tasks and their places, whatever it costs.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from twopc.spark.plans import Plan

RECORDS_A_TASK = 10_000
"""A batch that read no more records than this per core is small. Spark hands as many to Python at once, by default."""


def on_few_tasks(frame: DataFrame, plan: Plan) -> DataFrame:
    """``frame`` on as many tasks as there are cores, if it had more, where ``plan`` allows it and the batch before was
    small. What that one read counts, not what it wrote: a filter may leave little of much."""
    cores = frame.sparkSession.sparkContext.defaultParallelism
    if not plan.mergeable or plan.tasks is None or plan.tasks <= cores:
        return frame
    return frame.coalesce(cores) if 0 < plan.rows_before() <= cores * RECORDS_A_TASK else frame
