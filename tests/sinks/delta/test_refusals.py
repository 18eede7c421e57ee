"""What delta-rs would commit without a word, and readers would get wrong, is refused by its name."""

import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from tests.sinks.delta.conftest import Place
from tests.sinks.delta.test_readers import by_duckdb
from tests.support.sink_place import ROUND
from twopc import Participant
from twopc.errors import ConfigurationError, OperatorRequired, RecordRefused, RoundAborted, SchemaMismatch
from twopc_delta import stores

VALUE = {"name": "value", "type": "string", "nullable": True}


def make(
    place: Place,
    *columns: Mapping[str, Any],
    configuration: Mapping[str, str] | None = None,
    reader: int = 1,
    writer: int = 2,
    features: tuple[str, ...] = (),
    reader_features: tuple[str, ...] = (),
    value: Mapping[str, Any] | None = None,
) -> None:
    """A table as another writer would have made it: the first entry of its log, by hand."""
    protocol: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": writer}
    if writer == 7:
        protocol["writerFeatures"] = list(features)
    if reader == 3:
        protocol["readerFeatures"] = list(reader_features)
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": [{**VALUE, "metadata": dict(value or {})}, *columns]}),
        "partitionColumns": [],
        "configuration": dict(configuration or {}),
        "createdTime": 1,
    }
    log = place.log
    for old in log.iterdir():
        old.unlink()
    entry = "".join(json.dumps(action) + "\n" for action in ({"protocol": protocol}, {"metaData": metadata}))
    (log / "00000000000000000000.json").write_text(entry)


def everything(place: Place) -> list[tuple[str, int]]:
    """Each file of the table, of its log and beside it, with its length."""
    files = (path for path in place.folder.rglob("*") if path.is_file())
    return sorted((str(path.relative_to(place.folder)), path.stat().st_size) for path in files)


