"""A benchmark's result: all its values, never only the best."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Row:
    """A measured quantity.

    Attributes:
        unit: the unit; ``ratio`` for one contestant divided by another in the same turn.
        key: its key at the top level of the report, if it has one.
    """

    what: str
    unit: str
    values: tuple[float, ...]
    key: str | None = None

    @property
    def spread(self) -> tuple[float, float, float]:
        """The minimum, median and maximum."""
        return min(self.values), statistics.median(self.values), max(self.values)

    def to_json(self) -> dict[str, object]:
        minimum, median, maximum = self.spread
        return {
            "what": self.what,
            "unit": self.unit,
            "minimum": minimum,
            "median": median,
            "maximum": maximum,
            "values": list(self.values),
        }


def in_turns(contestants: Mapping[str, Callable[[], ResultT]], turns: int) -> dict[str, list[ResultT]]:
    """Measure each contestant in each turn. Return contestant → its results. Each turn begins with a different one."""
    figures: dict[str, list[ResultT]] = {name: [] for name in contestants}
    for turn in range(turns):
        names = [*figures]
        start = turn % len(names)
        for name in (*names[start:], *names[:start]):
            figures[name].append(contestants[name]())
    return figures


def ratio(what: str, figures: Mapping[str, Sequence[float]], one: str, other: str, key: str | None = None) -> Row:
    """Return the ratio of two contestants, turn by turn."""
    return Row(what, "ratio", tuple(a / b for a, b in zip(figures[one], figures[other], strict=True)), key)
