"""A task's memory and its open files are bounded, however many partitions its records have (invariant 7)."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, ListType, NestedField, StringType, StructType, UUIDType

from tests.sinks.iceberg.conftest import Place
from tests.sinks.partitions_contract import ManyPartitions
from twopc import Participant, Round


class TestManyPartitions(ManyPartitions):
    @pytest.fixture
    def parted(self, place: Place) -> Place:
        schema = Schema(NestedField(1, "value", StringType()), NestedField(2, "payload", BinaryType()))
        by_value = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "value"))
        place.create(schema, by_value, properties={"write.metadata.metrics.default": "none"})
        return place


@pytest.mark.long
def test_a_file_ends_at_its_target_even_if_that_is_less_than_a_row_group(place: Place) -> None:
    sink = place.sink(target_file_bytes="1000")
    with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
        for number in range(4):
            participant.write("orders", pa.record_batch({"value": [os.urandom(1000).hex() + str(number)]}))
        vote = participant.pre_commit()["orders"]
    assert vote.handle["files"] == 4


@pytest.mark.long
def test_a_column_of_distinct_values_gets_no_dictionary_and_others_do(place: Place) -> None:
    nested = Schema(
        NestedField(1, "key", StringType()),
        NestedField(2, "shop", StringType()),
        NestedField(3, "tags", ListType(4, StringType())),
        NestedField(5, "at", StructType(NestedField(6, "town", StringType()))),
        NestedField(7, "id", UUIDType()),
    )
    place.create(nested)
    rows = range(1000)
    records = {
        "key": [f"{row}" for row in rows],
        "shop": [f"{row % 7}" for row in rows],
        "tags": [["a", "b"] for _ in rows],
        "at": [{"town": "x"} for _ in rows],
        "id": pa.array([row.to_bytes(16, "big") for row in rows], pa.binary(16)),
    }
    place.run(0, records)
    [file] = place.folder.rglob("*.parquet")
    columns = pq.ParquetFile(file).metadata.row_group(0)
    found = {columns.column(number).path_in_schema: columns.column(number).encodings for number in range(5)}
    assert {path for path, encodings in found.items() if "RLE_DICTIONARY" in encodings} == {
        "shop",
        "tags.list.element",
        "at.town",
    }
