"""The file of events: what is written, by whom, and what a reader finds in it, whatever happens to the file."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import twopc
from tests.support.raising import raising
from tests.support.waiting import until
from twopc.datasets import Dataset
from twopc.errors import LogMismatch
from twopc.events import (
    BatchCommitted,
    BatchFailed,
    BatchFinished,
    BatchPart,
    CallRetried,
    Event,
    PhaseEntered,
    TransactionAborted,
    TransactionCommitted,
    TransactionReplayed,
)
from twopc.observers import _rotating_file, json_lines
from twopc.observers._event_lines import encode
from twopc.observers._rotating_file import OpenFile
from twopc.observers.json_lines import EventReader, JsonLinesObserver
from twopc.phases import Phase

AT = datetime(2026, 11, 27, 12, 0, 0, 5000, tzinfo=timezone.utc)
FINISHED = BatchFinished(7, False, {"a": 3}, {"a": 24}, {"a": 1}, {"committing": 1.5}, 2, 1, "orders", 4, 5)
COMMITTABLE = twopc.Committable("t-1", {}, 3, None, 24)
WAIT_S = 30.0
SCHEMA = pa.schema([("id", pa.int64()), ("place", pa.struct([("x", pa.float64())]))])
COMMITTED = BatchCommitted(
    7,
    (BatchPart("a", 3, (Dataset("file", "/data/a"),), SCHEMA), BatchPart("b", 0, None, None)),
    {"orders": {"0": 100}},
    recovered=True,
    log_id="log-1",
    owner="orders",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@pytest.fixture
def make() -> Iterator[Callable[..., JsonLinesObserver]]:
    """Make observers whose threads end with the test."""
    made: list[JsonLinesObserver] = []

    def one(path: Path, **options: Any) -> JsonLinesObserver:
        made.append(JsonLinesObserver(path, **options))
        return made[-1]

    yield one
    for observer in made:
        observer.close()


def write(path: Path, *events: Event, at: datetime = AT, **options: Any) -> None:
    observer = JsonLinesObserver(path, **options)
    for event in events:
        observer.twopc_event(event, at)
    observer.close()


def write_with(observer: JsonLinesObserver, *events: Event) -> None:
    """Write events by an observer that goes on to write others."""
    for event in events:
        observer.twopc_event(event, AT)
    observer.flush(WAIT_S)


def read(path: Path) -> list[Event]:
    return [recorded.event for recorded in EventReader(path).read()]


def batch(number: int) -> BatchFinished:
    return replace(FINISHED, batch_id=number)


def numbers(reader: EventReader) -> list[int]:
    """The finished batches that were not read before."""
    return [each.event.batch_id for each in reader.read() if isinstance(each.event, BatchFinished)]


# What is written. -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        PhaseEntered(Phase.COMMITTING, 7, "orders"),
        PhaseEntered(Phase.RECOVERING, None, "orders"),
        CallRetried("commit", 3, 0.5, "away", 70.0, "orders", 7),
        TransactionCommitted("a", 6, COMMITTABLE, True, "orders"),
        TransactionAborted("a", COMMITTABLE, False, "orders"),
        TransactionReplayed("a", 7, COMMITTABLE, replace(COMMITTABLE, transaction_id="t-2"), "orders"),
        COMMITTED,
        FINISHED,
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_is_read_as_it_was_written(path: Path, event: Event) -> None:
    write(path, event)
    [recorded] = EventReader(path).read()
    assert (recorded.event, recorded.at) == (event, AT)


@pytest.mark.parametrize(
    "event",
    [
        TransactionAborted("a", replace(COMMITTABLE, handle={"pid": 5}), False, "orders"),
        TransactionReplayed("a", 7, replace(COMMITTABLE, handle={"pid": 5}), COMMITTABLE, "orders"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_no_handle_of_a_transaction_is_written(path: Path, event: Event) -> None:
    write(path, event)
    assert b"pid" not in path.read_bytes()
    assert len(read(path)) == 1


class DiskGone(Exception):
    """An error that a sink of somebody's own raises."""


