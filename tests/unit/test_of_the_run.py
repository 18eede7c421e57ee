"""How a run of the tests shares servers, chooses tests, and shows that it makes progress."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from tests.support import leftovers, progress_lines
from tests.support.leftovers import left, running
from tests.support.once_per_run import ADDRESS, once_per_run
from tests.support.progress_lines import ProgressLines
from tests.support.shared_servers import SharedServers
from tests.support.turns import take_turns
from tests.support.waiting import until


class Starts:
    """What is started here, by name."""

    def __init__(self) -> None:
        self.attempts: list[str] = []
        self.ended: list[str] = []

    def works(self, ended: contextlib.ExitStack, folder: Path) -> str:
        self.attempts.append("works")
        ended.callback(self.ended.append, "works")
        assert folder.is_dir()
        return "an address"

    def is_missing(self, ended: contextlib.ExitStack, folder: Path) -> None:
        self.attempts.append("missing")
        pytest.skip("install it")

    def fails(self, ended: contextlib.ExitStack, folder: Path) -> None:
        self.attempts.append("fails")
        raise OSError("no port")


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Starts]:
    starts = Starts()
    of_names = {"works": starts.works, "missing": starts.is_missing, "fails": starts.fails}
    with SharedServers(of_names) as servers:
        monkeypatch.setenv(ADDRESS, servers.address)
        yield starts


def test_a_server_is_started_once_and_ended_with_the_run(starts: Starts) -> None:
    assert [once_per_run("works") for _ in range(3)] == ["an address"] * 3
    assert starts.attempts == ["works"]
    assert starts.ended == []


def test_what_can_not_be_installed_is_tried_once_and_skips_every_test_with_the_reason(starts: Starts) -> None:
    for _ in range(3):
        with pytest.raises(pytest.skip.Exception, match="install it"):
            once_per_run("missing")
    assert starts.attempts == ["missing"]


def test_a_start_that_fails_is_tried_once_and_fails_every_test_with_its_traceback(starts: Starts) -> None:
    for _ in range(2):
        with pytest.raises(pytest.fail.Exception, match="no port"):
            once_per_run("fails")
    assert starts.attempts == ["fails"]


def test_servers_end_when_the_run_does() -> None:
    starts = Starts()
    with SharedServers({"works": starts.works}) as servers:
        servers.outcome("works").result()
    assert starts.ended == ["works"]


@pytest.mark.long
def test_a_file_that_a_test_leaves_open_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "ENDS_WITHIN_S", 0)
    before = running()
    with (tmp_path / "left").open("w"):
        assert left(before) == {f"file {tmp_path / 'left'}"}
    assert left(before) == set()


class Test:
    """A test of a table, whose marks are those that pytest would find."""

    __test__ = False

    def __init__(self, name: str, table: int, *marks: pytest.MarkDecorator) -> None:
        self.nodeid = f"test_upserts.py::{name}[table{table}]"
        self.callspec = SimpleNamespace(indices={"table": table})
        self.marks = [mark.mark for mark in (pytest.mark.in_turn("table"), *marks)]

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return [mark for mark in self.marks if mark.name == name]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next(iter(self.iter_markers(name)), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.mark)


def in_the_gate(commit: int, name: str) -> list[int]:
    tests = [Test(name, table) for table in (0, 1, 3)]
    take_turns(cast("Any", [*tests, Test(name, 2, pytest.mark.long)]), commit)
    return [test.callspec.indices["table"] for test in tests if not test.get_closest_marker("long")]


@pytest.mark.parametrize("name", ["test_a", "test_b"])
def test_successive_commits_try_every_value_that_is_not_long_and_each_commit_one(name: str) -> None:
    assert sorted(in_the_gate(commit, name) for commit in (7, 8, 9)) == [[0], [1], [3]]


def wait_for_lines(pipe: io.StringIO, line: str) -> None:
    until(lambda: pipe.getvalue().count(line) >= 3, 30, pipe)


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
