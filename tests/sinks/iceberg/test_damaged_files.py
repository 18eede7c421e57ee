"""Whatever is read back may be gone, cut short, empty or garbled. Before the decision the batch is refused, after it an
operator is called; the message names the file. Where nothing is at stake, the query goes on."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.iceberg.conftest import Place, Query, on_disk
from twopc import Round
from twopc.errors import LogMismatch, OperatorRequired, Refused, Retriable, RoundAborted, TransactionLost
from twopc_iceberg.files import DurableFile

MARK = "twopc.committed.twopc.log.orders"


def garble(path: Path) -> None:
    """Change bytes in the middle. The length stays."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = bytes(255 - byte for byte in content[middle : middle + 8])
    path.write_bytes(content)


CUT: Mapping[str, Callable[[Path], object]] = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "empty": lambda path: path.write_bytes(b""),
}
DAMAGED = {**CUT, "garbled": garble}
CHANGED = {**DAMAGED, "gone": Path.unlink}


def path_of(place: Place, part: str) -> Path:
    """A file of the table whose name has this part."""
    return next(each for each in paths(place) if part in str(each))


def paths(place: Place) -> list[Path]:
    return [place.folder / name for name in place.files()]


MANIFEST, DATA, NOTE = "-m0.avro", ".parquet", "_twopc/"
OF_A_BATCH = [(MANIFEST, how) for how in CHANGED] + [(DATA, how) for how in ("gone", *CUT)]


@pytest.mark.long
@pytest.mark.parametrize(("part", "how"), OF_A_BATCH)
def test_a_changed_file_of_a_large_batch_is_a_veto(part: str, how: str, place: Place) -> None:
    """However many files there are: a snapshot that lacks one could not be read."""
    votes = [place.vote([str(number)], partition=number) for number in range(20)]
    path = path_of(place, part)
    CHANGED[how](path)
    with pytest.raises(RoundAborted, match=f"{path.name} .* is not there as its task has written it"):
        place.sink().seal(votes, 0.0)


@pytest.mark.variants
@pytest.mark.parametrize(("part", "how"), OF_A_BATCH)
def test_a_changed_file_of_a_decided_batch_calls_an_operator(part: str, how: str, place: Place) -> None:
    batch = place.decided(["a"], ["b"])
    path = path_of(place, part)
    CHANGED[how](path)
    with pytest.raises(TransactionLost, match=path.name):
        place.sink().commit_batch(0, batch)
    assert place.values() == []


@pytest.mark.parametrize("how", CUT)
def test_a_damaged_manifest_of_a_batch_whose_commit_the_catalog_has_lost_calls_an_operator(
    how: str, place: Place
) -> None:
    batch, sink = place.decided(["a"], ["b"]), place.sink()
    sink.commit_batch(0, batch)
    sink.complete(0, batch)
    path = path_of(place, MANIFEST)
    place.lose_commit()
    DAMAGED[how](path)
    with pytest.raises(TransactionLost, match=path.name):
        place.sink().commit_batch(0, batch)


