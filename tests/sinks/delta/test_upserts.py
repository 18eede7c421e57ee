"""With ``upsert_by``, a record replaces the row of its key, and a delete removes it, whatever others do meanwhile."""

import json
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyroaring import BitMap64

from tests.sinks.delta.conftest import Place
from tests.sinks.delta.test_commit import once
from tests.sinks.delta.test_readers import by_duckdb
from tests.support.between import nothing, times
from tests.support.keyed_table import COLUMNS, KeyedTableContract, records, run, sealed, upserts, vote
from tests.support.raising import raising
from tests.support.sink_place import ROUND
from tests.support.typed_records import typed
from twopc import Participant, Round
from twopc.checks import CheckResult, CheckStatus
from twopc.errors import ConfigurationError, OperatorRequired, RoundAborted, SchemaMismatch, TransactionLost
from twopc.testing import KeyedSinkContract, SinkContract
from twopc_delta import DeltaSink, changes, commit, vectors
from twopc_delta.changes import _not_tight, live_files
from twopc_delta.log_files import LogFiles
from twopc_delta.storage import Storage

pytestmark = pytest.mark.in_turn("table")


def created(path: Path, *partition_by: str, schema: pa.Schema = COLUMNS, **configuration: str) -> Place:
    place = Place(str(path))
    place.create(schema, partition_by, **{"delta__enableDeletionVectors": "true", **configuration})
    return place


