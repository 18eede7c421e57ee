"""A drawing of a quantity along an axis of time: a line of medians, in a band from smallest to largest. No I/O."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from twopc.cli.time_axis import TimeAxis

COLUMNS = 250
"""A hundred thousand batches are drawn as this many medians."""

HEIGHT = 100
"""The height of a drawing, in its own units. Its width is 100 as well: percent of the axis."""

_LARGE_RATIO = 100
"""From this ratio of the largest to the smallest on, a linear scale shows the small ones as zero."""

_SMALLEST, _LARGEST = 1e-3, 1e18
"""The range of values that a scale can show."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of a quantity, and the round values of its scales.

    Attributes:
        show: writes a value with its unit.
        steps: distances between the lines of a linear scale.
        marks: lines of a logarithmic scale.
    """

    show: Callable[[float], str]
    steps: tuple[float, ...]
    marks: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """A line of the vertical axis: its height from the top in percent, and its text."""

    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Trend:
    """A drawing. ``line`` and ``band`` are paths of SVG."""

    title: str
    line: str
    band: str
    levels: list[Level]
    is_logarithmic: bool
    median: str
    largest: str
    newest: str


def trend(title: str, points: Sequence[tuple[float, float]], axis: TimeAxis, unit: Unit) -> Trend | None:
    """Return the drawing of ``points``, or None if there are none. A point is a time in seconds since the epoch and a
    value of at least 0."""
    if not points:
        return None
    values = [value for _, value in points]
    height, levels, is_logarithmic = _scale(values, unit)
    columns: dict[tuple[int, int], list[float]] = {}
    places: dict[tuple[int, int], float] = {}
    for at_s, value in sorted(points):
        x = axis.place(at_s)
        column = (axis.run(at_s), int(x * COLUMNS / 100))
        columns.setdefault(column, []).append(value)
        places.setdefault(column, x)
    by_run: dict[int, list[tuple[float, list[float]]]] = {}
    for column, found in columns.items():
        by_run.setdefault(column[0], []).append((places[column], found))
    return Trend(
        title,
        line="".join(_path((x, height(statistics.median(found))) for x, found in run) for run in by_run.values()),
        band="".join(
            _path(
                [*((x, height(max(found))) for x, found in run), *((x, height(min(found))) for x, found in run[::-1])]
            )
            for run in by_run.values()
        ),
        levels=levels,
        is_logarithmic=is_logarithmic,
        median=unit.show(statistics.median(values)),
        largest=unit.show(max(values)),
        newest=unit.show(values[-1]),
    )


def _path(points: Iterable[tuple[float, float]]) -> str:
    """A line of no length is drawn as a dot, so a single point is seen."""
    first, *others = [f"{x:.2f} {y:.1f}" for x, y in points]
    return f"M{first}h0" + "".join(f"L{point}" for point in others)


def _scale(values: Sequence[float], unit: Unit) -> tuple[Callable[[float], float], list[Level], bool]:
    """Return how high a value lies, in percent from the top, and the lines of the scale."""
    values = [min(max(value, _SMALLEST), _LARGEST) for value in values if value > 0] or [_SMALLEST]
    smallest, largest = min(values), max(values)
    if largest / smallest < _LARGE_RATIO:
        step = next(step for step in unit.steps if step >= largest / 3)
        top = step * math.ceil(largest / step)
        marks = [number * step for number in range(round(top / step) + 1)]
        return (
            (lambda value: HEIGHT * (1 - min(value / top, 1))),
            [Level(HEIGHT * (1 - m / top), unit.show(m)) for m in marks],
            False,
        )
    low = max(mark for mark in unit.marks if mark <= smallest)
    high = min(mark for mark in unit.marks if mark >= largest)

    def height(value: float) -> float:
        return HEIGHT * (1 - math.log(min(max(value, low), high) / low) / math.log(high / low))

    marks = [mark for mark in unit.marks if low <= mark <= high]
    return height, [Level(height(mark), unit.show(mark)) for mark in marks[:: math.ceil(len(marks) / 5)]], True


_UNITS_OF_TIME = ((86_400_000, " d"), (3_600_000, " h"), (60_000, " min"), (1000, " s"), (0, " ms"))
_UNITS_OF_RATE = ((1e12, " T/s"), (1e9, " G/s"), (1e6, " M/s"), (1e3, " k/s"), (0, "/s"))


def _write(units: Sequence[tuple[float, str]], value: float) -> str:
    size, unit = next((size, unit) for size, unit in units if value >= size)
    return f"{value / (size or 1):.3g}{unit}"


_DECADES = tuple(10.0**power for power in range(-3, 19))
_DECIMAL = tuple(digit * power for power in _DECADES for digit in (1, 2, 5))
_OF_MINUTES = tuple(60_000.0 * minutes for minutes in (1, 2, 5, 10, 20, 30, 60, 120, 360, 720))
_OF_DAYS = tuple(86_400_000 * number for number in _DECIMAL if number >= 1)

DURATION = Unit(
    functools.partial(_write, _UNITS_OF_TIME),
    steps=(*(ms for ms in _DECIMAL if ms <= 20_000), *_OF_MINUTES, *_OF_DAYS),
    marks=(*(ms for ms in _DECADES if ms <= 10_000), *_OF_MINUTES[::3], *_OF_DAYS[::3]),
)
"""The unit of values in milliseconds."""

RATE = Unit(functools.partial(_write, _UNITS_OF_RATE), _DECIMAL, _DECADES)
"""The unit of records per second."""
