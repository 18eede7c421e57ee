"""One figure of a benchmark: all its values, never the best alone."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured. ``unit`` is ``ratio`` for one contestant divided by another of the same turn."""

    what: str
    unit: str
    values: tuple[float, ...]

    @property
    def spread(self) -> tuple[float, float, float]:
        """Minimum, median, maximum."""
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
