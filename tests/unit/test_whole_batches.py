"""A sink that makes whole batches visible at once is asked once per batch, and its batch is whole or absent."""

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import twopc
from tests.support.observing import Killed, Moments, observing
from tests.support.phase_one import writes
from twopc import Committable, Coordinator
from twopc.errors import ConfigurationError, Retriable, TransactionLost
from twopc.events import Event, TransactionCommitted
from twopc.phases import Phase
from twopc.testing import MemorySink, MemoryTableSink, MemoryTarget


class Table(MemoryTableSink):
    """Notes each call of ``commit_batch``, and raises what a test has put into ``raises`` first."""

    may_time_out = True

    def __init__(self, target: MemoryTarget, asked: list[tuple[int, int]], raises: list[BaseException]) -> None:
        super().__init__(target)
        self._asked, self._raises = asked, raises

    def commit_batch(self, batch_id: int, committables: Sequence[Committable]) -> None:
        self._asked.append((batch_id, len(committables)))
        if self._raises:
            raise self._raises.pop()
        super().commit_batch(batch_id, committables)


class World(Moments):
    """A table, a target that commits transaction by transaction, and a log; they outlive coordinators."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.targets = {"rows": MemoryTarget(), "table": MemoryTarget()}
        self.log = f"memory://{uuid.uuid4().hex}"
        self.copies = folder / "copies"
        self.asked: list[tuple[int, int]] = []
        self.raises: list[BaseException] = []
        self.committed: list[str] = []

    def run(self, batch_id: int, partitions: int = 2, copies: bool = False) -> None:
        """One batch, by a coordinator that has just started."""
        table = Table(self.targets["table"], self.asked, self.raises)
        sinks = {"rows": MemorySink(self.targets["rows"]), "table": table}
        url = self.copies.as_uri() if copies else None
        coordinator = Coordinator(sinks, self.log, owner="query", replay_copies=url, rest_interval_s=None)
        phase_one = writes(sinks, *({"value": [f"{batch_id}-{partition}"]} for partition in range(partitions)))
        coordinator.run(batch_id, phase_one)
        coordinator.close()

    def visible(self, name: str) -> list[str]:
        return [record["value"] for record in self.targets[name].visible]

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        super().twopc_event(event)
        if isinstance(event, TransactionCommitted) and event.sink == "table":
            self.committed.append(event.committable.transaction_id)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with observing(World(tmp_path)) as world:
        yield world


def test_it_is_asked_once_per_batch_and_every_transaction_is_reported(world: World) -> None:
    world.run(0)
    world.run(1, partitions=3)
    assert world.asked == [(0, 2), (1, 3)]
    assert len(set(world.committed)) == 5
    assert world.visible("table") == world.visible("rows") == ["0-0", "0-1", "1-0", "1-1", "1-2"]


def test_it_is_not_asked_for_a_batch_without_transactions(world: World) -> None:
    world.run(0, partitions=0)
    assert world.asked == []


def test_a_batch_that_could_not_be_answered_is_asked_for_again_as_a_whole(world: World) -> None:
    world.raises.append(Retriable("the catalog is away"))
    world.run(0)
    assert world.asked == [(0, 2)] * 2
    assert world.visible("table") == ["0-0", "0-1"]


def test_a_decided_batch_is_committed_as_a_whole_by_the_next_incarnation(world: World) -> None:
    world.raises.append(Killed())
    with pytest.raises(Killed):
        world.run(0)
    assert world.visible("table") == []
    world.run(1)
    assert world.asked == [(0, 2), (0, 2), (1, 2)]
    assert world.visible("table") == ["0-0", "0-1", "1-0", "1-1"]


def test_a_loss_of_one_transaction_stops_its_batch_and_no_other_sinks(world: World) -> None:
    world.at[Phase.COMMITTING] = world.targets["table"].open.popitem
    with pytest.raises(TransactionLost) as caught:
        world.run(0)
    assert (caught.value.sink, caught.value.batch_id, caught.value.transaction_id) == ("table", 0, None)
    assert world.visible("table") == []
    assert world.visible("rows") == ["0-0", "0-1"]


def test_a_loss_of_one_transaction_has_the_whole_batch_written_again_from_its_copies(world: World) -> None:
    world.at[Phase.COMMITTING] = world.targets["table"].open.popitem
    world.run(0, copies=True)
    assert world.asked == [(0, 2)] * 2
    assert world.visible("table") == ["0-0", "0-1"]
    assert world.targets["table"].open == {}


def test_a_sink_that_would_never_be_asked_for_its_batches_is_refused(world: World) -> None:
    class NotDeclared(MemorySink):
        commit_batch = Table.commit_batch

    with pytest.raises(ConfigurationError, match="sink 'table' has commit_batch: it must subclass WholeBatchSink"):
        Coordinator({"table": NotDeclared(MemoryTarget())}, world.log, owner="query")
