"""The tasks' manifests of a batch become one, and no record is lost, doubled or hidden from a filter by that."""

import datetime as dt
import decimal
import math
import os
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import BooleanExpression, EqualTo, IsNaN, IsNull, Reference
from pyiceberg.manifest import ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    NestedField,
    PrimitiveType,
    StringType,
)

from tests.sinks.iceberg.conftest import BY_VALUE, Place, on_disk
from tests.sinks.iceberg.test_readers import duckdb_reads
from tests.support.between import Between, lost, once
from tests.support.observing import Killed
from twopc.errors import Retriable

MERGE_AT = "commit.manifest.min-count-to-merge"
TASKS = [[f"{task:02}"] for task in range(12)]
RECORDS = [value for [value] in TASKS]


def manifests(place: Place) -> list[ManifestFile]:
    return place.snapshot().manifests(place.table().io)


def avro_files(place: Place) -> dict[str, bytes]:
    """The manifests on the disk, and what is in them; no manifest list."""
    found = (path for path in place.folder.rglob("*.avro") if not path.name.startswith("snap-"))
    return {f"file://{path}": path.read_bytes() for path in found}


def test_a_batch_of_many_tasks_adds_one_manifest_and_leaves_no_other(place: Place) -> None:
    batch, sink = place.decided(*TASKS), place.sink()
    sink.commit_batch(0, batch)
    [manifest] = manifests(place)
    assert (manifest.added_files_count, manifest.added_rows_count) == (12, 12)
    assert place.values() == RECORDS
    sink.complete(0, batch)
    assert list(avro_files(place)) == [manifest.manifest_path]
    assert place.values() == RECORDS


@pytest.mark.long
def test_another_process_that_finds_the_batch_visible_removes_the_tasks_manifests(place: Place) -> None:
    batch = place.decided(*TASKS)
    place.sink().commit_batch(0, batch)
    recovering = place.sink()
    recovering.commit_batch(0, batch)
    recovering.complete(0, batch)
    recovering.complete(0, batch)
    assert list(avro_files(place)) == [manifest.manifest_path for manifest in manifests(place)]
    assert place.values() == RECORDS


def test_whoever_commits_a_batch_writes_the_same_manifest(place: Place) -> None:
    batch = place.decided(*TASKS)
    tasks = set(avro_files(place))
    killed, sink = place.sink(), place.sink()
    Between(passes=0).stand(killed)
    with pytest.raises(Retriable):
        killed.commit_batch(0, batch)
    before = avro_files(place)
    assert len(before.keys() - tasks) == 1
    sink.commit_batch(0, batch)
    assert avro_files(place) == before
    assert place.values() == RECORDS


@pytest.mark.long
def test_a_commit_whose_answer_is_lost_adds_its_manifest_once(place: Place) -> None:
    batch, sink = place.decided(*TASKS), place.sink()
    Between(after=once(lost)).stand(sink)
    sink.commit_batch(0, batch)
    sink.complete(0, batch)
    assert len(manifests(place)) == 1
    assert place.values() == RECORDS


def test_a_process_that_has_sealed_the_batch_needs_no_manifest_of_a_task_any_more(place: Place) -> None:
    """Another process may have completed the batch, and a look at the table may be older than that."""
    sink = place.sink()
    batch = place.decided(*TASKS, sink=sink)
    for location in avro_files(place):
        on_disk(location).unlink()
    sink.commit_batch(0, batch)
    assert place.values() == RECORDS


def test_a_process_that_is_late_finds_the_batch_visible_whose_tasks_manifests_are_gone(place: Place) -> None:
    batch, late, sink = place.decided(*TASKS), place.sink(), place.sink()
    sink.commit_batch(0, batch)
    sink.complete(0, batch)
    late.commit_batch(0, batch)  # its look at the table was before
    assert place.appends() == 1
    assert place.values() == RECORDS


