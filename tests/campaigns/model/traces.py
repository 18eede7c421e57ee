"""Traces of the real code in the simulation, checked against the specification; see ``docs/internals/model.md``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.model.checks import Check
from tests.campaigns.model.recorder import NOT_IN_THE_MODEL, Attempt, Event, Recorder, lack
from tests.campaigns.model.tlc import run_module
from tests.campaigns.seams import patched
from tests.campaigns.simulation.catching import applied, recorded
from tests.campaigns.simulation.mutants import MUTANTS, Mutant
from tests.campaigns.simulation.scenario import Scenario
from tests.campaigns.simulation.schedule import Result, run_drawn, run_schedule

SCENARIOS = (
    Scenario(sinks="kf", batches=2, runs=2),
    Scenario(sinks="kk", batches=2, partitions=(1, 2), machines=2, slots=2),
    Scenario(sinks="kf", batches=3, partitions=(2, 1), end_txn_version=4, rests=True),
    Scenario(sinks="kk", batches=2, end_txn_version=4, entries_kept=1),
    Scenario(sinks="ff", batches=2, rests=True, entries_kept=2),
)
"""The scenarios of traces, in turn. Each has two sinks, which is a constant of the specification."""

AT_ONCE = 300
"""The traces of one run of TLC, which keeps them in memory."""

_STEP = re.compile(r'<<"is a step", (\d+), (\d+)>>')


@dataclass(frozen=True, slots=True)
class Trace:
    """The events of one run.

    Attributes:
        name: the scenario and the schedule.
        sinks: the number of sinks.
        events: what the code did.
        is_caught: whether the ledger has found that the run breaks a promise. The trace ends there.
    """

    name: str
    sinks: int
    events: Sequence[Event]
    is_caught: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What TLC found of a trace. ``rejected``: the first event that is no step of the specification, or None."""

    trace: Trace
    rejected: Event | None

    @property
    def found_by(self) -> str:
        """Who has found something wrong: ``specification``, ``ledger``, ``both`` or ``none``."""
        if self.rejected is None:
            return "ledger" if self.trace.is_caught else "none"
        return "both" if self.trace.is_caught else "specification"

    def __str__(self) -> str:
        if self.rejected is None:
            return f"accepted: {self.trace.name}"
        events = self.trace.events
        before = events[: next(number for number, event in enumerate(events) if event is self.rejected)]
        lines = [f"no step of the specification: {self.rejected}", f"in {self.trace.name}, after", *map(str, before)]
        return "\n    ".join(lines)


def drawn(number: int, first: int = 0) -> Iterator[Trace]:
    """Yield that many traces of the unchanged code, with faults drawn by seeds. Call it within ``simulated``."""
    seed, left = first, number
    while left:
        scenario = SCENARIOS[seed % len(SCENARIOS)]
        if trace := _record(scenario, lambda s=scenario, n=seed: run_drawn(s, n)):  # type: ignore[misc]
            yield trace
            left -= 1
        seed += 1


def of_mutants(seeds: int) -> Iterator[tuple[Mutant, Trace]]:
    """Yield traces of every mutant that the specification's faults catch: one of the schedule that catches it, and as
    many as ``seeds`` of drawn faults. Call it within ``simulated``."""
    catches = recorded()
    for mutant in MUTANTS:
        known = catches.get(mutant.name)
        if known is None or lack(known.scenario, known.schedule.values()):
            continue
        runs: list[Callable[[], Result]] = [lambda known=known: run_schedule(known.scenario, known.schedule)]  # type: ignore[misc]
        runs += [lambda known=known, n=n: run_drawn(known.scenario, n) for n in range(seeds)]  # type: ignore[misc]
        for run in runs:
            if trace := _record(known.scenario, run, mutant):
                yield mutant, trace


def without_traces() -> dict[str, str]:
    """Return the other mutants, with what the specification lacks of the schedules that catch them."""
    lacks = {name: lack(known.scenario, known.schedule.values()) for name, known in recorded().items()}
    return {name: what for name, what in lacks.items() if what}


UNNOTICED = {
    "the sweep does not look again after an abort": "Kafka's markers",
    "the sweep does not wait for what is being rolled back": "Kafka's markers",
    "a marker that is missing of a commit is not written": "Kafka's markers",
    "a name whose last transaction was rolled back is used again": "Kafka's markers",
    "a staged file is not synced": "the syncs of a disk",
    "a committed file's name is not synced": "the syncs of a disk",
    "one commit that fails leaves the others undone": "what else a query has committed when it stops",
    "a batch without transactions is never complete": "the completion of a batch without records",
    "a batch is announced before it is committed": "announcements",
    "a failure that comes again is tried for ever": "failures of rounds, and their number",
    "an outage is counted as a failure": "failures of rounds, and their number",
    "an opening forgets the failures before": "failures of rounds, and their number",
    "a failure is forgotten when another one comes": "failures of rounds, and their number",
    "an append in doubt is tried for ever": "failures of rounds, and their number",
}
"""Mutants whose traces the specification accepts, with what it lacks. The ledger rejects them."""


