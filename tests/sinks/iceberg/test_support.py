"""What does not work yet is refused by its name, before anything is written."""

import json

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.update import RemoveSchemasUpdate
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import FixedType, IntegerType, LongType, NestedField, StringType

from tests.sinks.iceberg.conftest import Place, on_disk
from tests.support.between import Between, lost, once
from twopc.checks import CheckStatus
from twopc.errors import ConfigurationError, OperatorRequired, Refused, Retriable, RoundAborted
from twopc_iceberg import checks


def refusal(place: Place, **options: str) -> str:
    before = place.files()
    with pytest.raises(ConfigurationError) as refused:
        place.sink(**options)
    assert place.files() == before
    return str(refused.value)


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"format-version": "1"}, "format version 1. Its manifests have no sequence numbers"),
        ({"write.format.default": "orc"}, "write.format.default=orc, and the sink writes Parquet alone"),
        ({"write.format.default": "avro"}, "the sink writes Parquet alone"),
        ({"encryption.key-id": "k"}, "is encrypted (encryption.key-id)"),
        ({"write.data.path": "gs://bucket/data"}, "has files at gs://"),
    ],
)
def test_a_table_that_the_sink_can_not_write_is_refused(properties: dict[str, str], says: str, place: Place) -> None:
    place.create(properties=properties)
    assert says in refusal(place)


@pytest.mark.advice("neither can read the other's manifests")
def test_a_partition_that_java_and_python_write_differently_is_refused(place: Place) -> None:
    code = Schema(NestedField(1, "code", FixedType(4)))
    place.create(code, PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "code")))
    assert "neither can read the other's manifests. Use the transform bucket" in refusal(place)
    place.create(code, PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "code_bucket")))
    place.sink()


def test_files_do_not_claim_a_sort_order_that_the_table_got_meanwhile(place: Place) -> None:
    """Iceberg lets a writer leave records unsorted if its files name no order. A reader that trusts a false one would
    miss records."""
    sink = place.sink()
    with place.table().update_sort_order() as update:
        update.asc("value", IdentityTransform())
    place.run(0, ["b", "c", "a"], sink=sink)
    place.run(1, ["f", "d"], sink=sink)
    orders = place.table().inspect.files()["sort_order_id"].to_pylist()
    assert orders == [None, None]
    assert place.values() == ["a", "b", "c", "d", "f"]
    assert "has a sort order" in refusal(place)


def test_a_branch_that_is_missing_or_a_tag_is_refused(place: Place) -> None:
    assert "branch 'audit', of catalog 'default' does not exist" in refusal(place, branch="audit")
    place.table().append(pa.table({"value": ["a"]}))
    current = place.snapshot().snapshot_id
    place.table().manage_snapshots().create_tag(current, "release").commit()
    assert "'release' is a tag" in refusal(place, branch="release")


def test_a_removed_branch_calls_an_operator_after_the_decision_and_refuses_the_batch_before(place: Place) -> None:
    """It is the branch for which the batch was decided, whatever the option is now."""
    place.branched("audit")
    sink = place.sink(branch="audit")
    batch = place.decided(["b"], sink=sink)
    place.table().manage_snapshots().remove_branch("audit").commit()
    with pytest.raises(OperatorRequired, match=r"branch 'audit'.* has no branch 'audit'"):
        place.sink().commit_batch(0, batch)
    with pytest.raises(Refused, match="has no branch 'audit'"):
        sink.seal(batch, 0.0)


def test_a_table_that_does_not_exist_is_refused(place: Place) -> None:
    assert "the catalog has no such table" in refusal(place, table="db.missing")
    assert "the catalog has no such table" in refusal(place, table="missing.orders")


@pytest.mark.parametrize(
    "uri", ["mysql://writer:hunter2@host/db", "hunter2", "http//hunter2", "https://me:hunter2@host"]
)
def test_a_uri_that_is_none_of_a_tested_catalog_is_refused_without_it(uri: str, place: Place) -> None:
    assert "hunter2" not in refusal(place, **{"catalog.uri": uri})
    assert "must have the URI of a SQLite file or of PostgreSQL" in refusal(
        place, **{"catalog.uri": uri, "catalog.type": "sql"}
    )


