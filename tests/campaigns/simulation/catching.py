"""Catching mutants: the search for a schedule that catches each, and the record of the schedules found."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.campaigns.report import Report
from tests.campaigns.seams import patched
from tests.campaigns.simulation.exploration import Failure, in_turn, pairs, shortest, singles
from tests.campaigns.simulation.mutants import MUTANTS, Mutant
from tests.campaigns.simulation.promises import Promise
from tests.campaigns.simulation.scenario import Scenario
from tests.campaigns.simulation.schedule import Result, run_drawn, run_schedule, simulated
from tests.campaigns.simulation.world import Fault

SEEDS_AT_MOST = 10_000
"""The number of seeds to try against a mutant that the enumerated schedules did not catch."""

SEARCHED_AT_MOST = 40_000

CAUGHT = Path(__file__).with_name("caught.jsonl")
"""One line per mutant: the schedule that caught it last, and the promise that it broke. ``make mutants`` writes the
file, and the page on the simulation shows it as a table. If a change of the code has moved the steps, the tests search
again."""


def applied(mutant: Mutant) -> contextlib.AbstractContextManager[None]:
    """Apply the defect while the context is open."""
    return patched(mutant.seams)


@dataclass(frozen=True, slots=True)
class Found:
    """A schedule that catches a mutant and does no harm to the unchanged code, and the number of schedules tried."""

    tried: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Catch:
    """The recorded part of a catch."""

    scenario: Scenario
    schedule: dict[int, Fault]
    promise: Promise

    @classmethod
    def of(cls, failure: Failure) -> Catch:
        assert failure.violation
        return cls(failure.scenario, dict(sorted(failure.schedule.items())), failure.violation.promise)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Catch:
        given = row["scenario"].items()
        fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given}
        schedule = {int(step): Fault[fault] for step, fault in row["schedule"].items()}
        return cls(Scenario(**fields), schedule, Promise[row["promise"]])

    def to_json(self) -> dict[str, Any]:
        usual = asdict(Scenario())
        return {
            "promise": self.promise.name,
            "schedule": {str(step): fault.name for step, fault in self.schedule.items()},
            "scenario": {name: value for name, value in asdict(self.scenario).items() if value != usual[name]},
        }

    def still_holds_for(self, mutant: Mutant) -> bool:
        """Return whether the schedule breaks the same promise with ``mutant``, and none without it."""
        with applied(mutant):
            broken = run_schedule(self.scenario, self.schedule).violation
        if broken is None or broken.promise is not self.promise:
            return False
        return run_schedule(self.scenario, self.schedule).violation is None


def recorded() -> dict[str, Catch]:
    """Return the catches in ``caught.jsonl``, by mutant."""
    rows = map(json.loads, CAUGHT.read_text(encoding="utf-8").splitlines())
    return {row["mutant"]: Catch.from_json(row) for row in rows}


def catch(mutant: Mutant) -> Found | None:
    """Search for a schedule that catches ``mutant``. Call it within ``simulated``."""
    candidates = enumerate(_candidates(mutant), 1)
    while True:
        with applied(mutant):
            found = next(((tried, result) for tried, result in candidates if result.violation), None)
            if found is None:
                return None
            tried, result = found
            failure = shortest(result)
        if run_schedule(failure.scenario, failure.schedule).violation is None:
            return Found(tried, failure)


def _candidates(mutant: Mutant) -> Iterator[Result]:
    for scenario in mutant.scenarios:
        for schedule in ({}, *singles(scenario)):
            yield run_schedule(scenario, schedule)
    for scenario in mutant.scenarios:
        for searched in (in_turn(scenario, mutant.in_turn), pairs(scenario, only=mutant.in_pairs)):
            for chosen in itertools.islice(searched, SEARCHED_AT_MOST):
                yield run_schedule(scenario, chosen)
    for seed in range(SEEDS_AT_MOST):
        for scenario in mutant.scenarios:
            yield run_drawn(scenario, seed)


def catch_all(path: Path) -> int:
    """Catch every mutant, record the catches and report. Return the exit code."""
    started = time.monotonic()
    for mutant in MUTANTS:
        with applied(mutant):
            """Check that each seam exists."""
    found: list[tuple[Mutant, Found]] = []
    survivors: list[str] = []
    with multiprocessing.Pool() as pool:
        for number, one in enumerate(pool.imap(_catch_alone, range(len(MUTANTS)), chunksize=1)):
            mutant = MUTANTS[number]
            verdict = f"caught after {one.tried} schedules" if one else "SURVIVES"
            print(f"{number + 1} of {len(MUTANTS)}: {verdict}: {mutant.name}", flush=True)
            if one:
                found.append((mutant, one))
            else:
                survivors.append(mutant.name)
    CAUGHT.write_text("".join(_line(mutant, one) for mutant, one in found), encoding="utf-8")
    report = Report(path)
    report.write({"mutants": {mutant.name: _row(mutant, one) for mutant, one in found}, "survivors": survivors})
    for name in survivors:
        print(f"SURVIVES {name}")
    seconds = time.monotonic() - started
    return report.end(f"{len(found)} of {len(MUTANTS)} mutants caught in {seconds:.0f} s", failed=bool(survivors))


def _line(mutant: Mutant, found: Found) -> str:
    return json.dumps({"mutant": mutant.name, "where": _where(mutant), **Catch.of(found.failure).to_json()}) + "\n"


def _row(mutant: Mutant, found: Found) -> dict[str, Any]:
    failure = found.failure
    return {
        "where": _where(mutant),
        **Catch.of(failure).to_json(),
        "scenario": asdict(failure.scenario),
        "violation": str(failure.violation),
        "schedules_tried": found.tried,
    }


def _where(mutant: Mutant) -> str:
    return mutant.seams[0].called_in or mutant.seams[0].where


def _catch_alone(number: int) -> Found | None:
    with simulated():
        return catch(MUTANTS[number])
