"""Other writers, older coordinators and operators change the table between any two steps of a commit (invariants 2, 4
and 5). Each batch becomes visible once, or the sink raises and changes nothing."""

import contextlib
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, ForbiddenError, UnauthorizedError
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
)
from pyiceberg.types import LongType

from tests.sinks.iceberg.conftest import Place
from tests.support.between import Between, lost, once, times
from tests.support.phase_one import writes
from twopc import Committable, Coordinator, Round, TwoPhaseCommitSink
from twopc.errors import LogMismatch, OperatorRequired, OutcomeUnknown, Retriable, RoundAborted, TransactionLost
from twopc.testing.memory import MemorySink, MemoryTarget
from twopc_iceberg import IcebergSink
from twopc_iceberg.files import DurableFileIO
from twopc_iceberg.snapshot import Attempt

MARK = "twopc.committed.twopc.log.orders"


def append(place: Place, value: str = "foreign") -> None:
    place.table().append(pa.table({"value": [value]}))


def unanswered(place: Place, passes: int = 0) -> tuple[list[Committable], IcebergSink, Between]:
    """A decided batch whose commit got no answer: as many requests have reached the catalog, and the last has not."""
    batch, sink = place.decided(["a"]), place.sink()
    between = Between(passes=passes).stand(sink)
    with pytest.raises(Retriable):
        sink.commit_batch(0, batch)
    return batch, sink, between


def roll_back(place: Place, snapshot_id: int) -> None:
    place.table().manage_snapshots().set_current_snapshot(snapshot_id=snapshot_id).commit()


def test_a_foreign_append_between_the_look_and_the_commit_leaves_the_batch_visible_once(place: Place) -> None:
    batch, sink = place.decided(["a"], ["b"]), place.sink()
    between = Between(before=once(lambda: append(place))).stand(sink)
    sink.commit_batch(0, batch)
    assert place.values() == ["a", "b", "foreign"]
    assert len(between.requests) == 2


def test_a_commit_requires_the_table_and_the_snapshot_at_which_the_mark_was_looked_for(place: Place) -> None:
    append(place)
    before = place.table().metadata
    batch, sink = place.decided(["a"]), place.sink()
    between = Between().stand(sink)
    sink.commit_batch(0, batch)
    [(same_table, same_snapshot, *same_columns)] = between.requirements
    assert same_table == AssertTableUUID(uuid=before.table_uuid)
    assert same_snapshot == AssertRefSnapshotId.model_validate(
        {"ref": "main", "snapshot-id": before.current_snapshot_id}
    )
    assert same_columns == [
        AssertCurrentSchemaId.model_validate({"current-schema-id": before.current_schema_id}),
        AssertDefaultSpecId.model_validate({"default-spec-id": before.default_spec_id}),
    ]


@pytest.mark.long
def test_a_batch_is_committed_among_many_foreign_appends(place: Place) -> None:
    batch, sink = place.decided(["a"]), place.sink()
    Between(before=times(29, lambda: append(place))).stand(sink)
    for _ in range(3):
        try:
            sink.commit_batch(0, batch)
            break
        except Retriable:
            continue
    assert place.values() == ["a", *["foreign"] * 29]


def test_a_rewrite_between_the_look_and_the_commit_leaves_the_batch_visible_once(place: Place) -> None:
    append(place, "old")
    batch, sink = place.decided(["a"]), place.sink()
    Between(before=once(lambda: place.table().overwrite(pa.table({"value": ["compacted"]})))).stand(sink)
    sink.commit_batch(0, batch)
    assert place.values() == ["a", "compacted"]


def test_a_repeated_commit_after_a_rewrite_changes_nothing(place: Place) -> None:
    batch = place.decided(["a"])
    place.sink().commit_batch(0, batch)
    place.table().overwrite(pa.table({"value": ["a, compacted"]}))
    place.sink().commit_batch(0, batch)
    assert place.values() == ["a, compacted"]


def test_a_repeated_commit_after_the_snapshots_have_expired_changes_nothing(place: Place) -> None:
    batch = place.decided(["a"])
    place.sink().commit_batch(0, batch)
    for _ in range(3):
        append(place)
    place.expire()
    assert len(place.table().snapshots()) == 1
    place.sink().commit_batch(0, batch)
    assert place.values() == ["a", "foreign", "foreign", "foreign"]


