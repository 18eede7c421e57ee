"""What the errors of the Delta sink advise is done, and works: the query goes on, and the records are there once."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sinks.delta.conftest import Place
from tests.sinks.delta.test_commit import FORGETS, forget_marks, once, recreate
from tests.support.advice import Query, killed, raises, told
from twopc_delta.commit import TableLog

Case = Callable[[Place, Query, pytest.MonkeyPatch], object]


@pytest.fixture
def query(place: Place, tmp_path: Path) -> Query:
    return Query(tmp_path, "delta", {"path": place.path})


def with_required(place: Place) -> None:
    place.change_metadata(schemaString=json.dumps({"type": "struct", "fields": [
        {"name": "value", "type": "string", "nullable": False, "metadata": {}}]}))  # fmt: skip


def committed(place: Place, query: Query, patch: pytest.MonkeyPatch) -> None:
    """The driver has committed batch 0, and died before it could complete it."""
    with patch.context() as dies:
        dies.setattr(TableLog, "_settle", killed)
        query.commit(0, "b")


def cleaned_up(place: Place, version: int) -> None:
    place.table().create_checkpoint()
    place.entry_path(version).unlink()


def another_table(place: Place, query: Query, patch: pytest.MonkeyPatch) -> None:
    query.decide(0, "b")
    recreate(place)


def another_table_meanwhile(place: Place, query: Query, patch: pytest.MonkeyPatch) -> None:
    query.decide(0, "b")
    once(patch, lambda: recreate(place))
    query.stops(0, "while the batch was committed")
    patch.undo()
    place.table().restore(place.table().version() - 1)


def replaced_in_a_log_that_was_cleaned_up(place: Place, query: Query, patch: pytest.MonkeyPatch) -> None:
    committed(place, query, patch)
    place.change_metadata(id="another")
    cleaned_up(place, 0)


def forgetful(place: Place, query: Query, patch: pytest.MonkeyPatch) -> None:
    committed(place, query, patch)
    forget_marks(place)
    cleaned_up(place, 1)
    error = query.stops(0, "the delta sink can't write to …")
    assert told(error, r"UNSET TBLPROPERTIES \('(.*?)'\)")[1] == FORGETS
    place.change_metadata()


def restored(place: Place, query: Query, patch: pytest.MonkeyPatch) -> None:
    query.run(0, "a")
    shutil.copytree(place.log, query.log.with_name("delta"))
    query.run(1, "b")
    query.decide(2, "lost")
    shutil.rmtree(place.log)
    shutil.copytree(query.log.with_name("delta"), place.log)


def without_files(place: Place, query: Query, patch: pytest.MonkeyPatch) -> None:
    query.decide(0, "lost")
    (place.folder / place.data_files()[0]).unlink()


def changed(place: Place, query: Query, patch: pytest.MonkeyPatch) -> None:
    query.decide(0, "lost")
    with_required(place)


GIVEN_UP: dict[str, tuple[Case, list[str]]] = {
    "it was dropped and made again": (another_table, []),
    "this batch's mark: while the batch was committed, another table": (another_table_meanwhile, []),
    "and its log does not show whether it is the same one": (replaced_in_a_log_that_was_cleaned_up, ["b"]),
    "was cleaned up. So whether the batch was committed": (forgetful, ["b"]),
    "the table was restored from a copy, or it forgets marks": (restored, ["a"]),
    "of its files are gone or changed": (without_files, []),
    "the table was changed since its files were written": (changed, []),
}
"""The words of an error → what leads to it, and what a reader sees of the query when its batch was given up."""


@pytest.mark.variants
@pytest.mark.advice(*GIVEN_UP)
@pytest.mark.parametrize("words", GIVEN_UP)
def test_a_query_goes_on_when_a_batch_was_given_up_by_the_command_of_the_message(
    words: str, place: Place, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, left = GIVEN_UP[words]
    case(place, query, monkeypatch)
    error = query.stops(3, words)
    query.abandon(error)
    if case is restored:  # a batch before is gone, too, which is noticed before the next decision
        Path(told(query.stops(3, "of this sink was version"), r"remove (\S+) and start again")[1]).unlink()
    assert error.batch_id is not None
    query.run(error.batch_id + 1, "next")
    assert [value for value in place.values() if not value.startswith("new")] == sorted([*left, "next"])


@pytest.mark.long
@pytest.mark.advice("there is no Delta table any more")
def test_a_batch_whose_table_was_dropped_is_given_up_beside_another_table(place: Place, query: Query) -> None:
    query.decide(0, "lost")
    error = query.stops(0, "there is no Delta table any more", before_commit=lambda: shutil.rmtree(place.folder))
    told(error, "or create another one, .*'twopc abandon'")
    place.create()
    query.abandon(query.stops(0, "it was dropped and made again"))
    query.run(1, "next")
    assert place.values() == ["next"]


def require_values(place: Place) -> Callable[[], object]:
    with_required(place)
    return place.change_metadata


def move(path: Path) -> Callable[[], object]:
    """Move a file or folder aside. Return what puts it back."""
    away = path.rename(path.with_name(f"{path.name}.away"))
    return lambda: away.rename(path)


UNDONE: dict[str, tuple[str, Callable[[Place], Callable[[], object]]]] = {
    "of its files are gone or changed": (
        "Put them back and start again",
        lambda place: move(place.folder / place.data_files()[0]),
    ),
    "there is no Delta table any more": ("Bring it back and start again", lambda place: move(place.folder)),
    "the table was changed since its files were written": ("Undo the change and start again", require_values),
}
"""The words of an error → what it advises, and what leads to it, which returns what undoes it."""


@pytest.mark.variants
@pytest.mark.advice(*UNDONE)
@pytest.mark.parametrize("words", UNDONE)
def test_a_decided_batch_is_committed_when_what_the_message_names_is_undone(
    words: str, place: Place, query: Query
) -> None:
    advice, change = UNDONE[words]
    query.decide(0, "a")
    undo: list[Callable[[], object]] = []
    told(query.stops(0, words, before_commit=lambda: undo.append(change(place))), advice)
    undo[0]()
    query.run(0)
    assert place.values() == ["a"]


ROLLED_BACK: dict[str, Callable[[Place], object]] = {
    "the table was changed meanwhile: …": with_required,
    "is not there as it was written": lambda place: (place.folder / place.data_files()[0]).unlink(),
}


@pytest.mark.variants
@pytest.mark.advice(*ROLLED_BACK)
@pytest.mark.parametrize("words", ROLLED_BACK)
def test_a_batch_that_was_rolled_back_is_run_again(words: str, place: Place, query: Query) -> None:
    with raises(words) as rolled_back:
        query.run(0, "a", meanwhile=lambda: ROLLED_BACK[words](place))
    told(rolled_back.value, "The batch can be run again")
    query.run(0, "a")
    assert place.values() == ["a"]


@pytest.mark.advice("the delta sink can't write to …")
def test_a_table_is_written_when_the_constraint_that_the_message_names_is_dropped(place: Place, query: Query) -> None:
    place.table().alter.add_constraint({"late": "value > 'b'"})
    refused = query.stops(0, "the delta sink can't write to …")
    place.table().alter.drop_constraint(told(refused, r"ALTER TABLE … DROP CONSTRAINT (\w+)")[1])
    query.run(0, "a")
    assert place.values() == ["a"]


@pytest.mark.long
@pytest.mark.advice("of this query, and the commit log is about to")
def test_a_query_goes_on_with_the_newest_log_after_an_older_one_was_refused(place: Place, query: Query) -> None:
    query.run(0, "a")
    query.copy_log("older")
    query.run(1, "b")
    query.copy_log("newest")
    query.restore_log("older")
    told(query.stops(1, "of this query, and the commit log is about to"), "Restore the newest log, and start again")
    query.restore_log("newest")
    query.run(2, "c")
    assert place.values() == ["a", "b", "c"]
