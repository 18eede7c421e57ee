"""Tables in memory to which batches of changes are applied, each task in this process."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from twopc.spark import Output
from twopc.spark.output import Projection
from twopc.spark.task import PickledSinks, Task
from twopc.testing import MemorySink, MemoryTarget
from twopc.transactional_ids import Round

SCHEMA = "op STRING, id INT, name STRING, at INT"


class Tables:
    """Tables in memory, and the batches that are applied to them."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.batch_id = 0
        self.outputs: dict[str, Output] = {}
        self.unrouted: list[int] = []

    def add(self, name: str = "t", key: Sequence[str] = ("id",), **given: Any) -> MemoryTarget:
        target = MemoryTarget()
        sink = MemorySink(target, key)
        sink.bind(name, "log")
        arguments = {"columns": ["id", "name"], "delete_where": "op = 'd'", "latest_by": "at"} if key else {}
        self.outputs[name] = Output(sink, **{**arguments, **given})
        return target

    def apply(self, rows: Sequence[tuple[Any, ...]] | DataFrame, schema: str = SCHEMA, tasks: int = 3) -> None:
        """Write and commit a batch, each task in this process."""
        batch = self.spark.createDataFrame(rows, schema).repartition(tasks) if isinstance(rows, Sequence) else rows
        projection = Projection(self.outputs)
        frame, found = projection.apply(batch)
        frame = projection.by_key(frame, found, tasks)
        sinks = {name: output.sink for name, output in self.outputs.items()}
        round = Round(2, self.batch_id)
        self.batch_id += 1
        task = Task(PickledSinks({}), found, round)
        parts = [pa.RecordBatch.from_pylist(part, rows_schema(frame)) for part in partitions(frame)]
        written = [task.write(sinks, [part], number, number) for number, part in enumerate(parts)]
        self.unrouted.append(sum(each.unrouted for each in written))
        for each in written:
            for name, committable in each.vote.items():
                sinks[name].commit(committable)


def rows_schema(frame: DataFrame) -> pa.Schema:
    return frame.toArrow().schema


def partitions(frame: DataFrame) -> list[list[dict[str, Any]]]:
    numbered = frame.selectExpr("spark_partition_id() AS `the partition`", "*").toArrow().to_pylist()
    found: dict[int, list[dict[str, Any]]] = {}
    for row in numbered:
        found.setdefault(row.pop("the partition"), []).append(row)
    return [*found.values()]


def state(target: MemoryTarget, *columns: str) -> list[Any]:
    return sorted(tuple(each[name] for name in columns or ("id", "name")) for each in target.visible)