def test_two_queries_on_one_table_commit_their_batches_once_each(place: Place) -> None:
    ours, theirs = place.decided(["a"]), place.decided(["b"], sink=place.sink("log2"))
    sink = place.sink()
    Between(before=once(lambda: place.sink("log2").commit_batch(0, theirs))).stand(sink)
    sink.commit_batch(0, ours)
    assert place.values() == ["a", "b"]
    assert place.marks() == {MARK: "0", "twopc.committed.twopc.log2.orders": "0"}


def test_iceberg_14425_a_commit_that_lands_between_the_look_and_the_repeated_commit_is_not_applied_twice(
    place: Place,
) -> None:
    """The first commit is still on its way when the restarted one looks for it, and lands before the second."""
    append(place)
    batch, first, second = place.decided(["a"]), place.sink(), place.sink()
    on_its_way = Between(passes=0).stand(first)
    with pytest.raises(Retriable):
        first.commit_batch(0, batch)
    Between(before=once(on_its_way.requests[0])).stand(second)
    second.commit_batch(0, batch)
    assert place.values() == ["a", "foreign"]
    assert place.appends() == 2


def test_iceberg_16008_a_commit_whose_answer_was_lost_is_found_by_the_next_incarnation(place: Place) -> None:
    batch, first = place.decided(["a"]), place.sink()
    Between(after=lost).stand(first)
    first.commit_batch(0, batch)  # it has found it itself
    append(place)
    place.sink().commit_batch(0, batch)
    assert place.values() == ["a", "foreign"]


def test_iceberg_17340_files_of_a_batch_are_not_committed_again_by_the_next_commit(place: Place) -> None:
    """Coordinators read their own news again after a restart, and commit it with what is new."""
    first = place.decided(["a"], ["b"])
    place.sink().commit_batch(0, first)
    second = place.decided(["c"], round=Round(2, 1))
    restarted = place.sink()
    restarted.commit_batch(0, first)
    restarted.commit_batch(1, second)
    place.sink().commit_batch(0, first)
    assert place.values() == ["a", "b", "c"]
    paths = [task.file.file_path for task in place.table().scan().plan_files()]
    assert len(paths) == len({*paths}) == 3


def test_iceberg_17551_a_stale_coordinator_never_moves_the_mark_back(place: Place) -> None:
    first = place.decided(["a"])
    stale = place.sink()
    place.sink().commit_batch(0, first)
    place.sink().commit_batch(1, place.decided(["b"], round=Round(2, 1)))
    stale.commit_batch(0, first)
    assert place.marks() == {MARK: "1"}
    assert place.values() == ["a", "b"]


def test_iceberg_17637_two_coordinators_that_commit_at_once_make_the_batch_visible_once(place: Place) -> None:
    batch, one, other = place.decided(["a"]), place.sink(), place.sink()
    Between(before=once(lambda: other.commit_batch(0, batch))).stand(one)
    one.commit_batch(0, batch)
    assert place.values() == ["a"]


def test_iceberg_14090_a_batch_of_files_with_two_schemas_is_committed_as_a_whole(place: Place) -> None:
    old = place.vote(["a"])
    with place.table().update_schema() as update:
        update.add_column("number", LongType())
    new = place.vote({"value": ["b"], "number": [1]}, partition=1)
    sink = place.sink()
    batch = sink.seal([old, new], 0.0)
    for _ in range(2):
        place.sink().commit_batch(0, batch)
    found = sorted(place.records(), key=str)
    assert found == [{"value": "a", "number": None}, {"value": "b", "number": 1}]
    assert place.appends() == 1


class _AwaySink(MemorySink):
    """Commits nothing."""

    def commit(self, committable: Committable) -> None:
        raise OperatorRequired(f"the topic refuses {committable.transaction_id}")


def test_iceberg_8809_a_batch_whose_topic_fails_is_not_written_to_the_table_a_second_time(
    place: Place, tmp_path: Path
) -> None:
    def run(topic: MemorySink) -> None:
        sinks: dict[str, TwoPhaseCommitSink[Any]] = {"topic": topic, "orders": place.unbound()}
        write = writes(sinks, {"value": ["a"]})
        Coordinator(sinks, tmp_path / "log", owner="query", rest_interval_s=None).run(0, write)

    topic = MemoryTarget()
    with pytest.raises(OperatorRequired, match="the topic refuses"):
        run(_AwaySink(topic))
    assert topic.visible == []
    run(MemorySink(topic))
    assert place.values() == [record["value"] for record in topic.visible] == ["a"]


