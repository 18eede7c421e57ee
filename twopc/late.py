"""A batch that takes longer than a sink has for it is told of while its participants still write, not when they have
written for hours in vain."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from twopc.threads import LOOK_AGAIN_S

TOLD_AT = (0.5, 1.0)
"""At which parts of the time."""


@contextlib.contextmanager
def telling_of_lateness(within_s: float | None, tell: Callable[[float, threading.Event], object]) -> Iterator[None]:
    """While the block runs, call ``tell`` on a thread of its own when half of ``within_s`` is over, and when all of it
    is, with the seconds since the block began and an event that is set when it ends. ``tell`` has returned when the
    block is left, unless an interrupt ends the wait for it."""
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
            if age_s >= within_s:  # this thread may wake late
                return

    thread = threading.Thread(target=watch, name="twopc-late", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        while thread.is_alive():
            thread.join(LOOK_AGAIN_S)
