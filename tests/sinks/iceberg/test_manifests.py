"""Manifests are merged after batches, and no record is lost, doubled or hidden from a filter by that."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, StringType

from tests.sinks.iceberg.conftest import BY_VALUE, Place, Query
from tests.support.between import Between, lost, nothing, once
from tests.support.raising import raising
from twopc import Round
from twopc_iceberg import IcebergSink

FEW = {"commit.manifest.min-count-to-merge": "4"}


def manifests(place: Place) -> int:
    return len(place.snapshot().manifests(place.table().io))


def test_small_manifests_are_merged_and_every_record_is_found(place: Place) -> None:
    place.create(spec=BY_VALUE, properties=FEW)
    sink = place.sink()
    most = 0
    for number in range(20):
        place.run(number, [f"a{number}"], [f"b{number}"], sink=sink)
        most = max(most, manifests(place))
    wanted = sorted(f"{name}{number}" for name in "ab" for number in range(20))
    assert place.values() == wanted
    assert most < 12
    for value in wanted[::7]:
        assert place.table().scan(row_filter=f"value = '{value}'").count() == 1
    current = place.snapshot()
    assert current.summary is not None
    assert current.summary["total-records"] == "40"


def test_a_merge_keeps_the_order_in_which_files_came(place: Place) -> None:
    """By sequence numbers, equality deletes know which files are older."""
    place.create(properties=FEW)
    sink = place.sink()
    for number in range(4):
        place.run(number, [f"{number}"], sink=sink)
    entries = place.table().inspect.entries().to_pylist()
    assert sorted(entry["sequence_number"] for entry in entries) == [2, 3, 4, 5]
    assert len({entry["snapshot_id"] for entry in entries}) == 4


def complete_the_fourth(place: Place, between: Between) -> IcebergSink:
    """Commit four batches, whose manifests are merged then: by a request of its own, at which ``between`` stands."""
    place.create(properties=FEW)
    sink = place.sink()
    for number in range(3):
        place.run(number, [f"{number}"], sink=sink)
    last = place.decided(["3"], round=Round(1, 3), sink=sink)
    sink.commit_batch(3, last)
    between.stand(sink)
    sink.complete(3, last)
    return sink


def test_a_merge_that_another_writer_forestalls_changes_nothing_and_leaves_no_file(place: Place) -> None:
    """Else a busy table would get some with each batch."""
    foreign = pa.table({"value": ["foreign"]})
    sink = complete_the_fourth(place, Between(before=once(lambda: place.table().append(foreign))))
    assert place.values() == ["0", "1", "2", "3", "foreign"]
    table = place.table()
    lists = {snapshot.manifest_list for snapshot in table.snapshots()}
    used = lists | {each.manifest_path for snapshot in table.snapshots() for each in snapshot.manifests(table.io)}
    assert {f"{table.location()}/{name}" for name in place.files() if name.endswith(".avro")} == used
    place.run(4, ["4"], sink=sink)
    assert place.values() == ["0", "1", "2", "3", "4", "foreign"]


def test_a_merge_whose_conflict_is_reported_though_it_has_landed_removes_no_file(place: Place) -> None:
    """As by a gateway that has repeated the request and passes on the second answer."""
    complete_the_fourth(place, Between(after=once(raising(CommitFailedException()))))
    assert manifests(place) == 1
    assert place.values() == ["0", "1", "2", "3"]


def test_a_merge_whose_answer_is_lost_costs_nothing(place: Place) -> None:
    place.create(properties=FEW)
    sink = place.sink()
    between = Between().stand(sink)
    for number in range(12):
        made = place.decided([f"{number:02}"], round=Round(1, number))
        sink.commit_batch(number, made)
        between.after = lost
        sink.complete(number, made)
        between.after = nothing
    assert place.values() == [f"{number:02}" for number in range(12)]


@pytest.mark.long
def test_manifests_of_two_specs_are_not_mixed(place: Place) -> None:
    place.create(properties=FEW)
    sink = place.sink()
    for number in range(3):
        place.run(number, [f"{number}"], sink=sink)
    place.add_partition_field()
    for number in range(3, 9):
        place.run(number, [f"{number}"])
    assert place.values() == [f"{number}" for number in range(9)]
    assert place.table().scan(row_filter="value = '7'").count() == 1
    assert place.table().scan(row_filter="value = '1'").count() == 1


def test_manifests_of_a_spec_whose_column_was_dropped_are_left_and_others_are_merged(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    schema = Schema(NestedField(1, "value", StringType()), NestedField(2, "day", StringType()))
    place.create(schema, PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day")), properties=FEW)
    sink = place.sink()
    for number in range(3):
        made = place.decided({"value": [f"{number}"], "day": ["x"]}, round=Round(1, number), sink=sink)
        sink.commit_batch(number, made)
    place.set_properties({"commit.manifest.min-count-to-merge": "2"})
    with place.table().update_spec() as spec:
        spec.remove_field("day")
    with place.table().update_schema() as update:
        update.delete_column("day")
    for number in range(3, 7):
        place.run(number, [f"{number}"])
    assert manifests(place) <= 3 + 2
    assert caplog.records == []
    assert place.values() == [f"{number}" for number in range(7)]


def test_a_merge_that_fails_is_a_warning_once_and_stops_no_query(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("twopc_iceberg.merging.ManifestWriter", raising(KeyError("anything")))
    place.create(properties={"commit.manifest.min-count-to-merge": "2"})
    query = Query(place, tmp_path / "log")
    for number in range(4):
        query.run(number, value=[f"{number}"])
    assert place.values() == [f"{number}" for number in range(4)]
    assert len([record for record in caplog.records if "are not merged" in record.message]) == 1


@pytest.mark.long
def test_a_table_may_say_that_nothing_is_merged(place: Place) -> None:
    place.create(properties={**FEW, "commit.manifest-merge.enabled": "false"})
    sink = place.sink()
    for number in range(6):
        place.run(number, [f"{number}"], sink=sink)
    assert manifests(place) == 6
