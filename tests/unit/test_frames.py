"""How deep the code is: whoever reads a traceback from a sink's ``commit`` finds few frames of this project in it."""

import inspect
from pathlib import Path
from typing import Any

import pytest

import twopc
from tests.support.phase_one import writes
from twopc import Committable, Coordinator
from twopc.testing import MemorySink, MemoryTarget
from twopc.threads import on_threads as real

PACKAGE = str(Path(twopc.__file__).parent)

FRAMES_AT_MOST = 9


class Deep(MemorySink):
    """Notes the functions of this project that are on the stack when ``commit`` is called, outermost first."""

    def __init__(self) -> None:
        super().__init__(MemoryTarget())
        self.stacks: list[list[str]] = []

    def commit(self, committable: Committable) -> None:
        ours = [frame.function for frame in inspect.stack()[1:] if frame.filename.startswith(PACKAGE)]
        self.stacks.append(ours[::-1])
        super().commit(committable)


def committed(log: Path, commits_at_once: int) -> list[list[str]]:
    sink = Deep()
    with Coordinator(
        {"a": sink}, log, owner="query", commits_at_once=commits_at_once, rest_interval_s=None
    ) as coordinator:
        coordinator.run(0, writes({"a": sink}, *({"n": [partition]} for partition in range(2))))
    return sink.stacks


def test_few_frames_lie_between_run_and_commit(tmp_path: Path) -> None:
    for stack in committed(tmp_path, commits_at_once=1):
        between = stack[stack.index("run") + 1 :]
        assert len(between) <= FRAMES_AT_MOST, between


def test_few_frames_lie_between_run_and_a_commit_on_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitting: list[list[str]] = []

    def on_threads(*arguments: Any, **options: Any) -> Any:
        ours = [frame.function for frame in inspect.stack()[1:] if frame.filename.startswith(PACKAGE)]
        submitting.append(ours[::-1])
        return real(*arguments, **options)

    monkeypatch.setattr("twopc.commits.on_threads", on_threads)
    commits = committed(tmp_path, commits_at_once=2)
    [stack] = submitting
    between = stack[stack.index("run") + 1 :]
    assert len(commits) == 2
    for of_the_thread, *on_thread in commits:
        assert of_the_thread == "run"  # of a thread, as ``threading`` has one
        assert "run" not in on_thread
        assert len(between) + len(on_thread) <= FRAMES_AT_MOST, between + on_thread
