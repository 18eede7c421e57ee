"""A queue of items for a receiver or a file. A separate thread sends them, so no batch waits for either."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")

THREAD = "twopc-outbox"
"""The name of the sending threads."""

_SECRET = re.compile(r"(?<=//)[^/\s]*@|(?<=\?)[^\s'\")]+")
"""Matches secrets in a URL that an error may quote: user and password, and parameters such as an Azure Functions
key."""

logger = logging.getLogger(__name__)


class Outbox(Generic[ItemT]):
    """Sends items in order by ``send``, which must take a bounded time.

    If the waiting items' total size would exceed ``capacity``, the oldest are dropped. An item that can't be sent is
    dropped too, since clients retry by themselves. The first failure is logged, beginning with ``failed``; the next
    failure is logged only after an item was sent. A forked process begins with an empty outbox. ``dropped`` counts the
    items that were not sent and no longer wait.
    """

    def __init__(self, send: Callable[[ItemT], None], capacity: int, failed: str = "an event can't be sent") -> None:
        self._send, self._capacity, self._failed = send, capacity, failed
        self._begin()

    def _begin(self) -> None:
        self._waiting: deque[tuple[ItemT, int]] = deque()  # items with their sizes
        self._is_sending = self._is_closed = self._is_failing = self._is_full = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self.dropped = self._size = 0  # number of dropped items, size of waiting items

    def put(self, item: ItemT, size: int = 1) -> None:
        """Queue ``item`` and return at once. After ``close``, the item is dropped."""
        self._require_own_process()
        with self._changed:
            if self._is_closed:
                self.dropped += 1
                return
            while self._waiting and self._size + size > self._capacity:
                if not self._is_full:
                    logger.warning("%d events wait. From now on, the oldest are dropped", len(self._waiting))
                    self._is_full = True
                self._size -= self._waiting.popleft()[1]
                self.dropped += 1
            self._waiting.append((item, size))
            self._size += size
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
                thread.start()
                self._thread = thread
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> int:
        """Wait until all items are sent, for at most ``timeout_s`` seconds. Return how many are left."""
        self._require_own_process()
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_sending, timeout_s)
            return len(self._waiting) + self._is_sending

    def close(self, timeout_s: float) -> None:
        """Send the waiting items, for at most ``timeout_s`` seconds. Items that are left then are dropped."""
        self._require_own_process()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            left = self.flush(timeout_s)
            self.dropped += len(self._waiting)
            self._waiting.clear()
            self._size = 0
            self._is_failing = True  # later failures are not logged: the line below counts them
        if left:
            logger.warning("%d events were not sent within %.0f s, and are dropped", left, timeout_s)

    def _require_own_process(self) -> None:
        """Start afresh after a fork: the thread and the waiting items belong to the parent, where another thread may
        have held the lock."""
        if self._process != os.getpid():
            self._begin()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                item, size = self._waiting.popleft()
                self._size -= size
                self._is_sending = True
            try:
                self._send(item)
                failure = None
            except Exception as error:  # noqa: BLE001  # a client may raise anything; it is logged
                failure = error
            with self._changed:
                self._is_sending = False
                if failure is not None:
                    self.dropped += 1
                    self.fail(f"{type(failure).__name__}: {failure}")
                else:
                    self._is_failing = False
                self._changed.notify_all()

    def fail(self, reason: str) -> None:
        """Log a failure, unless one was logged since the last success."""
        if not self._is_failing:
            self._is_failing = True
            text = "%s, which is not logged again until one is: %s"
            logger.warning(text, self._failed, _SECRET.sub("", reason))
