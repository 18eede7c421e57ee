"""Bad records, which tasks collect and the driver writes to the sink for bad records.

Bad records are few, so they travel with the votes. The driver writes the bad records after all tasks have voted,
because only then is their number known.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date, time
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from twopc.errors import ConfigurationError, RecordRefused
from twopc.sink import TwoPhaseCommitSink
from twopc.spark.output import ALL, Expression, as_column, check_columns, explain_refusal
from twopc.spark.records import arrow_schema

LIMIT = 1_000


@dataclass(frozen=True, eq=False)
class BadRecords:
    """The sink for records that other sinks refuse, such as records that are too large.

    Args:
        sink: the sink.
        columns: the expressions for its columns, as in an ``Output``, based on ``sink`` (the name of the sink that
            refused the record), ``reason`` and ``row`` (the batch's row as JSON).
        limit: the largest number of bad records in a batch. With more, the batch fails before its decision.

    Raises:
        ConfigurationError: an argument has the wrong type.
    """

    sink: TwoPhaseCommitSink[Any]
    columns: Sequence[Expression] = ALL
    limit: int = LIMIT

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", check_columns("BadRecords", self.sink, self.columns))
        given: Any = self.limit  # callers may not check types
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise ConfigurationError("'limit' of BadRecords must be a whole number, 1 or more", option="limit")

    @classmethod
    def of(cls, given: TwoPhaseCommitSink[Any] | BadRecords) -> BadRecords:
        """Return ``given`` as a ``BadRecords`` with its own copy of the sink. Raises the same errors as
        ``Output.of``."""
        bad_records = given if isinstance(given, BadRecords) else cls(given)
        return replace(bad_records, sink=bad_records.sink.unbound())


class BadRecord(NamedTuple):
    """A record that a sink refused."""

    sink: str  # the sink's name
    reason: str  # why it refused the record
    row: str  # the batch's row that the record was made from, as JSON

    @classmethod
    def of(cls, refused: RecordRefused, sink: str, source_row: Callable[[int], pa.StructScalar]) -> BadRecord:
        """Return the record that ``refused`` names. ``source_row`` returns the row at a position of the batch."""
        assert refused.record is not None
        return cls(sink, refused.reason, to_json(source_row(refused.record)))


_SCHEMA = StructType().add("sink", "string").add("reason", "string").add("row", "string")


def records_for_sink(bad: Sequence[BadRecord], session: SparkSession, taker: BadRecords) -> list[pa.RecordBatch]:
    """Return the records for the sink of bad records, whose columns Spark computes. Raises RecordRefused: there are
    more bad records than the limit."""
    if len(bad) > taker.limit:
        raise RecordRefused(
            f"the sinks refused {len(bad)} records of the batch, more than the limit of {taker.limit} bad records. The"
            f" last one: {bad[-1].reason}",
            sink=bad[-1].sink,
        )
    batches: list[pa.RecordBatch] = _frame(bad, session, taker).toArrow().to_batches()
    return batches


def schema_of(session: SparkSession, taker: BadRecords, name: str) -> pa.Schema:
    """Return the schema of the records that the sink for bad records gets. ``name`` is the name of the sink, for
    errors. Raises ConfigurationError: Spark rejects the columns."""
    with explain_refusal("columns", [*taker.columns], name):
        return arrow_schema(_frame((), session, taker).schema)


def _frame(bad: Sequence[BadRecord], session: SparkSession, taker: BadRecords) -> DataFrame:
    return session.createDataFrame([*bad], _SCHEMA).select(*map(as_column, taker.columns))


def to_json(row: pa.StructScalar) -> str:
    """Return a row as JSON: bytes as Base64, times in ISO 8601, decimals and intervals as text.

    Never fails, though bad records often have values that neither Python nor JSON can hold, such as the year 12000.
    """
    return json.dumps(_plain(row), ensure_ascii=False)


def _plain(value: pa.Scalar) -> Any:
    """Return a value as plain Python that ``json.dumps`` takes."""
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
            return _plain_leaf(value.cast(pa.timestamp(value.type.unit, "UTC")))  # Python lacks some zones of Spark
        case _:
            return _plain_leaf(value)


def _as_key(plain: Any) -> str:
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain_leaf(value: pa.Scalar) -> str | int | float:
    """Like ``_plain``, for a value that has no parts."""
    try:
        given = value.as_py()
    except UnicodeDecodeError:  # Spark casts any bytes to a string
        return str(value.as_buffer().to_pybytes(), errors="backslashreplace")
    except (ValueError, OverflowError):  # Python's times are in the years 1 to 9999
        return str(value.cast(pa.string()))
    if isinstance(given, bytes):
        return base64.b64encode(given).decode()
    if isinstance(given, date | time):
        return given.isoformat()
    is_json = isinstance(given, str | int) or (isinstance(given, float) and math.isfinite(given))
    return given if is_json else str(given)
