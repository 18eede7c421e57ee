"""A horizontal axis of time, on which long gaps are cut: a query may run for minutes and be down for a week. No I/O."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

_MINUTE, _HOUR, _DAY = 60, 3600, 86400

_STEPS_S = (
    *(10.0**power * digit for power in (-3, -2, -1) for digit in (1, 2, 5)),
    *(number * unit_s for unit_s in (1, _MINUTE) for number in (1, 2, 5, 10, 15, 30)),
    *(number * _HOUR for number in (1, 2, 3, 6, 12)),
    *(number * _DAY for number in (1, 2, 5, 10, 30, 90, 365)),
)
"""Distances of ticks that people read at once."""

_TICKS = 7
"""The largest number of ticks, about."""

_APART, _FAR_APART = 12.0, 30.0
"""The distance between two ticks, in percent, into which a date fits on a screen, and on a telephone."""

_CUTS = 30.0
"""All cuts together take at most this part of the width, and one takes at most ``_CUT``. In percent."""

_CUT = 3.0

_SHORTEST_S = 1e-6
"""Shorter times are those of no batch, and too short to divide by."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on the axis, in percent of its width, with its time of day and its date in UTC. Ticks that are ``major``
    have room on a narrow screen."""

    x: float
    time: str
    date: str
    is_major: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """A gap in which nothing happened, and that is drawn shorter than it was. In percent of the axis."""

    x: float
    width: float
    lasted_s: float


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the axis between two cuts: its time in seconds since the epoch, and its place in percent."""

    start_s: float
    end_s: float
    x: float


class TimeAxis:
    """Places times, in seconds since the epoch, on a width of 100 percent.

    Attributes:
        ticks: from left to right.
        cuts: from left to right.
    """

    def __init__(self, spans_s: Iterable[tuple[float, float]]) -> None:
        """``spans_s``: the start and end of whatever is to be drawn."""
        every = _join(spans_s, 0)
        gaps_s = sorted(after[0] - before[1] for before, after in itertools.pairwise(every))
        usual_s = 10 * statistics.median(gaps_s) if gaps_s else 0
        pieces = _join(every, _longest_drawn_s(every, gaps_s, usual_s))
        self._runs_s = [start_s for start_s, _ in _join(every, usual_s)]
        cut = min(_CUT, _CUTS / max(len(pieces) - 1, 1))
        drawn_s = sum(end_s - start_s for start_s, end_s in pieces)
        self._per_s = (100 - cut * (len(pieces) - 1)) / drawn_s if drawn_s > _SHORTEST_S else 0.0
        parts, cuts, x = [], [], 0.0
        for (start_s, end_s), after in itertools.zip_longest(pieces, pieces[1:]):
            parts.append(_Part(start_s, end_s, x))
            x += (end_s - start_s) * self._per_s
            if after:
                cuts.append(Cut(x, cut, after[0] - end_s))
                x += cut
        self._parts = parts
        self._starts_s = [part.start_s for part in parts]
        self.cuts = cuts
        self.ticks = self._choose_ticks(_step_s(drawn_s))

    def run(self, at_s: float) -> int:
        """Return the number of the stretch without an unusual gap in which a time lies."""
        return bisect.bisect_right(self._runs_s, at_s)

    def place(self, at_s: float) -> float:
        """Return where a time lies, in percent of the width. A time outside all parts is placed at the nearest."""
        part = self._parts[max(bisect.bisect_right(self._starts_s, at_s) - 1, 0)]
        return part.x + (min(max(at_s, part.start_s), part.end_s) - part.start_s) * self._per_s

    def _choose_ticks(self, step_s: float) -> list[Tick]:
        """Starts of parts come first: after a cut, no other tick shows where in time one is."""
        chosen: dict[float, Tick] = {}
        for at_s in [*self._starts_s, *self._regular_s(step_s)]:
            x = self.place(at_s)
            if all(abs(x - other.x) >= _APART for other in chosen.values()):
                is_major = all(abs(x - other.x) >= _FAR_APART for other in chosen.values() if other.is_major)
                unit_s = _finer_s(step_s) if at_s in self._starts_s else step_s
                chosen[at_s] = Tick(x, *_texts(at_s, unit_s), is_major)
        return [tick for _, tick in sorted(chosen.items())]

    def _regular_s(self, step_s: float) -> Iterator[float]:
        for part in self._parts:
            first = math.ceil(part.start_s / step_s)
            yield from (number * step_s for number in range(first, math.floor(part.end_s / step_s) + 1))


def seconds(at: str) -> float | None:
    """Return the time of an entry or event in seconds since the epoch, or None: it is kept for operators, and it is not
    checked. Nor is one before the epoch a time: a batch that lasted a century would have begun before year 1."""
    try:
        time = datetime.fromisoformat(at)
        at_s = (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()
        return at_s if at_s >= 0 else None
    except (ValueError, OverflowError, OSError):
        return None


def _join(spans_s: Iterable[tuple[float, float]], longest_gap_s: float) -> list[tuple[float, float]]:
    """Join spans that overlap or lie close to each other."""
    joined: list[tuple[float, float]] = []
    for start_s, end_s in sorted(spans_s):
        if joined and start_s - joined[-1][1] <= longest_gap_s:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end_s))
        else:
            joined.append((start_s, end_s))
    return joined


def _longest_drawn_s(pieces: Iterable[tuple[float, float]], gaps_s: Iterable[float], usual_s: float) -> float:
    """Return the longest gap that is drawn as long as it was. A gap is cut if it is longer than all that is drawn
    without it, unless gaps of about its length are usual. ``gaps_s`` are in order."""
    drawn_s = sum(end_s - start_s for start_s, end_s in pieces)
    longest_s = 0.0
    for gap_s in gaps_s:
        if gap_s > max(usual_s, drawn_s):
            break
        longest_s = gap_s
        drawn_s += gap_s
    return longest_s


def _step_s(drawn_s: float) -> float:
    return next((step_s for step_s in _STEPS_S if drawn_s / step_s <= _TICKS), drawn_s / _TICKS)


def _finer_s(step_s: float) -> float:
    """A part may start at any second, whatever the step."""
    return min(step_s, 1) if step_s < _HOUR else step_s if step_s < _DAY else _HOUR


def _texts(at_s: float, step_s: float) -> tuple[str, str]:
    """Return the time of day as exactly as the step needs it, and the date."""
    at = datetime.fromtimestamp(at_s, timezone.utc)
    texts = ((1, at.isoformat("T", "milliseconds")[11:23]), (_MINUTE, f"{at:%H:%M:%S}"), (_DAY, f"{at:%H:%M}"))
    return next((text for below_s, text in texts if step_s < below_s), ""), at.isoformat()[:10]
