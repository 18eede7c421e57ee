"""Compare uniform and guided faults by the mutants that each catches, and by the CPU time until then."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.campaigns.report import Report
from tests.campaigns.simulation.catching import applied
from tests.campaigns.simulation.mutants import MUTANTS
from tests.campaigns.simulation.promises import Violation
from tests.campaigns.simulation.schedule import run_seed, simulated

BUDGET_S = 4.0
"""The CPU time for one try at a mutant: about 1000 seeds."""

FIRST_SEEDS = (1_000_000, 2_000_000, 3_000_000)
"""Where the tries at a mutant start. Neither way knows anything of earlier tries."""

WAYS = ("uniform", "guided")


@dataclass(frozen=True, slots=True)
class Try:
    """A search by seeds for a schedule that catches a mutant."""

    mutant: str
    way: str
    first_seed: int
    is_caught: bool
    seeds: int
    cpu_s: float


def compare(path: Path, processes: int) -> int:
    """Try every mutant in both ways, and write a report. Return the exit code."""
    tries: list[Try] = []
    report = Report(path)
    with multiprocessing.Pool(processes) as pool:
        for number, done in enumerate(pool.imap_unordered(_tries_at, range(len(MUTANTS))), 1):
            tries += done
            caught = {way: sum(one.is_caught for one in done if one.way == way) for way in WAYS}
            print(f"{number} of {len(MUTANTS)}: caught of {len(FIRST_SEEDS)}: {caught}: {done[0].mutant}", flush=True)
            ways = {way: _summary([one for one in tries if one.way == way]) for way in WAYS}
            report.write({"budget_s": BUDGET_S, "ways": ways, "tries": [asdict(one) for one in tries]})
    report.show(hidden=("tries",))
    return report.end(f"{len(tries)} tries at {len(MUTANTS)} mutants", failed=False)


def _summary(tries: Sequence[Try]) -> dict[str, object]:
    per_start = [[one for one in tries if one.first_seed == first] for first in FIRST_SEEDS]
    return {
        "mutants_caught": len({one.mutant for one in tries if one.is_caught}),
        "caught": sum(one.is_caught for one in tries),
        "tries": len(tries),
        "cpu_s": round(sum(one.cpu_s for one in tries), 1),
        "caught_per_cpu_s": _rate(tries),
        "caught_per_cpu_s_by_start": [_rate(of_start) for of_start in per_start],
        "seeds": sum(one.seeds for one in tries),
    }


def _rate(tries: Sequence[Try]) -> float:
    return round(sum(one.is_caught for one in tries) / sum(one.cpu_s for one in tries), 3)


def _tries_at(number: int) -> list[Try]:
    gc.disable()  # as in the campaign
    with simulated():
        return [_try(number, way, first_seed) for first_seed in FIRST_SEEDS for way in WAYS]


def _try(number: int, way: str, first_seed: int) -> Try:
    mutant = MUTANTS[number]
    struck: Counter[int] | None = Counter() if way == "guided" else None
    gc.collect()
    seeds, is_caught, started = 0, False, time.process_time()
    with applied(mutant):
        for seed in itertools.count(first_seed):
            if is_caught or time.process_time() - started > BUDGET_S:
                break
            is_caught = _is_wrong(seed, struck)
            seeds += 1
    return Try(mutant.name, way, first_seed, is_caught, seeds, time.process_time() - started)


def _is_wrong(seed: int, struck: Counter[int] | None) -> bool:
    try:
        return run_seed(seed, struck)[1].violation is not None
    except (Exception, Violation):  # noqa: BLE001  # before the run, or where a model can't read what the mutant left
        return True
