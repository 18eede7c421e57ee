"""What waits for a receiver or a file: sent on a thread of its own, so that no batch waits with it."""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")

RETRY_S = 5.0
"""How long after a failure an item is sent again."""

THREAD = "twopc-outbox"
"""The name of each thread that sends."""

_USER = re.compile(r"//[^/@\s]*@")
"""In a URL: a user and a password, which an error may quote."""

logger = logging.getLogger(__name__)


class Outbox(Generic[ItemT]):
    """Sends items in the order in which they were put in.

    While the receiver is away, items wait, and the oldest is dropped for each that there is no room for. An item that
    the receiver refuses is dropped. Failures are logged once until an item is sent again.

    Args:
        send: sends an item, in bounded time.
        capacity: how many items wait at most.
        may_pass: whether an exception of ``send`` may not come again.

    Attributes:
        dropped: how many items were not sent and never will be.
    """

    def __init__(self, send: Callable[[ItemT], None], capacity: int, may_pass: Callable[[Exception], bool]) -> None:
        self._send = send
        self._may_pass = may_pass
        self._capacity = capacity
        self._waiting: deque[ItemT] = deque()
        self._is_sending = self._is_closed = self._is_failing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def put(self, item: ItemT) -> None:
        """Have ``item`` sent. Returns at once. After ``close``, it is dropped."""
        with self._changed:
            if self._is_closed:
                self.dropped += 1
                return
            if len(self._waiting) >= self._capacity:
                if not self.dropped:
                    logger.warning("%d events wait to be sent. From now on, the oldest are dropped", self._capacity)
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(item)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
                thread.start()
                self._thread = thread
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> int:
        """Wait until all items are sent, for at most ``timeout_s`` seconds. Return how many are not."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_sending, timeout_s)
            return len(self._waiting) + self._is_sending

    def close(self, timeout_s: float) -> None:
        """Try each item that is not sent once more, for at most ``timeout_s`` seconds. What is left then is dropped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            left = self.flush(timeout_s)
            self.dropped += len(self._waiting)
            self._waiting.clear()
            self._capacity = 0  # what still fails has no place to wait in
        if left:
            logger.warning("%d events were not sent within %.0f s, and are dropped", left, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                item = self._waiting.popleft()
                self._is_sending, is_last_try = True, self._is_closed
            failure = self._failure_of(item)
            with self._changed:
                self._is_sending = False
                if failure is not None:
                    self._failed(item, failure, is_last_try)
                self._changed.notify_all()

    def _failure_of(self, item: ItemT) -> Exception | None:
        try:
            self._send(item)
        except Exception as error:  # noqa: BLE001  # a client may raise anything; it is logged
            return error
        self._is_failing = False
        return None

    def _failed(self, item: ItemT, error: Exception, is_last_try: bool) -> None:
        """Put an item back, or drop it. Waits with the lock released."""
        if not self._is_failing:
            text = _USER.sub("//", f"{type(error).__name__}: {error}")
            logger.warning("an event can't be sent, which is not logged again until one is: %s", text)
            self._is_failing = True
        if not self._may_pass(error) or is_last_try or len(self._waiting) >= self._capacity:
            self.dropped += 1
            return
        self._waiting.appendleft(item)
        self._changed.wait_for(lambda: self._is_closed, RETRY_S)
