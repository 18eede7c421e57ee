"""Spark's types and rows as Arrow's, over the versions of Spark."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from itertools import islice

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_ROWS_AT_ONCE = 10_000
"""As many as Spark itself puts into a record batch (spark.sql.execution.arrow.maxRecordsPerBatch)."""

# Spark 4.2 asks for the time zone of timestamps; versions before take UTC. For what a sink can write, any will do.
_ZONE = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of the record batches that a task gets for ``schema``."""
    return to_arrow_schema(schema, **_ZONE)  # type: ignore[arg-type]  # by version


def in_batches(rows: Iterable[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows as record batches, of which one at a time is held."""
    rest = iter(rows)
    while some := list(islice(rest, _ROWS_AT_ONCE)):
        yield from LocalDataToArrowConversion.convert(some, schema, use_large_var_types=False).to_batches()
