"""What takes long shows in a pipe that it lives."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from twopc.cli import progress
from twopc.cli.progress import ProgressLines

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def test_in_a_pipe_each_task_that_goes_on_has_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[str, Callable[[], bool]], None]
) -> None:
    monkeypatch.setattr(progress, "LINE_INTERVAL_S", 0.01)
    pipe = io.StringIO()
    with ProgressLines(console=Console(file=pipe, force_terminal=False, width=200)) as shown:
        done, loading = shown.add_task("settled", total=1), shown.add_task("loading", total=2000)
        shown.update(done, completed=1)
        shown.update(loading, completed=1500)
        wait("there are three lines", lambda: pipe.getvalue().count(" s: loading: 1,500 of 2,000\n") >= 3)
    assert "settled: " not in pipe.getvalue()


def test_in_a_pipe_the_newest_task_has_lines_until_the_end_though_it_is_through(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[str, Callable[[], bool]], None]
) -> None:
    monkeypatch.setattr(progress, "LINE_INTERVAL_S", 0.01)
    pipe = io.StringIO()
    with ProgressLines(console=Console(file=pipe, force_terminal=False, width=200)) as shown:
        shown.update(shown.add_task("loading", total=1), completed=1)
        wait("there are three lines", lambda: pipe.getvalue().count(" s: loading: 1 of 1\n") >= 3)


def test_a_terminal_has_bars_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_INTERVAL_S", 0.0)
    terminal = io.StringIO()
    with ProgressLines(console=Console(file=terminal, force_terminal=True)) as shown:
        shown.add_task("loading", total=1)
    assert "loading: 0" not in terminal.getvalue()
