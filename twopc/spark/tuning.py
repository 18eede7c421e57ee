"""What a batch's plan allows: fewer tasks for a small batch, or none; and Arrow record batches that end by rows alone.

Spark passes ``foreachBatch`` a frame over an RDD. The query's plan is below that RDD, in the same job, and the frame
does not show it. The query's engine in the driver's JVM does: it plans every batch from one logical plan, which is
inspected once per start of the query. What the frame adds above the RDD is inspected in each batch, in about ten calls
to the JVM (1 ms).

A plan that is not recognized keeps its tasks, and their number is not known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.types import StructField, StructType, TimestampType

from twopc.errors import ConfigurationError
from twopc.log.entry_json import MOST_TRANSACTIONS
from twopc.spark import java
from twopc.spark.engine import each, set_property
from twopc.spark.records import FIXED, is_larger, quoted
from twopc.spark.stopping import is_interrupt
from twopc.spark.task import Task, Written

logger = logging.getLogger(__name__)

# Plans. ------------------------------------------------------------------------------------------------------------

_ALLOCATION = "spark.dynamicAllocation.enabled"

_BATCH = "LogicalRDD"
_ABOVE = frozenset({"Project", "Filter", "SubqueryAlias"})
"""Nodes that keep the partitions of the plan below, and read nothing else."""

_SOURCES = frozenset(
    {"StreamingDataSourceV2ScanRelation", "StreamingDataSourceV2Relation", "StreamingExecutionRelation"}
)
_UNION = "Union"
_PLAIN = frozenset({"WriteToMicroBatchDataSourceV1", *_SOURCES, *_ABOVE, "View", "EventTimeWatermark", _UNION})
"""Nodes that pass on a source's rows one by one, in the source's partitions and without state."""

_STATELESS = _PLAIN | {
    *("Expand", "Explode", "Generate", "Inline", "PosExplode"),
    *("Repartition", "RepartitionByExpression", "ResolvedHint"),
    *("DataSourceV2Relation", "DataSourceV2ScanRelation", "LocalRelation", "LogicalRelation", "Range"),
}
_STATEFUL = frozenset({"Aggregate", "Deduplicate", "Distinct", "GlobalLimit", "LocalLimit", "Sort", "Window"})
"""Nodes that keep state if a stream is below them. The nodes of both sets run Python only in their expressions. An RDD
is in neither: anything may be below it."""


@dataclass(frozen=True)
class Plan:
    """Properties of the plan of one batch."""

    tasks: int | None = None  # the number of its tasks, or None if that is not known
    repeatable: bool = False  # whether it may be evaluated again: it has neither state nor functions of the user
    # Whether fewer tasks may run it: it is repeatable, consists of sources, columns, filters and unions, and Spark does
    # not request executors by the number of waiting tasks.
    mergeable: bool = False
    # Whether it has at most one row for each row of its sources: it is repeatable, and consists of sources, columns and
    # filters.
    keeps_rows: bool = False
    query: Any = None  # Spark's query, in the JVM

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
    """The plans of a query's batches, from one start of the query to its end.

    ``query`` is Spark's, in the JVM; None through Spark Connect, where a client sees no plan.
    """

    def __init__(self, session: SparkSession, query: Any) -> None:
        self._session = session
        self._query = query

    def of(self, frame: DataFrame) -> Plan:
        """Return the plan of ``frame``, which was made of the query's current batch."""
        if self._query is None:
            return Plan()
        try:
            return self._plan_of(frame)
        except Py4JJavaError:
            raise  # what Spark raises, such as the interrupt of its stop()
        except Py4JError:  # a Spark that has no such method
            return Plan()

    def _plan_of(self, frame: DataFrame) -> Plan:
        of_query, (of_python, of_scala) = self._of_query, self._patterns
        plan = node = java.of_frame(frame).logicalPlan()
        while (name := node.nodeName()) in _ABOVE:
            node = node.child()
        # A function for foreachBatch may have made a frame of another RDD, below which is not this query's plan.
        if name != _BATCH or node.rdd() != (rdd := self._query.lastExecution().toRdd()):
            return Plan()
        own = node is not plan and (plan.containsPattern(of_python) or plan.containsPattern(of_scala))
        if own:
            return Plan(rdd.getNumPartitions(), query=self._query)
        return replace(of_query, tasks=rdd.getNumPartitions(), query=self._query)

    @cached_property
    def _of_query(self) -> Plan:
        """Properties of the logical plan from which Spark plans each batch."""
        plan, (of_python, of_scala) = self._query.logicalPlan(), self._patterns
        functions = plan.containsPattern(of_python) or plan.containsPattern(of_scala)
        in_python = any(".python." in str(source.getClass().getName()) for source in each(self._query.sources()))
        nodes = [*_nodes(plan)]
        repeatable = not functions and not in_python and all(map(_is_repeatable, nodes))
        names = {str(node.nodeName()) for node in nodes}
        is_plain = repeatable and names <= _PLAIN
        allocates = str(self._session.conf.get(_ALLOCATION, "false")).lower() == "true"
        return Plan(None, repeatable, is_plain and not allocates, is_plain and _UNION not in names)

    @cached_property
    def _patterns(self) -> tuple[Any, Any]:
        """Spark's patterns of functions in Python and in Scala."""
        patterns = java.jvm(self._session).org.apache.spark.sql.catalyst.trees.TreePattern
        return patterns.PYTHON_UDF(), patterns.SCALA_UDF()


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in each(plan.children()):
        yield from _nodes(child)