def _record(scenario: Scenario, run: Callable[[], Result], mutant: Mutant | None = None) -> Trace | None:
    """Return the trace of a run, or None if the specification lacks something that happened."""
    recorder = Recorder(scenario.partitions)
    with patched(recorder.seams()):
        if mutant is None:
            result = run()
        else:
            with applied(mutant):
                result = run()
    if not recorder.is_expressible or not NOT_IN_THE_MODEL.isdisjoint(result.schedule.values()):
        return None
    faults = {step: fault.name for step, fault in result.schedule.items()}
    is_caught = result.violation is not None
    return Trace(f"{scenario}, {faults}", len(scenario.sinks), tuple(recorder.events), is_caught)


def check(traces: Sequence[Trace], folder: Path, reached: Callable[[int], None] = lambda _: None) -> list[Verdict]:
    """Return TLC's verdict of each trace, in their order. ``reached``: called with the number of traces so far."""
    events: dict[int, int] = {}
    for sinks in sorted({trace.sinks for trace in traces}):
        numbers = [number for number, trace in enumerate(traces) if trace.sinks == sinks]
        for first in range(0, len(numbers), AT_ONCE):
            part = numbers[first : first + AT_ONCE]
            found = _check_together([traces[number] for number in part], sinks, folder / str(len(events)))
            events.update(zip(part, found, strict=True))
            reached(len(events))
    return [_verdict(trace, events[number]) for number, trace in enumerate(traces)]


def _verdict(trace: Trace, steps: int) -> Verdict:
    return Verdict(trace, trace.events[steps] if steps < len(trace.events) else None)


def _check_together(traces: Sequence[Trace], sinks: int, folder: Path) -> list[int]:
    """Return for each trace how many of its events are steps of the specification, up to the first that is none."""
    every = [event for trace in traces for event in trace.events]
    module = recorded_module([trace.events for trace in traces])
    outcome = run_module("trace", _configuration(every, sinks), {"recorded": module}, folder, workers=1)
    steps = dict.fromkeys(range(1, len(traces) + 1), 0)
    for trace, event in _STEP.findall(outcome.text):
        steps[int(trace)] = max(steps[int(trace)], int(event))
    return list(steps.values())


def recorded_module(traces: Sequence[Sequence[Event]], as_trace: Callable[[str], str] = str) -> str:
    """Return the TLA+ module that has recorded traces. ``as_trace``: makes a trace of the sequence of its events."""
    every = [event for events in traces for event in events]
    attempts = {attempt: f"a{number}" for number, attempt in enumerate(attempts_of(every))}
    texts = ["<<" + ",\n  ".join(event.to_tla(attempts) for event in events) + ">>" for events in traces]
    return "\n".join(
        [
            "---- MODULE recorded ----",
            "EXTENDS Integers",
            *(f"{name} == {attempt.to_tla()}" for attempt, name in attempts.items()),
            "Traces == <<" + ",\n".join(map(as_trace, texts)) + ">>",
            "====",
        ]
    )


def attempts_of(events: Sequence[Event]) -> list[Attempt]:
    """Return every attempt that the events name. A module with one name for each is half as long."""
    values = [value for event in events for value in event.values.values()]
    flat = [each for value in values for each in (value if isinstance(value, tuple | frozenset) else (value,))]
    nested = [each for value in flat for each in (value if isinstance(value, tuple) else (value,))]
    return sorted({each for each in nested if isinstance(each, Attempt)})


def _configuration(events: Sequence[Event], sinks: int) -> str:
    """Return TLC's configuration, with constants that are as large as the traces need."""

    def largest(name: str) -> int:
        return max((value for event in events if isinstance(value := event.values.get(name), int)), default=1)

    names = ", ".join(f'"{number}"' for number in range(sinks))
    bounds = Check(lives=largest("life"), batches=largest("batch"), kept=10_000)
    return "\n".join(
        ["SPECIFICATION TraceSpec", "CONSTANTS", "  Tasks = {}", f"  Sinks = {{{names}}}", *bounds.numbers()]
    )
