"""A coordinator's notice, in a file beside its log. It informs ``twopc status``, which runs in another process, of the
call that the coordinator is waiting for, and the next start of the failure that ended this one.

No decision depends on a notice, and it may be lost. A notice names the newest entry of the log and is valid until
another entry follows, so the notice of a killed process expires. The notice also names its driver by log id and
incarnation, so that an older driver that is still waiting does not replace it.
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
from twopc.log.entry_json import parse, repetition
from twopc.log.store import LogStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Notice:
    """A call that a target system has not answered for a minute or more."""

    entry_id: str  # the id of the log's newest entry when the notice was written
    what: str
    reason: str  # why the last attempt failed
    waited_s: float  # how long the call had been repeated
    at: str  # when the notice was written, in UTC, for operators


class Notices:
    """Writes the notice of one coordinator. Nothing depends on it, so errors of the store are only logged.

    Threads post notices, and may outlive their calls: ``withdraw`` waits for a notice that is being written.
    """

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._posted_at: Entry | None = None
        self._lock = threading.Lock()

    def post(self, tail: Entry, event: CallRetried, ended: threading.Event | None = None) -> None:
        """Record beside the log which call has no answer, unless it has ``ended``. ``tail``: the log's newest entry.
        Does nothing while another notice is being written, because otherwise commits would also wait for the store."""
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        notice = asdict(Notice(tail.entry_id, event.what, event.reason, event.waited_s, at))
        if not self._lock.acquire(blocking=False):
            return
        try:
            if ended is None or not ended.is_set():
                self._posted_at = tail
                self._write(tail, notice)
        finally:
            self._lock.release()

    def note(self, tail: Entry, repetition: Repetition) -> None:
        """Record the failure that ends this coordinator, for the next start."""
        with self._lock:
            self._posted_at = None
            self._write(tail, {}, repetition)

    def withdraw(self) -> None:
        """Record that no call waits any longer."""
        with self._lock:
            if (tail := self._posted_at) is not None and self._write(tail, {}):
                self._posted_at = None

    def _write(self, tail: Entry, notice: dict[str, Any], repetition: Repetition | None = None) -> bool:
        """Replace the file, unless it belongs to a newer driver. Keep the noted failure in it, during and after a wait:
        if the file can't be read, only a newer failure replaces it. Return False if the store failed."""
        try:
            found = _found(self._store)
        except Exception as error:  # noqa: BLE001  # ``_is_overtaken`` then reads the log
            logger.debug("the notice beside the commit log at %s could not be read: %s", self._store.url, error)
            found = None
            if repetition is None:
                return False
        try:
            if _may_be_of_another(found, tail) and self._is_overtaken(tail):
                return True
            if (kept := repetition or _repetition(found or {}, tail)) is not None:
                notice["repetition"] = asdict(kept)
            if notice:
                notice |= {"entry_id": tail.entry_id, "log_id": tail.log_id, "incarnation": tail.incarnation}
            self._store.post(json.dumps(notice).encode() if notice else b"")
        except Exception as error:  # noqa: BLE001  # the wait is also logged by this process
            logger.warning("could not write a notice beside the commit log at %s: %s", self._store.url, error)
            return False
        return True

    def _is_overtaken(self, tail: Entry) -> bool:
        """Return whether another driver has taken over the log. If the log was restored from a backup, an existing
        notice may name an incarnation that the log has lost."""
        newest = parse(self._store.read(self._store.slots()[-1]), self._store.url)
        return (newest.log_id, newest.incarnation) != (tail.log_id, tail.incarnation)


def read(store: LogStore, tail: Entry) -> Notice | None:
    """Return the valid notice, or None if there is none, or it is damaged or of another release. Raises what the store
    raises."""
    match _found(store):
        case {
            "entry_id": str(entry_id),
            "what": str(what),
            "reason": str(reason),
            "waited_s": float() | int() as waited_s,
            "at": str(at),
        } if entry_id == tail.entry_id:
            return Notice(entry_id, what, reason, waited_s, at)
    return None


def noted(store: LogStore, tail: Entry) -> Repetition | None:
    """Return the failure noted after ``tail``, or None. Raises nothing, because no start depends on it."""
    try:
        return _repetition(_found(store), tail)
    except Exception as error:  # noqa: BLE001  # the store is away
        logger.debug("the notice beside the commit log at %s could not be read: %s", store.url, error)
        return None


def _found(store: LogStore) -> dict[str, Any]:
    """Return the contents of the file; empty if it is damaged. Raises what the store raises."""
    data = store.posted()
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _repetition(found: dict[str, Any], tail: Entry) -> Repetition | None:
    try:
        return repetition(found["repetition"]) if found["entry_id"] == tail.entry_id else None
    except (KeyError, TypeError, AttributeError):  # missing or damaged
        return None


def _may_be_of_another(found: dict[str, Any] | None, tail: Entry) -> bool:
    """Return whether the file may belong to a newer driver than that of ``tail``, or to another log. ``found``: its
    contents, or None if it could not be read."""
    match found:
        case None:
            return True
        case {"log_id": str(log_id), "incarnation": int(incarnation)}:
            return log_id != tail.log_id or incarnation > tail.incarnation
    return False
