"""A target that rolls back what is decided: its records are written again from the staged copy, or the query stops."""

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from tests.support.observing import Killed, Moments, killed, observing
from tests.support.raising import raising
from twopc import Coordinator, Participant
from twopc.errors import ConfigurationError, OperatorRequired, OutcomeUnknown, RoundAborted, TransactionLost
from twopc.events import TransactionReplayed
from twopc.phases import Phase
from twopc.replay import DamagedCopy, ReplayCopies
from twopc.testing import MemorySink, MemoryTarget
from twopc.transaction import Committable, Transaction
from twopc.transactional_ids import Round, TransactionalIdPool, TransactionId

Of: TypeAlias = "Mapping[str, Sequence[Committable]]"


class ForgetfulSink(MemorySink):
    """Of a target that may roll back what is pre-committed."""

    may_time_out = True

    def announce(self, batch_id: int, committed: Of, given_up: Of) -> None:
        assert given_up == {}
        assert all(one.transaction_id in self.target.committed for one in committed["a"])
        self.target.batches["announced"] = len(committed["a"])


class World(Moments):
    """Two targets, of which only ``a`` rolls back by itself, a log and a stage; they outlive coordinators."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.targets = {"a": MemoryTarget(), "b": MemoryTarget()}
        self.log = f"memory://{uuid.uuid4().hex}"
        self.stage = folder / "stage"

    def run(self, batch_id: int, stage: bool = True, fails: bool = False) -> None:
        """One batch of two partitions, by a coordinator that has just started."""
        sinks = {"a": ForgetfulSink(self.targets["a"]), "b": MemorySink(self.targets["b"])}
        url = f"file://{self.stage}" if stage else None
        coordinator = Coordinator(sinks, self.log, owner="query", replay_copies=url, commits_at_once=1)

        def phase_one(round: Round) -> Iterator[dict[str, Any]]:
            for partition in range(2):
                with Participant(sinks, round, partition=partition) as participant:
                    for name in sinks:
                        participant.write(name, pa.record_batch({"value": [f"{batch_id}-{partition}"]}))
                    yield participant.pre_commit()
            if fails:
                raise RuntimeError("the job failed")

        coordinator.run(batch_id, phase_one)

    def roll_back(self, *_: object) -> None:
        """What ``a`` has open is gone."""
        self.targets["a"].open.clear()

    def visible(self, name: str) -> list[str]:
        return sorted(record["value"] for record in self.targets[name].visible)

    def copies(self) -> list[str]:
        return sorted(path.name for path in self.stage.glob("*"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with observing(World(tmp_path)) as world:
        yield world


BOTH = ["0-0", "0-1"]


def test_what_the_target_rolled_back_after_the_decision_is_written_again(world: World) -> None:
    world.at[Phase.COMMITTING] = world.roll_back
    world.run(0)
    assert world.visible("a") == world.visible("b") == BOTH


def test_what_is_written_again_from_its_copy_is_reported_without_a_call_for_an_operator(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Who writes the records by other means doubles them."""
    test_what_the_target_rolled_back_after_the_decision_is_written_again(world)
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told
    assert all("rolled back" in line and "are written again from their replay copy" in line for line in told)
    assert {record.levelname for record in caplog.records} <= {"DEBUG", "INFO", "WARNING"}


def test_what_was_written_again_is_announced_in_place_of_what_was_lost(world: World) -> None:
    world.at[Phase.COMMITTING] = world.roll_back
    world.run(0)
    assert world.targets["a"].batches == {"announced": 2}


def test_a_driver_that_was_down_for_too_long_loses_nothing(world: World) -> None:
    world.at[Phase.COMMITTING] = killed
    with pytest.raises(Killed):
        world.run(0)
    world.roll_back()
    world.run(0)
    assert world.visible("a") == world.visible("b") == BOTH


