"""With ``deletes=position``, the commit finds the rows of a batch's keys in the snapshot before it."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import RemovePropertiesUpdate
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.typedef import IcebergBaseModel, Record
from pyiceberg.types import DoubleType, FloatType, IntegerType, LongType, NestedField, StringType

from tests.sinks.iceberg import test_upserts as of_upserts
from tests.sinks.iceberg.conftest import Place, few, on_disk
from tests.sinks.iceberg.test_contract import SCHEMA
from tests.sinks.iceberg.test_upserts import BY_DAY, COLUMNS, PAIRS, append, commit_manifests, compact, names, read
from tests.support.between import Between, lost, once
from tests.support.counting import counted
from tests.support.keyed_table import records, run, sealed, upserts, vote
from tests.support.typed_records import typed
from twopc import Committable, Participant, Round
from twopc.errors import ConfigurationError, OperatorRequired, Refused, Retriable, TransactionLost
from twopc_iceberg import positions
from twopc_iceberg.delete_files import _applies
from twopc_iceberg.manifests import ManifestWriter, entries
from twopc_iceberg.prepared import of_committable
from twopc_iceberg.pyiceberg_internals import data_file

pytestmark = pytest.mark.in_turn("table")

BY_BUCKET = PartitionSpec(PartitionField(1, 1000, BucketTransform(16), "bucket"))
VERSIONS = [pytest.param("2", id="files of positions"), pytest.param("3", id="deletion vectors")]


@pytest.fixture(params=VERSIONS)
def table(place: Place, request: pytest.FixtureRequest) -> Iterator[Place]:
    found = replace(place, deletes="position", version=request.param)
    found.create(COLUMNS)
    # Other programs write version 3, and pyiceberg does not.
    with patch.object(TableMetadataV3, "model_dump_json", IcebergBaseModel.model_dump_json):
        yield found


@pytest.fixture
def by_files(place: Place) -> Place:
    found = replace(place, deletes="position")
    found.create(COLUMNS)
    return found


def live(place: Place, content: DataFileContent) -> list[ManifestEntry]:
    """The files of the table's newest snapshot, with the fields of version 3."""
    snapshot, io = place.snapshot(), upserts(place)._lake.io()
    found = [entry for each in upserts(place)._lists.read(io, snapshot) for entry in entries(io, each)]
    return [entry for entry in found if entry.data_file.content is content]


def path_of(entry: ManifestEntry) -> Path:
    return on_disk(entry.data_file.file_path)


def positions_of(place: Place, entry: ManifestEntry) -> dict[str, list[int]]:
    """The rows that a delete file has, by their data file, as pyiceberg and pyarrow read them."""
    path = path_of(entry)
    if entry.data_file.file_format is FileFormat.PUFFIN:
        vectors = deletion_vectors_from_puffin_file(PuffinFile(path.read_bytes()))
        return {each.referenced_data_file: each.to_vector().to_pylist() for each in vectors}
    found = pq.read_table(path).to_pydict()
    assert sorted(found["pos"]) == found["pos"]
    return dict.fromkeys(set(found["file_path"]), found["pos"])


def test_deletes_are_written_as_the_specification_has_them(table: Place) -> None:
    run(table, 0, [(number, f"{number}", "mon") for number in range(5)])
    [data] = live(table, DataFileContent.DATA)
    run(table, 1, [(1, "b", "tue"), (9, "c", "mon")], 3, 77)
    [delete] = live(table, DataFileContent.POSITION_DELETES)
    snapshot = table.snapshot()
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.OVERWRITE
    kind = "added-dvs" if table.version == "3" else "added-position-delete-files"
    assert snapshot.summary[kind] == snapshot.summary["added-delete-files"] == "1"
    assert snapshot.summary["added-position-deletes"] == snapshot.summary["total-position-deletes"] == "2"
    location = data.data_file.file_path
    assert positions_of(table, delete) == {location: [1, 3]}
    assert delete.sequence_number == snapshot.sequence_number
    assert delete.data_file.record_count == 2
    assert delete.data_file.file_size_in_bytes == path_of(delete).stat().st_size
    assert delete.data_file[17] == (location if table.version == "3" else None)
    if table.version == "2":
        schema = pq.read_schema(path_of(delete))
        assert [(each.name, int(each.metadata[b"PARQUET:field_id"])) for each in schema] == [
            ("file_path", 2147483546),
            ("pos", 2147483545),
        ]
    else:
        [blob] = PuffinFile(path_of(delete).read_bytes()).footer.blobs
        assert (delete.data_file[18], delete.data_file[19]) == (blob.offset, blob.length)
        assert (blob.type, blob.fields, blob.snapshot_id, blob.sequence_number) == (
            *("deletion-vector-v1", [2147483545], -1, -1),
        )
        assert blob.properties == {"referenced-data-file": location, "cardinality": "2"}


