"""Recovery by an operator's command: what is committed before the operator has said what to give up."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.phase_one import writes
from twopc import Committable, Coordinator, Round, Vote
from twopc.cli.recovery import Recovery
from twopc.errors import Fenced, OperatorRequired, Refused, TransactionLost
from twopc.log.history import read_history
from twopc.testing import MemorySink, MemoryTarget


class Loses(MemorySink):
    """Its target system has rolled back everything that is to be committed."""

    def commit(self, committable: Committable) -> None:
        self.target.open.pop(committable.transaction_id, None)
        super().commit(committable)


class Refuses(MemorySink):
    def commit(self, committable: Committable) -> None:
        raise Refused(f"no right to commit {committable.transaction_id}")


class World:
    """A query that has decided batch 0 of a sink of data and one of progress, and has stopped."""

    def __init__(self, log: Path) -> None:
        self.log = str(log)
        self.data, self.progress = MemoryTarget(), MemoryTarget()
        with pytest.raises(OSError, match="killed"), self.coordinator(Killed(self.data)) as coordinator:
            coordinator.run(0, self.phase_one)

    def sinks(self, data: MemorySink, progress: MemorySink | None = None) -> dict[str, MemorySink]:
        last = progress or MemorySink(self.progress)
        last.commits_last = True
        return {"data": data, "progress": last}

    def coordinator(self, data: MemorySink) -> Coordinator:
        self.written = self.sinks(data)
        return Coordinator(self.written, self.log, owner="query", rest_interval_s=None)

    def phase_one(self, round: Round) -> Iterator[Vote]:
        return writes(self.written, {"n": [1, 2, 3]})(round)

    def stuck(self, data: MemorySink, progress: MemorySink | None = None) -> Recovery:
        recovery = Recovery(read_history(self.log), self.sinks(data, progress), None)
        with pytest.raises(OperatorRequired):
            recovery.run()
        return recovery


class Killed(MemorySink):
    def commit(self, committable: Committable) -> None:
        raise OSError("killed")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "log")


@pytest.mark.advice("TransactionLost")
def test_what_commits_last_waits_until_the_operator_has_given_up_what_is_lost(world: World) -> None:
    recovery = world.stuck(Loses(world.data))
    lost = recovery.lost(0, even_if_repairable=False)
    assert [each.sink for each in lost] == ["data"]
    assert world.progress.visible == []
    recovery.give_up(0, lost, "ann")
    recovery.run()
    assert (len(world.data.visible), len(world.progress.visible)) == (0, 3)


def test_what_commits_last_can_be_lost_and_given_up(world: World) -> None:
    recovery = world.stuck(MemorySink(world.data), Loses(world.progress))
    [lost] = recovery.lost(0, even_if_repairable=False)
    assert (lost.sink, type(lost.error)) == ("progress", TransactionLost)
    recovery.give_up(0, [lost], "ann")
    recovery.run()
    assert (len(world.data.visible), len(world.progress.visible)) == (3, 0)


def test_nothing_is_called_lost_after_a_newer_driver_has_opened_the_log(world: World) -> None:
    recovery = world.stuck(Loses(world.data))
    with pytest.raises(TransactionLost):
        world.coordinator(MemorySink(world.data)).recover()
    with pytest.raises(Fenced):
        recovery.lost(0, even_if_repairable=False)


def test_a_commit_that_is_refused_can_be_repaired_and_is_given_up_only_if_the_operator_insists(world: World) -> None:
    recovery = world.stuck(Refuses(world.data))
    with pytest.raises(OperatorRequired, match="no right to commit"):
        recovery.lost(0, even_if_repairable=False)
    [lost] = recovery.lost(0, even_if_repairable=True)
    assert lost.sink == "data"