def test_a_transaction_that_its_target_never_rolls_back_is_not_staged(world: World) -> None:
    class Remembering(ForgetfulSink):
        def begin(self, transaction_id: Any) -> Any:
            transaction = super().begin(transaction_id)
            transaction.may_time_out = False
            return transaction

    sink = Remembering(world.targets["a"])
    sink.bind("a", "log", ReplayCopies(f"file://{world.stage}"))
    with Participant({"a": sink}, Round(1, 0), partition=0) as participant:
        participant.write("a", pa.record_batch({"value": ["a"]}))
        assert participant.pre_commit()["a"].replay_copy is None
    assert world.copies() == []


def test_rolled_back_twice_in_a_row_it_is_written_again_twice(world: World) -> None:
    world.at[Phase.COMMITTING] = killed
    with pytest.raises(Killed):
        world.run(0)
    for _ in range(2):
        world.roll_back()
        world.at[TransactionReplayed] = killed
        with pytest.raises(Killed):
            world.run(0)
    world.roll_back()
    world.run(0)
    assert world.visible("a") == world.visible("b") == BOTH
    assert world.targets["a"].open == {}


def test_what_is_rolled_back_again_before_its_commit_is_written_again(world: World) -> None:
    world.at |= {Phase.COMMITTING: world.roll_back, TransactionReplayed: world.roll_back}
    world.run(0)
    assert world.visible("a") == BOTH


def test_a_replay_that_was_killed_before_its_amendment_leaves_nothing_open(world: World) -> None:
    world.at |= {Phase.COMMITTING: world.roll_back, TransactionReplayed: killed}
    with pytest.raises(Killed):
        world.run(0)
    world.run(0)
    assert world.visible("a") == BOTH
    assert world.targets["a"].open == {}


class Reluctant(ForgetfulSink):
    """A target that fails ``times`` tasks that write again."""

    def __init__(self, target: MemoryTarget, error: Exception, times: int) -> None:
        super().__init__(target)
        self.error, self.times = error, times

    def begin(self, transaction_id: TransactionId) -> Transaction:
        if transaction_id.replay and self.times:
            self.times -= 1
            raise self.error
        return super().begin(transaction_id)


def replayed(world: World, error: Exception, times: int) -> None:
    """A batch that the target rolls back after its decision, and does not take again at once."""
    sinks = {"a": Reluctant(world.targets["a"], error, times)}
    coordinator = Coordinator(sinks, world.log, owner="query", replay_copies=f"file://{world.stage}", commits_at_once=1)

    def phase_one(round: Round) -> Iterator[dict[str, Any]]:
        with Participant(sinks, round, partition=0) as participant:
            participant.write("a", pa.record_batch({"value": ["0-0"]}))
            yield participant.pre_commit()

    world.at[Phase.COMMITTING] = world.roll_back
    coordinator.run(0, phase_one)


def test_a_decided_batch_that_cannot_be_written_again_now_is_tried_again_and_never_said_to_be_rolled_back(
    world: World,
) -> None:
    replayed(world, RoundAborted("no broker answered"), times=3)
    assert world.visible("a") == ["0-0"]
    assert world.targets["a"].open == {}


def test_a_decided_batch_whose_records_are_refused_when_written_again_is_for_an_operator(world: World) -> None:
    with pytest.raises(OperatorRequired, match=r"batch 0, incarnation 1 is decided .* refuses its records: no topic"):
        replayed(world, ConfigurationError("no topic"), times=1)


class Usurped(ForgetfulSink):
    """Of a target in which somebody else began under the name of what is decided: it refuses, and can't say more."""

    def __init__(self, target: MemoryTarget, refuses_at_first: bool) -> None:
        super().__init__(target)
        self.refuses_at_first = refuses_at_first
        self.is_usurped = True

    def commit(self, committable: Committable) -> None:
        if self.is_usurped:
            self.is_usurped = False
            self.target.open.pop(committable.transaction_id)
            raise OutcomeUnknown("its epoch has moved on", was_refused_at_first=self.refuses_at_first)
        super().commit(committable)


