"""Events in a local file, one line of JSON each: written by ``JsonLinesObserver`` in any number of processes, and read
while they write.

    reader = EventReader("/var/log/orders.events.jsonl")
    while True:
        for recorded in reader.read():
            print(recorded.at, recorded.event)
        time.sleep(1)
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from twopc.events import CallRetried, Event, TransactionCommitted
from twopc.hookspecs import hookimpl
from twopc.observers._event_lines import EVENTS_PER_LINE, Recorded, decode, encode, group_of
from twopc.observers._outbox import Outbox
from twopc.observers._rotating_file import OpenFile, append, older

__all__ = ["EventReader", "JsonLinesObserver", "Recorded"]

MAX_BYTES = 16 << 20
"""About six thousand batches, at 2.5 kB each. One older file is kept, so there are twice as many at most."""

RETRIES_APART_S = 5.0
"""Calls that are retried share a line for so long: an outage must not push everything else out of the file."""

CAPACITY = 16 << 20
"""The most bytes that wait while the disk does not respond. A line of a wide batch takes 100 kB and more."""

CLOSE_TIMEOUT_S = 10.0

forwarded_here: set[Path] = set()
"""The files whose events this process gives to its observers. None of these may write them there again."""

logger = logging.getLogger(__name__)


class JsonLinesObserver:
    """Appends each event to a local file, except the commits of a batch's own transactions, which ``BatchFinished``
    counts. A batch takes about 2.5 kB.

    Several processes may write to one file, about several queries. A thread of its own writes the lines, so no batch
    waits for the disk or fails by it. What can't be written is dropped, which is logged once until a line is written
    again. Up to ``CAPACITY`` bytes wait for a disk that does not respond, of which the oldest are dropped.

    Args:
        path: the file, and not a symbolic link. Its folder must be there.
        max_bytes: a file of this size is moved to the same name with ``.1``, in place of the one before.
    """

    def __init__(self, path: str | Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._path = Path(path).absolute()  # to resolve it is I/O
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # phase two reports from several threads
        self._groups: dict[tuple[object, ...], list[tuple[Event, datetime]]] = {}
        self._retried_s = -RETRIES_APART_S  # when the last line of such calls was written, by time.monotonic
        self._outbox = Outbox[bytes](self._append, CAPACITY, f"events can't be written to {self._path}")
        atexit.register(self.close)

    @hookimpl
    def twopc_event(self, event: Event, at: datetime) -> None:
        if isinstance(event, TransactionCommitted) and not event.recovered:
            return
        with self._lock:
            group = group_of(event)
            if group is None:
                self._end_groups()
                self._put([event], at)
                return
            events = self._groups.setdefault(group, [])
            events.append((event, at))
            is_due = isinstance(event, CallRetried) and time.monotonic() - self._retried_s >= RETRIES_APART_S
            if is_due or len(events) >= EVENTS_PER_LINE:
                self._end_groups()

    def flush(self, timeout_s: float) -> None:
        """Write all events, for at most ``timeout_s`` seconds. What is left then still waits.

        Events that may share a line are otherwise written with the next event of another kind.
        """
        with self._lock:
            self._end_groups()
        if left := self._outbox.flush(timeout_s):
            self._outbox.fail(f"{left} of them wait")

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Write the events that wait, for at most ``timeout_s`` seconds. Called when the process ends, too. Later
        events are dropped."""
        atexit.unregister(self.close)
        with self._lock:
            self._end_groups()
        self._outbox.close(timeout_s)

    def _end_groups(self) -> None:
        groups, self._groups = self._groups, {}
        for events in groups.values():
            last, at = events[-1]
            if isinstance(last, CallRetried):
                self._retried_s = time.monotonic()
            self._put([event for event, _ in events], at)

    def _put(self, events: Sequence[Event], at: datetime) -> None:
        line = encode(events, at)
        self._outbox.put(line, len(line))

    def _append(self, line: bytes) -> None:
        if self._path.resolve() in forwarded_here:
            raise OSError(errno.EINVAL, "this process forwards the file's events. Give the observer another file")
        try:
            append(self._path, line, self._max_bytes)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            logger.warning("an event is not written to %s: %s", self._path, error.strerror)


class EventReader:
    """Reads the events of a file while it is written, from the oldest on, also when it was moved aside.

    A line that can't be read is skipped. A file that is deleted is read from the beginning when it is there again.

    Args:
        path: the file. It need not be there yet.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._files: list[OpenFile] = []
        self._is_open = False

    def open(self) -> None:
        """Open the files, before any event is read. The events that they have now are the earlier ones.

        Raises:
            OSError: a file can't be opened.
        """
        if not self._is_open:
            self._find()
            self._is_open = True

    def read_earlier(self) -> Iterator[Recorded]:
        """Yield the earlier events that were not read before, oldest first. Call it before ``read``.

        Raises:
            OSError: a file can't be opened or read.
        """
        self.open()
        for file in self._files:
            for line in file.lines(file.status.st_size):
                yield from decode(line)

    def read(self) -> Iterator[Recorded]:
        """Yield the events that were written since the last call, oldest first.

        Raises:
            OSError: the file can't be read.
        """
        gone = self._find()
        for file in tuple(self._files):
            for line in file.lines():
                yield from decode(line)
        for file in gone:  # nothing is written to it any more but what another process has already begun
            self._files.remove(file)
            file.close()

    def close(self) -> None:
        """Close the files."""
        while self._files:
            self._files.pop().close()

    def _find(self) -> list[OpenFile]:
        """Open the files that were not read before. Return those that were and have no name any more."""
        # In this order, a file that is moved aside meanwhile is not missed.
        current, aside = self._open(self._path), self._open(older(self._path))
        named = [file for file in (aside, current) if file is not None]
        gone = [file for file in self._files if file not in named]
        self._files = [*gone, *dict.fromkeys(named)]
        return gone

    def _open(self, path: Path) -> OpenFile | None:
        """Return the file that has this name now, if any, and keep it among the reader's own."""
        try:
            file = OpenFile(path)
        except FileNotFoundError:
            return None
        for known in self._files:
            if os.path.samestat(known.status, file.status):
                file.close()
                return known
        self._files.append(file)
        return file