def column(name: Any = "other", type: Any = "long", nullable: Any = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": type, "nullable": nullable, "metadata": metadata}


GENERATED = column(**{"delta.generationExpression": "value + 1"})
IDENTITY = column(**{"delta.identity.start": 1, "delta.identity.step": 1})
INVARIANT = column(**{"delta.invariants": '{"expression":{"expression":"other > 3"}}'})
MAPPED = column(**{"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": "col-1"})
MAPPED_VALUE = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-0"}
MAPPING = {"delta.columnMapping.mode": "name"}
MAPPING_BY_ID = {"delta.columnMapping.mode": "id"}
FEATURE_OF_MAPPING = ("columnMapping",)


@pytest.mark.parametrize(
    ("named", "made"),
    [
        ("checkConstraints", {"configuration": {"delta.constraints.positive": "value > 0"}, "writer": 3}),
        (
            "checkConstraints",
            {"configuration": {"delta.constraints.c": "1"}, "writer": 7, "features": ("checkConstraints",)},
        ),
        ("invariants", {"columns": [INVARIANT]}),
        ("generatedColumns", {"columns": [GENERATED], "writer": 4}),
        ("identityColumns", {"columns": [IDENTITY], "writer": 6}),
        ("identityColumns", {"columns": [IDENTITY], "writer": 7, "features": ("identityColumns",)}),
        (
            "columnMapping",
            {"value": MAPPED_VALUE, "columns": [MAPPED], "configuration": MAPPING, "reader": 2, "writer": 5},
        ),
        (
            "columnMapping",
            {
                "value": MAPPED_VALUE,
                "columns": [MAPPED],
                "configuration": MAPPING_BY_ID,
                "reader": 3,
                "writer": 7,
                "features": FEATURE_OF_MAPPING,
                "reader_features": FEATURE_OF_MAPPING,
            },
        ),
        ("generatedColumns", {"columns": [column("nested", {"type": "struct", "fields": [GENERATED]})], "writer": 4}),
        (
            "allowColumnDefaults. Remove it: ALTER TABLE … ALTER COLUMN `other` DROP DEFAULT",
            {"columns": [column(CURRENT_DEFAULT="3")], "writer": 7, "features": ("allowColumnDefaults",)},
        ),
        ("rowTracking", {"writer": 7, "features": ("rowTracking", "domainMetadata")}),
        ("rowTracking", {"configuration": {"delta.enableRowTracking": "true"}}),
        ("clustering", {"writer": 7, "features": ("clustering",)}),
        ("inCommitTimestamp", {"writer": 7, "features": ("inCommitTimestamp",)}),
        ("icebergCompatV2", {"writer": 7, "features": ("icebergCompatV2",)}),
        (
            "typeWidening",
            {"writer": 7, "features": ("typeWidening",), "reader": 3, "reader_features": ("typeWidening",)},
        ),
        ("CatalogManaged", {"writer": 7, "features": ("catalogManaged",)}),
        ("fromTheFuture", {"writer": 7, "features": ("fromTheFuture",)}),
        (
            "inside of another",
            {"columns": [column("s", {"type": "struct", "fields": [column(__CHAR_VARCHAR_TYPE_STRING="varchar(3)")]})]},
        ),
        ("Duplicate field name .case-insensitive.: 'Value'", {"columns": [column("Value")]}),
        ("char\\(3\\)", {"columns": [column("c", "string", __CHAR_VARCHAR_TYPE_STRING="char(3)")]}),
        (
            "UNSET TBLPROPERTIES .'delta.setTransactionRetentionDuration'",
            {"configuration": {"delta.setTransactionRetentionDuration": "interval 30 days"}},
        ),
    ],
)
def test_a_table_whose_rules_the_sink_can_not_keep_is_refused(place: Place, named: str, made: dict[str, Any]) -> None:
    made = dict(made)
    columns = made.pop("columns", [])
    running = place.sink()
    make(place, *columns, **made)
    before = everything(place)
    with pytest.raises(ConfigurationError, match=named):
        place.sink()
    with pytest.raises(ConfigurationError, match=named):
        running.validate(pa.schema({"value": pa.string()}))
    assert everything(place) == before


def test_a_refusal_names_all_that_is_in_the_way_and_what_removes_it(place: Place) -> None:
    """One at a time, the last was named only after the others had been removed."""
    of_readers = ("columnMapping", "deletionVectors")
    features = (*of_readers, "domainMetadata", "rowTracking", "inCommitTimestamp", "clustering", "checkConstraints")
    properties = {"delta.constraints.positive": "value > 0", **MAPPING, "delta.enableRowTracking": "true"}
    make(
        place,
        MAPPED,
        value=MAPPED_VALUE,
        configuration=properties,
        reader=3,
        writer=7,
        features=features,
        reader_features=of_readers,
    )
    with pytest.raises(ConfigurationError) as raised:
        place.sink()
    for told in (
        "DROP FEATURE rowTracking",
        "DROP FEATURE inCommitTimestamp",
        "clustering, with which a file of this sink may be wrong. Only a copy",
        "DROP CONSTRAINT positive",
        "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'none')",
    ):
        assert told in str(raised.value)
    assert "domainMetadata" not in str(raised.value)


@pytest.mark.variants
@pytest.mark.parametrize(
    "made",
    [
        {"writer": 7, "features": ("domainMetadata",)},
        {"writer": 7, "features": ("checkpointProtection", "allowColumnDefaults")},
        {"reader": 3, "writer": 7, "features": ("vacuumProtocolCheck",), "reader_features": ("vacuumProtocolCheck",)},
        {"writer": 7, "features": ("appendOnly", "invariants", "checkConstraints", "generatedColumns")},
        {"configuration": {"delta.appendOnly": "true"}},
        {"configuration": {"delta.columnMapping.mode": "none"}, "reader": 2, "writer": 5},
        {"configuration": {"delta.enableChangeDataFeed": "true"}, "writer": 4},
        {
            "configuration": {"delta.enableDeletionVectors": "true"},
            "reader": 3,
            "writer": 7,
            "features": ("deletionVectors",),
            "reader_features": ("deletionVectors",),
        },
        {
            "configuration": {"delta.checkpointPolicy": "v2"},
            "reader": 3,
            "writer": 7,
            "features": ("v2Checkpoint",),
            "reader_features": ("v2Checkpoint",),
        },
    ],
)
def test_a_table_whose_rules_an_append_keeps_is_written(place: Place, made: dict[str, Any]) -> None:
    make(place, **made)
    place.sink().commit_batch(0, [place.pre_commit(["a"])])
    assert by_duckdb(place)["value"].to_pylist() == ["a"]


def test_a_null_is_refused_where_the_table_has_not_null(place: Place) -> None:
    make(place, column(nullable=False))
    with pytest.raises(RecordRefused) as refused:
        place.pre_commit({"value": ["a", "b", "c"], "other": pa.array([1, None, 3], pa.int64())})
    assert (refused.value.column, refused.value.record) == ("other", 1)
    with pytest.raises(SchemaMismatch, match=r"'other'.*NOT NULL"):
        place.pre_commit({"value": ["a"]})
    assert place.rows() == []
    assert place.data_files() == []


NOT_UTF8 = pa.Array.from_buffers(pa.string(), 4, pa.array([b"a", b"b", b"\xff\xfe", b"c"]).buffers())
OFFSETS = pa.array([0, 0, 1, 3, 4], pa.int32())
NUMBERS = pa.array([1, 2, None, 4], pa.int64())


@pytest.mark.parametrize(
    ("values", "type"),
    [
        (NOT_UTF8.cast(pa.large_string()), "string"),
        (
            pa.ListArray.from_arrays([0, 2, 2, 3, 4], NOT_UTF8, mask=pa.array([True, False, False, False])),
            {"type": "array", "elementType": "string", "containsNull": True},
        ),
        (
            pa.MapArray.from_arrays(OFFSETS, pa.array([*"abcd"]), NUMBERS),
            {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False},
        ),
        (
            pa.ListArray.from_arrays(OFFSETS, NUMBERS),
            {"type": "array", "elementType": "long", "containsNull": False},
        ),
        (
            pa.ListArray.from_arrays(OFFSETS, pa.StructArray.from_arrays([NUMBERS], ["x"])),
            {
                "type": "array",
                "elementType": {"type": "struct", "fields": [column("x", nullable=False)]},
                "containsNull": True,
            },
        ),
        (
            pa.MapArray.from_arrays(OFFSETS, [*"abbb"], NUMBERS),
            {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
        ),
    ],
    ids=[
        *("large text", "behind a null array with elements", "null in a map", "null in an array"),
        *("null in an array's struct", "map with a key twice"),
    ],
)
def test_only_the_record_with_a_bad_value_is_left_out_however_deep_it_is(
    place: Place, values: pa.Array, type: Any
) -> None:
    """Records before it were refused in its stead where it was inside of a collection. A slice shares the memory of the
    bad value, and does not have it."""
    make(place, column("nested", type))
    batch = pa.record_batch({"value": [*"abcd"], "nested": values})
    with Participant({"orders": place.sink()}, ROUND, partition=0, max_bad_records=4) as participant:
        [refused] = participant.write("orders", batch)
        votes = [participant.pre_commit()["orders"]]
    assert (str(refused.column).partition(".")[0], refused.record) == ("nested", 2)
    place.sink().commit_batch(0, place.sink().seal(votes, 0.0))
    assert place.values() == ["a", "b", "d"]


def test_a_text_that_is_longer_than_its_varchar_is_refused(place: Place) -> None:
    make(place, column("short", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(3)"))
    place.pre_commit({"value": ["a"], "short": ["äöü"]})
    with pytest.raises(RecordRefused, match=r"varchar\(3\)"):
        place.pre_commit({"value": ["a"], "short": ["four"]}, partition=1)


@pytest.mark.parametrize(
    ("given", "field", "fits"),
    [
        (pa.decimal128(5, 2), pa.decimal128(6, 3), True),
        (pa.decimal128(6, 2), pa.decimal128(6, 3), False),
        (pa.struct({"a": pa.int32()}), pa.struct({"a": pa.int64()}), True),
        (pa.struct({"a": pa.int32()}), pa.struct({"b": pa.int32()}), False),
        (pa.large_list(pa.int16()), pa.list_(pa.int64()), True),
    ],
)
def test_a_type_fits_only_if_the_table_holds_each_of_its_values(
    tmp_path: Any, given: pa.DataType, field: pa.DataType, fits: bool
) -> None:
    """Types of one value are those that the README names."""
    other = Place(str(tmp_path / "typed"))
    other.create(pa.schema({"x": field}))
    sink = other.sink()
    if fits:
        sink.validate(pa.schema({"x": given}))
    else:
        with pytest.raises(SchemaMismatch, match="'x'"):
            sink.validate(pa.schema({"x": given}))


def test_an_unknown_column_and_one_named_twice_are_refused(place: Place) -> None:
    sink = place.sink()
    with pytest.raises(SchemaMismatch, match=r"'extra'.*merge_schema"):
        sink.validate(pa.schema({"value": pa.string(), "extra": pa.string()}))
    with pytest.raises(SchemaMismatch, match="'value'"):
        sink.validate(pa.schema([pa.field("value", pa.string()), pa.field("VALUE", pa.string())]))


def test_a_column_in_another_case_is_the_tables_as_in_spark(place: Place) -> None:
    place.sink().commit_batch(0, [place.pre_commit({"VALUE": ["a"]})])
    assert place.rows() == [{"value": "a"}]


def test_a_file_that_is_gone_or_changed_before_the_decision_aborts_the_round(place: Place) -> None:
    spoils: tuple[Callable[[Path], object], ...] = (Path.unlink, lambda path: path.write_bytes(b"other"))
    for number, spoil in enumerate(spoils):
        with Participant({"orders": place.sink()}, ROUND, partition=number) as participant:
            participant.write("orders", pa.record_batch({"value": ["a"]}))
            vote = participant.pre_commit()["orders"]
        spoil(place.folder / place.data_files()[0])
        with pytest.raises(RoundAborted, match="not there as it was written"):
            place.sink().seal([vote], 0.0)
        place.sink().abort(vote)
    assert place.values() == []


@pytest.mark.parametrize(
    "name", ["replaceWhere", "overwriteSchema", "partitionOverwriteMode", "txnAppId", "txnVersion"]
)
def test_an_option_of_sparks_writer_that_the_sink_lacks_is_refused_by_name(place: Place, name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        place.unbound(**{name: "x"})


def test_a_place_without_a_table_is_refused_and_none_is_made(tmp_path: Any) -> None:
    nowhere = Place(str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="no Delta table"):
        nowhere.sink()
    assert not nowhere.folder.exists()


@pytest.mark.parametrize("url", ["hdfs://host/t", "wasbs://c@a.blob.core.windows.net/t", "memory://t"])
def test_a_store_in_which_two_commits_could_both_win_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="both win"):
        Place(url).unbound()


@pytest.mark.parametrize(("url", "extra"), [("s3://b/t", "s3"), ("abfss://c/t", "azure"), ("gs://b/t", "gcs")])
def test_a_store_whose_client_is_missing_is_refused_with_the_extra_that_has_it(
    url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=rf"pip install 'twopc-delta\[{extra}\]'"):
        Place(url).unbound()


def test_a_lock_in_dynamodb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_S3_LOCKING_PROVIDER", "dynamodb")
    with pytest.raises(ConfigurationError, match="DynamoDB"):
        Place("s3://bucket/t").unbound()


def test_a_partition_column_without_one_form_in_the_log_is_refused(tmp_path: Any) -> None:
    other = Place(str(tmp_path / "typed"))
    other.create(pa.schema({"x": pa.int64(), "at": pa.timestamp("us", "UTC")}), ["at"])
    with pytest.raises(SchemaMismatch, match="'at'"):
        other.sink().validate(pa.schema({"x": pa.int64(), "at": pa.timestamp("us", "UTC")}))


def test_delta_rs_itself_would_commit_to_a_table_with_a_check_constraint(place: Place) -> None:
    """If this fails, delta-rs has begun to look at rows, and a refusal above may go."""
    committable = place.pre_commit(["a"])
    make(place, configuration={"delta.constraints.positive": "value > 0"}, writer=3)
    from deltalake.transaction import AddAction

    path = place.data_files()[0]
    size = (place.folder / path).stat().st_size
    table = DeltaTable(place.path)
    table.create_write_transaction([AddAction(path, size, {}, 1, True, "{}")], "append", table.schema(), [])
    assert place.values() == ["a"]
    assert committable.records == 1


@pytest.mark.parametrize(
    ("named", "added"),
    [
        ("a b", pa.field("a b", pa.int64())),
        ("in,side", pa.field("s", pa.struct({"in,side": pa.int64()}))),
        ("unsigned", pa.field("unsigned", pa.uint64())),
        ("nano", pa.field("nano", pa.timestamp("ns", "UTC"))),
        ("time", pa.field("time", pa.time64("us"))),
        ("nothing", pa.field("nothing", pa.null())),
        ("at", pa.field("at", pa.timestamp("us"))),
        ("at", pa.field("list", pa.list_(pa.struct({"at": pa.timestamp("us")})))),
        ("'value'", pa.field("good", pa.int64())),
    ],
)
def test_merge_schema_changes_no_table_for_records_that_it_then_refuses(
    place: Place, named: str, added: pa.Field
) -> None:
    before = everything(place)
    value = pa.int64() if named == "'value'" else pa.string()
    with pytest.raises(SchemaMismatch, match=named):
        place.sink(merge_schema=True).validate(pa.schema([pa.field("value", value), added]))
    assert everything(place) == before


def test_what_is_inside_of_a_column_and_not_null_by_the_commit_stops_the_query(place: Place) -> None:
    """As CREATE OR REPLACE makes it."""
    inner = {"type": "struct", "fields": [column("x")]}
    make(place, column("s", inner))
    written = {"value": ["a"], "s": pa.array([{"x": None}], pa.struct({"x": pa.int64()}))}
    committable, sink = place.pre_commit(written), place.sink()
    [metadata] = place.actions("metaData")
    schema = json.loads(metadata["schemaString"])
    schema["fields"][1]["type"]["fields"][0]["nullable"] = False
    schema["fields"].append(column("new", {"type": "struct", "fields": [column("y", nullable=False)]}))
    place.change_metadata(schemaString=json.dumps(schema))
    with pytest.raises(OperatorRequired, match=r"s\.x"):
        sink.commit_batch(0, [committable])
    schema["fields"][1]["type"]["fields"][0]["nullable"] = True
    place.change_metadata(schemaString=json.dumps(schema))
    sink.commit_batch(0, [committable])  # a new column is null, with all that is inside of it
    assert place.rows() == [{"value": "a", "s": {"x": None}, "new": None}]


def test_records_that_break_a_rule_are_left_out(place: Place) -> None:
    make(place, column("short", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(3)"), column(nullable=False))
    records = {
        "value": ["a", "b", "c", "d"],
        "short": ["four", "abc", None, "five"],
        "other": pa.array([1, None, 3, None], pa.int64()),
    }
    vote, refused = place.vote_without_bad(records)
    assert sorted(refused) == [0, 1, 3]
    place.sink().commit_batch(0, [vote])
    assert place.values() == ["c"]


def test_text_that_is_not_utf8_is_left_out_of_a_partition_column(place: Place) -> None:
    schema = Schema.from_arrow(pa.schema({"value": pa.string(), "day": pa.string()}))
    DeltaTable.create(place.path, schema, partition_by=["day"], mode="overwrite")
    days = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"a\xff", None], pa.binary()).buffers())
    vote, refused = place.vote_without_bad({"value": ["a", "b", "c"], "day": days})
    assert refused == [1]
    place.sink().commit_batch(0, [vote])
    assert place.values() == ["a", "c"]
