"""What a batch's plan allows: fewer tasks for a small batch, and Arrow record batches that end by rows alone.

Spark passes ``foreachBatch`` a frame over an RDD. The query's plan is below that RDD, in the same job, and the frame
does not show it. The query's engine in the driver's JVM does: it plans every batch from one logical plan, which is
inspected once per start of the query. What the frame adds above the RDD is inspected in each batch, in about ten calls
to the JVM (1 ms).

A plan that is not recognized counts as one that may run Python. It keeps its tasks, and their number is not known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from twopc.errors import ConfigurationError
from twopc.log.entries import MOST_TRANSACTIONS
from twopc.spark.batch_input import each

# Plans. ------------------------------------------------------------------------------------------------------------

_ALLOCATION = "spark.dynamicAllocation.enabled"

_BATCH = "LogicalRDD"
_ABOVE = frozenset({"Project", "Filter", "SubqueryAlias"})
"""Nodes that keep the partitions of the plan below, and read nothing else."""

_SOURCES = frozenset(
    {"StreamingDataSourceV2ScanRelation", "StreamingDataSourceV2Relation", "StreamingExecutionRelation"}
)
_UNION = "Union"
_CHEAP = frozenset({"WriteToMicroBatchDataSourceV1", *_SOURCES, *_ABOVE, "View", "EventTimeWatermark", _UNION})
"""Nodes that pass on a source's rows one by one, in the source's partitions and without state."""

_OF_THE_JVM = _CHEAP | {
    *("Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Expand", "GlobalLimit", "LocalLimit"),
    *("Join", "Repartition", "RepartitionByExpression", "ResolvedHint", "Sort", "Window"),
    *("Generate", "Explode", "PosExplode", "Inline"),
    *("DataSourceV2Relation", "DataSourceV2ScanRelation", "LocalRelation", "LogicalRelation", "Range"),
}
"""Nodes that run Python only in their expressions. An RDD is not among them: anything may be below it."""


@dataclass(frozen=True)
class Plan:
    """What is known of the plan of one batch.

    Attributes:
        tasks: the number of its tasks, or None if that is not known.
        python: whether Python may evaluate a part of it.
        keeps_rows: whether it consists of sources, columns and filters without functions of the user. So it has at most
            one row for each row of its sources.
        mergeable: whether fewer tasks may run it: it consists of sources, columns and filters without functions of the
            user, and Spark does not request executors by the number of waiting tasks.
        query: Spark's query, in the JVM.
    """

    tasks: int | None = None
    python: bool = True
    mergeable: bool = False
    keeps_rows: bool = False
    query: Any = None

    def rows_before(self) -> int:
        """Return how many rows the query's sources gave for the previous batch, or 0 if that is not known."""
        progress = self.query.lastProgress() if self.query else None
        return int(progress.numInputRows()) if progress else 0

    def refuse_too_many_tasks(self, batch_id: int, sinks: int) -> None:
        """Raise ConfigurationError if the batch may have more transactions than a decision has room for."""
        most = (self.tasks or 0) * sinks
        if most > MOST_TRANSACTIONS:
            raise ConfigurationError(
                f"batch {batch_id} has {self.tasks} tasks, each of which may begin a transaction in each of {sinks}"
                f" sinks: {most}, and a decision in the commit log has room for {MOST_TRANSACTIONS}. Nothing was"
                " written. Use fewer tasks, by coalesce or repartition in the query or a lower"
                " spark.sql.shuffle.partitions, and start again."
            )


class Plans:
    """The plans of a query's batches, from one start of the query to its end. ``query`` is Spark's, in the JVM."""

    def __init__(self, session: SparkSession, query: Any) -> None:
        self._session = session
        self._query = query

    def of(self, frame: DataFrame) -> Plan:
        """Return the plan of ``frame``, which was made of the query's current batch."""
        try:
            return self._plan_of(frame)
        except Py4JJavaError:
            raise  # what Spark raises, such as the interrupt of its stop()
        except Py4JError:  # a Spark that has no such method
            return Plan()

    def _plan_of(self, frame: DataFrame) -> Plan:
        of_query, (of_python, of_scala) = self._of_query, self._patterns
        plan = node = frame._jdf.logicalPlan()  # noqa: SLF001  # the only way to it
        while (name := node.nodeName()) in _ABOVE:
            node = node.child()
        # A function for foreachBatch may have made a frame of another RDD, below which is not this query's plan.
        if name != _BATCH or node.rdd() != (rdd := self._query.lastExecution().toRdd()):
            return Plan()
        python = of_query.python or (node is not plan and plan.containsPattern(of_python))
        scala = node is not plan and plan.containsPattern(of_scala)
        own = python or scala
        mergeable, keeps_rows = of_query.mergeable and not own, of_query.keeps_rows and not own
        return Plan(rdd.getNumPartitions(), python, mergeable, keeps_rows, self._query)

    @cached_property
    def _of_query(self) -> Plan:
        """What is known of the logical plan from which Spark plans each batch."""
        plan, (of_python, of_scala) = self._query.logicalPlan(), self._patterns
        nodes = set(_nodes(plan))
        python = (
            not nodes <= _OF_THE_JVM
            or plan.containsPattern(of_python)
            or any(".python." in str(source.getClass().getName()) for source in each(self._query.sources()))
        )
        cheap = not python and nodes <= _CHEAP and not plan.containsPattern(of_scala)
        allocates = str(self._session.conf.get(_ALLOCATION, "false")).lower() == "true"
        return Plan(python=python, mergeable=cheap and not allocates, keeps_rows=cheap and _UNION not in nodes)

    @cached_property
    def _patterns(self) -> tuple[Any, Any]:
        """Spark's patterns of functions in Python and in Scala."""
        jvm: Any = self._session._jvm  # noqa: SLF001  # the only way to it
        patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        return patterns.PYTHON_UDF(), patterns.SCALA_UDF()