def test_a_data_file_has_one_delete_file_which_grows_and_the_one_before_is_removed_as_deleted(table: Place) -> None:
    run(table, 0, [(number, f"{number}", "mon") for number in range(5)])
    run(table, 1, [], 1)
    [first] = live(table, DataFileContent.POSITION_DELETES)
    run(table, 2, [], 3, 1)
    [second] = live(table, DataFileContent.POSITION_DELETES)
    assert [*positions_of(table, second).values()] == [[1, 3]]
    snapshot, io = table.snapshot(), table.table().io
    assert snapshot.summary is not None
    assert snapshot.summary["removed-delete-files"] == snapshot.summary["total-delete-files"] == "1"
    [manifest] = [each for each in snapshot.manifests(io) if each.content is ManifestContent.DELETES]
    gone = [each for each in manifest.fetch_manifest_entry(io, discard_deleted=False) if each.status.value == 2]
    assert [each.data_file.file_path for each in gone] == [first.data_file.file_path]
    assert gone[0].sequence_number == first.sequence_number
    assert names(table) == ["0", "2", "4"]


@pytest.mark.long
def test_files_of_positions_go_into_the_vector_after_an_upgrade_to_version_3(by_files: Place) -> None:
    run(by_files, 0, [(number, f"{number}", "mon") for number in range(5)])
    run(by_files, 1, [], 1)
    shared = shared_deletes(by_files, 2)
    upgraded = replace(by_files, version="3")
    with patch.object(TableMetadataV3, "model_dump_json", IcebergBaseModel.model_dump_json):
        _upgrade(upgraded)
        run(upgraded, 2, [(8, "8", "mon")], 3)
    found = live(upgraded, DataFileContent.POSITION_DELETES)
    assert sorted(each.data_file.file_format.name for each in found) == ["PARQUET", "PUFFIN"]
    [vector] = [each for each in found if each.data_file.file_format is FileFormat.PUFFIN]
    assert [*positions_of(upgraded, vector).values()] == [[1, 2, 3]]
    assert [each.data_file.file_path for each in found if each is not vector] == [shared]
    assert names(upgraded) == ["0", "4", "8"]
    ids = [each.data_file[16] for each in live(upgraded, DataFileContent.DATA)]
    assert sorted(ids) == [0, 1]  # also rows of version 2 get ids with the first snapshot of version 3
    snapshot = upgraded.snapshot()
    assert (snapshot.first_row_id, snapshot.added_rows) == (0, 6)


def _upgrade(place: Place) -> None:
    place.point_to({**place.table().metadata.model_dump(mode="json"), "format-version": 3, "next-row-id": 0})


def shared_deletes(place: Place, *rows: int, of_format: FileFormat = FileFormat.PARQUET) -> str:
    """Add a file of deletes that is for several data files, as Spark writes one per partition. Returns its location."""
    table, io = place.table(), upserts(place)._lake.io()
    files = [entry.data_file for entry in live(place, DataFileContent.DATA)]
    location = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
    of_rows = [(path, row) for path in sorted(each.file_path for each in files) for row in rows]
    paths, positions = (list(column) for column in zip(*of_rows, strict=True))
    pq.write_table(pa.table({"file_path": paths, "pos": positions}), on_disk(location))
    deletes = data_file(
        content=DataFileContent.POSITION_DELETES,
        file_path=location,
        file_format=of_format,
        partition=files[0].partition,
        record_count=len(of_rows),
        file_size_in_bytes=on_disk(location).stat().st_size,
    )
    output = io.new_output(f"{table.location()}/metadata/{uuid.uuid4()}-m0.avro")
    with ManifestWriter(ManifestContent.DELETES, table.metadata, table.spec(), table.schema(), output, None) as writer:
        writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=deletes))
    commit_manifests(place, [writer.to_manifest_file()])
    return location


