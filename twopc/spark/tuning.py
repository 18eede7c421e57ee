"""Optimizations by a batch's plan: fewer tasks or none for a small batch, and Arrow record batches limited by rows
only.

Spark passes ``foreachBatch`` a frame over an RDD. The query's plan is below that RDD, in the same job, and the frame
does not show it. The query's engine in the driver's JVM shows it: the engine plans every batch from one logical plan,
which is inspected once per start of the query. The frame's own nodes above the RDD are inspected in each batch, by
about ten calls to the JVM (1 ms).

A plan that is not recognized keeps its tasks, and the number of tasks is unknown.
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
"""Nodes that keep the partitions of the plan below them, and read nothing else."""

_SOURCES = frozenset(
    {"StreamingDataSourceV2ScanRelation", "StreamingDataSourceV2Relation", "StreamingExecutionRelation"}
)
_UNION = "Union"
_PLAIN = frozenset({"WriteToMicroBatchDataSourceV1", *_SOURCES, *_ABOVE, "View", "EventTimeWatermark", _UNION})
"""Nodes that pass on a source's rows one by one, in the source's partitions, without state."""

_STATELESS = _PLAIN | {
    *("Expand", "Explode", "Generate", "Inline", "PosExplode"),
    *("Repartition", "RepartitionByExpression", "ResolvedHint"),
    *("DataSourceV2Relation", "DataSourceV2ScanRelation", "LocalRelation", "LogicalRelation", "Range"),
}
_STATEFUL = frozenset({"Aggregate", "Deduplicate", "Distinct", "GlobalLimit", "LocalLimit", "Sort", "Window"})
"""Nodes that keep state if a stream is below them. Nodes of both sets run Python only in their expressions. An RDD is
in neither set, because anything may be below an RDD."""


@dataclass(frozen=True)
class Plan:
    """Properties of the plan of one batch."""

    tasks: int | None = None  # the number of its tasks, or None if unknown
    repeatable: bool = False  # whether it may be evaluated again: it has neither state nor user functions
    # Whether fewer tasks may run it: it is repeatable, consists of sources, columns, filters and unions, and Spark does
    # not request executors by the number of waiting tasks.
    mergeable: bool = False
    # Whether it has at most one row per row of its sources: it is repeatable, and consists of sources, columns and
    # filters.
    keeps_rows: bool = False
    query: Any = None  # Spark's query in the JVM

    def rows_before(self) -> int:
        """Return how many rows the previous batch read from the query's sources, or 0 if unknown."""
        progress = self.query.lastProgress() if self.query else None
        return int(progress.numInputRows()) if progress else 0

    def refuse_too_many_tasks(self, batch_id: int, sinks: int) -> None:
        """Raise ConfigurationError if the batch may need more transactions than fit into a decision."""
        most = (self.tasks or 0) * sinks
        if most > MOST_TRANSACTIONS:
            raise ConfigurationError(
                f"batch {batch_id} has {self.tasks} tasks, each of which may begin a transaction in each of {sinks}"
                f" sinks: {most}, and a decision in the commit log has room for {MOST_TRANSACTIONS}. Nothing was"
                " written. Use fewer tasks, by coalesce or repartition in the query or a lower"
                " spark.sql.shuffle.partitions, and start again."
            )


