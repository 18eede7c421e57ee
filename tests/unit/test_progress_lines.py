"""A long run shows in a pipe that it makes progress."""

import io
import time

import pytest
from rich.console import Console

from tests.support import progress_lines
from tests.support.progress_lines import ProgressLines


def wait_for_lines(pipe: io.StringIO, line: str) -> None:
    deadline = time.monotonic() + 30
    while pipe.getvalue().count(line) < 3:
        assert time.monotonic() < deadline, pipe.getvalue()
        time.sleep(0.02)


def test_in_a_pipe_each_task_that_goes_on_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_lines, "LINE_INTERVAL_S", 0.01)
    pipe = io.StringIO()
    shown = ProgressLines(console=Console(file=pipe, force_terminal=False, width=200))
    done, loading = shown.add_task("settled", total=1), shown.add_task("loading", total=2000)
    shown.update(done, completed=1)
    shown.update(loading, completed=1500)
    with shown:  # from here on lines are printed
        wait_for_lines(pipe, " s: loading: 1,500 of 2,000\n")
    assert "settled: " not in pipe.getvalue()


def test_in_a_pipe_the_newest_task_has_lines_until_the_end_though_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_lines, "LINE_INTERVAL_S", 0.01)
    pipe = io.StringIO()
    with ProgressLines(console=Console(file=pipe, force_terminal=False, width=200)) as shown:
        shown.update(shown.add_task("loading", total=1), completed=1)
        wait_for_lines(pipe, " s: loading: 1 of 1\n")


def test_a_terminal_has_bars_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_lines, "LINE_INTERVAL_S", 0.0)
    terminal = io.StringIO()
    with ProgressLines(console=Console(file=terminal, force_terminal=True)) as shown:
        shown.add_task("loading", total=1)
    assert "loading: 0" not in terminal.getvalue()
