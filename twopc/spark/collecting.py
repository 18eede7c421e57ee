"""A batch that is certainly small: the driver takes its records, and writes them without Python tasks.

Python tasks, and the transaction that each of them begins, take a third of the time of a batch of 1,000 records: see
docs/internals/performance-notes.md. The driver's memory is bounded by what Spark knows before it sends any record:

- The number of records, by the offsets of Kafka sources. The plan must not make more rows of them.
- The size of a record, by a condition that Spark evaluates where it reads it. A record that is too large ends the job.

A batch that turns out to be too large, or that the driver can't write, is left to tasks in the same call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from twopc.spark.record_size import is_larger
from twopc.spark.stopping import is_interrupt
from twopc.spark.task import Task, Written
from twopc.spark.tuning import Plan

logger = logging.getLogger(__name__)

RECORDS_AT_MOST = 10_000
"""What the driver takes of a batch: one Arrow record batch, by Spark's default."""

BYTES_AT_MOST = 16 * 1024 * 1024
"""What the driver takes of a batch. It is divided evenly among the records."""

PAUSE_BATCHES = 100
"""How many batches are left to tasks after one that the driver could not write."""

DRIVERS_SERIAL = 1 << 62
"""The serial number of the driver's attempt. Spark's task attempts begin with 0."""

_TOO_LARGE = "twopc: a record is too large for the driver"
"""What Spark raises in the job."""

_PLAIN = (
    *(StringType, BinaryType),  # not their subclasses, such as CHAR
    *(BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, DecimalType),
    *(DateType, TimestampType, TimestampNTZType),
)
"""The types that the driver gets as tasks do."""


class Collecting:
    """The batches of a query that the driver takes, from one start of the query to its end."""

    def __init__(self) -> None:
        self._pause = 0
        self._parsed: dict[str, Column] = {}

    def write(
        self, frame: Callable[[], DataFrame], schema: StructType, plan: Plan, records: int | None, task: Task
    ) -> Written | None:
        """Take the records of a batch and write them, or return None: then tasks do.

        Args:
            frame: returns the batch.
            schema: its schema.
            plan: its plan.
            records: how many records its sources give at most, or None if that is not known.
            task: what a task would do.
        """
        if self._pause:
            self._pause -= 1
            return None
        if not plan.keeps_rows or records is None or not 0 < records <= RECORDS_AT_MOST:
            return None
        # The same for most batches: Spark compiles each new condition.
        bytes_a_record = BYTES_AT_MOST // 2 ** (records - 1).bit_length()
        condition = _fits(schema, bytes_a_record)
        if condition is None:
            return None
        if condition not in self._parsed:
            self._parsed[condition] = expr(condition)
        try:
            batches = _collected(frame().where(self._parsed[condition]))
            # With copies of the sinks, as tasks have them.
            return task.write(task.sinks.loaded(), batches, partition=0, serial=DRIVERS_SERIAL)
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


def _collected(frame: DataFrame) -> list[pa.RecordBatch]:
    """Return the records of a frame as tasks get them."""
    table = frame.toArrow()
    fields = zip(table.schema, frame.schema, strict=True)
    as_in_tasks = pa.schema([_as_in_tasks(arrow, field, frame) for arrow, field in fields])
    batches: list[pa.RecordBatch] = table.cast(as_in_tasks).to_batches()
    return batches


def _fits(schema: StructType, bytes_at_most: int) -> str | None:
    """Return a condition in SQL that raises for a larger record; None if the driver can't bound or can't take them."""
    if any(type(field.dataType) not in _PLAIN for field in schema):
        return None
    too_large = is_larger(schema, bytes_at_most)
    return None if too_large is None else f"IF({too_large}, raise_error('{_TOO_LARGE}'), true)"


def _as_in_tasks(arrow: pa.Field, field: StructField, frame: DataFrame) -> pa.Field:
    """Return the field of Arrow that tasks get. Their timestamps have the session's time zone."""
    if not isinstance(field.dataType, TimestampType):
        return arrow
    return arrow.with_type(pa.timestamp(arrow.type.unit, frame.sparkSession.conf.get("spark.sql.session.timeZone")))
