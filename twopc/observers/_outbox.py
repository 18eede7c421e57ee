"""A queue of items for a receiver or a file. A thread of its own sends them, so no batch waits for either."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")

RETRY_S = 5.0
"""The pause after a failure, before an item is sent again."""

TRIES = 12
"""The number of failures, in a minute or more, after which an item lets the next one pass. If others are sent then and
it fails as often again, it is dropped."""

THREAD = "twopc-outbox"
"""The name of each thread that sends."""

_SECRET = re.compile(r"(?<=//)[^/\s]*@|(?<=\?)[^\s'\")]+")
"""In a URL, which an error may quote: a user and a password, and parameters, such as a key of Azure Functions."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Waiting(Generic[ItemT]):
    """An item that waits.

    Attributes:
        failures: since it came, or since it last let another one pass.
        let_pass: how many items had been sent when it did; None if it never did.
    """

    item: ItemT
    size: int
    failures: int = 0
    let_pass: int | None = None


class Outbox(Generic[ItemT]):
    """Sends items in the order in which they were put in; of the first two, either may be first after a long failure.

    While the receiver is away, items wait, and the oldest are dropped for one that there is no room for. An item that
    the receiver refuses is dropped, and so is one that keeps failing while the receiver takes others. Failures are
    logged once until an item is sent again. A process that was forked from this one begins with an empty outbox.

    Args:
        send: sends an item, in bounded time.
        capacity: how many items wait at most; or the sum of their sizes, in the unit in which ``put`` is given them.
        may_pass: whether an exception of ``send`` may not come again.

    Attributes:
        dropped: how many items were not sent and never will be.
    """

    def __init__(self, send: Callable[[ItemT], None], capacity: int, may_pass: Callable[[Exception], bool]) -> None:
        self._send = send
        self._may_pass = may_pass
        self._capacity = capacity
        self._begin()

    def _begin(self) -> None:
        self._waiting: deque[_Waiting[ItemT]] = deque()
        self._is_sending = self._is_closed = self._is_failing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._sent = self.dropped = self._size = 0  # the last one is of what waits

    def put(self, item: ItemT, size: int = 1) -> None:
        """Have ``item`` sent. Returns at once. After ``close``, it is dropped."""
        self._require_own_process()
        with self._changed:
            if self._is_closed:
                self.dropped += 1
                return
            while self._waiting and not self._has_room(size):
                if not self.dropped:
                    logger.warning("%d events wait. From now on, the oldest are dropped", len(self._waiting))
                self._size -= self._waiting.popleft().size
                self.dropped += 1
            self._waiting.append(_Waiting(item, size))
            self._size += size
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
                thread.start()
                self._thread = thread
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> int:
        """Wait until all items are sent, for at most ``timeout_s`` seconds. Return how many are not."""
        self._require_own_process()
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_sending, timeout_s)
            return len(self._waiting) + self._is_sending

    def close(self, timeout_s: float) -> None:
        """Try each item that is not sent once more, for at most ``timeout_s`` seconds. What is left then is dropped."""
        self._require_own_process()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            left = self.flush(timeout_s)
            self.dropped += len(self._waiting)
            self._waiting.clear()
            self._size = 0
            self._capacity = 0  # what still fails has no place to wait in
            self._is_failing = True  # nor is it logged: it is among those below
        if left:
            logger.warning("%d events were not sent within %.0f s, and are dropped", left, timeout_s)

    def _require_own_process(self) -> None:
        """Begin anew after a fork: the thread and what waits stayed behind, and somebody may have held the lock."""
        if self._process != os.getpid():
            self._begin()

    def _has_room(self, size: int) -> bool:
        return self._size + size <= self._capacity

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                one = self._waiting.popleft()
                self._size -= one.size
                self._is_sending, is_last_try = True, self._is_closed
            failure = self._failure_of(one.item)
            with self._changed:
                self._is_sending = False
                if failure is not None:
                    self._put_back(one, failure, is_last_try)
                self._changed.notify_all()

    def _failure_of(self, item: ItemT) -> Exception | None:
        try:
            self._send(item)
        except Exception as error:  # noqa: BLE001  # a client may raise anything; it is logged
            return error
        self._is_failing = False
        self._sent += 1
        return None

    def _put_back(self, one: _Waiting[ItemT], error: Exception, is_last_try: bool) -> None:
        """Put an item back, or drop it. Waits with the lock released."""
        if not self._is_failing:
            text = _SECRET.sub("", f"{type(error).__name__}: {error}")
            logger.warning("an event can't be sent, which is not logged again until one is: %s", text)
            self._is_failing = True
        one.failures += 1
        is_at_fault = one.failures >= TRIES and one.let_pass is not None and one.let_pass < self._sent
        if not self._may_pass(error) or is_at_fault or is_last_try or not self._has_room(one.size):
            self.dropped += 1
            return
        self._size += one.size
        if one.failures >= TRIES and self._waiting:
            one.failures, one.let_pass = 0, self._sent
            self._waiting.insert(1, one)
        else:
            self._waiting.appendleft(one)
        self._changed.wait_for(lambda: self._is_closed, RETRY_S)