def _nodes(plan: Any) -> Iterator[str]:
    """The names of a logical plan's nodes, and of the functions by which some of them make rows."""
    name = str(plan.nodeName())
    yield name
    if name == "Generate":
        yield str(plan.generator().nodeName())
    for child in each(plan.children()):
        yield from _nodes(child)


# Small batches. ----------------------------------------------------------------------------------------------------

RECORDS_PER_CORE = 10_000
"""Batches of up to this many records per core count as small: one Arrow batch, by Spark's default."""


def on_few_tasks(frame: DataFrame, plan: Plan) -> DataFrame:
    """Return ``frame`` on as many tasks as there are cores, if it had more, ``plan`` allows it and the previous batch
    was small.

    A task takes 10 to 20 ms to begin in Spark, in Python and in the target system, however few its records are, and
    tasks beyond the cores wait for each other: see docs/performance.md. As many tasks run at once as before, so a batch
    that turns out to be large takes no longer.

    Spark merges the partitions of the whole stage that writes. So that stage must consist of sources, columns and
    filters: one with functions or state of the user keeps its tasks and their places, whatever it costs. The previous
    batch is measured by what it read, not by what it wrote: a filter may leave little of much.
    """
    if not plan.mergeable or plan.tasks is None:
        return frame
    cores = frame.sparkSession.sparkContext.defaultParallelism
    if plan.tasks <= cores:
        return frame
    return frame.coalesce(cores) if 0 < plan.rows_before() <= cores * RECORDS_PER_CORE else frame


# Record batches. ---------------------------------------------------------------------------------------------------

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"

_NO_LIMIT = 2**31 - 1
"""The limit of bytes at which Spark does not add up sizes."""

_MARGIN = 4
"""How many times larger than all earlier records new ones may be, and a record batch still keeps to both limits."""


@contextlib.contextmanager
def limited_by_rows(session: SparkSession, record_bytes: float) -> Iterator[None]:
    """Lift Spark's limit of bytes per record batch for this thread's jobs, if the limit of rows comes first anyway.

    To check the limit of bytes, Spark adds up the whole record batch before every row
    (BatchedPythonArrowInput.writeSizedBatch). That took three quarters of the JVM's time where records were small, and
    there the limit of rows is by far the nearer one: see docs/performance.md.

    Each evaluation of Python in a job reads both limits in its task, from the job's local properties (seen on 4.0 to
    4.2), and no limit can be set for one evaluation alone. So use this only for jobs in which nothing else runs Python:
    the user's functions may get rows of another size. A limit of bytes that the user has set stays.

    Args:
        session: the batch's session.
        record_bytes: the largest mean size of the records of one record batch so far, in bytes of Arrow; 0 if that is
            not known, and then both limits stay.
    """
    if not record_bytes:
        yield
        return
    context = session.sparkContext
    # Spark copies a session's settings into the properties of its jobs, over these.
    if context.getLocalProperty(_BYTES) is not None or not _rows_are_nearer(session, record_bytes):
        yield
        return
    context.setLocalProperty(_BYTES, str(_NO_LIMIT))
    try:
        yield
    finally:
        context.setLocalProperty(_BYTES, None)  # type: ignore[arg-type]  # None clears it


def _rows_are_nearer(session: SparkSession, record_bytes: float) -> bool:
    settings = session._jsparkSession.sessionState().conf()  # noqa: SLF001  # as numbers, whatever their spelling
    rows, limit = settings.arrowMaxRecordsPerBatch(), settings.arrowMaxBytesPerBatch()
    # Spark has no limit of rows where the setting is 0 or below.
    return bool(0 < rows * record_bytes * _MARGIN <= limit)
