"""The columns that each sink gets: on the driver in one frame, on the executors as separate record batches.

With several sinks, the frame has one struct column per sink. A sink that is alone gets its columns directly, if PySpark
can name them: structs cost 6 ms per batch on the driver and a twentieth of the throughput, see docs/performance.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from twopc.errors import ConfigurationError
from twopc.sink import TwoPhaseCommitSink

SinkAndColumns: TypeAlias = tuple[TwoPhaseCommitSink[Any], Sequence[str]]
"""A sink, and the SQL expressions of the columns that it gets."""

ALL = ("*",)

# Spark 4.2 asks for the time zone of timestamps. Earlier versions take UTC. A sink can write any.
_ZONE = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


@dataclass(frozen=True)
class Output:
    """A sink with the SQL expressions of its columns."""

    sink: TwoPhaseCommitSink[Any]
    columns: tuple[str, ...]


def output_of(given: TwoPhaseCommitSink[Any] | SinkAndColumns) -> Output:
    """Check what a user passed as a sink.

    Raises:
        ConfigurationError: it is not a sink, or its columns are a single text.
    """
    sink, columns = given if isinstance(given, tuple) else (given, ALL)
    if not isinstance(sink, TwoPhaseCommitSink):
        raise ConfigurationError(f"{sink!r} is not a sink: create one with twopc.create_sink, or subclass one")
    if isinstance(columns, str):
        raise ConfigurationError(f"the columns of a sink must be a list of SQL expressions, not the text {columns!r}")
    # A caller's sink may serve under two names or in two queries, which would sweep away each other's transactions if
    # they shared its binding. Sinks can be pickled, so a shallow copy shares no live state.
    return Output(sink.unbound(), tuple(columns))


@dataclass(frozen=True)
class Columns:
    """Where the sinks find their columns: each in a struct of its name, or the only sink in the frame itself."""

    sinks: tuple[str, ...]
    in_structs: bool

    def schemas(self, frame: DataFrame) -> dict[str, pa.Schema]:
        """Return the schema of what each sink gets."""
        schema = arrow_schema(frame.schema)
        return {name: pa.schema(list(schema.field(name).type)) if self.in_structs else schema for name in self.sinks}

    def apart(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Return each sink's part of a record batch."""
        for name in self.sinks:
            yield name, pa.RecordBatch.from_struct_array(batch.column(name)) if self.in_structs else batch


def projected(batch: DataFrame, expressions: Mapping[str, Sequence[str]]) -> tuple[DataFrame, Columns]:
    """Return a frame with the columns of all sinks, and where they are in it. ``expressions`` are SQL, by sink."""
    names = tuple(expressions)
    if len(names) == 1:
        [columns] = expressions.values()
        frame = batch if tuple(columns) == ALL else batch.selectExpr(*columns)
        if _can_be_named(frame.columns):
            return frame, Columns(names, in_structs=False)
    return batch.selectExpr(*(_struct(name, expressions[name]) for name in names)), Columns(names, in_structs=True)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the record batches that a task gets for ``schema``."""
    return to_arrow_schema(schema, **_ZONE)  # type: ignore[arg-type]  # by version


def _can_be_named(columns: Sequence[str]) -> bool:
    """Whether ``frame[name]``, by which PySpark passes columns to Python, finds each column."""
    return all(name.isidentifier() for name in columns) and len({name.lower() for name in columns}) == len(columns)


def _struct(name: str, columns: Sequence[str]) -> str:
    """The struct as SQL text, which takes one call to the JVM: building it from columns took 15 ms per batch."""
    quoted = name.replace("`", "``")
    return f"struct({', '.join(columns)}) AS `{quoted}`"