@pytest.mark.parametrize("error", [LogMismatch("other offsets"), DiskGone("sda"), KeyboardInterrupt()], ids=repr)
def test_a_failed_run_has_an_error_of_the_same_class_name_and_text(path: Path, error: BaseException) -> None:
    write(path, BatchFailed(7, error, {"recovering": 1.0}, "orders"))
    [failed] = read(path)
    assert isinstance(failed, BatchFailed)
    assert (type(failed.error).__name__, str(failed.error)) == (type(error).__name__, str(error))
    assert isinstance(failed.error, LogMismatch) == isinstance(error, LogMismatch)
    assert (failed.batch_id, failed.phases_ms, failed.owner) == (7, {"recovering": 1.0}, "orders")


def test_a_failed_run_is_a_line_of_its_own(run: Any, observe: Any, path: Path) -> None:
    observer = JsonLinesObserver(path)
    observe(observer)
    run(0)
    with pytest.raises(LogMismatch) as refused:
        run(7)
    observer.close()
    [failed] = [line for line in map(json.loads, path.read_text().splitlines()) if "failed_at" in line]
    assert failed.pop("failed_at") > "2026"
    assert list(failed.pop("phases_ms")) == ["recovering"]
    error = {"kind": "LogMismatch", "message": str(refused.value)}
    assert failed == {"batch_id": 7, "error": error, "owner": "orders"}


def test_a_batch_of_two_thousand_transactions_takes_one_line_however_it_ends(path: Path) -> None:
    committed = [TransactionCommitted("a", 7, COMMITTABLE, False, "orders")] * 2000
    write(path, *committed, FINISHED)
    assert read(path) == [FINISHED]
    aborted: list[Event] = [TransactionAborted("a", COMMITTABLE, False, "orders")] * 2000
    write(path, *aborted, PhaseEntered(Phase.IDLE, None, "orders"))
    assert len(path.read_bytes().splitlines()) == 1 + 4 + 1
    assert read(path)[1:] == [*aborted, PhaseEntered(Phase.IDLE, None, "orders")]


def test_a_replay_is_written_at_once(path: Path, make: Any) -> None:
    """A kill must not take it with it: it tells that a target system has lost a decided transaction."""
    observer = make(path)
    observer.twopc_event(TransactionReplayed("a", 7, COMMITTABLE, COMMITTABLE, "orders"), AT)
    reader = EventReader(path)
    until(lambda: [*reader.read()], WAIT_S)


def test_calls_that_are_repeated_during_an_outage_share_lines_and_are_all_counted(path: Path) -> None:
    retried: list[Event] = [CallRetried("commit", n, 1.0, "away", float(n), "orders", 7) for n in range(200)]
    write(path, *retried, PhaseEntered(Phase.SWEEPING, 7, "orders"))
    assert len(path.read_bytes().splitlines()) == 3  # the first one at once
    found = read(path)
    assert len(found) == 201
    assert (found[0], found[199]) == (retried[0], retried[199])


def test_an_event_is_written_without_another_one_after_it(path: Path, make: Any) -> None:
    observer = make(path)
    reader = EventReader(path)
    for number in range(3):
        observer.twopc_event(batch(number), AT)
        assert until(lambda: numbers(reader), WAIT_S) == [number]


# What can't be written. -------------------------------------------------------------------------------------------


