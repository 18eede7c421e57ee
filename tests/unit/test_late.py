"""A batch that a sink will refuse for its age is told of while it is written, and a batch in time is not."""

import logging
import threading
from typing import Any

import pyarrow as pa
import pytest

from tests.support.memory_log import MemoryLog
from twopc import Coordinator, Participant, Round, Vote
from twopc.events import CallRetried
from twopc.log import notices
from twopc.log.commit_log import read_tail
from twopc.log.notices import Notice, Notices
from twopc.performer import Performer
from twopc.testing import MemorySink, MemoryTarget


class Hurried(MemorySink):
    """Refuses batches that take longer than ``seals_within_s``."""

    def __init__(self, within_s: float | None) -> None:
        super().__init__(MemoryTarget())
        self.seals_within_s = within_s


class Log(MemoryLog):
    """Shows when a notice is posted."""

    def __init__(self) -> None:
        super().__init__()
        self.is_posted = threading.Event()

    def post(self, data: bytes) -> None:
        super().post(data)
        self.is_posted.set()


def notice(log: Log) -> Notice:
    newest = read_tail(log)
    assert newest
    found = notices.read(log, newest[1])
    assert found
    return found


def vote(sink: MemorySink, round: Round) -> Vote:
    with Participant({"orders": sink}, round, partition=0) as participant:
        participant.write("orders", pa.record_batch({"value": ["a"]}))
        return participant.pre_commit()


def test_an_operator_is_told_while_participants_still_write(caplog: pytest.LogCaptureFixture) -> None:
    sink, log, seen = Hurried(0.01), Log(), list[Notice]()

    def phase_one(round: Round) -> list[Vote]:
        assert log.is_posted.wait(30)
        seen.append(notice(log))
        return [vote(sink, round)]

    with Coordinator({"orders": sink}, log, owner="query", rest_interval_s=None) as coordinator:
        coordinator.run(0, phase_one)
    [told] = seen
    assert told.what == "batch 0 is being written"
    assert told.waited_s >= 0.01
    assert "sink 'orders' has 0 s for it" in told.reason
    assert "maxOffsetsPerTrigger" in told.reason
    assert log.posted() == b""  # it is withdrawn when they have written
    levels = [record.levelno for record in caplog.records if "is being written" in record.message]
    assert levels in ([logging.WARNING, logging.ERROR], [logging.ERROR])  # the thread may wake late


def test_a_notice_that_is_on_its_way_when_a_batch_ends_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query is stopped a second time while it waits for the thread that posts."""
    log, watchers, withdrawn = Log(), list[threading.Thread](), threading.Event()
    write, join = log.post, threading.Thread.join

    class Interrupted(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            watchers.append(self)
            raise KeyboardInterrupt

    def post(data: bytes) -> None:
        if b"being written" in data:
            log.is_posted.set()
            withdrawn.wait(0.1)  # it waits for the notice
            write(data)
        else:
            write(data)
            withdrawn.set()

    def phase_one(_: Round) -> list[Vote]:
        assert log.is_posted.wait(30)
        raise RuntimeError

    monkeypatch.setattr(log, "post", post)
    monkeypatch.setattr(threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        Coordinator({"orders": Hurried(0.01)}, log, owner="query", rest_interval_s=None).run(0, phase_one)
    [watcher] = watchers
    join(watcher, 30)
    assert b"being written" not in log.posted()


def test_a_commit_does_not_wait_for_the_notice_of_another_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    log, answered = Log(), threading.Event()
    with Coordinator({"orders": (sink := Hurried(None))}, log, owner="query", rest_interval_s=None) as coordinator:
        coordinator.run(0, lambda of: [vote(sink, of)])
    found, posts = read_tail(log), Notices(log)
    assert found
    event = CallRetried("a commit", 9, 5.0, "away", waited_s=61)

    def hang(_: bytes) -> None:
        log.is_posted.set()
        answered.wait(30)

    monkeypatch.setattr(log, "post", hang)
    first, second = (threading.Thread(target=posts.post, args=(found[1], event)) for _ in range(2))
    first.start()
    assert log.is_posted.wait(30)
    second.start()
    second.join(10)
    waits = second.is_alive()
    answered.set()
    first.join(30)
    second.join(30)
    assert not waits


def test_what_has_ended_before_its_notice_is_begun_gets_none() -> None:
    log, ended, told = Log(), threading.Event(), list[bytes]()

    def late(performer: Performer, *arguments: Any) -> None:
        arguments[-1].set()  # as where the batch ends just then, and the wait for this thread is interrupted
        intact(performer, *arguments)
        told.append(log.posted())
        ended.set()

    intact = Performer._late
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Performer, "_late", late)
        with Coordinator({"orders": (sink := Hurried(1e-9))}, log, owner="query", rest_interval_s=None) as coordinator:
            coordinator.run(0, lambda of: [vote(sink, of)] if ended.wait(30) else [])
    assert told == [b""]


@pytest.mark.parametrize("within_s", [None, 600.0])
def test_a_batch_in_time_leaves_neither_a_word_nor_a_thread(
    within_s: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    sink, log = Hurried(within_s), Log()
    with Coordinator({"orders": sink}, log, owner="query", rest_interval_s=None) as coordinator:
        coordinator.run(0, lambda of: [vote(sink, of)])
    assert "is being written" not in caplog.text
    assert not log.is_posted.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "twopc-late"]


@pytest.mark.parametrize(("commits_at_once", "began_s"), [(16, 0.0), (1, None)])
def test_a_batch_is_not_watched_if_it_is_written_already_or_the_caller_wants_no_threads(
    commits_at_once: int, began_s: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    sink, log = Hurried(1e-9), Log()
    with Coordinator(
        {"orders": sink}, log, owner="query", commits_at_once=commits_at_once, rest_interval_s=None
    ) as coordinator:
        coordinator.run(0, lambda of: [vote(sink, of)], began_s=began_s)
    assert "is being written" not in caplog.text
