"""The page of ``twopc report``: one HTML file, which loads nothing and runs nothing.

Its drawings are SVG, and its filters are links to fragments, at which CSS looks (``:target``). So it has no script, and
its policy allows none: it can be attached to a ticket, and a name in a log can't become code. A page that is served has
its filter in the query of its address instead, as browsers forget the fragment when a page loads itself again.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlencode

import jinja2

from twopc.cli.time_axis import TimeAxis, seconds
from twopc.cli.timeline import CAME_AGAIN, Batch, Failed, Mark, Moment, Note, Totals, count_marked, sums_by_sink
from twopc.cli.trend import DURATION, RATE, Trend, trend
from twopc.log.history import History
from twopc.phases import Phase

SHOWN = 500
"""The newest moments in the table, and transactions in one table: a browser scrolls through them at once."""

RANGES = 100
"""Ranges of batch numbers to choose from, at most."""

WIDTH = 1000
"""The width of a bar of phases, in its own units."""

COLORS = {
    Phase.RECOVERING: "#999999",
    Phase.PRE_COMMITTING: "#56b4e9",
    Phase.SEALING: "#f0e442",
    Phase.DECIDING: "#d55e00",
    Phase.COMMITTING: "#009e73",
    Phase.SWEEPING: "#cc79a7",
}
"""The palette of Okabe and Ito, which color-blind people can distinguish."""

_SET_BACK_S = 1.0
"""Clocks of a log's and a file's writers may differ by less."""

_NARROWEST = 0.15
"""The least width of a bar in a lane, in percent, so that it can be seen and pointed at."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of the page.

    Attributes:
        status: the document of ``twopc status``.
        has_events: whether an events file was given, and ``remarks`` what is wrong with it.
        made_at: when the log was read, in UTC.
    """

    status: Mapping[str, Any]
    history: History
    moments: Sequence[Moment]
    totals: Totals
    has_events: bool
    remarks: Sequence[str]
    made_at: str


@dataclass(frozen=True, slots=True)
class Live:
    """The view that a served page shows.

    Attributes:
        refresh_s: when it is loaded again, or None if it is paused.
        view: the class of the rows to show, or empty for all.
        error: why it is not up to date.
    """

    refresh_s: int | None
    view: str = ""
    error: str = ""

    def query(self, view: str, pause: bool | None = None) -> str:
        """Return the query of another view's address."""
        paused = self.refresh_s is None if pause is None else pause
        return urlencode({"show": view, **({"pause": ""} if paused else {})})


@dataclass(frozen=True, slots=True)
class Bar:
    """One phase of a batch, or moments in a lane, along an axis. ``row`` is the row of the table it leads to."""

    x: float
    width: float
    color: str
    title: str
    row: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A moment of the table, the classes that filters look at, and the bars of its phases."""

    moment: Moment
    name: str
    classes: str
    bars: Sequence[Bar] = field(default_factory=list)


def render(contents: Contents | None, live: Live | None = None) -> str:
    """Return the page. ``contents`` is None if the log could not be read yet; ``live``, if the page is served.

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
    environment.filters["counted"] = lambda number, one, more="": (
        f"{number:,} {one if number == 1 else more or one + 's'}"
    )
    environment.filters["clock"] = lambda at: at.replace("T", " ").removesuffix("+00:00")
    environment.filters["span"] = lambda s: str(timedelta(seconds=round(s)))
    environment.tests["batch"] = lambda moment: isinstance(moment, Batch)
    environment.tests["failed"] = lambda moment: isinstance(moment, Failed)
    return environment.get_template("page.html").render(
        live=live, **(_page_values(contents) if contents else {"status": None})
    )


def _page_values(contents: Contents) -> dict[str, Any]:
    history, moments = contents.history, contents.moments
    shown = moments[-SHOWN:]
    scale_ms = _scale_ms(moment for moment in shown if not isinstance(moment, Note))
    ranges = _ranges([moment.batch_id for moment in shown if not isinstance(moment, Note)])
    rows = list(_rows(shown, ranges, scale_ms))
    return {
        "status": contents.status,
        "totals": contents.totals,
        "in_doubt": [
            (decision.batch_id, sink, committable, [history.in_doubt_since(decision.batch_id)])
            for decision in history.tail.unresolved
            for sink, of_sink in decision.committables.items()
            for committable in of_sink
        ],
        "given_up": [
            (lost.given_up.batch_id, sink, committable, [lost.by, lost.at])
            for lost in history.tail.abandoned
            for sink, of_sink in lost.given_up.committables.items()
            for committable in of_sink
        ],
        "rows": rows[::-1],
        "marks": {mark: count_marked(shown, mark) for mark in Mark},
        "ranges": ranges,
        "views": [*(mark.name.lower() for mark in Mark), *map(_range_name, ranges)],
        "axis": (axis := _axis(shown)),
        "lanes": _lanes(rows, axis) if axis else {},
        "trend_axis": (trend_axis := _axis(moments)),
        "trends": list(_trends(moments, trend_axis)) if trend_axis else [],
        "sinks": sums_by_sink(moments),
        "left_out": len(moments) - len(shown),
        "set_back": _first_set_back(moments),
        "scale_ms": scale_ms,
        "colors": {phase.value: color for phase, color in COLORS.items()},
        "width": WIDTH,
        "limit": SHOWN,
        "has_events": contents.has_events,
        "remarks": contents.remarks,
        "made_at": contents.made_at,
    }


def _scale_ms(moments: Iterable[Batch | Failed]) -> float:
    """Return the time of a bar of full width. The first batch of a process may take a hundred times as long as the
    others. It is cut, so that it does not make them dots."""
    took = [moment.took_ms for moment in moments if moment.took_ms]
    return min(max(took), 4 * statistics.median(took)) if took else 0


