"""``status --watch`` on a real terminal, beside a query that writes the log."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import twopc
from tests.support.terminal import Terminal
from twopc.testing import MemorySink, MemoryTarget


@pytest.mark.long
def test_it_follows_a_log_and_ends_with_ctrl_c(tmp_path: Path, terminal: Callable[..., Terminal], wait: Any) -> None:
    coordinator = twopc.Coordinator({"a": MemorySink(MemoryTarget())}, str(tmp_path / "log"), owner="query")
    coordinator.run(0, lambda _: [])
    watch = terminal("status", tmp_path / "log", "--watch")
    wait("batch 0 is shown", lambda: watch.shows("last decided batch  0"))
    coordinator.run(1, lambda _: [])
    wait("batch 1 is shown", lambda: watch.shows("last decided batch  1"))
    (tmp_path / "log").rename(tmp_path / "away")
    wait("it is away", lambda: watch.shows("Not up to date: ConfigurationError: there is no commit log at"))
    (tmp_path / "away").rename(tmp_path / "log")
    coordinator.run(2, lambda _: [])
    wait("batch 2 is shown", lambda: watch.shows("last decided batch  2"))
    coordinator.close()
    wait("it has stopped", lambda: watch.shows("Nothing is in doubt"))
    watch.process.send_signal(signal.SIGINT)
    assert watch.process.wait(30) == 0
    while watch.shows("Ctrl-C ends this."):
        pass
    assert watch.shows("Nothing is in doubt.")  # the last state stays on the terminal


def test_a_log_that_is_not_there_is_refused_at_once(
    tmp_path: Path, terminal: Callable[..., Terminal], wait: Any
) -> None:
    watch = terminal("status", tmp_path / "log", "--watch")
    wait("it is refused", lambda: watch.shows("there is no commit log at"))
    assert watch.process.wait(30) == 3


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_programs_are_told_to_call_again(tmp_path: Path, look: Any, options: tuple[str, ...]) -> None:
    done = look("status", tmp_path / "log", "--watch", *options)
    assert (done.code, done.out) == (2, "")
    assert "draws on a terminal" in done.err
