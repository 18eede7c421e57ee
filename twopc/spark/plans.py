"""What a batch's plan runs before its rows reach Python, as far as that can be asked cheaply.

Spark hands ``foreachBatch`` a frame over an RDD. The query's plan is below that RDD, in the same job, and the frame
does not show it. The query's engine in the driver's JVM does. It plans every batch from one logical plan, which is
looked at once per start of the query. What the frame adds above the RDD is looked at in each batch. That takes about
ten calls to the JVM, or 1 ms.

A plan that is not recognized counts as one that may run Python and keeps its tasks, whose number is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from twopc.errors import ConfigurationError
from twopc.log.entries import MOST_TRANSACTIONS
from twopc.spark.progress import each, running_query

_RUN_ID = "spark.jobGroup.id"
"""Spark's id of one start of a query, by which it cancels that query's jobs."""

_ALLOCATION = "spark.dynamicAllocation.enabled"

_BATCH = "LogicalRDD"
_ABOVE = frozenset({"Project", "Filter", "SubqueryAlias"})
"""Nodes that keep the partitions of the plan below, and read nothing else."""

_SOURCES = frozenset(
    {"StreamingDataSourceV2ScanRelation", "StreamingDataSourceV2Relation", "StreamingExecutionRelation"}
)
_CHEAP = frozenset({"WriteToMicroBatchDataSourceV1", *_SOURCES, *_ABOVE, "View", "EventTimeWatermark", "Union"})
"""Nodes that hand on a source's rows one by one, in the source's partitions and without state."""

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
        tasks: how many tasks it has, or None where that is not known.
        python: whether Python may evaluate a part of it.
        mergeable: whether fewer tasks may run it: it is nothing but sources, columns and filters, without functions of
            the user's own, and Spark does not ask for executors by the number of tasks that wait.
        query: Spark's query, in the JVM.
    """

    tasks: int | None = None
    python: bool = True
    mergeable: bool = False
    query: Any = None

    def rows_before(self) -> int:
        """How many rows the query's sources gave for the batch before; 0 where that is not known."""
        progress = self.query.lastProgress() if self.query else None
        return int(progress.numInputRows()) if progress else 0

    def refuse_too_many_tasks(self, batch_id: int, sinks: int) -> None:
        """Raise ConfigurationError where the batch may have more transactions than a decision has room for."""
        most = (self.tasks or 0) * sinks
        if most > MOST_TRANSACTIONS:
            raise ConfigurationError(
                f"batch {batch_id} has {self.tasks} tasks, each of which may begin a transaction in each of {sinks}"
                f" sinks: {most}, and a decision in the commit log has room for {MOST_TRANSACTIONS}. Nothing was"
                " written. Have fewer tasks, by coalesce or repartition in the query or a lower"
                " spark.sql.shuffle.partitions, and start again."
            )


class Plans:
    """The plans of one query's batches."""

    def __init__(self) -> None:
        self._start: _Start | None = None

    def of(self, frame: DataFrame, query_id: str) -> Plan:
        """The plan of ``frame``, which was made of the batch that query ``query_id`` is at."""
        try:
            return self._start_of(frame.sparkSession, query_id).plan_of(frame)
        except Py4JJavaError:
            raise  # what Spark raises, such as the interrupt of its stop()
        except Py4JError:  # a Spark that has no such method
            return Plan()

    def _start_of(self, session: SparkSession, query_id: str) -> _Start:
        run_id = session.sparkContext.getLocalProperty(_RUN_ID)
        if self._start is None or self._start.run_id != run_id:
            self._start = _Start(session, query_id, run_id)
        return self._start


class _Start:
    """One start of a query: its logical plan, from which Spark plans each of its batches."""

    def __init__(self, session: SparkSession, query_id: str, run_id: str | None) -> None:
        self.run_id = run_id
        self._query = running_query(session, query_id)
        jvm: Any = session._jvm  # noqa: SLF001  # the only way to it
        patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        self._of_python, self._of_scala = patterns.PYTHON_UDF(), patterns.SCALA_UDF()
        plan = self._query.logicalPlan()
        nodes = set(_nodes(plan))
        self._python = (
            not nodes <= _OF_THE_JVM
            or plan.containsPattern(self._of_python)
            or any(".python." in str(source.getClass().getName()) for source in each(self._query.sources()))
        )
        cheap = not self._python and nodes <= _CHEAP and not plan.containsPattern(self._of_scala)
        self._mergeable = cheap and str(session.conf.get(_ALLOCATION, "false")).lower() != "true"

    def plan_of(self, frame: DataFrame) -> Plan:
        plan = node = frame._jdf.logicalPlan()  # noqa: SLF001  # the only way to it
        while (name := node.nodeName()) in _ABOVE:
            node = node.child()
        # A function for foreachBatch may have made a frame of another RDD, below which is not this query's plan.
        if name != _BATCH or node.rdd() != (rdd := self._query.lastExecution().toRdd()):
            return Plan()
        python = self._python or (node is not plan and plan.containsPattern(self._of_python))
        scala = node is not plan and plan.containsPattern(self._of_scala)
        return Plan(rdd.getNumPartitions(), python, self._mergeable and not python and not scala, self._query)


def _nodes(plan: Any) -> Iterator[str]:
    """The names of a logical plan's nodes, and of the functions by which some make rows."""
    name = str(plan.nodeName())
    yield name
    if name == "Generate":
        yield str(plan.generator().nodeName())
    for child in each(plan.children()):
        yield from _nodes(child)