def test_rows_that_others_deleted_stay_deleted_and_are_not_found_again(table: Place) -> None:
    if table.version == "3":
        pytest.skip("no writer adds such files to a table of version 3")
    run(table, 0, [(number, f"{number}", "mon") for number in range(4)])
    run(table, 1, [(number, f"{number}", "mon") for number in range(4, 8)])
    shared_deletes(table, 1)
    assert names(table) == ["0", "2", "3", "4", "6", "7"]
    run(table, 2, [], 1, 2)
    [own] = [each for each in live(table, DataFileContent.POSITION_DELETES) if each.data_file.lower_bounds]
    assert [*positions_of(table, own).values()] == [[1, 2]]
    run(table, 3, [], 5)  # which is deleted
    assert names(table) == ["0", "3", "4", "6", "7"]
    assert len(live(table, DataFileContent.POSITION_DELETES)) == 2


def test_rows_that_others_deleted_in_a_partition_of_nan_stay_deleted(by_files: Place) -> None:
    weight = NestedField(4, "weight", FloatType())
    by_files.create(Schema(*COLUMNS.fields, weight), PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "w")))
    rows = records([(number, f"{number}", "mon") for number in range(4)])
    rows = rows.append_column("weight", pa.array([float("nan")] * 4, pa.float32()))
    sink = upserts(by_files)
    sink.commit_batch(0, sink.seal([by_files.vote(rows, sink=sink)], 0.0))
    shared_deletes(by_files, 1)
    with Participant({"orders": sink}, Round(1, 1), partition=0) as participant:
        participant.delete("orders", rows.slice(2, 1))
        sink.commit_batch(1, sink.seal([participant.pre_commit()["orders"]], 0.0))
    [own] = [each for each in live(by_files, DataFileContent.POSITION_DELETES) if each.data_file.lower_bounds]
    assert [*positions_of(by_files, own).values()] == [[1, 2]]
    assert sorted(row["name"] for row in by_files.records()) == ["0", "3"]


@pytest.mark.parametrize(
    ("deleted_in", "applies"),
    [((float("nan"), "mon"), True), ((float("nan"), "tue"), False), ((None, "mon"), False), ((1.0, "mon"), False)],
)
def test_deletes_of_others_apply_in_their_own_partition_alone(deleted_in: tuple[Any, Any], applies: bool) -> None:
    """Bounds do not tell where the paths of a table begin with a hash, or where the writer has left them out."""
    file: Any = SimpleNamespace(spec=0, partition=Record(float("nan"), "mon"), path="s3://t/a.parquet")
    delete: Any = SimpleNamespace(spec_id=0, partition=Record(*deleted_in), lower_bounds=None, upper_bounds=None)
    assert _applies(delete, file) is applies
    delete.spec_id = 1
    assert not _applies(delete, file)


def test_a_batch_that_finds_no_row_is_an_append(table: Place) -> None:
    """A Spark stream from the table goes on over it."""
    run(table, 0, [(1, "a", "mon")])
    run(table, 1, [(2, "b", "mon")], 7)
    run(table, 2, [], 7)
    snapshots = table.table().snapshots()
    assert [each.summary.operation for each in snapshots if each.summary] == [Operation.APPEND] * 4
    assert names(table) == ["a", "b"]


def test_rows_of_version_3_get_ids_that_no_other_row_has(table: Place) -> None:
    if table.version == "2":
        pytest.skip("rows of version 2 have no ids")
    table.set_properties({"commit.manifest.min-count-to-merge": "3"})
    run(table, 0, [(number, f"{number}", "mon") for number in range(3)])
    for batch_id in range(1, 8):
        run(table, batch_id, [(batch_id, "again", "mon"), (batch_id + 10, "new", "mon")])
    ids: list[int] = []
    for entry in live(table, DataFileContent.DATA):
        ids += range(entry.data_file[16], entry.data_file[16] + entry.data_file.record_count)
    assert len(ids) == len(set(ids)) == 17
    metadata = table.table().metadata
    assert isinstance(metadata, TableMetadataV3)
    assert metadata.next_row_id is not None
    assert metadata.next_row_id > max(ids)
    merged = [
        each for each in table.table().snapshots() if each.summary and each.summary.operation is Operation.REPLACE
    ]
    assert merged


