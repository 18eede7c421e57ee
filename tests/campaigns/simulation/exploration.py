"""Which schedules are run: small spaces one after the other, larger ones by seed; and what a failure is cut down to."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.campaigns.simulation.promises import Broken
from tests.campaigns.simulation.schedule import Result, Scenario, run_schedule
from tests.campaigns.simulation.world import Fault, Step

SMALL = (
    Scenario(sinks="kf"),
    Scenario(sinks="kf", log="disk"),
    Scenario(sinks="kk", batches=2, partitions=(1, 2), entries_kept=1, machines=2),
    Scenario(sinks="kf", batches=2, partitions=(2, 1), end_txn_version=4, rests=True),
    Scenario(sinks="kf", stage=True, late_begin=True),
    Scenario(sinks="ff", log="disk", batches=2, entries_kept=1, syncs_checkpoint=False),
)
"""The spaces that are enumerated: every fault at every step, then every pair."""

SMALLEST = (
    Scenario(sinks="kf", partitions=(1,), rows_a_batch=1),
    Scenario(sinks="kf", partitions=(1,), rows_a_batch=1, log="disk"),
    Scenario(sinks="k", partitions=(1,), rows_a_batch=2, entries_kept=1, end_txn_version=4, runs=2, rests=True),
)
"""Those of which every pair of faults is enumerated first; those of ``SMALL`` come after, as far as time goes."""

TINY = (Scenario(sinks="k", partitions=(1,), rows_a_batch=1), SMALLEST[-1])
"""Those of which every triple of faults comes next, some ten million, as far as time goes."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A schedule that broke a promise, as short as it could be made."""

    scenario: Scenario
    schedule: Mapping[int, Fault]
    violation: Broken | None
    seed: int | None = None

    def __str__(self) -> str:
        result = run_schedule(self.scenario, self.schedule, traced=True)
        places = ", ".join(
            f"{step}: Fault.{fault.name}" + (f" at {_place(result.trace[step])}" if step < len(result.trace) else "")
            for step, fault in sorted(self.schedule.items())
        )
        seed = "" if self.seed is None else f" (seed {self.seed})"
        return f"{self.violation or 'no violation'}{seed}\n    {self.scenario}\n    {{{places}}}"


def _place(step: Step) -> str:
    return f"{step.actor}, {step.op}"


def singles(scenario: Scenario, only: Container[Fault] = tuple(Fault)) -> Iterator[dict[int, Fault]]:
    """Every fault at every step of an undisturbed run."""
    for number, step in enumerate(run_schedule(scenario, {}, traced=True).trace):
        for fault in step.faults:
            if fault in only:
                yield {number: fault}


def pairs(
    scenario: Scenario, stride: int = 1, offset: int = 0, only: Container[Fault] = tuple(Fault)
) -> Iterator[dict[int, Fault]]:
    """After every single fault, every fault at every later step of that run. With a stride, one first fault in so
    many."""
    for first in itertools.islice(singles(scenario, only), offset, None, stride):
        yield from _one_more(scenario, first, only)


def in_turn(scenario: Scenario, kinds: Sequence[Container[Fault]]) -> Iterator[Mapping[int, Fault]]:
    """Of as many faults as ``kinds``, each of the next kind and at a later step than the one before."""
    schedules: Iterable[Mapping[int, Fault]] = singles(scenario, kinds[0]) if kinds else ()
    for kind in kinds[1:]:
        schedules = itertools.chain.from_iterable(map(functools.partial(_one_more, scenario, only=kind), schedules))
    yield from schedules


def triples(scenario: Scenario, stride: int = 1, offset: int = 0) -> Iterator[dict[int, Fault]]:
    """After every pair of faults, every fault at every later step of that run. The pairs come in no order, so that some
    of the triples are a sample of all."""
    in_no_order = list(pairs(scenario))
    random.Random(0).shuffle(in_no_order)
    for pair in in_no_order[offset::stride]:
        yield from _one_more(scenario, pair)


def _one_more(
    scenario: Scenario, schedule: Mapping[int, Fault], only: Container[Fault] = tuple(Fault)
) -> Iterator[dict[int, Fault]]:
    """Every fault at every later step of the run."""
    for number, step in enumerate(run_schedule(scenario, schedule, traced=True).trace):
        if number > max(schedule):
            for fault in step.faults:
                if fault in only:
                    yield {**schedule, number: fault}


def shortest(scenario: Scenario, result: Result, seed: int | None = None) -> Failure:
    """Leave out one fault after the other, and whatever makes the scenario larger, while it still fails."""
    assert result.violation
    schedule, violation = dict(result.schedule), result.violation
    for at in sorted(schedule):
        fewer = {step: fault for step, fault in schedule.items() if step != at}
        tried = run_schedule(scenario, fewer)
        if tried.violation:
            schedule, violation = fewer, tried.violation
    return Failure(scenario, schedule, violation, seed)
