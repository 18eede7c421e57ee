"""Records of many types, with nulls, for the contracts of sinks that preserve types."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

from twopc.testing.contract import AWKWARD

TEXT = (*AWKWARD, None)


def plain() -> pa.RecordBatch:
    """Return records of JSON's types."""
    return pa.record_batch(
        {
            "value": pa.array(TEXT),
            "whole": _in_turn([0, -(2**63), 2**63 - 1, None], pa.int64()),
            "fraction": _in_turn([0.1, -1e300, None], pa.float64()),
            "flag": _in_turn([True, False, None], pa.bool_()),
            "tags": _in_turn([[], ["a", None, ""], None], pa.list_(pa.string())),
        }
    )


def typed() -> pa.RecordBatch:
    """Return records of more types than JSON has."""
    noon = datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=timezone.utc)
    more = {
        "at": _in_turn([noon, datetime(1969, 12, 31, tzinfo=timezone.utc), None], pa.timestamp("us", "UTC")),
        "day": _in_turn([date(2024, 2, 29), date(1900, 1, 1), None], pa.date32()),
        "amount": _in_turn([Decimal("0.10"), Decimal("-9999999999.99"), None], pa.decimal128(12, 2)),
        "raw": _in_turn([b"", b"\0\xff", None], pa.binary()),
    }
    batch = plain()
    for name, column in more.items():
        batch = batch.append_column(name, column)
    return batch


def unchecked_text(*values: bytes) -> pa.StringArray:
    """Return bytes as strings without validation, as Spark does."""
    values_of_bytes = pa.array(values, pa.binary())
    return pa.StringArray.from_buffers(len(values), *values_of_bytes.buffers()[1:])


def in_halves(values: Sequence[str | None]) -> pa.RecordBatch:
    """Return text with a partition column that separates adjacent letters."""
    return pa.record_batch({"value": pa.array(values), "half": [sum(map(ord, value or "")) % 2 for value in values]})


def _in_turn(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Repeat the values to the number of texts, so that different kinds of values are combined."""
    return pa.array([values[number % len(values)] for number in range(len(TEXT))], type_)
