"""Transactions that nobody decides: found by their notes, and removed without a trace. Files that a snapshot may have
are never removed, whoever asks (invariants 4 and 5)."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from tests.sinks.iceberg.conftest import BY_VALUE, Place
from tests.support.between import Between
from tests.support.observing import Killed
from tests.support.raising import raising
from twopc import Committable, Participant, Round
from twopc.errors import RoundAborted
from twopc_iceberg.notes import FOLDER


def notes(place: Place) -> list[str]:
    return [name for name in place.files() if name.startswith(FOLDER)]


def data(place: Place) -> list[str]:
    return [name for name in place.files() if name.startswith("data/")]


@pytest.mark.parametrize("properties", [{}, {"write.object-storage.enabled": "true"}])
def test_an_abort_removes_every_file_that_the_transaction_has_written(properties: dict[str, str], place: Place) -> None:
    place.create(spec=BY_VALUE, properties=properties)
    before = place.files()
    place.vote(["a", "b", "c"])
    sink = place.sink()
    [found] = sink.recover()
    assert len(data(place)) == 3
    sink.abort(found)
    assert place.files() == before


def test_a_note_names_the_files_of_a_task_that_was_killed_before_its_vote(place: Place) -> None:
    place.create(spec=BY_VALUE)
    before = place.files()
    participant = Participant({"orders": place.sink()}, Round(1, 0), partition=0)
    participant.write("orders", pa.record_batch({"value": ["a"]}))
    participant.write("orders", pa.record_batch({"value": ["b", "a"]}))
    sink = place.sink()
    [found] = sink.recover()
    sink.abort(found)
    assert [name for name in place.files() if name not in before] == []


@pytest.mark.parametrize("writes", [1, 2], ids=["the first note", "a later one"])
def test_what_is_left_of_a_note_whose_writer_was_killed_goes_with_its_transaction(
    writes: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.create(spec=BY_VALUE)
    before = place.files()
    participant = Participant({"orders": place.sink()}, Round(1, 0), partition=0)
    for value in "ab"[: writes - 1]:
        participant.write("orders", pa.record_batch({"value": [value]}))
    monkeypatch.setattr(Path, "replace", raising(Killed()))
    with pytest.raises(Killed):
        participant.write("orders", pa.record_batch({"value": ["c"]}))
    monkeypatch.undo()
    assert [name for name in notes(place) if name.endswith(".aside")]
    sink = place.sink()
    [found] = sink.recover()
    sink.abort(found)
    assert list(sink.recover()) == []
    assert place.files() == before


def test_a_batch_has_no_note_any_more_when_the_catalog_is_asked(place: Place) -> None:
    """Else an abort that was late could remove files which readers see."""
    batch, sink = place.decided(["a"]), place.sink()
    assert len(notes(place)) == 1
    seen: list[list[str]] = []
    Between(before=lambda: seen.append(notes(place))).stand(sink)
    sink.commit_batch(0, batch)
    assert seen == [[], []]


@pytest.mark.parametrize("has_expired", [False, True])
def test_a_note_that_comes_back_after_the_commit_removes_no_file(has_expired: bool, place: Place) -> None:
    """As where a power cut or a store's old listing brings back what was removed."""
    batch = place.decided(["a"], ["c"])
    note = place.folder / notes(place)[-1]
    kept = note.read_bytes()
    place.sink().commit_batch(0, batch)
    if has_expired:
        place.table().append(pa.table({"value": ["b"]}))
        place.expire()
    note.write_bytes(kept)
    sink = place.sink()
    [found] = sink.recover()
    sink.abort(found)
    assert place.values()[-1] == "c"
    assert notes(place) == []


def test_an_attempt_that_lost_against_another_one_is_removed_after_the_commit(place: Place) -> None:
    batch = place.decided(["a"])
    before = data(place)
    place.vote(["a"], partition=7)
    sink = place.sink()
    sink.commit_batch(0, batch)
    [lost] = sink.recover()
    sink.abort(lost)
    assert data(place) == before
    assert place.values() == ["a"]


def test_a_task_whose_transaction_was_rolled_back_does_not_vote(place: Place) -> None:
    participant = Participant({"orders": place.sink()}, Round(1, 0), partition=0)
    participant.write("orders", pa.record_batch({"value": ["a"]}))
    sink = place.sink()
    sink.abort(*sink.recover())
    with pytest.raises(RoundAborted, match="was rolled back while it was written"), participant:
        participant.pre_commit()
    assert data(place) == notes(place) == []


def test_a_task_that_goes_on_after_its_transaction_was_rolled_back_does_not_vote_for_the_rest(place: Place) -> None:
    """Its next file brings the note back."""
    place.create(spec=BY_VALUE)
    participant = Participant({"orders": place.sink(target_file_bytes="1")}, Round(1, 0), partition=0)
    participant.write("orders", pa.record_batch({"value": ["a"]}))  # into a file that is finished
    assert len(data(place)) == 1
    sink = place.sink()
    sink.abort(*sink.recover())
    participant.write("orders", pa.record_batch({"value": ["b"]}))
    with pytest.raises(RoundAborted, match="was rolled back"), participant:
        participant.pre_commit()
    assert data(place) == notes(place) == []


def test_a_transaction_that_was_rolled_back_after_its_vote_is_a_veto(place: Place) -> None:
    vote = place.vote(["a"])
    sink = place.sink()
    sink.abort(vote)
    with pytest.raises(RoundAborted, match="is not there as its task has written it"):
        sink.seal([vote], 0.0)


def test_a_committable_is_small_and_has_no_credentials(place: Place) -> None:
    sink = place.sink(**{"catalog.s3.access-key-id": "public-half", "catalog.s3.secret-access-key": "hunter2"})
    batch = place.decided(["a"] * 1000, sink=sink)
    text = json.dumps(batch[0].to_json())
    assert len(text) < 700
    for secret in ("hunter2", "public-half"):
        assert secret not in text + repr(sink) + repr(sink._for_tasks) + repr(sink._options)


@pytest.mark.long
def test_what_travels_to_tasks_does_not_grow_with_the_history_of_the_table(place: Place) -> None:
    sizes = []
    for number in range(4):
        sink = place.sink()
        assert sink._for_tasks is not None
        sizes.append(len(sink._for_tasks.metadata))
        sink.commit_batch(number, place.decided(["a"], round=Round(1, number)))
    assert max(sizes) - min(sizes) < 10
    assert max(sizes) < 1500


def test_a_task_needs_no_metadata_file(place: Place) -> None:
    """The catalog may delete those of older versions at any time."""
    sink = place.sink()
    for path in place.folder.rglob("*.metadata.json"):
        path.rename(path.with_suffix(".gone"))
    committable = place.vote(["a"], sink=sink)
    assert isinstance(committable, Committable)
    assert committable.records == 1
