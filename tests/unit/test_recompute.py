"""A target that rolls back what is decided, without copies: the batch is computed again, and its records recognized."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import twopc
from tests.support.observing import Killed, Moments, killed, observing
from tests.support.phase_one import writes
from tests.support.raising import raising
from twopc import Coordinator, Participant
from twopc.effects import Wanted
from twopc.errors import (
    Fenced,
    OperatorRequired,
    RepeatedFailure,
    Retriable,
    RoundAborted,
    SchemaMismatch,
    TransactionLost,
)
from twopc.events import TransactionCommitted, TransactionReplayed
from twopc.log.commit_log import read_tail
from twopc.log.store import store_of
from twopc.phases import Phase
from twopc.testing import MemorySink, MemoryTarget
from twopc.transaction import Committable, Fingerprint, Transaction, sum_of_hashes
from twopc.transactional_ids import Round, TransactionId

Plan = Mapping[int, list[str]]
"""Partition → its records."""

PLAN: Plan = {0: ["a", "b"], 1: ["c"]}
RECORDS = ["a", "b", "c"]


class ForgetfulSink(MemorySink):
    """Of a target that may roll back what is pre-committed."""

    may_time_out = True


class RemindedSink(ForgetfulSink):
    """Of a target that was told to keep what is begun from now on."""

    def begin(self, transaction_id: TransactionId) -> Transaction:
        transaction = super().begin(transaction_id)
        transaction.may_time_out = False
        return transaction


class LastSink(MemorySink):
    commits_last = True


class ForgetfulLastSink(LastSink):
    may_time_out = True


class World(Moments):
    """Three targets, of which only ``a`` rolls back by itself, and a log; they outlive coordinators."""

    def __init__(self) -> None:
        super().__init__()
        self.targets = {name: MemoryTarget() for name in ("a", "b", "last")}
        self.log = f"memory://{uuid.uuid4().hex}"
        self.wanted: list[Wanted] = []
        self.a: type[MemorySink] = ForgetfulSink
        self.last = LastSink
        self.serial = 0

    def coordinator(self) -> tuple[Coordinator, dict[str, Any]]:
        sinks = {
            "a": self.a(self.targets["a"]),
            "b": MemorySink(self.targets["b"]),
            "last": self.last(self.targets["last"]),
        }
        return Coordinator(sinks, self.log, owner="query", commits_at_once=1, rest_interval_s=None), sinks

    def run(self, plan: Plan = PLAN, again: Plan | None = None, *, recomputes: bool = True, **options: Any) -> Any:
        """Batch 0 by a coordinator that has just started, whose plan yields ``again`` when it is computed again."""
        coordinator, sinks = self.coordinator()

        def votes(round: Round, plan: Plan, wanted: Wanted) -> Iterator[dict[str, Committable]]:
            for partition, records in plan.items():
                self.serial += 1
                with Participant(sinks, round, partition=partition, serial=self.serial) as participant:
                    for name in sinks:
                        if partition in wanted.get(name, ()):
                            participant.write(name, pa.record_batch({"value": records}), hashes(records))
                    yield participant.pre_commit()

        def recompute(round: Round, wanted: Wanted) -> Iterator[dict[str, Committable]]:
            self.wanted.append(wanted)
            return votes(round, again or plan, wanted)

        everywhere = dict.fromkeys(sinks, range(9))
        options = {"recompute": recompute if recomputes else None, **options}
        return coordinator.run(0, lambda this: votes(this, plan, everywhere), reads={"offset": 3}, **options)

    def roll_back(self, name: str = "a") -> None:
        """What a target has open is gone."""
        self.targets[name].open.clear()

    def visible(self, name: str) -> list[str]:
        return sorted(record["value"] for record in self.targets[name].visible)

    @property
    def is_resolved(self) -> bool:
        newest = read_tail(store_of(self.log))
        return newest is not None and not newest[1].unresolved


def hashes(records: list[str]) -> pa.Int64Array:
    digests = [hashlib.blake2b(record.encode(), digest_size=8).digest() for record in records]
    return pa.array([int.from_bytes(digest, "big", signed=True) for digest in digests], pa.int64())


@pytest.fixture
def world() -> Iterator[World]:
    with observing(World()) as world:
        yield world


def decided_and_lost(world: World) -> None:
    """A driver was killed after its decision, and has been down for too long."""
    world.at[Phase.COMMITTING] = killed
    with pytest.raises(Killed):
        world.run()
    world.roll_back()


def test_what_the_target_rolls_back_after_the_decision_is_computed_again(world: World) -> None:
    world.at[Phase.COMMITTING] = world.roll_back
    assert not world.run().already_decided
    assert world.visible("a") == world.visible("b") == world.visible("last") == RECORDS
    assert world.wanted == [{"a": {0, 1}}]


def test_what_can_be_computed_again_is_reported_without_a_call_for_an_operator(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    test_what_the_target_rolls_back_after_the_decision_is_computed_again(world)
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told
    assert all("rolled back" in line and "can be computed again" in line for line in told)


def test_after_a_crash_it_is_computed_again_when_spark_repeats_the_batch(world: World) -> None:
    decided_and_lost(world)
    assert world.run().already_decided
    assert world.visible("a") == world.visible("b") == world.visible("last") == RECORDS
    assert world.targets["a"].open == {}


def test_what_only_the_sink_that_commits_last_has_lost_is_computed_again_after_a_crash(world: World) -> None:
    world.last = ForgetfulLastSink
    world.at[TransactionCommitted] = killed
    with pytest.raises(Killed):
        world.run()
    world.roll_back("last")
    assert world.run().already_decided
    assert world.visible("a") == world.visible("b") == world.visible("last") == RECORDS
    assert world.wanted == [{"last": {0, 1}}]


def test_only_what_is_lost_is_computed_again(world: World) -> None:
    world.at[TransactionCommitted] = world.roll_back  # of the first, which is visible
    world.run()
    assert world.visible("a") == RECORDS
    assert world.wanted == [{"a": {1}}]


def test_the_same_records_in_another_order_are_recognized(world: World) -> None:
    decided_and_lost(world)
    world.run(again={1: ["c"], 0: ["b", "a"]})
    assert world.visible("a") == RECORDS


def test_the_same_records_in_partitions_of_other_numbers_are_recognized(world: World) -> None:
    decided_and_lost(world)
    world.run(again={0: ["c"], 1: ["x", "y"], 2: ["b", "a"]})
    assert world.visible("a") == RECORDS
    assert world.targets["a"].open == {}


def test_equal_partitions_are_each_written_again(world: World) -> None:
    plan = {0: ["a"], 1: ["a"], 2: ["b"]}
    world.at[Phase.COMMITTING] = world.roll_back
    world.run(plan, again={0: ["b"], 1: ["a"], 2: ["a"]})
    assert world.visible("a") == ["a", "a", "b"]


def test_a_part_that_is_lost_is_found_by_another_number_and_the_rest_is_not_written_again(world: World) -> None:
    world.at[TransactionCommitted] = world.roll_back  # of the first, which is visible
    world.run(again={0: ["c"], 1: ["a", "b"]})
    assert world.visible("a") == RECORDS
    assert world.targets["a"].open == {}


@pytest.mark.parametrize(
    ("again", "says"),
    [
        ({0: ["a", "x"], 1: ["c"]}, "its partition 0, computed again, has other records"),
        ({0: ["a"], 1: ["c"]}, "its partition 0, computed again, has 1 records"),
        ({0: ["a", "b"], 1: ["c", "c"]}, "its partition 1, computed again, has 2 records"),
        ({0: ["a", "b", "c"]}, "its partition 0, computed again, has 3 records"),
        ({0: ["a", "b"]}, "has no record for partition 1"),
    ],
)
def test_other_records_are_refused_and_stay_invisible(world: World, again: Plan, says: str) -> None:
    decided_and_lost(world)
    for _ in range(2):
        with pytest.raises(TransactionLost, match=says) as caught:
            world.run(again=again)
        assert "does not yield the same records twice" in caught.value.message
        assert (caught.value.sink, caught.value.batch_id) == ("a", 0)
    assert world.visible("a") == world.visible("last") == []
    assert world.targets["a"].open == {}  # which would hold back readers


@pytest.mark.advice("does not yield the same records twice")
def test_the_same_records_of_another_run_are_written_after_others_were_refused(world: World) -> None:
    decided_and_lost(world)
    with pytest.raises(TransactionLost):
        world.run(again={0: ["a", "x"], 1: ["c"]})
    world.run()
    assert world.visible("a") == RECORDS


@pytest.mark.parametrize("moment", [Phase.RECOVERING, Phase.SWEEPING, TransactionReplayed, TransactionCommitted])
def test_a_kill_while_it_is_computed_again_loses_and_doubles_nothing(world: World, moment: Any) -> None:
    world.at |= {Phase.COMMITTING: world.roll_back, moment: killed}
    with pytest.raises(Killed):
        world.run()
    world.at.clear()
    world.run()
    assert world.visible("a") == world.visible("b") == world.visible("last") == RECORDS
    assert world.targets["a"].open == {}


def test_what_is_lost_again_before_its_commit_is_computed_again(world: World) -> None:
    world.at |= {Phase.COMMITTING: world.roll_back, TransactionReplayed: world.roll_back}
    world.run()
    assert world.visible("a") == RECORDS
    assert len(world.wanted) == 2


@pytest.mark.advice("Its records can be computed again")
def test_without_recompute_the_query_stops_and_says_that_it_can_be(world: World) -> None:
    world.at[Phase.COMMITTING] = world.roll_back
    for _ in range(2):
        with pytest.raises(TransactionLost, match="start the query with on_loss='recompute'"):
            world.run(recomputes=False)
    assert world.visible("last") == []
    world.run()
    assert world.visible("a") == world.visible("last") == RECORDS


def test_a_sink_that_may_not_lose_transactions_any_more_gets_nothing_again(world: World) -> None:
    """Such as one that delivers at least once: what it is given is visible at once, and is not recognized."""
    decided_and_lost(world)
    world.a = MemorySink
    with pytest.raises(OperatorRequired, match="sink 'a' has other options than when it lost"):
        world.run()
    assert world.wanted == []
    world.a = ForgetfulSink
    world.run()
    assert world.visible("a") == RECORDS


def test_what_is_computed_again_is_recognized_in_transactions_that_do_not_time_out(world: World) -> None:
    decided_and_lost(world)
    world.a = RemindedSink
    world.run()
    assert world.visible("a") == RECORDS


def test_of_several_losses_the_one_that_can_not_be_computed_again_is_told(world: World) -> None:
    decided_and_lost(world)
    world.roll_back("b")
    with pytest.raises(TransactionLost) as told:
        world.run()
    assert told.value.sink == "b"
    assert world.wanted == []


def test_a_loss_names_its_own_batch_when_the_next_one_comes(world: World) -> None:
    decided_and_lost(world)
    coordinator, _ = world.coordinator()
    with pytest.raises(TransactionLost) as told:
        coordinator.run(1, lambda _: [], recompute=lambda *_: [])
    assert (told.value.sink, told.value.batch_id) == ("a", 0)
    assert told.value.transaction_id


def test_who_was_fenced_while_it_recovered_commits_nothing_of_what_the_newer_one_has_settled(world: World) -> None:
    """Its sweep waited for a target system that was away."""
    decided_and_lost(world)
    older, sinks = world.coordinator()
    asked: list[Committable] = []

    def swept_late() -> list[Committable]:
        if not world.is_resolved:
            world.run()
            newer, _ = world.coordinator()
            newer.recover()
            newer.run(1, lambda _: [])
            newer.close()
            sinks["a"].commit = asked.append
        return []

    sinks["a"].recover = swept_late
    with pytest.raises(Fenced):
        older.run(0, lambda _: [], reads={"offset": 3}, recompute=lambda *_: [])
    assert asked == []
    assert world.visible("a") == RECORDS


def test_a_log_with_a_loss_is_not_complete_before_its_batch_comes_again(world: World) -> None:
    decided_and_lost(world)
    coordinator, _ = world.coordinator()
    with pytest.raises(TransactionLost):
        coordinator.recover()
    with pytest.raises(TransactionLost):
        coordinator.run(1, lambda _: [], recompute=lambda *_: [])
    coordinator.rest()
    coordinator.close()
    assert not world.is_resolved
    world.run()
    assert world.visible("a") == RECORDS


def test_a_batch_with_other_input_is_refused_before_it_is_computed_again(world: World) -> None:
    decided_and_lost(world)
    coordinator, _ = world.coordinator()
    with pytest.raises(twopc.errors.LogMismatch, match="comes again with other input"):
        coordinator.run(0, lambda _: [], reads={"offset": 4}, recompute=lambda *_: pytest.fail("it was asked"))
    coordinator.rest()
    coordinator.close()
    assert not world.is_resolved


def failing(failure: Exception) -> Callable[..., Iterator[Any]]:
    return raising(failure)


@pytest.mark.parametrize(
    ("failure", "meant"),
    [
        (ValueError("the job failed"), Retriable),
        (RoundAborted("the job failed"), Retriable),
        (SchemaMismatch("the job failed"), OperatorRequired),
        (OperatorRequired("the job failed"), OperatorRequired),
    ],
)
def test_a_failure_while_it_is_computed_again_leaves_the_batch_decided(
    world: World, failure: Exception, meant: type[Exception]
) -> None:
    decided_and_lost(world)
    with pytest.raises(meant, match="the job failed"):
        world.run(recompute=failing(failure))
    assert not world.is_resolved
    world.run()
    assert world.visible("a") == RECORDS


@pytest.mark.parametrize(
    ("failure", "third"), [(ValueError("no plan"), RepeatedFailure), (TimeoutError("no plan"), Retriable)]
)
def test_what_can_not_be_computed_again_at_three_starts_stops_for_an_operator(
    world: World, failure: Exception, third: type[Exception]
) -> None:
    decided_and_lost(world)
    for kind in (Retriable, Retriable, third):
        with pytest.raises(kind, match="no plan"):
            world.run(recompute=failing(failure))
    world.run()
    assert world.visible("a") == RECORDS


def test_recovery_asks_nothing_of_the_batch_that_failed_before_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its query has ended, and what it would compute may be of another batch."""
    coordinator, sinks = world.coordinator()

    def write(round: Round) -> Iterator[dict[str, Committable]]:
        for partition in (0, 1):
            with Participant(sinks, round, partition=partition) as participant:
                participant.write("a", pa.record_batch({"value": ["a"]}), hashes(["a"]))
                yield participant.pre_commit()

    world.at[TransactionCommitted] = killed  # with one left
    with pytest.raises(Killed):
        coordinator.run(0, write, recompute=lambda *_: pytest.fail("it was asked"))
    world.roll_back()
    answers = iter([Retriable("b is away")])

    def away() -> None:
        for error in answers:
            raise error

    monkeypatch.setattr(sinks["b"], "open", away)
    with pytest.raises(TransactionLost, match="can be computed again"):
        coordinator.recover()


