"""The coordinator with sinks in memory: what each step of a batch does, and what each failure leads to."""

import functools
import gc
import itertools
import json
import logging
import signal
import subprocess
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from tests.support.commit_log import CommitLog
from tests.support.incarnations import log_of, swept_by
from tests.support.memory_log import MemoryLog
from tests.support.observing import hearing
from tests.support.phase_one import writes
from tests.support.raising import raising
from twopc import Committable, Coordinator, Participant, Round, Vote, commits, performer, resting, turns
from twopc import coordinator as coordinator_module
from twopc.effects import LogView, Steps
from twopc.errors import (
    ConfigurationError,
    Fenced,
    InDoubt,
    LogMismatch,
    OperatorRequired,
    OutcomeUnknown,
    Refused,
    Retriable,
    RoundAborted,
    TransactionLost,
)
from twopc.events import (
    BatchFailed,
    BatchFinished,
    CallRetried,
    Event,
    PhaseEntered,
    TransactionAborted,
    TransactionCommitted,
)
from twopc.log import notices, steps
from twopc.log.commit_log import read_tail
from twopc.log.entries import Entry
from twopc.log.entry_json import serialise
from twopc.log.notices import Notice
from twopc.log.store import LogStore, open_store
from twopc.phases import Phase
from twopc.testing import MemorySink, MemoryTarget
from twopc.threads import Worker
from twopc.transaction import Transaction
from twopc.transactional_ids import TransactionId

PARTITIONS = 2

Of: TypeAlias = "Mapping[str, Sequence[Committable]]"


class Sink(MemorySink):
    """A sink in memory that calls ``during[name]`` on the way into each of its calls, where a test set one."""

    def __init__(self, target: MemoryTarget) -> None:
        super().__init__(target)
        self.during: dict[str, Callable[[], None]] = {}
        self.closed = 0
        self.completed: list[tuple[int, int]] = []
        self.announced: list[tuple[int, dict[str, list[str]]]] = []
        self.given_up: dict[str, list[str]] = {}

    def _at(self, call: str) -> None:
        self.during.get(call, lambda: None)()

    def open(self) -> None:
        self._at("open")

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:
        self._at("seal")
        return committables

    def commit(self, committable: Committable) -> None:
        self._at(f"commit {committable.transaction_id.split('.')[-3]}")
        self._at("commit")
        super().commit(committable)

    def abort(self, committable: Committable) -> None:
        self._at("abort")
        super().abort(committable)

    def recover(self) -> list[Committable]:
        found = list(super().recover())
        self._at("recover")
        return found

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:
        self._at("complete")
        self.completed.append((batch_id, len(committables)))

    def announce(self, batch_id: int, committed: Of, given_up: Of) -> None:
        self._at("announce")
        self.announced.append((batch_id, {name: [c.transaction_id for c in some] for name, some in committed.items()}))
        self.given_up = {name: [c.transaction_id for c in some] for name, some in given_up.items()}

    def close(self) -> None:
        self.closed += 1


class Store:
    """A store that raises ``fails[operation]`` before, or ``lost[operation]`` after the effect, again and again."""

    def __init__(self, behind: LogStore) -> None:
        self.behind, self.url = behind, behind.url
        self.during: dict[str, Callable[[], None]] = {}
        self.after: dict[str, Callable[[], None]] = {}

    def slots(self) -> list[int]:
        return self.behind.slots()

    def read(self, slot: int) -> bytes:
        self.during.get("read", lambda: None)()
        return self.behind.read(slot)

    def put_if_absent(self, slot: int, data: bytes) -> None:
        self.during.get("put", lambda: None)()
        self.behind.put_if_absent(slot, data)
        self.after.get("put", lambda: None)()

    def delete(self, slot: int) -> None:
        self.behind.delete(slot)

    def post(self, data: bytes) -> None:
        self.behind.post(data)

    def posted(self) -> bytes:
        return self.behind.posted()


class World:
    """Two targets and a log, which outlive every coordinator."""

    def __init__(self) -> None:
        self.targets = {"a": MemoryTarget(), "b": MemoryTarget()}
        self.log = open_store(f"memory://{uuid.uuid4().hex}")

    def coordinator(self, names: str = "ab", **options: Any) -> Coordinator:
        sinks = {name: Sink(self.targets.setdefault(name, MemoryTarget())) for name in names}
        options.setdefault("log", self.log)
        return Coordinator(sinks, owner="query", **options)

    def ran(self, *batches: int, **options: Any) -> Coordinator:
        """Return a coordinator that has run these batches."""
        coordinator = self.coordinator(**options)
        for batch_id in batches:
            run(coordinator, batch_id)
        return coordinator

    def failed(self, name: str, call: str, error: BaseException, **options: Any) -> Coordinator:
        """Return a coordinator whose batch 0 has ended with ``error``, which a sink goes on to raise in ``call``."""
        coordinator = self.coordinator(**options)
        sink(coordinator, name).during[call] = raising(error)
        with pytest.raises(type(error), match=str(error) or None):
            run(coordinator, 0)
        return coordinator

    def newest(self) -> Entry:
        """Return the log's newest entry."""
        tail = read_tail(self.log)
        assert tail
        return tail[1]

    def visible(self, name: str) -> list[str]:
        return sorted(record["value"] for record in self.targets[name].visible)

    def open(self) -> list[str]:
        return sorted(name for target in self.targets.values() for name in target.open)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def events() -> Iterator[list[Event]]:
    heard: list[Event] = []
    with hearing(heard.append):
        yield heard


def write_all(coordinator: Coordinator) -> Callable[[Round], list[Vote]]:
    """Phase one: each partition writes one record to every sink."""

    def phase_one(round: Round) -> list[Vote]:
        records = ({"value": [f"{round.batch_id}-{partition}"]} for partition in range(PARTITIONS))
        return [*writes(coordinator._sinks, *records)(round)]

    return phase_one


def run(coordinator: Coordinator, batch_id: int) -> BatchFinished:
    return coordinator.run(batch_id, write_all(coordinator))


def fails(error: Exception, times: int) -> Callable[[], None]:
    left = [error] * times

    def call() -> None:
        if left:
            raise left.pop()

    return call


def never(_: Round) -> list[Vote]:
    raise AssertionError("phase one was called")


def sink(coordinator: Coordinator, name: str) -> Any:
    return coordinator._sinks[name]


# The happy path. --------------------------------------------------------------------------------------------------


def test_a_batch_is_visible_in_every_sink_when_run_returns(world: World) -> None:
    finished = run(world.coordinator(), 0)
    assert world.visible("a") == world.visible("b") == ["0-0", "0-1"]
    assert world.open() == []
    assert (finished.batch_id, finished.already_decided) == (0, False)
    assert finished.records == finished.transactions == {"a": 2, "b": 2}


def test_the_phases_of_a_batch_are_announced_in_order(world: World, events: list[Event]) -> None:
    coordinator = world.ran(0)
    assert coordinator.phase is Phase.IDLE
    assert [event.phase for event in events if isinstance(event, PhaseEntered)] == [
        *(Phase.RECOVERING, Phase.IDLE, Phase.PRE_COMMITTING, Phase.SEALING, Phase.DECIDING, Phase.COMMITTING),
        *(Phase.SWEEPING, Phase.IDLE),
    ]
    committed = [event for event in events if isinstance(event, TransactionCommitted)]
    assert sorted((event.sink, event.batch_id, event.recovered) for event in committed) == [
        ("a", 0, False),
        ("a", 0, False),
        ("b", 0, False),
        ("b", 0, False),
    ]
    assert isinstance(events[-1], BatchFinished)