def test_a_lost_request_is_repeated_and_the_late_one_is_refused(place: Place) -> None:
    batch, sink, between = unanswered(place)
    between.passes = 10
    sink.commit_batch(0, batch)
    with pytest.raises(CommitFailedException):
        between.requests[0]()
    assert place.values() == ["a"]


def test_a_request_that_a_proxy_sends_twice_is_applied_once(place: Place) -> None:
    """As by a gateway. The second one's answer is a conflict. It is the one that the sink gets."""

    def again() -> None:
        between.requests[-1]()

    batch, sink = place.decided(["a"]), place.sink()
    between = Between().stand(sink)
    between.after = again
    sink.commit_batch(0, batch)
    assert place.values() == ["a"]
    assert place.appends() == 1


def test_a_late_request_to_a_table_that_was_rolled_back_is_refused(place: Place) -> None:
    """The branch has the snapshot again that the request requires. Its sequence number is taken."""
    append(place)
    before = place.snapshot().snapshot_id
    batch, _, between = unanswered(place)
    place.sink().commit_batch(0, batch)
    roll_back(place, before)
    with pytest.raises(ValueError, match="sequence number"):
        between.requests[0]()
    assert place.values() == ["foreign"]


@pytest.mark.parametrize("passes", [0, 1])
def test_late_requests_to_a_table_that_was_replaced_add_no_record(passes: int, place: Place) -> None:
    """The first one of a new table has no parent: catalogs do not compare its sequence number."""
    batch, _, between = unanswered(place, passes)
    place.sink().commit_batch(0, batch)
    place.replace()
    for late in between.requests:
        with contextlib.suppress(ValueError, CommitFailedException):
            late()
    assert place.values() == []
    place.sink().commit_batch(0, batch)
    assert place.values() == []


def test_a_batch_that_was_rolled_back_by_hand_is_not_added_again(place: Place) -> None:
    append(place)
    before = place.snapshot().snapshot_id
    batch = place.decided(["a"])
    place.sink().commit_batch(0, batch)
    roll_back(place, before)
    place.sink().commit_batch(0, batch)
    assert place.values() == ["foreign"]


def test_a_table_that_was_dropped_and_created_again_calls_an_operator(place: Place) -> None:
    batch, stale = place.decided(["a"]), place.sink()
    place.create()
    for sink in (place.sink(), stale):
        with pytest.raises(OutcomeUnknown, match="another table has its name"):
            sink.commit_batch(0, batch)
    assert place.values() == []


def test_a_table_that_was_dropped_and_created_again_before_the_decision_is_a_veto(place: Place) -> None:
    vote = place.vote(["a"])
    place.create()
    with pytest.raises(RoundAborted, match="created again"):
        place.sink().seal([vote], 0.0)


def test_a_table_that_was_dropped_calls_an_operator(place: Place) -> None:
    batch, sink = place.decided(["a"]), place.sink()
    place.catalog().drop_table("db.orders")
    with pytest.raises(OutcomeUnknown, match="no such table"):
        sink.commit_batch(0, batch)


def test_a_table_that_was_dropped_before_its_batch_was_completed_calls_an_operator(place: Place) -> None:
    batch, sink = place.decided(["a"], ["b"]), place.sink()
    sink.commit_batch(0, batch)
    sink.close()
    place.catalog().drop_table("db.orders")
    with pytest.raises(OutcomeUnknown, match="no such table"):
        sink.complete(0, batch)


def test_a_log_that_is_older_than_the_table_is_refused_before_the_decision(place: Place) -> None:
    place.sink().commit_batch(0, place.decided(["a"]))
    vote = place.vote(["other"], Round(2, 0))
    with pytest.raises(LogMismatch, match="older copy"):
        place.sink().seal([vote], 0.0)


