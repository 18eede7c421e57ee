"""The history of a query, in order, from the entries of its log and the metrics of its batches. No I/O."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import TypeAlias

from twopc.events import BatchFailed, BatchFinished
from twopc.log.entries import Decision, Entry
from twopc.log.history import History
from twopc.observers.json_lines import Recorded

CAME_AGAIN = "came again: decided before"


class Mark(str, Enum):
    """A kind of moment that an operator looks for in a history."""

    IN_DOUBT = "in doubt"
    CRASH = "crashes"
    RECOVERY = "recoveries"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Written:
    """The output of a batch to one sink. Bytes are those of the records as Arrow holds them in memory."""

    sink: str
    records: int
    bytes: int
    transactions: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch.

    Attributes:
        at: when it finished, or was decided if its metrics are not known.
        state: according to the log, or to the metrics if the log no longer has the batch.
        incarnation: the one that decided it, if the log still has it.
        phases_ms: empty if its metrics are not known.
        recovered: transactions of earlier incarnations that were settled before it.
    """

    at: str
    batch_id: int
    state: str
    incarnation: int | None
    written: tuple[Written, ...]
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    retries: int = 0
    recovered: int = 0

    @property
    def took_ms(self) -> float:
        return sum(self.phases_ms.values())

    @property
    def records(self) -> int:
        return sum(of_sink.records for of_sink in self.written)

    @property
    def marks(self) -> frozenset[Mark]:
        marks = {
            Mark.IN_DOUBT: self.state == "in doubt",
            Mark.RECOVERY: self.recovered or self.state == CAME_AGAIN,
            Mark.FAILED: self.state == "given up in part",
        }
        return frozenset(mark for mark, has in marks.items() if has)


@dataclass(frozen=True, slots=True)
class Failed:
    """A run of a batch that failed, in the last of its phases."""

    at: str
    batch_id: int
    error: str
    message: str
    phases_ms: Mapping[str, float]

    @property
    def took_ms(self) -> float:
        return sum(self.phases_ms.values())

    @property
    def marks(self) -> frozenset[Mark]:
        return frozenset({Mark.FAILED})


@dataclass(frozen=True, slots=True)
class Note:
    """Any other entry of the log. ``kind`` is the entry's."""

    at: str
    kind: str
    text: str
    marks: frozenset[Mark] = frozenset()


Moment: TypeAlias = "Batch | Failed | Note"


def timeline(history: History, recorded: Iterable[Recorded]) -> list[Moment]:
    """Return every known moment, oldest first. ``recorded`` has the query's batches that finished or failed, oldest
    first."""
    known = list(recorded)
    newest = {
        each.event.batch_id: place
        for place, each in enumerate(known)
        if isinstance(each.event, BatchFinished) and not each.event.already_decided
    }
    in_log: list[tuple[int | None, Moment]] = []
    for before, entry in itertools.pairwise((None, *history.entries)):
        assert entry is not None  # only the first has none before it
        if entry.kind == "decide" and entry.unresolved:
            decision = entry.unresolved[-1]
            place = newest.pop(decision.batch_id, None)
            in_log.append(
                (place, _decided_batch(history.tail, entry, decision, None if place is None else known[place]))
            )
        else:
            in_log.append((None, _note(before, entry)))
    decided = {moment.batch_id for _, moment in in_log if isinstance(moment, Batch)}
    others: list[tuple[int, Moment]] = []
    for place, each in enumerate(known):
        match each.event:
            case BatchFailed(batch_id, error, phases_ms):
                failed = Failed(_text(each.at), batch_id, type(error).__name__, str(error), phases_ms)
                others.append((place, failed))
            case BatchFinished() as batch if batch.already_decided or batch.batch_id not in decided:
                others.append((place, _finished_batch(each, batch)))
    return _merge(in_log, others)


def _merge(in_log: Sequence[tuple[int | None, Moment]], others: Sequence[tuple[int, Moment]]) -> list[Moment]:
    """Put moments of the file among those of the log, each by its line or None. Both orders are kept, as a clock may
    be set back. Only where neither decides, the clock does."""
    merged: list[Moment] = []
    rest = deque(others)
    lines = [line for line, _ in in_log]
    for (line, moment), next_line in zip(in_log, _next_known(lines), strict=True):
        while rest and (
            (line is not None and rest[0][0] < line)
            or ((next_line is None or rest[0][0] < next_line) and rest[0][1].at < moment.at)
        ):
            merged.append(rest.popleft()[1])
        merged.append(moment)
    return [*merged, *(moment for _, moment in rest)]


def _next_known(lines: Sequence[int | None]) -> list[int | None]:
    """Return for each place the first line there or later."""
    known: deque[int | None] = deque()
    for line in reversed(lines):
        known.appendleft(line if line is not None or not known else known[0])
    return [*known]


