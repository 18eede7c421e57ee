"""The steps of ``docs/getting-started.md`` after the installation, which ``tests/packaging`` tests."""

import itertools
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.kills import Process, bound, kill_all_of
from tests.support.pages import DOCS, blocks, write_files

PAGE = DOCS / "getting-started.md"
ENTER = "⏎"

PATIENCE_S = 90.0
"""A Spark that starts on a busy machine takes 20 s to its first batch."""


@pytest.mark.long
@pytest.mark.crash
def test_every_command_does_what_the_page_says(java_home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # as it lives for seconds
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert write_files(PAGE, tmp_path) == ["broker.py", "look.py", "orders.py", "query.py"]
    with processes() as started:
        for terminal, command, shown in steps():
            if command == ENTER:
                started[terminal][-1].communicate(b"\n", timeout=PATIENCE_S)
                assert started[terminal][-1].returncode == 0
            elif terminal == "terminal 3":
                wait_for(shown, lambda: output_of(command, tmp_path))  # noqa: B023  # called before the next
            else:
                output = tmp_path / f"{terminal} {len(started[terminal])}.out"
                started[terminal].append(start(command, tmp_path, output))
                wait_for(shown, output.read_text)


def steps() -> Iterator[tuple[str, str, str]]:
    """Yield each step of each block: the terminal, a command or ENTER, and the output on the page."""
    for block in blocks(PAGE, "console"):
        terminal, *of_terminal = re.split(rf"^(?=\$ |{ENTER})", block, flags=re.MULTILINE)
        for step in of_terminal:
            command, _, shown = step.partition("\n")
            yield terminal.strip("# \n"), command.removeprefix("$ "), shown


@contextmanager
def processes() -> Iterator[dict[str, list[Process]]]:
    """The processes that keep running, by terminal. They are ended at the end, with the JVM of a killed one."""
    started: dict[str, list[Process]] = defaultdict(list)
    try:
        yield started
    finally:
        for process in itertools.chain(*started.values()):
            kill_all_of(process)
            assert process.stdin is not None
            process.stdin.close()


def start(command: str, folder: Path, output: Path) -> Process:
    with output.open("wb") as file:
        return subprocess.Popen(
            bound("/bin/sh", "-c", f"exec {command}"),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def output_of(command: str, folder: Path) -> str:
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return "\n".join(line.rstrip() for line in [*done.stdout.splitlines(), *done.stderr.splitlines()])


def wait_for(shown: str, output: Callable[[], str]) -> None:
    """Wait until the output contains what the page shows; … stands for anything."""
    expected = re.compile(re.escape(shown.strip()).replace("…", ".*"), re.DOTALL)
    deadline = time.monotonic() + PATIENCE_S
    while not expected.search(seen := output()):
        assert time.monotonic() < deadline, f"the page shows:\n{shown}\nthe last look:\n{seen}"
        time.sleep(0.2)