def _is_repeatable(node: Any) -> bool:
    """Whether a node of a logical plan keeps no state and runs Python only in its expressions."""
    name = str(node.nodeName())
    if name == "Join":
        return not all(child.isStreaming() for child in each(node.children()))
    if name == "Generate":
        name = str(node.generator().nodeName())
    return name in _STATELESS or (name in _STATEFUL and not node.isStreaming())


# Small batches. ----------------------------------------------------------------------------------------------------

RECORDS_PER_CORE = 10_000
"""Batches of up to this many records per core count as small: one Arrow batch, by Spark's default."""


def merge_tasks(frame: DataFrame, plan: Plan) -> tuple[DataFrame, int | None]:
    """Return ``frame`` on as many tasks as there are cores, if it had more, ``plan`` allows it and the previous batch
    was small; and the number of its tasks, or None if that is not known.

    A task takes 10 to 20 ms to begin in Spark, in Python and in the target system, however few its records are, and
    tasks beyond the cores wait for each other: see docs/internals/performance-notes.md. As many tasks run at once as
    before, so a batch that turns out to be large takes no longer.

    Spark merges the partitions of the whole stage that writes. So that stage must consist of sources, columns and
    filters: one with functions or state of the user keeps its tasks and their places, whatever it costs. The previous
    batch is measured by what it read, not by what it wrote: a filter may leave little of much.
    """
    if not plan.mergeable or plan.tasks is None:
        return frame, plan.tasks
    cores = frame.sparkSession.sparkContext.defaultParallelism
    if plan.tasks <= cores or not 0 < plan.rows_before() <= cores * RECORDS_PER_CORE:
        return frame, plan.tasks
    return frame.coalesce(cores), cores


RECORDS_AT_MOST = 10_000
"""The most records of a batch that the driver writes: one Arrow record batch, by Spark's default."""

BYTES_AT_MOST = 16 * 1024 * 1024
"""The most bytes of a batch that the driver writes, divided evenly among the records."""

PAUSE_BATCHES = 100
"""How many batches are left to tasks after one that the driver could not write."""

DRIVERS_SERIAL = 1 << 62
"""The serial number of the driver's attempt. Spark's task attempts begin with 0."""

_TOO_LARGE_FOR_DRIVER = "twopc: a record is too large for the driver"  # Spark raises this in the job

_SAME_ON_DRIVER = (FIXED - {"TimeType", "DayTimeIntervalType", "NullType"}) | {"StringType", "BinaryType"}
"""The types that the driver gets as tasks do: not CHAR and VARCHAR, for example."""


class Collecting:
    """Small batches that the driver writes without Python tasks, from one start of the query to its end.

    Python tasks, and the transaction that each of them begins, take a third of the time of a batch of 1,000 records:
    see docs/internals/performance-notes.md. What Spark knows before it sends any record bounds the driver's memory:

    - The number of records, by the offsets of Kafka sources. The plan must not make more rows of them.
    - The size of a record, by a condition that Spark evaluates where it reads it. A record that is too large ends the
      job.

    A batch that turns out to be too large, or that the driver can't write, is left to tasks in the same call.
    """

    def __init__(self) -> None:
        self._pause = 0
        self._parse = cache(expr)  # Spark compiles each new condition

    def write(
        self, frame: Callable[[], DataFrame], schema: StructType, plan: Plan, records: int | None, task: Task
    ) -> Written | None:
        """Take the records of a batch and write them, as ``task`` would, or return None: then tasks do. ``frame``
        returns the batch, of this ``schema`` and ``plan``; its sources give ``records`` at most, or None if that is not
        known."""
        if self._pause:
            self._pause -= 1
            return None
        if not plan.keeps_rows or records is None or not 0 < records <= RECORDS_AT_MOST:
            return None
        bytes_a_record = BYTES_AT_MOST // 2 ** (records - 1).bit_length()  # the same for most batches
        condition = _fits(schema, bytes_a_record)
        if condition is None:
            return None
        try:
            batches = _collect(frame().where(self._parse(condition)))
            # With copies of the sinks, as tasks have them.
            return task.write(task.sinks.load(), batches, partition=0, serial=DRIVERS_SERIAL)
        except Exception as error:
            if is_interrupt(error):
                raise
            # What was written is rolled back, and tasks find out what is wrong.
            self._pause = PAUSE_BATCHES
            logger.warning(
                "the driver can't write %s: tasks write it and the %d batches after it. %s: %s",
                *(task.round, PAUSE_BATCHES, type(error).__name__, str(error).partition("\n")[0]),
            )
            return None