def test_a_place_that_can_not_be_written_to_fails_no_batch_and_is_logged_once(
    run: Any, observe: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "not there" / "events.jsonl"
    observer = JsonLinesObserver(path)
    observe(observer)
    run(0, 1)
    observer.flush(WAIT_S)
    assert caplog.text.count("events can't be written to") == 1
    path.parent.mkdir()
    run(1, 2)
    observer.flush(WAIT_S)
    assert [each.batch_id for each in read(path) if isinstance(each, BatchFinished)] == [1, 2]
    path.unlink()
    path.parent.rmdir()
    run(3)
    observer.close()
    assert caplog.text.count("events can't be written to") == 2


def test_a_pipe_that_nobody_reads_keeps_no_batch_and_no_later_event_waiting(
    run: Any, observe: Any, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(path)
    observer = JsonLinesObserver(path)
    observe(observer)
    run(0)
    observer.flush(WAIT_S)
    assert "not a regular file" in caplog.text
    path.unlink()
    run(1)
    observer.flush(WAIT_S)
    assert [each.batch_id for each in read(path) if isinstance(each, BatchFinished)] == [1]


@pytest.fixture
def stalled(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that does not respond until the event is set."""
    responds = threading.Event()

    def append(*arguments: Any) -> None:
        assert responds.wait(WAIT_S)
        _rotating_file.append(*arguments)

    monkeypatch.setattr(json_lines, "append", append)
    yield responds
    responds.set()


def test_no_batch_waits_for_a_disk_that_does_not_respond_and_its_events_are_written_later(
    run: Any, observe: Any, path: Path, stalled: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    observer = JsonLinesObserver(path)
    observe(observer)
    run(0, 1)
    for _ in range(2):
        observer.flush(0.01)
    assert caplog.text.count("of them wait") == 1
    assert not path.exists()
    stalled.set()
    observer.close()
    assert [each.batch_id for each in read(path) if isinstance(each, BatchFinished)] == [0, 1]


def test_the_events_that_wait_for_a_disk_are_bounded(
    path: Path, stalled: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(json_lines, "CAPACITY", 3 * len(encode([batch(19)], AT)))
    observer = JsonLinesObserver(path)
    for number in range(20):
        observer.twopc_event(batch(number), AT)
    assert caplog.text.count("the oldest are dropped") == 1
    stalled.set()
    observer.close()
    assert numbers(EventReader(path))[-3:] == [17, 18, 19]
    assert len(path.read_bytes().splitlines()) <= 4


LEAVES = """
import sys
from tests.observers.test_events_file import AT, COMMITTABLE, FINISHED
from twopc.events import TransactionAborted
from twopc.observers.json_lines import JsonLinesObserver

observer = JsonLinesObserver(sys.argv[1])
for event in [FINISHED] * 200 + [TransactionAborted("a", COMMITTABLE, False, "orders")]:
    observer.twopc_event(event, AT)
"""


def test_a_process_that_ends_has_written_all_its_events(path: Path) -> None:
    subprocess.run([sys.executable, "-c", LEAVES, str(path)], check=True)
    assert len(read(path)) == 201


@pytest.mark.parametrize("fails", ["short", "full"])
def test_what_a_full_disk_took_half_of_costs_one_event(
    path: Path, make: Any, fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    observer = make(path)
    write_with(observer, batch(0))
    with monkeypatch.context() as patched:
        patched.setattr(_rotating_file, "os", Disk(fails))
        write_with(observer, batch(1), batch(2))
    write_with(observer, batch(3))
    assert numbers(EventReader(path)) == [0, 3]
    assert caplog.text.count("can't be written") == 1


class Disk:
    """A disk that is full, in place of the module os."""

    def __init__(self, fails: str) -> None:
        self._fails = fails

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, text: bytes) -> int:
        if self._fails == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, text[:20])


def test_each_event_that_is_too_long_for_a_line_is_dropped_and_logged(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_rotating_file, "LONGEST_LINE", 2000)
    long = replace(FINISHED, owner="x" * 3000)
    write(path, long, long, FINISHED)
    assert read(path) == [FINISHED]
    assert caplog.text.count("bytes is too long for a line") == 2


def test_the_file_is_not_readable_for_everybody(path: Path) -> None:
    before = os.umask(0)
    try:
        write(path, FINISHED)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_nothing_is_written_through_a_link(path: Path) -> None:
    linked = path.with_name("linked")
    path.symlink_to(linked)
    write(path, FINISHED)
    assert not linked.exists()


@pytest.mark.parametrize(("of", "fails"), [(fcntl, "flock"), (Path, "replace")])
def test_a_full_file_that_can_not_be_moved_grows(
    path: Path, of: object, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, batch(0))
    monkeypatch.setattr(of, fails, raising(OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
    write(path, batch(1), batch(2), max_bytes=1)
    assert numbers(EventReader(path)) == [0, 1, 2]


# Rotation. --------------------------------------------------------------------------------------------------------


def test_the_file_is_bounded_and_a_reader_that_follows_it_misses_nothing(path: Path, make: Any) -> None:
    observer = make(path, max_bytes=2000)
    reader, found = EventReader(path), []
    for number in range(100):
        write_with(observer, batch(number))
        if number % 3 == 0:
            found += numbers(reader)
    assert [*found, *numbers(reader)] == [*range(100)]
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["events.jsonl", "events.jsonl.1"]
    assert all(file.stat().st_size < 2000 + 500 for file in files)
    assert len(reader._files) <= 2


def test_a_reader_that_was_away_for_two_rotations_goes_on_with_what_there_is(path: Path, make: Any) -> None:
    observer = make(path, max_bytes=1000)
    reader = EventReader(path)
    write_with(observer, batch(0))
    assert numbers(reader) == [0]
    write_with(observer, *map(batch, range(1, 50)))
    found = numbers(reader)
    assert found[:2] == [1, 2]  # of the file that it has open
    assert found == sorted(found)
    assert found[-1] == 49


def test_the_older_file_is_read_first(path: Path) -> None:
    write(path, *map(batch, range(6)), max_bytes=1000)
    assert path.with_name("events.jsonl.1").exists()
    found = numbers(EventReader(path))
    assert found == sorted(found)
    assert found[-1] == 5
    assert len(found) > len(path.read_bytes().splitlines())


def test_a_line_that_comes_to_a_file_after_it_was_moved_aside_is_read(path: Path) -> None:
    """Another process had opened the file just before."""
    write(path, batch(0))
    late = path.open("ab")
    write(path, batch(1), max_bytes=1)
    reader = EventReader(path)
    assert numbers(reader) == [0, 1]
    late.write(path.read_bytes().replace(b'"batch_id": 1', b'"batch_id": 2'))
    late.close()
    assert numbers(reader) == [2]


@pytest.mark.parametrize("when", ["after the file", "before the older one"])
def test_a_file_that_is_moved_aside_while_both_are_opened_is_reported_once(
    path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = path.with_name("events.jsonl.1")

    class Moved(OpenFile):
        def __init__(self, file: Path) -> None:
            if (when, file) == ("before the older one", aside):
                path.rename(aside)
            super().__init__(file)
            if (when, file) == ("after the file", path):
                path.rename(aside)

    write(path, batch(0))
    aside.touch()
    monkeypatch.setattr(json_lines, "OpenFile", Moved)
    assert numbers(EventReader(path)) == [0]


@pytest.mark.parametrize("of", ["events.jsonl", "events.jsonl.1"])
def test_a_file_that_is_moved_aside_while_it_is_looked_for_is_read_once(
    path: Path, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = EventReader._open

    def opened_and_moved(reader: EventReader, file: Path) -> Any:
        found = opened(reader, file)
        if file.name == of and path.exists():
            path.rename(path.with_name("events.jsonl.1"))
        return found

    write(path, batch(0))
    reader = EventReader(path)
    with monkeypatch.context() as patched:
        patched.setattr(EventReader, "_open", opened_and_moved)
        assert numbers(reader) == [0]
    write(path, batch(1), at=AT + timedelta(seconds=1))
    assert numbers(reader) == [1]


WRITER = """
import sys
from tests.observers.test_events_file import AT, FINISHED
from twopc.observers.json_lines import JsonLinesObserver
from dataclasses import replace

path, name, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
observer = JsonLinesObserver(path, max_bytes=int(sys.argv[4]))
for number in range(300):
    observer.twopc_event(replace(FINISHED, batch_id=number, phases_ms={}, records={name: 1}, bytes={name: 1},
        transactions={name: 1}, owner=name * length), AT)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("length", "max_bytes"),
    [(100_000, 1 << 30), (2_000, 800_000)],
    ids=["lines longer than a pipe's buffer", "a file that both find full"],
)
def test_two_processes_write_whole_lines_and_a_reader_has_each_once(path: Path, length: int, max_bytes: int) -> None:
    arguments = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*arguments, name, str(length), str(max_bytes)]) for name in "ab"]
    reader, found = EventReader(path), []
    while any(writer.poll() is None for writer in writers):
        found += list(reader.read())
        time.sleep(0.002)
    found += list(reader.read())
    assert [writer.returncode for writer in writers] == [0, 0]
    for name in "ab":
        batches = [
            each.event for each in found if isinstance(each.event, BatchFinished) and each.event.owner[0] == name
        ]
        assert [each.batch_id for each in batches] == [*range(300)]
        assert {len(each.owner) for each in batches} == {length}


