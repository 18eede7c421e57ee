"""What a coordinator has been waiting for, in a file beside its log: ``twopc status`` looks into no other process.

Nothing is decided by a notice, and it may be lost. It counts for as long as the log's newest entry is the one that it
names, so a process that was killed while it waited leaves none that lasts.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime, timezone

from twopc.events import CallRetried
from twopc.log.entries import Entry
from twopc.log.store import LogStore


@dataclass(frozen=True, slots=True)
class Notice:
    """A call that a target has not answered for a minute or more.

    Attributes:
        entry_id: of the log's newest entry then.
        what: the call.
        reason: why the last attempt failed.
        waited_s: for how long it had been repeated.
        at: when this was written: UTC, for people.
    """

    entry_id: str
    what: str
    reason: str
    waited_s: float
    at: str


def post(store: LogStore, tail: Entry, event: CallRetried) -> None:
    """Tell of ``event`` beside the log. Raises what the store does."""
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    store.post(json.dumps(asdict(Notice(tail.entry_id, event.what, event.reason, event.waited_s, at))).encode())


def withdraw(store: LogStore) -> None:
    """Nothing waits any more. Raises what the store does."""
    store.post(b"")


def read(store: LogStore, tail: Entry) -> Notice | None:
    """The notice that counts, if there is one. Raises what the store does."""
    try:
        notice = Notice(**json.loads(store.posted() or b"null"))
    except (ValueError, TypeError):  # none, or of another version
        return None
    return notice if notice.entry_id == tail.entry_id else None
