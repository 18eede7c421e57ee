"""What is recorded of a query on real systems is checked against the specification: here, with files alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import twopc
from tests.campaigns.model.observed import Observed, check, checked, read
from tests.campaigns.model.recorder import Attempt, Event, Value
from tests.campaigns.model.recording import recorded
from tests.campaigns.seams import Seam, nothing, patched
from tests.campaigns.simulation.catching import applied
from tests.campaigns.simulation.mutants import MUTANTS
from twopc.participant import Vote

TASKS = 2
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


class Query:
    """A query into two folders of files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def coordinator(self) -> twopc.Coordinator:
        sinks = {name: twopc.create_sink("files", {"path": f"{self.folder}/{name}"}) for name in ("one", "two")}
        return twopc.Coordinator(sinks, self.folder / "log", owner="query", rest_interval_s=None)

    def batch(self, coordinator: twopc.Coordinator, batch: int, then: Callable[[], None] = lambda: None) -> None:
        """Run a batch. ``then``: called when its tasks have voted."""

        def phase_one(round: twopc.Round) -> Iterator[Vote]:
            for task in range(TASKS):
                with twopc.Participant(coordinator._sinks, round, partition=task) as participant:
                    for sink in coordinator._sinks:
                        participant.write(sink, pa.record_batch({"n": [batch]}))
                    yield participant.pre_commit()
            then()

        coordinator.run(batch, phase_one, reads=batch, follows=batch - 1 if batch else None)

    def trace(self) -> Observed:
        return read("query", self.folder / "steps.jsonl", self.folder / "log")


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Query]:
    with recorded(tmp_path / "steps.jsonl"):
        yield Query(tmp_path)


class Died(BaseException):
    """The driver is killed."""


def die() -> None:
    raise Died


def eventful(query: Query) -> None:
    """A driver that is replaced while it writes, one that dies after its decision, and one whose task fails."""
    zombie, newer = query.coordinator(), query.coordinator()
    query.batch(zombie, 0)
    with contextlib.suppress(twopc.Fenced):
        query.batch(zombie, 1, lambda: query.batch(newer, 1))
    dies_before_its_commits = Seam("twopc.coordinator:Coordinator._commit_through", lambda *_, **__: die())
    with patched([dies_before_its_commits]), contextlib.suppress(Died):
        query.batch(newer, 2)
    last = query.coordinator()
    query.batch(last, 2)
    with contextlib.suppress(twopc.RoundAborted):
        query.batch(last, 3, lambda: 1 / 0)  # type: ignore[arg-type]
    for batch in range(3, 12):
        query.batch(last, batch)
    last.rest()
    last.close()


def test_what_a_query_does_is_a_behavior_of_the_specification(query: Query, tmp_path: Path) -> None:
    eventful(query)
    trace = query.trace()
    assert {"fenced", "ask to abort", "read the log", "forget", "rested", "close"} <= {e.kind for e in trace.events}
    report = checked([trace], tmp_path / "model")
    assert report["rejected_traces"] == []
    assert report["traces_accepted"] == 1


@pytest.mark.parametrize(
    ("defect", "step"),
    [
        ("the decision comes before the seal", "decide"),
        ("a commit comes before the decision", "ask to commit"),
        ("phase two is left out", "listed"),
        ("recovery commits nothing", "ask to commit"),
        ("the sweep after a batch is forgotten", "ran"),
        ("open carries nothing forward", "open"),
    ],
)
def test_what_it_does_with_a_defect_is_not(query: Query, tmp_path: Path, defect: str, step: str) -> None:
    with applied(BY_NAME[defect]), contextlib.suppress(Exception):
        eventful(query)
    verdict = check(query.trace(), tmp_path / "model")
    assert verdict.rejected is not None
    assert verdict.trace.events[verdict.rejected].kind == step


def test_a_lost_answer_and_a_dead_driver_leave_hidden_steps(query: Query, tmp_path: Path) -> None:
    """The second driver finds committed what the first one has committed, without an answer on record."""
    first, dying = query.coordinator(), Seam("tests.campaigns.model.recording:_Recorder._add", nothing)
    decided: list[object] = []

    def commit(real: Callable[..., None], *arguments: object) -> None:
        with patched([dying]):
            real(*arguments)
        decided.append(arguments)
        die()

    with patched([Seam("twopc_files.sink:FileSink.commit", commit)]), contextlib.suppress(Died):
        query.batch(first, 0)
    assert decided
    second = query.coordinator()
    query.batch(second, 0)
    second.close()
    verdict = check(query.trace(), tmp_path / "model")
    assert str(verdict) == "query: accepted"


@pytest.mark.parametrize("ends", [True, False])
def test_a_transaction_that_a_sweep_does_not_find_must_be_one_that_may_have_ended(tmp_path: Path, ends: bool) -> None:
    """In files, what has voted stays. In Kafka, it may be fenced by another of its name."""
    attempt = Attempt(1, 1, 0, 1)
    given: dict[str, Value] = {"life": 1, "sink": "s"}
    nothing_found: dict[str, Value] = {**given, "found": frozenset()}
    batch: dict[str, Value] = {"batch": 1, "reads": (0, 1), "follows": (0, 0), "tasks": frozenset({0}), "what": "write"}
    steps: list[tuple[str, dict[str, Value]]] = [
        ("open", {"life": 1, "reads": (0, 0), "names": frozenset()}),
        ("list", {**given}),
        ("listed", nothing_found),
        ("run", {"life": 1, **batch}),
        ("vote", {"attempt": attempt}),
        ("list", {**given}),
        ("listed", nothing_found),
    ]
    events = [Event(kind, at, values) for at, (kind, values) in enumerate(steps)]
    take_over = frozenset({"s"} if ends else ())
    verdict = check(Observed("query", events, ["s"], frozenset(), take_over), tmp_path / "model")
    assert verdict.rejected == (None if ends else len(events) - 1)