@pytest.mark.advice("the store does not have file … as it was written")
def test_a_store_that_keeps_more_than_was_written_is_found_before_the_vote(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that takes the framing of a request for content. The length is the task's own, not what the store has."""
    create = DurableFile.create

    def framed(file: DurableFile, overwrite: bool = False) -> Any:
        stream = create(file, overwrite)
        close, path = stream.close, on_disk(file.location)

        def close_and_frame() -> None:
            if not stream.closed:
                close()
                path.write_bytes(b"8;chunk\r\n" + path.read_bytes())

        stream.close = close_and_frame
        return stream

    sink = place.sink()
    sink.validate(pa.schema([("value", pa.string())]))
    with monkeypatch.context() as patch:
        patch.setattr(DurableFile, "create", framed)
        with pytest.raises(RoundAborted, match=r"the store does not have file .*\.parquet"):
            place.vote(["a"], sink=sink)
    sink.commit_batch(0, sink.seal([place.vote(["a"], Round(2, 0), sink=sink)], 0.0))
    assert place.values() == ["a"]


@pytest.mark.parametrize("how", CUT)
def test_a_damaged_note_of_an_undecided_transaction_stops_no_start(
    how: str, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.vote(["a"])
    note = path_of(place, NOTE)
    DAMAGED[how](note)
    sink = place.sink()
    sink.abort(*sink.recover())
    assert list(sink.recover()) == []
    assert f"{note} is damaged" in caplog.text
    assert path_of(place, DATA).exists()  # which file it is was in the note


def test_a_note_that_names_a_file_of_another_transaction_removes_nothing(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.sink().commit_batch(0, place.decided(["visible"]))
    visible = path_of(place, DATA)
    place.vote(["a"], Round(1, 1))
    note = path_of(place, NOTE)
    [own] = [path for path in paths(place) if path.suffix == DATA and path != visible]
    note.write_text(note.read_text(encoding="utf-8").replace(own.name, visible.name), encoding="utf-8")
    sink = place.sink()
    sink.abort(*sink.recover())
    assert place.values() == ["visible"]
    assert f"{note} is damaged" in caplog.text


@pytest.mark.variants
@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_manifest_list_refuses_the_next_batch_and_calls_an_operator_for_a_decided_one(
    how: str, place: Place
) -> None:
    place.table().append(pa.table({"value": ["foreign"]}))
    batch, vote = place.decided(["a"]), place.vote(["b"], Round(1, 1))
    path = path_of(place, "metadata/snap-")
    DAMAGED[how](path)
    with pytest.raises(Refused, match=f"{path.name} is damaged"):
        place.sink().seal([vote], 0.0)
    with pytest.raises(OperatorRequired, match=f"{path.name} is damaged"):
        place.sink().commit_batch(0, batch)
    with pytest.raises(OperatorRequired, match=f"{path.name} is damaged"):
        list(place.sink().check())


@pytest.mark.advice("file … is damaged")
@pytest.mark.parametrize("how", DAMAGED)
def test_damaged_metadata_of_the_table_is_not_taken_for_a_missing_answer(how: str, place: Place) -> None:
    batch, sink = place.decided(["a"]), place.bound()
    path = on_disk(place.table().metadata_location)
    whole = path.read_bytes()
    DAMAGED[how](path)
    with pytest.raises(Refused, match=f"{path.name} is damaged"):
        sink.open()
    with pytest.raises(OperatorRequired, match=rf"{path.name} is damaged.* Restore the file, .*, and start again"):
        sink.commit_batch(0, batch)
    path.write_bytes(whole)
    sink.commit_batch(0, batch)
    assert place.values() == ["a"]


@pytest.mark.variants
@pytest.mark.parametrize("mark", ["", "1e3", "-1", "seven", " 1", "\u0663"])
def test_a_mark_that_is_not_a_number_stops_the_query(mark: str, place: Place) -> None:
    batch, vote = place.decided(["a"]), place.vote(["b"], Round(1, 1))
    place.set_properties({MARK: mark})
    sink = place.bound()
    for before_the_decision in (sink.open, lambda: sink.seal([vote], 0.0)):
        with pytest.raises(Refused, match="must be a number"):
            before_the_decision()
    with pytest.raises(OperatorRequired, match="must be a number"):
        sink.commit_batch(0, batch)
    assert place.values() == []


@pytest.fixture
def restored(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Query]:
    """A query whose catalog was restored while it was stopped: batches 1 and 2 are gone."""
    monkeypatch.setattr("twopc.failures.STALE_S", 0.0)
    query = Query(place, tmp_path / "log")
    query.run(0, value=["a"])
    copy = place.table().metadata_location
    query.run(1, value=["b"])
    query.run(2, value=["c"])
    query.close()
    place.point_to(copy)
    with closing(Query(place, tmp_path / "log")) as query:
        yield query


def test_a_table_that_was_restored_while_the_query_was_stopped_gets_no_further_batch(
    restored: Query, place: Place
) -> None:
    for _ in range(2):
        with pytest.raises(LogMismatch, match="had batch 2 of this query, and the catalog shows batch 0"):
            restored.run(3, value=["d"])
    assert place.values() == ["a"]


@pytest.mark.advice("it has lost a commit, or the table was restored")
def test_a_restored_table_goes_on_when_its_mark_is_set_as_the_message_says(restored: Query, place: Place) -> None:
    with pytest.raises(LogMismatch) as mismatch:
        restored.run(3, value=["d"])
    name, rest = mismatch.value.message.split("property '")[1].split("' to ")
    place.set_properties({name: rest.split(",")[0]})
    restored.run(3, value=["d"])
    assert place.values() == ["a", "d"]


def test_a_catalog_that_shows_an_older_table_at_the_start_is_asked_again(place: Place) -> None:
    """As one that reads from a replica."""
    place.sink().commit_batch(0, place.decided(["a"]))
    old = place.table().metadata_location
    place.sink().commit_batch(1, place.decided(["b"], round=Round(1, 1)))
    new, sink = place.table().metadata_location, place.bound()
    sink.last_batch_id = 1
    place.point_to(old)
    with pytest.raises(Retriable, match="it is behind"):
        sink.open()
    place.point_to(new)
    sink.open()


def test_a_table_that_has_no_batch_of_the_query_is_not_taken_for_one_that_lost_them(place: Place) -> None:
    """A sink of this name may have written elsewhere before: the log knows the name alone."""
    sink = place.bound()
    sink.last_batch_id = 100
    sink.open()


@pytest.mark.long
def test_a_batch_that_is_not_known_to_be_committed_is_not_missed_at_the_start(place: Place) -> None:
    """The commit that follows settles it."""
    batch, sink = place.decided(["a"]), place.bound()
    sink.last_batch_id = 0
    sink.pending = {0: tuple(batch)}
    sink.open()
    sink.commit_batch(0, batch)
    assert place.values() == ["a"]
