"""The columns that each sink gets: on the driver in one frame, on the executors as record batches of their own.

Several sinks have a struct column each. A sink that is alone has its columns themselves, wherever PySpark can name
them: structs cost 6 ms a batch on the driver and a twentieth of the throughput, see docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from twopc.spark.arrow import arrow_schema

ALL = ("*",)


@dataclass(frozen=True)
class Columns:
    """Where the sinks find theirs: each in a struct of its name, or the only one everywhere."""

    sinks: tuple[str, ...]
    in_structs: bool

    def schemas(self, frame: DataFrame) -> dict[str, pa.Schema]:
        """Of what each sink gets."""
        schema = arrow_schema(frame.schema)
        return {name: pa.schema(list(schema.field(name).type)) if self.in_structs else schema for name in self.sinks}

    def apart(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """What each sink gets of a record batch."""
        for name in self.sinks:
            yield name, pa.RecordBatch.from_struct_array(batch.column(name)) if self.in_structs else batch


def projected(batch: DataFrame, expressions: Mapping[str, Sequence[str]]) -> tuple[DataFrame, Columns]:
    """A frame with the columns of all sinks, and where they are in it. ``expressions``: name of a sink → SQL."""
    names = tuple(expressions)
    if len(names) == 1:
        [columns] = expressions.values()
        frame = batch if tuple(columns) == ALL else batch.selectExpr(*columns)
        if _can_be_named(frame.columns):
            return frame, Columns(names, in_structs=False)
    return batch.selectExpr(*(_struct(name, expressions[name]) for name in names)), Columns(names, in_structs=True)


def _can_be_named(columns: Sequence[str]) -> bool:
    """Whether ``frame[name]``, by which PySpark hands columns to Python, finds each."""
    return all(name.isidentifier() for name in columns) and len({name.lower() for name in columns}) == len(columns)


def _struct(name: str, columns: Sequence[str]) -> str:
    """As text, which is one call to the JVM: to put it together there took 15 ms a batch."""
    quoted = name.replace("`", "``")
    return f"struct({', '.join(columns)}) AS `{quoted}`"
