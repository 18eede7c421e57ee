"""How mutants are caught: the search for a schedule, and the record of those that were found."""

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
from tests.campaigns.simulation.exploration import Failure, in_turn, pairs, shortest, singles
from tests.campaigns.simulation.mutants import MUTANTS, Mutant
from tests.campaigns.simulation.promises import Promise
from tests.campaigns.simulation.schedule import Result, Scenario, run_drawn, run_schedule, simulated
from tests.campaigns.simulation.seams import patched
from tests.campaigns.simulation.world import Fault

SEEDS_AT_MOST = 10_000
"""Tried against a mutant that no single fault of its scenarios catches."""

SEARCHED_AT_MOST = 40_000

CAUGHT = Path(__file__).with_name("caught.jsonl")
"""One line per mutant: the schedule that caught it last, and the promise that it broke. ``make mutants`` writes it, and
the page on the simulation shows it as a table. Steps move when the code does; then the tests search anew."""


def applied(mutant: Mutant) -> contextlib.AbstractContextManager[None]:
    """Put the defect into the code, for a while."""
    return patched(mutant.seams)


@dataclass(frozen=True, slots=True)
class Catch:
    """How a mutant was caught: by a schedule that does no harm to the code as it is."""

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
        """Whether the schedule breaks the same promise with ``mutant``, and none without."""
        with applied(mutant):
            broken = run_schedule(self.scenario, self.schedule).violation
        if broken is None or broken.promise is not self.promise:
            return False
        return run_schedule(self.scenario, self.schedule).violation is None


def recorded() -> dict[str, Catch]:
    """The catches in ``caught.jsonl``, by mutant."""
    rows = map(json.loads, CAUGHT.read_text(encoding="utf-8").splitlines())
    return {row["mutant"]: Catch.from_json(row) for row in rows}


def catch(mutant: Mutant) -> Failure | None:
    """Search for a schedule that catches ``mutant``. Within ``simulated``."""
    candidates = _candidates(mutant)
    while True:
        with applied(mutant):
            found = next((result for result in candidates if result.violation), None)
            if found is None:
                return None
            failure = shortest(found.scenario, found)
        if run_schedule(failure.scenario, failure.schedule).violation is None:
            return failure


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
    """Catch every mutant, record the catches, and report. Return the exit code."""
    started = time.monotonic()
    for mutant in MUTANTS:
        with applied(mutant):
            """Each seam is there."""
    caught: dict[str, dict[str, Any]] = {}
    report = Report(path)
    with multiprocessing.Pool() as pool:
        for number, failure in enumerate(pool.imap(_catch_alone, range(len(MUTANTS)), chunksize=1), 1):
            mutant = MUTANTS[number - 1]
            print(
                f"{number} of {len(MUTANTS)}: {mutant.name}: {failure.violation if failure else 'SURVIVES'}", flush=True
            )
            if failure:
                where = mutant.seams[0].called_in or mutant.seams[0].where
                row = {"where": where, **Catch.of(failure).to_json(), "violation": str(failure.violation)}
                caught[mutant.name] = row
    survivors = [mutant.name for mutant in MUTANTS if mutant.name not in caught]
    rows = ({"mutant": name, **row} for name, row in caught.items())
    lines = (json.dumps({key: value for key, value in row.items() if key != "violation"}) for row in rows)
    CAUGHT.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    report.write({"mutants": caught, "survivors": survivors})
    seconds = time.monotonic() - started
    return report.end(f"{len(caught)} of {len(MUTANTS)} mutants caught in {seconds:.0f} s", failed=bool(survivors))


def _catch_alone(number: int) -> Failure | None:
    with simulated():
        return catch(MUTANTS[number])