def test_two_drivers_that_write_the_manifest_at_once_leave_it_whole(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is killed as it begins to write, while the other moves its own file into place."""

    def kill(descriptor: int, _: str) -> None:
        os.close(descriptor)
        raise Killed

    batch, killed, sink = place.decided(*TASKS), place.sink(), place.sink()
    replace = Path.replace

    def move(aside: Path, target: Path) -> Path:
        if aside.parent.name == "metadata":
            with monkeypatch.context() as patch:
                patch.setattr("os.fdopen", kill)
                with pytest.raises(Killed):
                    killed.commit_batch(0, batch)
        return replace(aside, target)

    monkeypatch.setattr(Path, "replace", move)
    sink.commit_batch(0, batch)
    assert place.values() == RECORDS


def test_the_manifest_of_a_batch_has_no_longer_name_than_those_of_its_tasks(place: Place) -> None:
    """A disk that takes the tasks' files takes it, too."""
    place.run(0, ["a"], ["b"], sink=place.sink("l" * 217))
    assert place.values() == ["a", "b"]


def test_a_completed_batch_whose_commit_the_catalog_has_lost_is_committed_again(place: Place) -> None:
    """The tasks' manifests are gone. What was made of them has all that they had."""
    batch, sink = place.decided(*TASKS), place.sink()
    sink.commit_batch(0, batch)
    sink.complete(0, batch)
    place.lose_commit()
    assert place.values() == []
    recovering = place.sink()
    recovering.commit_batch(0, batch)
    recovering.complete(0, batch)
    assert place.values() == RECORDS
    [manifest] = manifests(place)
    assert manifest.added_files_count == len(TASKS)


def test_a_manifest_is_not_larger_than_the_table_says(place: Place) -> None:
    batch = place.decided(*TASKS)
    size = batch[0].handle["length"]
    assert isinstance(size, int)
    place.set_properties({"commit.manifest.target-size-bytes": str(5 * size + 100)})
    sink = place.sink()
    sink.commit_batch(0, batch)
    sink.complete(0, batch)
    assert sorted(manifest.added_files_count or 0 for manifest in manifests(place)) == [2, 5, 5]
    assert place.values() == RECORDS


def test_manifests_of_another_codec_are_left_as_they_are(place: Place) -> None:
    votes = [place.vote(["a"], partition=0)]
    place.set_properties({"write.avro.compression-codec": "zstd"})
    votes.append(place.vote(["b"], partition=1))
    sink = place.sink()
    batch = sink.seal(votes, 0.0)
    sink.commit_batch(0, batch)
    sink.complete(0, batch)
    assert len(manifests(place)) == 2
    assert place.values() == ["a", "b"]


def test_manifests_of_two_specs_are_joined_apart(place: Place) -> None:
    votes = [place.vote([f"a{task}"], partition=task) for task in range(3)]
    place.add_partition_field()
    votes += [place.vote([f"b{task}"], partition=3 + task) for task in range(3)]
    sink = place.sink()
    batch = sink.seal(votes, 0.0)
    sink.commit_batch(0, batch)
    sink.complete(0, batch)
    assert sorted(manifest.partition_spec_id for manifest in manifests(place)) == [0, 1]
    assert place.values() == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert place.table().scan(row_filter="value = 'b1'").count() == 1


@pytest.mark.variants
@pytest.mark.parametrize(
    ("of_type", "values"),
    [
        (IntegerType(), [-1, 3, -300, None, 256]),
        (DoubleType(), [-0.5, float("nan"), 2.0, None]),
        (StringType(), ["b", "a", None, "ü"]),
        (DateType(), [dt.date(1969, 1, 1), dt.date(2026, 1, 1), None]),
        (DecimalType(9, 2), [decimal.Decimal("-1.25"), decimal.Decimal("300.00"), None]),
    ],
    ids=str,
)
def test_a_filter_finds_each_value_of_a_partition_field(
    of_type: PrimitiveType, values: list[Any], place: Place
) -> None:
    """A reader passes over a manifest whose summary does not have the value."""
    place.create(Schema(NestedField(1, "value", of_type)), BY_VALUE)
    sink = place.sink()
    assert sink._for_tasks is not None
    schema = sink._for_tasks.arrow_schema
    place.run(0, *[_records([value], schema) for value in values])
    [manifest] = manifests(place)
    [summary] = manifest.partitions or []
    assert summary.contains_null
    for value in values:
        assert place.table().scan(row_filter=_equal_to(value)).count() == 1, value


@pytest.mark.variants
@pytest.mark.parametrize("tasks", [[[0.0, -0.0]], [[0.0], [-0.0]]], ids=["one task", "joined"])
@pytest.mark.parametrize("is_merged", [False, True])
def test_bounds_of_partitions_enclose_both_zeros(tasks: list[list[float]], is_merged: bool, place: Place) -> None:
    """Iceberg for Java orders -0.0 before 0.0, and would pass over a manifest whose bounds do not have it."""
    place.create(Schema(NestedField(1, "value", FloatType())), BY_VALUE, properties={MERGE_AT: "2"})
    sink = place.sink()
    for number in range(2 if is_merged else 1):
        place.run(number, *[{"value": pa.array(values, pa.float32())} for values in tasks], sink=sink)
    [manifest] = manifests(place)
    [summary] = manifest.partitions or []
    assert (summary.lower_bound, summary.upper_bound) == (struct.pack("<f", -0.0), struct.pack("<f", 0.0))


@pytest.mark.long
def test_manifests_of_partitions_by_a_double_are_not_merged(place: Place) -> None:
    """pyiceberg reads doubles of a manifest as floats. A merge would write those, which no record has."""
    place.create(Schema(NestedField(1, "value", DoubleType())), BY_VALUE, properties={MERGE_AT: "2"})
    sink = place.sink()
    for number in range(3):
        place.run(number, {"value": [0.1 + number]}, sink=sink)
    assert len(manifests(place)) == 3
    for number in range(3):
        assert duckdb_reads(place, where=f"value = {0.1 + number!r}::DOUBLE").num_rows == 1


def _records(values: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, schema.field("value").type)], names=["value"])


def _equal_to(value: Any) -> BooleanExpression:
    column = Reference("value")
    if value is None:
        return IsNull(term=column)
    is_nan = isinstance(value, float) and math.isnan(value)
    return IsNaN(term=column) if is_nan else EqualTo(term=column, value=value)
