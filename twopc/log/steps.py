"""The steps of the commit log: append an entry, open the log, look at its tail. No I/O: the functions are generators
that yield the effects of ``twopc.effects``.

Entries (``entries``) are small JSON files. Each is created by put-if-absent in the slot after the tail. Any answer of
the store may be lost, slots are pruned, and another process may write at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from twopc.effects import (
    DeleteSlot,
    Log,
    LogView,
    Noted,
    Put,
    ReadId,
    ReadSlot,
    Repeat,
    RequireCurrent,
    Slots,
    Steps,
    UntilStable,
)
from twopc.errors import ConfigurationError, CorruptLog, Fenced, InDoubt, Retriable, TwoPhaseCommitError
from twopc.log.entries import Entry, opened, renamed
from twopc.log.entry_json import entry_name

ENTRIES_KEPT = 32
"""How many entries stay behind the tail, for operators and to repair a checkpoint. Recovery needs only the tail."""

STARTS_KEPT = 32
"""Multiplies ``ENTRIES_KEPT`` if the previous start appended nothing after its opening entry, so that failed starts do
not prune the decisions that a repair needs."""


class Changed(Exception):
    """Another process changed the log between two reads, or the store contradicts itself."""


def where(url: str, slot: int) -> str:
    """Return the location of an entry, for messages."""
    return f"{url.rstrip('/')}/{entry_name(slot)}"


def read_tail() -> Steps[tuple[int, Entry] | None]:
    """Return the newest slot and its entry, or None if the log is empty."""
    newest: tuple[int, Entry] | None = yield UntilStable(_newest)
    return newest


def _newest() -> Steps[tuple[int, Entry] | None]:
    slots = yield Slots()
    if not slots:
        return None
    # Between the listing and the read, the slot may have been pruned, and filled by a zombie whose entry never counted.
    # The tail is never pruned, so an entry that is the newest before and after the read is genuine.
    entry = yield ReadSlot(slots[-1])
    if entry is not None and (yield Slots())[-1:] == slots[-1:]:
        return slots[-1], entry
    raise Changed


def _current_tail() -> Steps[tuple[int, Entry] | None]:
    """Read the tail, after a check that no other server has replaced the log's server."""
    yield RequireCurrent()
    return (yield from read_tail())


def read_decision(batch_id: int) -> Steps[Entry | None]:
    """Return the newest kept entry whose newest decided batch is ``batch_id``, or None if all such entries were
    pruned."""
    for slot in reversed((yield Slots())):
        entry = yield ReadSlot(slot)
        if entry is None:  # pruned since the listing, like all before it
            continue
        if entry.decided is None or entry.decided < batch_id:
            break
        if entry.decided == batch_id:
            return entry  # type: ignore[no-any-return]  # an effect's answer has no type
    return None


def open_log(url: str, owner: str, sinks: Mapping[str, str] | None) -> Steps[LogView]:
    """Start a new incarnation, which fences every older one."""
    opened_log: LogView = yield UntilStable(lambda: _opened(url, owner, sinks))
    return opened_log


def _opened(url: str, owner: str, sinks: Mapping[str, str] | None) -> Steps[LogView]:
    slot, tail = (yield from read_tail()) or (-1, None)
    try:
        noted = None if tail is None else (yield Noted(tail))
        entry = yield from _appended(url, slot + 1, opened(tail, owner, sinks, noted), after=tail)
    except Fenced:
        raise Changed from None  # another coordinator opened at the same moment; the newer one wins
    # While a query is refused at each start it decides nothing, and its repair needs the older decisions.
    has_stopped_at_once = tail is not None and tail.kind == "open"
    yield from _prune(url, slot + 1, ENTRIES_KEPT * (STARTS_KEPT if has_stopped_at_once else 1))
    return LogView(url, slot + 1, entry)


def resume_log(url: str, log_id: str, incarnation: int) -> Steps[LogView]:
    """Continue an incarnation that another process opened in the log with that id. Raises Fenced if it is not the
    newest."""
    newest = yield from _current_tail()
    if newest is None or (newest[1].log_id, newest[1].incarnation) != (log_id, incarnation):
        raise Fenced(
            f"incarnation {incarnation} can't go on at {url}: a newer coordinator has opened the log, or the"
            " log was removed or replaced. What this one had not decided was not and will not be committed."
            " Make sure that only one driver runs the query; the newer one goes on."
        )
    return LogView(url, *newest)


def append(log: LogView, entry: Entry) -> Steps[None]:
    """Append an entry, which becomes the tail.

    Upholds: at most one of two coordinators decides a slot, and the older one learns that it is fenced.

    Raises:
        Fenced: a newer coordinator has the log; the entry is not in it and never will be.
        ConfigurationError: the entry is too long, or the store refuses it. It is not in the log.
        InDoubt: it is unknown whether the entry is in the log. Nothing may be committed *or aborted* because of it.
    """
    log.tail = yield from _appended(log.url, log.slot + 1, entry, after=log.tail)
    log.slot += 1
    if log.slot % ENTRIES_KEPT == 0:
        yield from _prune(log.url, log.slot, ENTRIES_KEPT)


def verify(log: LogView) -> Steps[None]:
    """Raise Fenced if a newer coordinator has opened, and Retriable if the log could not be read. Upholds: a zombie
    rolls back only its own transactions."""
    try:
        newest = yield from _current_tail()
    except TwoPhaseCommitError:
        raise
    except Exception as error:
        raise Retriable(f"{log.url} could not be read: {type(error).__name__}: {error}") from error
    if newest is None or newest[0] < log.slot:
        raise _cut_short(log.url, log.slot, log.tail)
    if newest[1].entry_id != log.tail.entry_id:
        raise _fenced(log.url, log.slot, log.tail)


