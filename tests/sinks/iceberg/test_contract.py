"""The Iceberg sink keeps the contract of every sink."""

from pathlib import Path
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
from tests.support.typed_records import typed, unchecked_text
from twopc.testing import SinkContract
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
        table, ends = self.place.table(), (".parquet", "-m0.avro")
        known = {task.file.file_path for task in table.scan().plan_files()}
        known |= {each.manifest_path for snapshot in table.snapshots() for each in snapshot.manifests(table.io)}
        names = {Path(path).name for path in known}
        return [name for name in self.place.files() if name.endswith(ends) and Path(name).name not in names]

    def sample(self) -> pa.RecordBatch:
        return typed()

    def with_bad_records(self) -> pa.RecordBatch:
        return pa.record_batch({"value": unchecked_text(b"a", b"\xff", b"b", b"c", b"\xc3")})

    def visible_records(self) -> list[dict[str, Any]]:
        return self.place.records()


@pytest.mark.long  # test_round_trip.py reads back what is written to partitions
class TestPartitioned(TestAppend):
    spec = SPEC
