"""The Iceberg sink keeps the contract of every sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from tests.sinks.iceberg.conftest import Place
from tests.sinks.iceberg.test_round_trip import READERS
from tests.support.read_rows import as_drawn
from tests.support.typed_records import typed, unchecked_text
from twopc.testing import SinkContract
from twopc.testing.values import nested
from twopc_iceberg import IcebergSink

SCHEMA = Schema(
    NestedField(1, "value", StringType()),
    NestedField(2, "whole", LongType()),
    NestedField(3, "fraction", DoubleType()),
    NestedField(4, "flag", BooleanType()),
    NestedField(5, "tags", ListType(6, StringType(), element_required=False)),
    NestedField(7, "at", TimestamptzType()),
    NestedField(8, "day", DateType()),
    NestedField(9, "amount", DecimalType(12, 2)),
    NestedField(10, "raw", BinaryType()),
)

SPEC = PartitionSpec(
    PartitionField(1, 1000, BucketTransform(4), "value_bucket"),
    PartitionField(7, 1001, DayTransform(), "at_day"),
    PartitionField(4, 1002, IdentityTransform(), "flag"),
    PartitionField(3, 1003, IdentityTransform(), "fraction"),
)


FLAT = [
    *(pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(9, 2), pa.decimal128(38, 10)),
    *(pa.date32(), pa.time64("us"), pa.timestamp("us"), pa.timestamp("us", "UTC")),
    *(pa.string(), pa.binary(), pa.binary(4)),
]
TYPES = [*FLAT, *nested(*FLAT, keys=(pa.int32(), pa.date32(), pa.binary()))]
DRAWN = pa.schema([("value", pa.string()), *((f"c{n}", type_) for n, type_ in enumerate(TYPES))])


class TestAppend(SinkContract):
    finds_lost_batches = True
    spec = PartitionSpec()

    @pytest.fixture(autouse=True)
    def _place(self, place: Place) -> None:
        self.place = place
        place.create(SCHEMA, self.spec)

    def make_sink(self) -> IcebergSink:
        return self.place.unbound()

    def visible(self) -> list[str]:
        return self.place.values()

    def leftovers(self) -> list[str]:
        return self.place.left_over()

    def sample(self) -> pa.RecordBatch:
        return typed()

    def with_bad_records(self) -> pa.RecordBatch:
        return pa.record_batch({"value": unchecked_text(b"a", b"\xff", b"b", b"c", b"\xc3")})

    def visible_records(self) -> list[dict[str, Any]]:
        return self.place.records()

    def types_taken(self) -> pa.Schema:
        self.place.create(DRAWN)
        return DRAWN

    def readers(self) -> Mapping[str, Callable[[], list[dict[str, Any]]]]:
        def read(name: str) -> list[dict[str, Any]]:
            lacking = ["c16"] if name == "pyiceberg" else []  # it reads a null list of structs as an empty list
            schema = pa.schema([field for field in DRAWN if field.name not in lacking])
            return [as_drawn(row, schema) for row in READERS[name](self.place).rows()]

        return {name: partial(read, name) for name in READERS}


class PyIcebergAlone(TestAppend):
    """A table that DuckDB and polars do not find by its path, or do not read whole."""

    def types_taken(self) -> pa.Schema:
        return self.sample().schema

    def readers(self) -> Mapping[str, Callable[[], list[dict[str, Any]]]]:
        return {"pyiceberg": self.visible_records}


@pytest.mark.long  # test_round_trip.py reads back what is written to partitions
class TestPartitioned(PyIcebergAlone):
    spec = SPEC
