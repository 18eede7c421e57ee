"""A batch that the table has lost is noticed before the next decision, and no upkeep of a table is taken for a loss."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sinks.delta.conftest import Place
from tests.sinks.delta.test_commit import commit_and_die, recreate
from tests.support.advice import Query, told
from tests.support.counting import counted
from tests.support.raising import raising
from twopc import Round
from twopc.errors import LogMismatch
from twopc.stores.disk import LocalFolder
from twopc_delta import DeltaSink
from twopc_delta.log_files import LogFiles


def commit(place: Place, batch_id: int, sink: DeltaSink | None = None) -> None:
    """Decide and commit a batch: by a driver of its own unless one is named."""
    sink = sink or place.sink()
    sink.commit_batch(batch_id, [place.pre_commit([str(batch_id)], Round(1, batch_id), sink=sink)])


def rename_over(place: Place, version: int) -> None:
    """As Spark's log store does on a disk: it looks first, and then renames over what is there by then."""
    log = place.log
    place.append("foreign")
    os.replace(log / f"{place.table().version():020d}.json", log / f"{version:020d}.json")  # noqa: PTH105


def rename_over_the_newest(place: Place) -> None:
    rename_over(place, place.table().version())


@pytest.mark.variants
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.advice("of this sink was version")
def test_an_entry_that_another_writer_has_replaced_is_noticed_before_the_next_decision(
    place: Place, checkpointed: bool, restarted: bool
) -> None:
    """Behind a checkpoint that was written before, the table still has the mark."""
    sink = place.sink()
    for batch_id in range(2):
        sink.commit_batch(batch_id, [place.pre_commit([str(batch_id)], Round(1, batch_id), sink=sink)])
    if checkpointed:
        place.table().create_checkpoint()
    rename_over_the_newest(place)
    vote = place.vote(["2"], Round(1, 2))
    for _ in range(2):
        with pytest.raises(LogMismatch, match=r"batch 1 of this sink was version 2 .* replaced"):
            (place.sink() if restarted else sink).seal([vote], 0.0)
    place.receipt.unlink()
    restarted_sink = place.sink()
    restarted_sink.commit_batch(2, restarted_sink.seal([vote], 0.0))
    assert "2" in place.values()


def test_an_entry_that_was_replaced_before_the_batch_is_settled_is_put_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable = place.pre_commit(["a"])
    commit_and_die(place, 0, committable, monkeypatch)
    rename_over_the_newest(place)
    place.sink().commit_batch(0, [committable])
    assert place.values() == ["a", "foreign"]


def test_a_batch_whose_entry_was_cleaned_up_is_not_taken_for_replaced(place: Place) -> None:
    place.sink().commit_batch(0, [place.pre_commit(["a"])])
    place.append("foreign")
    place.table().create_checkpoint()
    place.entry_path(1).unlink()
    place.sink().commit_batch(1, [place.pre_commit(["b"], Round(1, 1))])
    assert place.values() == ["a", "b", "foreign"]


def test_a_receipt_of_a_table_that_was_dropped_says_nothing_of_the_new_one(place: Place) -> None:
    place.sink().commit_batch(0, [place.pre_commit(["a"])])
    recreate(place)
    place.sink().commit_batch(1, [place.pre_commit(["b"], Round(1, 1))])
    assert place.values() == ["b", "new0"]


def test_a_receipt_that_can_not_be_written_does_not_fail_the_batch(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink, committable = place.sink(), place.pre_commit(["a"])
    monkeypatch.setattr(LocalFolder, "replace", raising(OSError("no room")))
    sink.commit_batch(0, [committable])
    assert "no receipt of batch 0" in caplog.text
    assert (place.values(), place.notes()) == (["a"], [])


def optimize(place: Place) -> None:
    place.table().optimize.compact()


def vacuum(place: Place) -> None:
    place.table().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)


def restore(place: Place) -> None:
    place.table().restore(1)


def clean_up_the_log(place: Place) -> None:
    place.table().alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    place.table().create_checkpoint()
    for path in place.log.iterdir():
        os.utime(path, (1, 1))
    place.table().cleanup_metadata()
    assert len(list(place.folder.glob("_delta_log/*.json"))) == 1


