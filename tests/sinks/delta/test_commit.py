"""A batch is in the table once, whatever happens between the look and the commit, and whatever the store answers."""

import errno
import json
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.sinks.delta.conftest import Place
from tests.support.counting import counted
from tests.support.raising import raising
from tests.support.sink_place import from_log
from tests.support.waiting import until
from twopc import Committable, Round
from twopc.errors import (
    ConfigurationError,
    CorruptLog,
    LogMismatch,
    OperatorRequired,
    OutcomeUnknown,
    Retriable,
    RoundAborted,
    TransactionLost,
)
from twopc.stores.disk import LocalFolder
from twopc_delta import commit, prepared
from twopc_delta.commit import TableLog
from twopc_delta.log_files import LogFiles
from twopc_delta.notes import Notes
from twopc_delta.prepared import Prepared

put = TableLog._put

MARK = "twopc.committed.twopc.log.orders"
FORGETS = "delta.setTransactionRetentionDuration"


def once(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], after: Callable[[], object] | None = None) -> None:
    """``act`` runs between the first look and its commit; ``after`` when the entry is put."""
    acts: Iterator[Callable[[], object]] = iter([act])

    def between(log: TableLog, *arguments: Any) -> None:
        next(acts, lambda: None)()
        put(log, *arguments)
        if after:
            after()

    monkeypatch.setattr(TableLog, "_put", between)


def test_a_batch_is_one_version_of_the_table(place: Place) -> None:
    before = place.table().version()
    batch = [place.pre_commit([value], partition=number) for number, value in enumerate("abc")]
    place.sink().commit_batch(0, batch)
    assert place.table().version() == before + 1
    assert place.values() == ["a", "b", "c"]
    assert place.notes() == []


def test_a_foreign_append_between_look_and_commit_is_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    committable = place.pre_commit(["a"])
    once(monkeypatch, lambda: place.append("foreign"))
    place.sink().commit_batch(0, [committable])
    assert place.values() == ["a", "foreign"]