@pytest.fixture(params=[(), ("day",)], ids=["whole", "by another column than the key"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """A table of an id, a name and a day."""
    return created(tmp_path / "customers", *request.param)


def names(place: Place) -> list[str]:
    return sorted(row["name"] for row in place.rows())


class TestKeyedTable(KeyedTableContract):
    def readings(self, table: Place) -> list[list[dict[str, Any]]]:
        return [table.rows(), by_duckdb(table).to_pylist(), pl.read_delta(table.path).to_dicts()]

    def append(self, table: Place, *rows: tuple[int, str, str]) -> None:
        write_deltalake(table.path, pa.Table.from_batches([records([*rows])]), mode="append")

    def compact(self, table: Place) -> None:
        table.table().optimize.compact()

    def between(
        self,
        sink: DeltaSink,
        monkeypatch: pytest.MonkeyPatch,
        *,
        before: Callable[[], object] | None = None,
        is_answer_lost: bool = False,
    ) -> list[Callable[[], object]]:
        once(monkeypatch, before or nothing, times(is_answer_lost, raising(OSError(5, "the answer was lost"))))
        return []


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_rows_behind_a_checkpoint_are_found(table: Place, is_cleaned: bool) -> None:
    run(table, 0, [(number, f"{number}", "mon") for number in range(4)])
    run(table, 1, [], 0)
    table.table().create_checkpoint()
    if is_cleaned:
        for version in range(table.table().version()):
            table.entry_path(version).unlink()
    run(table, 2, [(1, "one", "tue")], 2)
    assert names(table) == ["3", "one"]
    assert sorted(by_duckdb(table)["name"].to_pylist()) == ["3", "one"]


def test_a_changed_file_is_removed_with_its_old_vector_and_added_with_the_new_one(tmp_path: Path) -> None:
    place = created(tmp_path / "customers")
    run(place, 0, [(number, f"{number}", "mon") for number in range(10)])
    [whole] = place.added()
    run(place, 1, [], 1)
    [removed], [first] = place.actions("remove"), place.added()
    assert removed == {
        **{name: whole[name] for name in ("path", "partitionValues", "size")},
        "dataChange": True,
        "extendedFileMetadata": True,
        "deletionTimestamp": removed["deletionTimestamp"],
    }
    assert (first["path"], first["deletionVector"]["cardinality"]) == (whole["path"], 1)
    run(place, 2, [(5, "new", "mon")], 1, 3)
    [removed] = place.actions("remove")
    [second] = [each for each in place.added() if each["path"] == whole["path"]]
    assert removed["deletionVector"] == first["deletionVector"]
    stats = json.loads(second["stats"])
    assert (stats["numRecords"], stats["tightBounds"]) == (10, False)
    assert list(vectors.read(Storage.at(place.path, {}), second["deletionVector"])) == [1, 3, 5]
    [info] = place.actions("commitInfo")
    assert (info["operation"], info["isBlindAppend"]) == ("MERGE", False)
    assert [each["version"] for each in place.actions("txn")] == [2]


def test_a_file_without_rows_is_removed(tmp_path: Path) -> None:
    place = created(tmp_path / "customers")
    run(place, 0, [(1, "a", "mon"), (2, "b", "mon")])
    run(place, 1, [], 1)
    [partly] = place.added()
    run(place, 2, [], 2)
    assert place.added() == []
    assert [each["deletionVector"] for each in place.actions("remove")] == [partly["deletionVector"]]
    assert place.rows() == []


def test_a_batch_that_finds_no_row_changes_no_file(table: Place) -> None:
    run(table, 0, [(1, "a", "mon")])
    run(table, 1, [(2, "b", "mon")], 3)
    assert table.actions("remove") == []
    run(table, 2, [], 3)
    assert table.actions("add") == table.actions("remove") == []
    assert names(table) == ["a", "b"]


def test_doctor_warns_of_the_first_change_to_a_table_that_only_grew_as_readers_may_stream(table: Place) -> None:
    def found(sink: DeltaSink) -> list[CheckResult]:
        return [each for each in sink.check() if "replace or delete rows" in each.check]

    assert found(upserts(table)) == []  # nobody streams from a table without rows
    for batch_id in range(2):
        run(table, batch_id, [(batch_id, "a", "mon")])
    table.table().optimize.compact()
    assert found(table.sink()) == []
    [warning] = found(upserts(table))
    assert warning.result is CheckStatus.WARNING
    assert "skipChangeCommits" in warning.advice
    run(table, 2, [(1, "b", "mon")])
    [passed] = found(upserts(table))
    assert (passed.result, passed.detail) == (CheckStatus.PASSED, f"version {table.table().version()}")


@pytest.mark.parametrize(
    "stats",
    [
        '{"numRecords":1,"minValues":{"a":1.10},"tightBounds":true}',
        '{"tightBounds" : true, "numRecords":1,"minValues":{"a":1.10}}',
        '{"numRecords":1,"minValues":{"a":1.10}}',
        '{"numRecords":1,"minValues":{"a":1.10,"tightBounds":false},"tightBounds":true}',
        '{"numRecords":1,"minValues":{"a":1.10,"b":99999999999999999999999999999999999999}}',
    ],
)
def test_statistics_keep_their_digits_and_are_no_longer_tight(stats: str) -> None:
    given, found = (json.loads(each, parse_float=Decimal) for each in (stats, _not_tight(stats, 1)))
    assert found == {**given, "tightBounds": False}
    assert "1.10" in _not_tight(stats, 1)


@pytest.mark.parametrize("stats", [None, "", "null", "[]", "{", '{"minValues":{"k":"\\ud83d"}}'])
def test_statistics_of_another_writer_that_cannot_be_read_are_left_out_of_a_decided_batch(stats: str | None) -> None:
    assert json.loads(_not_tight(stats, 3)) == {"numRecords": 3, "tightBounds": False}


def test_a_vector_is_read_back_from_a_file_with_several(tmp_path: Path) -> None:
    """Names and format as in the example of Delta's protocol."""
    name, storage = uuid.UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61"), Storage.at(str(tmp_path), {})
    written = {"a": BitMap64([3, 4, 7]), "b": BitMap64([0, 2**33])}
    content, descriptors = vectors.file_of(written, name)
    assert {each["pathOrInlineDv"] for each in descriptors.values()} == {"^-aqEH.-t@S}K{vb[*k^"}
    storage.write(vectors.path_of(name), content)
    assert {key: vectors.read(storage, each) for key, each in descriptors.items()} == written
    path = tmp_path / "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with pytest.raises(ValueError, match="checksum is wrong"):
        vectors.read(storage, descriptors["b"])


@pytest.mark.parametrize(
    ("configuration", "says"),
    [
        ({"delta__appendOnly": "true"}, "it is append-only"),
        ({"delta__enableChangeDataFeed": "true"}, "it has a change data feed, for which the sink writes no files"),
        ({"delta__enableDeletionVectors": "false"}, r"it has no deletion vectors\. Add them: ALTER TABLE"),
    ],
)
def test_a_table_whose_rows_can_not_be_replaced_is_refused(
    configuration: dict[str, str], says: str, tmp_path: Path
) -> None:
    place = created(tmp_path / "customers", **configuration)
    place.sink()
    with pytest.raises(ConfigurationError, match=says):
        upserts(place)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("ID", r"has no column 'ID', which 'upsert_by' names\. It has: id"),
        ("day", "column 'day' .* is a partition column"),
        ("f", "column 'f' .* has the type double"),
    ],
)
def test_a_key_by_which_no_row_can_be_found_is_refused(key: str, says: str, tmp_path: Path) -> None:
    place = created(tmp_path / "customers", "day", schema=COLUMNS.append(pa.field("f", pa.float64())))
    with pytest.raises(ConfigurationError, match=says) as refused:
        place.sink(upsert_by=key)
    assert refused.value.option == "upsert_by"