def test_what_is_computed_again_in_a_round_has_other_names_than_before(world: World) -> None:
    world.at[Phase.COMMITTING] = world.roll_back
    names: list[str] = []
    coordinator, sinks = world.coordinator()

    def write(round: Round, _: Wanted | None = None) -> Iterator[dict[str, Committable]]:
        with Participant(sinks, round, partition=0) as participant:
            participant.write("a", pa.record_batch({"value": ["a"]}), hashes(["a"]))
            vote = participant.pre_commit()
        names.append(vote["a"].transaction_id)
        yield vote

    coordinator.run(0, write, recompute=write)
    assert [name.rpartition(".")[2] for name in names] == ["0", "1"]


def test_transactions_that_their_target_never_loses_have_no_fingerprint(world: World) -> None:
    sinks = {"a": ForgetfulSink(world.targets["a"]), "b": MemorySink(world.targets["b"])}
    for name, sink in sinks.items():
        sink.bind(name, "log")
    with Participant(sinks, Round(1, 0), partition=3) as participant:
        for name in sinks:
            participant.write(name, pa.record_batch({"value": ["a"]}), pa.array([-1]))
            participant.write(name, pa.record_batch({"value": ["b", "c"]}), pa.array([2**63 - 1, 2]))
        vote = participant.pre_commit()
    assert vote["a"].fingerprint == Fingerprint(3, (2**63 + 2 - 2) % 2**64)
    assert vote["b"].fingerprint is None


