"""Bad records on their way from the tasks, through the driver, to the sink that takes them.

There are few of them, so they travel with the votes, and the driver writes them when all tasks have voted. Then it
knows how many there are.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from datetime import date, time
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from twopc.errors import RecordRefused
from twopc.spark.output import Output, arrow_schema, naming


class BadRecord(NamedTuple):
    """A record that a sink refused.

    Attributes:
        sink: the sink's name.
        reason: why it refused the record.
        row: the row of the batch that the record was made from, as JSON.
    """

    sink: str
    reason: str
    row: str

    @classmethod
    def of(cls, refused: RecordRefused, sink: str, source_row: Callable[[int], pa.StructScalar]) -> BadRecord:
        """Return the record at the position that the refusal names."""
        assert refused.record is not None
        return cls(sink, refused.reason, to_json(source_row(refused.record)))


_SCHEMA = StructType().add("sink", "string").add("reason", "string").add("row", "string")


def as_output_takes(bad: Sequence[BadRecord], session: SparkSession, output: Output) -> pa.RecordBatch:
    """Return bad records as the output takes them: with its columns, which Spark computes."""
    [batch] = _frame(bad, session, output).toArrow().combine_chunks().to_batches()
    return batch


def schema_of(session: SparkSession, output: Output, name: str) -> pa.Schema:
    """Return the schema of bad records as the output of that name takes them.

    Raises:
        ConfigurationError: Spark refuses the columns of the output.
    """
    with naming("columns", [*output.columns], name):
        return arrow_schema(_frame((), session, output).schema)


def _frame(bad: Sequence[BadRecord], session: SparkSession, output: Output) -> DataFrame:
    return session.createDataFrame([*bad], _SCHEMA).selectExpr(*output.columns)


def to_json(row: pa.StructScalar) -> str:
    """Return a row as JSON: bytes as Base64, times in ISO 8601, decimals and intervals as text."""
    return json.dumps(_plain(row), ensure_ascii=False)


def _plain(value: pa.Scalar) -> Any:
    """Return what JSON has for a value."""
    match value if value.is_valid else None:
        case None:
            return None
        case pa.MapScalar():
            return {str(_plain(each["key"])): _plain(each["value"]) for each in value.values}
        case pa.StructScalar():
            return {field.name: _plain(value[number]) for number, field in enumerate(value.type)}
        case pa.ListScalar():
            return [_plain(each) for each in value.values]
        case _:
            return _of_one(value.as_py())


def _of_one(value: Any) -> str | int | float:
    """Return the same for a value without parts."""
    match value:
        case str() | int():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case float() if math.isfinite(value):
            return value
        case date() | time():
            return value.isoformat()
        case _:
            return str(value)
