"""A task's memory and its open files are bounded, however many partitions its records have (invariant 7)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, ListType, NestedField, StringType, StructType, UUIDType

from twopc import Participant, Round
from twopc_iceberg import writer
from twopc_iceberg.files import _SyncedStream

if TYPE_CHECKING:
    from tests.sinks.iceberg.conftest import Place

BY_VALUE = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "value"))
MIB = 2**20


def open_files() -> int:
    """How many Parquet files this process has open."""
    descriptors = Path("/proc/self/fd")
    return sum(os.path.realpath(each).endswith(".parquet") for each in descriptors.iterdir())


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of open files after each opening. Nothing is synced, which would take most of the time."""
    counts: list[int] = []
    create = _SyncedStream.__init__

    def counting(stream: _SyncedStream, path: str) -> None:
        create(stream, path)
        counts.append(open_files())

    monkeypatch.setattr(_SyncedStream, "__init__", counting)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return counts


@pytest.mark.long
def test_a_task_with_many_partitions_has_few_files_open(
    place: Place, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "ROW_GROUP_BYTES", 1)  # pyiceberg opens a file with its first row group
    place.create(spec=BY_VALUE, properties={"write.metadata.metrics.default": "none"})
    values = [f"{number:04d}" for number in range(300)]
    with Participant({"orders": place.sink()}, Round(1, 0), partition=0) as participant:
        for start in range(0, len(values), 75):
            participant.write("orders", pa.record_batch({"value": values[start : start + 75]}))
        vote = participant.pre_commit()["orders"]
    assert len(counted) >= len(values)
    assert max(counted) <= writer.OPEN_FILES
    assert open_files() == 0
    sink = place.sink()
    sink.commit_batch(0, sink.seal([vote], 0.0))
    assert place.values() == values


def test_partitions_that_come_again_and_again_lose_no_record(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch may have some partitions whose file is open and more that need their room."""
    monkeypatch.setattr(writer, "OPEN_FILES", 2)
    place.create(spec=BY_VALUE)
    batches = [["a", "b"], ["c", "a", "d", "b"], ["d", "a", "e"], ["b"], ["a", "b", "c", "d", "e"]]
    with Participant({"orders": place.sink()}, Round(1, 0), partition=0) as participant:
        for values in batches:
            participant.write("orders", pa.record_batch({"value": values}))
        vote = participant.pre_commit()["orders"]
    sink = place.sink()
    sink.commit_batch(0, sink.seal([vote], 0.0))
    assert place.values() == sorted(value for values in batches for value in values)


@pytest.mark.long
def test_all_open_files_together_hold_no_more_than_the_limit(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "HELD_BYTES", 4 * MIB)
    monkeypatch.setattr(writer, "ROW_GROUPS_BYTES", 4 * MIB)
    schema = Schema(NestedField(1, "value", StringType()), NestedField(2, "payload", BinaryType()))
    place.create(schema, BY_VALUE, properties={"write.metadata.metrics.default": "none"})
    start, held = pa.total_allocated_bytes(), 0
    with Participant({"orders": place.sink()}, Round(1, 0), partition=0) as participant:
        for number in range(64):
            # Eight partitions, none of which comes near to a row group.
            records = {"value": [str(number % 8)] * 1024, "payload": [os.urandom(1024) for _ in range(1024)]}
            participant.write("orders", pa.record_batch(records))
            held = max(held, pa.total_allocated_bytes() - start)
        participant.pre_commit()
    # Of 64 MiB that were written: what is held, two copies of each last row group, and what is at work.
    assert held < 16 * MIB


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
    place.sink().commit_batch(
        0,
        place.decided(
            {
                "key": [f"{row}" for row in rows],
                "shop": [f"{row % 7}" for row in rows],
                "tags": [["a", "b"] for _ in rows],
                "at": [{"town": "x"} for _ in rows],
                "id": pa.array([row.to_bytes(16, "big") for row in rows], pa.binary(16)),
            }
        ),
    )
    [file] = (name for name in place.files() if name.endswith(".parquet"))
    columns = pq.ParquetFile(Path(place.table().location().removeprefix("file://")) / file).metadata.row_group(0)
    found = {columns.column(number).path_in_schema: columns.column(number).encodings for number in range(5)}
    assert {path for path, encodings in found.items() if "RLE_DICTIONARY" in encodings} == {
        "shop",
        "tags.list.element",
        "at.town",
    }
