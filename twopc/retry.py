"""Repeats calls that a target system could not answer. Only a definite answer ends a decided transaction."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from twopc.errors import Retriable
from twopc.events import CallRetried, Event
from twopc.observing import notify

logger = logging.getLogger(__name__)

FIRST_LINE_S = 1.0
"""Shorter waits are not logged."""

LINES_APART_S = 60.0
"""The longest time between two log lines of one wait. Until the lines are that far apart, the time waited doubles from
one line to the next."""


ResultT = TypeVar("ResultT")


def until_answered(
    what: str,
    call: Callable[..., ResultT],
    *arguments: object,
    tell: Callable[[Event], None] = notify,
    patience_s: float | None = None,
    waits: Waits | None = None,
    among: str | None = None,
    decided_batch_id: int | None = None,
) -> ResultT:
    """Repeat a call until it raises no ``Retriable``, and return its result. ``what`` names the call to operators.

    Without ``patience_s`` there is no limit: only the target system's definite answer ends a decided transaction.
    ``waits`` contains the other waiting calls of the same caller. Calls with the same ``among`` are logged together.
    ``decided_batch_id``: the decided batch that the call commits or completes, for observers. Raises Retriable if no
    answer came within ``patience_s``, or before ``waits.given_up`` was set.
    """
    waits = waits or Waits()
    name, began_s, attempt = among or what, time.monotonic(), 0
    try:
        while True:
            attempt += 1
            try:
                return call(*arguments)
            except Retriable as error:
                waited_s = time.monotonic() - began_s
                if waits.given_up.is_set() or (patience_s is not None and waited_s >= patience_s):
                    raise
                wait_s = min(0.01 * 2 ** min(attempt - 1, 10), 1.0) + random.uniform(0, 0.01)  # noqa: S311  # no secret
                event = CallRetried(what, attempt, wait_s, error.message, waited_s, waits.owner, decided_batch_id)
                waits.log(name, event)
                tell(event)
                if waits.given_up.is_set():  # 'tell' may have set it
                    raise
            waits.given_up.wait(wait_s)
    finally:
        waits.end(name, what)


class Waits:
    """The calls of one caller that wait for an answer. They are logged together, and end together when ``given_up`` is
    set. ``owner``: the caller's query, if the caller is a coordinator."""

    def __init__(self, owner: str | None = None) -> None:
        self.owner = owner
        self.given_up = threading.Event()
        self._lock = threading.Lock()
        self._calls: dict[str, dict[str, float]] = {}  # name → call → when its wait began, by time.monotonic
        self._next_line_s: dict[str, float] = {}  # by time.monotonic

    @property
    def longest_s(self) -> float:
        """How long the oldest waiting call has waited; 0 if none waits."""
        with self._lock:
            now_s = time.monotonic()
            return max((now_s - since_s for calls in self._calls.values() for since_s in calls.values()), default=0.0)

    def log(self, name: str, event: CallRetried) -> None:
        """Log one line for all calls with this name, if a line is due."""
        now_s = time.monotonic()
        with self._lock:
            calls = self._calls.setdefault(name, {})
            calls[event.what] = now_s - event.waited_s
            if event.waited_s < FIRST_LINE_S or now_s < self._next_line_s.get(name, -math.inf):
                return
            self._next_line_s[name] = now_s + min(event.waited_s, LINES_APART_S)
            count = len(calls)
        level = logging.ERROR if event.needs_operator else logging.WARNING
        to = f" to {count} calls" if count > 1 else ""
        message = "%s: no answer%s for %.0f s (%s), again in %.1f s"
        logger.log(level, message, name if count > 1 else event.what, to, event.waited_s, event.reason, event.wait_s)

    def end(self, name: str, what: str) -> None:
        """Forget a call that has ended."""
        with self._lock:
            calls = self._calls.get(name, {})
            calls.pop(what, None)
            if not calls:
                self._calls.pop(name, None)
                self._next_line_s.pop(name, None)
