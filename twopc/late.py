"""Reports a batch that exceeds a sink's time limit while participants are still writing, not after hours of wasted
work."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from twopc.threads import LOOK_AGAIN_S

TOLD_AT = (0.5, 1.0)
"""The fractions of the allowed time at which a late batch is reported."""


@contextlib.contextmanager
def telling_of_lateness(within_s: float | None, tell: Callable[[float, threading.Event], object]) -> Iterator[None]:
    """While the block runs, call ``tell`` on a separate thread when half of ``within_s`` has passed, and again when all
    of it has passed. ``tell`` gets the seconds since the block began, and an event that is set when the block ends. The
    block waits for ``tell`` to return, unless interrupted."""
    if within_s is None:
        yield
        return
    ended, began_s = threading.Event(), time.monotonic()

    def watch() -> None:
        for part in TOLD_AT:
            if ended.wait(began_s + part * within_s - time.monotonic()):
                return
            age_s = time.monotonic() - began_s
            tell(age_s, ended)
            if age_s >= within_s:  # this thread woke late
                return

    thread = threading.Thread(target=watch, name="twopc-late", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        while thread.is_alive():
            thread.join(LOOK_AGAIN_S)
