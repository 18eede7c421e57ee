"""What the errors of the Iceberg sink advise is done, and works: the query goes on, and the records are there once."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.update import RemovePropertiesUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, StringType

from tests.sinks.iceberg.conftest import Place, on_disk
from tests.sinks.iceberg.test_damaged_files import path_of
from tests.sinks.iceberg.test_races import append
from tests.support.advice import Query, raises, told
from tests.support.between import Between, once
from twopc.errors import OutcomeUnknown
from twopc.log.history import read_history

OTHER_COLUMNS = Schema(NestedField(9, "value", StringType()), schema_id=1)

Undo = Callable[[], object]


@pytest.fixture
def query(place: Place, tmp_path: Path) -> Query:
    return Query(tmp_path, "iceberg", place.options)


def another_table(place: Place) -> Undo:
    catalog = place.catalog()
    catalog.rename_table("db.orders", "db.away")
    place.create()

    def bring_back() -> None:
        catalog.drop_table("db.orders")
        catalog.rename_table("db.away", "db.orders")

    return bring_back


def without_a_file(place: Place) -> Undo:
    path = path_of(place, ".parquet")
    away = path.rename(path.with_suffix(".away"))
    return lambda: away.rename(path)


def changed(place: Place, change: Callable[[], object]) -> Undo:
    before = place.table().metadata_location
    change()
    return lambda: place.point_to(before)


def without_spec(place: Place) -> None:
    place.add_partition_field()
    place.remove_spec(0)


CASES: dict[str, tuple[str, Callable[[Place], Undo]]] = {
    "and another table has its name now": ("bring it back under this name and start again", another_table),
    "is gone or cut short": ("Restore the file and start again", without_a_file),
    "was removed from the table": (
        "Bring an older version of its metadata back and start again",
        lambda place: changed(place, lambda: without_spec(place)),
    ),
    "Undo that change of the table": (
        "Undo that change of the table and start again",
        lambda place: changed(place, lambda: place.replace(OTHER_COLUMNS)),
    ),
}
"""The words of an error → what it advises, and what leads to it, which returns what undoes it."""


@pytest.mark.variants
@pytest.mark.advice(*CASES)
@pytest.mark.parametrize("words", CASES)
def test_a_decided_batch_is_committed_when_what_the_message_names_is_undone(
    words: str, place: Place, query: Query
) -> None:
    advice, change = CASES[words]
    query.decide(0, "a")
    undo = change(place)
    told(query.stops(0, words), advice)
    undo()
    query.run(0)
    assert place.values() == ["a"]


@pytest.mark.variants
@pytest.mark.advice(*CASES)
@pytest.mark.parametrize("words", CASES)
def test_a_query_goes_on_when_a_batch_was_given_up_by_the_command_of_the_message(
    words: str, place: Place, query: Query
) -> None:
    query.decide(0, "lost")
    CASES[words][1](place)
    query.abandon(query.stops(0, words))
    query.run(1, "next")
    assert place.values() == ["next"]


@pytest.mark.advice("and the catalog has no such table")
def test_a_batch_is_committed_to_a_table_that_was_renamed_when_the_option_has_its_new_name(
    place: Place, query: Query
) -> None:
    query.decide(0, "a")
    rename = lambda: place.catalog().rename_table("db.orders", "db.renamed")  # noqa: E731
    error = query.stops(0, "and the catalog has no such table", before_commit=rename)
    query.options[told(error, r"Set the option '(\w+)' to its new name")[1]] = "db.renamed"
    query.run(0)
    assert place.catalog().load_table("db.renamed").scan().to_arrow()["value"].to_pylist() == ["a"]


@pytest.mark.long
@pytest.mark.advice("and the catalog has no such table")
def test_a_batch_whose_table_was_dropped_is_given_up_beside_another_table(place: Place, query: Query) -> None:
    query.decide(0, "lost")
    drop = lambda: place.catalog().drop_table("db.orders")  # noqa: E731
    told(query.stops(0, "and the catalog has no such table", before_commit=drop), "create another one, and give")
    place.create()
    query.abandon(query.stops(0, "and another table has its name now"))
    query.run(1, "next")
    assert place.values() == ["next"]


@pytest.mark.long
@pytest.mark.advice("the table has no branch")
def test_a_decided_batch_is_committed_when_its_branch_was_created_again(place: Place, query: Query) -> None:
    place.branched("audit")
    query.options["branch"] = "audit"
    query.decide(0, "a")
    remove = lambda: place.table().manage_snapshots().remove_branch("audit").commit()  # noqa: E731
    error = query.stops(0, "the table has no branch", before_commit=remove)
    created = place.table().manage_snapshots()
    created.create_branch(place.snapshot().snapshot_id, told(error, r"branch '(\w+)'\. Create it again")[1]).commit()
    query.run(0)
    assert place.values("audit") == ["a", "old"]


@pytest.mark.variants
@pytest.mark.advice("and must be a number")
@pytest.mark.parametrize("has_batch", [True, False])
def test_a_mark_that_is_not_a_number_is_set_from_the_newest_snapshot(
    has_batch: bool, place: Place, query: Query
) -> None:
    if has_batch:
        query.run(0, "a")
    query.decide(1 if has_batch else 0, "b")
    log_id = read_history(str(query.log)).tail.log_id
    place.set_properties({f"twopc.committed.twopc.{log_id}.orders": "seven"})
    error = query.stops(1, "and must be a number")
    found = told(error, r"property '(\S+)' is 'seven'.* as '(\S+)', or remove it if there is none")
    if has_batch:
        summary = place.snapshot().summary
        assert summary is not None
        place.set_properties({found[1]: str(summary[found[2]])})
    else:
        place.change(RemovePropertiesUpdate(removals=[found[1]]))
    query.run(1 if has_batch else 0)
    assert place.values() == (["a", "b"] if has_batch else ["b"])


@pytest.mark.variants
@pytest.mark.advice("it was changed by hand, or the table was restored")
@pytest.mark.parametrize("is_there", [True, False])
def test_a_mark_that_was_removed_is_set_by_what_the_table_has(is_there: bool, place: Place, query: Query) -> None:
    query.run(0, "a")
    query.decide(1, "b")
    if is_there:
        query.commit(1)
    append(place)
    place.change(RemovePropertiesUpdate(removals=[*place.marks()]))
    place.expire()
    error = query.stops(1, "it was changed by hand, or the table was restored")
    assert isinstance(error, OutcomeUnknown)
    name, if_there, if_not = told(
        error, r"property '(\S+)' was .* set the property to (\d+); if not, to (\d+)"
    ).groups()
    place.set_properties({name: if_there if "b" in place.values() else if_not})
    query.run(1)
    assert place.values() == ["a", "b", "foreign"]


ROLLED_BACK: dict[str, Callable[[Place], object]] = {
    "is not there as its task has written it": lambda place: path_of(place, ".parquet").unlink(),
    "was dropped and created again while the batch was written": lambda place: place.create(),
    "was changed while the batch was written": lambda place: place.replace(OTHER_COLUMNS),
}


@pytest.mark.variants
@pytest.mark.advice(*ROLLED_BACK)
@pytest.mark.parametrize("words", ROLLED_BACK)
def test_a_batch_that_was_rolled_back_is_run_again(words: str, place: Place, query: Query) -> None:
    with raises(words):
        query.run(0, "a", meanwhile=lambda: ROLLED_BACK[words](place))
    query.run(0, "a")
    assert place.values() == ["a"]


@pytest.mark.advice("has a sort order, which the sink does not keep yet")
def test_a_table_is_written_when_its_sort_order_was_removed(place: Place, query: Query) -> None:
    place.create(order=SortOrder(SortField(1, IdentityTransform())))
    told(query.stops(0, "has a sort order, which the sink does not keep yet"), "ALTER TABLE … WRITE UNORDERED")
    metadata = json.loads(on_disk(place.table().metadata_location).read_bytes())
    unsorted = {"default-sort-order-id": 0, "sort-orders": [{"order-id": 0, "fields": []}]}
    place.point_to({**metadata, **unsorted})  # pyiceberg removes none
    query.run(0, "a")
    assert place.values() == ["a"]


@pytest.mark.advice("has an answer that the sink does not know")
def test_a_batch_is_committed_when_the_cause_of_an_unknown_answer_is_gone(place: Place) -> None:
    batch, sink = place.decided(["a"]), place.sink()

    def answer() -> None:
        response = requests.Response()
        response.status_code = 418
        raise requests.HTTPError("odd words", response=response)

    Between(before=once(answer)).stand(sink)
    with raises("has an answer that the sink does not know") as raised:
        sink.commit_batch(0, batch)
    told(raised.value, "odd words. See what it means and start again")
    sink.commit_batch(0, batch)
    assert place.values() == ["a"]