@pytest.mark.parametrize("refuses_at_first", [True, False])
def test_what_somebody_elses_begin_ended_is_written_again_if_no_commit_can_have_come_before(
    world: World, refuses_at_first: bool
) -> None:
    sinks = {"a": Usurped(world.targets["a"], refuses_at_first)}
    coordinator = Coordinator(sinks, world.log, owner="query", replay_copies=f"file://{world.stage}", commits_at_once=1)

    def phase_one(round: Round) -> Iterator[dict[str, Any]]:
        with Participant(sinks, round, partition=0) as participant:
            participant.write("a", pa.record_batch({"value": ["0-0"]}))
            yield participant.pre_commit()

    if refuses_at_first:
        coordinator.run(0, phase_one)
        assert world.visible("a") == ["0-0"]
    else:
        with pytest.raises(OutcomeUnknown, match="moved on"):
            coordinator.run(0, phase_one)


def test_what_a_driver_before_may_have_committed_is_not_written_again(world: World) -> None:
    world.at[Phase.COMMITTING] = killed
    with pytest.raises(Killed):
        world.run(0)
    sinks = {"a": Usurped(world.targets["a"], True), "b": MemorySink(world.targets["b"])}
    with pytest.raises(OutcomeUnknown, match="moved on"):
        Coordinator(sinks, world.log, owner="query", replay_copies=f"file://{world.stage}").recover()


def test_without_a_stage_the_query_stops_and_nothing_else_is_left_undone(world: World) -> None:
    world.at[Phase.COMMITTING] = world.roll_back
    with pytest.raises(TransactionLost):
        world.run(0, stage=False)
    assert world.visible("b") == BOTH
    with pytest.raises(TransactionLost):
        world.run(0, stage=False)


@pytest.mark.advice("There is a copy of its records")
def test_a_driver_that_was_restarted_without_the_stage_is_told_to_give_it_back(world: World) -> None:
    world.at[Phase.COMMITTING] = killed
    with pytest.raises(Killed):
        world.run(0)
    world.roll_back()
    with pytest.raises(TransactionLost, match=r"start the query again with the replay copies that it had"):
        world.run(1, stage=False)
    world.run(1)
    assert world.visible("a") == world.visible("b") == ["0-0", "0-1", "1-0", "1-1"]


def test_a_copy_that_is_gone_stops_the_query_and_is_named(world: World) -> None:
    world.at[Phase.COMMITTING] = killed
    with pytest.raises(Killed):
        world.run(0)
    world.roll_back()
    gone = world.copies()[0]
    (world.stage / gone).unlink()
    with pytest.raises(TransactionLost, match=gone):
        world.run(0)
    assert world.targets["a"].open == {}


def cut_off(share: float) -> Callable[[bytes], bytes]:
    return lambda copy: copy[: int(len(copy) * share)]


def garbled(position: int) -> Callable[[bytes], bytes]:
    return lambda copy: copy[:position] + bytes([copy[position] ^ 1]) + copy[position:][1:]


@pytest.mark.parametrize(
    "damage",
    [
        cut_off(0),
        cut_off(0.5),
        cut_off(0.8),
        lambda copy: copy[:-1],
        garbled(0),
        garbled(-33),
        garbled(-60),
        garbled(-1),
    ],
)
def test_a_copy_that_is_damaged_stops_the_query_and_is_named(world: World, damage: Callable[[bytes], bytes]) -> None:
    world.at[Phase.COMMITTING] = killed
    with pytest.raises(Killed):
        world.run(0)
    world.roll_back()
    copy = world.stage / world.copies()[0]
    whole = copy.read_bytes()
    copy.write_bytes(damage(whole))
    with pytest.raises(TransactionLost, match=rf"{copy.name} in .* is damaged"):
        world.run(0)
    assert world.targets["a"].open == {}
    copy.write_bytes(whole)  # restored
    world.run(0)
    assert world.visible("a") == world.visible("b") == BOTH


