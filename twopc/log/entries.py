"""The entries of a commit log, as values, and how each follows from the one before. No I/O. ``entry_json`` writes them
as JSON.

Each entry repeats the newest decided batch and the decisions not known to be committed, so recovery needs only the
newest entry.

``open``     a coordinator starts. Older coordinators find their next slot taken and learn that they are fenced.
``decide``   a batch is decided, with every committable of every sink.
``amend``    a decided batch has new committables in place of those that a target system rolled back.
``abandon``  an operator gave up transactions of a decided batch, which no target system will ever show.
``complete`` everything decided is committed; recorded between batches, if the next decision is late.
``close``    a clean stop; everything decided is committed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Literal

from twopc.errors import LogMismatch
from twopc.transaction import Committable, JsonValue, by_name
from twopc.transactional_ids import Round

A_START_S = 60
"""Seconds after which a failure counts again within one start, because a start may call the coordinator many times a
second."""

WAYS_KEPT = 8
"""How many different failures are tracked, because failures may alternate."""

Kind = Literal["open", "decide", "amend", "abandon", "complete", "close"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of one batch: the committables of every sink, by sink name."""

    round: Round
    committables: Mapping[str, tuple[Committable, ...]]

    @property
    def batch_id(self) -> int:
        return self.round.batch_id


@dataclass(frozen=True, slots=True)
class Abandonment:
    """The transactions of a decided batch that an operator gave up, with the operator's name and the time in UTC."""

    given_up: Decision
    by: str
    at: str


@dataclass(frozen=True, slots=True)
class Repetition:
    """How often a kind of failure has occurred since the last decision, and when."""

    # How often it was counted: once per start, and again every ``A_START_S`` of a long start. A failure that is known
    # to pass counts once per ``A_START_S``, over all starts.
    count: int
    since: str  # when it first came, in UTC
    batch_id: int | None  # the batch that failed; None if the start failed before a batch
    failure: str  # a hash of the error's class and words, as these may quote records; or its kind, if it passes
    # The start that last counted it; empty if it is known to pass. ``at_s``: when, in seconds since the epoch.
    start: str = ""
    at_s: int = 0
    starts: int = 0  # how often failures not known to pass were counted, once per start or ``A_START_S``
    # Other failures that no decision has followed, newest first. Failures may alternate.
    others: tuple[Repetition, ...] = ()


