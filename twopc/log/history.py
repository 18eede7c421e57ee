"""A commit log as an operator sees it: every kept entry, read and checked. Nothing is changed."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass

from twopc.errors import ConfigurationError, CorruptLog
from twopc.log import notices
from twopc.log.entries import Entry, parse
from twopc.log.notices import Notice
from twopc.log.store import LogStore, entry_name, store_of

ATTEMPTS = 5
"""A running driver may append and prune between the listing and the reads. Then the log is read once more."""


@dataclass(frozen=True, slots=True)
class History:
    """The kept entries, oldest first. The last one is the whole state of the log. ``notice`` is what its coordinator
    has been waiting for."""

    store: LogStore
    entries: tuple[Entry, ...]
    notice: Notice | None = None

    @property
    def tail(self) -> Entry:
        return self.entries[-1]

    @property
    def is_clean(self) -> bool:
        """Whether its last coordinator stopped cleanly."""
        return self.tail.kind == "close"

    @property
    def sinks(self) -> list[str]:
        """The sinks that kept decisions name."""
        return sorted({name for entry in self.entries for d in entry.unresolved for name in d.committables})

    def in_doubt_since(self, batch_id: int) -> str:
        """Return when the oldest kept entry that has the batch unresolved was written, in UTC."""
        return next(e.written_at for e in self.entries if any(d.batch_id == batch_id for d in e.unresolved))


def read_history(log: str | os.PathLike[str] | LogStore) -> History:
    """Read every entry of the log at a path or URL, or in a store.

    Raises:
        ConfigurationError: the place has no log, or can't be read.
        CorruptLog: an entry is not what a coordinator writes, belongs to another log, or one is missing.
    """
    store = store_of(log)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _read(store)
        except (FileNotFoundError, CorruptLog) as error:
            if attempt == ATTEMPTS:
                if isinstance(error, CorruptLog):
                    raise
                raise ConfigurationError(
                    f"the commit log at {store.url} changes while it is read. Try again."
                ) from error
        except OSError as error:
            raise ConfigurationError(
                f"the commit log at {store.url} can't be read ({type(error).__name__}: {error.strerror or error})."
                " Name the place that the query was given as 'log', and run this as a user who may read it."
                " Nothing was changed."
            ) from error
    raise AssertionError("unreachable")


def _read(store: LogStore) -> History:
    slots = store.slots()
    if not slots:
        raise ConfigurationError(
            f"there is no commit log at {store.url}: no such place, or no entry in it. Name the place that the query"
            " was given as 'log'. Nothing was created."
        )
    where = {slot: f"{store.url.rstrip('/')}/{entry_name(slot)}" for slot in slots}
    entries = {slot: parse(store.read(slot), where[slot]) for slot in slots}
    for before, slot in itertools.pairwise(slots):
        wrong = _misfit(before, entries[before], slot, entries[slot])
        if wrong:
            raise CorruptLog(
                f"{where[slot]} does not follow the entry before: {wrong}. Nothing was changed. Another program than"
                " a coordinator wrote to this place, or removed a part of it: restore it from a backup. The query"
                " needs only the newest entry, so it can be started."
            )
    kept = tuple(entries.values())
    return History(store, kept, notices.read(store, kept[-1]))


def _misfit(slot_before: int, before: Entry, slot: int, entry: Entry) -> str | None:
    if slot != slot_before + 1:
        return f"{slot - slot_before - 1} entries are missing in between"
    if (entry.log_id, entry.owner) != (before.log_id, before.owner):
        return (
            f"it belongs to log {entry.log_id!r} of query {entry.owner}, and the one before to log {before.log_id!r}"
            f" of query {before.owner}"
        )
    if entry.incarnation < before.incarnation:
        return f"it is of incarnation {entry.incarnation}, and the one before of the newer {before.incarnation}"
    if (-1 if entry.decided is None else entry.decided) < (-1 if before.decided is None else before.decided):
        return f"it has decided batch {entry.decided}, and the one before has decided batch {before.decided}"
    return None
