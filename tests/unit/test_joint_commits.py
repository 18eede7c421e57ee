"""Sinks of one group are committed together first. Whatever becomes of that, each sink's own commit decides."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.observing import Killed
from tests.support.raising import raising
from tests.support.waiting import until
from twopc import Committable, Coordinator, Participant, Round, TwoPhaseCommitSink
from twopc.commits import _Once
from twopc.errors import OperatorRequired, OutcomeUnknown, Retriable, TransactionLost
from twopc.participant import Vote
from twopc.testing import MemorySink, MemoryTableSink, MemoryTarget

if TYPE_CHECKING:
    from typing_extensions import Self

NAMES = ("items", "orders", "returns")
TOGETHER = "together"


class World:
    """A target system with three tables and a topic, and a log; they outlive coordinators.

    Attributes:
        calls: the calls of phase two, in order: ``TOGETHER`` and the sinks of a joint commit, or one sink.
        joint: what becomes of a joint commit, given the call that makes its sinks' batch visible.
        raises: sink → what its next commit raises.
        groups: sink → its group.
    """

    def __init__(self) -> None:
        self.tables, self.topic = MemoryTarget(), MemoryTarget()
        self.log = f"memory://{uuid.uuid4().hex}"
        self.calls: list[tuple[str, ...]] = []
        self.joint: Callable[[Callable[[], None]], None] = lambda commit: commit()
        self.raises: dict[str, BaseException] = {}
        self.groups: dict[str, Hashable] = dict.fromkeys(NAMES, "a catalog")

    def run(self, batch_id: int, written: Sequence[str] = NAMES, threads: int = 16) -> None:
        """One batch, by a coordinator that has just started."""
        sinks: dict[str, TwoPhaseCommitSink[Any]] = {name: Table(self) for name in NAMES}
        sinks["topic"] = MemorySink(self.topic)

        def phase_one(round: Round) -> Iterator[Vote]:
            with Participant(sinks, round, partition=0) as participant:
                for name in (*written, "topic"):
                    participant.write(name, pa.record_batch({"value": [f"{name} {batch_id}"]}))
                yield participant.pre_commit()

        with Coordinator(sinks, self.log, owner="q", commits_at_once=threads, rest_interval_s=None) as coordinator:
            coordinator.run(batch_id, phase_one)

    @property
    def visible(self) -> list[str]:
        """What a reader of the tables sees."""
        return sorted(record["value"] for record in self.tables.visible)

    def together(self) -> list[list[str]]:
        """The sinks of each joint commit."""
        return [sinks for first, *sinks in self.calls if first == TOGETHER]


class Table(MemoryTableSink):
    def __init__(self, world: World) -> None:
        super().__init__(world.tables)
        self.world = world

    @property
    def name(self) -> str:
        return self.transactional_ids.sink

    @property
    def commit_group(self) -> Hashable:
        return self.world.groups[self.name]

    @classmethod
    def commit_together(cls, batch_id: int, due: Mapping[Self, Sequence[Committable]]) -> None:
        world = next(iter(due)).world
        world.calls.append((TOGETHER, *(sink.name for sink in due)))
        together = super().commit_together
        world.joint(lambda: together(batch_id, due))

    def commit_batch(self, batch_id: int, committables: Sequence[Committable]) -> None:
        self.world.calls.append((self.name,))
        if self.name in self.world.raises:
            raise self.world.raises.pop(self.name)
        super().commit_batch(batch_id, committables)


@pytest.fixture
def world() -> World:
    return World()


def rows(*batches: int) -> list[str]:
    return sorted(f"{name} {batch_id}" for name in NAMES for batch_id in batches)


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_sinks_of_a_group_are_committed_together_once_and_before_each_of_them(threads: int, world: World) -> None:
    for batch_id in range(2):
        world.run(batch_id, threads=threads)
    first, second = world.calls[:4], world.calls[4:]
    for calls in (first, second):
        assert calls[0] == (TOGETHER, *NAMES)
        assert sorted(calls[1:]) == [(name,) for name in NAMES]
    assert world.visible == rows(0, 1)


def test_the_other_sinks_of_a_group_wait_for_the_joint_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take what it is about to make visible for missing, and ask for it themselves."""
    seen, begun, then = list[int](), list[object](), _Once.then

    def counted(once: _Once, commit: Callable[[], None]) -> None:
        begun.append(commit)
        then(once, commit)

    monkeypatch.setattr(_Once, "then", counted)

    def slow(commit: Callable[[], None]) -> None:
        until(lambda: len(begun) == len(NAMES))
        seen.append(len(world.calls))
        commit()

    world.joint = slow
    world.run(0)
    assert seen == [1]


def test_other_sinks_do_not_wait_for_the_joint_commit(world: World) -> None:
    seen: list[bool] = []

    def until_the_topic_has_its_record(commit: Callable[[], None]) -> None:
        until(lambda: bool(world.topic.visible))
        seen.append(True)
        commit()

    world.joint = until_the_topic_has_its_record
    world.run(0)
    assert seen == [True]


