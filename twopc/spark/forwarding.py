"""Events of ``format("twopc")`` for the observers of the driver.

The processes that run its batches append their events to a file. A thread of the driver follows the file and reports
each event as if it came from the driver. How far it is, it keeps in a file beside it, under a lock: a driver that is
restarted goes on there, and two that run at once never report the same file.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from twopc.errors import ConfigurationError
from twopc.events import BatchCommitted
from twopc.observers.json_lines import EventReader, Position, Recorded, forwarded_here
from twopc.observing import has_observers, notify
from twopc.options import parse
from twopc.spark.data_source.options import EVENTS

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

POLL_INTERVAL_S = 0.5

CLOSE_TIMEOUT_S = 10.0

COMMITTED_AGAIN = 1_000
"""How many batches are reported as committed again at a start: as many as wait for a receiver of lineage at most."""

_POSITION = ".position"
_POSITION_BYTES = 200  # one write of this size replaces the position, so that a kill never leaves half of one

logger = logging.getLogger(__name__)


def forward_events(path: str | os.PathLike[str]) -> EventForwarder:
    """Report the events of ``format("twopc")`` to the observers that are registered in this process, from now on.

    ``path`` is the option ``events`` of the queries, of which several may share one file. Register the observers first.
    Each event is reported once, also if this process was not there when it came. Only ``BatchCommitted`` of the newest
    ``COMMITTED_AGAIN`` batches is reported again at each start: its lineage may not have been sent before.

    Raises:
        ConfigurationError: this machine has no such folder, no observer is registered, or the file's events are
            forwarded in this process already.
    """
    file = Path(parse("forward_events", [EVENTS], {EVENTS.name: path})[EVENTS.name]).resolve()
    if not file.parent.is_dir():
        raise ConfigurationError(
            f"there is no folder {file.parent} on this machine. format('twopc') writes the events file on the machine"
            " of Spark's driver, which is the server's with Spark Connect. Create the folder, or forward the events"
            " there.",
            option=EVENTS.name,
        )
    if not has_observers():
        raise ConfigurationError("no observer is registered, so events would be lost: call register_observer before")
    if file in forwarded_here:
        raise ConfigurationError(f"the events of {file} are forwarded in this process already: forward them once")
    return EventForwarder(file)


class EventForwarder:
    """Follows a file of events until it is closed, also when the process ends. A context manager."""

    def __init__(self, path: Path) -> None:
        """Begin to follow the file at ``path``. For ``forward_events``, which has checked it."""
        self._path = path
        self._ends = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="twopc-events", daemon=True)
        forwarded_here.add(path)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads
            forwarded_here.discard(path)
            raise
        atexit.register(self.close)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Report the events that the file has now, for at most ``timeout_s`` seconds, and stop."""
        atexit.unregister(self.close)
        self._ends.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("not all events of %s were reported within %.0f s", self._path, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            with _SavedPosition(self._path.with_name(self._path.name + _POSITION)) as saved:
                if self._holds(saved):
                    self._follow(saved)
        finally:
            forwarded_here.discard(self._path)

    def _holds(self, saved: _SavedPosition) -> bool:
        """Wait until no other process forwards the file, such as the driver before this one. False if this ends."""
        if saved.hold():
            return True
        logger.warning("another process forwards the events of %s. This one does when that has ended", self._path)
        while not self._ends.wait(POLL_INTERVAL_S):
            if saved.hold():
                return True
        return False

    def _follow(self, saved: _SavedPosition) -> None:
        reader = EventReader(self._path, saved.read())
        with self._failures_logged():
            for recorded in _committed_before(reader):
                notify(recorded.event, recorded.at)
        while True:
            is_last = self._ends.is_set()  # what the file has by now is still reported
            with self._failures_logged():
                try:
                    for recorded in reader.read():
                        notify(recorded.event, recorded.at)
                finally:
                    saved.write(reader.position)
            if is_last:
                break
            self._ends.wait(POLL_INTERVAL_S)
        reader.close()

    @contextlib.contextmanager
    def _failures_logged(self) -> Iterator[None]:
        try:
            yield
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                logger.warning(
                    "%s: events are not followed, which is not logged again until they are: %s", self._path, error
                )
            self._is_failing = True


def _committed_before(reader: EventReader) -> deque[Recorded]:
    """Return the newest events whose lineage may not have been sent, oldest first."""
    committed = (recorded for recorded in reader.read_before() if isinstance(recorded.event, BatchCommitted))
    return deque(committed, COMMITTED_AGAIN)


class _SavedPosition:
    """A position in a file of its own, which one process at a time may hold. Without the file, there is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._written: Position | None = None

    def __enter__(self) -> Self:
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            text = "%s can't be opened (%s), so a restarted driver reports all events again that its file has"
            logger.warning(text, self._path, error.strerror)
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def hold(self) -> bool:
        """Take the lock, until the file is closed. Return False if another process has it."""
        if self._descriptor is None:
            return True
        try:
            # Unlike a lock of flock, this one is not inherited by forked children.
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # POSIX allows both
            return False
        except OSError as error:
            text = "%s can't be locked (%s): let no other driver forward the same events"
            logger.warning(text, self._path, error.strerror)
        return True

    def read(self) -> Position | None:
        if self._descriptor is None:
            return None
        try:
            values = json.loads(os.pread(self._descriptor, _POSITION_BYTES, 0))
            return Position(str(values["beginning"]), int(values["offset"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, position: Position | None) -> None:
        if self._descriptor is None or position is None or self._written == position:
            return
        os.pwrite(self._descriptor, json.dumps(asdict(position)).encode().ljust(_POSITION_BYTES), 0)
        self._written = position