def _collect(frame: DataFrame) -> list[pa.RecordBatch]:
    """Return the records of a frame as tasks get them."""
    table = frame.toArrow()
    fields = zip(table.schema, frame.schema, strict=True)
    as_in_tasks = pa.schema([_as_in_tasks(arrow, field, frame) for arrow, field in fields])
    batches: list[pa.RecordBatch] = table.cast(as_in_tasks).to_batches()
    return batches


def _fits(schema: StructType, bytes_at_most: int) -> str | None:
    """Return a condition in SQL that raises for a larger record; None if the driver can't bound or can't take them."""
    if any(type(field.dataType).__name__ not in _SAME_ON_DRIVER for field in schema):
        return None
    too_large = is_larger(schema, bytes_at_most)
    return None if too_large is None else f"IF({too_large}, raise_error('{_TOO_LARGE_FOR_DRIVER}'), true)"


def _as_in_tasks(arrow: pa.Field, field: StructField, frame: DataFrame) -> pa.Field:
    """Return the field of Arrow that tasks get. Their timestamps have the session's time zone."""
    if not isinstance(field.dataType, TimestampType):
        return arrow
    return arrow.with_type(pa.timestamp(arrow.type.unit, frame.sparkSession.conf.get("spark.sql.session.timeZone")))


# Record batches. ---------------------------------------------------------------------------------------------------

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"

_NO_LIMIT = 2**31 - 1  # the limit of bytes at which Spark does not add up sizes

_TOO_LARGE = "twopc: a record is too large for the limit of rows alone"  # Spark raises this in the job

ResultT = TypeVar("ResultT")


class LimitedByRows:
    """Jobs whose record batches end by the limit of rows alone, from one start of a query to its end. If it
    ``is_over``, each job runs with Spark's own check, and so once.

    To check its limit of bytes, Spark adds up the whole record batch before every row
    (BatchedPythonArrowInput.writeSizedBatch). That took three quarters of the JVM's time where records were small: see
    docs/internals/performance-notes.md. So Spark checks each record instead, where it computes it. A record of more
    than its even share of the limit ends the job, so a record batch stays within the limit. Then the job runs again
    with Spark's own check, as do all later ones.

    Each evaluation of Python in a job reads both limits in its task, from the job's local properties (seen on 4.0 to
    4.2), and no limit can be set for one evaluation alone. So only a plan without functions of the user, which may be
    evaluated again, has its limit lifted. A limit of bytes that the user has set stays.
    """

    def __init__(self, *, is_over: bool = False) -> None:
        self._is_over = is_over
        self._limits: tuple[int, int] | None = None  # of rows (0: the one of bytes stays) and bytes
        self._parse = cache(expr)  # Spark compiles each new condition

    def run(self, job: Callable[[DataFrame], ResultT], frame: DataFrame, plan: Plan, in_structs: bool) -> ResultT:
        """Return ``job(frame)``, which writes a frame of this plan. ``in_structs``: whether no sink gets the columns of
        the frame as they are."""
        if not plan.repeatable or self._is_over:  # a client of Spark Connect, which has no context, sees no plan
            return job(frame)
        context = frame.sparkSession.sparkContext
        # Spark copies a session's settings into the properties of its jobs, over these.
        may_lift = context.getLocalProperty(_BYTES) is None
        checked = self._with_check(frame, in_structs) if may_lift else None
        if checked is None:
            return job(frame)
        context.setLocalProperty(_BYTES, str(_NO_LIMIT))
        try:
            return job(checked)
        except Exception as error:
            if _TOO_LARGE not in str(error):
                raise
            self._is_over = True
            logger.info("a record is large, so Spark limits the bytes of record batches from here on")
        finally:
            set_property(context, _BYTES, None)
        return job(frame)

    def _with_check(self, frame: DataFrame, in_structs: bool) -> DataFrame | None:
        """Return the frame with a check of each record, or None if there is no limit of rows or no check.

        The check is in a column. Spark would evaluate a filter below the columns, and so compute them twice.
        """
        if self._limits is None:
            settings = java.of_session(frame.sparkSession).sessionState().conf()  # as numbers
            is_users = settings.contains(_BYTES)
            self._limits = 0 if is_users else settings.arrowMaxRecordsPerBatch(), settings.arrowMaxBytesPerBatch()
        rows, limit = self._limits
        too_large = is_larger(frame.schema, limit // rows) if rows > 0 else None
        # With the check, a column may be null as far as Spark knows.
        column = next((field.name for field in frame.schema if field.nullable or in_structs), None)
        if too_large is None or column is None:
            return None
        if too_large == "false":
            return frame
        sql = f"IF({too_large}, raise_error('{_TOO_LARGE}'), {quoted(column)})"
        return frame.withColumn(column, self._parse(sql))
