"""What a coordinator does between two batches, and when its process ends."""

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.incarnations import log_of
from tests.support.raising import raising
from tests.unit.test_coordinator import World, never, run, sink
from twopc import Participant, Round
from twopc import resting as resting_module
from twopc.errors import Fenced, InDoubt, Retriable
from twopc.events import CallRetried, Event
from twopc.log import notices
from twopc.log.commit_log import read_tail
from twopc.log.store import open_store
from twopc.phases import Phase


@pytest.fixture
def world() -> World:
    return World()


def kinds(world: World) -> list[str]:
    newest = world.newest()
    return [newest.kind, *(str(decision.batch_id) for decision in newest.unresolved)]


def begin_late(coordinator: Any, batch_id: int) -> None:
    """An attempt that was lost, and begins after its batch is through."""
    import pyarrow as pa

    Participant(coordinator._sinks, Round(log_of(coordinator).incarnation, batch_id), partition=0, serial=9).write(
        "a", pa.record_batch({"value": ["late"]})
    )


def test_a_rest_records_that_everything_decided_is_committed_without_the_next_decision(world: World) -> None:
    coordinator = world.ran(0)
    assert kinds(world) == ["decide", "0"]
    coordinator.rest()
    assert kinds(world) == ["complete"]
    coordinator.rest()
    assert len(world.log.slots()) == 3  # open, decide, complete: a second rest has nothing to say
    run(coordinator, 1)
    assert world.visible("a") == ["0-0", "0-1", "1-0", "1-1"]


def test_a_rest_ends_what_a_late_attempt_began_after_the_last_sweep(world: World) -> None:
    coordinator = world.ran(0)
    begin_late(coordinator, 0)
    assert world.open()
    coordinator.rest()
    assert world.open() == []
    assert world.visible("a") == ["0-0", "0-1"]


def test_a_rest_before_the_first_batch_and_after_a_stop_does_nothing(world: World) -> None:
    coordinator = world.coordinator()
    coordinator.rest()
    assert world.log.slots() == []
    run(coordinator, 0)
    coordinator.close()
    coordinator.rest()
    assert kinds(world) == ["close"]


def test_a_rest_while_a_batch_runs_does_nothing(world: World) -> None:
    coordinator = world.ran(0)
    sink(coordinator, "a").during["seal"] = coordinator.rest
    run(coordinator, 1)
    assert world.visible("a") == ["0-0", "0-1", "1-0", "1-1"]
    assert kinds(world) == ["decide", "1"]


def test_a_batch_waits_for_a_rest_that_is_under_way(world: World) -> None:
    coordinator = world.ran(0)
    resting, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        if threading.current_thread().name == "rest":
            resting.set()
            assert go_on.wait(10)

    sink(coordinator, "a").during["recover"] = slowly
    rest = threading.Thread(target=coordinator.rest, name="rest")
    rest.start()
    assert resting.wait(10)
    batch = threading.Thread(target=run, args=(coordinator, 1))
    batch.start()
    batch.join(0.05)
    assert world.visible("a") == ["0-0", "0-1"]
    go_on.set()
    batch.join(10)
    rest.join(10)
    assert world.visible("a") == ["0-0", "0-1", "1-0", "1-1"]


def test_a_rest_that_gets_no_answer_asks_once_and_leaves_the_coordinator_as_it_is(world: World) -> None:
    coordinator = world.ran(0)
    sink(coordinator, "a").during["recover"] = raising(Retriable("no broker"))
    coordinator.rest()
    assert coordinator.phase is Phase.IDLE
    sink(coordinator, "a").during.clear()
    run(coordinator, 1)
    newest = world.newest()
    assert newest.incarnation == 1


def test_rests_that_get_no_answer_for_a_minute_are_for_an_operator_until_one_succeeds(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = world.ran(0)
    sink(coordinator, "a").during["recover"] = raising(Retriable("no broker"))
    now_s = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0], perf_counter=time.perf_counter)
    monkeypatch.setattr("twopc.performer.time", clock)
    coordinator.rest()
    assert [record.levelname for record in caplog.records if "between batches" in record.message] == ["WARNING"]
    now_s[0] += 61
    coordinator.rest()
    assert [record.levelname for record in caplog.records if "between batches" in record.message][-1] == "ERROR"
    newest = world.newest()
    notice = notices.read(world.log, newest)
    assert notice
    assert (notice.what, notice.reason, notice.waited_s) == ("rest between batches", "no broker", 61)
    sink(coordinator, "a").during.clear()
    coordinator.rest()
    assert notices.read(world.log, newest) is None