def test_a_catalog_that_does_not_exist_is_refused_and_not_made(place: Place, tmp_path: object) -> None:
    assert "no such table" in refusal(place, **{"catalog.uri": f"sqlite:///{tmp_path}/other.db"})


@pytest.mark.parametrize("kind", ["dynamodb", "in-memory", "bigquery"])
def test_a_kind_of_catalog_that_is_not_tested_is_refused(kind: str, place: Place) -> None:
    assert f"of the type '{kind}'" in refusal(place, **{"catalog.type": kind})


@pytest.mark.advice("whose requirement (assert-ref-snapshot-id) did not hold")
def test_a_catalog_that_ignores_requirements_is_refused_and_another_one_taken(place: Place) -> None:
    sink = place.sink()
    catalog = sink._lake.catalog()
    commit = catalog.commit_table
    catalog.commit_table = lambda table, requirements, updates: commit(table, (), updates)  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match=r"whose requirement .* did not hold"):
        sink.open()
    place.sink().commit_batch(0, place.decided(["a"]))
    assert place.values() == ["a"]


@pytest.mark.advice("the catalog or the store gave no answer")
def test_a_catalog_that_does_not_answer_is_asked_again(place: Place) -> None:
    sink, batch = place.sink(), place.decided(["a"])
    Between(before=once(lost)).stand(sink)
    with pytest.raises(Retriable, match="no answer"):
        sink.open()
    sink.open()
    sink.commit_batch(0, batch)
    assert place.values() == ["a"]


def test_a_column_that_was_made_required_while_a_batch_was_written_is_a_veto(place: Place) -> None:
    vote = place.vote(["a"])
    with place.table().update_schema(allow_incompatible_changes=True) as update:
        update.update_column("value", required=True)
    with pytest.raises(RoundAborted, match="column 'value' is required, and was optional"):
        place.sink().seal([vote], 0.0)


def test_a_column_that_was_dropped_and_one_that_was_renamed_meanwhile(place: Place) -> None:
    place.create(Schema(NestedField(1, "value", StringType()), NestedField(2, "other", StringType())))
    vote = place.vote({"value": ["a"], "other": ["b"]})
    with place.table().update_schema() as update:
        update.rename_column("value", "name")
        update.delete_column("other")
    sink = place.sink()
    sink.commit_batch(0, sink.seal([vote], 0.0))
    assert place.records() == [{"name": "a"}]


NUMBERED = Schema(NestedField(1, "value", StringType()), NestedField(2, "number", IntegerType()))


@pytest.mark.variants
@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (Schema(NestedField(1, "value", LongType()), schema_id=1), "'value' is of type long, and string was written"),
        (Schema(NestedField(1, "value", StringType(), required=True), schema_id=1), "'value' is required"),
        (Schema(NestedField(9, "value", StringType()), schema_id=1), "none of its columns is one that was written"),
        (
            Schema(*NUMBERED.fields, NestedField(3, "new", LongType(), required=True), schema_id=1),
            "'new' is required, and was not written",
        ),
    ],
)
@pytest.mark.parametrize("when", ["before the look", "between look and commit"])
def test_a_table_that_can_not_read_the_files_of_a_decided_batch_takes_nothing(
    when: str, schema: Schema, says: str, place: Place
) -> None:
    place.create(NUMBERED)
    batch, sink = place.decided({"value": ["a"], "number": pa.array([1], pa.int32())}), place.sink()
    if when == "before the look":
        place.replace(schema)
        sink = place.sink()
    else:
        Between(before=once(lambda: place.replace(schema))).stand(sink)
    with pytest.raises(OperatorRequired, match=says):
        sink.commit_batch(0, batch)
    assert place.values() == []