def _ranges(batch_ids: Sequence[int]) -> list[range]:
    """Return the ranges of batch numbers to choose from, the newest first."""
    numbers = sorted(set(batch_ids), reverse=True)
    sizes = (digit * 10**power for power in range(20) for digit in (1, 2, 5))
    size = next(size for size in sizes if len({number // size for number in numbers}) <= RANGES)
    return [range(start * size, (start + 1) * size) for start in dict.fromkeys(number // size for number in numbers)]


def _range_name(numbers: range) -> str:
    return f"range-{numbers.start}"


def _rows(shown: Sequence[Moment], ranges: Sequence[range], scale_ms: float) -> Iterator[Row]:
    """Yield a row per moment. That of a decided batch is named for the batch, so that a link can name it."""
    named: set[str] = set()
    for place, moment in enumerate(shown):
        name, classes = f"moment-{place}", [mark.name.lower() for mark in sorted(moment.marks)]
        if not isinstance(moment, Note):
            classes += [_range_name(numbers) for numbers in ranges if moment.batch_id in numbers]
        if isinstance(moment, Batch) and moment.state != CAME_AGAIN and f"batch-{moment.batch_id}" not in named:
            name = f"batch-{moment.batch_id}"
        named.add(name)
        bars = [] if isinstance(moment, Note) else _bars(moment, scale_ms)
        yield Row(moment, name, " ".join(classes), bars)


def _bars(moment: Batch | Failed, scale_ms: float) -> list[Bar]:
    bars, x = [], 0.0
    for phase, ms in moment.phases_ms.items():
        width = WIDTH * ms / scale_ms if scale_ms else 0
        bars.append(Bar(x, min(width, max(WIDTH - x, 0)), COLORS[Phase(phase)], f"{phase} {ms:.1f} ms"))
        x += width
    return bars


def _span_s(moment: Moment) -> tuple[float, float] | None:
    """Return the start and the end of a moment, by the clock, or None if its time is not known."""
    if (end_s := seconds(moment.at)) is None:
        return None
    return (end_s if isinstance(moment, Note) else end_s - moment.took_ms / 1000, end_s)


def _axis(moments: Iterable[Moment]) -> TimeAxis | None:
    spans_s = [span_s for moment in moments if (span_s := _span_s(moment))]
    return TimeAxis(spans_s) if spans_s else None


def _lanes(rows: Sequence[Row], axis: TimeAxis) -> dict[str, list[Bar]]:
    """Return the bars of each lane: batches by the clock, as long as they took, and what an operator looks for."""
    committed, doubt, crash = COLORS[Phase.COMMITTING], COLORS[Phase.DECIDING], "var(--alarm)"
    batches = [row for row in rows if isinstance(row.moment, Batch) and row.moment.state != CAME_AGAIN]
    colors = {Mark.IN_DOUBT: doubt, Mark.CRASH: crash, Mark.RECOVERY: "var(--recovery)", Mark.FAILED: crash}
    lanes = {"batches": _merge(batches, axis, committed)}
    for mark, color in colors.items():
        lanes[mark.value] = _merge([row for row in rows if mark in row.moment.marks], axis, color)
    return {name: bars for name, bars in lanes.items() if bars}


def _merge(rows: Iterable[Row], axis: TimeAxis, color: str) -> list[Bar]:
    """Return bars that do not cover each other: moments closer than a bar is wide share one."""
    spans = [(span_s, row) for row in rows if (span_s := _span_s(row.moment))]
    bars: list[Bar] = []
    for (start_s, end_s), row in sorted(spans, key=lambda span: span[0]):
        x = min(axis.place(start_s), 100 - _NARROWEST)
        width = max(axis.place(end_s) - x, _NARROWEST)
        if bars and x < bars[-1].x + bars[-1].width:
            x, width = bars[-1].x, max(x + width - bars[-1].x, bars[-1].width)
            bars.pop()
        bars.append(Bar(x, width, color, _title(row.moment), row.name))
    return bars


def _title(moment: Moment) -> str:
    match moment:
        case Batch():
            return f"{moment.at} batch {moment.batch_id}: {moment.state}"
        case Failed():
            return f"{moment.at} batch {moment.batch_id}: {moment.error}"
        case Note():
            return f"{moment.at} {moment.text}"


def _trends(moments: Iterable[Moment], axis: TimeAxis) -> Iterator[Trend]:
    """Yield the trends of the batches whose times are known, if there are any."""
    timed = [
        (at_s, moment)
        for moment in moments
        if isinstance(moment, Batch) and moment.state != CAME_AGAIN and moment.took_ms
        if (at_s := seconds(moment.at)) is not None
    ]
    committing = Phase.COMMITTING.value
    drawn = (
        trend("records per second", [(at_s, b.records / b.took_ms * 1000) for at_s, b in timed], axis, RATE),
        trend("batch time", [(at_s, b.took_ms) for at_s, b in timed], axis, DURATION),
        trend("commit time", [(at_s, b.phases_ms.get(committing, 0)) for at_s, b in timed], axis, DURATION),
    )
    yield from (one for one in drawn if one)


def _first_set_back(moments: Iterable[Moment]) -> str | None:
    """Return when the clock was first set back, by the clock before, or None. The order of the log tells."""
    times = [(moment.at, at_s) for moment in moments if (at_s := seconds(moment.at)) is not None]
    pairs = itertools.pairwise(times)
    return next((before for (before, before_s), (_, at_s) in pairs if at_s < before_s - _SET_BACK_S), None)


def now() -> str:
    """Return the time in UTC, as entries have it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
