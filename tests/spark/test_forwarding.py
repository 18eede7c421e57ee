"""Events of a file as observers of a driver get them, across its restarts. Without a session."""

import contextlib
import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import twopc
from tests.observers.test_events_file import AT, COMMITTED, DiskGone, batch
from tests.support.observing import observing
from tests.support.raising import raising
from tests.support.waiting import until
from twopc.errors import ConfigurationError
from twopc.events import BatchFailed, BatchFinished, Event
from twopc.observers._event_lines import encode
from twopc.observers._rotating_file import append
from twopc.observers.json_lines import MAX_BYTES, JsonLinesObserver
from twopc.observers.prometheus import PrometheusObserver
from twopc.spark import forward_events, forwarding

WAIT_S = 30.0


class Kept:
    """Keeps the events that it is given, with their times."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.times: list[object] = []

    @twopc.hookimpl
    def twopc_event(self, event: Event, at: object) -> None:
        self.events.append(event)
        self.times.append(at)

    @property
    def batches(self) -> list[int]:
        return [event.batch_id for event in self.events if isinstance(event, BatchFinished)]


def write(path: Path, *events: Event, at: datetime = AT, max_bytes: int = MAX_BYTES) -> None:
    """Write what an observer in another process would."""
    for event in events:
        append(path, encode([event], at), max_bytes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@pytest.fixture
def kept() -> Iterator[Kept]:
    with observing(Kept()) as observer:
        yield observer


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "POLL_INTERVAL_S", 0.01)


def test_observers_get_the_events_of_other_processes_with_their_times(path: Path, kept: Kept) -> None:
    with forward_events(path):
        write(path, batch(0), COMMITTED)
        until(lambda: len(kept.events) == 2)
        write(path, batch(1))
    assert kept.events == [batch(0), COMMITTED, batch(1)]
    assert kept.times == [AT] * 3


def test_what_is_in_the_file_when_the_forwarding_is_closed_is_reported(path: Path, kept: Kept) -> None:
    forwarder = forward_events(path)
    write(path, *map(batch, range(500)))
    forwarder.close()
    assert kept.batches == [*range(500)]
    forwarder.close()
    write(path, batch(500))
    assert kept.batches == [*range(500)]


def test_a_driver_that_is_started_again_goes_on_with_what_came_meanwhile(path: Path, kept: Kept) -> None:
    for number in range(4):
        at = AT + timedelta(seconds=number)
        write(path, COMMITTED, batch(number), at=at, max_bytes=1500)  # it is moved aside in between
        with forward_events(path):
            pass
    assert kept.batches == [*range(4)]
    assert kept.events.count(COMMITTED) >= 4  # again at each start


DRIVER = """
import os, sys, threading
import twopc
from twopc.events import BatchFinished
from twopc.spark import forward_events, forwarding

forwarding.POLL_INTERVAL_S = 0.01

class Observer:
    @twopc.hookimpl
    def twopc_event(self, event):
        if isinstance(event, BatchFinished):
            print(event.batch_id, flush=True)

