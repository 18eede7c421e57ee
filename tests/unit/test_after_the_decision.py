"""What an error means after the decision: it is no refusal of the batch, and a fenced coordinator commits nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.raising import raising
from tests.unit.test_coordinator import PARTITIONS, Store, World, killed_before_the_commits, never, run, sink
from twopc import Coordinator
from twopc.errors import ConfigurationError, Fenced, OperatorRequired, Refused, Retriable, RoundAborted

REFUSALS = [Refused("no right"), ConfigurationError("no table"), RoundAborted("rolled back")]


@pytest.fixture
def world() -> World:
    return World()


def ended(call: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception, match=r"no right|no table|rolled back") as raised:
        call()
    return raised.value


@pytest.mark.parametrize("call", ["commit", "complete", "announce", "recover"])
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: type(error).__name__)
@pytest.mark.advice("is decided, and can't be finished now")
def test_no_call_after_the_decision_refuses_the_batch(world: World, call: str, refusal: Exception) -> None:
    coordinator = world.coordinator()
    coordinator.recover()
    sink(coordinator, "b").during[call] = raising(refusal)
    stopped = ended(lambda: run(coordinator, 0))
    assert type(stopped) is OperatorRequired
    assert "batch 0 is decided, and can't be finished now" in str(stopped)
    assert "Correct that and start again: the next start goes on with it." in str(stopped)
    sink(coordinator, "b").during.clear()  # what it advises
    assert coordinator.run(0, never).already_decided
    assert world.visible("a") == world.visible("b") == ["0-0", "0-1"]


@pytest.mark.parametrize("call", ["open", "commit", "complete", "announce"])
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: type(error).__name__)
def test_no_call_of_a_recovery_refuses_a_batch_that_is_decided(world: World, call: str, refusal: Exception) -> None:
    killed_before_the_commits(world)
    coordinator = world.coordinator()
    sink(coordinator, "b").during[call] = raising(refusal)
    assert type(ended(coordinator.recover)) is OperatorRequired
    assert coordinator.in_doubt == (0,)


def test_a_sink_without_a_part_of_the_batch_does_not_refuse_it_either(world: World) -> None:
    killed_before_the_commits(world)
    coordinator = world.coordinator("abc")
    sink(coordinator, "c").during["open"] = raising(Refused("no right"))
    assert type(ended(coordinator.recover)) is OperatorRequired
    assert world.visible("a") == world.visible("b") == ["0-0", "0-1"]


def test_a_log_that_may_not_be_read_after_the_decision_does_not_refuse_the_batch(world: World) -> None:
    store = Store(world.log)
    coordinator = world.coordinator(log=store)

    def lost() -> None:
        store.during["read"] = raising(ConfigurationError("no right to read the log"))
        raise OSError("no right")

    sink(coordinator, "a").during["commit"] = lost  # the coordinator looks at the log
    assert not isinstance(ended(lambda: run(coordinator, 0)), Refused)


def committed(coordinator: Coordinator, name: str) -> list[str]:
    """Return a list to which each commit that the coordinator asks a sink for adds an item."""
    asked = list[str]()
    sink(coordinator, name).during["commit"] = lambda: asked.append(name)
    return asked


def newer(world: World) -> Coordinator:
    coordinator = world.coordinator()
    coordinator.recover()
    return coordinator


def test_who_is_fenced_while_a_sink_is_away_at_its_recovery_commits_nothing_more(world: World) -> None:
    killed_before_the_commits(world)
    older = world.coordinator()
    asked = committed(older, "b")
    answers: list[Callable[[], Any]] = [lambda: newer(world), raising(Retriable("away")), raising(Retriable("away"))]
    sink(older, "b").during["open"] = lambda: answers.pop()() if answers else None
    with pytest.raises(Fenced):
        older.recover()
    assert (answers, asked) == ([], [])


def in_doubt(world: World) -> Coordinator:
    """Return a coordinator that has stopped amid the recovery of batch 0, as a command of an operator has."""
    killed_before_the_commits(world)
    coordinator = world.coordinator()
    sink(coordinator, "b").during["commit"] = raising(OperatorRequired("no right to commit"))
    with pytest.raises(OperatorRequired):
        coordinator.recover()
    return coordinator


def test_who_was_fenced_before_an_operator_looks_for_losses_asks_for_no_commit(world: World) -> None:
    older = in_doubt(world)
    newer(world)
    asked = committed(older, "b")
    with pytest.raises(Fenced):
        older.lost(0)
    assert asked == []


def test_who_is_fenced_while_an_operator_looks_for_losses_calls_nothing_lost(world: World) -> None:
    older = in_doubt(world)

    def overtaken() -> None:
        newer(world)
        raise OperatorRequired("no right to commit")

    sink(older, "b").during["commit"] = overtaken
    with pytest.raises(Fenced):
        older.lost(0)
    sink(older, "b").during["commit"] = raising(OperatorRequired("no right to commit"))


def test_what_an_operator_looks_for_is_told_while_no_newer_coordinator_has_opened(world: World) -> None:
    assert len(in_doubt(world).lost(0)) == PARTITIONS
