"""``make simulate``: as many schedules as fit into the time, on every core, and a report."""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.exploration import SMALL, SMALLEST, Failure, pairs, shortest, singles
from tests.simulation.schedule import Result, Scenario, run_schedule, run_seed, simulated
from tests.simulation.world import CRASH_POINTS, Fault

PAIRS_SHARE = 0.6
"""Of the time, at most: what is left goes to seeds. Ten minutes on two cores are enough for all pairs."""

VIOLATIONS_AT_MOST = 20


@dataclass
class Share:
    """What one process has done."""

    schedules: int = 0
    faults_injected: int = 0
    seeds: int = 0
    stopped: int = 0
    pairs: int = 0
    pairs_complete: bool = True
    steps: int = 0
    violations: list[str] = field(default_factory=list)
    crash_points: set[tuple[str, ...]] = field(default_factory=set)

    def count(self, scenario: Scenario, result: Result, seed: int | None = None) -> None:
        self.schedules += 1
        self.steps += result.steps
        self.faults_injected += len(result.schedule)
        self.stopped += result.stopped
        if result.violation:
            self.violations.append(str(shortest(scenario, result, seed)))


def explore(worker: int, workers: int, seeds: range, deadline: float, pairs_deadline: float) -> Share:
    """One process's share: single faults, pairs, then seeds."""
    share = Share()
    with simulated():
        for scenario, schedule in _enumerated(worker, workers):
            if len(share.violations) >= VIOLATIONS_AT_MOST:
                break
            if len(schedule) > 1:
                if time.monotonic() > pairs_deadline:
                    share.pairs_complete = False
                    break
                share.pairs += 1
            share.count(scenario, run_schedule(scenario, schedule))
        for seed in seeds[worker::workers]:
            if time.monotonic() > deadline or len(share.violations) >= VIOLATIONS_AT_MOST:
                break
            share.seeds += 1
            share.count(*run_seed(seed), seed)
    share.crash_points = CRASH_POINTS
    return share


def _enumerated(worker: int, workers: int) -> Iterator[tuple[Scenario, Mapping[int, Fault]]]:
    for scenario in (*SMALL, *SMALLEST):
        for schedule in itertools.islice(singles(scenario), worker, None, workers):
            yield scenario, schedule
    for scenario in SMALLEST:
        for schedule in pairs(scenario, workers, worker):
            yield scenario, schedule


def run(seeds: range, seconds: float, workers: int, report: Path) -> int:
    """Explore and report. Returns the exit code."""
    started = time.monotonic()
    limits = (seeds, started + seconds, started + seconds * PAIRS_SHARE)
    with multiprocessing.Pool(workers) as pool:
        shares = pool.starmap(explore, [(worker, workers, *limits) for worker in range(workers)])
    took = time.monotonic() - started
    points = set[tuple[str, ...]]().union(*(share.crash_points for share in shares))
    violations = [violation for share in shares for violation in share.violations]
    told = {
        "schedules": sum(share.schedules for share in shares),
        "faults_injected": sum(share.faults_injected for share in shares),
        "crash_points_covered": len(points),
        "violations": violations,
        "seconds": round(took, 1),
        "seeds": sum(share.seeds for share in shares),
        "first_seed": seeds.start,
        "pairs": sum(share.pairs for share in shares),
        "pairs_complete": all(share.pairs_complete for share in shares),
        "steps": sum(share.steps for share in shares),
        "stopped_for_a_person": sum(share.stopped for share in shares),
        "processes": workers,
        "lines_crashed_at": sorted({point[-1] for point in points if point}),
    }
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps(told, indent=1))
    for violation in violations:
        print(f"VIOLATION {violation}")
    shown = {name: value for name, value in told.items() if name not in ("lines_crashed_at", "violations")}
    print(f"{json.dumps(shown)}\n{len(violations)} violations; {report}")
    return 1 if violations else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1 << 40, help="how many seeds at most")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--report", type=Path, default=Path("build/simulation/report.json"))
    parser.add_argument("--seed", type=int, help="run this seed alone and show its schedule")
    parser.add_argument("--mutants", action="store_true", help="show that every mutant is caught")
    given = parser.parse_args()
    if given.mutants:
        from tests.simulation.mutants import main as catch_all

        return catch_all(given.report.with_name("mutants.json"))
    if given.seed is not None:
        return _show(given.seed)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    return run(seeds, given.seconds, given.processes, given.report)


def _show(seed: int) -> int:
    with simulated():
        scenario, result = run_seed(seed)
        if result.violation is None:
            print(Failure(scenario, result.schedule, "no violation", seed))
            return 0
        found = shortest(scenario, result, seed)
        print(found)
        for number, step in enumerate(run_schedule(scenario, found.schedule, traced=True).trace):
            fault = found.schedule.get(number)
            print(f"{number:5} {step.actor:24} {step.op}{f'   <- {fault.value}' if fault else ''}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
