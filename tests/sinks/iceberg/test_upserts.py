"""With ``upsert_by``, a record replaces the one of its key, and a delete removes it, whatever others do to the table.
pyiceberg does not read equality deletes: DuckDB looks at the table, and both look at position deletes."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddPartitionSpecUpdate
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import DoubleType, FloatType, LongType, NestedField, StringType, StructType, TimeType, UUIDType

from tests.sinks.iceberg.conftest import Place, few, on_disk
from tests.sinks.iceberg.test_contract import SCHEMA as TYPED
from tests.support.between import Between, lost, nothing, once
from tests.support.duckdb_extension import load
from tests.support.keyed_table import KeyedTableContract, commit, records, run, sealed, upserts, vote
from tests.support.typed_records import typed, unchecked_text
from twopc import Committable, Participant, Round
from twopc.checks import CheckStatus
from twopc.errors import ConfigurationError, OperatorRequired, RoundAborted, SchemaMismatch, TransactionLost
from twopc.testing import KeyedSinkContract, SinkContract
from twopc_iceberg import IcebergSink, checks
from twopc_iceberg.catalogs import connected
from twopc_iceberg.manifests import ManifestLists
from twopc_iceberg.prepared import of_committable
from twopc_iceberg.snapshot import Attempt, moved, new_snapshot

pytestmark = pytest.mark.in_turn("table")

COLUMNS = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType(), required=True),
    NestedField(3, "day", StringType()),
)
BY_DAY = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "day"))
FORMS = few(
    [(UNPARTITIONED_PARTITION_SPEC, "equality", "2"), (BY_DAY, "equality", "3"), (BY_DAY, "position", "2")],
    ((UNPARTITIONED_PARTITION_SPEC, "position", "3"),),
    ((UNPARTITIONED_PARTITION_SPEC, "position", "2"),),
    ((BY_DAY, "position", "3"),),
    ((BY_DAY, "equality", "2"),),
)


@pytest.fixture(params=FORMS)
def table(place: Place, request: pytest.FixtureRequest) -> Place:
    """A table of an id, a name and a day, whole or by another column than the key."""
    spec, deletes, version = request.param
    found = replace(place, deletes=deletes, version=version)
    found.create(COLUMNS, spec)
    return found


@cache
def connection() -> duckdb.DuckDBPyConnection:
    found = duckdb.connect()
    load(found, "avro", "iceberg")
    return found


def read(place: Place) -> list[dict[str, Any]]:
    """What DuckDB sees."""
    if place.table().current_snapshot() is None:
        return []
    location = on_disk(place.table().metadata_location)
    found = connection().execute(f"SELECT * FROM iceberg_scan('{location}')").to_arrow_table().to_pylist()  # noqa: S608
    if place.deletes == "position":
        assert sorted(map(repr, found)) == sorted(map(repr, place.records()))
    return list(found)


def names(place: Place) -> list[str]:
    return sorted(row["name"] for row in read(place))


def append(place: Place, *rows: tuple[int, str, str]) -> None:
    """What another program appends."""
    if place.version == "2":
        place.table().append(pa.Table.from_batches([records([*rows])]))
    else:  # which pyiceberg does not write
        place.run(len(place.table().snapshots()), records([*rows]), sink=place.sink("others"))


def compact(place: Place) -> None:
    """Have one file instead of all, as ``rewrite_data_files`` does."""
    rows = [(row["id"], row["name"], row["day"]) for row in read(place)]
    vote = place.vote(records(rows), Round(1, len(place.table().snapshots())), sink=place.sink("others"))
    commit_manifests(place, [each.manifest_file(0) for each in of_committable(vote)], keeps=False)


def commit_manifests(place: Place, manifests: list[ManifestFile], keeps: bool = True) -> None:
    """Add a snapshot with these manifests, and those before if it keeps them."""
    table, sink = place.table(), place.sink("others")
    parent, io = table.current_snapshot(), sink._lake.io()
    attempt = Attempt.of(table, parent)
    for manifest in manifests:
        manifest[6] = attempt.snapshot_id
    rows = ManifestLists().write(io, table.metadata, attempt, manifests, parent if keeps else None)
    snapshot = new_snapshot(table.metadata, replace(attempt, rows=rows), Summary(operation=Operation.OVERWRITE))
    connected(sink._options).commit_table(table, (), moved(table.metadata, snapshot, "main"))


class TestKeyedTable(KeyedTableContract):
    def readings(self, table: Place) -> list[list[dict[str, Any]]]:
        return [read(table)]

    def append(self, table: Place, *rows: tuple[int, str, str]) -> None:
        append(table, *rows)

    def compact(self, table: Place) -> None:
        compact(table)

    def between(
        self,
        sink: IcebergSink,
        monkeypatch: pytest.MonkeyPatch,
        *,
        before: Callable[[], object] | None = None,
        is_answer_lost: bool = False,
    ) -> list[Callable[[], object]]:
        return Between(once(before or nothing), once(lost if is_answer_lost else nothing)).stand(sink).requests


@pytest.mark.long
def test_manifests_of_deletes_are_merged_and_deletes_keep_their_place_in_the_order(place: Place) -> None:
    place.create(COLUMNS, BY_DAY, properties={"commit.manifest.min-count-to-merge": "3"})
    for batch_id in range(8):
        run(place, batch_id, [(batch_id % 2, f"{batch_id}", f"{batch_id}"), (batch_id + 10, "stays", "mon")])
        assert names(place) == sorted([*map(str, {max(batch_id - 1, 0), batch_id}), *["stays"] * (batch_id + 1)])
    snapshot = place.snapshot()
    found = [each.content for each in snapshot.manifests(place.table().io)]
    assert max(found.count(content) for content in ManifestContent) < 8


@pytest.mark.parametrize("version", ["2", "3"])
def test_deletes_are_written_as_the_specification_has_them(version: str, place: Place) -> None:
    table = replace(place, version=version)
    table.create(COLUMNS, BY_DAY)
    run(table, 0, [(1, "a", "mon")])
    run(table, 1, [(1, "b", "tue"), (5, "c", "mon")], 7)
    metadata, io = table.table().metadata, table.table().io
    snapshot = metadata.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.OVERWRITE
    assert snapshot.summary["added-equality-delete-files"] == snapshot.summary["added-delete-files"] == "1"
    assert snapshot.summary["added-equality-deletes"] == "3"
    assert snapshot.summary["total-equality-deletes"] == "4"
    manifests = [each for each in snapshot.manifests(io) if each.added_snapshot_id == snapshot.snapshot_id]
    assert sorted(each.content for each in manifests) == [ManifestContent.DATA, ManifestContent.DELETES]
    [deletes] = [each for each in manifests if each.content is ManifestContent.DELETES]
    assert not metadata.specs()[deletes.partition_spec_id].fields
    assert deletes.sequence_number == deletes.min_sequence_number == snapshot.sequence_number
    assert (deletes.added_files_count, deletes.added_rows_count, deletes.existing_files_count) == (1, 3, 0)
    with AvroFile[Any](io.new_input(deletes.manifest_path)) as file:
        meta = file.header.meta
    assert meta["content"] == "deletes"
    assert meta["format-version"] == version
    assert int(meta["partition-spec-id"]) == deletes.partition_spec_id
    assert json.loads(meta["partition-spec"]) == []
    [ids] = [field for field in _fields(json.loads(meta["avro.schema"])) if field["name"] == "equality_ids"]
    assert ids["type"][1]["items"] == "int"
    [entry] = deletes.fetch_manifest_entry(io)
    assert entry.data_file.content is DataFileContent.EQUALITY_DELETES
    assert entry.data_file.equality_ids == [1]
    assert entry.sequence_number == snapshot.sequence_number
    assert entry.data_file.record_count == 3
    columns = pa.parquet.read_schema(on_disk(entry.data_file.file_path))
    assert columns.names == ["id"]
    assert columns.field(0).metadata == {b"PARQUET:field_id": b"1"}


def _fields(schema: Any) -> list[Any]:
    """Every field of an Avro schema."""
    if isinstance(schema, list):
        return [field for each in schema for field in _fields(each)]
    if not isinstance(schema, dict):
        return []
    own = schema.get("fields", [])
    return [*own, *(found for field in own for found in _fields(field["type"]))]


def test_a_batch_of_deletes_alone_is_a_snapshot_that_deletes(table: Place) -> None:
    run(table, 0, [(1, "a", "mon")])
    run(table, 1, [], 1)
    snapshot = table.snapshot()
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.DELETE
    assert read(table) == []


def test_a_table_without_a_spec_without_fields_gets_one_before_the_first_decision_and_keeps_its_own(
    place: Place,
) -> None:
    place.create(COLUMNS, BY_DAY)
    first = vote(place, [(1, "a", "mon")])
    assert place.table().specs() == {0: BY_DAY}
    batch = sealed(place, first)
    assert place.table().specs() == {0: BY_DAY, 1: PartitionSpec(spec_id=1)}
    assert place.table().spec() == BY_DAY
    upserts(place).commit_batch(0, batch)
    run(place, 1, [(1, "b", "tue")])
    assert len(place.table().specs()) == 2
    assert names(place) == ["b"]


def test_a_spec_whose_fields_were_dropped_does_not_pass_for_one_without(place: Place) -> None:
    void = PartitionSpec(PartitionField(3, 1000, VoidTransform(), "day"))
    place.create(COLUMNS, void)
    run(place, 0, [(1, "a", "mon")])
    run(place, 1, [(1, "b", "tue")])
    assert place.table().specs()[1] == PartitionSpec(spec_id=1)
    assert names(place) == ["b"]


def test_another_spec_that_took_the_number_meanwhile_is_a_veto_and_the_next_attempt_succeeds(place: Place) -> None:
    place.create(COLUMNS, BY_DAY)
    first = vote(place, [(1, "a", "mon")])
    by_name = PartitionSpec(PartitionField(2, 1001, IdentityTransform(), "name"), spec_id=1)
    place.change(AddPartitionSpecUpdate(spec=by_name))
    with pytest.raises(RoundAborted, match="its partition spec 1 is another one now"):
        upserts(place).seal([first], 0.0)
    run(place, 0, [(1, "a", "mon")])
    run(place, 1, [(1, "b", "mon")])
    assert names(place) == ["b"]


def test_the_spec_of_deletes_that_maintenance_removed_comes_back_with_the_next_batch(place: Place) -> None:
    place.create(COLUMNS, BY_DAY)
    first = vote(place, [(1, "a", "mon")])
    sealed(place, first)
    place.remove_spec(1)
    commit(place, 0, first)
    assert names(place) == ["a"]


def test_a_transaction_without_a_key_has_the_handle_of_older_logs(place: Place) -> None:
    [committable] = place.decided(["a"])
    assert "manifests" not in committable.handle
    assert "equality_ids" not in committable.handle


@pytest.mark.variants
@pytest.mark.parametrize("kind", [FloatType(), DoubleType(), UUIDType(), TimeType(), StructType()])
def test_a_key_of_which_readers_take_different_values_for_equal_is_refused(kind: Any, place: Place) -> None:
    place.create(Schema(NestedField(1, "id", kind), NestedField(2, "name", StringType())))
    with pytest.raises(ConfigurationError, match="which 'upsert_by' names, is of the type") as refused:
        upserts(place)
    assert refused.value.option == "upsert_by"


def test_a_key_that_the_table_does_not_have_is_refused(table: Place) -> None:
    with pytest.raises(ConfigurationError, match=r"has no column 'ID', which 'upsert_by' names\. It has: id,"):
        table.sink(upsert_by="ID")


def test_a_column_that_the_records_lack_is_refused_as_its_stored_value_would_be_lost(place: Place) -> None:
    spot = StructType(NestedField(4, "x", LongType()), NestedField(5, "y", LongType()))
    place.create(Schema(NestedField(1, "id", LongType()), NestedField(2, "spot", spot), NestedField(3, "note", spot)))
    whole, part = pa.struct({"y": pa.int64(), "x": pa.int64()}), pa.struct({"x": pa.int64()})
    sink = upserts(place)
    sink.validate(pa.schema({"note": whole, "id": pa.int32(), "spot": whole}))
    with pytest.raises(SchemaMismatch, match=r"the records lack column 'note' .* the stored value would be lost"):
        sink.validate(pa.schema({"id": pa.int64(), "spot": whole}))
    with pytest.raises(SchemaMismatch, match=r"the records lack column 'spot\.y'"):
        sink.validate(pa.schema({"id": pa.int64(), "note": whole, "spot": part}))
    place.sink().validate(pa.schema({"id": pa.int64(), "spot": part}))


def test_deletes_without_a_key_may_go_to_bad_records(table: Place) -> None:
    run(table, 0, [(1, "a", "mon"), (2, "b", "mon")])
    sink = upserts(table)
    with Participant({"orders": sink}, Round(1, 1), partition=0, max_bad_records=1) as participant:
        [refused] = participant.delete("orders", records([(1, "", ""), (None, "", ""), (2, "", "")]))
        commit(table, 1, participant.pre_commit()["orders"])
    assert refused.record == 1
    assert read(table) == []


def paths(place: Place, content: DataFileContent, batch: Sequence[Committable]) -> list[Path]:
    """The files of a batch."""
    sink = upserts(place)
    manifests, _ = sink._of_batch(sink._prepared(batch))
    kind = ManifestContent.DATA if content is DataFileContent.DATA else ManifestContent.DELETES
    found = [location for each in manifests if each.prepared.content is kind for location in each.files()]
    return [on_disk(location) for location in found]


def test_a_delete_file_that_is_gone_is_a_veto_and_after_the_decision_calls_an_operator(table: Place) -> None:
    run(table, 0, [(1, "a", "mon")])
    votes = [vote(table, [(1, "b", "mon")], round=Round(1, 1))]
    batch = sealed(table, *votes)
    [path] = paths(table, DataFileContent.EQUALITY_DELETES, votes)
    path.unlink()
    with pytest.raises(RoundAborted, match=path.name):
        upserts(table).seal(votes, 0.0)
    with pytest.raises(TransactionLost, match=path.name):
        upserts(table).commit_batch(1, batch)
    assert names(table) == ["a"]


def test_the_manifests_of_tasks_are_removed_when_they_were_joined(table: Place) -> None:
    commit(table, 0, *(vote(table, [(n, f"{n}", "mon")], [n + 10], partition=n) for n in range(3)))
    left = [name for name in table.files() if name.endswith(("-m0.avro", "-m1.avro"))]
    assert len(left) == (2 if table.deletes == "equality" else 1)
    assert names(table) == ["0", "1", "2"]


def test_a_key_whose_column_was_dropped_is_a_veto_and_after_the_decision_calls_an_operator(place: Place) -> None:
    place.create(COLUMNS)
    votes = [vote(place, [(1, "a", "mon")])]
    batch = sealed(place, *votes)
    sink = upserts(place)
    with place.table().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("id")
    with pytest.raises(RoundAborted, match="has lost a column by which records replace others"):
        sink.seal(votes, 0.0)
    with pytest.raises(OperatorRequired, match="has lost a column by which records replace others"):
        sink.commit_batch(0, batch)


def test_doctor_reports_how_many_delete_files_readers_open_and_what_removes_them(
    table: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> Any:
        return next((each for each in upserts(table).check() if "delete files" in each.check), None)

    assert found() is None
    for batch_id in range(3):
        run(table, batch_id, [(1, "a", "mon")])
    kept = {"equality": "3 of keys, 0 of positions", "position": "0 of keys, 2 of positions"}
    assert (found().result, found().detail) == (CheckStatus.PASSED, kept[table.deletes])
    monkeypatch.setattr(checks, "MANY_DELETE_FILES", 2)
    assert (found().result is CheckStatus.WARNING) is (table.deletes == "equality")
    assert found().result is CheckStatus.PASSED or "rewrite_data_files" in found().advice


def test_doctor_warns_of_the_first_change_to_a_table_that_only_grew_as_readers_may_stream(table: Place) -> None:
    def found(sink: IcebergSink) -> Any:
        return next((each for each in sink.check() if "replace or delete rows" in each.check), None)

    assert found(upserts(table)) is None  # nobody streams from a table without rows
    append(table, (1, "old", "mon"))
    assert found(table.sink()) is None
    warning = found(upserts(table))
    assert warning.result is CheckStatus.WARNING
    assert f"stops at {'the next batch' if table.deletes == 'equality' else 'the first such one'}" in warning.detail
    assert "streaming-skip-overwrite-snapshots" in warning.advice
    run(table, 0, [(1, "a", "mon")])
    run(table, 1, [(1, "b", "mon")])
    assert found(upserts(table)).result is CheckStatus.PASSED
    append(table, (2, "c", "mon"))
    if table.version == "2":  # pyiceberg expires no snapshot of version 3
        table.expire()
    assert found(upserts(table)).result is CheckStatus.PASSED


@pytest.mark.long
class TestUpserts(SinkContract):
    """Records whose keys are new replace none: the contract of appends holds."""

    finds_lost_batches = True
    spec = UNPARTITIONED_PARTITION_SPEC

    @pytest.fixture(autouse=True)
    def _place(self, place: Place) -> None:
        self.place = place
        place.create(TYPED, self.spec)

    def make_sink(self) -> IcebergSink:
        return self.place.unbound(upsert_by="value")

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        others = {field.name: pa.nulls(len(values), field.type) for field in typed().schema}
        return pa.record_batch({**others, "value": pa.array(values, pa.string())})

    def sample(self) -> pa.RecordBatch:
        return typed()

    def with_bad_records(self) -> pa.RecordBatch:
        batch, texts = self.record_batch(["", "", "", "", ""]), unchecked_text(b"a", b"\xff", b"b", b"c", b"\xc3")
        return batch.set_column(batch.schema.get_field_index("value"), "value", texts)

    def visible(self) -> list[str]:
        return [row["value"] for row in read(self.place)]

    def visible_records(self) -> list[dict[str, Any]]:
        return read(self.place)

    def leftovers(self) -> list[str]:
        return self.place.left_over()


class TestUpsertsIntoPartitions(TestUpserts):
    spec = PartitionSpec(PartitionField(8, 1000, IdentityTransform(), "day"))


PAIRS = Schema(NestedField(1, "id", StringType()), NestedField(2, "value", StringType()))


@pytest.mark.long
class TestKeyed(KeyedSinkContract):
    spec = UNPARTITIONED_PARTITION_SPEC

    @pytest.fixture(autouse=True)
    def _place(self, place: Place) -> None:
        self.place = place
        place.create(PAIRS, self.spec, properties={"commit.manifest.min-count-to-merge": "3"})

    def make_sink(self) -> IcebergSink:
        return self.place.unbound(upsert_by="id")

    def rows(self) -> list[tuple[str, str | None]]:
        return [(row["id"], row["value"]) for row in read(self.place)]

    def leftovers(self) -> list[str]:
        return self.place.left_over()


class TestKeyedInPartitions(TestKeyed):
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "value"))