def repeated(
    before: Repetition | None, batch_id: int | None, failure: str, start: str, *, passes: bool = False
) -> Repetition:
    """Return the repetition ``before`` with one more failure, in the start ``start``. ``passes``: whether the failure
    is known to pass."""
    at_s = int(time.time())
    known = () if before is None else (before, *before.others)
    now = next((each for each in known if (each.batch_id, each.failure) == (batch_id, failure)), None)
    others = tuple(replace(each, others=()) for each in known if each is not now)[: WAYS_KEPT - 1]
    now = now or Repetition(0, _now(), batch_id, failure)

    def has_counted(each: Repetition, in_any: bool) -> bool:  # a clock may be set back
        return each.count > 0 and (in_any or each.start == start) and abs(at_s - each.at_s) < A_START_S

    starts = before.starts if before else 0
    if not passes and not any(has_counted(each, in_any=False) for each in known):
        starts += 1
    if not has_counted(now, in_any=passes):
        now = replace(now, count=now.count + 1, start="" if passes else start, at_s=at_s)
    return replace(now, starts=starts, others=others)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry, and with it the whole state of the log at that point.

    Attributes:
        entry_id: unique; shows whether an append whose reply was lost has succeeded.
        log_id: the log's name in transactional ids, chosen when the log is created.
        owner: the query that the log belongs to.
        incarnation: the number of the coordinator start that wrote this entry; the first is 1.
        decided: the newest decided batch, or None before the first.
        unresolved: decisions whose commit is not known to be complete, oldest first. With ``decided`` this shows
            through which batch everything is committed.
        written_at: when the entry was written, in UTC. For operators; no decision depends on it.
        abandoned: the transactions that operators have given up, oldest first. Carried forward, because entries are
            pruned and the gaps in a target system must stay on record.
        prefixes: the prefix of each sink's transactional ids, by sink name.
        reads: what batch ``decided`` read, as passed to ``run``, or None if unknown. Carried forward until the next
            decision, because a batch may be repeated long after its commit.
        newest: sink name → the newest decided batch with transactions of the sink, which the sink compares with its
            target system. An older log may lack it for some sinks.
        repetition: the failure that ended the starts before this entry, if any. The next decision clears it. If the
            failure came before a batch, the clean stop of a start that got past this point clears it, too.
    """

    kind: Kind
    entry_id: str
    log_id: str
    owner: str
    incarnation: int
    decided: int | None
    unresolved: tuple[Decision, ...]
    written_at: str
    abandoned: tuple[Abandonment, ...] = ()
    prefixes: Mapping[str, str] = field(default_factory=dict)
    reads: JsonValue = None
    newest: Mapping[str, int] = field(default_factory=dict)
    repetition: Repetition | None = None

    @property
    def committed_through(self) -> int | None:
        """The newest batch known to be committed with all batches before it, or None if there is none."""
        return self.unresolved[0].batch_id - 1 if self.unresolved else self.decided


def opened(
    tail: Entry | None, owner: str, sinks: Mapping[str, str] | None = None, noted: Repetition | None = None
) -> Entry:
    """Return the entry with which a coordinator of query ``owner`` starts after ``tail``. ``sinks``: sink name →
    prefix; None if the coordinator only maintains the log. ``noted``: the failure that the last start noted.

    Raises LogMismatch: the log belongs to another owner, contains a batch that is decided but not yet committed to a
    sink missing from ``sinks``, or records another prefix for a sink.
    """
    if tail is None:
        return Entry("open", _new_id(), _new_id()[:12], owner, 1, None, (), _now(), prefixes=sinks or {})
    if tail.owner != owner:
        raise LogMismatch(
            f"the commit log belongs to query {tail.owner}, and this is query {owner}. Nothing was written."
            " A query gets a new id when its checkpoint is new or was deleted, and its batches count from 0 again."
            " Give the query its old checkpoint back, or a log of its own (then what it reads again from its"
            " source is written again)."
        )
    for decision in tail.unresolved:
        undone = {name for name, committables in decision.committables.items() if committables}
        if sinks is not None and (missing := sorted(undone - set(sinks))):
            raise LogMismatch(
                f"batch {decision.batch_id} is decided and not yet committed to sink {missing[0]!r}, which this query"
                f" does not have (it has {', '.join(sorted(sinks))}). Nothing was written. Start it once more with"
                " that sink."
            )
    check_prefixes(tail, sinks or {})
    changes = {"prefixes": {**tail.prefixes, **(sinks or {})}, "repetition": noted or tail.repetition}
    return _next(tail, "open", incarnation=tail.incarnation + 1, **changes)


def check_prefixes(tail: Entry, sinks: Mapping[str, str]) -> None:
    """Refuse sinks that would not find their open transactions. Upholds: every open transaction is found, even if its
    target system never ends it. ``sinks``: sink name → prefix. Raises LogMismatch: the log records another prefix for a
    sink."""
    for name, prefix in sinks.items():
        known = tail.prefixes.get(name, prefix)
        if known != prefix:
            next_batch = "" if tail.decided is None else f" and first_batch_id={tail.decided + 1}"
            raise LogMismatch(
                f"the transactions of sink {name!r} start with {known!r} in this commit log, and this sink's with"
                f" {prefix!r}: what it has open would not be found. Nothing was written. Give it its prefix back. To"
                " change it, stop the query, see that 'twopc resolve --dry-run' lists nothing, and go on with a"
                f" new log{next_batch}."
            )


def decided(tail: Entry, decision: Decision, reads: JsonValue = None) -> Entry:
    """Return the entry that decides a batch that read ``reads``. All older batches are committed, because no round
    begins before that."""
    written = {name: decision.batch_id for name, committables in decision.committables.items() if committables}
    newest = {**tail.newest, **written}
    changes = {"unresolved": (decision,), "reads": reads, "newest": newest, "repetition": None}
    return _next(tail, "decide", decided=decision.batch_id, **changes)


def amended(tail: Entry, decision: Decision) -> Entry:
    """Return the entry that replaces the unresolved decision of the same batch with ``decision``."""
    unresolved = tuple(decision if d.batch_id == decision.batch_id else d for d in tail.unresolved)
    return _next(tail, "amend", unresolved=unresolved)


def abandoned(tail: Entry, batch_id: int, given_up: Mapping[str, Collection[Committable]], by: str) -> Entry:
    """Return the entry that removes transactions from an unresolved decision, and records who gave them up. Raises
    LogMismatch: no decision of ``batch_id`` is unresolved, or it does not name one of the transactions."""
    unresolved = {decision.batch_id: decision for decision in tail.unresolved}
    if batch_id not in unresolved:
        raise LogMismatch(
            f"batch {batch_id} can't be abandoned: only what is decided and not known to be committed can"
            f" ({list(unresolved)}). Nothing was changed."
        )
    decision = unresolved[batch_id]
    for sink, committables in given_up.items():
        named = by_name(decision.committables.get(sink, ()))
        for committable in committables:
            if committable not in named.get(committable.transaction_id, ()):
                raise LogMismatch(
                    f"transaction {committable.transaction_id} of sink {sink!r} can't be abandoned: the decision of"
                    f" batch {batch_id} does not name it. Nothing was changed."
                )
    gone = {sink: by_name(given_up.get(sink, ())) for sink in decision.committables}
    rest = {
        sink: tuple(each for each in committables if each not in gone[sink].get(each.transaction_id, ()))
        for sink, committables in decision.committables.items()
    }
    unresolved[batch_id] = Decision(decision.round, rest)
    loss = Decision(decision.round, {sink: tuple(committables) for sink, committables in given_up.items()})
    newest = {sink: newest for sink, newest in tail.newest.items() if sink not in given_up or newest != batch_id}
    entry = _next(tail, "abandon", unresolved=tuple(unresolved.values()), newest=newest)
    return replace(entry, abandoned=(*tail.abandoned, Abandonment(loss, by, entry.written_at)))


def completed(tail: Entry) -> Entry:
    """Return the entry that records, between batches, that everything decided is committed."""
    return _next(tail, "complete", unresolved=())


def closed(tail: Entry, start: str | None = None) -> Entry:
    """Return the entry of a clean stop: everything decided is committed. If this ``start`` got past recovery, the
    failures that earlier starts met before a batch are cleared. ``start`` is None if it got no further than
    recovery."""
    if start is None:
        return _next(tail, "close", unresolved=())
    known = () if tail.repetition is None else (tail.repetition, *tail.repetition.others)
    left = [each for each in known if each.batch_id is not None or (each.start and each.start == start)]
    starts = tail.repetition.starts if tail.repetition else 0
    again = replace(left[0], starts=starts, others=tuple(left[1:])) if left else None
    return _next(tail, "close", unresolved=(), repetition=again)


def renamed(entry: Entry) -> Entry:
    """Return the same entry under another id."""
    return replace(entry, entry_id=_new_id())


def _next(tail: Entry, kind: Kind, **changes: object) -> Entry:
    return replace(tail, kind=kind, entry_id=_new_id(), written_at=_now(), **changes)  # type: ignore[arg-type]


def _new_id() -> str:
    return uuid.uuid4().hex


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