def test_a_catalog_that_has_lost_the_commit_of_a_batch_decides_no_further_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer may be an old one, so it counts only when it has been repeated for a while."""
    sink = place.sink()
    sink.commit_batch(0, place.decided(["a"], sink=sink))
    batch = place.decided(["b"], round=Round(1, 1), sink=sink)
    sink.commit_batch(1, batch)
    place.lose_commit()
    vote = place.vote(["c"], Round(1, 2))
    with pytest.raises(Retriable, match="shows batch 0: it is behind"):
        sink.seal([vote], 0.0)
    monkeypatch.setattr("twopc.failures.STALE_S", 0.0)
    with pytest.raises(LogMismatch, match="write the missing records by other means"):
        sink.seal([vote], 0.0)
    place.sink().commit_batch(1, batch)  # as recovery does
    assert place.values() == ["a", "b"]
    assert sink.seal([vote], 0.0)


def remove(place: Place, end: str) -> None:
    """Remove a file of the table, as a clean-up job does."""
    name = next(name for name in place.files() if name.endswith(end))
    (place.folder / name).unlink()


@pytest.mark.parametrize("end", [".parquet", "m0.avro"])
def test_a_commit_long_after_the_seal_looks_at_data_files_and_at_a_manifest_that_is_not_joined(
    end: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot without them could not be read."""
    sink = place.sink()
    batch = place.decided(["a"], sink=sink)
    remove(place, end)
    monkeypatch.setattr("twopc_iceberg.sink.TRUSTED_S", 0.0)
    with pytest.raises(TransactionLost):
        sink.commit_batch(0, batch)
    assert place.values() == []


def test_files_that_are_gone_since_the_batch_was_compacted_are_not_lost(place: Place) -> None:
    """This coordinator looked at the table before another one committed the batch."""
    batch, stale = place.decided(["a"]), place.sink()
    place.sink().commit_batch(0, batch)
    remove(place, ".parquet")
    stale.commit_batch(0, batch)


@pytest.mark.advice("A request to commit it is still on its way, or was lost")
def test_files_that_are_gone_while_a_request_may_still_land_leave_the_outcome_unknown(place: Place) -> None:
    batch, sink, between = unanswered(place, 1)
    remove(place, ".parquet")
    with pytest.raises(OutcomeUnknown, match=r"still on its way, or was lost\. Start again"):
        sink.commit_batch(0, batch)
    between.requests[1]()
    for restarted in (sink, place.sink()):
        restarted.commit_batch(0, batch)


def lists(place: Place) -> list[str]:
    return [name for name in place.files() if name.startswith("metadata/snap-")]


def test_the_file_of_an_attempt_that_lost_a_race_is_removed(place: Place) -> None:
    append(place)
    batch, sink = place.decided(["a"]), place.sink()
    Between(before=once(lambda: append(place))).stand(sink)
    sink.commit_batch(0, batch)
    assert len(lists(place)) == len(place.table().snapshots()) == 3


@pytest.mark.long
@pytest.mark.advice(": other writers were faster … times in a row")
def test_a_commit_that_loses_race_after_race_keeps_one_file(place: Place) -> None:
    append(place)
    batch, sink = place.decided(["a"]), place.sink()
    extra: list[int] = []

    def forestall() -> None:
        append(place)
        extra.append(len(lists(place)) - len(place.table().snapshots()))

    Between(before=forestall).stand(sink)
    for _ in range(2):
        with pytest.raises(Retriable, match="faster 20 times"):
            sink.commit_batch(0, batch)
    assert {*extra} == {1}
    assert len(sink._committer._attempts) == 0
    place.sink().commit_batch(0, batch)
    assert place.values().count("a") == 1


@pytest.mark.variants
@pytest.mark.parametrize("error", [ForbiddenError, UnauthorizedError, NotImplementedError])
def test_a_missing_right_is_not_taken_for_a_lost_race(error: type[Exception], place: Place) -> None:
    """Whoever else commits meanwhile."""

    def deny() -> None:
        append(place)
        raise error("no")

    append(place)
    batch, sink = place.decided(["a"]), place.sink()
    between = Between(before=deny).stand(sink)
    with pytest.raises(OperatorRequired, match="refuses"):
        sink.commit_batch(0, batch)
    assert len(between.requests) == 1


@pytest.mark.variants
@pytest.mark.parametrize("is_new", [True, False])
def test_a_commit_that_is_repeated_without_an_answer_writes_one_file(is_new: bool, place: Place) -> None:
    if not is_new:
        append(place)
    before = len(lists(place))
    batch, sink = place.decided(["a"]), place.sink()
    between = Between(passes=0).stand(sink)
    for _ in range(5):
        with pytest.raises(Retriable):
            sink.commit_batch(0, batch)
        place.set_properties({"comment": f"{len(between.requests)}"})  # another version, and no other snapshot
    assert len(lists(place)) == before + 1
    for late in between.requests[1:3]:
        with contextlib.suppress(ValueError, CommitFailedException):
            late()
    between.passes = 10
    sink.commit_batch(0, batch)
    assert place.values().count("a") == 1
    assert len(lists(place)) == len(place.table().snapshots())