def test_a_sink_without_transactions_is_not_committed_with_the_others(world: World) -> None:
    world.run(0, written=NAMES[:2])
    world.run(1, written=NAMES[:1])
    assert world.together() == [[*NAMES[:2]]]


@pytest.mark.parametrize("groups", [(None, None, None), ("a", "b", "c"), ("a", None, None)])
def test_sinks_without_a_group_in_common_commit_alone(groups: Sequence[Hashable], world: World) -> None:
    world.groups = dict(zip(NAMES, groups, strict=True))
    world.run(0)
    assert world.together() == []
    assert world.visible == rows(0)


def test_sinks_of_two_classes_are_not_committed_together(world: World) -> None:
    class Other(Table):
        """Another kind of table, which happens to have the same group."""

    sinks: dict[str, TwoPhaseCommitSink[Any]] = {"items": Table(world), "orders": Other(world)}

    def phase_one(round: Round) -> Iterator[Vote]:
        with Participant(sinks, round, partition=0) as participant:
            for name in sinks:
                participant.write(name, pa.record_batch({"value": [name]}))
            yield participant.pre_commit()

    Coordinator(sinks, world.log, owner="q", rest_interval_s=None).run(0, phase_one)
    assert world.together() == []


@dataclass
class Unhashable(MemorySink):
    """A sink that is compared by its contents, as a dataclass is, can't be a key."""

    target: MemoryTarget
    _key: tuple[str, ...] = ()


def test_a_sink_that_is_committed_alone_need_not_be_hashable() -> None:
    sinks = {"rows": Unhashable(MemoryTarget())}

    def phase_one(round: Round) -> Iterator[Vote]:
        with Participant(sinks, round, partition=0) as participant:
            participant.write("rows", pa.record_batch({"value": ["a"]}))
            yield participant.pre_commit()

    Coordinator(sinks, f"memory://{uuid.uuid4().hex}", owner="q", rest_interval_s=None).run(0, phase_one)
    assert sinks["rows"].target.visible == [{"value": "a"}]


# What becomes of it. --------------------------------------------------------------------------------------------


def does_nothing(_: Callable[[], None]) -> None:
    """The request is lost."""


def loses_its_answer(commit: Callable[[], None]) -> None:
    commit()
    raise Retriable("no answer")


def happens_twice(commit: Callable[[], None]) -> None:
    commit()
    commit()


@pytest.mark.parametrize("joint", [does_nothing, loses_its_answer, happens_twice])
def test_the_batch_is_visible_once_whatever_becomes_of_the_joint_commit(
    joint: Callable[[Callable[[], None]], None], world: World
) -> None:
    world.joint = joint
    world.run(0)
    world.run(1)
    assert len(world.together()) == 2
    assert world.visible == rows(0, 1)


@pytest.mark.parametrize(
    "error", [Retriable("r"), TransactionLost("l"), OutcomeUnknown("u"), OperatorRequired("o"), ValueError("v")]
)
def test_no_error_of_a_joint_commit_is_believed(
    error: Exception, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.joint = raising(error)
    world.run(0)
    assert world.visible == rows(0)
    assert f"'items', 'orders', 'returns', which commit it one by one: {type(error).__name__}" in caplog.text


def test_a_joint_commit_that_comes_late_changes_nothing(world: World) -> None:
    late: list[Callable[[], None]] = []
    world.joint = late.append
    world.run(0)
    world.run(1)
    for commit in late:
        commit()
    assert world.visible == rows(0, 1)


def test_a_part_of_a_joint_commit_is_made_up_for_by_each_sinks_own(world: World) -> None:
    def partly(_: Callable[[], None]) -> None:
        [orders] = [name for name in world.tables.open if ".orders." in name]
        world.tables.visible.extend(world.tables.open.pop(orders))
        world.tables.batches[orders.partition(".orders.")[0] + ".orders."] = 0

    world.joint = partly
    world.run(0)
    assert world.visible == rows(0)


def test_a_call_without_an_answer_is_repeated_without_another_joint_commit(world: World) -> None:
    world.raises["orders"] = Retriable("the catalog is away")
    world.run(0)
    assert world.calls.count(("orders",)) == 2
    assert len(world.together()) == 1


def test_an_error_of_one_sink_names_that_sink_and_the_others_are_committed(world: World) -> None:
    world.raises["orders"] = OutcomeUnknown("another table has its name")
    world.joint = does_nothing
    with pytest.raises(OutcomeUnknown) as caught:
        world.run(0)
    assert caught.value.sink == "orders"
    assert world.visible == ["items 0", "returns 0"]


@pytest.mark.parametrize("happens", [True, False])
def test_recovery_after_a_kill_at_a_joint_commit_makes_the_batch_visible_once(happens: bool, world: World) -> None:
    def killed(commit: Callable[[], None]) -> None:
        if happens:
            commit()
        raise Killed

    world.joint = killed
    with pytest.raises(Killed):
        world.run(0, threads=1)
    assert world.visible == (rows(0) if happens else [])
    world.joint = lambda commit: commit()
    world.run(1)
    assert world.together() == [[*NAMES]] * 3  # the first one's was repeated by recovery
    assert world.visible == rows(0, 1)