def test_the_figures_of_a_batch_are_returned_told_and_logged(
    world: World, events: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = world.coordinator("a")
    moves = fails(Retriable("the target moves"), times=2)
    sink(coordinator, "a").during |= {"seal": lambda: time.sleep(0.02), "commit": moves}
    with caplog.at_level(logging.INFO, "twopc"):
        figures = run(coordinator, 0)
    assert events[-1] == figures
    assert (figures.records, figures.transactions) == ({"a": 2}, {"a": 2})
    assert figures.bytes == {"a": 14}
    assert (figures.retries, figures.recovered) == (2, 0)
    assert list(figures.phases_ms) == [
        "recovering", "pre-committing", "sealing", "deciding", "committing", "sweeping"
    ]  # fmt: skip
    assert figures.phases_ms["sealing"] >= 20
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert line.startswith("batch 0: 2 records (14 bytes) in 2 transactions to a; recovering ")
    assert line.endswith(" ms, 2 retries, 0 recovered")

    figures = run(coordinator, 1)
    assert figures.retries == 0  # each batch has its own
    assert "recovering" not in figures.phases_ms


def test_the_figures_of_a_batch_tell_what_was_recovered_before_it(world: World) -> None:
    world.failed("a", "commit", OSError("the driver dies"))

    again = world.coordinator().run(0, never)
    assert (again.already_decided, again.records, again.recovered) == (True, {}, 2 * PARTITIONS)
    assert list(again.phases_ms) == ["recovering"]
    assert "committed before, nothing written" in str(again)


def test_phase_one_that_began_before_the_call_is_timed_from_its_beginning(world: World) -> None:
    coordinator = world.coordinator()
    figures = coordinator.run(0, write_all(coordinator), began_s=time.perf_counter() - 1)
    assert figures.phases_ms["pre-committing"] >= 1000


def test_nothing_is_visible_before_the_decision_is_in_the_log(world: World) -> None:
    store = Store(world.log)
    coordinator = world.coordinator(log=store)
    seen: list[tuple[list[str], list[str]]] = []

    def look() -> None:
        seen.append((world.visible("a"), world.visible("b")))

    store.during["put"] = look
    sink(coordinator, "a").during["seal"] = look
    run(coordinator, 0)
    assert seen == [([], [])] * 3  # at the opening, at the seal, at the decision


def test_everything_of_every_sink_is_in_the_one_decision_before_the_first_commit(world: World) -> None:
    coordinator = world.coordinator()
    tails: list[Any] = []
    sink(coordinator, "a").during["commit"] = lambda: tails.append(read_tail(world.log))
    run(coordinator, 0)
    _, tail = tails[0]
    [decision] = tail.unresolved
    assert {name: len(committables) for name, committables in decision.committables.items()} == {"a": 2, "b": 2}


def test_a_sink_that_seals_changes_what_is_decided(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = world.coordinator()

    def seal(committables: Sequence[Committable], age_s: float) -> list[Committable]:
        return [Committable(c.transaction_id, {"sealed": True}, c.records) for c in committables]

    monkeypatch.setattr(sink(coordinator, "a"), "seal", seal)
    run(coordinator, 0)
    [decision] = log_of(coordinator).tail.unresolved
    assert [committable.handle for committable in decision.committables["a"]] == [{"sealed": True}] * 2


def test_a_batch_without_records_is_decided_and_completed_too(world: World) -> None:
    coordinator = world.coordinator()
    assert coordinator.run(0, lambda _: []).records == {"a": 0, "b": 0}
    assert coordinator.run(1, lambda _: []).batch_id == 1
    assert log_of(coordinator).tail.decided == 1
    run(coordinator, 2)
    assert sink(coordinator, "a").completed == [(0, 0), (1, 0), (2, PARTITIONS)]


def test_one_append_is_enough_for_a_batch(world: World) -> None:
    world.ran(0, 1)
    assert world.log.slots() == [0, 1, 2]


def test_a_clean_stop_is_in_the_log_and_closes_every_sink(world: World) -> None:
    with world.coordinator() as coordinator:
        run(coordinator, 0)
    tail = world.newest()
    assert (tail.kind, tail.unresolved, tail.decided) == ("close", (), 0)
    assert sink(coordinator, "a").closed == sink(coordinator, "b").closed == 1
    assert coordinator.phase is Phase.CLOSED


def test_a_coordinator_that_ran_nothing_closes_without_a_trace(world: World) -> None:
    world.coordinator().close()
    assert world.log.slots() == []


def test_a_stopped_coordinator_runs_again_as_a_new_incarnation(world: World) -> None:
    coordinator = world.ran(0)
    coordinator.close()
    run(coordinator, 1)
    assert log_of(coordinator).incarnation == 2
    assert world.visible("a") == ["0-0", "0-1", "1-0", "1-1"]


def test_every_sink_is_closed_though_the_log_cannot_be(world: World) -> None:
    coordinator = world.ran(0)
    CommitLog.open(world.log, "query")
    with pytest.raises(Fenced):
        coordinator.close()
    assert sink(coordinator, "a").closed == sink(coordinator, "b").closed == 1


def test_a_stop_that_failed_leaves_the_rest_to_the_next_start(world: World) -> None:
    coordinator = world.ran(0)
    sink(coordinator, "a").during["recover"] = raising(OSError("the target is gone"))
    with pytest.raises(OSError, match="gone"):
        coordinator.close()
    assert coordinator.phase is Phase.CLOSED
    del sink(coordinator, "a").during["recover"]
    run(coordinator, 1)
    assert log_of(coordinator).incarnation == 2


def test_a_coordinator_that_is_idle_recovers_as_a_new_incarnation(world: World) -> None:
    coordinator = world.ran(0)
    assert coordinator.recover().incarnation == 2
    run(coordinator, 1)
    assert world.visible("a") == ["0-0", "0-1", "1-0", "1-1"]


@pytest.mark.parametrize("call", ["run", "recover", "close"])
def test_no_call_comes_from_within_a_batch(world: World, call: str) -> None:
    coordinator = world.coordinator()
    calls: dict[str, Callable[[], object]] = {
        "run": lambda: run(coordinator, 0),
        "recover": coordinator.recover,
        "close": coordinator.close,
    }

    def within(_: Round) -> list[Vote]:
        calls[call]()
        return []

    with pytest.raises(ConfigurationError, match="when the batch has ended"):
        coordinator.run(0, within)


def test_a_stop_sweeps_what_a_lost_attempt_began_after_the_last_sweep(world: World) -> None:
    coordinator = world.ran(0)
    write_all(coordinator)(Round(1, 1))
    coordinator.close()
    assert world.open() == []


def test_a_stop_whose_sweep_cannot_be_answered_waits_for_the_answer(world: World) -> None:
    coordinator = world.ran(0)
    sink(coordinator, "a").during["recover"] = fails(Retriable("the target moves"), times=1)
    coordinator.close()
    assert log_of(coordinator).tail.kind == "close"


@pytest.mark.parametrize("call", ["open", "recover"])
def test_a_first_start_that_gets_no_answer_says_for_how_long_it_waited_and_where(world: World, call: str) -> None:
    coordinator = world.coordinator(start_timeout_s=0.1)
    away = raising(Retriable("no broker answers"))
    if call == "open":
        sink(coordinator, "a").open = away
    else:
        sink(coordinator, "a").during["recover"] = away
    with pytest.raises(
        Retriable, match=r"no answer for 0\.[1-9] s, .* start_timeout_s=0\.1, .*memory://.*no broker answers"
    ):
        coordinator.recover()


def test_a_wait_that_was_given_up_is_not_said_to_have_lasted_to_its_limit(world: World) -> None:
    coordinator = world.coordinator(gives_up=lambda _: True)
    sink(coordinator, "a").during["recover"] = raising(Retriable("no broker answers"))
    with pytest.raises(Retriable, match=r"^no broker answers; see python -m pydoc twopc\.Retriable$"):
        coordinator.recover()


def test_a_stop_before_the_first_decision_waits_no_longer_than_a_start(world: World) -> None:
    coordinator = world.coordinator(start_timeout_s=0.1)
    coordinator.recover()
    sink(coordinator, "a").during["recover"] = raising(Retriable("no broker answers"))
    with pytest.raises(Retriable, match="sweep at the end: no answer"):
        coordinator.close()


def test_a_restart_that_waits_for_an_answer_before_it_opens_its_log_is_told_beside_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ran(0)
    newest = world.newest()
    monkeypatch.setattr(CallRetried, "needs_operator", True)
    restarted, told = world.coordinator(), []

    def away(_: pa.Schema) -> None:
        notice = notices.read(world.log, newest)
        told.append(notice and notice.what)
        if len(told) == 1:
            raise Retriable("no broker answers")

    monkeypatch.setattr(sink(restarted, "a"), "validate", away)
    restarted.validate({"a": pa.schema([("value", pa.string())])})
    assert told == [None, "look at what sink 'a' writes to"]
    assert notices.read(world.log, newest) is None


# What is decided already, and what can't come next. ----------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_a_decided_batch_is_not_written_again(world: World, restarted: bool) -> None:
    coordinator = world.ran(0)
    if restarted:
        coordinator = world.coordinator()
    finished = coordinator.run(0, never)
    assert finished.already_decided
    assert world.visible("a") == ["0-0", "0-1"]
    assert run(coordinator, 1).already_decided is False


@pytest.mark.parametrize("batch_id", [0, 2, 4, 5, 99])
def test_a_gap_in_the_batches_is_refused_in_both_directions(world: World, batch_id: int) -> None:
    coordinator = world.ran(2, 3, first_batch_id=2)
    if batch_id == 4:
        run(coordinator, batch_id)
        return
    with pytest.raises(LogMismatch, match=f"at batch {batch_id}, .*decided batch 3.*Nothing was written"):
        coordinator.run(batch_id, never)
    run(coordinator, 4)


@pytest.mark.advice("and its commit log at … is empty")
def test_an_empty_log_refuses_any_batch_but_the_first_unless_told(world: World) -> None:
    with pytest.raises(LogMismatch, match=r"is at batch 57, and its commit log .* is empty.*first_batch_id=57"):
        world.coordinator().run(57, never)
    run(world.coordinator(first_batch_id=57), 57)
    assert world.visible("a") == ["57-0", "57-1"]
    world.ran(58)


def test_a_first_batch_id_is_of_no_account_once_a_batch_is_decided(world: World) -> None:
    world.ran(0)
    with pytest.raises(LogMismatch):
        world.coordinator(first_batch_id=57).run(57, never)


# Failures before the decision. ------------------------------------------------------------------------------------


def test_a_phase_one_that_fails_is_rolled_back_and_leaves_nothing_open(world: World, events: list[Event]) -> None:
    coordinator = world.coordinator()

    def half(round: Round) -> list[Vote]:
        write_all(coordinator)(round)
        raise OSError("an executor is gone")

    with pytest.raises(RoundAborted, match=r"batch 0, incarnation 1 failed.*OSError: an executor is gone") as failed:
        coordinator.run(0, half)
    assert isinstance(failed.value.__cause__, OSError)
    assert world.open() == []
    assert world.visible("a") == []
    assert len([event for event in events if isinstance(event, TransactionAborted)]) == 4
    assert coordinator.phase is Phase.CLOSED


def test_a_veto_of_the_second_sink_rolls_back_the_first(world: World) -> None:
    coordinator = world.coordinator()
    sink(coordinator, "b").during["seal"] = raising(OSError("too old"))
    with pytest.raises(RoundAborted, match="too old"):
        run(coordinator, 0)
    assert world.open() == []
    assert log_of(coordinator).tail.decided is None


def test_a_seal_that_is_not_answered_for_long_rolls_the_round_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twopc.performer.SEAL_PATIENCE_S", 0.05)
    coordinator = world.coordinator()
    sink(coordinator, "b").during["seal"] = raising(Retriable("no broker"))
    with pytest.raises(RoundAborted, match="no broker"):
        run(coordinator, 0)
    assert (world.open(), log_of(coordinator).tail.decided) == ([], None)


def test_an_operator_is_told_of_a_call_that_has_been_repeated_for_a_minute(
    world: World, events: list[Event], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twopc.events.OPERATOR_AFTER_S", 0.05)
    monkeypatch.setattr("twopc.retry.FIRST_LINE_S", 0.05)
    coordinator = world.coordinator()
    sink(coordinator, "a").during["commit 0"] = fails(Retriable("the target is away"), times=5)
    run(coordinator, 0)
    retried = [event for event in events if isinstance(event, CallRetried)]
    urgent = [event for event in retried if event.needs_operator]
    assert urgent == [event for event in retried if event.waited_s >= 0.05]
    assert 0 < len(urgent) < len(retried)
    at_error = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert 0 < len(at_error) <= len(urgent)
    assert all("batch 0 is decided" in message and "the target is away" in message for message in at_error)


def interrupted_while_away(coordinator: Coordinator, delay_s: float = 0.0) -> None:
    """Run a batch whose target is away, interrupt it ``delay_s`` after the first commit, and see that it ends."""
    asked = threading.Event()

    def away() -> None:
        asked.set()
        raise Retriable("the target is away")

    def interrupt() -> None:
        asked.wait()
        until = time.perf_counter() + delay_s
        while time.perf_counter() < until:
            pass
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    sink(coordinator, "a").during["commit"] = away
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(coordinator, 0)
    thread.join()


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_a_batch_whose_targets_are_away_and_the_next_start_commits_it(world: World) -> None:
    coordinator = world.coordinator("ab")
    interrupted_while_away(coordinator)
    assert world.visible("a") == []
    sink(coordinator, "a").during.clear()
    run(coordinator, 1)
    assert len(world.visible("a")) == 2 * PARTITIONS
    assert [each for each in threading.enumerate() if isinstance(each, Worker) and not each.ended.is_set()] == []


def test_commits_that_an_interrupt_left_running_are_given_up_by_the_next_call(world: World) -> None:
    coordinator = world.ran(0)
    performer, ended = coordinator._performer, list[bool]()
    waits = performer.waits
    commit = Worker(lambda: ended.append(waits.given_up.wait(5)), "commit")
    performer._running.append(commit)
    performer.phase = Phase.COMMITTING  # a second interrupt came before the first was noted
    commit.start()
    coordinator.recover()
    assert ended == [True]
    assert not performer.waits.given_up.is_set()


def test_who_waits_for_commits_of_the_last_incarnation_logs_for_how_many(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = world.coordinator()
    coordinator._performer._running.append(thread := Worker(lambda: threading.Event().wait(0.05), "commit"))
    thread.start()
    coordinator.recover()
    assert "waiting for threads that still commit for the last incarnation: 1" in caplog.text


@pytest.mark.long
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_seen_whenever_it_comes() -> None:
    """CPython does not look at one that comes just before a wait begins: about one in 1,500."""
    for n in range(1_500):
        interrupted_while_away(World().coordinator("a", rest_interval_s=None), delay_s=n % 150 / 1e6 + 5e-5)


AWAY = """
import threading, pyarrow, twopc
from twopc.testing import MemorySink, MemoryTarget

class Away(MemorySink):
    def commit(self, committable):
        asked.release()
        raise twopc.errors.Retriable("the target is away")

def phase_one(round):
    with twopc.Participant(sinks, round, partition=0) as participant:
        for name in sinks:
            participant.write(name, pyarrow.record_batch({"value": ["1"]}))
        return [participant.pre_commit()]

sinks, asked = {name: Away(MemoryTarget()) for name in "ab"}, threading.Semaphore(0)
run = twopc.Coordinator(sinks, "memory://log", owner="query").run
threading.Thread(target=run, args=(0, phase_one), daemon=True).start()
for _ in range(4):
    asked.acquire()
"""


def test_a_process_ends_although_commits_wait_for_targets_that_are_away() -> None:
    """As a driver that is interrupted: Spark runs its batches in a thread of their own."""
    subprocess.run([sys.executable, "-c", AWAY], check=True, timeout=60)


def test_what_an_operator_is_told_of_stands_beside_the_log_for_as_long_as_it_is_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twopc.events.OPERATOR_AFTER_S", 0.0)
    coordinator = world.coordinator()
    seen: list[Notice | None] = []

    def away() -> None:
        newest = world.newest()
        seen.append(notices.read(world.log, newest))
        if len(seen) < 3:
            raise Retriable("the target is away")

    sink(coordinator, "a").during["commit 0"] = away
    run(coordinator, 0)
    assert seen[0] is None
    assert seen[2]
    assert ("batch 0 is decided" in seen[2].what, seen[2].reason) == (True, "the target is away")
    assert world.log.posted() == b""


def test_a_notice_of_a_coordinator_that_was_killed_does_not_outlast_the_next_entry(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = world.ran(0)
    event = CallRetried("a commit", 9, 5.0, "away", waited_s=61)
    notices.Notices(world.log).post(log_of(coordinator).tail, event)
    assert notices.read(world.log, log_of(coordinator).tail)
    world.coordinator().recover()
    newest = world.newest()
    assert notices.read(world.log, newest) is None


def test_a_look_at_what_is_lost_waits_for_the_log_like_any_call_after_a_decision_and_tells_the_operator(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(world.log)
    coordinator = world.failed("a", "commit", TransactionLost("rolled back"), log=store, start_timeout_s=0.001)
    monkeypatch.setattr(CallRetried, "needs_operator", True)
    tail, told = log_of(coordinator).tail, []

    def away() -> None:
        notice = notices.read(world.log, tail)
        told.append(notice and notice.what)
        if len(told) < 3:
            raise OSError("no answer of the store")

    store.during["read"] = away
    assert [each.sink for each in coordinator.lost(0)] == ["a"] * PARTITIONS
    assert told[2] == "look at the log"
    assert notices.read(world.log, tail) is None


@pytest.mark.parametrize(
    "call", [lambda it: it.has_decided(0), lambda it: it.lost(0), lambda it: it.abandon(0, {}, "ann@ops")]
)
def test_what_needs_an_incarnation_says_so_before_there_is_one(
    world: World, call: Callable[[Coordinator], object]
) -> None:
    with pytest.raises(ConfigurationError, match="call recover first"):
        call(world.coordinator())
    assert world.log.slots() == []


def test_a_batch_that_is_not_in_doubt_is_not_asked_for_what_it_has_lost(world: World) -> None:
    coordinator = world.ran(0)
    sink(coordinator, "a").during["commit"] = raising(AssertionError("it was asked"))
    for batch_id in (0, 1):
        with pytest.raises(LogMismatch, match=f"batch {batch_id} is not in doubt"):
            coordinator.lost(batch_id)


def test_a_store_that_takes_no_notice_stops_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twopc.events.OPERATOR_AFTER_S", 0.0)
    monkeypatch.setattr(world.log, "post", raising(OSError("disk full")))
    coordinator = world.coordinator()
    sink(coordinator, "a").during["commit 0"] = fails(Retriable("away"), times=2)
    run(coordinator, 0)
    assert world.visible("a") == ["0-0", "0-1"]


@pytest.mark.parametrize("step", ["phase one", "seal"])
def test_an_input_that_is_refused_is_told_as_such_after_the_roll_back(world: World, step: str) -> None:
    coordinator, refused = world.coordinator(), Refused("column 'x' is missing")
    sink(coordinator, "b").during["seal"] = raising(refused)
    with pytest.raises(Refused) as failed:
        coordinator.run(0, raising(refused) if step == "phase one" else write_all(coordinator))
    assert failed.value is refused
    assert failed.value.__cause__ is not refused  # who follows the causes of an error to their end comes to one
    assert world.open() == []


def test_what_the_roll_back_cannot_abort_is_aborted_at_recovery(world: World, caplog: pytest.LogCaptureFixture) -> None:
    coordinator = world.coordinator()
    sink(coordinator, "b").during["seal"] = raising(OSError("too old"))
    sink(coordinator, "a").during["abort"] = raising(OSError("no reply"))
    with caplog.at_level(logging.WARNING), pytest.raises(RoundAborted, match="too old"):
        run(coordinator, 0)
    assert "could not roll back all of batch 0" in caplog.text
    assert world.open() != []
    world.ran(0)
    assert world.open() == []
    assert world.visible("a") == ["0-0", "0-1"]


def test_who_is_fenced_while_it_rolls_back_learns_that_it_is_fenced(world: World) -> None:
    coordinator = world.coordinator()

    def overtaken(round: Round) -> list[Vote]:
        write_all(coordinator)(round)
        CommitLog.open(world.log, "query")
        raise OSError("the cluster lost this driver")

    with pytest.raises(Fenced):
        coordinator.run(0, overtaken)


def test_a_vote_for_a_sink_that_the_coordinator_does_not_have_is_not_dropped(world: World) -> None:
    """Its records would be lost without a word."""
    other = Sink(MemoryTarget())
    other.bind("other", "log")
    with pytest.raises((RoundAborted, Refused), match="other"):
        world.coordinator().run(0, writes({"other": other}, {"value": ["lost"]}))


def test_a_sink_whose_seal_returns_fewer_transactions_is_not_believed(world: World) -> None:
    """What it left out would be swept away: lost without a word."""
    coordinator = world.coordinator()
    sink(coordinator, "a").seal = lambda committables, age_s: committables[:1]
    with pytest.raises((RoundAborted, Refused)):
        run(coordinator, 0)
    assert log_of(coordinator).tail.decided is None
    assert world.open() == []


# What is complete. ------------------------------------------------------------------------------------------------


def test_a_batch_is_complete_when_all_sinks_have_committed_it(world: World) -> None:
    coordinator = world.coordinator()
    seen: list[tuple[list[str], list[str]]] = []
    for name in "ab":
        sink(coordinator, name).during["complete"] = lambda: seen.append((world.visible("a"), world.visible("b")))
    run(coordinator, 0)
    assert seen == [(["0-0", "0-1"], ["0-0", "0-1"])] * 2
    assert sink(coordinator, "a").completed == [(0, PARTITIONS)]


def test_what_commits_last_waits_until_the_batch_is_complete_in_all_others(world: World) -> None:
    coordinator = world.coordinator()
    sink(coordinator, "a").commits_last = True
    seen: list[tuple[list[str], list[tuple[int, int]]]] = []
    sink(coordinator, "a").during["commit"] = lambda: seen.append(
        (world.visible("b"), sink(coordinator, "b").completed)
    )
    run(coordinator, 0)
    assert seen == [(["0-0", "0-1"], [(0, PARTITIONS)])] * PARTITIONS
    assert sink(coordinator, "a").completed == [(0, PARTITIONS)]


def test_a_batch_is_announced_when_it_is_complete_in_all_sinks_that_which_commits_last_included(world: World) -> None:
    coordinator = world.coordinator()
    sink(coordinator, "a").commits_last = True
    seen: list[list[tuple[list[str], list[tuple[int, int]]]]] = []
    for name in "ab":
        sink(coordinator, name).during["announce"] = lambda: seen.append(
            [(world.visible(each), sink(coordinator, each).completed) for each in "ab"]
        )
    run(coordinator, 0)
    assert seen == [[(["0-0", "0-1"], [(0, PARTITIONS)])] * 2] * 2
    [(batch_id, committed)] = sink(coordinator, "b").announced
    assert batch_id == 0
    assert {name: len(some) for name, some in committed.items()} == {"a": PARTITIONS, "b": PARTITIONS}


def test_an_announcement_names_what_was_given_up_also_if_that_is_all_of_the_batch(world: World) -> None:
    coordinator = world.failed("a", "commit", OutcomeUnknown("its name was used again"))
    [decision] = log_of(coordinator).tail.unresolved
    for committables in decision.committables["a"]:
        coordinator.abandon(0, {"a": [committables]}, "ann@ops")
    recovered = world.coordinator()
    recovered.recover()
    [(_, committed)] = sink(recovered, "b").announced
    assert (committed["a"], len(committed["b"])) == ([], PARTITIONS)
    assert sink(recovered, "b").given_up == {"a": [each.transaction_id for each in decision.committables["a"]]}


@pytest.mark.parametrize("call", ["complete", "announce"])
def test_a_completion_or_announcement_that_a_crash_prevented_is_made_up_for_at_recovery(
    world: World, call: str
) -> None:
    world.failed("b", call, KeyboardInterrupt())
    coordinator = world.coordinator()
    coordinator.recover()
    [(batch_id, committed)] = sink(coordinator, "a").announced
    assert (batch_id, {name: len(some) for name, some in committed.items()}) == (0, {"a": PARTITIONS, "b": PARTITIONS})
    assert sink(coordinator, "b").announced == sink(coordinator, "a").announced
    assert sink(coordinator, "a").completed == sink(coordinator, "b").completed == [(0, PARTITIONS)]


# Failures after the decision. -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("recover", "sweep after batch 0"),
        ("seal", "batch 0, incarnation 1: seal of sink 'a'"),
        ("commit 0", "batch 0 is decided; commit of "),
        ("complete", "batch 0 is committed; its completion in sink 'a'"),
        ("announce", "batch 0 is complete; its announcement by sink 'a'"),
    ],
)
def test_a_call_that_cannot_be_answered_is_repeated_and_the_observer_is_told(
    world: World, events: list[Event], call: str, what: str
) -> None:
    """A planned restart of a broker moves what it coordinates: no reason to run the batch again."""
    coordinator = world.coordinator()
    coordinator.recover()
    sink(coordinator, "a").during[call] = fails(Retriable("the target moves"), times=3)
    run(coordinator, 0)
    assert world.visible("a") == world.visible("b") == ["0-0", "0-1"]
    assert sink(coordinator, "a").completed == [(0, PARTITIONS)]
    assert [batch_id for batch_id, _ in sink(coordinator, "a").announced] == [0]
    retried = [event for event in events if isinstance(event, CallRetried)]
    assert [event.attempt for event in retried] == [1, 2, 3]
    assert {event.what[: len(what)] for event in retried} == {what}
    assert all(event.reason == "the target moves" and 0 < event.wait_s <= 5.1 for event in retried)


@pytest.mark.parametrize("error", [TransactionLost, OutcomeUnknown])
def test_a_lost_or_unknown_transaction_stops_loudly_after_every_other_was_committed(
    world: World, error: type[Exception]
) -> None:
    coordinator = world.coordinator()
    sink(coordinator, "a").during["commit 0"] = raising(error("batch 0 of a"))
    sink(coordinator, "b").during["commit 1"] = raising(OSError("no reply"))
    with pytest.raises(error, match="batch 0 of a"):
        run(coordinator, 0)
    assert (world.visible("a"), world.visible("b")) == (["0-1"], ["0-0"])
    assert len(world.open()) == 2  # nothing decided is rolled back
    assert coordinator.phase is Phase.CLOSED
    for _ in range(2):  # no restart passes over it
        assert log_of(world.failed("a", "commit 0", error("batch 0 of a"))).tail.decided == 0


def test_a_log_that_cannot_be_read_hides_no_failed_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = world.coordinator()
    verify, answers = steps.verify, [Retriable("the store is slow")]

    def slow(log: LogView) -> Steps[None]:
        if coordinator.phase is Phase.COMMITTING and answers:
            raise answers.pop()
        yield from verify(log)

    monkeypatch.setattr(steps, "verify", slow)
    sink(coordinator, "a").during["commit 0"] = raising(TransactionLost("rolled back"))
    with pytest.raises(TransactionLost, match="rolled back"):
        run(coordinator, 0)
    assert not answers


def killed_before_the_commits(world: World) -> None:
    coordinator = world.coordinator()
    for name in "ab":
        sink(coordinator, name).during["commit"] = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(coordinator, 0)


def test_a_restart_commits_beside_a_target_that_is_away_and_completes_nothing(world: World) -> None:
    killed_before_the_commits(world)
    coordinator = world.coordinator()
    seen: list[tuple[list[str], list[tuple[int, int]]]] = []
    answers = [Retriable("b restarts")] * 3

    def away() -> None:
        seen.append((world.visible("a"), [*sink(coordinator, "a").completed]))
        if answers:
            raise answers.pop()

    sink(coordinator, "b").during["open"] = away
    coordinator.recover()
    assert seen == [([], []), *[(["0-0", "0-1"], [])] * 3]
    assert world.visible("a") == world.visible("b") == ["0-0", "0-1"]
    assert sink(coordinator, "a").completed == sink(coordinator, "b").completed == [(0, PARTITIONS)]


def test_what_commits_last_does_not_commit_beside_a_target_that_is_away(world: World) -> None:
    killed_before_the_commits(world)
    coordinator = world.coordinator()
    sink(coordinator, "a").commits_last = True
    sink(coordinator, "b").during["open"] = raising(OSError("away"))
    with pytest.raises(OSError, match="away"):
        coordinator.recover()
    assert world.visible("a") == world.visible("b") == []


def test_a_target_that_refuses_a_restart_keeps_back_its_own_transactions_alone(world: World) -> None:
    killed_before_the_commits(world)
    coordinator = world.coordinator()
    sink(coordinator, "b").during["open"] = raising(ConfigurationError("there is no table 'b'."))
    with pytest.raises(
        OperatorRequired, match="batch 0 is decided, and can't be finished now: there is no table 'b'"
    ) as told:
        coordinator.recover()
    assert (told.value.sink, told.value.batch_id) == ("b", 0)
    assert (world.visible("a"), world.visible("b")) == (["0-0", "0-1"], [])
    sink(coordinator, "b").during.clear()
    coordinator.recover()
    assert world.visible("b") == ["0-0", "0-1"]
    coordinator.rest()  # the log knows now that it is committed
    sink(coordinator, "b").during["open"] = raising(ConfigurationError("there is no table 'b'."))
    with pytest.raises(ConfigurationError):
        coordinator.recover()


def test_an_error_of_a_commit_that_says_nothing_is_finished_by_the_next_incarnation(
    world: World, events: list[Event]
) -> None:
    coordinator = world.failed("b", "commit", OSError("no reply"))
    assert len(world.open()) == 2
    sink(coordinator, "b").during.clear()
    events.clear()
    assert coordinator.run(0, never).already_decided
    assert log_of(coordinator).incarnation == 2
    assert world.visible("b") == ["0-0", "0-1"]
    committed = [event.recovered for event in events if isinstance(event, TransactionCommitted)]
    assert committed == [True] * 4  # it was not the one that decided


def test_what_is_open_and_not_decided_is_swept_after_a_batch(world: World) -> None:
    coordinator = world.coordinator()

    def with_a_lost_attempt(round: Round) -> list[Vote]:
        with Participant(coordinator._sinks, round, partition=0, serial=7) as lost:
            lost.write("a", pa.record_batch({"value": ["of a speculative attempt"]}))
            lost.pre_commit()
        return write_all(coordinator)(round)

    coordinator.run(0, with_a_lost_attempt)
    assert world.open() == []
    assert world.visible("a") == ["0-0", "0-1"]


def test_a_sink_that_cannot_be_swept_keeps_no_other_sinks_transactions_open(world: World) -> None:
    coordinator = world.coordinator()

    def fails(round: Round) -> list[Vote]:
        write_all(coordinator)(round)
        sink(coordinator, "a").during["recover"] = raising(Retriable("no broker answers"))
        raise OSError("a task failed")

    with pytest.raises(RoundAborted, match="a task failed"):
        coordinator.run(0, fails)
    assert not world.targets["b"].open
    assert world.targets["a"].open


def test_of_two_sinks_that_cannot_be_swept_the_one_that_stays_so_is_raised_and_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = world.ran(0)
    sink(coordinator, "a").during["recover"] = raising(Retriable("no broker answers"))
    sink(coordinator, "b").during["recover"] = raising(OSError("its disk is gone"))
    with pytest.raises(OSError, match="its disk is gone"):
        swept_by(coordinator)
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == ["sweep of sink 'b': its disk is gone"]


def test_a_sweep_leaves_what_is_decided_alone_though_it_is_open(world: World) -> None:
    coordinator = world.ran(0)
    name = log_of(coordinator).tail.unresolved[0].committables["a"][0].transaction_id
    world.targets["a"].open[name] = [{"value": "still shown as open by a slow target"}]
    swept_by(coordinator)
    assert world.open() == [name]


def test_a_sweep_aborts_an_undecided_transaction_though_a_decided_one_had_its_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = world.coordinator("a")
    of_sink = sink(coordinator, "a")
    monkeypatch.setattr(
        of_sink, "seal", lambda voted, age_s: [Committable(c.transaction_id, {"epoch": 3}, c.records) for c in voted]
    )
    run(coordinator, 0)
    [decided, _] = log_of(coordinator).tail.unresolved[0].committables["a"]
    aborted: list[Committable] = []
    listed = [Committable(decided.transaction_id, {"epoch": epoch}) for epoch in (3, 4)]
    monkeypatch.setattr(of_sink, "recover", lambda: listed)
    monkeypatch.setattr(of_sink, "abort", aborted.append)
    swept_by(coordinator)
    assert aborted == listed[1:]


def test_a_sweep_looks_again_until_it_finds_nothing_new(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target may have left a part open of what it aborted, and may list for ever what it can't abort."""
    coordinator = world.coordinator("a")
    coordinator.run(0, lambda _: [])
    whole, part = (Committable("a transaction", {"part": part}) for part in (0, 1))
    looks = iter([[whole], [part], [part]])
    aborted: list[Committable] = []
    monkeypatch.setattr(sink(coordinator, "a"), "recover", lambda: next(looks))
    monkeypatch.setattr(sink(coordinator, "a"), "abort", aborted.append)
    swept_by(coordinator)
    assert aborted == [whole, part]


# In doubt. --------------------------------------------------------------------------------------------------------


def in_doubt(world: World, lands: bool) -> Coordinator:
    """A coordinator whose decision of batch 0 was lost twice on its way, or its reply and then its repetition."""
    store = Store(world.log)
    coordinator = world.coordinator(log=store)
    coordinator.run(0, lambda _: [])  # opened, without a fault
    store.after["put"] = raising(TimeoutError("no reply"))
    answers = iter([not lands, True])

    def fail() -> None:
        if next(answers):
            raise TimeoutError("no reply")

    store.during["put"] = fail
    with pytest.raises(InDoubt):
        run(coordinator, 1)
    return coordinator


@pytest.mark.parametrize("lands", [False, True])
def test_a_coordinator_in_doubt_neither_commits_nor_aborts(world: World, events: list[Event], lands: bool) -> None:
    coordinator = in_doubt(world, lands)
    assert len(world.open()) == 4
    assert world.visible("a") == []
    assert not [event for event in events if isinstance(event, (TransactionCommitted, TransactionAborted))]
    assert coordinator.phase is Phase.CLOSED


@pytest.mark.advice("an append to the commit log failed at")
def test_a_decision_in_doubt_that_has_landed_is_recovered_as_committed(world: World) -> None:
    in_doubt(world, lands=True)
    assert world.coordinator().run(1, never).already_decided
    assert world.visible("a") == world.visible("b") == ["1-0", "1-1"]
    assert world.open() == []


@pytest.mark.advice("an append to the commit log failed at")
def test_a_decision_in_doubt_that_has_not_landed_is_aborted_and_replayed(world: World) -> None:
    in_doubt(world, lands=False)
    coordinator = world.coordinator()
    seen: list[list[str]] = []

    def replayed(round: Round) -> list[Vote]:
        seen.append(world.open())
        return write_all(coordinator)(round)

    assert coordinator.run(1, replayed).already_decided is False
    assert seen == [[]]
    assert world.visible("a") == world.visible("b") == ["1-0", "1-1"]


def test_a_decision_that_the_log_refuses_is_rolled_back_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = world.ran(0)
    monkeypatch.setattr("twopc.log.entry_json.LONGEST_DECISION", 100)
    with pytest.raises(ConfigurationError, match="too many transactions or files"):
        run(coordinator, 1)
    assert world.open() == []
    assert coordinator.phase is Phase.CLOSED
    monkeypatch.undo()
    assert world.coordinator().run(1, write_all(coordinator)).already_decided is False


# Two coordinators. ------------------------------------------------------------------------------------------------


@pytest.mark.advice("a newer coordinator has opened the log")
def test_an_older_coordinator_writes_and_then_learns_that_it_is_fenced(world: World) -> None:
    older, newer = world.coordinator(), world.coordinator()
    run(older, 0)
    run(newer, 1)
    with pytest.raises(Fenced):
        run(older, 1)
    run(newer, 2)
    assert world.visible("a") == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]
    assert world.open() == []


@pytest.mark.parametrize("error", [TransactionLost("rolled back"), OutcomeUnknown("the name was used again")])
def test_who_is_fenced_in_phase_two_is_not_told_that_records_are_lost(world: World, error: Exception) -> None:
    """Its successor has committed them, and the target may have forgotten since."""
    coordinator = world.coordinator()

    def overtaken() -> None:
        CommitLog.open(world.log, "query")
        raise error

    sink(coordinator, "a").during["commit 0"] = overtaken
    with pytest.raises(Fenced):
        run(coordinator, 0)


@pytest.mark.parametrize("call", ["open", "commit", "complete", "announce", "recover", "seal"])
@pytest.mark.parametrize("error", [OperatorRequired("restore it"), Refused("no right to do so"), ValueError("odd")])
def test_a_fenced_coordinator_calls_no_operator_whatever_call_it_wakes_in(
    world: World, call: str, error: Exception
) -> None:
    """Its successor may have settled what it fails at, and to act on its advice could double records."""
    coordinator = world.coordinator()

    def overtaken() -> None:
        world.coordinator().recover()
        raise error

    sink(coordinator, "b").during[call] = overtaken
    with pytest.raises(Fenced):
        run(coordinator, 0)


def test_a_sink_whose_transactions_may_time_out_is_sealed_after_those_that_may_look_for_long(world: World) -> None:
    coordinator = world.coordinator("ab")
    sink(coordinator, "a").may_time_out = True
    sealed: list[str] = []
    for name in ("a", "b"):
        sink(coordinator, name).during["seal"] = functools.partial(sealed.append, name)
    run(coordinator, 0)
    assert sealed == ["b", "a"]


def test_a_coordinator_that_is_fenced_while_it_writes_lost_records_again_calls_no_operator(
    world: World, tmp_path: Path
) -> None:
    """The newer one has written them from the same copy, and removed it."""
    older, newer = (world.coordinator("a", replay_copies=tmp_path) for _ in range(2))
    for each in (older, newer):
        sink(each, "a").may_time_out = True
    begin: Callable[[TransactionId], Transaction] = sink(older, "a").begin

    def lose() -> None:
        world.targets["a"].open.clear()
        sink(older, "a").during.clear()
        sink(older, "a").begin = overtaken

    def overtaken(transaction_id: TransactionId) -> Transaction:
        newer.recover()
        newer.rest()
        return begin(transaction_id)

    sink(older, "a").during["commit"] = lose
    with pytest.raises(Fenced):
        run(older, 0)
    assert world.visible("a") == ["0-0", "0-1"]


def test_who_can_not_read_the_log_after_an_error_asks_until_it_is_answered(world: World) -> None:
    store = Store(world.log)
    coordinator = world.coordinator(log=store)

    def overtaken() -> None:
        world.coordinator().recover()
        store.during["read"] = fails(OSError("no reply"), times=3)
        raise OperatorRequired("restore it")

    sink(coordinator, "a").during["complete"] = overtaken
    with pytest.raises(Fenced):
        run(coordinator, 0)


def test_a_refusal_of_a_log_that_can_not_be_opened_stays_one(world: World) -> None:
    """The log that the coordinator had open before is not the one that it is refused at."""
    coordinator = world.ran(0)
    coordinator.close()
    world.coordinator().recover()
    coordinator._owner = "another query"
    with pytest.raises(LogMismatch):
        run(coordinator, 1)


def test_what_was_left_out_is_counted_before_the_decision(world: World) -> None:
    coordinator = world.coordinator()
    with pytest.raises(RoundAborted, match="no count"):
        coordinator.run(0, write_all(coordinator), left_out=raising(ValueError("no count")))
    assert world.visible("a") == []


@pytest.mark.parametrize("at", ["recovery", "sweep", "roll back"])
def test_an_older_coordinator_that_wakes_in_its_sweep_aborts_nothing_of_the_newer_one(world: World, at: str) -> None:
    """It has listed the newer one's transactions, which that one is about to decide."""
    older, newer = world.coordinator(), world.coordinator()
    open_before: list[list[str]] = []

    def wake() -> None:  # in the listing of the first sink, so that the second lists what the newer one began
        sink(older, "a").during.clear()
        newer.recover()
        write_all(newer)(Round(log_of(newer).incarnation, 1))
        open_before.append(world.open())

    if at == "recovery":
        sink(older, "a").during["recover"] = wake
        with pytest.raises(Fenced):
            older.run(0, never)
    elif at == "sweep":
        listings: list[int] = []

        def at_the_second_listing() -> None:  # the first is at recovery
            listings.append(1)
            if len(listings) == 2:
                wake()

        sink(older, "a").during["recover"] = at_the_second_listing
        with pytest.raises(Fenced):
            run(older, 0)
    else:
        older.run(0, lambda _: [])
        sink(older, "a").during["recover"] = wake
        with pytest.raises(Fenced):
            older.run(1, raising(OSError("lost")))
    assert len(open_before[0]) == 4
    assert world.open() == open_before[0]


def test_a_sweep_lists_then_reads_the_log_again_then_aborts(world: World) -> None:
    store = Store(world.log)
    coordinator = world.coordinator(log=store)
    coordinator.run(0, lambda _: [])
    order: list[str] = []
    for name in "ab":
        sink(coordinator, name).during["recover"] = lambda name=name: order.append(f"list {name}")
        sink(coordinator, name).during["abort"] = lambda name=name: order.append(f"abort {name}")
    store.during["read"] = lambda: order.append("read the log")
    write_all(coordinator)(Round(1, 1))
    swept_by(coordinator)
    assert order == [
        *("list a", "read the log", "abort a", "abort a", "list a"),
        *("list b", "read the log", "abort b", "abort b", "list b"),
    ]


def test_a_coordinator_that_runs_a_batch_does_not_take_a_second_one_meanwhile(world: World) -> None:
    """Two threads on one coordinator: the second must not roll back what the first is deciding."""
    store = Store(world.log)
    coordinator = world.coordinator(log=store)
    coordinator.run(0, lambda _: [])
    second: list[BaseException] = []

    def intrude() -> None:
        store.during.clear()

        def other_thread() -> None:
            try:
                run(coordinator, 1)
            except BaseException as error:  # noqa: BLE001  # looked at below
                second.append(error)

        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join(timeout=5)

    store.during["put"] = intrude
    run(coordinator, 1)
    assert world.visible("a") == world.visible("b") == ["1-0", "1-1"]
    assert len(second) == 1
    assert not isinstance(second[0], RoundAborted)


# After an error; configuration. -----------------------------------------------------------------------------------


def test_after_an_error_the_next_run_opens_a_new_incarnation_and_recovers_first(
    world: World, events: list[Event]
) -> None:
    coordinator = world.coordinator()
    with pytest.raises(RoundAborted):
        coordinator.run(0, raising(OSError("lost")))
    events.clear()
    run(coordinator, 0)
    assert log_of(coordinator).incarnation == 2
    assert events[0] == PhaseEntered(Phase.RECOVERING, None, "query")


def test_a_failed_run_is_reported_once_with_its_error_and_the_times_of_its_phases(
    world: World, events: list[Event]
) -> None:
    coordinator = world.coordinator()
    with pytest.raises(RoundAborted) as aborted:
        coordinator.run(0, raising(OSError("lost")))
    run(coordinator, 0)
    world.coordinator().recover()
    with pytest.raises(Fenced) as fenced:
        run(coordinator, 1)
    failed = [event for event in events if isinstance(event, BatchFailed)]
    assert [(event.batch_id, event.error, event.owner) for event in failed] == [
        (0, aborted.value, "query"),
        (1, fenced.value, "query"),
    ]
    assert [list(event.phases_ms) for event in failed] == [
        ["recovering", "pre-committing"],
        ["pre-committing", "sealing", "deciding"],
    ]


def test_every_event_names_its_query(world: World, events: list[Event]) -> None:
    coordinator = world.coordinator()
    sink(coordinator, "a").during["commit"] = fails(Retriable("busy"), 1)
    run(coordinator, 0)
    assert {type(event) for event in events} >= {PhaseEntered, TransactionCommitted, CallRetried, BatchFinished}
    assert {event.owner for event in events} == {"query"}


def test_after_an_interrupt_nothing_is_carried_on_with(world: World) -> None:
    coordinator = world.coordinator()
    with pytest.raises(KeyboardInterrupt):
        coordinator.run(0, raising(KeyboardInterrupt()))
    assert coordinator.phase is Phase.CLOSED
    coordinator.close()
    tail = world.newest()
    assert tail.kind == "open"  # no clean stop


@pytest.mark.advice("is decided and not yet committed to sink")
def test_undone_work_of_a_sink_that_is_not_configured_any_more_is_refused(world: World) -> None:
    world.failed("b", "commit", OSError("no reply"))
    with pytest.raises(LogMismatch, match=r"not yet committed to sink 'b'.*it has a\).* once more with that sink"):
        world.coordinator("a").run(0, never)
    world.coordinator("ab").close()
    assert world.coordinator("ab").run(0, never).already_decided
    assert world.visible("b") == ["0-0", "0-1"]


def test_a_sink_can_go_after_a_clean_stop(world: World) -> None:
    with world.coordinator("ab") as coordinator:
        run(coordinator, 0)
    run(world.coordinator("a"), 1)


def test_a_sink_that_had_no_transaction_in_the_last_batch_can_go_without_a_clean_stop(world: World) -> None:
    run(world.coordinator("ab"), 0)
    world.coordinator("ab").run(1, lambda _: [])
    run(world.coordinator("a"), 2)


def test_a_sink_can_come_at_any_time(world: World) -> None:
    run(world.coordinator("ab"), 0)
    run(world.coordinator("abc"), 1)
    assert world.visible("c") == ["1-0", "1-1"]


def test_a_coordinator_without_sinks_is_refused(world: World) -> None:
    with pytest.raises(ConfigurationError, match="at least one sink"):
        world.coordinator("")


def test_one_sink_under_two_names_is_refused_before_it_fences_the_coordinator_that_runs(world: World) -> None:
    """It can be bound to one name only, and two transactions of one name would overwrite each other."""
    running, both = world.coordinator(), Sink(MemoryTarget())
    run(running, 0)
    with pytest.raises(ConfigurationError, match="a sink for each name"):
        Coordinator({"a": both, "b": both}, world.log, owner="query").run(1, never)
    run(running, 1)


def test_one_sink_of_two_queries_is_refused(world: World) -> None:
    shared = Sink(MemoryTarget())
    Coordinator({"a": shared}, world.log, owner="query").run(0, lambda _: [])
    with pytest.raises(ConfigurationError, match="for each query"):
        Coordinator({"a": shared}, World().log, owner="another").run(0, never)


def test_an_unbound_copy_of_a_sink_serves_another_query(world: World) -> None:
    shared = Sink(MemoryTarget())
    Coordinator({"a": shared}, world.log, owner="query").run(0, lambda _: [])
    Coordinator({"b": shared.unbound()}, World().log, owner="another").run(0, lambda _: [])
    assert shared.transactional_ids.sink == "a"


@pytest.mark.parametrize("name", ["a.b", "", "7"])
def test_a_bad_sink_name_is_refused_before_it_fences_the_coordinator_that_runs(world: World, name: str) -> None:
    running = world.ran(0)
    with pytest.raises(ConfigurationError, match="sink name"):
        Coordinator({name: Sink(MemoryTarget())}, world.log, owner="query").run(1, never)
    run(running, 1)


@pytest.mark.advice("the commit log belongs to query")
def test_a_log_of_another_query_is_refused_and_the_one_that_runs_goes_on(world: World) -> None:
    running = world.ran(0)
    with pytest.raises(LogMismatch, match=r"belongs to query query.* or a log of its own"):
        Coordinator({"a": Sink(MemoryTarget())}, world.log, owner="another").run(0, never)
    run(running, 1)
    run(Coordinator({"a": Sink(MemoryTarget())}, MemoryLog(), owner="another"), 0)


@pytest.mark.long
def test_nothing_of_the_records_stays_with_the_coordinator(world: World) -> None:
    coordinator = world.coordinator()
    sizes = []
    for batch_id, rows in enumerate([1, 100_000]):
        records = pa.record_batch({"value": ["x"] * rows})
        written = weakref.ref(records)

        def phase_one(round: Round, records: pa.RecordBatch = records) -> list[Vote]:
            with Participant(coordinator._sinks, round, partition=0) as participant:
                participant.write("a", records)
                return [participant.pre_commit()]

        coordinator.run(batch_id, phase_one)
        del records, phase_one
        gc.collect()
        assert written() is None
        sizes.append(len(json.dumps(json.loads(serialise(log_of(coordinator).tail)))))  # without line breaks
    assert sizes[1] - sizes[0] <= 2 * len("100000")  # its records and bytes


def test_what_is_committed_is_not_pending_any_more(world: World) -> None:
    coordinator = world.coordinator()
    for batch_id in range(5):
        run(coordinator, batch_id)
    assert [len(sink(coordinator, name).pending) for name in "ab"] == [0, 0]
    assert len(log_of(coordinator).tail.unresolved) == 1


# A round whose steps run in different processes. -----------------------------------------------------------------


def pre_committed(coordinator: Coordinator, world: World) -> list[Vote]:
    """Open an incarnation, and have participants vote in it, as in processes before the one that decides."""
    round = Round(coordinator.recover().incarnation, 0)
    sinks = coordinator._sinks
    votes = []
    for partition in range(PARTITIONS):
        with Participant(sinks, round, partition=partition) as participant:
            for name in sinks:
                participant.write(name, pa.record_batch({"value": [f"0.{partition}"]}))
            votes.append(participant.pre_commit())
    assert len(world.open()) == 2 * PARTITIONS
    return votes


def log_id(world: World) -> str:
    tail = world.newest()
    return tail.log_id


def test_a_coordinator_goes_on_with_an_incarnation_that_another_opened(world: World) -> None:
    votes = pre_committed(world.coordinator(), world)
    with world.coordinator() as coordinator:
        coordinator.resume(log_id(world), 1)
        assert len(world.open()) == 2 * PARTITIONS  # nothing was swept
        assert not coordinator.run(0, lambda _: votes).already_decided
    assert world.visible("a") == world.visible("b") == ["0.0", "0.1"]
    assert world.open() == []
    tail = world.newest()
    assert (tail.kind, tail.incarnation) == ("close", 1)


@pytest.mark.parametrize("by", ["the opener", "the resumer"])
def test_a_rest_before_the_batch_leaves_the_votes_of_participants_elsewhere_alone(world: World, by: str) -> None:
    opener, resumer = world.coordinator(), world.coordinator()
    votes = pre_committed(opener, world)
    if by == "the opener":
        opener.rest()
    resumer.resume(log_id(world), 1)
    resumer.rest()
    assert len(world.open()) == 2 * PARTITIONS
    resumer.run(0, lambda _: votes)
    assert world.visible("a") == world.visible("b") == ["0.0", "0.1"]


def test_an_incarnation_that_was_closed_decides_no_votes_as_they_were_rolled_back(world: World) -> None:
    opener = world.coordinator()
    votes = pre_committed(opener, world)
    opener.close()
    assert world.open() == []
    resumer = world.coordinator()
    resumer.resume(log_id(world), 1)
    with pytest.raises(RoundAborted, match="was closed before its decision"):
        resumer.run(0, lambda _: votes)
    assert resumer.next_batch_id == 0
    run(resumer, 0)
    assert world.visible("a") == ["0-0", "0-1"]


def test_what_it_goes_on_with_is_as_old_as_its_first_participant(world: World) -> None:
    votes = pre_committed(world.coordinator(), world)
    coordinator = world.coordinator()
    ages: list[float] = []

    def seal(committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:
        ages.append(age_s)
        return committables

    sink(coordinator, "a").seal = seal
    coordinator.resume(log_id(world), 1)
    coordinator.run(0, lambda _: votes, began_s=time.perf_counter() - 1000)
    assert ages[0] >= 1000


def test_a_fenced_incarnation_is_not_gone_on_with_and_the_newer_ones_transactions_stay(world: World) -> None:
    pre_committed(world.coordinator(), world)
    votes = pre_committed(world.coordinator(), world)  # whose opening has swept the older one's
    older = world.coordinator()
    with pytest.raises(Fenced):
        older.resume(log_id(world), 1)
    assert older.phase is Phase.CLOSED
    newer = world.coordinator()
    newer.resume(log_id(world), 2)
    newer.run(0, lambda _: votes)
    assert world.visible("a") == ["0.0", "0.1"]


def test_what_the_process_before_had_decided_is_committed_and_not_decided_again(world: World) -> None:
    votes = pre_committed(world.coordinator(), world)
    killed = world.coordinator()
    sink(killed, "a").during["commit"] = raising(KeyboardInterrupt())
    killed.resume(log_id(world), 1)
    with pytest.raises(KeyboardInterrupt):
        killed.run(0, lambda _: votes)
    again = world.coordinator()
    again.resume(log_id(world), 1)
    assert world.visible("a") == world.visible("b") == ["0.0", "0.1"]
    assert again.run(0, lambda _: votes).already_decided


def test_no_thread_to_commit_on_is_refused_before_a_log_is_opened(world: World) -> None:
    with pytest.raises(ConfigurationError, match="commits_at_once must be 1 or more, not 0"):
        Coordinator({"a": MemorySink(MemoryTarget())}, world.log, owner="q", commits_at_once=0)


@pytest.mark.parametrize("lock", ["callers", "batch_or_rest"])
def test_an_interrupt_as_a_lock_is_taken_leaves_it_free(
    world: World, lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = world.coordinator()
    taken = getattr(coordinator._turns, lock)
    take = taken.take

    def interrupted(**waits: bool) -> bool:
        take(**waits)
        raise KeyboardInterrupt

    for call in (lambda: run(coordinator, 0), coordinator.rest, coordinator.close):
        if call == coordinator.rest and lock == "callers":
            continue  # it does not take it
        with monkeypatch.context() as amid, pytest.raises(KeyboardInterrupt):  # noqa: PT012  # undone before the next
            amid.setattr(taken, "take", interrupted)
            call()
        assert not taken.is_mine
    run(coordinator, 0)
    coordinator.close()


@pytest.mark.parametrize("call", ["run", "rest", "close"])
def test_one_interrupt_leaves_no_lock_taken_whichever_call_it_comes_in(call: str) -> None:
    """CPython looks for signals as a function in Python is entered. The traceback, which holds the frames, is alive
    while the locks are tried."""
    files = {each.__file__ for each in (coordinator_module, commits, performer, resting, turns)}

    def interrupted(at: int) -> bool:
        """Run a batch and ``call``, interrupted in its ``at``-th function. Return whether there were so many."""
        coordinator = World().coordinator("a", commits_at_once=1, rest_interval_s=None)
        calls = {"run": lambda: run(coordinator, 1), "rest": coordinator.rest, "close": coordinator.close}
        run(coordinator, 0)
        left = itertools.count(at, -1)

        def trace(frame: FrameType, _event: str, _argument: object) -> None:
            callers = {each.f_code.co_filename for each in (frame, frame.f_back) if each}
            if callers & files and next(left) == 0:
                raise KeyboardInterrupt

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            calls[call]()
        except KeyboardInterrupt:
            sys.settrace(before)
            free: list[bool] = []
            locks = coordinator._turns.callers, coordinator._turns.batch_or_rest
            other = threading.Thread(target=lambda: free.extend(lock.take(waits=False) for lock in locks))
            other.start()
            other.join()
            assert free == [True, True], f"a lock is taken after an interrupt in function {at} of {call}"
            return True
        finally:
            sys.settrace(before)
        return False

    assert next(at for at in itertools.count() if not interrupted(at)) > 0
