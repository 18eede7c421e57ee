"""``status --watch`` on a real terminal, beside a query that writes the log."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import twopc
from twopc.testing import MemorySink, MemoryTarget

# A shell that starts the tests in the background has them ignore Ctrl-C, and whatever they start.
COMMAND = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import twopc.cli; twopc.cli.main()"


class Terminal:
    """A command on a terminal of its own, and what it has shown there."""

    def __init__(self, *arguments: object) -> None:
        self._ours, theirs = pty.openpty()
        command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
        size = {"COLUMNS": "160", "LINES": "50", "TERM": "xterm"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | size)
        os.close(theirs)
        self._shown = ""

    def shows(self, text: str) -> bool:
        """Whether it has shown ``text`` since it last was asked for one that it had."""
        while select.select([self._ours], [], [], 0)[0]:
            try:
                self._shown += os.read(self._ours, 65536).decode()
            except OSError:  # the process has ended
                break
        before, found, after = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._shown).partition(text)
        assert "Traceback" not in before
        self._shown = after if found else self._shown
        return bool(found)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(*arguments: object) -> Terminal:
        started.append(Terminal(*arguments))
        return started[-1]

    yield start
    for one in started:
        one.end()


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