def another_query(place: Place) -> None:
    other = place.sink("other")
    other.commit_batch(0, [place.pre_commit(["other"], Round(1, 0), sink=other)])


@pytest.mark.variants
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("keep_up", [optimize, vacuum, restore, clean_up_the_log, another_query])
def test_no_upkeep_of_a_table_and_no_other_query_is_taken_for_a_loss(
    place: Place, keep_up: Callable[[Place], None], restarted: bool
) -> None:
    sink = place.sink()
    for batch_id in range(3):
        commit(place, batch_id, sink)
    keep_up(place)
    for batch_id in (3, 4):
        commit(place, batch_id, None if restarted else sink)
    assert {"0", "3", "4"} <= {*place.values()}


def test_a_table_that_is_moved_takes_its_receipt_along(place: Place, tmp_path: Path) -> None:
    commit(place, 0)
    moved = Place(str(place.folder.rename(tmp_path / "moved")))
    commit(moved, 1)
    assert moved.values() == ["0", "1"]


def test_a_copy_of_the_whole_table_is_noticed_by_the_process_that_has_committed(place: Place, tmp_path: Path) -> None:
    """The copy has a receipt of its own, which is as old."""
    sink = place.sink()
    commit(place, 0, sink)
    shutil.copytree(place.folder, tmp_path / "copy")
    commit(place, 1, sink)
    shutil.rmtree(place.folder)
    shutil.copytree(tmp_path / "copy", place.folder)
    with pytest.raises(LogMismatch, match=r"batch 1 of this sink was version 2 .* the table's newest one is 0 now"):
        commit(place, 2, sink)


@pytest.mark.advice("it has lost a commit, or the table was restored")
def test_a_copy_of_the_whole_table_that_was_restored_while_the_query_was_stopped_is_noticed_at_the_start(
    place: Place, tmp_path: Path
) -> None:
    query = Query(tmp_path, "delta", {"path": place.path})
    query.run(0, "a")
    shutil.copytree(place.folder, tmp_path / "copy")
    query.run(1, "b")
    shutil.rmtree(place.folder)
    shutil.copytree(tmp_path / "copy", place.folder)
    query.stops(2, "the table was restored")
    error = query.stops(2, "the table was restored")
    told(error, "had batch 1 of this query, and shows batch 0")
    Path(told(error, r"remove (\S+), and start again")[1].removeprefix("file://")).unlink()
    query.run(2, "c")
    assert place.values() == ["a", "c"]


def test_a_query_goes_on_in_its_process_when_the_receipt_is_removed(place: Place) -> None:
    sink = place.sink()
    commit(place, 0, sink)
    rename_over_the_newest(place)
    vote = place.vote(["1"], Round(1, 1))
    for _ in range(2):
        with pytest.raises(LogMismatch):
            sink.seal([vote], 0.0)
    place.receipt.unlink()
    sink.commit_batch(1, sink.seal([vote], 0.0))
    assert place.values() == ["1", "foreign"]


def test_the_loss_of_a_batch_that_another_one_follows_is_named_as_a_replaced_entry(place: Place) -> None:
    """It is noticed only where no newer receipt could be written."""
    commit(place, 0)
    rename_over_the_newest(place)
    place.receipt.rename(place.receipt.with_suffix(".old"))
    commit(place, 1)
    place.receipt.with_suffix(".old").rename(place.receipt)
    with pytest.raises(LogMismatch, match=r"batch 0 of this sink was version 1 .* another entry is there now"):
        commit(place, 2)


@pytest.mark.variants
@pytest.mark.parametrize("following", [0, 1, 40])
def test_a_batch_is_found_in_the_log_by_few_reads_after_a_crash(
    place: Place, monkeypatch: pytest.MonkeyPatch, following: int
) -> None:
    committable = place.pre_commit(["a"])
    commit_and_die(place, 0, committable, monkeypatch)
    for number in range(following):
        place.append(str(number))
    sink = place.sink()
    reads = counted(monkeypatch, LogFiles, "entry")
    sink.commit_batch(0, [committable])
    assert len(reads) <= 2
    monkeypatch.undo()
    rename_over(place, 1)
    with pytest.raises(LogMismatch, match="batch 0 of this sink was version 1"):
        commit(place, 1)
