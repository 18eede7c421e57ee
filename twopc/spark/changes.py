"""The last record of each key in a batch, for outputs whose sinks have a key.

Spark finds the last record by a window over the key, so equality and order follow Spark's rules, for every type. Spark
shuffles the batch only if the plan has not yet partitioned it by the key. Afterwards each key has at most one record,
in one task, whatever the keys of the other outputs are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.functions import coalesce, expr, lit, when
from pyspark.sql.types import ArrayType, DataType, StructType

from twopc.errors import RecordRefused
from twopc.spark import java
from twopc.spark.records import quoted

_KEY, _ORDER, _TAKEN, _APART = "twopc key ", "twopc order ", "twopc taken ", "twopc apart "
"""Prefixes of an output's helper columns; the sink's name follows. ``_APART`` distributes the rows
that the output does not take among the tasks."""

CHANGE = "twopc change "
"""The prefix of the column with a row's ``Change`` in an output; the sink's name follows. The column is null where the
output does not take the row."""

_SPREAD = "spark_partition_id() * 3629"
"""A value by which rows are spread over tasks. The value must stay the same when a row's task runs again: after a lost
executor, Spark repeats some tasks, and rows read from a shuffle may come in another order. If rows were numbered in
order of arrival, rows of other outputs would then be lost or duplicated. With this factor, Spark's hash spreads 2 to 4
tasks evenly."""

_BINARY = "UTF8_BINARY"  # the collation that compares bytes


class Change(IntEnum):
    """What an output does with a record."""

    WRITE = 0
    DELETE = 1
    SUPERSEDED = 2
    """The batch has a later record of the same key."""
    TIED = 3
    """Another record of the key has the same place in the order, or there is no order."""
    UNORDERED = 4
    """The value that orders the records is null or has a null part."""


@dataclass(frozen=True)
class Keyed:
    """How an output with a key finds the last record of each key."""

    key: tuple[str, ...]  # the columns of the key
    # The SQL that orders the records of a key; None if a batch may have only one record per key.
    latest_by: str | None
    # The expressions of its records and deletes. Outputs that are equal in all fields share their changes.
    rows: tuple[object, ...] = ()

    def refuse(self, sink: str, counts: Mapping[tuple[str, Change], int], task: int) -> None:
        """Raise RecordRefused if a task found records that can't be put in order. ``counts`` come from
        ``unordered_in``."""
        where = f"output {sink!r} (key {', '.join(self.key)})"
        advice = "Nothing of the batch was written."
        if count := counts.get((sink, Change.UNORDERED)):
            reason = (
                f"'latest_by' ({self.latest_by}) of {where} is null, or has a part that is, in {count} records of the"
                f" batch. {advice} Give an expression that has a value for every record, deletes as well, or leave such"
                " records out by 'where'."
            )
        elif (count := counts.get((sink, Change.TIED))) and self.latest_by is None:
            reason = (
                f"{count} records of the batch share their key in {where} with another one, and nothing tells which"
                f" is the last. {advice} Give the Output 'latest_by', such as 'at' or 'struct(at, offset)'."
            )
        elif count:
            reason = (
                f"{count} keys of {where} have several records with the greatest 'latest_by' ({self.latest_by}) in the"
                f" batch. {advice} Add what tells them apart, such as the offset: 'struct({self.latest_by}, offset)'."
            )
        else:
            return
        raise RecordRefused(reason, sink=sink, task=task)


def is_change(changes: pa.Array, change: Change) -> pa.BooleanArray:
    """Return which rows of a record batch are marked with ``change``. ``changes`` is the column ``CHANGE`` of an
    output."""
    return pc.equal(changes, pa.scalar(change, changes.type)).fill_null(False)


def unordered_in(sink: str, changes: pa.Array) -> dict[tuple[str, Change], int]:
    """Return how many records of a record batch can't be put in order, by the sink's name and the reason."""
    return {(sink, change): is_change(changes, change).true_count for change in (Change.TIED, Change.UNORDERED)}


def columns_of(
    name: str,
    key: Sequence[str],
    record: Column,
    where: Column | None,
    delete_where: Column | None,
    latest_by: Column | None,
) -> Iterator[Column]:
    """Yield the columns of one output for ``ByKey.applied``: the record (null for a delete) and the columns of the key.
    If ``latest_by`` is given, a column with its value follows. If ``where`` is given, two more columns follow: the
    condition, and a value by which the rows that the condition leaves out are spread over the tasks."""
    taken = None if where is None else coalesce(where, lit(False))

    def within(column: Column) -> Column:
        return column if taken is None else when(taken, column)

    kept = record if delete_where is None else when(~coalesce(delete_where, lit(False)), record)
    yield within(kept).alias(name)
    for number, column in enumerate(key):
        yield within(record.getField(column)).alias(f"{_KEY}{name} {number}")
    if latest_by is not None:
        yield within(latest_by).alias(_ORDER + name)
    if taken is not None:
        yield taken.alias(_TAKEN + name)
        yield when(~taken, expr(_SPREAD)).alias(_APART + name)


class ByKey:
    """Brings the records of a key together, for one run of a query. Remembers which outputs need a shuffle."""

    def __init__(self) -> None:
        self._shuffles: dict[str, bool] = {}

    def applied(self, frame: DataFrame, outputs: Mapping[str, Keyed], tasks: int | None, in_structs: bool) -> DataFrame:
        """Return the frame with the change of each row in place of the columns from ``columns_of``.

        ``outputs`` are the outputs with a key. ``tasks`` is the frame's number of tasks, which a shuffle does not
        change; None if the frame's plan was not recognized. Through Spark Connect, ``spark.sql.shuffle.partitions``
        sets the number of tasks after a shuffle. If not ``in_structs``, the columns of an output's record replace its
        struct.
        """
        tasks = tasks_of(frame) if tasks is None else tasks
        first = dict[Keyed, str]()
        for name, keyed in outputs.items():
            if first.setdefault(keyed, name) == name:
                frame = self._add_changes(frame, name, keyed, tasks)
        of_outputs = {
            column: name for name, keyed in outputs.items() for column in (name, *_beside(frame, name, keyed))
        }
        kept = [quoted(column) for column in frame.columns if column not in of_outputs]
        for name, keyed in outputs.items():
            values = [*_values(frame, first[keyed], keyed)]
            change = quoted(CHANGE + first[keyed])
            kept += [f"{change} AS {quoted(CHANGE + name)}"] if first[keyed] != name else []
            record = f"IF({change} IN ({Change.WRITE:d}, {Change.DELETE:d}), struct({', '.join(values)}), NULL)"
            kept += [f"{record} AS {quoted(name)}"] if in_structs else values
        return frame.selectExpr(*kept)

    def _add_changes(self, frame: DataFrame, name: str, keyed: Keyed, tasks: int | None) -> DataFrame:
        found = _with_change(frame, name, keyed)
        if tasks is None or tasks == 1:
            return found
        if name not in self._shuffles:
            self._shuffles[name] = _exchanges(found) > _exchanges(frame)
        if not self._shuffles[name]:
            return found
        by = _partition(frame, name, keyed)
        return _with_change(frame.repartition(tasks, *map(expr, by)), name, keyed)


def tasks_of(frame: DataFrame) -> int | None:
    """Return how many tasks a frame has, by its plan; None through Spark Connect, which does not expose the plan."""
    if not isinstance(frame, ClassicDataFrame):
        return None
    planned = java.of_frame(frame).queryExecution()
    # The plan does not know the partitions of an RDD. Creating the RDD to count them may run a job, such as a
    # broadcast.
    found = planned.executedPlan().outputPartitioning().numPartitions() or planned.toRdd().getNumPartitions()
    return int(found)


def _exchanges(frame: DataFrame) -> int:
    return str(java.of_frame(frame).queryExecution().executedPlan().toString()).count("Exchange ")


def _keys(name: str, keyed: Keyed) -> list[str]:
    return [f"{_KEY}{name} {number}" for number in range(len(keyed.key))]


def _partition(frame: DataFrame, name: str, keyed: Keyed) -> list[str]:
    """Return the SQL expressions to partition by. The key is null in rows that the output does not take. Without
    ``_APART``, one task would get all of these rows."""
    apart = _APART + name
    keys = (_without_collation(frame, column) for column in _keys(name, keyed))
    return [*keys, *([quoted(apart)] if apart in frame.columns else ())]


def _without_collation(frame: DataFrame, column: str) -> str:
    """Return the SQL of a column without its collation. To a sink, texts that a collation considers equal are different
    keys."""
    collation = getattr(frame.schema[column].dataType, "collation", _BINARY)
    return quoted(column) if collation == _BINARY else f"collate({quoted(column)}, '{_BINARY}')"


def _beside(frame: DataFrame, name: str, keyed: Keyed) -> Iterator[str]:
    own = (*_keys(name, keyed), _ORDER + name, _TAKEN + name, _APART + name)
    yield from (column for column in own if column in frame.columns)


def _with_change(frame: DataFrame, name: str, keyed: Keyed) -> DataFrame:
    """Return the frame with the change of each row."""
    over = f"PARTITION BY {', '.join(_partition(frame, name, keyed))}"
    order = quoted(_ORDER + name)
    has_no_key = " OR ".join(f"{quoted(column)} IS NULL" for column in _keys(name, keyed))
    if keyed.latest_by is None:
        cases = f"WHEN count(1) OVER ({over}) > 1 THEN {Change.TIED:d}"
    else:
        over = f"{over} ORDER BY {order}"  # ascending, as outputs without a key get the rows in this order
        cases = (
            f"WHEN {_has_null(order, frame.schema[_ORDER + name].dataType)} THEN {Change.UNORDERED:d}"
            f" WHEN lead(true) OVER ({over}) THEN {Change.SUPERSEDED:d}"
            f" WHEN lag({order}) OVER ({over}) <=> {order} THEN {Change.TIED:d}"
        )
    taken = _TAKEN + name
    is_left_out = f"WHEN NOT {quoted(taken)} THEN NULL" if taken in frame.columns else ""
    # The sink refuses records without a key.
    change = f"IF({quoted(name)} IS NULL, {Change.DELETE:d}, {Change.WRITE:d})"
    sql = f"CASE {is_left_out} WHEN {has_no_key} THEN {change} {cases} ELSE {change} END"
    return frame.selectExpr("*", f"CAST({sql} AS INT) AS {quoted(CHANGE + name)}")


def _has_null(order: str, type: DataType) -> str:
    """Return a SQL condition that is true if an order is null or contains a null. Spark sorts a struct with a null part
    first, so a change without a time would lose to every other change of its key."""
    parts = [f"{order} IS NULL"]
    if isinstance(type, StructType):
        parts += [_has_null(f"{order}.{quoted(field.name)}", field.dataType) for field in type]
    elif isinstance(type, ArrayType):
        parts.append(f"exists({order}, part -> {_has_null('part', type.elementType)})")
    return " OR ".join(parts)


def _values(frame: DataFrame, name: str, keyed: Keyed) -> Iterator[str]:
    """Yield the SQL of each column of an output's record. Deletes contain the key columns too."""
    within = frame.schema[name].dataType
    assert isinstance(within, StructType)
    keys = dict(zip(keyed.key, _keys(name, keyed), strict=True))
    for each in within:
        found = quoted(keys[each.name]) if each.name in keys else f"{quoted(name)}.{quoted(each.name)}"
        yield f"{found} AS {quoted(each.name)}"


def missing(key: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return the key columns that an output lacks or contains twice."""
    return [name for name in key if columns.count(name) != 1]
