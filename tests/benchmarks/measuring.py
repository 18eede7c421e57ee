"""One figure of a benchmark: all its values, never the best alone."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured.

    Attributes:
        unit: ``ratio`` for one contestant divided by another of the same turn.
        key: its name at the top of the report, where it has one.
    """

    what: str
    unit: str
    values: tuple[float, ...]
    key: str | None = None

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
