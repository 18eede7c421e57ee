"""Phase two commits many transactions at once where a sink can, and waits for no sink because of another."""

import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pytest

from tests.support.observing import hearing
from tests.support.phase_one import writes
from tests.support.raising import raising
from twopc import Committable, Coordinator, TwoPhaseCommitSink, threads
from twopc.errors import Retriable
from twopc.events import TransactionCommitted
from twopc.testing import MemorySink, MemoryTarget

TRANSACTIONS = 4
TIMEOUT_S = 30.0


class Sink(MemorySink):
    """A sink that commits at once what ``at_once`` returns, given its transactions, and notes every single commit."""

    def __init__(self, at_once: Callable[[Sequence[Committable]], Sequence[Committable]]) -> None:
        super().__init__(MemoryTarget())
        self._at_once = at_once
        self.one_by_one: list[str] = []

    def commit_many(self, committables: Sequence[Committable]) -> Collection[str]:
        taken = self._at_once(committables)
        for committable in taken:
            super().commit(committable)
        return [committable.transaction_id for committable in taken]

    def commit(self, committable: Committable) -> None:
        self.one_by_one.append(committable.transaction_id)
        super().commit(committable)


class Careful(Sink):
    """A subclass that does more in ``commit``, and knows nothing of ``commit_many``."""

    def commit(self, committable: Committable) -> None:
        super().commit(committable)


class Waiting(MemorySink):
    """A sink whose target system is away until ``is_back`` is set."""

    def __init__(self, is_back: threading.Event) -> None:
        super().__init__(MemoryTarget())
        self._is_back = is_back

    def commit(self, committable: Committable) -> None:
        if not self._is_back.is_set():
            raise Retriable("it is away")
        super().commit(committable)


class Announcing(MemorySink):
    """A sink that sets an event with its last commit."""

    def __init__(self, is_done: threading.Event) -> None:
        super().__init__(MemoryTarget())
        self._is_done, self._left = is_done, TRANSACTIONS

    def commit(self, committable: Committable) -> None:
        super().commit(committable)
        self._left -= 1
        if not self._left:
            self._is_done.set()


@pytest.fixture
def committed() -> Iterator[list[str]]:
    """The transactions that observers are told of."""
    heard: list[str] = []
    with hearing(lambda event: heard.append(event.committable.transaction_id), TransactionCommitted):
        yield heard


def run(threads: int = 16, **sinks: TwoPhaseCommitSink[Any]) -> None:
    """One batch with ``TRANSACTIONS`` transactions in each sink."""
    log = f"memory://{uuid.uuid4().hex}"
    with Coordinator(sinks, log, owner="q", commits_at_once=threads, rest_interval_s=None) as coordinator:
        coordinator.run(0, writes(sinks, *({"value": [str(partition)]} for partition in range(TRANSACTIONS))))


def values(sink: MemorySink) -> list[str]:
    return sorted(record["value"] for record in sink.target.visible)


@pytest.mark.parametrize("threads", [1, 16])
def test_what_a_sink_has_committed_at_once_is_reported_and_only_the_rest_is_committed_one_by_one(
    threads: int, committed: list[str]
) -> None:
    sink = Sink(lambda due: due[:3])
    run(threads, a=sink)
    assert len(sink.one_by_one) == 1
    assert len(set(committed)) == len(committed) == TRANSACTIONS
    assert values(sink) == ["0", "1", "2", "3"]


def test_when_a_commit_at_once_fails_every_transaction_is_committed_one_by_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Sink(raising(Retriable("no answer")))
    run(a=sink)
    assert len(sink.one_by_one) == TRANSACTIONS
    assert values(sink) == ["0", "1", "2", "3"]
    assert "could not commit its 4 transactions at once" in caplog.text


def test_a_subclass_that_overrides_commit_alone_has_it_called_for_every_transaction() -> None:
    sink = Careful(lambda due: due)
    run(a=sink)
    assert len(sink.one_by_one) == TRANSACTIONS


def test_a_sink_is_committed_while_the_target_system_of_another_is_away() -> None:
    is_done = threading.Event()
    running = threading.Thread(target=run, args=(2,), kwargs={"a": Waiting(is_done), "b": Announcing(is_done)})
    running.start()
    try:
        assert is_done.wait(TIMEOUT_S)
    finally:
        is_done.set()
        running.join(TIMEOUT_S)
    assert not running.is_alive()


def test_an_interpreter_that_ends_and_starts_no_threads_commits_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    start = raising(RuntimeError("can't create new thread at interpreter shutdown"))
    monkeypatch.setattr(threading.Thread, "start", start)
    one, other = Sink(lambda due: due), Sink(lambda _: ())
    run(a=one, b=other)
    assert values(one) == values(other) == ["0", "1", "2", "3"]


class Blocked(MemorySink):
    """A sink whose target system answers nothing, not even that it can't, until ``is_back`` is set."""

    def __init__(self, is_back: threading.Event, ended: list[str]) -> None:
        super().__init__(MemoryTarget())
        self._is_back, self._ended = is_back, ended

    def commit(self, committable: Committable) -> None:
        assert self._is_back.wait(TIMEOUT_S)
        super().commit(committable)
        self._ended.append("a commit")

    def open(self) -> None:
        self._ended.append("an opening")


def test_commits_that_two_interrupts_left_running_end_before_the_next_incarnation_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_back, ended = threading.Event(), list[str]()
    sink = Blocked(is_back, ended)
    coordinator = Coordinator({"a": sink}, f"memory://{uuid.uuid4().hex}", owner="q", rest_interval_s=None)
    with monkeypatch.context() as twice:
        twice.setattr(threads, "join", raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            coordinator.run(0, writes({"a": sink}, *({"value": [str(partition)]} for partition in range(2))))
    ended.clear()
    threading.Timer(0.1, is_back.set).start()
    coordinator.recover()
    assert ended[:3] == ["a commit", "a commit", "an opening"]
    assert values(sink) == ["0", "1"]
