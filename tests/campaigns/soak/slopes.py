"""How fast a quantity grows."""

from collections.abc import Sequence

PER = 10_000
"""Slopes are per so many batches."""

WARM_UP = 0.25
"""The part of a life that does not count: caches fill, and the log gets to its length."""


def slope(batches: Sequence[int], values: Sequence[float]) -> float:
    """Return by how much a quantity grows per ``PER`` batches, as a part of itself: its greatest value in the second
    half of a life over that in the first. What goes up and down, as a log that is pruned, has the same in both."""
    first = int(len(batches) * WARM_UP)
    half = (len(batches) - first) // 2
    before, after = max(values[first : first + half]), max(values[-half:])
    return (after - before) / before / (batches[-1] - batches[-1 - half]) * PER if before else 0.0