class Plans:
    """The plans of a query's batches, for one run of the query.

    ``query`` is Spark's object in the JVM; None through Spark Connect, where a client sees no plan.
    """

    def __init__(self, session: SparkSession, query: Any) -> None:
        self._session = session
        self._query = query

    def of(self, frame: DataFrame) -> Plan:
        """Return the plan of ``frame``, which comes from the query's current batch."""
        if self._query is None:
            return Plan()
        try:
            return self._plan_of(frame)
        except Py4JJavaError:
            raise  # an error in Spark, such as the interrupt of its stop()
        except Py4JError:  # this version of Spark lacks a method
            return Plan()

    def _plan_of(self, frame: DataFrame) -> Plan:
        of_query, (of_python, of_scala) = self._of_query, self._patterns
        plan = node = java.of_frame(frame).logicalPlan()
        while (name := node.nodeName()) in _ABOVE:
            node = node.child()
        # A user's function may have created the frame from another RDD, which is not of this query.
        if name != _BATCH or node.rdd() != (rdd := self._query.lastExecution().toRdd()):
            return Plan()
        own = node is not plan and (plan.containsPattern(of_python) or plan.containsPattern(of_scala))
        if own:
            return Plan(rdd.getNumPartitions(), query=self._query)
        return replace(of_query, tasks=rdd.getNumPartitions(), query=self._query)

    @cached_property
    def _of_query(self) -> Plan:
        """The properties of the logical plan from which Spark plans each batch."""
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
        """Spark's tree patterns for Python and Scala functions."""
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
    """Reduce the tasks of ``frame`` to one per core if ``plan`` allows it and the previous batch was small. Return the
    frame and the number of its tasks, or None if unknown.

    A task takes 10 to 20 ms to begin in Spark, in Python and in the target system, however few records it has, and
    tasks beyond the cores wait for each other: see docs/internals/performance-notes.md. As many tasks run in parallel
    as before, so a batch that turns out to be large takes no longer.

    Spark merges the partitions of the whole Spark stage that writes, so it must consist of sources, columns and
    filters. A stage with user functions or state keeps its tasks and their places. The previous batch is measured by
    the rows that it read, because a filter may drop most rows before they are written.
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
"""The most bytes of a batch that the driver writes. A record may take up at most an even share of this size."""

PAUSE_BATCHES = 100
"""After a batch that the driver could not write, tasks write this many batches."""

DRIVERS_SERIAL = 1 << 62
"""The serial number of the driver's attempt, out of reach of Spark's task attempts, which count from 0."""

_TOO_LARGE_FOR_DRIVER = "twopc: a record is too large for the driver"  # Spark raises this in the job

_SAME_ON_DRIVER = (FIXED - {"TimeType", "DayTimeIntervalType", "NullType"}) | {"StringType", "BinaryType"}
"""The types that the driver gets in the same form as tasks: not CHAR and VARCHAR, for example."""


class Collecting:
    """Writes small batches on the driver, without Python tasks, for one run of the query.

    Python tasks, and the transaction that each of them begins, take a third of the time of a batch of 1,000 records:
    see docs/internals/performance-notes.md. The driver's memory is bounded before Spark sends any record:

    - The number of records is known from the offsets of Kafka sources. The plan must not multiply rows.
    - The size of each record is checked by a condition that Spark evaluates where it reads the record. A record that is
      too large ends the job.

    If the batch turns out to be too large, or the driver can't write it, tasks write it in the same call.
    """

    def __init__(self) -> None:
        self._pause = 0
        self._parse = cache(expr)  # as Spark compiles each new condition

    def write(
        self, frame: Callable[[], DataFrame], schema: StructType, plan: Plan, records: int | None, task: Task
    ) -> Written | None:
        """Collect and write a batch as ``task`` would, or return None to leave it to tasks. ``frame`` returns the
        batch, which has this ``schema`` and ``plan``. ``records`` is an upper bound for the number of records that the
        batch reads, or None if unknown."""
        if self._pause:
            self._pause -= 1
            return None
        if not plan.keeps_rows or records is None or not 0 < records <= RECORDS_AT_MOST:
            return None
        bytes_a_record = BYTES_AT_MOST // 2 ** (records - 1).bit_length()  # rounded: most batches share it
        condition = _fits(schema, bytes_a_record)
        if condition is None:
            return None
        try:
            batches = _collect(frame().where(self._parse(condition)))
            # Like tasks, with copies of the sinks.
            return task.write(task.sinks.load(), batches, partition=0, serial=DRIVERS_SERIAL)
        except Exception as error:
            if is_interrupt(error):
                raise
            # The driver's transactions are rolled back, and tasks will raise the actual error.
            self._pause = PAUSE_BATCHES
            logger.warning(
                "the driver can't write %s: tasks write it and the %d batches after it. %s: %s",
                *(task.round, PAUSE_BATCHES, type(error).__name__, str(error).partition("\n")[0]),
            )
            return None


def _collect(frame: DataFrame) -> list[pa.RecordBatch]:
    """Return the records of a frame in the form that tasks get."""
    table = frame.toArrow()
    fields = zip(table.schema, frame.schema, strict=True)
    as_in_tasks = pa.schema([_as_in_tasks(arrow, field, frame) for arrow, field in fields])
    batches: list[pa.RecordBatch] = table.cast(as_in_tasks).to_batches()
    return batches


def _fits(schema: StructType, bytes_at_most: int) -> str | None:
    """Return a SQL condition that raises an error for a larger record; None if sizes can't be checked, or the driver
    would get a type in another form."""
    if any(type(field.dataType).__name__ not in _SAME_ON_DRIVER for field in schema):
        return None
    too_large = is_larger(schema, bytes_at_most)
    return None if too_large is None else f"IF({too_large}, raise_error('{_TOO_LARGE_FOR_DRIVER}'), true)"


def _as_in_tasks(arrow: pa.Field, field: StructField, frame: DataFrame) -> pa.Field:
    """Return the Arrow field that tasks get, in which timestamps have the session's time zone."""
    if not isinstance(field.dataType, TimestampType):
        return arrow
    return arrow.with_type(pa.timestamp(arrow.type.unit, frame.sparkSession.conf.get("spark.sql.session.timeZone")))


