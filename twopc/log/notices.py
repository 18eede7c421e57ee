"""The notice of a coordinator, in a file beside its log: the call that it waits for, for ``twopc status`` in another
process; or the failure that has ended it, for the next start.

No decision depends on a notice, and it may be lost. It is valid while the log's newest entry is the one that it names,
so a process that is killed while it waits leaves none that lasts.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from datetime import datetime, timezone

from twopc.events import CallRetried
from twopc.log.entries import Entry, Repetition
from twopc.log.store import LogStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Notice:
    """A call that a target system has not answered for a minute or more.

    Attributes:
        entry_id: the id of the log's newest entry at that time.
        what: the call.
        reason: why the last attempt failed.
        waited_s: how long the call had been repeated.
        at: when the notice was written, in UTC, for operators.
    """

    entry_id: str
    what: str
    reason: str
    waited_s: float
    at: str


class Notices:
    """The notice of one coordinator. Its wait does not depend on it, so an error of the store is only logged."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._is_posted = False

    def post(self, tail: Entry, event: CallRetried) -> None:
        """Record beside the log which call has no answer. ``tail`` is the log's newest entry."""
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._is_posted = True
        self._write(json.dumps(asdict(Notice(tail.entry_id, event.what, event.reason, event.waited_s, at))).encode())

    def note(self, tail: Entry, repetition: Repetition) -> None:
        """Leave the failure that ends this coordinator to the next start."""
        self._is_posted = False
        self._write(json.dumps({"entry_id": tail.entry_id, "repetition": asdict(repetition)}).encode())

    def withdraw(self) -> None:
        """Record that no call waits any more."""
        if self._is_posted:
            self._is_posted = False
            self._write(b"")

    def _write(self, data: bytes) -> None:
        try:
            self._store.post(data)
        except Exception as error:  # noqa: BLE001  # the process's own log has the wait, too
            logger.warning("could not write a notice beside the commit log at %s: %s", self._store.url, error)


def read(store: LogStore, tail: Entry) -> Notice | None:
    """Return the valid notice, or None. Raises what the store raises."""
    try:
        notice = Notice(**json.loads(store.posted() or b"null"))
    except (ValueError, TypeError):  # none, or of another version
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