# What a reader finds. ---------------------------------------------------------------------------------------------


def test_a_line_that_is_not_complete_is_read_when_it_is(path: Path) -> None:
    write(path, batch(0), batch(1))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    reader = EventReader(path)
    assert numbers(reader) == [0]
    with path.open("ab") as file:
        file.write(whole[-20:])
    assert numbers(reader) == [1]


def test_lines_of_others_are_skipped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rotating_file, "LONGEST_LINE", 100_000)
    monkeypatch.setattr(_rotating_file, "_CHUNK", 10_000)
    write(path, batch(0), COMMITTED)
    _, committed = path.read_bytes().splitlines()
    write(path, BatchFailed(7, LogMismatch("other offsets"), {}, "orders"))
    failed = path.read_bytes().splitlines(keepends=True)[-1]
    whole = json.loads(failed)
    wrong = [{"failed_at": "20"}, {"phases_ms": []}, {"error": whole["error"] | {"message": None}}]
    foreign: list[dict[str, Any]] = [
        {"batch_id": True},
        {"parts": 3},
        {"parts": [{}]},
        {"log_id": None},
        {"committed_at": "yesterday"},
        {"committed_at": None},
        {"finished_at": "2026-11-27T12:00:00+00:00"},
    ]
    with path.open("ab") as file:
        file.write(b"\0\0\0\n\xff\xfe\n[]\n{}\n7\nnull\n" + b"[" * 50_000 + b"\n")
        file.write(committed + b" " * 250_000 + b"\n")  # too long
        file.writelines(json.dumps(json.loads(committed) | one).encode() + b"\n" for one in foreign)
        file.writelines(json.dumps(whole | one).encode() + b"\n" for one in wrong)
        file.write(failed.replace(b"LogMismatch", b"no name"))
        file.write(failed.replace(b"failed_at", b"forgotten_at"))
    write(path, batch(1))
    found = read(path)
    assert isinstance(found.pop(2), BatchFailed)
    assert found == [batch(0), COMMITTED, batch(1)]


