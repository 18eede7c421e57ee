"""A coordinator's turns: its locks, and the thread that calls ``rest`` while it has no batch, and once more when its
process ends.

A query may rest for an hour between two batches, or run once a week for a single one. An attempt that begins after the
last sweep would hold back readers all that time, and the next start would ask target systems about transactions that
they may have forgotten.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable

from twopc.errors import Fenced

logger = logging.getLogger(__name__)

REST_INTERVAL_S = 10.0
"""Longer than a busy query waits for its next batch, shorter than an operator tolerates a reader that is held back."""


LOOK_AGAIN_S = 0.5
"""How long the main thread waits at a time. CPython does not look at a signal that arrives just before a wait begins,
so without a timeout it would be seen when the wait ends, if ever."""


class OwnedLock:
    """A lock that knows whether this thread holds it. So whoever takes it within a ``try`` and releases it in the
    ``finally`` leaks nothing, even if an interrupt comes between the two.

    ``release`` raises RuntimeError if this thread does not hold it. It is a method in C: an interrupt can come as a
    function in Python is entered, and the lock would stay taken.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # it notes its owner as it is taken, where no interrupt can come in between
        self.release = self._lock.release

    @property
    def is_mine(self) -> bool:
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # noqa: SLF001  # ``Condition`` asks it, too

    def take(self, *, waits: bool = True) -> bool:
        """Take the lock, and return whether it was free or became free. A thread takes it once at a time."""
        if self.is_mine:
            return False
        while not self._lock.acquire(timeout=LOOK_AGAIN_S if waits else 0):
            if not waits:
                return False
        return True


class Resting:
    """A thread that runs from its coordinator's first batch until the coordinator is gone. It rests ``interval_s``
    after a batch, and as often from then on."""

    def __init__(self, rest: Callable[[], None], interval_s: float) -> None:
        self._rest = weakref.WeakMethod(rest)
        self.interval_s = interval_s
        self._busy = threading.Event()
        self._thread: threading.Thread | None = None

    def batch_ended(self) -> None:
        """Start the interval again."""
        self._busy.set()
        _resting.add(self)  # again, if it was fenced and has recovered since
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="twopc-rest", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while self._rest() is not None and self in _resting:
            if not self._busy.wait(self.interval_s):
                self.rest()
            self._busy.clear()

    def rest(self) -> None:
        """Call ``rest`` and log what it raises: the next batch, or the next start, meets the same error and raises it.

        A fenced coordinator stops resting: a query that restarts in this process leaves its older coordinator behind.
        """
        rest = self._rest()
        if rest is not None:
            try:
                rest()
            except Fenced as error:
                _resting.discard(self)
                logger.info("this coordinator stops resting: %s", error)
            except Exception as error:  # noqa: BLE001  # nobody waits for it
                logger.warning("between batches: %s: %s", type(error).__name__, error)


_resting: weakref.WeakSet[Resting] = weakref.WeakSet()
os.register_at_fork(after_in_child=_resting.clear)  # the log and its batches are the parent's


@atexit.register
def _rest_once_more() -> None:
    for each in tuple(_resting):
        with contextlib.suppress(Exception):
            each.rest()
