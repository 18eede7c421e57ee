"""A commit log as operators see it: every kept entry, read and checked. Nothing is changed."""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass, replace

from twopc.errors import ConfigurationError, CorruptLog, Retriable
from twopc.log import notices
from twopc.log.entries import Decision, Entry, Repetition
from twopc.log.entry_json import parse
from twopc.log.notices import Notice
from twopc.log.steps import where
from twopc.log.store import LogStore, store_of
from twopc.stores.errors import TEMPORARY

ATTEMPTS = 5
"""How often a reading is tried at most. A reading fails if a running driver appends and prunes between its listing and
its reads."""


@dataclass(frozen=True, slots=True)
class History:
    """The kept entries, oldest first. The last one is the whole state of the log.

    Attributes:
        entries: all but the last lack the transactions of their decisions, because wide batches would fill the memory.
        sizes: for each entry, the number of transactions and of records in its unresolved decisions.
        bytes: the size of all entries.
        notice: the call that the coordinator waits for.
        repetition: the failure that the query has repeated since the last decision.
    """

    store: LogStore
    entries: tuple[Entry, ...]
    sizes: tuple[tuple[int, int], ...]
    bytes: int
    notice: Notice | None = None
    repetition: Repetition | None = None

    @property
    def tail(self) -> Entry:
        return self.entries[-1]

    @property
    def is_clean(self) -> bool:
        """Whether the last coordinator stopped cleanly."""
        return self.tail.kind == "close"

    @property
    def sinks(self) -> list[str]:
        """The sinks that kept decisions name."""
        return sorted({name for entry in self.entries for d in entry.unresolved for name in d.committables})

    def in_doubt_since(self, batch_id: int) -> str:
        """Return when the oldest kept entry with the batch unresolved was written, in UTC."""
        return next(e.written_at for e in self.entries if any(d.batch_id == batch_id for d in e.unresolved))


class NoLog(ConfigurationError):
    """The folder or store contains no entry: no query has begun a log there, or the log is elsewhere."""


def read_history(log: str | os.PathLike[str] | LogStore) -> History:
    """Read every entry of the log at a path or URL, or in a store. Raises the same errors as ``FollowedLog.read``."""
    return FollowedLog(log).read()


class FollowedLog:
    """A log that is read repeatedly.

    Entries never change. While the newest entry of the last reading is unchanged, so are all earlier entries, and only
    newer ones are read.
    """

    def __init__(self, log: str | os.PathLike[str] | LogStore) -> None:
        self.store = store_of(log)
        self._known: dict[int, _Kept] = {}

    def read(self) -> History:
        """Return the log as it is now.

        Raises:
            NoLog: there is no log.
            ConfigurationError: the log can't be read.
            Retriable: the log's store does not answer.
            CorruptLog: an entry is malformed, belongs to another log, or is missing.
        """
        try:
            for _ in range(ATTEMPTS - 1):
                with contextlib.suppress(FileNotFoundError, CorruptLog):
                    return self._read()
                self._known = {}
            return self._read()
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"the commit log at {self.store.url} changes while it is read. Try again."
            ) from error
        except OSError as error:
            text = (
                f"the commit log at {self.store.url} can't be read ({type(error).__name__}: {error.strerror or error})"
            )
            if error.errno in TEMPORARY:
                raise Retriable(f"{text}. Nothing was changed. Try again.") from error
            raise ConfigurationError(
                f"{text}. Name the place that the query was given as 'log', and run this as a user who may read it."
                " Nothing was changed."
            ) from error

    def _read(self) -> History:
        kept = self._kept()
        for before, slot in itertools.pairwise(kept):
            wrong = _misfit(before, kept[before].entry, slot, kept[slot].entry)
            if wrong:
                raise CorruptLog(
                    f"{where(self.store.url, slot)} does not follow the entry before: {wrong}. Nothing was changed."
                    " Another program than a coordinator wrote to this place, or removed a part of it: restore it from"
                    " a backup. The query needs only the newest entry, so it can be started."
                )
        newest = max(kept)
        self._known = {slot: each if slot == newest else each.slim() for slot, each in kept.items()}
        entries, sizes = tuple(each.entry for each in kept.values()), tuple(each.size for each in kept.values())
        notice = notices.read(self.store, entries[-1])
        repetition = notices.noted(self.store, entries[-1]) or entries[-1].repetition
        return History(self.store, entries, sizes, sum(each.bytes for each in kept.values()), notice, repetition)

    def _kept(self) -> dict[int, _Kept]:
        """Return the kept entries, oldest first. Raises FileNotFoundError if even the newest is gone."""
        slots = self.store.slots()
        if not slots:
            self._known = {}
            raise NoLog(
                f"there is no commit log at {self.store.url}: no such place, or no entry in it. Name the place that the"
                " query was given as 'log'. Nothing was created."
            )
        known = self._known if self._is_the_same_log(slots) else {}
        kept: dict[int, _Kept] = {}
        for slot in reversed(slots):
            try:
                found = known.get(slot) or self._at(slot)
                kept[slot] = found.without_transactions() if kept else found
            except FileNotFoundError:
                if not kept:
                    raise
                break  # pruned since the listing, like all before it
        return dict(sorted(kept.items()))

    def _is_the_same_log(self, slots: list[int]) -> bool:
        last = max(self._known, default=None)
        if last not in slots:
            return False
        return self._at(last).entry.entry_id == self._known[last].entry.entry_id

    def _at(self, slot: int) -> _Kept:
        data = self.store.read(slot)
        entry = parse(data, where(self.store.url, slot))
        transactions = [c for d in entry.unresolved for of_sink in d.committables.values() for c in of_sink]
        return _Kept(entry, len(data), (len(transactions), sum(each.records or 0 for each in transactions)))


@dataclass(frozen=True, slots=True)
class _Kept:
    entry: Entry
    bytes: int
    size: tuple[int, int]

    def without_transactions(self) -> _Kept:
        unresolved = tuple(Decision(d.round, dict.fromkeys(d.committables, ())) for d in self.entry.unresolved)
        return replace(self, entry=replace(self.entry, unresolved=unresolved))

    def slim(self) -> _Kept:
        """Return the entry without the parts that take most memory, for the next reading."""
        return replace(self, entry=replace(self.without_transactions().entry, abandoned=(), reads=None))


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
