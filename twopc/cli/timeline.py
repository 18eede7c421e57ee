"""The history of a query, in order, from the entries of its log and the metrics of its batches. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from twopc.log.entries import Decision, Entry
from twopc.log.history import History
from twopc.observers.json_lines import Line


@dataclass(frozen=True, slots=True)
class Written:
    """What one batch wrote to one sink. Bytes are those of the records as Arrow holds them in memory."""

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
    phases_ms: Mapping[str, float]
    retries: int
    recovered: int

    @property
    def took_ms(self) -> float:
        return sum(self.phases_ms.values())


@dataclass(frozen=True, slots=True)
class Note:
    """Any other entry of the log. ``kind`` is the entry's."""

    at: str
    kind: str
    text: str


Moment: TypeAlias = "Batch | Note"


def timeline(history: History, lines: Iterable[Line]) -> list[Moment]:
    """Return every known moment, oldest first. ``lines`` has the metrics of the query's batches, oldest first."""
    known = list(lines)
    newest = {line.batch.batch_id: line for line in known if not line.batch.already_decided}
    moments: list[Moment] = []
    for before, entry in itertools.pairwise((None, *history.entries)):
        assert entry is not None  # only the first has none before it
        if entry.kind == "decide" and entry.unresolved:
            decision = entry.unresolved[-1]
            moments.append(_decided(history.tail, entry, decision, newest.pop(decision.batch_id, None)))
        else:
            moments.append(Note(entry.written_at, entry.kind, _described(before, entry)))
    in_log = {moment.batch_id for moment in moments if isinstance(moment, Batch)}
    moments += [_of_metrics(line) for line in known if line.batch.already_decided or line.batch.batch_id not in in_log]
    return sorted(moments, key=lambda moment: moment.at)


def _decided(tail: Entry, entry: Entry, decision: Decision, line: Line | None) -> Batch:
    state = "committed"
    if any(lost.given_up.batch_id == decision.batch_id for lost in tail.abandoned):
        state = "given up in part"
    if any(unresolved.batch_id == decision.batch_id for unresolved in tail.unresolved):
        state = "in doubt"
    return Batch(
        at=line.finished_at if line else entry.written_at,
        batch_id=decision.batch_id,
        state=state,
        incarnation=decision.round.incarnation,
        written=tuple(
            Written(sink, sum(c.records or 0 for c in of_sink), sum(c.bytes or 0 for c in of_sink), len(of_sink))
            for sink, of_sink in decision.committables.items()
        ),
        phases_ms=line.batch.phases_ms if line else {},
        retries=line.batch.retries if line else 0,
        recovered=line.batch.recovered if line else 0,
    )


def _of_metrics(line: Line) -> Batch:
    """A batch that the log no longer has, or that came again."""
    batch = line.batch
    return Batch(
        at=line.finished_at,
        batch_id=batch.batch_id,
        state="came again: decided before" if batch.already_decided else "committed",
        incarnation=None,
        written=tuple(
            Written(sink, batch.records[sink], batch.bytes[sink], count) for sink, count in batch.transactions.items()
        ),
        phases_ms=batch.phases_ms,
        retries=batch.retries,
        recovered=batch.recovered,
    )


def _described(before: Entry | None, entry: Entry) -> str:
    """An entry other than a decision, in words."""
    match entry.kind:
        case "open":
            ended = ", after a clean stop" if before and before.kind == "close" else ""
            if before and before.kind != "close":
                ended = ", and the one before did not stop cleanly"
            doubt = ", ".join(str(decision.batch_id) for decision in entry.unresolved)
            return f"incarnation {entry.incarnation} opened{ended}" + (f"; in doubt was batch {doubt}" if doubt else "")
        case "amend":
            same = before.unresolved if before else ()
            batches = ", ".join(str(d.batch_id) for d in entry.unresolved if d not in same)
            return f"batch {batches}: rolled back by its target system, and written again from replay copies"
        case "abandon" if entry.abandoned:
            lost = entry.abandoned[-1]
            count = sum(map(len, lost.given_up.committables.values()))
            return f"batch {lost.given_up.batch_id}: {count} transactions given up by {lost.by}"
        case "close":
            return f"incarnation {entry.incarnation} stopped cleanly"
        case kind:
            return f"an entry of kind {kind} that names no transactions, as no coordinator writes it"
