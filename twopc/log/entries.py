"""The entries of a commit log, as values: what the next entry is, and how entries are written as JSON. No I/O.

Each entry repeats the newest decided batch and the decisions not known to be committed, so recovery needs only the
newest entry.

``open``     a coordinator starts. Older coordinators find their next slot taken and learn that they are fenced.
``decide``   a batch is decided, with every committable of every sink.
``amend``    a decided batch has other committables: its target system rolled some back, and they were written again.
``abandon``  an operator gave up transactions of a decided batch, which no target system will ever show.
``complete`` everything decided is committed. The next decision would record it, but none has come.
``close``    a clean stop; everything decided is committed.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from itertools import chain
from typing import Any, Literal, get_args

from twopc.errors import ConfigurationError, CorruptLog, LogMismatch
from twopc.log import factored
from twopc.transaction import Committable, JsonValue, by_name
from twopc.transactional_ids import Round

FORMAT = 2
"""The newest format that this release reads. An entry has the oldest format that can hold it: 2 if the transactions of
a sink are factored (``factored``), else 1."""

ENTRY_SUFFIX = ".json"

LONGEST_DECISION = 32 * 1024 * 1024
"""In bytes, with each transaction by itself: the decision of 70 000 files of as many tasks, or of twice as many files
of a few. A longer one is not written, although it may be shorter when it is factored: what amends it may not be."""

MOST_TRANSACTIONS = 100_000
"""In one decision, which then has about 300 bytes for each. A batch that is certain to have more is refused before its
tasks begin, rather than after every time that they have written it."""

LONGEST_ENTRY = 2 * LONGEST_DECISION
"""In bytes. No coordinator writes a longer entry, so it is not parsed: that would take many times its length in memory.
Entries that carry a decision forward are little longer than it."""

A_START_S = 60
"""A start may call the coordinator many times in a second: the same failure counts again after so many."""

WAYS_KEPT = 8
"""How many failures that alternate are told apart."""

_LEVELS_OF_LINES = 5  # entry, decisions, decision, sinks, committables
_SHORT = 120  # characters of what stands on one line

_SHOWN = 500  # characters of what is wrong with an entry, which may quote it

_LARGEST_COUNT = 2**63 - 1  # Spark counts its batches so
Kind = Literal["open", "decide", "amend", "abandon", "complete", "close"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of one batch: the committables of every sink, by the sink's name."""

    round: Round
    committables: Mapping[str, tuple[Committable, ...]]

    @property
    def batch_id(self) -> int:
        return self.round.batch_id


@dataclass(frozen=True, slots=True)
class Abandonment:
    """The transactions of a decided batch that an operator gave up, and by whom and when (``at``, in UTC)."""

    given_up: Decision
    by: str
    at: str


@dataclass(frozen=True, slots=True)
class Repetition:
    """A failure that no decision has followed."""

    # How often it counts: once per start, and in a start that goes on once per ``A_START_S``; if it is known to pass,
    # once per ``A_START_S`` of all starts.
    count: int
    since: str  # when it came first, in UTC
    batch_id: int | None  # the batch that failed; None if the start had not come to one
    failure: str  # a hash of the error's class and words, which may hold values of records; or its kind, if it passes
    # The coordinator that counted it last, empty if it passes; and ``at_s`` when, in seconds since the epoch.
    start: str = ""
    at_s: int = 0
    starts: int = 0  # how often any failure that is not known to pass counts, once per start or ``A_START_S``
    # The other failures that no decision has followed, the newest first. They may alternate.
    others: tuple[Repetition, ...] = ()

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Repetition:
        """Return what ``asdict`` has made a dictionary of. Raises KeyError, TypeError or AttributeError."""
        batch_id = value["batch_id"]
        return cls(
            _count(value["count"]),
            _text(value["since"]),
            None if batch_id is None else _count(batch_id),
            _text(value["failure"]),
            _text(value.get("start", "")),
            _count(value.get("at_s", 0)),
            _count(value.get("starts", value["count"])),
            tuple(cls.of(other) for other in _list(value.get("others", []))),
        )


