"""Plots of a report: a bar for each median, with a line from minimum to maximum."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

HEIGHT_OF_A_ROW_INCH = 0.32
WIDTH_INCH = 9

mpl.rcParams["svg.hashsalt"] = "twopc"  # the same values produce the same file


def draw(benchmark: str, rows: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Draw one SVG per unit from a benchmark's ``rows`` in the report. Return the files."""
    units = dict.fromkeys(row["unit"] for row in rows)
    return [_draw(benchmark, unit, [row for row in rows if row["unit"] == unit], folder) for unit in units]


def _draw(benchmark: str, unit: str, rows: list[dict[str, Any]], folder: Path) -> Path:
    figure = Figure(figsize=(WIDTH_INCH, HEIGHT_OF_A_ROW_INCH * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    medians = [row["median"] for row in rows]
    below = [row["median"] - row["minimum"] for row in rows]
    above = [row["maximum"] - row["median"] for row in rows]
    axes.barh([row["what"] for row in rows], medians, xerr=(below, above), color="#7a9cc6", ecolor="#26384f", capsize=3)
    axes.invert_yaxis()  # the first row on top
    axes.set_title(f"{benchmark}: {unit}")
    axes.spines[["top", "right"]].set_visible(False)
    if unit == "ratio":
        axes.axvline(1, color="#26384f", linewidth=1, linestyle=":")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{benchmark}-{unit.replace('/', '-per-').replace(' ', '-')}.svg"
    figure.savefig(file, metadata={"Date": None})
    return file