def test_the_file_of_an_attempt_is_written_again_if_a_clean_up_job_has_removed_it(place: Place) -> None:
    """The catalog was away for longer than such a job waits."""
    append(place)
    batch, sink = place.decided(["a"]), place.sink()
    before = lists(place)
    between = Between(passes=0).stand(sink)
    with pytest.raises(Retriable):
        sink.commit_batch(0, batch)
    [proposed] = {*lists(place)} - {*before}
    remove(place, proposed)
    between.passes = 10
    sink.commit_batch(0, batch)
    assert place.values() == ["a", "foreign"]


def test_the_file_of_an_attempt_that_may_still_land_is_kept(place: Place) -> None:
    append(place)
    batch, sink, between = unanswered(place)
    assert len(lists(place)) == 2
    between.requests[0]()
    sink.commit_batch(0, batch)
    assert place.values() == ["a", "foreign"]
    assert len(lists(place)) == 2


def test_an_attempt_is_dead_when_its_sequence_number_is_taken_by_another(place: Place) -> None:
    append(place)
    metadata, current = place.table().metadata, place.snapshot()
    attempt = Attempt(5, sequence_number=1, manifest_list="", parent_snapshot_id=4, first_row_id=None, batch=None)
    assert attempt.is_dead(metadata)
    assert not replace(attempt, sequence_number=2).is_dead(metadata)
    assert not replace(attempt, snapshot_id=current.snapshot_id).is_dead(metadata)
    assert not replace(attempt, parent_snapshot_id=None).is_dead(metadata)


@pytest.mark.long
def test_times_in_the_table_never_go_back_with_the_clock(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    append(place)
    newest = place.table().metadata.last_updated_ms
    hour_ago = time.time() - 3600
    monkeypatch.setattr("time.time", lambda: hour_ago)
    place.sink().commit_batch(0, place.decided(["a"]))
    current = place.snapshot()
    assert current.timestamp_ms >= newest


def test_a_decided_batch_goes_to_the_branch_for_which_it_was_decided(place: Place) -> None:
    place.branched("audit")
    batch = place.decided(["new"], sink=place.sink(branch="audit"))
    restarted = place.sink()
    restarted.commit_batch(0, batch)
    restarted.complete(0, batch)
    assert place.values() == ["old"]
    assert place.values("audit") == ["new", "old"]


def test_a_commit_keeps_the_settings_of_the_branch(place: Place) -> None:
    append(place)
    table = place.table()
    current = table.current_snapshot()
    assert current is not None
    table.manage_snapshots().create_branch(
        current.snapshot_id, "audit", max_snapshot_age_ms=86_400_000, min_snapshots_to_keep=7
    ).commit()
    place.sink(branch="audit").commit_batch(0, place.decided(["a"], sink=place.sink(branch="audit")))
    ref = place.table().metadata.refs["audit"]
    assert (ref.max_snapshot_age_ms, ref.min_snapshots_to_keep) == (86_400_000, 7)
    assert place.values("audit") == ["a", "foreign"]
    assert place.values() == ["foreign"]


@pytest.mark.long
def test_credentials_that_have_ended_unannounced_are_renewed_by_the_next_call(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, sink = place.decided(["a"]), place.sink()
    sink._lake.table().io.properties["s3.session-token"] = "old"
    sink._lake._is_renewing = True
    remove = DurableFileIO.remove

    def refuse_the_old(io: DurableFileIO, locations: Iterable[str]) -> None:
        if "s3.session-token" in io.properties:
            raise OSError("AWS Error UNKNOWN: Unable to parse ExceptionName: ExpiredToken Message: no")
        remove(io, locations)

    monkeypatch.setattr(DurableFileIO, "remove", refuse_the_old)
    with pytest.raises(Retriable):
        sink.commit_batch(0, batch)
    sink.commit_batch(0, batch)
    assert place.values() == ["a"]


def test_a_catalog_that_is_away_as_credentials_end_after_the_commit_is_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, sink = place.decided(["a"]), place.sink()

    def end() -> None:
        sink._lake.table().io.properties["s3.session-token-expires-at-ms"] = f"{time.time() * 1000:.0f}"
        monkeypatch.setattr(sink._lake.catalog(), "load_table", lambda _: lost())

    Between(after=end).stand(sink)
    with pytest.raises(Retriable, match="no answer"):
        sink.commit_batch(0, batch)
    sink.commit_batch(0, batch)
    assert place.values() == ["a"]