def repeated(
    before: Repetition | None, batch_id: int | None, failure: str, start: str, *, passes: bool = False
) -> Repetition:
    """Return the repetition that a failure of the coordinator ``start`` makes of the one ``before`` it. ``passes``:
    whether the failure is known to pass."""
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
        written_at: in UTC, for operators. No decision depends on it.
        abandoned: what operators have given up, oldest first. It is carried forward: entries are pruned, and what is
            missing from a target system must stay on record.
        prefixes: the prefix of each sink's transactional ids, by the sink's name.
        reads: what batch ``decided`` read, as the caller of ``run`` gave it, or None if unknown. It is carried forward
            until the next decision, since a batch may come again long after its commit.
        newest: the newest decided batch that has transactions of a sink, by the sink's name. A sink compares it with
            what its target system has. An older log does not know it of every sink.
        repetition: the failure that has ended the starts before this entry, if any. The next decision clears it, and
            the clean stop of a start that has passed it what came before a batch.
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


# Pure: what the next entry is. -----------------------------------------------------------------------------------


def opened(
    tail: Entry | None, owner: str, sinks: Mapping[str, str] | None = None, noted: Repetition | None = None
) -> Entry:
    """Return the entry of a coordinator of query ``owner`` that starts after ``tail``. ``sinks`` has the prefix of each
    of its sinks, and is None if it only maintains the log. ``noted`` is what the last start has noted of its failure.

    Raises LogMismatch: the log belongs to another owner, has work left for a sink that is not among ``sinks``, or has
    another prefix for one.
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
    """Refuse sinks that would not find their open transactions. Upholds: every open transaction is found, even one that
    its target system never ends by itself. Raises LogMismatch: one of ``sinks``, given with their prefixes, has another
    prefix in this log."""
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
    """Return the entry that decides a batch that read ``reads``. All older batches are committed: no round begins
    before."""
    written = {name: decision.batch_id for name, committables in decision.committables.items() if committables}
    newest = {**tail.newest, **written}
    changes = {"unresolved": (decision,), "reads": reads, "newest": newest, "repetition": None}
    return _next(tail, "decide", decided=decision.batch_id, **changes)


def amended(tail: Entry, decision: Decision) -> Entry:
    """Return the entry that replaces the unresolved decision of the same batch by ``decision``."""
    unresolved = tuple(decision if d.batch_id == decision.batch_id else d for d in tail.unresolved)
    return _next(tail, "amend", unresolved=unresolved)


def abandoned(tail: Entry, batch_id: int, given_up: Mapping[str, Collection[Committable]], by: str) -> Entry:
    """Return the entry that takes transactions out of an unresolved decision, and records who gave them up. Raises
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
    """Return the entry of a query that rests: everything decided is committed."""
    return _next(tail, "complete", unresolved=())


def closed(tail: Entry, start: str | None = None) -> Entry:
    """Return the entry of a clean stop: everything decided is committed. What failed before a batch is over if a
    ``start`` has passed it, unless it failed in this one itself. None: it has passed nothing but its recovery."""
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


# Pure: entries as JSON. -------------------------------------------------------------------------------------------


def serialise(entry: Entry) -> bytes:
    """Write an entry as JSON, with one line per transaction: readable in any pager, and still small. Raises
    ConfigurationError: a decision is too long. Earlier decisions are always carried forward."""
    unresolved: list[Any] = [_decision_to_json(decision) for decision in entry.unresolved]
    given_up: list[Any] = [{**_decision_to_json(a.given_up), "by": a.by, "at": a.at} for a in entry.abandoned]
    parts = chain.from_iterable(decision["sinks"].values() for decision in (*unresolved, *given_up))
    value: dict[str, JsonValue] = {
        "format": 2 if any(map(factored.is_factored, parts)) else 1,
        "kind": entry.kind,
        "entry_id": entry.entry_id,
        "log_id": entry.log_id,
        "owner": entry.owner,
        "incarnation": entry.incarnation,
        "decided": entry.decided,
        "committed_through": entry.committed_through,
        "unresolved": unresolved,
        "written_at": entry.written_at,
    }
    added: dict[str, JsonValue] = {  # to the fields of the first logs
        "abandoned": given_up or None,
        "prefixes": dict(entry.prefixes) or None,
        "reads": entry.reads,
        "newest": dict(entry.newest) or None,
        "repetition": None if entry.repetition is None else asdict(entry.repetition),
    }
    value |= {name: each for name, each in added.items() if each is not None}
    data = _laid_out(value).encode()
    length = len(data) + sum(map(_saved, entry.unresolved, unresolved)) if entry.kind == "decide" else 0
    if length > LONGEST_DECISION:
        raise ConfigurationError(
            f"the decision of batch {entry.decided} would have {length} bytes, and the commit log takes"
            f" {LONGEST_DECISION}: the batch has too many transactions or files. Nothing of it is visible. Have fewer"
            " tasks, fewer partition folders or smaller batches, and start again."
        )
    return data


