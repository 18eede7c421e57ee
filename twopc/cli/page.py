"""The page of ``twopc report``: one HTML file, which loads nothing and runs nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2

from twopc.cli.timeline import Batch, Moment, Note, Written
from twopc.log.history import History
from twopc.phases import Phase

SHOWN = 500
"""The newest moments on one page, and transactions in one table: a browser scrolls through them at once."""

WIDTH = 1000
"""The width of a drawing, in its own units."""

COLORS = {
    Phase.RECOVERING: "#999999",
    Phase.PRE_COMMITTING: "#56b4e9",
    Phase.SEALING: "#f0e442",
    Phase.DECIDING: "#d55e00",
    Phase.COMMITTING: "#009e73",
    Phase.SWEEPING: "#cc79a7",
}
"""The palette of Okabe and Ito, which color-blind people can distinguish."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One phase of a batch, or a batch of a query, along an axis."""

    x: float
    width: float
    color: str
    title: str


def render(status: Mapping[str, Any], history: History, moments: Sequence[Moment], unread: int, made_at: str) -> str:
    """Return the page. ``status`` is the document of ``twopc status``; ``unread``, how many lines of the events file
    are no events.

    Every text is escaped: whoever may name a sink or a query must not run code in an operator's browser.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("twopc.cli", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["grouped"] = lambda number: f"{number:,}".replace(",", "\N{NO-BREAK SPACE}")
    environment.filters["clock"] = lambda at: at.replace("T", " ").removesuffix("+00:00")
    environment.tests["batch"] = lambda moment: isinstance(moment, Batch)
    shown = moments[-SHOWN:]
    batches = [moment for moment in shown if isinstance(moment, Batch)]
    scale_ms = _scale_ms(batches)
    return environment.get_template("page.html").render(
        status=status,
        in_doubt=[
            (decision.batch_id, sink, committable, [history.in_doubt_since(decision.batch_id)])
            for decision in history.tail.unresolved
            for sink, of_sink in decision.committables.items()
            for committable in of_sink
        ],
        given_up=[
            (lost.given_up.batch_id, sink, committable, [lost.by, lost.at])
            for lost in history.tail.abandoned
            for sink, of_sink in lost.given_up.committables.items()
            for committable in of_sink
        ],
        moments=[(moment, _bars(moment, scale_ms) if isinstance(moment, Batch) else []) for moment in reversed(shown)],
        overview=_overview(shown),
        sinks=_by_sink(batches),
        left_out=len(moments) - len(shown),
        batches=len({batch.batch_id for batch in batches}),
        scale_ms=scale_ms,
        colors={phase.value: color for phase, color in COLORS.items()},
        width=WIDTH,
        limit=SHOWN,
        unread=unread,
        made_at=made_at,
    )


def _scale_ms(batches: Iterable[Batch]) -> float:
    """How long a bar of full width takes. The first batch of a process may take a hundred times as long as the
    others. It is cut, so that it does not make them dots."""
    took = [batch.took_ms for batch in batches if batch.took_ms]
    return min(max(took), 4 * statistics.median(took)) if took else 0


def _bars(batch: Batch, scale_ms: float) -> list[Bar]:
    bars, x = [], 0.0
    for phase, ms in batch.phases_ms.items():
        width = WIDTH * ms / scale_ms if scale_ms else 0
        bars.append(Bar(x, min(width, max(WIDTH - x, 0)), COLORS[Phase(phase)], f"{phase} {ms:.1f} ms"))
        x += width
    return bars


def _overview(moments: Sequence[Moment]) -> list[Bar]:
    """All moments by the clock: a batch as long as it took, and where an incarnation opened."""
    times = [(moment, at_s) for moment in moments if (at_s := _seconds(moment.at)) is not None]
    if not times:
        return []
    starts_s = [at_s - (moment.took_ms / 1000 if isinstance(moment, Batch) else 0) for moment, at_s in times]
    first_s, last_s = min(starts_s), max(at_s for _, at_s in times)
    unit = WIDTH / ((last_s - first_s) or 1)
    return [
        Bar((start_s - first_s) * unit, max((at_s - start_s) * unit, 1), _color(moment), _title(moment))
        for (moment, at_s), start_s in zip(times, starts_s, strict=True)
    ]


def _color(moment: Moment) -> str:
    if isinstance(moment, Note):
        return "currentColor"
    return COLORS[Phase.DECIDING if moment.state == "in doubt" else Phase.COMMITTING]


def _title(moment: Moment) -> str:
    return f"{moment.at} " + (moment.text if isinstance(moment, Note) else f"batch {moment.batch_id}: {moment.state}")


def _seconds(at: str) -> float | None:
    """The time of an entry, or None: entries keep it for operators, and it is not checked."""
    try:
        return datetime.fromisoformat(at).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _by_sink(batches: Iterable[Batch]) -> Iterator[Written]:
    written = [of_sink for batch in batches for of_sink in batch.written]
    for sink in sorted({of_sink.sink for of_sink in written}):
        of_sink = [one for one in written if one.sink == sink]
        sums = [sum(getattr(one, what) for one in of_sink) for what in ("records", "bytes", "transactions")]
        yield Written(sink, *sums)