def test_a_compaction_that_removes_the_files_between_search_and_commit_neither_loses_nor_doubles(table: Place) -> None:
    run(table, 0, [(1, "a", "mon"), (2, "b", "tue"), (3, "c", "tue")])
    batch, sink = sealed(table, vote(table, [(1, "A", "wed")], [2], Round(1, 1))), upserts(table)
    old = [path_of(each) for each in live(table, DataFileContent.DATA)]

    def compact_and_clean() -> None:
        compact(table)
        for path in old:
            path.unlink()

    between = Between(before=once(compact_and_clean)).stand(sink)
    sink.commit_batch(1, batch)
    assert len(between.requests) == 2
    assert names(table) == ["A", "c"]
    left = {Path(name).name for name in table.files() if "-deletes." in name}
    assert left == {path_of(each).name for each in live(table, DataFileContent.POSITION_DELETES)}
    with pytest.raises(CommitFailedException):
        between.requests[0]()


def test_files_that_a_compaction_has_removed_since_the_table_was_loaded_are_looked_for_again(table: Place) -> None:
    run(table, 0, [(1, "a", "mon"), (2, "b", "tue")])
    batch, sink = sealed(table, vote(table, [(1, "A", "wed")], round=Round(1, 1))), upserts(table)
    old = [path_of(each) for each in live(table, DataFileContent.DATA)]
    sink._lake.load()
    compact(table)
    for path in old:
        path.unlink()
    sink.commit_batch(1, batch)
    assert names(table) == ["A", "b"]


def test_a_file_that_the_table_names_and_that_is_gone_calls_an_operator(table: Place) -> None:
    run(table, 0, [(1, "a", "mon"), (2, "b", "tue")])
    batch, sink = sealed(table, vote(table, [(1, "A", "wed")], round=Round(1, 1))), upserts(table)
    [path] = [path_of(each) for each in live(table, DataFileContent.DATA)]
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(OperatorRequired, match=f"{path.name} is gone. Restore the file"):
        sink.commit_batch(1, batch)
    path.write_bytes(content)
    sink.commit_batch(1, batch)
    assert names(table) == ["A", "b"]


def test_a_damaged_delete_file_calls_an_operator(table: Place) -> None:
    run(table, 0, [(1, "a", "mon"), (2, "b", "tue"), (3, "c", "tue")])
    run(table, 1, [], 1)
    batch, sink = sealed(table, vote(table, [], [2], round=Round(1, 2))), upserts(table)
    [path] = [path_of(each) for each in live(table, DataFileContent.POSITION_DELETES)]
    content = path.read_bytes()
    path.write_bytes(content[:20] + bytes([content[20] ^ 255]) + content[21:] if table.version == "3" else content[:40])
    with pytest.raises(OperatorRequired, match=f"file .*{path.name} is damaged"):
        sink.commit_batch(2, batch)
    path.write_bytes(content)
    sink.commit_batch(2, batch)
    assert names(table) == ["c"]


def test_a_lost_request_is_sent_again_as_it_was_and_its_rows_are_not_searched_twice(table: Place) -> None:
    run(table, 0, [(1, "a", "mon"), (2, "b", "tue")])
    batch, sink = sealed(table, vote(table, [(1, "A", "wed")], round=Round(1, 1))), upserts(table)
    Between(passes=0).stand(sink)
    with pytest.raises(Retriable):
        sink.commit_batch(1, batch)
    before = table.files()
    with patch.object(positions.Positions, "changes", side_effect=AssertionError), pytest.raises(Retriable):
        sink.commit_batch(1, batch)
    assert table.files() == before
    upserts(table).commit_batch(1, batch)
    assert names(table) == ["A", "b"]


def test_the_deletes_of_a_commit_whose_answer_was_lost_stay_though_its_snapshot_has_expired(table: Place) -> None:
    run(table, 0, [(1, "a", "mon"), (2, "b", "tue")])
    batch, sink = sealed(table, vote(table, [(1, "A", "wed")], round=Round(1, 1))), upserts(table)

    def others_go_on() -> None:
        committed = table.snapshot().snapshot_id
        append(table, (7, "c", "mon"))
        table.table().maintenance.expire_snapshots().by_ids([committed]).commit()
        lost()

    Between(after=once(others_go_on)).stand(sink)
    sink.commit_batch(1, batch)
    assert names(table) == ["A", "b", "c"]