def _decided_batch(tail: Entry, entry: Entry, decision: Decision, recorded: Recorded | None) -> Batch:
    state = "committed"
    if any(lost.given_up.batch_id == decision.batch_id for lost in tail.abandoned):
        state = "given up in part"
    if any(unresolved.batch_id == decision.batch_id for unresolved in tail.unresolved):
        state = "in doubt"
    written = tuple(
        Written(sink, sum(c.records or 0 for c in of_sink), sum(c.bytes or 0 for c in of_sink), len(of_sink))
        for sink, of_sink in decision.committables.items()
    )
    known = Batch(entry.written_at, decision.batch_id, state, decision.round.incarnation, written)
    return known if recorded is None else _add_metrics(known, recorded)


def _finished_batch(recorded: Recorded, batch: BatchFinished) -> Batch:
    """Return a batch that the log no longer has, or that came again."""
    written = (
        Written(sink, batch.records[sink], batch.bytes[sink], count) for sink, count in batch.transactions.items()
    )
    state = CAME_AGAIN if batch.already_decided else "committed"
    return _add_metrics(Batch(_text(recorded.at), batch.batch_id, state, None, tuple(written)), recorded)


def _add_metrics(known: Batch, recorded: Recorded) -> Batch:
    batch = recorded.event
    assert isinstance(batch, BatchFinished)
    at, phases_ms = _text(recorded.at), batch.phases_ms
    return replace(known, at=at, phases_ms=phases_ms, retries=batch.retries, recovered=batch.recovered)


def _text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")


def _note(before: Entry | None, entry: Entry) -> Note:
    """An entry other than a decision, in words."""
    match entry.kind:
        case "open":
            return _start_note(before, entry)
        case "amend":
            same = before.unresolved if before else ()
            batches = ", ".join(str(d.batch_id) for d in entry.unresolved if d not in same)
            text = f"batch {batches}: rolled back by its target system, and written again"
            return Note(entry.written_at, entry.kind, text, frozenset({Mark.RECOVERY}))
        case "abandon" if entry.abandoned:
            lost = entry.abandoned[-1]
            count = sum(map(len, lost.given_up.committables.values()))
            text = f"batch {lost.given_up.batch_id}: {count} transactions given up by {lost.by}"
            return Note(entry.written_at, entry.kind, text, frozenset({Mark.FAILED}))
        case "complete":
            return Note(entry.written_at, entry.kind, f"incarnation {entry.incarnation} rested: nothing is in doubt")
        case "close":
            return Note(entry.written_at, entry.kind, f"incarnation {entry.incarnation} stopped cleanly")
        case kind:
            text = f"an entry of kind {kind} that names no transactions, as no coordinator writes it"
            return Note(entry.written_at, kind, text)


def _start_note(before: Entry | None, entry: Entry) -> Note:
    """A process that ends writes ``complete`` if it still can, and ``close`` if its coordinator was closed."""
    marks = set()
    ended = ""
    if before and before.kind in ("close", "complete"):
        ended = ", after a clean stop" if before.kind == "close" else ", after a rest"
    elif before:
        ended = ", and the one before did not stop cleanly"
        marks.add(Mark.CRASH)
    doubt = ", ".join(str(decision.batch_id) for decision in entry.unresolved)
    if doubt:
        marks.add(Mark.RECOVERY)
    text = f"incarnation {entry.incarnation} opened{ended}" + (f"; in doubt was batch {doubt}" if doubt else "")
    return Note(entry.written_at, entry.kind, text, frozenset(marks))


# Totals. ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of all known moments. They lack what the log has pruned and no events file has, such as the records of a
    batch whose driver was killed during its commits.

    Attributes:
        batches: decided batches, each once.
        records, bytes: of all sinks together.
        crashes: starts of an incarnation after one that recorded no end.
        recoveries: starts that found transactions in doubt, batches that found earlier transactions open or came
            again, and batches that were written again.
        failed: failed runs of batches.
    """

    batches: int
    records: int
    bytes: int
    transactions: int
    crashes: int
    recoveries: int
    retries: int
    failed: int


def totals(moments: Sequence[Moment]) -> Totals:
    """Add ``moments`` up."""
    batches = [moment for moment in moments if isinstance(moment, Batch)]
    sinks = sums_by_sink(moments)
    return Totals(
        batches=len({batch.batch_id for batch in batches}),
        records=sum(sink.records for sink in sinks),
        bytes=sum(sink.bytes for sink in sinks),
        transactions=sum(sink.transactions for sink in sinks),
        crashes=count_marked(moments, Mark.CRASH),
        recoveries=count_marked(moments, Mark.RECOVERY),
        retries=sum(batch.retries for batch in batches),
        failed=sum(isinstance(moment, Failed) for moment in moments),
    )


def count_marked(moments: Iterable[Moment], mark: Mark) -> int:
    """Return how many moments have the mark."""
    return sum(mark in moment.marks for moment in moments)


def sums_by_sink(moments: Iterable[Moment]) -> list[Written]:
    """Return what was written to each sink, by the sink's name."""
    sums: dict[str, list[int]] = {}
    for moment in moments:
        if isinstance(moment, Batch):
            for written in moment.written:
                of_sink = sums.setdefault(written.sink, [0, 0, 0])
                for place, count in enumerate((written.records, written.bytes, written.transactions)):
                    of_sink[place] += count
    return [Written(sink, *of_sink) for sink, of_sink in sorted(sums.items())]