def test_a_column_that_the_records_lack_is_refused_as_its_stored_value_would_be_lost(tmp_path: Path) -> None:
    sink = upserts(created(tmp_path / "customers"))
    with pytest.raises(SchemaMismatch, match=r"the records lack column 'day' .* the stored value would be lost"):
        sink.validate(COLUMNS.remove(2))
    sink.validate(COLUMNS)


def test_a_table_that_no_longer_takes_changes_is_a_veto_and_after_the_decision_calls_an_operator(table: Place) -> None:
    votes = [vote(table, [(1, "a", "mon")])]
    batch, sink = sealed(table, *votes), upserts(table)
    table.table().alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(RoundAborted, match="it is append-only"):
        sink.seal(votes, 0.0)
    with pytest.raises(OperatorRequired, match="it is append-only"):
        sink.commit_batch(0, batch)


def test_a_damaged_file_of_the_table_calls_an_operator_and_the_batch_follows_its_repair(tmp_path: Path) -> None:
    place = created(tmp_path / "customers")
    run(place, 0, [(1, "a", "mon"), (2, "b", "mon")])
    batch = sealed(place, vote(place, [(1, "A", "mon")], round=Round(1, 1)))
    [path] = [place.folder / each["path"] for each in place.added()]
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(OperatorRequired, match=f"file {path.name} is gone"):
        upserts(place).commit_batch(1, batch)
    path.write_bytes(content)
    upserts(place).commit_batch(1, batch)
    assert names(place) == ["A", "b"]


def test_files_that_a_compaction_removes_while_they_are_searched_are_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = created(tmp_path / "customers")
    run(place, 0, [(1, "a", "mon"), (2, "b", "tue")])
    run(place, 1, [(3, "c", "mon")])
    batch = sealed(place, vote(place, [(1, "A", "wed")], [3], Round(1, 2)))
    old = [place.folder / each.path for each in live_files(LogFiles(Storage.at(place.path, {})), 2)]

    def compact_and_clean() -> None:
        place.table().optimize.compact()
        for path in old:
            path.unlink()

    act, search = times(1, compact_and_clean), changes.actions_of
    monkeypatch.setattr(commit, "actions_of", lambda *given: act() or search(*given))
    upserts(place).commit_batch(2, batch)
    assert names(place) == ["A", "b"]


def test_a_key_is_told_from_a_field_of_a_struct_whose_path_is_its_name(tmp_path: Path) -> None:
    rows = pa.record_batch({"id.old": [1, 2], "id": [{"old": 7}] * 2, "name": ["a", "b"]})
    place = created(tmp_path / "customers", schema=rows.schema)
    for batch_id, written in enumerate([rows, rows.slice(0, 1)]):
        sink = place.sink(upsert_by="id.old")
        votes = [place.vote(written, Round(1, batch_id), sink=sink)]
        sink.commit_batch(batch_id, sink.seal(votes, 0.0))
    assert names(place) == ["a", "b"]


def test_rows_of_a_file_are_found_wherever_they_are_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "ROWS_AT_ONCE", 3)
    place = created(tmp_path / "customers")
    run(place, 0, [(number, f"{number}", "mon") for number in range(10)])
    run(place, 1, [], 0, 3, 4, 8, 9)
    assert names(place) == ["1", "2", "5", "6", "7"]


def test_files_whose_bounds_lie_between_the_keys_are_not_read(tmp_path: Path) -> None:
    place = created(tmp_path / "customers")
    added = list[dict[str, Any]]()
    for batch_id in range(3):
        run(place, batch_id, [(batch_id * 10, "old", "mon"), (batch_id * 10 + 9, "old", "mon")])
        added += place.actions("add")
    file, kept = place.folder / added[1]["path"], tmp_path / "kept"
    file.rename(kept)
    run(place, 3, [(0, "new", "tue"), (20, "new", "tue")])
    kept.rename(file)
    assert names(place) == ["new", "new", "old", "old", "old", "old"]


