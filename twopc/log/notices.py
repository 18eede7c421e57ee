"""The notice of a coordinator, in a file beside its log: the call that it waits for, for ``twopc status`` in another
process; and the failure that has ended the last start, for the next one.

No decision depends on a notice, and it may be lost. It is valid while the log's newest entry is the one that it names,
so a process that is killed while it waits leaves none that lasts.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from twopc.events import CallRetried
from twopc.log.entries import Entry, Repetition
from twopc.log.store import LogStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Notice:
    """A call that a target system has not answered for a minute or more."""

    entry_id: str  # the id of the log's newest entry at that time
    what: str
    reason: str  # why the last attempt failed
    waited_s: float  # how long the call had been repeated
    at: str  # when the notice was written, in UTC, for operators


class Notices:
    """The notice of one coordinator. Its wait does not depend on it, so an error of the store is only logged.

    Threads post, and may outlive what they tell of: a notice that is on its way is withdrawn when it has arrived.
    """

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._posted_at: Entry | None = None
        self._lock = threading.Lock()

    def post(self, tail: Entry, event: CallRetried, ended: threading.Event | None = None) -> None:
        """Record beside the log which call has no answer, unless it has ``ended``. ``tail`` is the log's newest entry.
        Does not wait for a notice that is on its way: commits would wait for the store with it."""
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        notice = asdict(Notice(tail.entry_id, event.what, event.reason, event.waited_s, at))
        if not self._lock.acquire(blocking=False):
            return
        try:
            if ended is None or not ended.is_set():
                self._posted_at = tail
                self._write(tail, noted(self._store, tail), **notice)
        finally:
            self._lock.release()

    def note(self, tail: Entry, repetition: Repetition) -> None:
        """Leave the failure that ends this coordinator to the next start."""
        with self._lock:
            self._posted_at = None
            self._write(tail, repetition)

    def withdraw(self) -> None:
        """Record that no call waits any more."""
        with self._lock:
            if (tail := self._posted_at) is not None:
                self._posted_at = None
                self._write(tail, noted(self._store, tail))

    def _write(self, tail: Entry, repetition: Repetition | None, **notice: Any) -> None:
        """Replace the file. What the last start has noted stays in it while a call waits, and afterwards."""
        if repetition is not None:
            notice |= {"entry_id": tail.entry_id, "repetition": asdict(repetition)}
        try:
            self._store.post(json.dumps(notice).encode() if notice else b"")
        except Exception as error:  # noqa: BLE001  # the process's own log has the wait, too
            logger.warning("could not write a notice beside the commit log at %s: %s", self._store.url, error)


def read(store: LogStore, tail: Entry) -> Notice | None:
    """Return the valid notice, or None. Raises what the store raises."""
    try:
        value = json.loads(store.posted() or b"{}")
        value.pop("repetition", None)
        notice = Notice(**value)
    except (ValueError, TypeError, AttributeError):  # none, or of another version
        return None
    return notice if notice.entry_id == tail.entry_id else None


def noted(store: LogStore, tail: Entry) -> Repetition | None:
    """Return the failure that is noted after ``tail``, or None. Raises nothing: no start depends on it."""
    try:
        value = json.loads(store.posted() or b"null")
        return Repetition.of(value["repetition"]) if value["entry_id"] == tail.entry_id else None
    except Exception as error:  # noqa: BLE001  # there is none, it is damaged or of another kind, or the store is away
        logger.debug("no failure is noted beside the commit log at %s: %s", store.url, error)
        return None
