"""The commit log: the ordered, durable record of decisions. An append is the commit point for all sinks together.

Entries (``entries``) are small JSON files. Each is created by put-if-absent in the slot after the tail.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from twopc.errors import ConfigurationError, Fenced, InDoubt, Retriable, TwoPhaseCommitError
from twopc.log.entries import (
    Decision,
    Entry,
    abandoned,
    amended,
    closed,
    completed,
    decided,
    opened,
    parse,
    renamed,
    serialise,
)
from twopc.log.store import LogStore, ReplicatedLogStore, entry_name, warn_of_late_listings
from twopc.transaction import Committable, JsonValue

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

ENTRIES_KEPT = 32
"""How many entries stay behind the tail, for operators and to repair a checkpoint. Recovery needs only the tail."""

STARTS_KEPT = 32
"""How many times as many entries stay while a query restarts again and again and appends nothing else."""


SETTLES_WITHIN_S = 120.0
"""How long a store's listing may differ from what it reads and creates. NFS with its defaults lists a removed file for
up to 60 s (``acdirmax``)."""


def read_tail(store: LogStore) -> tuple[int, Entry] | None:
    """Return the newest slot and its entry, or None if the log is empty.

    Raises:
        Retriable: the store does not answer, or lists a newest entry that it can't read.
        CorruptLog: the newest entry is not one of this version, or is damaged.
    """
    return _settled(store, lambda: _newest(store))


def _current_tail(store: LogStore) -> tuple[int, Entry] | None:
    """Return what ``read_tail`` does, of a server that no other one had replaced when it was asked."""
    if isinstance(store, ReplicatedLogStore):
        store.require_current()
    return read_tail(store)


def _newest(store: LogStore) -> tuple[int, Entry] | None:
    slots = store.slots()
    if not slots:
        return None
    newest = slots[-1]
    # Gone, or overtaken: the slot may have been pruned between the listing and the read, and filled by a zombie whose
    # entry never counted. The tail is never pruned, so what is the newest before and after is the log's own.
    with contextlib.suppress(FileNotFoundError):
        entry = parse(store.read(newest), _where(store, newest))
        if store.slots()[-1:] == [newest]:
            return newest, entry
    raise _Changed


class _Changed(Exception):
    """Another process changed the log between two looks at it, or its store contradicts itself."""


def _settled(store: LogStore, look: Callable[[], ResultT]) -> ResultT:
    """Repeat ``look`` while it raises ``_Changed``. Raises Retriable when it has for ``SETTLES_WITHIN_S``."""
    repeat = Retrying(
        retry=retry_if_exception_type(_Changed),
        wait=wait_exponential(multiplier=0.001, max=1.0),
        stop=stop_after_delay(SETTLES_WITHIN_S),
        reraise=True,
    )
    try:
        return repeat(look)
    except _Changed:
        raise Retriable(
            f"the commit log at {store.url} lists other entries than it reads or lets this process create, for"
            f" {SETTLES_WITHIN_S:g} s. Was something else than twopc removing or creating files there? On NFS or SMB,"
            " mount it with actimeo=0; then start again"
        ) from None


def read_decision(store: LogStore, batch_id: int) -> Entry | None:
    """Return the newest kept entry whose newest decided batch is ``batch_id``, or None if it was pruned."""
    for slot in reversed(store.slots()):
        with contextlib.suppress(FileNotFoundError):  # pruned since, as all before it
            entry = parse(store.read(slot), _where(store, slot))
            if entry.decided is None or entry.decided < batch_id:
                break
            if entry.decided == batch_id:
                return entry
    return None


def _where(store: LogStore, slot: int) -> str:
    return f"{store.url.rstrip('/')}/{entry_name(slot)}"


class CommitLog:
    """An open commit log: one incarnation of one coordinator.

    Upholds: of two coordinators at most one decides a slot, and the older one learns that it is fenced.
    """

    def __init__(self, store: LogStore, slot: int, tail: Entry) -> None:
        self._store = store
        self._slot = slot
        self.tail = tail

    @classmethod
    def open(cls, store: LogStore, owner: str, sinks: Mapping[str, str] | None = None) -> CommitLog:
        """Start a new incarnation, which fences every older one. ``sinks``: see ``opened``.

        Raises:
            LogMismatch, CorruptLog: nothing was changed.
            Retriable: the store does not answer, or contradicts itself; nothing was changed.
            InDoubt: the store did not report whether the entry was written; open again.
        """
        warn_of_late_listings(store)
        return _settled(store, lambda: cls._opened(store, owner, sinks))

    @classmethod
    def _opened(cls, store: LogStore, owner: str, sinks: Mapping[str, str] | None) -> CommitLog:
        slot, tail = read_tail(store) or (-1, None)
        try:
            entry = _append(store, slot + 1, opened(tail, owner, sinks), after=tail)
        except Fenced:
            raise _Changed from None  # another coordinator opened at the same moment; the newer of the two goes on
        # A query that is refused and started again decides nothing, and its repair needs what was decided.
        has_stopped_at_once = tail is not None and tail.kind == "open"
        _prune(store, slot + 1, ENTRIES_KEPT * (STARTS_KEPT if has_stopped_at_once else 1))
        return cls(store, slot + 1, entry)

    @classmethod
    def resume(cls, store: LogStore, log_id: str, incarnation: int) -> CommitLog:
        """Continue an incarnation that another process opened in the log of that id.

        Raises:
            Fenced: the incarnation is not the log's newest.
            CorruptLog: nothing was changed.
            Retriable: the log could not be read.
        """
        newest = _current_tail(store)
        if newest is None or (newest[1].log_id, newest[1].incarnation) != (log_id, incarnation):
            raise Fenced(
                f"incarnation {incarnation} can't go on at {store.url}: a newer coordinator has opened the log, or the"
                " log was removed or replaced. What this one had not decided was not and will not be committed."
                " Make sure that only one driver runs the query; the newer one goes on."
            )
        return cls(store, *newest)

    @property
    def incarnation(self) -> int:
        return self.tail.incarnation

    def decide(self, decision: Decision, reads: JsonValue = None) -> None:
        """Append the decision of a batch that read ``reads``: the commit point. All older batches are committed.

        Raises:
            Fenced: a newer coordinator has the log; the decision is not in it and never will be.
            ConfigurationError: it is too long, or the store refuses it. It is not in the log.
            InDoubt: whether it is in the log is not known here. Nothing may be committed *or aborted* on it.
        """
        self._append(decided(self.tail, decision, reads))

    def amend(self, decision: Decision) -> None:
        """Append an amended decision: from here on its committables count. Raises like ``decide``."""
        self._append(amended(self.tail, decision))

    def abandon(self, batch_id: int, given_up: Mapping[str, Collection[Committable]], by: str) -> None:
        """Append that an operator gives up decided transactions. Raises like ``abandoned`` and ``decide``."""
        self._append(abandoned(self.tail, batch_id, given_up, by))

    def complete(self) -> None:
        """Record that everything decided is committed. A log that its owner has removed does not come back for that.
        Raises like ``decide`` and ``verify``."""
        self.verify()
        self._append(completed(self.tail))

    def close(self) -> None:
        """Record a clean stop. Like ``complete``."""
        self.verify()
        self._append(closed(self.tail))

    def verify(self) -> None:
        """Make sure that no newer coordinator has opened. Upholds: a zombie rolls back only its own transactions.

        Raises:
            Fenced: a newer coordinator has opened.
            Retriable: the log could not be read.
        """
        try:
            newest = _current_tail(self._store)
        except TwoPhaseCommitError:
            raise
        except Exception as error:
            raise Retriable(f"{self._store.url} could not be read: {type(error).__name__}: {error}") from error
        if newest is None or newest[0] < self._slot:
            raise _cut_short(self._store, self._slot, self.tail)
        if newest[1].entry_id != self.tail.entry_id:
            raise _fenced(self._store, self._slot, self.tail)

    def _append(self, entry: Entry) -> None:
        self.tail = _append(self._store, self._slot + 1, entry, after=self.tail)
        self._slot += 1
        if self._slot % ENTRIES_KEPT == 0:
            _prune(self._store, self._slot, ENTRIES_KEPT)


def _append(store: LogStore, slot: int, entry: Entry, after: Entry | None) -> Entry:
    """Return the entry as the log has it: a repeated put gives it another id."""
    entry = _put(store, slot, entry)
    # Entries are pruned oldest first, so while the entry before is there, this slot was never written before. Its id
    # is compared because another zombie may have filled the pruned slot before this one. An entry that is alone is the
    # log: its first one, or the first after somebody removed the log under its driver. One that only records a rest or
    # a stop is not: no query goes on there.
    may_be_first = entry.kind not in ("complete", "close")
    if not ((after and _at(store, slot - 1, after)) or (may_be_first and _is_alone(store, slot))):
        raise _cut_short(store, slot, entry) if _withdraw(store, slot) else _fenced(store, slot, entry)
    return entry


def _withdraw(store: LogStore, slot: int) -> bool:
    """Remove an entry that does not count if it is the newest: it would pass for the tail. Return whether it was. That
    happens where the entry before it was removed, or the log was removed and another driver has begun it again.

    Raises:
        InDoubt: it may still be there, and the next start may take it for the tail.
    """
    try:
        newest = max(store.slots(), default=-1)
        if newest == slot:
            store.delete(slot)
    except Exception as error:
        raise _in_doubt(store, slot, error) from error
    if newest < slot:
        raise _in_doubt(store, slot, _NOT_SHOWN)
    return newest == slot


def _put(store: LogStore, slot: int, entry: Entry) -> Entry:
    """Put the entry if the slot is free. A second put settles an unknown outcome: either the entry is written now, or
    the slot is taken, and its entry shows by whom. The second entry has its own id: if the first lands when both slot
    and entry are long pruned, it must not pass for the entry that counted."""
    tried = [entry]
    try:
        try:
            return _put_once(store, slot, entry)
        except _UnknownOutcome:
            tried.append(renamed(entry))
            try:
                return _put_once(store, slot, tried[-1])
            except ConfigurationError as refused:  # it says nothing of the first
                raise _UnknownOutcome from refused
    except FileExistsError:
        if own := _at(store, slot, *tried):  # the first may have been written after all
            return own
        _require_taken(store, slot)
        raise _fenced(store, slot, entry) from None
    except _UnknownOutcome as unknown:
        raise _in_doubt(store, slot, unknown.__cause__) from unknown.__cause__


class _UnknownOutcome(Exception):
    pass


def _put_once(store: LogStore, slot: int, entry: Entry) -> Entry:
    try:
        store.put_if_absent(slot, serialise(entry))
    except (FileExistsError, ConfigurationError):
        raise
    except Exception as error:
        raise _UnknownOutcome from error
    return entry


_NOT_SHOWN = FileNotFoundError("the store confirmed an entry, and shows neither it nor a newer one")
"""A gateway may answer 404 in the place of the store."""


def _require_taken(store: LogStore, slot: int) -> None:
    """Make sure that an entry that is not this process's own is, or was, in a slot which the store calls taken.

    Raises:
        InDoubt: the store shows none.
    """
    try:
        is_taken = store.slots()[-1:] >= [slot] or bool(store.read(slot))
    except FileNotFoundError:
        is_taken = False
    except Exception as error:
        raise _in_doubt(store, slot, error) from error
    if not is_taken:
        raise _in_doubt(store, slot, _NOT_SHOWN)


def _at(store: LogStore, slot: int, *entries: Entry) -> Entry | None:
    """Return the one of ``entries`` that the slot has, if any."""
    try:
        data = store.read(slot)
    except FileNotFoundError:
        return None
    except Exception as error:
        raise _in_doubt(store, slot, error) from error
    found = parse(data, _where(store, slot)).entry_id
    return next((entry for entry in entries if entry.entry_id == found), None)


def _is_alone(store: LogStore, slot: int) -> bool:
    try:
        return store.slots() == [slot]
    except Exception as error:
        raise _in_doubt(store, slot, error) from error


def _in_doubt(store: LogStore, slot: int, error: BaseException | None) -> InDoubt:
    return InDoubt(
        f"an append to the commit log failed at {_where(store, slot)} ({type(error).__name__}: {error}): whether the"
        " entry was or will be written is not known here. Start again: recovery reads it from the log."
    )


def _fenced(store: LogStore, slot: int, entry: Entry) -> Fenced:
    return Fenced(
        f"incarnation {entry.incarnation} of query {entry.owner} can't go on at {_where(store, slot)}: a newer"
        " coordinator has opened the log. What this one had not decided was not and will not be committed."
        " Make sure that only one driver runs the query; the newer one goes on."
    )


def _cut_short(store: LogStore, slot: int, entry: Entry) -> Fenced:
    return Fenced(
        f"incarnation {entry.incarnation} of query {entry.owner} can't go on at {_where(store, slot)}: its own newest"
        " entry is gone from the log, so something else than twopc has removed entries or has replaced the log. What"
        " this coordinator had not decided was not and will not be committed. Stop what removes entries, restore the"
        " newest entries from a backup, and start again."
    )


def _prune(store: LogStore, tail: int, kept: int) -> None:
    """Remove entries far behind the tail, oldest first. A failure costs only space."""
    try:
        for slot in store.slots():
            if slot < tail - kept:
                store.delete(slot)
    except Exception as error:  # noqa: BLE001  # whatever the store's client raises
        logger.warning("could not prune the commit log at %s: %s", store.url, error)