def test_columns_of_the_key_that_were_renamed_and_widened_are_found_by_their_ids(by_files: Place) -> None:
    schema = Schema(
        NestedField(1, "id", IntegerType()),
        NestedField(2, "name", StringType(), required=True),
        NestedField(3, "day", StringType()),
    )
    by_files.create(schema)
    batch: Sequence[Committable] = ()
    for batch_id, (ids, name) in enumerate([([1, 2], "old"), ([1], "new")]):
        rows = pa.record_batch({"id": pa.array(ids, pa.int32()), "name": [name] * len(ids), "day": [""] * len(ids)})
        sink = upserts(by_files)
        batch = sink.seal([by_files.vote(rows, Round(1, batch_id), sink=sink)], 0.0)
        if batch_id == 0:
            sink.commit_batch(0, batch)
    with by_files.table().update_schema() as update:
        update.update_column("id", LongType())
    with by_files.table().update_schema() as update:
        update.rename_column("id", "number")
    by_files.bound(upsert_by="number").commit_batch(1, batch)
    assert sorted(row["name"] for row in by_files.records()) == ["new", "old"]


def test_an_upgrade_to_version_3_between_search_and_commit_has_the_batch_write_vectors(by_files: Place) -> None:
    run(by_files, 0, [(1, "a", "mon"), (2, "b", "tue")])
    batch, sink = sealed(by_files, vote(by_files, [(1, "A", "wed")], round=Round(1, 1))), upserts(by_files)
    Between(before=once(lambda: _upgrade(by_files))).stand(sink)
    sink.commit_batch(1, batch)
    assert by_files.table().metadata.format_version == 3
    [found] = live(by_files, DataFileContent.POSITION_DELETES)
    assert found.data_file.file_format is FileFormat.PUFFIN
    assert names(by_files) == ["A", "b"]


def test_a_batch_is_committed_as_it_was_written_whatever_the_option_is_now(by_files: Place) -> None:
    run(by_files, 0, [(1, "a", "mon")])
    batch = sealed(by_files, vote(by_files, [(1, "A", "wed")], round=Round(1, 1)))
    by_files.sink(upsert_by="id", deletes="equality").commit_batch(1, batch)
    assert names(by_files) == ["A"]
    assert live(by_files, DataFileContent.EQUALITY_DELETES) == []


def test_a_late_request_of_version_3_is_refused_after_a_roll_back(table: Place) -> None:
    """The branch has the snapshot again that the request requires. Its sequence number is taken."""
    run(table, 0, [(1, "a", "mon")])
    before = table.snapshot().snapshot_id
    batch, sink = sealed(table, vote(table, [], [1], Round(1, 1))), upserts(table)
    between = Between(passes=0).stand(sink)
    with pytest.raises(Retriable):
        sink.commit_batch(1, batch)
    upserts(table).commit_batch(1, batch)
    assert names(table) == []
    table.table().manage_snapshots().set_current_snapshot(snapshot_id=before).commit()
    with pytest.raises((ValueError, CommitFailedException), match="sequence number"):
        between.requests[0]()
    assert names(table) == ["a"]


def test_keys_that_are_gone_call_an_operator_and_those_of_a_visible_batch_are_removed(table: Place) -> None:
    run(table, 0, [(1, "a", "mon"), (2, "b", "mon")])
    batch = sealed(table, vote(table, [(1, "A", "wed")], round=Round(1, 1)))
    known = {path_of(each).name for each in live(table, DataFileContent.DATA)}
    names_of = [name for name in table.files() if name.endswith(".parquet") and Path(name).name not in known]
    [path] = [table.folder / name for name in names_of if pq.read_schema(table.folder / name).names == ["id"]]
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(TransactionLost, match=path.name):
        upserts(table).commit_batch(1, batch)
    path.write_bytes(content)
    sink = upserts(table)
    sink.commit_batch(1, batch)
    for _ in range(2):  # it is repeated after a crash
        sink.complete(1, batch)
        assert not path.exists()
    upserts(table).commit_batch(1, batch)
    assert names(table) == ["A", "b"]


