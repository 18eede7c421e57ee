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
from twopc.spark.arrow_types import arrow_schema
from twopc.spark.output import Output, naming


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


def as_output_takes(bad: Sequence[BadRecord], session: SparkSession, output: Output) -> list[pa.RecordBatch]:
    """Return bad records as the output takes them: with its columns, which Spark computes."""
    batches: list[pa.RecordBatch] = _frame(bad, session, output).toArrow().to_batches()
    return batches


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
    """Return a row as JSON: bytes as Base64, times in ISO 8601, decimals and intervals as text.

    Never fails: a bad record often has what neither Python nor JSON can hold, such as the year 12000.
    """
    return json.dumps(_plain(row), ensure_ascii=False)


def _plain(value: pa.Scalar) -> Any:
    """Return what JSON has for a value."""
    match value if value.is_valid else None:
        case None:
            return None
        case pa.MapScalar():
            return {_as_key(_plain(each["key"])): _plain(each["value"]) for each in value.values}
        case pa.StructScalar():
            return {field.name: _plain(value[number]) for number, field in enumerate(value.type)}
        case pa.ListScalar():
            return [_plain(each) for each in value.values]
        case pa.TimestampScalar() if value.type.tz is not None:
            return _of_one(value.cast(pa.timestamp(value.type.unit, "UTC")))  # Python lacks some zones of Spark
        case _:
            return _of_one(value)


def _as_key(plain: Any) -> str:
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _of_one(value: pa.Scalar) -> str | int | float:
    """Return the same for a value without parts."""
    try:
        given = value.as_py()
    except UnicodeDecodeError:  # Spark makes a text of any bytes
        return str(value.as_buffer().to_pybytes(), errors="backslashreplace")
    except (ValueError, OverflowError):  # Python has no time outside of the years 1 to 9999
        return str(value.cast(pa.string()))
    if isinstance(given, bytes):
        return base64.b64encode(given).decode()
    if isinstance(given, date | time):
        return given.isoformat()
    is_json = isinstance(given, str | int) or (isinstance(given, float) and math.isfinite(given))
    return given if is_json else str(given)