@pytest.mark.variants
@pytest.mark.parametrize(("day", "seen"), [("a&b", ["b"]), ("a b", ["a", "b"])])
def test_polars_passes_over_vectors_of_files_whose_path_is_escaped_in_the_log(
    day: str, seen: list[str], tmp_path: Path
) -> None:
    """The README warns of it, which this test keeps true."""
    place = created(tmp_path / "customers", "day")
    run(place, 0, [(1, "a", day), (2, "b", day)])
    run(place, 1, [], 1)
    assert names(place) == by_duckdb(place)["name"].to_pylist() == ["b"]
    assert sorted(pl.read_delta(place.path)["name"]) == seen


def test_a_file_of_deletes_that_is_gone_is_a_veto_and_after_the_decision_calls_an_operator(table: Place) -> None:
    run(table, 0, [(1, "a", "mon")])
    before = table.data_files()
    votes = [vote(table, [], [1], Round(1, 1))]
    batch = sealed(table, *votes)
    [name] = [each for each in table.data_files() if each not in before]
    (table.folder / name).unlink()
    with pytest.raises(RoundAborted, match=name):
        upserts(table).seal(votes, 0.0)
    with pytest.raises(TransactionLost, match=name):
        upserts(table).commit_batch(1, batch)
    assert names(table) == ["a"]


def test_a_transaction_that_is_given_up_leaves_no_file_behind(table: Place) -> None:
    before = table.data_files()
    sink = upserts(table)
    participant = Participant({"orders": sink}, ROUND, partition=0)
    participant.write("orders", records([(1, "a", "mon")]))
    participant.delete("orders", records([(2, "", "")]))
    assert len(table.data_files()) == len(before) + 2
    [found] = upserts(table).recover()
    upserts(table).abort(found)
    assert table.data_files() == before
    assert table.notes() == []


def test_the_files_of_a_version_are_those_that_readers_take(table: Place) -> None:
    for batch_id in range(4):
        run(table, batch_id, [(batch_id, "a", f"{batch_id}"), (batch_id + 1, "b", "mon")])
    live = live_files(LogFiles(Storage.at(table.path, {})), table.table().version())
    expected = [each["path"] for each in pa.table(table.table().get_add_actions(flatten=True)).to_pylist()]
    assert sorted(each.path for each in live) == sorted(expected)


def test_a_file_is_removed_however_its_path_is_spelled(tmp_path: Path) -> None:
    """Spark adds ü, and delta-rs removes %C3%BC."""
    table = created(tmp_path / "customers", "day")
    run(table, 0, [(1, "a", "R&D ü"), (2, "b", "R&D ü")])
    entry = table.entry_path(1)
    entry.write_text(entry.read_text().replace("%C3%BC", "ü").replace("&", "%26"))
    table.table().delete("id = 1")
    live = live_files(LogFiles(Storage.at(table.path, {})), 2)
    assert [each.path for each in live] == [unquote(each["path"]) for each in table.actions("add")]


@pytest.mark.long
class TestUpserts(SinkContract):
    """Records whose keys are new replace none: the contract of appends holds."""

    finds_lost_batches = True

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.place = created(tmp_path_factory.mktemp("table"), schema=typed().schema)

    def make_sink(self) -> DeltaSink:
        return self.place.unbound(upsert_by="value")

    def record_batch(self, values: list[str]) -> pa.RecordBatch:
        others = {field.name: pa.nulls(len(values), field.type) for field in typed().schema}
        return pa.record_batch({**others, "value": pa.array(values, pa.string())})

    def visible(self) -> list[str]:
        return self.place.values()

    def sample(self) -> pa.RecordBatch:
        return typed()

    def visible_records(self) -> list[dict[str, Any]]:
        return self.place.rows()


@pytest.mark.long
class TestKeyed(KeyedSinkContract):
    partition_by: tuple[str, ...] = ()

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        schema = pa.schema([("id", pa.string()), ("value", pa.string())])
        self.place = created(tmp_path_factory.mktemp("table"), *self.partition_by, schema=schema)

    def make_sink(self) -> DeltaSink:
        return self.place.unbound(upsert_by="id")

    def rows(self) -> list[tuple[str, str | None]]:
        return [(row["id"], row["value"]) for row in self.place.rows()]


class TestKeyedInPartitions(TestKeyed):
    partition_by = ("value",)