@pytest.mark.variants
@pytest.mark.parametrize("spec", [UNPARTITIONED_PARTITION_SPEC, BY_BUCKET], ids=["bounds", "partitions"])
def test_files_whose_bounds_or_partition_have_no_key_are_not_read(
    spec: PartitionSpec, by_files: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_files.create(COLUMNS, spec)
    for batch_id in range(4):
        run(by_files, batch_id, [(batch_id * 100 + number, f"{number}", "mon") for number in (0, 9)])
    opened = counted(monkeypatch, positions._Search, "_columns")
    run(by_files, 4, [(209, "new", "tue")])
    assert len(opened) == 1
    assert len(read(by_files)) == 8
    assert "new" in names(by_files)


KEYED = [*("value", "whole", "flag", "at", "day", "amount", "raw")]


@pytest.mark.parametrize(("version", "keys"), few([("3", [",".join(KEYED)])], ("2", KEYED), ("3", KEYED)))
def test_rows_are_found_by_keys_of_every_type(version: str, keys: list[str], place: Place) -> None:
    found = replace(place, deletes="position", version=version)
    rows = typed()
    rows = pa.RecordBatch.from_arrays(rows.columns, rows.schema.names)
    for key in keys:
        columns = key.split(",")
        wanted = pa.Table.from_batches([rows]).filter(
            [
                all(value is not None for value in row)
                for row in zip(*(rows[name].to_pylist() for name in columns), strict=True)
            ]
        )
        places = {tuple(row.values()): at for at, row in enumerate(wanted.select(columns).to_pylist())}
        [once_each] = wanted.take(sorted(places.values())).combine_chunks().to_batches()
        found.create(
            SCHEMA,
            PartitionSpec(
                PartitionField(2, 1000, TruncateTransform(8), "eights"),
                PartitionField(8, 1001, IdentityTransform(), "day"),
                PartitionField(7, 1002, DayTransform(), "at_day"),
            ),
        )
        for batch_id in range(2):
            sink = found.sink(upsert_by=key)
            with Participant({"orders": sink}, Round(1, batch_id), partition=0) as participant:
                participant.write("orders", once_each)
                batch = sink.seal([participant.pre_commit()["orders"]], 0.0)
            sink.commit_batch(batch_id, batch)
        assert found.table().scan().count() == once_each.num_rows, key
        sink = found.sink(upsert_by=key)
        with Participant({"orders": sink}, Round(1, 2), partition=0) as participant:
            participant.delete("orders", once_each)
            batch = sink.seal([participant.pre_commit()["orders"]], 0.0)
        sink.commit_batch(2, batch)
        assert found.table().scan().count() == 0, key


def test_rows_of_files_without_ids_and_without_the_partitions_column_are_found(by_files: Place) -> None:
    """As an import of Hive's files leaves them."""
    by_files.create(COLUMNS, BY_DAY)
    table = by_files.table()
    table.add_files([_imported(by_files, "mon", 1), _imported(by_files, "tue", 1)])
    for batch_id, (key, left) in enumerate([("id,day", ["B", "tue 1"]), ("day", ["B"])]):
        sink = by_files.sink(f"log-{batch_id}", upsert_by=key)
        with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
            participant.write("orders", records([(1, "B", "mon")])) if batch_id == 0 else participant.delete(
                "orders", records([(1, "", "tue")])
            )
            batch = sink.seal([participant.pre_commit()["orders"]], 0.0)
        sink.commit_batch(0, batch)
        assert sorted(row["name"] for row in by_files.records()) == left


def _imported(place: Place, day: str, number: int) -> str:
    location = f"{place.table().location()}/day={day}/{number}.parquet"
    on_disk(location).parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_batches([records([(number, f"{day} {number}", day)])]), on_disk(location))
    return location


def test_a_table_whose_rows_can_not_be_deleted_by_position_is_refused_before_the_decision(by_files: Place) -> None:
    schema = Schema(*COLUMNS.fields, NestedField(4, "weight", DoubleType()))
    by_files.create(schema, PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "weight")))
    row = pa.record_batch({"id": [1], "name": ["a"], "day": ["mon"], "weight": [1 / 3]})
    sink = upserts(by_files)
    sink.commit_batch(0, sink.seal([by_files.vote(row, sink=sink)], 0.0))
    with pytest.raises(Refused, match="in a partition by the identity of a double"):
        sink.seal([by_files.vote(row, Round(1, 1), sink=sink)], 0.0)