def test_a_value_that_changed_in_a_copy_is_noticed_although_the_records_are_all_there(tmp_path: Path) -> None:
    copies = ReplayCopies(str(tmp_path))
    records = pa.record_batch({"value": ["the value"]})
    copy = copies.create(
        TransactionId("twopc", "log", "a", Round(1, 0), partition=0, serial=0, replay=0), records.schema
    )
    copy.write(records)
    name = copy.finish()
    assert list(copies.read(name)) == [records]
    kept = tmp_path / name
    kept.write_bytes(kept.read_bytes().replace(b"the value", b"thE value"))
    with pytest.raises(DamagedCopy):
        list(copies.read(name))


@pytest.mark.parametrize("error", [MemoryError(), pa.lib.ArrowMemoryError("no room"), TimeoutError("no answer")])
def test_a_copy_that_could_not_be_read_now_is_not_called_damaged(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pa.ipc.new_stream(tmp_path / "a.arrow", pa.schema({"value": pa.string()})):
        pass
    monkeypatch.setattr(pa.ipc, "open_stream", raising(error))
    with pytest.raises(type(error)):
        list(ReplayCopies(str(tmp_path)).read("a.arrow"))


def test_a_copy_of_an_older_release_has_no_digest_and_is_read(tmp_path: Path) -> None:
    records = pa.record_batch({"value": ["a"]})
    with pa.ipc.new_stream(tmp_path / "a.arrow", records.schema) as stream:
        stream.write_batch(records)
    assert list(ReplayCopies(str(tmp_path)).read("a.arrow")) == [records]


def test_copies_are_removed_when_their_batch_is_complete(world: World) -> None:
    seen: list[list[str]] = []
    world.at[Phase.COMMITTING] = lambda: seen.append(world.copies())
    world.run(0)
    assert [len(copies) for copies in seen] == [2]
    assert world.copies() == []


def test_copies_of_a_round_that_failed_are_removed(world: World) -> None:
    with pytest.raises(RoundAborted):
        world.run(0, fails=True)
    assert world.copies() == []


def test_copies_of_another_log_are_left_alone(world: World) -> None:
    world.stage.mkdir()
    (world.stage / "twopc.another.a.1.0.0.0.0.arrow").write_bytes(b"")
    (world.stage / "notes.txt").write_bytes(b"")
    world.run(0)
    assert world.copies() == ["notes.txt", "twopc.another.a.1.0.0.0.0.arrow"]


def test_nothing_is_staged_for_a_target_that_never_rolls_back_by_itself(world: World) -> None:
    world.at[Phase.COMMITTING] = lambda: seen.extend(world.copies())
    seen: list[str] = []
    world.run(0)
    assert seen
    assert all(".a." in name for name in seen)


def test_a_copy_is_durable_before_the_vote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr("os.fsync", lambda _: synced.append("file"))
    monkeypatch.setattr("twopc.replay.sync_folder", lambda _: synced.append("folder"))
    sink = ForgetfulSink(MemoryTarget())
    sink.bind("a", "log", ReplayCopies(str(tmp_path)))
    with Participant({"a": sink}, Round(1, 0), partition=0) as participant:
        participant.write("a", pa.record_batch({"value": ["x"]}))
        synced.clear()
        [committable] = participant.pre_commit().values()
    assert synced == ["file", "folder"]
    assert committable.replay_copy is not None
    assert [batch.to_pylist() for batch in ReplayCopies(str(tmp_path)).read(committable.replay_copy)] == [
        [{"value": "x"}]
    ]


def test_participants_write_copies_to_one_folder_whatever_their_own_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copies = ReplayCopies("copies")
    (tmp_path / "executor").mkdir()
    monkeypatch.chdir(tmp_path / "executor")
    transaction_id = TransactionalIdPool("p", "log", "sink").allocate(Round(1, 0), partition=0)
    copies.create(transaction_id, pa.schema([("n", pa.int64())])).finish()
    assert [path.name for path in (tmp_path / "copies").iterdir()] == [f"{transaction_id.exact}.arrow"]
