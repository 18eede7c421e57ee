"""What is recorded of a query on real systems is checked against the specification: here, with files alone."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import twopc
from tests.campaigns.model.observed import Observed, check, checked, observed, read
from tests.campaigns.model.recorder import Attempt, Event, Value
from tests.campaigns.model.recording import recorded
from tests.campaigns.seams import Seam, nothing, patched
from tests.campaigns.simulation.catching import applied
from tests.campaigns.simulation.mutants import MUTANTS
from twopc.participant import Vote

pytestmark = pytest.mark.long

Record = dict[str, Any]

TASKS = 2
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


class Query:
    """A query into two folders of files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def coordinator(self) -> twopc.Coordinator:
        sinks = {name: twopc.create_sink("files", {"path": f"{self.folder}/{name}"}) for name in ("one", "two")}
        # One commit at a time, as a test has commits put in a seam and take it away again.
        return twopc.Coordinator(sinks, self.folder / "log", owner="query", rest_interval_s=None, commits_at_once=1)

    def batch(
        self, coordinator: twopc.Coordinator, batch: int, then: Callable[[], None] = lambda: None, votes: int = TASKS
    ) -> None:
        """Run a batch. ``then``: called when its tasks have voted. ``votes``: how many of the votes arrive."""

        def phase_one(round: twopc.Round) -> Iterator[Vote]:
            for task in range(TASKS):
                with twopc.Participant(coordinator._sinks, round, partition=task) as participant:
                    for sink in coordinator._sinks:
                        participant.write(sink, pa.record_batch({"n": [batch]}))
                    vote = participant.pre_commit()
                if task < votes:
                    yield vote
            then()

        coordinator.run(batch, phase_one, reads=batch, follows=batch - 1 if batch else None)

    def trace(self) -> Observed:
        return read("query", self.folder / "steps.jsonl", self.folder / "log")

    def records(self) -> list[Record]:
        return [json.loads(line) for line in (self.folder / "steps.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Query]:
    with recorded(tmp_path / "steps.jsonl"):
        yield Query(tmp_path)


class Died(BaseException):
    """The driver is killed."""


def die() -> None:
    raise Died


def refuse(*_: object) -> None:
    raise twopc.ConfigurationError("the decision is too long")


def eventful(query: Query) -> None:
    """A driver that is replaced while it writes, one that dies after its decision, one whose task fails, and one whose
    decision the log refuses when all sinks are sealed."""
    zombie, newer = query.coordinator(), query.coordinator()
    query.batch(zombie, 0)
    with contextlib.suppress(twopc.Fenced):
        query.batch(zombie, 1, lambda: query.batch(newer, 1))
    dies_before_its_commits = Seam("twopc.protocol:commit", lambda *_, **__: die())
    with patched([dies_before_its_commits]), contextlib.suppress(Died):
        query.batch(newer, 2)
    last = query.coordinator()
    query.batch(last, 2)
    with contextlib.suppress(twopc.RoundAborted):
        query.batch(last, 3, lambda: 1 / 0)  # type: ignore[arg-type]
    with patched([Seam("twopc.log.steps:append", refuse)]), contextlib.suppress(twopc.ConfigurationError):
        query.batch(last, 3)
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
        pytest.param("a commit comes before the decision", "ask to commit", marks=pytest.mark.long),
        pytest.param("phase two is left out", "listed", marks=pytest.mark.long),
        pytest.param("recovery commits nothing", "listed", marks=pytest.mark.long),
        pytest.param("the sweep after a batch is forgotten", "ran", marks=pytest.mark.long),
        pytest.param("open carries nothing forward", "open", marks=pytest.mark.long),
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


def test_a_decision_without_the_vote_of_a_task_that_has_pre_committed_is_no_step(query: Query, tmp_path: Path) -> None:
    query.batch(query.coordinator(), 0, votes=TASKS - 1)
    verdict = check(query.trace(), tmp_path / "model")
    assert verdict.rejected is not None
    assert verdict.trace.events[verdict.rejected].kind == "seal"


def written_and_decided(life: int, batch: int, slot: float) -> list[Record]:
    """Return made-up records of a batch: up to its seals, its put and the answer."""
    votes = [{sink: f"{life} {batch} {task} {sink}" for sink in ("one", "two")} for task in range(TASKS)]
    of = {sink: [vote[sink] for vote in votes] for sink in ("one", "two")}
    given = {"life": life, "batch": batch}
    decision = {"entry": "decide", "by": life, "decided": batch, "reads": batch}
    return [
        {"is": "run", **given, "what": "write", "reads": batch, "follows": batch - 1},
        {"is": "votes", **given, "votes": votes, "may_time_out": []},
        *({"is": "seal", "life": life, "sink": sink, "of": keys} for sink, keys in of.items()),
        {
            "is": "put",
            "slot": slot,
            "id": "x",
            "after": None,
            "unresolved": [{"batch": batch, "sinks": of}],
            **decision,
        },
        {"is": "appended", "id": "x"},
    ]


def inserted(records: Sequence[Record], new: Sequence[Record], kind: str, life: int) -> list[Record]:
    """Return the records with new ones after the first of a kind and a life."""
    position = next(n for n, record in enumerate(records) if record["is"] == kind and record.get("life") == life)
    timed = [{**record, "at": records[position]["at"] + n * 1e-9} for n, record in enumerate(new, 1)]
    return [*records[: position + 1], *timed, *records[position + 1 :]]


def decided_by_a_fenced_driver(records: Sequence[Record]) -> list[Record]:
    *written, put, appended = written_and_decided(1, 1, slot=2.5)  # the newer driver has opened in slot 2
    return inserted(inserted(records, written, "ran", 1), [put, appended], "attach", 2)


def decided_twice(records: Sequence[Record]) -> list[Record]:
    return inserted(records, written_and_decided(2, 1, slot=3.5), "ran", 2)


def rolled_back_after_its_decision(records: Sequence[Record]) -> list[Record]:
    key = next(record for record in records if record["is"] == "votes")["votes"][0]["one"]
    given = {"life": 1, "sink": "one"}
    of_sweep = [{"is": "list", **given}, {"is": "listed", **given, "found": [key]}, {"is": "read the log", **given}]
    aborts = [{"is": kind, **given, "of": key} for kind in ("ask to abort", "abort")]
    return inserted(records, [*of_sweep, *aborts], "ran", 1)


def never_asked_to_commit(records: Sequence[Record]) -> list[Record]:
    key = next(record for record in records if record["is"] == "votes")["votes"][0]["one"]
    completed = next(record for record in records if record["is"] == "complete in sink" and record["sink"] == "one")
    return [record for record in records if record is not completed and record.get("of") != key]


def committed_after_its_abort(records: Sequence[Record]) -> list[Record]:
    """A task's transaction, of which no driver got the vote."""
    given = {"life": 2, "sink": "one"}
    of_sweep = [{"is": "list", **given}, {"is": "listed", **given, "found": ["x"]}, {"is": "read the log", **given}]
    ends = [{"is": kind, **given, "of": "x"} for kind in ("ask to abort", "abort", "ask to commit")]
    return inserted(records, [*of_sweep, *ends], "ran", 2)


@pytest.mark.parametrize(
    ("change", "step"),
    [
        (decided_by_a_fenced_driver, "decide"),
        (decided_twice, "run"),
        (rolled_back_after_its_decision, "ask to abort"),
        (never_asked_to_commit, "listed"),
        (committed_after_its_abort, "ask to commit"),
    ],
)
def test_records_of_what_must_not_happen_are_no_behavior(
    query: Query, tmp_path: Path, change: Callable[[Sequence[Record]], list[Record]], step: str
) -> None:
    query.batch(query.coordinator(), 0)
    newer = query.coordinator()
    newer.recover()
    query.batch(newer, 1)
    newer.close()
    verdict = check(observed("query", change(query.records()), None), tmp_path / "model")
    assert verdict.rejected is not None
    assert verdict.trace.events[verdict.rejected].kind == step