# Record batches. ---------------------------------------------------------------------------------------------------

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"

_NO_LIMIT = 2**31 - 1  # with this limit, Spark does not add up sizes

_TOO_LARGE = "twopc: a record is too large for the limit of rows alone"  # Spark raises this in the job

ResultT = TypeVar("ResultT")


class LimitedByRows:
    """Runs jobs whose Arrow record batches are limited by rows only, for one run of a query. Once it ``is_over``, jobs
    run with Spark's own check.

    To check its byte limit, Spark adds up the whole record batch before every row
    (BatchedPythonArrowInput.writeSizedBatch). For small records, that took three quarters of the JVM's time: see
    docs/internals/performance-notes.md. Instead, each record is checked where Spark computes it. A record larger than
    its even share of the limit ends the job, so a record batch stays within the limit. The job then runs again with
    Spark's own check, as do all later ones.

    Every Python evaluation in a job reads both limits from the job's local properties (seen on 4.0 to 4.2), and no
    limit can be set for a single evaluation. So the limit is lifted only for a plan without user functions, which may
    be evaluated again. A byte limit that the user has set stays.
    """

    def __init__(self, *, is_over: bool = False) -> None:
        self._is_over = is_over
        self._limits: tuple[int, int] | None = None  # rows (0: the byte limit stays) and bytes
        self._parse = cache(expr)  # as Spark compiles each new condition

    def run(self, job: Callable[[DataFrame], ResultT], frame: DataFrame, plan: Plan, in_structs: bool) -> ResultT:
        """Return ``job(frame)``, which writes a frame with this plan. ``in_structs``: whether sinks get structs instead
        of the frame's columns."""
        if not plan.repeatable or self._is_over:  # also Spark Connect, which has no context and no plan
            return job(frame)
        context = frame.sparkSession.sparkContext
        # Spark copies a session's settings into the properties of its jobs, and would overwrite this one.
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
        """Return the frame with a check of each record, or None if there is no row limit or no check.

        The check is part of a column: Spark would evaluate a filter below the columns, and so compute them twice.
        """
        if self._limits is None:
            settings = java.of_session(frame.sparkSession).sessionState().conf()  # has sizes as numbers
            is_users = settings.contains(_BYTES)
            self._limits = 0 if is_users else settings.arrowMaxRecordsPerBatch(), settings.arrowMaxBytesPerBatch()
        rows, limit = self._limits
        too_large = is_larger(frame.schema, limit // rows) if rows > 0 else None
        # The check makes a column nullable, as far as Spark knows.
        column = next((field.name for field in frame.schema if field.nullable or in_structs), None)
        if too_large is None or column is None:
            return None
        if too_large == "false":
            return frame
        sql = f"IF({too_large}, raise_error('{_TOO_LARGE}'), {quoted(column)})"
        return frame.withColumn(column, self._parse(sql))