def test_the_lines_of_neighboring_versions_are_read(path: Path) -> None:
    retried = CallRetried("commit", 3, 0.5, "away", 70.0, "orders")
    write(path, FINISHED, retried)
    finished, called = map(json.loads, path.read_bytes().splitlines())
    del called["decided_batch_id"], finished["bad_records"]
    path.write_text("".join(json.dumps(line | {"new": 1}) + "\n" for line in (finished, called)))
    assert read(path) == [replace(FINISHED, bad_records=0), retried]


def test_a_schema_that_can_not_be_read_is_left_out(path: Path) -> None:
    write(path, COMMITTED)
    line = json.loads(path.read_bytes())
    line["parts"][0]["schema"] = "bm8gc2NoZW1h"
    path.write_text(json.dumps(line) + "\n")
    [event] = read(path)
    assert isinstance(event, BatchCommitted)
    assert event.parts[0] == replace(COMMITTED.parts[0], schema=None)


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_a_file_that_is_deleted_or_emptied_while_it_is_followed_is_followed_on(path: Path, how: str) -> None:
    write(path, batch(0), batch(1))
    reader = EventReader(path)
    assert numbers(reader) == [0, 1]
    path.unlink() if how == "deleted" else path.write_bytes(b"")
    assert numbers(reader) == []
    write(path, batch(2))
    assert numbers(reader) == [2]


def test_a_reader_may_begin_before_there_is_a_file(path: Path) -> None:
    reader = EventReader(path)
    assert numbers(reader) == []
    write(path, batch(0))
    assert numbers(reader) == [0]


def test_what_is_no_regular_file_is_an_error_and_keeps_nobody_waiting(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        list(EventReader(path).read())


def test_a_second_file_that_can_not_be_read_leaks_no_descriptor(path: Path) -> None:
    write(path, batch(0))
    path.with_name("events.jsonl.1").mkdir()
    reader = EventReader(path)
    before = len([*Path("/dev/fd").iterdir()])
    for _ in range(3):
        with pytest.raises(OSError, match="not a regular file"):
            numbers(reader)
    assert len([*Path("/dev/fd").iterdir()]) == before + 1
    path.with_name("events.jsonl.1").rmdir()
    assert numbers(reader) == [0]


def test_a_clock_that_was_set_back_changes_no_order(path: Path) -> None:
    write(path, batch(0))
    write(path, batch(1), at=AT - timedelta(days=1))
    reader = EventReader(path)
    assert numbers(reader) == [0, 1]
    write(path, batch(2), at=AT - timedelta(days=2))
    assert numbers(reader) == [2]