def _saved(decision: Decision, as_json: Mapping[str, Any]) -> int:
    """Return how many bytes more a decision may take when nothing of it is factored."""
    parts = (part for sink, part in decision.committables.items() if factored.is_factored(as_json["sinks"][sink]))
    return sum(len(json.dumps(each.to_json())) for each in chain.from_iterable(parts))


def _laid_out(value: JsonValue, depth: int = 0) -> str:
    """Lay JSON out in lines. A short value takes one line, and so does a transaction of any length: otherwise each
    number in its list of partitions would have a line and an indentation."""
    if depth == _LEVELS_OF_LINES or not isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, dict):
        members = [f"{json.dumps(key)}: {_laid_out(member, depth + 1)}" for key, member in value.items()]
    else:
        members = [_laid_out(member, depth + 1) for member in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    if depth and sum(map(len, members)) + 2 * len(members) <= _SHORT:
        return f"{first}{', '.join(members)}{last}"
    line = "\n" + " " * depth
    return f"{first}{line} " + f",{line} ".join(members) + f"{line}{last}"


def _decision_to_json(decision: Decision) -> dict[str, Any]:
    return {
        "batch_id": decision.batch_id,
        "incarnation": decision.round.incarnation,
        "sinks": {sink: factored.to_json(committables) for sink, committables in decision.committables.items()},
    }


def entry_name(slot: int) -> str:
    """``00000000000000000042.json``: twenty digits, so that names sort as numbers do."""
    return f"{slot:020d}{ENTRY_SUFFIX}"


def parse(data: bytes, where: str) -> Entry:
    """Return the entry in ``data``. ``where`` names it in errors.

    Raises:
        CorruptLog: ``data`` is not what ``serialise`` writes, or a later release wrote it.
    """
    try:
        if len(data) > LONGEST_ENTRY:
            raise ValueError(f"no entry has more than {LONGEST_ENTRY} bytes")
        value = json.loads(data)
        if (found := _count(value["format"])) > FORMAT:
            raise CorruptLog(
                f"{where} has format {found}, and this release of twopc reads format {FORMAT}: a later release wrote"
                " it. Nothing was changed. Start that release again."
            )
        if found == 0:
            raise ValueError("formats count from 1")
        entry = Entry(
            kind=_one_of(value["kind"]),
            entry_id=_text(value["entry_id"]),
            log_id=_text(value["log_id"]),
            owner=_text(value["owner"]),
            incarnation=_count(value["incarnation"]),
            decided=None if value["decided"] is None else _count(value["decided"]),
            unresolved=tuple(_decision(decision) for decision in _list(value["unresolved"])),
            written_at=_text(value["written_at"]),
            abandoned=tuple(
                Abandonment(_decision(lost), _text(lost["by"]), _text(lost["at"]))
                for lost in _list(value.get("abandoned", []))
            ),
            prefixes={name: _text(prefix) for name, prefix in value.get("prefixes", {}).items()},
            reads=value.get("reads"),
            newest={name: _count(batch_id) for name, batch_id in value.get("newest", {}).items()},
            repetition=Repetition.of(value["repetition"]) if "repetition" in value else None,
        )
        batches = [decision.batch_id for decision in entry.unresolved]
        if batches and (batches != sorted(set(batches)) or batches[-1] != entry.decided):
            raise ValueError(f"unresolved batches {batches} do not lead up to the decided {entry.decided}")
        return entry
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptLog(
            f"{where} is not an entry of a commit log: {type(error).__name__}: {str(error)[:_SHOWN]}. Nothing was"
            " changed. Restore the entry from a backup; don't delete it: it says which transactions are decided."
        ) from error


def _decision(value: Mapping[str, JsonValue]) -> Decision:
    sinks = value["sinks"]
    if not isinstance(sinks, dict):
        raise TypeError("'sinks' must be an object")
    return Decision(
        Round(_count(value["incarnation"]), _count(value["batch_id"])),
        {sink: tuple(factored.from_json(_list(committables))) for sink, committables in sinks.items()},
    )


def _one_of(value: object) -> Kind:
    for kind in get_args(Kind):
        if kind == value:
            return kind  # type: ignore[no-any-return]
    raise ValueError(f"unknown kind {value!r}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST_COUNT:
        raise TypeError(f"{value!r} is not a count")
    return value
