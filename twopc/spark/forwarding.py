"""Events of ``format("twopc")`` for the observers of the driver.

The processes that run its batches append their events to a file. A thread in the driver follows the file and passes
each event to the driver's observers.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from twopc.errors import ConfigurationError
from twopc.events import BatchCommitted
from twopc.observers.json_lines import EventReader, Recorded, forwarded_here
from twopc.observing import has_observers, notify
from twopc.options import parse
from twopc.spark.data_source.options import EVENTS

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

POLL_INTERVAL_S = 0.5

CLOSE_TIMEOUT_S = 10.0

COMMITTED_AGAIN = 1_000
"""How many batches of earlier drivers are reported as committed: the most that can wait for a receiver of lineage."""

logger = logging.getLogger(__name__)


def forward_events(path: str | os.PathLike[str]) -> EventForwarder:
    """Report the events of ``format("twopc")`` to the observers that are registered in this process.

    ``path`` is the option ``events`` of the queries. Several queries of one driver may share the file. Only one driver
    at a time may follow the file, because each driver would report every event. Register the observers before the call,
    and start the queries after it.

    Every event written after the call is reported. Earlier events are skipped, except ``BatchCommitted`` of the newest
    ``COMMITTED_AGAIN`` batches, whose lineage an earlier driver may not have sent. If the file can't be opened, the
    call logs that, and events written until it can be opened count as earlier.

    Raises:
        ConfigurationError: this machine has no such folder, no observer is registered, or this process already
            forwards the file's events.
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
    """Follows an events file until it is closed or the process ends. A context manager."""

    def __init__(self, path: Path) -> None:
        """Start to follow the file at ``path``, which ``forward_events`` has checked."""
        self._path = path
        self._ends = threading.Event()
        self._is_failing = False
        self._reader = EventReader(path)
        self._earlier: deque[Recorded] | None = deque(maxlen=COMMITTED_AGAIN)  # None once they are reported
        with self._failures_logged():
            self._reader.open()
        self._thread = threading.Thread(target=self._run, name="twopc-events", daemon=True)
        forwarded_here.add(path)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads
            forwarded_here.discard(path)
            raise
        atexit.register(self.close)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Report the events that are in the file now, for at most ``timeout_s`` seconds, and stop."""
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
            self._follow()
        finally:
            forwarded_here.discard(self._path)

    def _follow(self) -> None:
        while True:
            is_last = self._ends.is_set()  # read once more after the end, for events written before it
            with self._failures_logged():
                for recorded in self._read():
                    notify(recorded.event, recorded.at)
            if is_last:
                break
            self._ends.wait(POLL_INTERVAL_S)
        self._reader.close()

    def _read(self) -> Iterator[Recorded]:
        if self._earlier is not None:
            self._earlier.extend(each for each in self._reader.read_earlier() if isinstance(each.event, BatchCommitted))
            earlier, self._earlier = self._earlier, None
            yield from earlier
        yield from self._reader.read()

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
