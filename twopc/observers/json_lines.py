"""Events as JSON lines in a local file. ``JsonLinesObserver`` writes them in any number of processes, and
``EventReader`` reads them meanwhile.

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
"""Enough for about six thousand batches, at 2.5 kB each. One older file is kept, so the two files contain at most twice
as many batches."""

RETRIES_APART_S = 5.0
"""The least time between two lines about a retried call. Retries in between are counted in one line, so that an outage
does not push all other events out of the file."""

CAPACITY = 16 << 20
"""The most bytes that wait while the disk does not respond. A line of a wide batch takes 100 kB and more."""

CLOSE_TIMEOUT_S = 10.0

forwarded_here: set[Path] = set()
"""The files whose events this process forwards to its observers. An observer must not write to these files. Otherwise
these events would be forwarded again."""

logger = logging.getLogger(__name__)


class JsonLinesObserver:
    """Appends events to a local file, except commits of a batch's own transactions, which ``BatchFinished`` counts. A
    batch takes about 2.5 kB.

    Several processes may write to the same file, for several queries. A separate thread writes the lines, so no batch
    waits for the disk or fails because of it. Events that can't be written are dropped. This is logged once, until a
    line is written again. Up to ``CAPACITY`` bytes wait if the disk does not respond. Then the oldest are dropped.

    Args:
        path: the file, not a symbolic link. Its folder must exist.
        max_bytes: a file of this size is renamed with the suffix ``.1``, and replaces the previous one.
    """

    def __init__(self, path: str | Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._path = Path(path).absolute()  # not resolved, which is I/O
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # phase two reports from several threads
        self._groups: dict[tuple[object, ...], list[tuple[Event, datetime]]] = {}
        self._retried_s = -RETRIES_APART_S  # when the last line of retried calls was written, by time.monotonic
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
        """Write all events, for at most ``timeout_s`` seconds. Events that are left then keep waiting.

        Without it, events that may share a line wait for the next event of another kind.
        """
        with self._lock:
            self._end_groups()
        if left := self._outbox.flush(timeout_s):
            self._outbox.fail(f"{left} of them wait")

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Write the waiting events, for at most ``timeout_s`` seconds. Also called when the process ends. Later events
        are dropped."""
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
    """Reads the events of a file while it is written, oldest first, including those of a file that was moved aside.

    A line that can't be read is skipped. A file that is deleted and created again is read from the beginning.

    Args:
        path: the file, which need not exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._files: list[OpenFile] = []
        self._is_open = False

    def open(self) -> None:
        """Open the files, before any event is read. Events that the files contain now count as earlier events.

        Raises:
            OSError: a file can't be opened.
        """
        if not self._is_open:
            self._find()
            self._is_open = True

    def read_earlier(self) -> Iterator[Recorded]:
        """Yield earlier events that have not been read yet, oldest first. Call this before ``read``.

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
        for file in gone:  # only writes that have already begun can still reach it
            self._files.remove(file)
            file.close()

    def close(self) -> None:
        """Close the files."""
        while self._files:
            self._files.pop().close()

    def _find(self) -> list[OpenFile]:
        """Open new files. Return the open files whose names are gone."""
        # In this order, a file that is moved aside in between is not missed.
        current, aside = self._open(self._path), self._open(older(self._path))
        named = [file for file in (aside, current) if file is not None]
        gone = [file for file in self._files if file not in named]
        self._files = [*gone, *dict.fromkeys(named)]
        return gone

    def _open(self, path: Path) -> OpenFile | None:
        """Return the file that has this name now, if any, and add it to the reader's files."""
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
