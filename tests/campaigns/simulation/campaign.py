"""``make simulate``: run as many schedules as fit into the time, on all cores. See ``docs/internals/simulation.md``."""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import itertools
import math
import multiprocessing
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import Any, TypeAlias

from rich.progress import TextColumn

from tests.campaigns.report import Report
from tests.campaigns.simulation.exploration import (
    FAILING,
    SMALL,
    SMALLEST,
    TINY,
    Failure,
    pairs,
    shortest,
    singles,
    triples,
)
from tests.campaigns.simulation.scenario import Scenario
from tests.campaigns.simulation.schedule import Result, run_schedule, run_seed, simulated
from tests.campaigns.simulation.world import CRASH_POINTS, Fault
from tests.support.progress_lines import ProgressLines

SHARES = {"pairs": 0.4, "triples": 0.2, "seeds": 0.4}
"""Shares of the time. Pairs pass on what they don't use. Ten minutes on two cores suffice for the smallest spaces."""

VIOLATIONS_AT_MOST = 20

TELL_EVERY_S = 2.0


@dataclass
class Share:
    """One process's part of the results."""

    schedules: int = 0
    faults_injected: int = 0
    seeds: int = 0
    stopped: int = 0
    pairs: int = 0
    triples: int = 0
    spaces_complete: int = 0
    steps: int = 0
    violations: list[str] = field(default_factory=list)
    crash_points: set[tuple[str, ...]] = field(default_factory=set)

    def count(self, result: Result, seed: int | None = None) -> None:
        self.schedules += 1
        self.seeds += seed is not None
        self.pairs += seed is None and len(result.schedule) == 2
        self.triples += seed is None and len(result.schedule) == 3
        self.steps += result.steps
        self.faults_injected += len(result.schedule)
        self.stopped += result.stopped
        if result.violation:
            self.violations.append(str(shortest(result, seed)))


def explore(worker: int, workers: int, seeds: range, until: Mapping[str, float]) -> Iterator[Share]:
    """Run one process's schedules, and yield its results every few seconds and at the end. ``until`` has the time at
    which each kind of schedule ends."""
    share = Share(crash_points=CRASH_POINTS)
    tell_at = time.monotonic()
    gc.disable()  # a schedule leaves little garbage, and collecting it during each takes a fifth of the time
    with simulated():
        for seed, run_next in _planned(worker, workers, seeds, until, share):
            now = time.monotonic()
            if now > max(until.values()) or len(share.violations) >= VIOLATIONS_AT_MOST:
                break
            if now > tell_at:
                tell_at = now + TELL_EVERY_S
                gc.collect()
                gc.freeze()  # objects that are kept, such as parsed entries, need not be scanned again
                yield share
            share.count(run_next(), seed)
    yield share


Planned: TypeAlias = Iterator[tuple[int | None, Callable[[], Result]]]
"""Pairs of a seed, if the schedule has one, and a function that runs the schedule."""


def _planned(worker: int, workers: int, seeds: range, until: Mapping[str, float], share: Share) -> Planned:
    if "pairs" in until:
        for scenario in (*SMALL, *FAILING, *SMALLEST):
            yield from _scheduled(scenario, itertools.islice(singles(scenario), worker, None, workers))
        for scenario in (*SMALLEST, *SMALL):
            yield from _scheduled(scenario, pairs(scenario, workers, worker), until["pairs"])
            share.spaces_complete += time.monotonic() < until["pairs"]
    if "triples" in until:
        drawn = [_scheduled(tiny, triples(tiny, workers, worker), until["triples"]) for tiny in TINY]
        yield from itertools.chain.from_iterable(zip(*drawn, strict=False))  # in turns
    for seed in seeds[worker::workers] if "seeds" in until else ():
        yield seed, functools.partial(run_seed, seed)


def _scheduled(scenario: Scenario, schedules: Iterable[Mapping[int, Fault]], until: float = math.inf) -> Planned:
    for schedule in schedules:
        if time.monotonic() > until:
            return
        yield None, lambda: run_schedule(scenario, schedule)  # noqa: B023  # called before the next iteration


