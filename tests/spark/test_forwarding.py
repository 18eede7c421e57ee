"""Events of a file as observers of a driver get them, across its restarts. Without a session."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import twopc
from tests.observers.test_events_file import AT, COMMITTED, batch
from tests.support.observing import observing
from tests.support.raising import raising
from tests.support.waiting import until
from twopc.errors import ConfigurationError
from twopc.events import BatchFinished, Event
from twopc.observers._event_lines import encode
from twopc.observers._rotating_file import OpenFile, append
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


def test_of_what_came_before_only_what_has_been_committed_is_reported(path: Path, kept: Kept) -> None:
    """An earlier driver may have ended while a receiver of lineage was away."""
    write(path, COMMITTED, batch(0))
    write(path, batch(1), at=AT + timedelta(seconds=1), max_bytes=1)
    assert path.with_name("events.jsonl.1").exists()
    for _ in range(2):
        with forward_events(path):
            write(path, batch(2))
    assert kept.events == [COMMITTED, batch(2)] * 2


def test_no_more_batches_are_reported_again_than_may_wait_for_a_receiver(
    path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "COMMITTED_AGAIN", 3)
    write(path, *[COMMITTED] * 10)
    with forward_events(path):
        pass
    assert kept.events == [COMMITTED] * 3


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


def test_a_process_without_threads_can_forward_the_events_later(
    path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError):
            forward_events(path)
    with forward_events(path):
        pass


def test_the_same_file_is_forwarded_once_in_a_process(path: Path, kept: Kept) -> None:
    with forward_events(path):
        with pytest.raises(ConfigurationError, match="in this process already"):
            forward_events(f"file://{path}")
        write(path, batch(0))
    assert kept.batches == [0]
    with forward_events(path):
        write(path, batch(1))
    assert kept.batches == [0, 1]


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
    os.mkfifo(path)
    other = path.with_name("other.jsonl")
    write(other, COMMITTED, batch(0))
    with forward_events(path):
        until(lambda: "not a regular file" in caplog.text)
        other.replace(path)
        until(lambda: kept.events == [COMMITTED])
        write(path, batch(1))
        until(lambda: kept.events == [COMMITTED, batch(1)])
        assert caplog.text.count("not a regular file") == 1
        path.unlink()
        path.mkdir()
        until(lambda: caplog.text.count("not a regular file") == 2)


def test_earlier_events_that_can_not_be_read_at_first_stay_earlier(
    path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, COMMITTED, batch(0))
    fails, lines = threading.Event(), OpenFile.lines

    def read(file: OpenFile, *given: int) -> Iterator[bytes]:
        for line in lines(file, *given):
            yield line
            if not fails.is_set():
                fails.set()
                raise OSError(errno.EIO, "the disk")

    monkeypatch.setattr(OpenFile, "lines", read)
    with forward_events(path):
        until(fails.is_set)
        write(path, batch(1))
    assert kept.events == [COMMITTED, batch(1)]


def test_a_call_does_not_wait_for_earlier_events_and_what_is_written_before_they_are_read_is_reported(
    path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, COMMITTED, batch(0))
    threads, lines, start = set[str](), OpenFile.lines, threading.Thread.start

    def read(file: OpenFile, *given: int) -> Iterator[bytes]:
        threads.add(threading.current_thread().name)
        return lines(file, *given)

    def written_before(thread: threading.Thread) -> None:
        write(path, batch(1))
        start(thread)

    monkeypatch.setattr(OpenFile, "lines", read)
    monkeypatch.setattr(threading.Thread, "start", written_before)
    with forward_events(path):
        pass
    assert kept.events == [COMMITTED, batch(1)]
    assert threads == {"twopc-events"}


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