def imported(place: Place) -> None:
    """A file of another program, which a table without a mapping of names can't read by ids."""
    place.table().add_files([_imported(place, "mon", 1)])
    place.change(RemovePropertiesUpdate(removals=["schema.name-mapping.default"]))


def mapped(place: Place) -> None:
    place.set_properties({"schema.name-mapping.default": place.table().schema().name_mapping.model_dump_json()})


def deleted_in_avro(place: Place) -> None:
    on_disk(shared_deletes(place, 1, of_format=FileFormat.AVRO)).write_bytes(b"Obj\x01")


def rewritten(place: Place) -> None:
    rows = place.vote(records([(1, "a", "mon"), (2, "b", "mon")]), Round(1, 9), sink=place.sink("others"))
    commit_manifests(place, [each.manifest_file(0) for each in of_committable(rows)], keeps=False)


@pytest.mark.parametrize(
    ("changes", "advice", "follow"),
    [
        (imported, r"1\.parquet has no ids of columns, .*: set it, or run rewrite", mapped),
        (deleted_in_avro, r"has position deletes in AVRO: .* run rewrite_position_delete_files", rewritten),
    ],
    ids=["no ids", "avro"],
)
@pytest.mark.parametrize("is_sealed", [False, True], ids=["before the seal", "after it"])
@pytest.mark.in_turn("changes")
@pytest.mark.in_turn("is_sealed")
def test_a_file_of_another_writer_whose_rows_can_not_be_found_refuses_the_batch_before_the_decision(
    by_files: Place, changes: Callable[[Place], None], advice: str, follow: Callable[[Place], None], is_sealed: bool
) -> None:
    run(by_files, 0, [(1, "a", "mon"), (2, "b", "mon")])
    voted = vote(by_files, [(1, "A", "wed")], round=Round(1, 1))
    batch = sealed(by_files, voted) if is_sealed else []
    changes(by_files)
    with pytest.raises(OperatorRequired if is_sealed else Refused, match=advice) as found:
        upserts(by_files).commit_batch(1, batch or sealed(by_files, voted))
    assert "Restore" not in str(found.value)
    follow(by_files)
    upserts(by_files).commit_batch(1, batch or sealed(by_files, voted))
    assert names(by_files) == ["A", "b"]


def test_a_file_is_opened_once_for_its_columns_and_again_when_names_are_mapped_otherwise(
    by_files: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, opened = upserts(by_files), counted(monkeypatch, positions._Search, "require_columns")

    def batch(number: int) -> int:
        opened.clear()
        found = sink.seal([by_files.vote(records([(1, "a", "mon")]), Round(1, number), sink=sink)], 0.0)
        sink.commit_batch(number, found)
        return len(opened)

    assert [batch(number) for number in range(3)] == [0, 1, 1]
    mapped(by_files)
    assert batch(3) == 3


def test_the_option_needs_a_key(place: Place) -> None:
    with pytest.raises(ConfigurationError, match="takes 'deletes' only with 'upsert_by'") as refused:
        place.unbound(deletes="position")
    assert refused.value.option == "deletes"


@pytest.mark.variants
@pytest.mark.parametrize("reader", ["native", "pyiceberg"])
def test_polars_reads_the_result(reader: Any, table: Place) -> None:
    for batch_id in range(3):
        run(table, batch_id, [(1, f"{batch_id}", "mon"), (batch_id + 5, "new", "tue")], 5)
    found = pl.scan_iceberg(table.table(), reader_override=reader).collect()
    assert sorted(found["name"].to_list()) == sorted(names(table)) == ["2", "new", "new"]


@pytest.mark.long
class TestKeyedByPosition(of_upserts.TestKeyed):
    version = "2"

    @pytest.fixture(autouse=True)
    def _place(self, place: Place) -> None:
        self.place = replace(place, deletes="position", version=self.version)
        self.place.create(PAIRS, self.spec, properties={"commit.manifest.min-count-to-merge": "3"})


class TestKeyedByVectorsInPartitions(TestKeyedByPosition):
    version = "3"
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(3), "id_bucket"))