@pytest.mark.parametrize("when", ["before the look", "between look and commit"])
def test_a_change_that_leaves_the_files_of_a_decided_batch_readable_is_looked_at_and_tried_again(
    when: str, place: Place
) -> None:
    """The result is as if the batch had been committed before the change."""
    place.create(NUMBERED)
    batch, sink = place.decided({"value": ["a"], "number": pa.array([1], pa.int32())}), place.sink()

    def change() -> None:
        with place.table().update_schema() as update:
            update.rename_column("value", "name").update_column("number", LongType()).add_column("new", LongType())

    if when == "before the look":
        change()
        sink = place.sink()
    else:
        Between(before=once(change)).stand(sink)
    sink.commit_batch(0, batch)
    assert place.records() == [{"name": "a", "number": 1, "new": None}]


def test_a_column_that_was_made_required_between_look_and_commit_stops_the_commit(place: Place) -> None:
    """The branch has not moved: only the current schema is another one."""
    place.table().append(pa.table({"value": ["old"]}))
    batch, sink = place.decided(["a"]), place.sink()

    def change() -> None:
        with place.table().update_schema(allow_incompatible_changes=True) as update:
            update.update_column("value", required=True)

    Between(before=once(change)).stand(sink)
    with pytest.raises(OperatorRequired, match="'value' is required, and was optional"):
        sink.commit_batch(0, batch)
    assert place.appends() == 1


def test_a_schema_whose_id_came_back_with_other_columns_is_not_taken_for_the_old_one(place: Place) -> None:
    batch = place.decided(["a"])
    place.replace(Schema(NestedField(1, "value", LongType()), schema_id=1))
    place.change(RemoveSchemasUpdate.model_validate({"schema-ids": [0]}))
    with pytest.raises(OperatorRequired, match="string was written"):
        place.sink().commit_batch(0, batch)


@pytest.mark.variants
@pytest.mark.parametrize("when", ["before the look", "between look and commit"])
@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_batch_whose_partition_spec_was_removed_calls_an_operator(
    when: str, has_snapshot: bool, place: Place
) -> None:
    if has_snapshot:
        place.table().append(pa.table({"value": ["old"]}))
    batch = place.decided(["a"])
    place.add_partition_field()
    sink = place.sink()
    if when == "before the look":
        place.remove_spec(0)
        sink = place.sink()
    else:
        Between(before=once(lambda: place.remove_spec(0))).stand(sink)
    with pytest.raises(OperatorRequired, match="partition spec 0 was removed"):
        sink.commit_batch(0, batch)
    assert place.marks() == {}
    assert place.appends() == has_snapshot


@pytest.mark.variants
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"properties": {"encryption.key-id": "k"}}, r"is encrypted \(encryption.key-id\)"),
        ({"properties": {"write.metadata.path": "gs://bucket/metadata"}}, "has files at gs://"),
    ],
)
def test_a_table_that_the_sink_can_not_write_any_more_takes_nothing(
    changed: dict[str, object], says: str, place: Place
) -> None:
    sink, vote = place.sink(), place.vote(["a"])
    batch = sink.seal([vote], 0.0)
    before = place.table().metadata_location
    place.point_to({**json.loads(on_disk(before).read_bytes()), **changed})
    with pytest.raises(RoundAborted, match=says):
        sink.seal([vote], 0.0)
    with pytest.raises(OperatorRequired, match=says):
        sink.commit_batch(0, batch)
    place.point_to(before)
    place.sink().commit_batch(0, batch)
    assert place.values() == ["a"]


@pytest.mark.long
def test_doctor_warns_of_many_snapshots_and_of_metadata_that_is_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run(0, ["a"])
    warned = [each.check for each in place.sink().check() if each.result is not CheckStatus.PASSED]
    assert warned == ["write.metadata.delete-after-commit.enabled"]
    monkeypatch.setattr(checks, "MANY_SNAPSHOTS", 0)
    place.create(properties={"write.metadata.delete-after-commit.enabled": "true"})
    place.run(0, ["a"])
    before = place.files()
    [warning] = [each for each in place.sink().check() if each.result is not CheckStatus.PASSED]
    assert (warning.check, warning.detail[:2]) == ("snapshots that the table keeps", "2:")
    assert "expire_snapshots" in warning.found
    assert place.files() == before