def test_a_batch_ends_a_row_of_rests_that_get_no_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = world.ran(0, rest_interval_s=3600)
    now_s = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0], perf_counter=time.perf_counter)
    monkeypatch.setattr("twopc.performer.time", clock)
    told: list[Event] = []
    monkeypatch.setattr("twopc.performer.notify", told.append)

    def failing_rest() -> tuple[int, float, float]:
        sink(coordinator, "a").during["recover"] = raising(Retriable("no broker"))
        coordinator.rest()
        sink(coordinator, "a").during.clear()
        event = told[-1]
        assert isinstance(event, CallRetried)
        return event.attempt, event.waited_s, event.wait_s

    assert failing_rest() == (1, 0, 3600)
    now_s[0] += 40
    assert failing_rest() == (2, 40, 3600)
    run(coordinator, 1)
    now_s[0] += 40
    assert failing_rest() == (1, 0, 3600)


def test_who_is_fenced_while_it_rests_does_not_open_again_but_learns_it_with_the_next_batch(world: World) -> None:
    coordinator = world.ran(0)
    newer = world.coordinator()
    newer.recover()
    for _ in range(2):
        with pytest.raises(Fenced):
            coordinator.rest()
    with pytest.raises(Fenced):
        run(coordinator, 1)
    run(newer, 1)


@pytest.mark.parametrize("is_complete", [False, True])
def test_who_is_fenced_rests_no_more_and_sweeps_nothing(world: World, is_complete: bool) -> None:
    """A query that is started again in the same process leaves its older coordinator behind."""
    coordinator = world.ran(0)
    if is_complete:
        coordinator.rest()
    resting = coordinator._resting
    assert resting
    assert resting._thread
    world.coordinator().recover()
    sink(coordinator, "a").during["recover"] = raising(AssertionError("it was asked"))
    resting.rest()
    resting._busy.set()
    resting._thread.join(10)
    assert not resting._thread.is_alive()


def test_who_was_fenced_and_has_recovered_rests_again(world: World) -> None:
    coordinator = world.ran(0, rest_interval_s=0.01)
    resting = coordinator._resting
    assert resting
    world.coordinator().recover()
    resting.rest()
    with pytest.raises(Fenced):
        run(coordinator, 1)
    assert resting._thread
    resting._thread.join(10)
    rested = threading.Event()
    sink(coordinator, "a").during["abort"] = rested.set
    run(coordinator, 1)
    begin_late(coordinator, 1)
    assert rested.wait(10)


def test_a_forked_child_does_not_rest_in_its_parents_name(world: World) -> None:
    coordinator = world.ran(0)
    child = os.fork()
    if child == 0:
        os._exit(len(resting_module._resting))
    assert os.waitpid(child, 0)[1] == 0
    assert coordinator._resting in resting_module._resting


def test_a_rest_that_can_not_read_the_log_opens_it_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an older driver would fence the newer one."""
    coordinator = world.ran(0)
    coordinator.rest()
    with monkeypatch.context() as away:
        away.setattr(type(world.log), "slots", raising(OSError("no store")))
        coordinator.rest()
    assert coordinator.phase is Phase.IDLE


def test_a_rest_whose_entry_is_in_doubt_is_followed_by_a_recovery(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = world.ran(0)

    with monkeypatch.context() as context:
        context.setattr("twopc.log.steps.append", raising(InDoubt("no answer")))
        with pytest.raises(InDoubt):
            coordinator.rest()
    assert coordinator.phase is Phase.CLOSED
    run(coordinator, 1)
    assert world.visible("a") == ["0-0", "0-1", "1-0", "1-1"]


def test_a_coordinator_rests_by_itself(world: World) -> None:
    coordinator = world.coordinator(rest_interval_s=0.01)
    rested = threading.Event()
    run(coordinator, 0)
    begin_late(coordinator, 0)
    sink(coordinator, "a").during["abort"] = rested.set
    assert rested.wait(10)
    assert coordinator._turns.batch_or_rest.take()  # the rest has ended
    assert kinds(world) == ["complete"]


def test_a_coordinator_that_nobody_has_any_more_stops_resting(world: World) -> None:
    coordinator = world.ran(0, rest_interval_s=0.01)
    assert coordinator._resting
    thread, gone = coordinator._resting._thread, weakref.ref(coordinator)
    assert thread
    del coordinator
    while gone() is not None:
        gc.collect()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.long
@pytest.mark.parametrize("ends_by", ["", "raise SystemExit(3)", "raise RuntimeError"])
def test_a_process_that_ends_records_that_its_last_batch_is_complete(tmp_path: Path, ends_by: str) -> None:
    program = (
        "from tests.unit.test_coordinator import World, run\n"
        "from twopc.log.store import open_store\n"
        f"world = World(); world.log = open_store({str(tmp_path / 'log')!r})\n"
        f"coordinator = world.coordinator(); run(coordinator, 0)\n{ends_by}"
    )
    subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, timeout=60)
    newest = read_tail(open_store(str(tmp_path / "log")))
    assert newest
    assert (newest[1].kind, newest[1].unresolved) == ("complete", ())


def test_a_batch_that_is_known_to_be_complete_is_not_asked_about_at_the_next_start(world: World) -> None:
    coordinator = world.ran(0)
    coordinator.rest()
    again = world.coordinator()
    sink(again, "a").during["commit"] = raising(AssertionError("it was asked"))
    again.recover()
    assert again.run(0, never).already_decided
