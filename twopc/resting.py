"""The thread that calls a coordinator's ``rest`` between batches, and once more when the process ends.

A query may rest for an hour between two batches, or run once a week for a single one. Without a rest, an attempt that
began after the last sweep would hold back readers all that time, and the next start would ask target systems about
transactions that they may have forgotten.
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
"""The default interval: longer than a busy query waits for its next batch, and shorter than operators tolerate readers
being held back."""


class Resting:
    """A thread that runs from its coordinator's first batch until the coordinator is gone. It rests ``interval_s``
    after a batch, and then every ``interval_s``."""

    def __init__(self, rest: Callable[[], None], interval_s: float) -> None:
        self._rest = weakref.WeakMethod(rest)
        self.interval_s = interval_s
        self._busy = threading.Event()
        self._thread: threading.Thread | None = None

    def batch_ended(self) -> None:
        """Restart the interval."""
        self._busy.set()
        _resting.add(self)  # needed if it was fenced and has recovered since
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="twopc-rest", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while self._rest() is not None and self in _resting:
            if not self._busy.wait(self.interval_s):
                self.rest()
            self._busy.clear()

    def rest(self) -> None:
        """Call ``rest``, and only log an error: the next batch or start meets the same error and raises it.

        A fenced coordinator stops resting. A query that restarts in this process leaves its older coordinator behind.
        """
        rest = self._rest()
        if rest is not None:
            try:
                rest()
            except Fenced as error:
                _resting.discard(self)
                logger.info("this coordinator stops resting: %s", error)
            except Exception as error:  # noqa: BLE001  # no caller to raise it to
                logger.warning("between batches: %s: %s", type(error).__name__, error)


_resting: weakref.WeakSet[Resting] = weakref.WeakSet()
os.register_at_fork(after_in_child=_resting.clear)  # the log belongs to the parent


@atexit.register
def _rest_once_more() -> None:
    for each in tuple(_resting):
        with contextlib.suppress(Exception):
            each.rest()
