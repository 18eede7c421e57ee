"""A commit does not become slower with each snapshot and manifest that the table keeps, and is none the less exact."""

from dataclasses import replace

import pyarrow as pa
import pytest
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.snapshots import Snapshot

from tests.sinks.iceberg.conftest import Place
from tests.support.between import Between, once
from tests.support.counting import counted


def test_a_driver_reads_no_metadata_and_no_manifest_list_that_it_wrote(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.create()
    sink = place.sink()
    place.run(0, ["0"], sink=sink)
    read = counted(monkeypatch, FromInputFile, "table_metadata")
    listed = counted(monkeypatch, Snapshot, "manifests")
    for number in range(1, 4):
        place.run(number, [f"{number}"], sink=sink)
    assert read == listed == []
    monkeypatch.undo()
    assert place.values() == ["0", "1", "2", "3"]


def test_a_commit_copies_no_snapshot_that_the_table_had(place: Place) -> None:
    sink = place.sink()
    for number in range(3):
        place.run(number, [f"{number}"], sink=sink)
    before = sink._lake.table().metadata.snapshots
    place.run(3, ["3"], sink=sink)
    after = sink._lake.table().metadata.snapshots
    assert len(after) == len(before) + 1
    assert all(one is other for one, other in zip(before, after, strict=False))


def test_what_a_driver_keeps_of_a_table_is_what_another_program_reads(place: Place) -> None:
    place.create(properties={"commit.manifest.min-count-to-merge": "3"})
    sink = place.sink()
    for number in range(8):
        place.run(number, [f"{number}"], [f"{number}"], sink=sink)
        kept, read = sink._lake.load(), place.table()
        assert kept.metadata_location == read.metadata_location
        assert kept.metadata.model_dump_json() == read.metadata.model_dump_json()
        snapshot = read.current_snapshot()
        assert snapshot is not None
        of_driver, of_reader = sink._lists.read(sink._lake.io(), snapshot), snapshot.manifests(read.io)
        assert [[*map(each.__getitem__, range(15))] for each in of_driver] == [each._data for each in of_reader]


@pytest.mark.variants
@pytest.mark.parametrize("codec", ["gzip", "null"])
def test_what_others_do_between_batches_is_in_the_next_one(codec: str, place: Place) -> None:
    sink = place.sink()
    place.run(0, ["0"], sink=sink)
    place.table().append(pa.table({"value": ["foreign"]}))
    place.run(1, ["1"], sink=sink)
    place.set_properties({"write.avro.compression-codec": codec})
    place.run(2, ["2"], sink=sink)
    place.table().delete("value == '0'")
    place.run(3, ["3"], sink=sink)
    place.expire()
    place.run(4, ["4"], sink=sink)
    assert place.values() == ["1", "2", "3", "4", "foreign"]
    assert len(place.table().snapshots()) == 2


@pytest.mark.long
def test_a_manifest_list_of_an_attempt_that_lost_a_race_is_not_taken_for_the_tables(place: Place) -> None:
    sink = place.sink()
    place.run(0, ["0"], sink=sink)
    Between(before=once(lambda: place.table().append(pa.table({"value": ["foreign"]})))).stand(sink)
    place.run(1, ["1"], sink=sink)
    place.run(2, ["2"], sink=sink)
    assert place.values() == ["0", "1", "2", "foreign"]


@pytest.mark.long
def test_a_session_token_without_an_end_gets_one_with_each_load(place: Place) -> None:
    sink = replace(place, properties={**place.properties, "s3.session-token": "token"}).sink()
    ends = [sink._lake.load().io.properties["s3.session-token-expires-at-ms"] for _ in range(2)]
    assert ends[0] <= ends[1]
    sink._lake.table().io.properties["s3.session-token-expires-at-ms"] = "0"
    assert sink._lake.table().io.properties["s3.session-token-expires-at-ms"] >= ends[1]