def test_a_copy_in_one_sink_leaves_the_others_pending_transactions_alone(world: World, tmp_path: Path) -> None:
    """A sink that commits last has its own part still to come, or nothing left to come."""
    sinks = {"a": MemorySink(world.targets["a"]), "last": ForgetfulLastSink(world.targets["last"])}
    coordinator = Coordinator(sinks, world.log, owner="query", replay_copies=str(tmp_path), rest_interval_s=None)
    world.at[TransactionCommitted] = world.targets["last"].open.clear
    coordinator.run(0, writes(sinks, {"value": ["a"]}))
    assert world.visible("a") == world.visible("last") == ["a"]


def test_of_one_batch_a_part_may_be_computed_again_and_another_be_copied(world: World, tmp_path: Path) -> None:
    """A copy of one transaction was not asked for, as of a participant of another version."""
    sinks = {name: ForgetfulSink(world.targets[name]) for name in ("a", "b")}
    coordinator = Coordinator(sinks, world.log, owner="query", replay_copies=str(tmp_path), rest_interval_s=None)

    def write(round: Round, wanted: Wanted | None = None) -> Iterator[dict[str, Committable]]:
        with Participant(sinks, round, partition=0) as participant:
            for name in wanted or sinks:
                participant.write(name, pa.record_batch({"value": ["x"]}), hashes(["x"]))
            vote = participant.pre_commit()
        yield vote | {"a": dataclasses.replace(vote["a"], replay_copy=None)}

    def roll_back() -> None:
        world.targets["a"].open.clear()
        world.targets["b"].open.clear()

    world.at[Phase.COMMITTING] = roll_back
    coordinator.run(0, write, recompute=write)
    assert world.visible("a") == world.visible("b") == ["x"]


def test_the_sum_of_hashes_wraps_around() -> None:
    assert sum_of_hashes(pa.array([-1, -2]), 1) == 2**64 - 2
    assert sum_of_hashes(pa.array([2**63 - 1, 2**63 - 1, 5]), 2**64 - 1) == 2