def look(log: LogView, patience_s: float | None = None) -> Repeat:
    """Check that no newer coordinator has taken over the work that this one is about to do or has failed to do."""
    return Repeat("look at the log", lambda: verify(log), patience_s)


def _appended(url: str, slot: int, entry: Entry, after: Entry | None) -> Steps[Entry]:
    """Put an entry, and return it with the id that it has in the log: a repeated put changes the id."""
    entry = yield from _put(url, slot, entry)
    # Entries are pruned oldest first, so if the previous entry still exists, this slot was never written before. The
    # previous entry's id is compared, because another zombie may have filled its slot after pruning. An entry that is
    # alone is the log's first, or the first after somebody removed the log under its driver. A "complete" or "close"
    # entry can't be the first, because no query goes on from it.
    may_be_first = entry.kind not in ("complete", "close")
    counts = after is not None and (yield from _at(url, slot - 1, after)) is not None
    if not (counts or (may_be_first and (yield from _is_alone(url, slot)))):
        is_withdrawn = yield from _withdraw(url, slot)
        raise _cut_short(url, slot, entry) if is_withdrawn else _fenced(url, slot, entry)
    return entry


def _withdraw(url: str, slot: int) -> Steps[bool]:
    """Remove an entry that does not count, if it is the newest entry and so would pass for the tail. Return whether it
    was the newest: then the previous entry was removed, or the whole log was removed and another driver has begun it
    again. Raises InDoubt: the entry may still exist, and the next start may take it for the tail."""
    try:
        newest = max((yield Slots()), default=-1)
        if newest == slot:
            yield DeleteSlot(slot)
    except Exception as error:
        raise _in_doubt(url, slot, error) from error
    if newest < slot:
        raise _in_doubt(url, slot, _NOT_SHOWN)
    return bool(newest == slot)


def _put(url: str, slot: int, entry: Entry) -> Steps[Entry]:
    """Put the entry if the slot is free. A second put settles an unknown outcome: either it writes the entry, or the
    slot is taken, and the entry there shows by whom. The second entry has its own id. Otherwise the first, if it landed
    long after the slot was pruned, would pass for the entry that counted."""
    tried = [entry]
    try:
        try:
            return (yield from _put_once(slot, entry))
        except _UnknownOutcome:
            tried.append(renamed(entry))
            try:
                return (yield from _put_once(slot, tried[-1]))
            except ConfigurationError as refused:  # the first may still be written
                raise _UnknownOutcome from refused
    except FileExistsError:
        if own := (yield from _at(url, slot, *tried)):  # the first may have been written after all
            return own
        yield from _require_taken(url, slot)
        raise _fenced(url, slot, entry) from None
    except _UnknownOutcome as unknown:
        raise _in_doubt(url, slot, unknown.__cause__) from unknown.__cause__


class _UnknownOutcome(Exception):
    pass


def _put_once(slot: int, entry: Entry) -> Steps[Entry]:
    try:
        yield Put(slot, entry)
    except (FileExistsError, ConfigurationError):
        raise
    except Exception as error:
        raise _UnknownOutcome from error
    return entry


_NOT_SHOWN = FileNotFoundError("the store confirmed an entry, and shows neither it nor a newer one")
"""A gateway may answer 404 instead of the store."""


def _require_taken(url: str, slot: int) -> Steps[None]:
    """Check that a slot reported as taken by the store contains, or contained, another process's entry. Raises InDoubt:
    the store shows no such entry."""
    try:
        is_taken = (yield Slots())[-1:] >= [slot] or (yield ReadId(slot)) is not None
    except Exception as error:
        raise _in_doubt(url, slot, error) from error
    if not is_taken:
        raise _in_doubt(url, slot, _NOT_SHOWN)


def _at(url: str, slot: int, *entries: Entry) -> Steps[Entry | None]:
    """Return whichever of ``entries`` is in the slot, or None."""
    try:
        found = yield ReadId(slot)
    except CorruptLog:
        raise
    except Exception as error:
        raise _in_doubt(url, slot, error) from error
    return next((entry for entry in entries if entry.entry_id == found), None)


def _is_alone(url: str, slot: int) -> Steps[bool]:
    try:
        return bool((yield Slots()) == [slot])
    except Exception as error:
        raise _in_doubt(url, slot, error) from error


def _in_doubt(url: str, slot: int, error: BaseException | None) -> InDoubt:
    return InDoubt(
        f"an append to the commit log failed at {where(url, slot)} ({type(error).__name__}: {error}): whether the"
        " entry was or will be written is not known here. Start again: recovery reads it from the log."
    )


def _fenced(url: str, slot: int, entry: Entry) -> Fenced:
    return Fenced(
        f"incarnation {entry.incarnation} of query {entry.owner} can't go on at {where(url, slot)}: a newer"
        " coordinator has opened the log. What this one had not decided was not and will not be committed."
        " Make sure that only one driver runs the query; the newer one goes on."
    )


def _cut_short(url: str, slot: int, entry: Entry) -> Fenced:
    return Fenced(
        f"incarnation {entry.incarnation} of query {entry.owner} can't go on at {where(url, slot)}: its own newest"
        " entry is gone from the log, so something else than twopc has removed entries or has replaced the log. What"
        " this coordinator had not decided was not and will not be committed. Stop what removes entries, restore the"
        " newest entries from a backup, and start again."
    )


def _prune(url: str, tail: int, kept: int) -> Steps[None]:
    """Remove entries far behind the tail, oldest first. A failure costs only space."""
    try:
        for slot in (yield Slots()):
            if slot < tail - kept:
                yield DeleteSlot(slot)
    except Exception as error:  # noqa: BLE001  # whatever the store's client raises
        yield Log(logging.WARNING, f"could not prune the commit log at {url}: {error}")