twopc.register_observer(Observer())
forward_events(sys.argv[1])
sys.stdin.read()
os._exit(1)
"""


@pytest.mark.crash
def test_after_a_crash_only_what_has_been_committed_is_reported_again(path: Path, kept: Kept) -> None:
    write(path, COMMITTED, batch(0), max_bytes=1000)
    write(path, COMMITTED, batch(1), at=AT + timedelta(seconds=1), max_bytes=1000)
    assert path.with_name("events.jsonl.1").exists()
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    assert [driver.stdout.readline() for _ in range(2)] == [b"0\n", b"1\n"]
    position = path.with_name("events.jsonl.position")
    until(lambda: position.read_text() != "" and json.loads(position.read_text())["offset"] == path.stat().st_size)
    driver.communicate()
    write(path, batch(2))
    with forward_events(path):
        pass
    assert kept.events == [COMMITTED, COMMITTED, batch(2)]


def test_what_has_been_committed_is_reported_again_after_a_clean_end_too(path: Path, kept: Kept) -> None:
    """A receiver of lineage may have been away when the driver ended."""
    write(path, COMMITTED, batch(0))
    for _ in range(3):
        with forward_events(path):
            pass
    assert kept.events == [COMMITTED, batch(0), COMMITTED, COMMITTED]


def test_no_more_batches_are_reported_again_than_may_wait_for_a_receiver(
    path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "COMMITTED_AGAIN", 3)
    write(path, *[COMMITTED] * 10)
    with forward_events(path):
        pass
    with forward_events(path):
        pass
    assert kept.events == [COMMITTED] * 13


def test_no_counter_counts_a_batch_twice_across_rotations_and_queries(path: Path) -> None:
    registry = CollectorRegistry()
    with observing(PrometheusObserver(registry)), observing(Kept()) as kept, forward_events(path):
        for number in range(50):
            write(path, batch(number), replace(batch(number), owner="returns"), max_bytes=5_000)
            until(lambda: len(kept.batches) == 2 * (number + 1))  # noqa: B023  # called at once
    for owner in ("orders", "returns"):
        counted = registry.get_sample_value("twopc_batches_total", {"owner": owner, "already_decided": "false"})
        assert counted == 50
        assert registry.get_sample_value("twopc_records_total", {"owner": owner, "sink": "a"}) == 150
        finished_s = registry.get_sample_value("twopc_batch_finished_timestamp_seconds", {"owner": owner})
        assert finished_s == AT.timestamp()


def test_a_failed_run_is_counted_by_the_class_of_its_error(path: Path) -> None:
    registry = CollectorRegistry()
    with observing(PrometheusObserver(registry)), forward_events(path):
        write(path, BatchFailed(7, DiskGone("sda"), {}, "orders"))
    assert registry.get_sample_value("twopc_failed_batches_total", {"owner": "orders", "error": "DiskGone"}) == 1


HOLDER = """
import fcntl, sys
held = open(sys.argv[1], "w")
fcntl.lockf(held, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held_by_another_process(path: Path) -> Iterator[None]:
    """The position of the file at ``path``, as long as a driver that forwards it lives."""
    arguments = [sys.executable, "-c", HOLDER, str(path.with_name("events.jsonl.position"))]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
        holder.communicate()


def test_a_driver_waits_for_the_one_before_it_and_reports_nothing_twice(
    path: Path, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    write(path, batch(0))
    with held_by_another_process(path):
        forwarder = forward_events(path)
        until(lambda: "another process forwards the events" in caplog.text)
        assert kept.batches == []
    until(lambda: kept.batches == [0])
    forwarder.close()


FORKED = """
import os, sys, time
import twopc
from twopc.spark import forward_events, forwarding

twopc.register_observer(object())
forward_events(sys.argv[1])
deadline = time.monotonic() + 30
while not os.path.exists(sys.argv[1] + ".position") or os.path.getsize(sys.argv[1] + ".position") == 0:
    assert time.monotonic() < deadline
    time.sleep(0.01)
if os.fork() == 0:
    sys.stdin.read()
os._exit(0)
"""


@pytest.mark.long
def test_a_forked_child_of_a_driver_keeps_no_other_one_waiting(path: Path, kept: Kept) -> None:
    write(path, batch(0))
    with subprocess.Popen([sys.executable, "-c", FORKED, str(path)], stdin=subprocess.PIPE) as driver:
        assert driver.wait(WAIT_S) == 0
        write(path, batch(1))
        with forward_events(path):
            until(lambda: kept.batches == [1])
        assert driver.stdin is not None  # its end ends the child


@pytest.mark.parametrize("fails", ["lockf", "pread"])
def test_a_position_that_can_not_be_locked_or_read_keeps_no_event(
    path: Path, kept: Kept, fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail = raising(OSError(errno.ENOLCK, os.strerror(errno.ENOLCK)))
    write(path, batch(0))
    if fails == "lockf":
        monkeypatch.setattr(fcntl, "lockf", fail)
        with forward_events(path):
            until(lambda: kept.batches == [0])
        assert "can't be locked" in caplog.text
    else:
        monkeypatch.setattr(os, "pread", fail)
        with forwarding._SavedPosition(path) as saved:
            assert saved.read() is None


def test_a_process_without_threads_can_forward_the_events_later(
    path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError):
            forward_events(path)
    with forward_events(path):
        pass


def test_a_forwarding_that_still_waits_can_be_closed_and_leaves_the_events_to_the_next(
    path: Path, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    with held_by_another_process(path):
        forwarder = forward_events(path)
        until(lambda: "another process forwards the events" in caplog.text)
        write(path, batch(0))
        forwarder.close()
        assert "twopc-events" not in {thread.name for thread in threading.enumerate()}
        assert kept.batches == []
    assert "were not reported" not in caplog.text
    with forward_events(path):
        pass
    assert kept.batches == [0]


def test_the_same_file_is_forwarded_once_in_a_process(path: Path, kept: Kept) -> None:
    with forward_events(path):
        with pytest.raises(ConfigurationError, match="in this process already"):
            forward_events(f"file://{path}")
        write(path, batch(0))
    assert kept.batches == [0]
    with forward_events(path):
        pass
    assert kept.batches == [0]


def test_events_are_not_written_to_the_file_that_they_come_from(
    path: Path, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    other = path.with_name("other.jsonl")
    observers = JsonLinesObserver(path), JsonLinesObserver(other)
    with observing(observers[0]), observing(observers[1]), forward_events(path):
        write(path, batch(0))
        until(lambda: kept.batches == [0])
        for observer in observers:
            observer.close()
    assert len(path.read_bytes().splitlines()) == 1
    assert path.read_bytes() == other.read_bytes()
    assert "this process forwards the file's events" in caplog.text


def test_a_file_that_can_not_be_read_is_logged_once_and_read_when_it_can(
    path: Path, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    path.mkdir()
    with forward_events(path):
        until(lambda: "not a regular file" in caplog.text)
        path.rmdir()
        write(path, batch(0))
        until(lambda: kept.batches == [0])
        assert caplog.text.count("not a regular file") == 1
        path.unlink()
        path.mkdir()
        until(lambda: caplog.text.count("not a regular file") == 2)


def test_without_a_place_for_the_position_events_are_reported_all_the_same(
    path: Path, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    path.with_name("events.jsonl.position").mkdir()
    write(path, batch(0))
    with forward_events(path):
        until(lambda: kept.batches == [0])
    assert "a restarted driver reports all events again" in caplog.text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("events.jsonl", "must be the absolute path of a local file"),
        ("s3://bucket/events.jsonl", "must be the absolute path of a local file"),
        ("/data/", "must be the absolute path of a local file"),
        ("", "needs the option|must be the absolute path"),
        ("/no/such/folder/events.jsonl", "there is no folder /no/such/folder on this machine"),
    ],
)
def test_a_path_that_can_not_be_followed_is_refused(given: str, told: str, kept: Kept) -> None:
    with pytest.raises(ConfigurationError, match=told):
        forward_events(given)


def test_events_are_not_forwarded_to_nobody(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="call register_observer before"):
        forward_events(path)
