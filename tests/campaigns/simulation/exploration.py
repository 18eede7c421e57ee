"""The choice of schedules (small spaces exhaustively, larger ones by seed), and the reduction of a failing schedule."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.campaigns.simulation.promises import Broken
from tests.campaigns.simulation.scenario import Scenario
from tests.campaigns.simulation.schedule import Result, run_schedule
from tests.campaigns.simulation.world import Fault, Step

SMALL = (
    Scenario(sinks="kf"),
    Scenario(sinks="kf", log="disk"),
    Scenario(sinks="kk", batches=2, partitions=(1, 2), entries_kept=1, machines=2),
    Scenario(sinks="kf", batches=2, partitions=(2, 1), end_txn_version=4, rests=True),
    Scenario(sinks="kf", stage=True, late_begin=True),
    Scenario(sinks="kk", batches=2, partitions=(2, 2, 1), recompute=True),
    Scenario(sinks="pk", batches=2, partitions=(1,), recompute=True),
    Scenario(sinks="ff", log="disk", batches=2, entries_kept=1, syncs_checkpoint=False),
    Scenario(sinks="kd", batches=2, partitions=(2, 1)),
    Scenario(sinks="kft", batches=2, partitions=(2, 1), rests=True),
    Scenario(sinks="tt", stage=True, batches=2),
    Scenario(sinks="tt", partitions=(1,), batches=2, joint=True),
)
"""Scenarios whose single faults are all tried, at every step, and then their pairs."""

FAILING = (
    Scenario(sinks="k", partitions=(1,), rows_a_batch=1, fails="for ever"),
    Scenario(sinks="k", partitions=(1,), rows_a_batch=1, fails="for a while"),
    Scenario(sinks="f", partitions=(1,), rows_a_batch=1, fails="by a sink", log="disk"),
    Scenario(sinks="k", partitions=(1,), rows_a_batch=1, fails="in turn"),
    Scenario(sinks="k", partitions=(1,), rows_a_batch=1, fails="in doubt"),
)
"""Scenarios with rounds that fail again and again, whose single faults are all tried."""

SMALLEST = (
    Scenario(sinks="kf", partitions=(1,), rows_a_batch=1),
    Scenario(sinks="kf", partitions=(1,), rows_a_batch=1, log="disk"),
    Scenario(sinks="k", partitions=(1,), rows_a_batch=2, entries_kept=1, end_txn_version=4, runs=2, rests=True),
    Scenario(sinks="t", rows_a_batch=2, batches=2),
)
"""Scenarios whose pairs of faults are tried first. Those of ``SMALL`` follow while time remains."""

TINY = (Scenario(sinks="k", partitions=(1,), rows_a_batch=1), *SMALLEST[-2:])
"""Scenarios whose triples of faults come next, about 200 million in all, while time remains."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A schedule that broke a promise, reduced to the faults that matter."""

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
    """Yield every fault at every step of an undisturbed run."""
    for number, step in enumerate(run_schedule(scenario, {}, traced=True).trace):
        for fault in step.faults:
            if fault in only:
                yield {number: fault}


def pairs(
    scenario: Scenario, stride: int = 1, offset: int = 0, only: Container[Fault] = tuple(Fault)
) -> Iterator[dict[int, Fault]]:
    """Yield, after every single fault, every fault at every later step of that run. With a stride, use only every
    ``stride``-th first fault."""
    for first in itertools.islice(singles(scenario, only), offset, None, stride):
        yield from _one_more(scenario, first, only)


def in_turn(scenario: Scenario, kinds: Sequence[Container[Fault]]) -> Iterator[Mapping[int, Fault]]:
    """Yield schedules with one fault per entry of ``kinds``, in that order and at ascending steps."""
    schedules: Iterable[Mapping[int, Fault]] = singles(scenario, kinds[0]) if kinds else ()
    for kind in kinds[1:]:
        schedules = itertools.chain.from_iterable(map(functools.partial(_one_more, scenario, only=kind), schedules))
    yield from schedules


def triples(scenario: Scenario, stride: int = 1, offset: int = 0) -> Iterator[dict[int, Fault]]:
    """Yield, after every pair of faults, every fault at every later step of that run. The pairs are shuffled, so the
    triples that fit into the time are a sample of all."""
    in_no_order = list(pairs(scenario))
    random.Random(0).shuffle(in_no_order)
    for pair in in_no_order[offset::stride]:
        yield from _one_more(scenario, pair)


def _one_more(
    scenario: Scenario, schedule: Mapping[int, Fault], only: Container[Fault] = tuple(Fault)
) -> Iterator[dict[int, Fault]]:
    """Yield ``schedule`` with one more fault: every fault at every later step of its run."""
    for number, step in enumerate(run_schedule(scenario, schedule, traced=True).trace):
        if number > max(schedule):
            for fault in step.faults:
                if fault in only:
                    yield {**schedule, number: fault}


def shortest(result: Result, seed: int | None = None) -> Failure:
    """Remove each fault without which the schedule still fails."""
    assert result.violation
    schedule, violation = dict(result.schedule), result.violation
    for at in sorted(schedule):
        fewer = {step: fault for step, fault in schedule.items() if step != at}
        tried = run_schedule(result.scenario, fewer)
        if tried.violation:
            schedule, violation = fewer, tried.violation
    return Failure(result.scenario, schedule, violation, seed)