def test_another_coordinator_between_look_and_commit_does_not_double_the_batch(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apache/iceberg#17637 and delta-io/delta#1410: two coordinators, one version."""
    committable = place.pre_commit(["a"])
    once(monkeypatch, lambda: place.sink().commit_batch(0, [committable]))
    place.sink().commit_batch(0, [committable])
    assert place.values() == ["a"]


def test_an_old_coordinator_that_wakes_up_after_later_batches_changes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apache/iceberg#14425: a late commit was applied twice."""
    first = place.pre_commit(["a"])

    def newer() -> None:
        for batch_id, committable in ((0, first), (1, place.pre_commit(["b"], Round(2, 1)))):
            place.sink().commit_batch(batch_id, [committable])
        DeltaTable(place.path).create_checkpoint()

    once(monkeypatch, newer)
    place.sink().commit_batch(0, [first])
    assert place.values() == ["a", "b"]


@pytest.mark.parametrize("what", ["notes", "files"])
def test_what_another_coordinator_removed_after_its_commit_is_not_taken_for_lost(
    place: Place, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The other one commits after our look and before we look at the notes; or compaction and VACUUM come after it."""
    committable = place.pre_commit(["a"])
    step = {"notes": "notes", "files": "gone"}[what]
    real = getattr(Prepared, step)

    def late(prepared: Prepared, argument: Any) -> Any:
        monkeypatch.setattr(Prepared, step, real)
        place.sink().commit_batch(0, [committable])
        if what == "files":
            place.append("b")
            place.table().optimize.compact()
            place.table().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        return real(prepared, argument)

    monkeypatch.setattr(Prepared, step, late)
    place.sink().commit_batch(0, [committable])
    assert "a" in place.values()
    assert place.notes() == []


def test_a_transaction_of_another_sink_is_neither_sealed_nor_committed(place: Place) -> None:
    """It may be one of another query on the same table: its note is there, and under our mark it would come twice."""
    other = place.sink("other")
    vote = place.vote(["a"], sink=other)
    sealed = other.seal([vote], 0.0)
    with pytest.raises(CorruptLog, match=vote.transaction_id):
        place.sink().seal([vote], 0.0)
    with pytest.raises(CorruptLog, match=vote.transaction_id):
        place.sink().commit_batch(0, sealed)
    with pytest.raises(CorruptLog, match=vote.transaction_id):
        place.sink().abort(vote)
    assert place.values() == []
    assert len(place.notes()) == 1
    other.commit_batch(0, sealed)
    assert place.values() == ["a"]


def test_a_note_that_was_changed_is_never_committed(place: Place) -> None:
    """Even one of the same length, whose files are all there: the log would get what the task did not write."""
    vote, sink = place.vote(["a"]), place.sink()
    sealed = [from_log(each) for each in sink.seal([vote], 0.0)]
    [note] = place.folder.glob("_twopc/*.json")
    written = note.read_bytes()
    changed = written.replace(b'\\"numRecords\\":1', b'\\"numRecords\\":2')
    assert changed != written
    assert len(changed) == len(written)
    note.write_bytes(changed)
    with pytest.raises(TransactionLost, match="the note of"):
        place.sink().commit_batch(0, sealed)
    assert place.values() == []
    sink.commit_batch(0, sealed)  # the driver that has the note from the vote
    assert place.added()[0]["stats"] == json.loads(written)["files"][0]["stats"]
    assert place.values() == ["a"]


def test_a_driver_reads_no_note_that_a_vote_has_brought(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long one stays where it is, and is read once."""
    reads = counted(monkeypatch, Notes, "read")
    for batch_id, longest in enumerate((prepared._LONGEST_IN_VOTE, 10)):
        monkeypatch.setattr(prepared, "_LONGEST_IN_VOTE", longest)
        votes = [place.vote([value], Round(1, batch_id), partition) for partition, value in enumerate("abc")]
        assert ("note" in votes[0].handle) is (longest > 10)
        sink = place.sink()
        sealed = sink.seal(votes, 0.0)
        assert "note" not in sealed[0].handle
        sink.commit_batch(batch_id, sealed)
        assert len(reads) == (0 if longest > 10 else 3)
    assert place.values() == sorted("abcabc")


def test_a_driver_that_was_replaced_commits_nothing_that_was_rolled_back(place: Place) -> None:
    """Although it has the notes in memory: an operator has given the batch up while the driver slept."""
    sink = place.sink()
    sealed = sink.seal([place.vote(["a"]), place.vote(["b"], partition=1)], 0.0)
    place.sink().abort(sealed[1])
    with pytest.raises(TransactionLost, match="the note of"):
        sink.commit_batch(0, sealed)
    assert place.values() == []


def test_a_listing_that_is_behind_loses_no_transaction(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 10: whether a note is gone is asked of the note."""
    monkeypatch.setattr(Notes, "transaction_ids", lambda notes: [])
    sink = place.sink()
    sink.commit_batch(0, sink.seal([place.vote(["a"])], 0.0))
    assert place.values() == ["a"]


@pytest.mark.advice("and not committed yet: other writers were faster")
def test_a_coordinator_that_never_gets_a_version_reports_it_and_the_next_start_does(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable = place.pre_commit(["a"])

    def slower(log: TableLog, *arguments: Any) -> None:
        place.append("foreign")
        put(log, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(TableLog, "_put", slower)
        patch.setattr(commit, "ATTEMPTS", 3)
        with pytest.raises(Retriable, match="3 times"):
            place.sink().commit_batch(0, [committable])
    assert place.values() == ["foreign"] * 3
    assert len(place.notes()) == 1
    place.sink().commit_batch(0, [committable])
    assert place.values() == ["a", *["foreign"] * 3]


def test_a_checkpoint_and_the_cleanup_of_the_log_between_look_and_commit_take_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry that was looked at is gone, and the next one follows the checkpoint."""
    sink = place.sink()
    sink.commit_batch(0, [place.pre_commit(["a"], sink=sink)])
    committable = place.pre_commit(["b"], Round(1, 1), sink=sink)

    def clean_up() -> None:
        place.table().create_checkpoint()
        for entry in place.log.glob("*.json"):
            entry.unlink()

    once(monkeypatch, clean_up)
    sink.commit_batch(1, [committable])
    assert place.values() == ["a", "b"]
    place.sink().commit_batch(1, [committable])
    assert place.values() == ["a", "b"]


def test_an_entry_behind_a_checkpoint_is_not_taken_for_committed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver looked, and slept until its version was cleaned up. Readers begin after that, and see nothing of what it
    puts. Here it is the sink's first batch, so the table has no mark."""
    sink = place.sink()
    place.append("x")
    committable = place.pre_commit(["a"], sink=sink)

    def sleep() -> None:
        for _ in range(3):
            place.append("x")
        place.table().create_checkpoint()
        for entry in sorted(place.folder.glob("_delta_log/*.json"))[:-1]:
            entry.unlink()

    once(monkeypatch, sleep)
    with pytest.raises(OutcomeUnknown, match="was cleaned up"):
        sink.commit_batch(0, [committable])
    assert place.values() == ["x"] * 4
    assert len(place.notes()) == 1


def test_compaction_and_vacuum_between_look_and_commit_take_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in "xyz":
        place.append(value)
    committable = place.pre_commit(["a"])

    def maintain() -> None:
        table = place.table()
        table.optimize.compact()
        table.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)

    once(monkeypatch, maintain)
    place.sink().commit_batch(0, [committable])
    assert place.values() == ["a", "x", "y", "z"]


@pytest.mark.parametrize("what", ["files", "notes"])
def test_what_is_removed_between_look_and_commit_is_noticed_when_the_commit_lost_its_race(
    place: Place, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """VACUUM's own entries make it lose; or those of anyone else."""
    committable, sink = place.pre_commit(["a"]), place.sink()

    def remove() -> None:
        if what == "files":
            place.table().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
        else:
            shutil.rmtree(place.folder / "_twopc")
            place.append("foreign")

    once(monkeypatch, remove)
    with pytest.raises(TransactionLost):
        sink.commit_batch(0, [committable])
    assert "a" not in place.values()


def test_vacuum_leaves_the_notes_alone(place: Place) -> None:
    committable = place.pre_commit(["a"])
    for note in place.folder.glob("_twopc/*"):
        os.utime(note, (1, 1))
    place.table().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    assert place.notes() == [f"{committable.transaction_id}.json"]


def test_a_decided_batch_whose_files_vacuum_has_removed_is_lost_aloud(place: Place) -> None:
    committables = [place.pre_commit([value], partition=number) for number, value in enumerate("ab")]
    (place.folder / place.data_files()[0]).unlink()
    for _ in range(2):
        with pytest.raises(TransactionLost, match="VACUUM"):
            place.sink().commit_batch(0, committables)
    assert place.values() == []


def test_two_queries_and_a_foreign_writer_on_one_table_lose_and_double_nothing(place: Place) -> None:
    def query(log_id: str) -> None:
        for batch_id in range(8):
            sink = place.sink(log_id)
            batch = [place.pre_commit([f"{log_id}{batch_id}"], Round(1, batch_id), sink=sink)]
            while True:
                try:
                    sink.commit_batch(batch_id, batch)
                    break
                except Retriable:
                    continue

    threads = [threading.Thread(target=query, args=(log_id,)) for log_id in ("one", "two")]
    for thread in threads:
        thread.start()
    for number in range(8):
        place.append(f"foreign{number}")
    for thread in threads:
        thread.join()
    assert place.values() == sorted(f"{who}{number}" for who in ("one", "two", "foreign") for number in range(8))


@pytest.mark.parametrize("error", [OSError("timed out"), FileExistsError("412")])
def test_an_answer_that_is_lost_after_the_commit_does_not_double_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """delta-io/delta-rs#2279: a write that succeeded returned an error, and its caller wrote again. A client that
    repeats a request by itself gets the answer that the entry exists."""
    once(monkeypatch, lambda: None, raising(error))
    committable = place.pre_commit(["a"])
    place.sink().commit_batch(0, [committable])
    assert place.values() == ["a"]


def test_a_request_that_is_carried_out_after_its_time_out_does_not_double_the_batch(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-io/delta-rs#268: the store paused, the commit counted as failed, and was carried out later."""
    committable = place.pre_commit(["a"])
    late: list[tuple[Any, ...]] = []

    def time_out(*arguments: Any) -> None:
        late.append(arguments)
        raise OSError("timed out")

    monkeypatch.setattr(TableLog, "_put", time_out)
    with pytest.raises(Retriable, match="timed out"):
        place.sink().commit_batch(0, [committable])
    monkeypatch.setattr(TableLog, "_put", lambda *arguments: (put(*late[0]), put(*arguments)))
    place.sink().commit_batch(0, [committable])
    with pytest.raises(FileExistsError):
        put(*late[0])
    assert place.values() == ["a"]


def test_a_success_that_the_table_does_not_show_is_not_believed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as an entry put into a version that was cleaned up behind a checkpoint, after a long pause."""
    answers: Iterator[Callable[..., None]] = iter([lambda *_: None, lambda *_: None, put])

    def answer(*arguments: Any) -> None:
        next(answers)(*arguments)

    monkeypatch.setattr(TableLog, "_put", answer)
    place.sink().commit_batch(0, [place.pre_commit(["a"])])
    assert place.values() == ["a"]
    with pytest.raises(StopIteration):
        next(answers)


def test_late_transactions_of_a_committed_batch_are_not_dropped_for_its_mark(place: Place) -> None:
    """delta-io/connectors#467: part of a checkpoint came late, and was skipped as the version was committed. Here a
    batch is decided whole, so a transaction of a batch that the table has can't be decided any more."""
    place.sink().commit_batch(0, [place.pre_commit(["a"])])
    with pytest.raises(LogMismatch, match="has batch 0"):
        place.pre_commit(["late"], partition=1)


def test_a_file_that_is_discarded_is_not_synced(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = place.sink()
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    sink.write(transaction, pa.record_batch({"value": ["a"]}))
    assert len(place.data_files()) == 1
    synced = list[str]()
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().suffix))
    sink.discard(transaction)
    assert place.data_files() == []
    assert ".parquet" not in synced


def test_an_old_commit_log_that_gives_out_names_again_takes_no_file_of_the_table(place: Place) -> None:
    """It was copied while the query was stopped, so it opens the incarnation anew that wrote the files. A file of the
    same name would be replaced on S3. On a disk it is refused, and what was refused is removed."""
    for batch_id in range(3):
        place.sink().commit_batch(batch_id, [place.pre_commit([str(batch_id)], Round(1, batch_id))])
    with pytest.raises(LogMismatch, match="log was restored from an older copy"):
        place.pre_commit(["other"], Round(1, 1))
    sink = place.sink()
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    sink.write(transaction, pa.record_batch({"value": ["other"]}))
    sink.discard(transaction)
    assert place.values() == ["0", "1", "2"]


def recreate(place: Place) -> None:
    """With as many versions as it had, and the files of open transactions where they were."""
    versions = place.table().version()
    shutil.rmtree(place.log)
    place.create()
    for number in range(versions):
        place.append(f"new{number}")


def test_a_table_that_was_dropped_and_made_again_gets_nothing_of_an_old_decision(place: Place) -> None:
    committable = place.pre_commit(["a"])
    recreate(place)
    with pytest.raises(OutcomeUnknown, match="dropped and made again"):
        place.sink().commit_batch(0, [committable])
    assert place.values() == []
    assert len(place.notes()) == 1


@pytest.mark.parametrize("died", [False, True])
def test_a_batch_that_went_into_a_table_which_took_the_place_of_its_own_is_not_taken_for_committed(
    place: Place, monkeypatch: pytest.MonkeyPatch, died: bool
) -> None:
    """It has as many versions, so the put succeeds. The driver may die before it looks."""
    sink = place.sink()
    sink.commit_batch(0, [place.pre_commit(["0"], sink=sink)])
    committable = place.pre_commit(["a"], Round(1, 1), sink=sink)
    with monkeypatch.context() as replaced:
        once(replaced, lambda: recreate(place), raising(KeyboardInterrupt()) if died else None)
        with pytest.raises(KeyboardInterrupt if died else OutcomeUnknown):
            sink.commit_batch(1, [committable])
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match=r"and this batch's mark: .* restore the version before it"):
            place.sink().commit_batch(1, [committable])
    assert place.table().transaction_version(MARK) == 1
    assert len(place.notes()) == 1


@pytest.mark.parametrize("versions", [0, 1])
def test_a_shorter_table_that_takes_the_place_of_the_old_one_gets_no_entry_behind_a_gap(
    place: Place, monkeypatch: pytest.MonkeyPatch, versions: int
) -> None:
    """No reader would read it any more."""
    sink = place.sink()
    for batch_id in range(3):
        sink.commit_batch(batch_id, [place.pre_commit(["0"], Round(1, batch_id), sink=sink)])
    committable = place.pre_commit(["a"], Round(1, 3), sink=sink)

    def shorter() -> None:
        shutil.rmtree(place.log)
        place.create()
        for _ in range(versions):
            place.append("new")

    once(monkeypatch, shorter)
    with pytest.raises(OutcomeUnknown, match="dropped and made again"):
        sink.commit_batch(3, [committable])
    assert place.values() == ["new"] * versions


def test_an_entry_behind_a_gap_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver put it into a shorter table, and died before it could take it back."""
    committable = place.pre_commit(["a"])
    place.entry_path(5).write_bytes(place.entry(0))
    with pytest.raises(OperatorRequired, match="version 5 of the table's log can't be read: it has no version 4"):
        place.bound().commit_batch(0, [committable])


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_log_that_lacks_its_beginning_is_named(place: Place, has_checkpoint: bool) -> None:
    """What a checkpoint stands for is not missing; that of one that lacks parts is."""
    for value in "abcd":
        place.append(value)
    log = place.log
    if has_checkpoint:
        place.table().create_checkpoint()
        (log / f"{4:020d}.checkpoint.parquet").rename(log / f"{4:020d}.checkpoint.{1:010d}.{2:010d}.parquet")
    (log / f"{0:020d}.json").unlink()
    with pytest.raises(ConfigurationError, match="version 1 of the table's log can't be read: it has no version 0"):
        place.sink()


def test_an_entry_behind_a_checkpoint_is_not_named_for_what_keeps_readers_out(place: Place) -> None:
    """The entry would be removed in vain, and with it others' records."""
    for value in "abcd":
        place.append(value)
    place.table().create_checkpoint()
    log = place.log
    (log / f"{2:020d}.json").unlink()
    (log / f"{1:020d}.json").write_bytes(b"damaged")
    names = ["fromTheFuture"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": names, "writerFeatures": names}
    (log / f"{5:020d}.json").write_text(json.dumps({"protocol": protocol}))
    with pytest.raises(ConfigurationError, match=r"delta-rs can't read the table: .* 'fromTheFuture'"):
        place.sink()


def test_a_feature_that_the_table_got_since_the_last_look_is_not_written_past(place: Place) -> None:
    sink = place.sink()
    sink.commit_batch(0, [place.pre_commit(["a"])])
    committable = place.pre_commit(["b"], Round(1, 1))
    place.put(protocol={"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["fromTheFuture"]})
    with pytest.raises(OperatorRequired, match="fromTheFuture"):
        sink.commit_batch(1, [committable])


def test_a_batch_that_was_committed_before_its_table_was_replaced_in_the_same_log_is_there(place: Place) -> None:
    """CREATE OR REPLACE gives the table another id."""
    committable = place.pre_commit(["a"])
    place.sink().commit_batch(0, [committable])
    place.change_metadata(id="another")
    assert str(place.table().metadata().id) == "another"
    place.sink().commit_batch(0, [committable])
    assert place.table().version() == 2


def test_a_table_replaced_in_a_log_that_was_cleaned_up_since_leaves_the_outcome_open(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing shows any more whether it is the log for which the batch was decided."""
    committable = place.pre_commit(["a"])
    commit_and_die(place, 0, committable, monkeypatch)
    place.change_metadata(id="another")
    place.table().create_checkpoint()
    place.entry_path(0).unlink()
    with pytest.raises(OutcomeUnknown, match=r"Either the batch was committed, .* Or another table"):
        place.sink().commit_batch(0, [committable])


def test_a_table_that_is_gone_leaves_the_outcome_open(place: Place) -> None:
    sink, committable = place.sink(), place.pre_commit(["a"])
    shutil.rmtree(place.folder)
    with pytest.raises(OutcomeUnknown, match="no Delta table any more"):
        sink.commit_batch(0, [committable])
    assert not place.folder.exists()


def test_a_table_restored_from_a_copy_leaves_the_outcome_open(place: Place, tmp_path: Path) -> None:
    """The decided batch follows one that the table no longer has. By the mark alone it would be committed, and the
    batches before would be missing without a word."""
    shutil.copytree(place.folder, tmp_path / "copy")
    place.sink().commit_batch(0, [place.pre_commit(["a"])])
    second = place.pre_commit(["b"], Round(1, 1))
    shutil.rmtree(place.log)
    shutil.copytree(tmp_path / "copy" / "_delta_log", place.log)
    with pytest.raises(OutcomeUnknown, match="restored"):
        place.sink().commit_batch(1, [second])


def test_a_table_restored_to_an_older_version_takes_the_next_batch_once(place: Place) -> None:
    place.sink().commit_batch(0, [place.pre_commit(["a"])])
    decided = place.pre_commit(["b"], Round(1, 1))
    place.table().restore(0)
    for _ in range(2):
        place.sink().commit_batch(1, [decided])
    assert place.values() == ["b"]


def test_a_repeated_commit_of_a_batch_that_was_restored_away_does_not_bring_it_back(place: Place) -> None:
    committable = place.pre_commit(["a"])
    place.sink().commit_batch(0, [committable])
    place.table().restore(0)
    place.sink().commit_batch(0, [committable])
    assert place.values() == []


def test_a_new_column_between_pre_commit_and_commit_is_null_in_the_batch(place: Place) -> None:
    from deltalake import Field
    from deltalake.schema import PrimitiveType

    committable = place.pre_commit(["a"])
    place.table().alter.add_columns([Field("more", PrimitiveType("long"))])
    place.sink().commit_batch(0, [committable])
    assert place.rows() == [{"value": "a", "more": None}]


def test_a_constraint_between_pre_commit_and_commit_stops_the_query(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs would commit rows that break it."""
    committable = place.pre_commit(["a"])
    sink = place.sink()
    once(monkeypatch, lambda: place.table().alter.add_constraint({"late": "value > 'b'"}))
    with pytest.raises(OperatorRequired, match="CHECK constraint 'late'"):
        sink.commit_batch(0, [committable])
    assert (place.values(), len(place.notes()), place.table().version()) == ([], 1, 1)
    place.table().alter.drop_constraint("late")
    place.sink().commit_batch(0, [committable])
    assert place.values() == ["a"]


def test_another_schema_at_the_commit_stops_the_query(place: Place) -> None:
    """The same table with a column of another type, as CREATE OR REPLACE makes it."""
    from deltalake import write_deltalake

    sink, committable = place.sink(), place.pre_commit(["a"])
    write_deltalake(
        place.path, pa.table({"value": pa.array([1], pa.int64())}), mode="overwrite", schema_mode="overwrite"
    )
    with pytest.raises((OperatorRequired, OutcomeUnknown), match=r"'value' was string and is int64|id"):
        sink.commit_batch(0, [committable])
    assert place.rows() == [{"value": 1}]


def forget_marks(place: Place) -> None:
    """Have the table forget its marks, after the decision: a table that does so at the start is refused."""
    place.table().alter.set_table_properties({FORGETS: "interval 0 seconds"})
    until(lambda: place.table().transaction_version(MARK) is None, 10)


def commit_and_die(place: Place, batch_id: int, committable: Committable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the entry, and leave the notes."""
    with monkeypatch.context() as killed:
        killed.setattr(TableLog, "_settle", lambda *_: None)
        place.sink().commit_batch(batch_id, [committable])


@pytest.mark.parametrize("batch_id", [0, 1])
def test_a_batch_whose_mark_is_forgotten_is_found_in_the_log(
    place: Place, monkeypatch: pytest.MonkeyPatch, batch_id: int
) -> None:
    for before in range(batch_id):
        place.sink().commit_batch(before, [place.pre_commit(["before"], Round(1, before))])
    committable = place.pre_commit(["a"], Round(1, batch_id))
    commit_and_die(place, batch_id, committable, monkeypatch)
    place.append("x")
    place.table().optimize.compact()
    forget_marks(place)
    place.bound().commit_batch(batch_id, [committable])
    assert place.values() == sorted(["a", "x", *["before"] * batch_id])
    assert place.notes() == []


@pytest.mark.parametrize("batch_id", [0, 1])
def test_a_table_that_begins_to_forget_marks_after_the_decision_stops_the_query(place: Place, batch_id: int) -> None:
    for before in range(batch_id):
        place.sink().commit_batch(before, [place.pre_commit(["before"], Round(1, before))])
    committable, sink = place.pre_commit(["a"], Round(1, batch_id)), place.sink()
    forget_marks(place)
    with pytest.raises(OperatorRequired, match=FORGETS) as raised:
        sink.commit_batch(batch_id, [committable])
    assert not isinstance(raised.value, OutcomeUnknown)
    assert "a" not in place.values()


def test_a_batch_without_a_mark_whose_entry_may_have_been_cleaned_up_leaves_the_outcome_open(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable = place.pre_commit(["a"])
    commit_and_die(place, 0, committable, monkeypatch)
    forget_marks(place)
    place.table().create_checkpoint()
    place.entry_path(1).unlink()
    with pytest.raises(OutcomeUnknown, match="version 1 of its log"):
        place.bound().commit_batch(0, [committable])
    assert place.values() == ["a"]


def test_a_sweep_after_a_forgotten_mark_removes_no_visible_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once an operator has given the batch up. A commit that was late may even come after the sweep."""
    committable = place.pre_commit(["a"])
    commit_and_die(place, 0, committable, monkeypatch)
    forget_marks(place)
    sink = place.bound()
    for each in sink.recover():
        sink.abort(each)
    assert place.values() == ["a"]
    assert place.notes() == []


@pytest.mark.parametrize(("foreign", "versions"), [(0, ["04", "08"]), (1, ["05", "09"])])
def test_checkpoints_are_written_as_the_table_asks_for_them_whoever_takes_the_versions_at_which_they_are_due(
    foreign: int, versions: list[str], place: Place
) -> None:
    shutil.rmtree(place.folder)
    place.create(delta__checkpointInterval="4")
    for batch_id in range(9 if not foreign else 6):
        place.sink().commit_batch(batch_id, [place.pre_commit([str(batch_id)], Round(1, batch_id))])
        for _ in range(foreign):  # which takes every even version
            place.append("foreign")
    assert sorted(path.name[18:20] for path in place.log.glob("*.checkpoint.parquet")) == versions
    assert len(place.values()) == place.table().version()


def test_a_checkpoint_that_fails_does_not_fail_the_batch(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "CHECKPOINT_INTERVAL", 1)
    monkeypatch.setattr(DeltaTable, "create_checkpoint", raising(OSError("no room")))
    place.sink().commit_batch(0, [place.pre_commit(["a"])])
    assert place.values() == ["a"]


def test_the_entry_survives_a_power_cut_before_its_notes_go(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another process put it and died before its sync, and others' entries follow."""
    committable = place.pre_commit(["a"])
    sink = place.sink()
    monkeypatch.setattr(TableLog, "_settle", lambda *_: None)
    sink.commit_batch(0, [committable])
    monkeypatch.undo()
    place.append("foreign")
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        assert len(place.notes()) == 1
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    TableLog(sink._storage, MARK, "table").commit(0, [committable])
    *entries, _, _ = synced  # the last two are of the receipt
    assert entries == ["00000000000000000002.json", "00000000000000000001.json", "_delta_log"]
    assert place.notes() == []


def test_a_sync_that_failed_once_is_not_taken_for_done_when_it_is_repeated(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel reports a failed write-back to the first sync alone."""
    committable, sink = place.pre_commit(["a"]), place.sink()
    real = os.fsync
    failures = iter([OSError(errno.EIO, "the disk")])

    def fsync(descriptor: int) -> None:
        real(descriptor)
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "_delta_log" and (error := next(failures, None)):
            raise error

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(2):
        with pytest.raises(OperatorRequired, match="may not survive a power cut"):
            sink.commit_batch(0, [committable])
    assert len(place.notes()) == 1
    place.sink().commit_batch(0, [committable])
    assert (place.values(), place.notes()) == (["a"], [])


def test_an_abort_leaves_the_files_of_a_pre_committed_transaction_to_vacuum(place: Place) -> None:
    """A late commit of a batch that was given up could still name them."""
    committable = place.pre_commit(["a"])
    place.sink().abort(Committable(committable.transaction_id, {}))
    assert (len(place.data_files()), place.notes()) == (1, [])
    place.table().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    assert place.data_files() == []


def test_a_late_abort_removes_no_file_of_a_committed_batch(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver died between the commit and the removal of the notes."""
    committable = place.pre_commit(["a"])
    monkeypatch.setattr(Notes, "remove", lambda notes, *names: None)
    place.sink().commit_batch(0, [committable])
    monkeypatch.undo()
    assert len(place.notes()) == 1
    place.sink().abort(committable)
    assert place.values() == ["a"]
    assert place.notes() == []


def test_the_files_of_an_attempt_that_lost_are_left_to_vacuum(place: Place) -> None:
    """It is rolled back after the commit. By then only the log could show whether its files are in the table."""
    won, lost = place.pre_commit(["a"]), place.vote(["a"], partition=1)
    place.sink().commit_batch(0, [won])
    place.sink().abort(lost)
    assert place.notes() == []
    assert place.values() == ["a"]
    assert len(place.data_files()) == 2
    place.table().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    assert len(place.data_files()) == 1
    assert place.values() == ["a"]


def test_an_attempt_that_was_killed_while_it_wrote_leaves_nothing_after_the_sweep(place: Place) -> None:
    sink = place.sink()
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    sink.write(transaction, pa.record_batch({"value": ["a"]}))
    assert len(place.data_files()) == 1
    [found] = place.sink().recover()
    place.sink().abort(found)
    assert (place.data_files(), place.notes()) == ([], [])
    with pytest.raises((RoundAborted, OSError)):
        sink.pre_commit(transaction)


def test_what_killed_writers_left_beside_the_notes_is_removed_once_it_is_old(place: Place) -> None:
    """An hour is long for a writer between its first byte and its rename; one that only slept writes anew."""
    place.pre_commit(["a"])
    old, new = (place.folder / "_twopc" / f".{name}.aside" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    place.sink()
    assert (old.exists(), new.exists()) == (False, True)
    assert len(place.notes()) == 1


def test_a_task_and_a_query_that_starts_do_not_disturb_each_other(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of notes is made for a trial, and removed while the first note is written."""
    real, sink = LocalFolder.replace, place.sink()
    trials = iter([(place.folder / "_twopc").rmdir])

    def replace(folder: LocalFolder, name: str, data: bytes) -> None:
        next(trials, lambda: None)()
        real(folder, name, data)

    monkeypatch.setattr(LocalFolder, "replace", replace)
    sink.commit_batch(0, [place.pre_commit(["a"], sink=sink)])
    assert place.values() == ["a"]


def test_a_process_loads_the_table_only_at_first_and_for_checkpoints(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each load reads all files of the table."""
    loads = counted(monkeypatch, commit, "load")
    sink = place.sink()
    for batch_id in range(12):  # over two checkpoints
        sink.commit_batch(batch_id, [place.pre_commit([str(batch_id)], Round(1, batch_id), sink=sink)])
        place.append(f"foreign{batch_id}")
    assert len(loads) == 4 + 2  # at the start and until the first entry that adds files, and for the checkpoints
    assert len(place.values()) == 24
    again = pickle.loads(pickle.dumps(sink))  # noqa: S301  # as it travels to the tasks
    assert "_log" not in vars(again)


def test_a_rule_that_comes_while_a_look_is_kept_stops_the_query(place: Place) -> None:
    sink = place.sink()
    for batch_id in range(2):
        sink.commit_batch(batch_id, [place.pre_commit([str(batch_id)], Round(1, batch_id), sink=sink)])
    decided = place.pre_commit(["2"], Round(1, 2), sink=sink)
    place.table().alter.add_constraint({"late": "value < '3'"})
    place.append("0")
    with pytest.raises(OperatorRequired, match="CHECK constraint 'late'"):
        sink.commit_batch(2, [decided])
    assert place.values() == ["0", "0", "1"]


@pytest.mark.variants
@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("what", ["another", "an older copy", "appended", "checkpointed"])
def test_a_table_that_changes_behind_a_kept_handle_is_looked_at_anew(
    place: Place, tmp_path: Path, what: str, is_sealed: bool
) -> None:
    sink, log = place.sink(), place.log
    sink.commit_batch(0, [place.pre_commit(["0"], sink=sink)])
    shutil.copytree(log, tmp_path / "copy")
    sink.commit_batch(1, [place.pre_commit(["1"], Round(1, 1), sink=sink)])
    vote = place.vote(["2"], Round(1, 2), sink=sink)
    batch = sink.seal([vote], 0.0)
    if what == "another":
        recreate(place)
    elif what == "an older copy":
        shutil.rmtree(log)
        shutil.copytree(tmp_path / "copy", log)
    else:
        place.append("foreign")
    if what == "checkpointed":
        place.table().create_checkpoint()
        for entry in sorted(log.glob("*.json"))[:-1]:
            entry.unlink()
    if not is_sealed and what == "another":
        with pytest.raises(RoundAborted, match="its id was"):
            sink.seal([vote], 0.0)
        return
    if not is_sealed and what == "an older copy":
        for each in (sink, place.sink()):  # also after a restart
            with pytest.raises(LogMismatch, match=r"batch 1 of this sink was version 2 .* the table's newest one is 0"):
                each.seal([vote], 0.0)
        place.receipt.unlink()  # an operator has seen to it, and started the query again
        batch = place.sink().seal([vote], 0.0)
        sink.close()
    elif not is_sealed:
        batch = sink.seal([vote], 0.0)
    if is_sealed and what in ("another", "an older copy"):
        with pytest.raises(OutcomeUnknown):
            sink.commit_batch(2, batch)
        return
    sink.commit_batch(2, batch)
    assert place.values().count("2") == 1


DAMAGED = {
    "torn": b'{"commitInfo":{"timestamp":1}}\n{"add":{"path":"x',
    "zeros": bytes(100),
    "no object": b"3\n",
    "no version": b'{"txn":{"appId":"a"}}',
}


@pytest.mark.variants
@pytest.mark.parametrize("is_decided", [False, True])
@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.advice("of the table's log can't be read")
def test_a_damaged_entry_of_another_writer_is_named(
    place: Place, damage: bytes, is_kept: bool, is_decided: bool
) -> None:
    """Whether the driver reads it itself, or delta-rs does."""
    sink = place.sink()
    sink.commit_batch(0, [place.pre_commit(["a"], sink=sink)])
    vote = place.vote(["b"], Round(1, 1))
    sealed = sink.seal([vote], 0.0)
    entry = place.entry_path(2)
    entry.write_bytes(damage)
    if not is_kept:
        sink.close()
    with pytest.raises(OperatorRequired if is_decided else ConfigurationError) as raised:
        sink.commit_batch(1, sealed) if is_decided else sink.seal([vote], 0.0)
    assert "batch 1" in str(raised.value)
    assert place.path in str(raised.value)
    assert "version 2 of the table's log can't be read: line" in str(raised.value)
    assert entry.read_bytes() == damage
    entry.unlink()
    sink.commit_batch(1, sealed)
    assert place.values() == ["a", "b"]


@pytest.mark.parametrize(
    "told",
    [
        *(b'{"commitInfo":"text"}', b'{"commitInfo":[1]}', b'{"commitInfo":null,"metaData":null}'),
        b'{"commitInfo":{}}\n\n{"unknown":{}}\n',
    ],
)
def test_an_entry_may_have_any_information_about_its_commit_unknown_actions_and_empty_lines(
    place: Place, told: bytes
) -> None:
    sink = place.sink()
    sink.commit_batch(0, [place.pre_commit(["a"], sink=sink)])
    place.entry_path(2).write_bytes(told)
    sink.commit_batch(1, [place.pre_commit(["b"], Round(1, 1), sink=sink)])
    assert place.values() == ["a", "b"]


@pytest.mark.parametrize("advanced", [False, True])
def test_a_table_that_is_restored_during_a_look_is_looked_at_anew(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advanced: bool
) -> None:
    """An older copy of the log is put back while the look catches up with the batch that was just put, or finds nothing
    new. A batch that is gone would be taken for committed, or the next one would follow a gap."""
    sink, log = place.sink(), place.log
    shutil.copytree(log, tmp_path / "copy0")
    sink.commit_batch(0, [place.pre_commit(["0"], sink=sink)])
    shutil.copytree(log, tmp_path / "copy1")
    batch = [place.pre_commit(["1"], Round(1, 1), sink=sink)]
    real, looks = LogFiles.newest_after, iter([False, True] if advanced else [True])

    def restored(files: LogFiles, version: int) -> int | None:
        newest = real(files, version)
        if next(looks, False):
            shutil.rmtree(log)
            shutil.copytree(tmp_path / ("copy1" if advanced else "copy0"), log)
        return newest

    monkeypatch.setattr(LogFiles, "newest_after", restored)
    if advanced:
        sink.commit_batch(1, batch)
        assert place.values() == ["0", "1"]
    else:
        with pytest.raises(OutcomeUnknown, match="restored"):
            sink.commit_batch(1, batch)
        assert sorted(path.stem[-1] for path in log.glob("*.json")) == ["0"]
    assert next(looks, None) is None


def test_an_entry_has_what_deltas_protocol_asks_for(tmp_path: Path) -> None:
    parted = Place(str(tmp_path / "parted"))
    parted.create(pa.schema({"value": pa.string(), "day of": pa.string()}), ["day of"])
    parted.sink().commit_batch(0, [parted.pre_commit({"value": ["a", "b"], "day of": ["50 % = x/y", None]})])
    info, txn, *adds = [json.loads(line) for line in parted.entry(1).splitlines()]
    assert info["commitInfo"]["operationParameters"] == {"mode": "Append", "partitionBy": '["day of"]'}
    assert info["commitInfo"]["isBlindAppend"] is True
    assert (txn["txn"]["appId"], txn["txn"]["version"]) == (MARK, 0)
    assert {add["add"]["partitionValues"]["day of"] for add in adds} == {"50 % = x/y", None}
    for each in adds:  # a URL of the file, which is where it decodes to
        assert (parted.folder / unquote(each["add"]["path"])).stat().st_size == each["add"]["size"]
        assert " " not in each["add"]["path"]
    assert sorted(row["day of"] or "" for row in parted.rows()) == ["", "50 % = x/y"]


@pytest.mark.long
def test_expired_entries_stay_where_a_checkpoint_lacks_parts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs takes it for whole, and would remove the entries that only a whole one stands for."""
    monkeypatch.setattr(commit, "CHECKPOINT_INTERVAL", 2)
    place.table().alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    log = place.log
    part = log / f"{2:020d}.checkpoint.{1:010d}.{2:010d}.parquet"

    def two_batches(first: int) -> None:
        for batch_id in (first, first + 1):
            place.sink().commit_batch(batch_id, [place.pre_commit([str(batch_id)], Round(1, batch_id))])
            for path in log.iterdir():
                os.utime(path, (1, 1))

    two_batches(0)
    part.write_bytes(b"its writer was killed")
    for first in (2, 4):
        two_batches(first)
    assert (log / f"{2:020d}.json").exists()
    part.unlink()
    for first in (6, 8):
        two_batches(first)
    assert not (log / f"{2:020d}.json").exists()
    assert place.values() == sorted(map(str, range(10)))
