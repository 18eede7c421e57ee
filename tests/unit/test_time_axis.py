"""The axis of time of ``twopc report``, and the trends along it."""

from __future__ import annotations

import itertools
import re
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twopc.cli.time_axis import TimeAxis, seconds
from twopc.cli.trend import DURATION, trend

START_S = datetime(2026, 11, 2, 8, tzinfo=timezone.utc).timestamp()
WEEK_S = 7 * 86400.0


def every(step_s: float, count: int, start_s: float = START_S) -> list[tuple[float, float]]:
    """Batches of five milliseconds."""
    return [(start_s + n * step_s, start_s + n * step_s + 0.005) for n in range(count)]


def test_a_week_without_a_batch_is_cut() -> None:
    axis = TimeAxis([*every(10, 50), *every(10, 50, START_S + WEEK_S)])
    [cut] = axis.cuts
    assert cut.width <= 3
    assert cut.lasted_s == pytest.approx(WEEK_S - 490, abs=1)
    assert axis.place(START_S + 490) == pytest.approx(cut.x, abs=0.01)
    assert axis.place(START_S + WEEK_S) == pytest.approx(cut.x + cut.width, abs=0.01)
    assert {tick.date for tick in axis.ticks} == {"2026-11-02", "2026-11-09"}


def test_a_pause_that_is_usual_is_not_cut() -> None:
    assert TimeAxis(every(WEEK_S, 10)).cuts == []
    assert TimeAxis([*every(10, 50), *every(10, 50, START_S + 700)]).cuts == []


def test_a_query_of_one_run_a_week_has_every_run_on_the_axis() -> None:
    runs = [START_S + n * WEEK_S for n in range(200)]
    axis = TimeAxis([span for at_s in runs for span in every(1, 5, at_s)])
    assert len(axis.cuts) == 199
    places = [axis.place(at_s) for at_s in runs]
    assert places == sorted(places)
    assert places[-1] - places[0] > 99 - 1


def test_a_single_moment_has_its_tick() -> None:
    [tick] = TimeAxis([(START_S, START_S)]).ticks
    assert (tick.x, tick.date, tick.time) == (0, "2026-11-02", "08:00:00.000")


@given(st.lists(st.floats(-6e10, 2e11), min_size=1, max_size=40))
def test_places_keep_the_order_of_time_and_ticks_do_not_touch(times_s: list[float]) -> None:
    axis = TimeAxis([(at_s, at_s) for at_s in times_s])
    places = [axis.place(at_s) for at_s in sorted(times_s)]
    assert places == sorted(places)
    assert all(-0.001 <= x <= 100.001 for x in places)
    xs = [tick.x for tick in axis.ticks]
    assert all(after - before >= 11.9 for before, after in itertools.pairwise(xs))


def test_a_time_without_a_zone_is_utc_and_a_text_that_is_none_has_no_place() -> None:
    assert seconds("2026-11-02T08:00:00") == seconds("2026-11-02T09:00:00+01:00") == START_S
    assert seconds("+00:00<b>") is None
    assert seconds("0001-01-02T00:00:00+00:00") is None  # a batch before it would be of no year


def test_batches_of_five_milliseconds_and_of_ten_minutes_are_both_seen() -> None:
    spans = every(10, 20)
    values = [5.0 if n % 2 else 600_000.0 for n in range(20)]
    drawn = trend(
        "batch time", [(end_s, ms) for (_, end_s), ms in zip(spans, values, strict=True)], TimeAxis(spans), DURATION
    )
    assert drawn
    assert drawn.is_logarithmic
    assert (drawn.largest, drawn.newest) == ("10 min", "5 ms")
    heights = {float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", drawn.line)}
    assert max(heights) - min(heights) > 60


def test_a_line_does_not_cross_the_time_in_which_there_was_no_batch() -> None:
    spans = [*every(10, 50), *every(10, 50, START_S + 700)]
    drawn = trend("batch time", [(end_s, 5.0) for _, end_s in spans], TimeAxis(spans), DURATION)
    assert drawn
    assert drawn.line.count("M") == 2


@given(st.lists(st.floats(0, 1e30), min_size=1, max_size=20))
def test_no_value_is_drawn_outside(values: list[float]) -> None:
    points = [(START_S + n, value) for n, value in enumerate(values)]
    drawn = trend("t", points, TimeAxis([(at_s, at_s) for at_s, _ in points]), DURATION)
    assert drawn
    found = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", drawn.line + drawn.band)
    assert found
    assert all(-0.1 <= float(coordinate) <= 100.1 for pair in found for coordinate in pair)