def run(seeds: range, seconds: float, kinds: Collection[str], workers: int, path: Path) -> int:
    """Explore, and keep the report up to date meanwhile. Return the exit code."""
    started = time.monotonic()
    shares = {kind: share for kind, share in SHARES.items() if kind in kinds}
    ends = [started + seconds * part / sum(shares.values()) for part in itertools.accumulate(shares.values())]
    until = dict(zip(shares, ends, strict=True))
    done: dict[int, Share] = {}
    told: Queue[tuple[int, Share]] = multiprocessing.Queue()
    processes = [
        multiprocessing.Process(target=_work, args=(told, worker, workers, seeds, until)) for worker in range(workers)
    ]
    for process in processes:
        process.start()
    report = Report(path)
    document: dict[str, Any] = {}
    with ProgressLines(*ProgressLines.get_default_columns(), TextColumn("{task.fields[found]}")) as progress:
        bar = progress.add_task("schedules", total=seconds, found="")
        while any(process.is_alive() for process in processes) or not told.empty():
            with contextlib.suppress(Empty):
                worker, share = told.get(timeout=1)
                done[worker] = share
                document = _document(list(done.values()), seeds, workers, time.monotonic() - started)
                report.write(document)
                found = f"{document['schedules']:,} schedules, {len(document['violations'])} violations"
                progress.update(bar, completed=document["seconds"], found=found)
    if [process.exitcode for process in processes] != [0] * workers:
        raise SystemExit("a process of the simulation failed")
    for violation in document["violations"]:
        print(f"VIOLATION {violation}")
    report.show(hidden=("lines_crashed_at", "violations"))
    return report.end(f"{len(document['violations'])} violations", failed=bool(document["violations"]))


def _work(told: Queue[tuple[int, Share]], worker: int, workers: int, *limits: Any) -> None:
    for share in explore(worker, workers, *limits):
        told.put((worker, share))


def _document(shares: Sequence[Share], seeds: range, workers: int, seconds: float) -> dict[str, Any]:
    points = set[tuple[str, ...]]().union(*(share.crash_points for share in shares))
    return {
        "schedules": sum(share.schedules for share in shares),
        "faults_injected": sum(share.faults_injected for share in shares),
        "crash_points_covered": len(points),
        "violations": [violation for share in shares for violation in share.violations],
        "seconds": round(seconds, 1),
        "seeds": sum(share.seeds for share in shares),
        "first_seed": seeds.start,
        "pairs": sum(share.pairs for share in shares),
        "triples": sum(share.triples for share in shares),
        "spaces_with_all_pairs": min(share.spaces_complete for share in shares),
        "steps": sum(share.steps for share in shares),
        "stopped_for_a_person": sum(share.stopped for share in shares),
        "processes": workers,
        "lines_crashed_at": sorted({point[-1] for point in points if point}),
    }


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1 << 40, help="the most seeds to run")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument(
        "--kinds", nargs="+", choices=SHARES, default=list(SHARES), help="kinds of schedules (default: all)"
    )
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--report", type=Path, default=Path("build/simulation/report.json"))
    parser.add_argument("--seed", type=int, help="run only this seed and show its schedule")
    parser.add_argument("--mutants", action="store_true", help="show that every mutant is caught")
    given = parser.parse_args(arguments)
    if given.mutants:
        from tests.campaigns.simulation.catching import catch_all

        return catch_all(given.report.with_name("mutants.json"))
    if given.seed is not None:
        return _show(given.seed)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    return run(seeds, given.seconds, given.kinds, given.processes, given.report)


def _show(seed: int) -> int:
    with simulated():
        result = run_seed(seed)
        if result.violation is None:
            print(Failure(result.scenario, result.schedule, None, seed))
            return 0
        found = shortest(result, seed)
        print(found)
        for number, step in enumerate(run_schedule(result.scenario, found.schedule, traced=True).trace):
            fault = found.schedule.get(number)
            print(f"{number:5} {step.actor:24} {step.op}{f'   <- {fault.value}' if fault else ''}")
    return 1
