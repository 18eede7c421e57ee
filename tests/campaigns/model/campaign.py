"""``make model``: check the specification, that it finds each defect, and that the code keeps to it. See
``docs/internals/model.md``."""

from __future__ import annotations

import argparse
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import TextColumn, TimeElapsedColumn

from tests.campaigns.model.checks import FULL, HOLES, NO_HOLE, SHORT, Check
from tests.campaigns.model.tlc import Outcome, run
from tests.campaigns.model.traces import UNNOTICED, check, drawn, of_mutants, without_traces
from tests.campaigns.report import Report
from tests.campaigns.simulation.schedule import simulated
from tests.support.progress_lines import ProgressLines

console = Console()

FULL_TRACES = 1_200, 5
SHORT_TRACES = 60, 0
"""The traces of the code, and of each mutant beside that of the schedule which catches it."""


PARTS = ("defects", "bounds", "traces")


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if a check is violated, a defect is not found or a trace of the code is rejected."""
    given = _parsed(arguments)
    shutil.rmtree(given.folder, ignore_errors=True)
    report = Report(given.folder / "report.json")
    outcomes: list[tuple[Check, Outcome]] = []
    traces: dict[str, Any] = {"rejected": []}
    columns = (*ProgressLines.get_default_columns(), TimeElapsedColumn(), TextColumn("{task.fields[states]:,} states"))
    with ProgressLines(*columns, console=console) as progress:
        for number, one in enumerate(_checks(given), 1):
            outcomes.append((one, _run(one, given.folder.resolve() / str(number), given.workers, progress)))
            report.write(_document(outcomes))
        if "traces" in given.parts:
            numbers = SHORT_TRACES if given.short else FULL_TRACES
            traces = _check_traces(given.folder.resolve() / "traces", *numbers, progress)
    report.write({**_document(outcomes), **traces})
    report.show(hidden=("checks", "holes", "mutants", "rejected", "unnoticed", "without_traces"))
    return _end(report, outcomes, traces)


def _checks(given: argparse.Namespace) -> Sequence[Check]:
    bounds = SHORT if given.short else FULL
    return [*(HOLES if "defects" in given.parts else ()), *(bounds if "bounds" in given.parts else ())]


def _run(one: Check, folder: Path, workers: int, progress: ProgressLines) -> Outcome:
    """Run one check, and keep its counterexample."""
    bar = progress.add_task(str(one) if one.hole == NO_HOLE else one.hole, total=1, states=0)
    outcome = run(one, folder, workers, lambda states: progress.update(bar, states=states))
    progress.update(bar, completed=1, states=outcome.states)
    if outcome.violated:
        (folder / "counterexample.txt").write_text(outcome.text, encoding="utf-8")
    return outcome


def _check_traces(folder: Path, real: int, seeds: int, progress: ProgressLines) -> dict[str, Any]:
    """Check traces of the code, and of mutants by so many seeds. Return their part of the report."""
    with simulated():
        traces = list(drawn(real))
        with_defect = list(of_mutants(seeds))
    bar = progress.add_task("traces", total=len(traces) + len(with_defect), states=0)
    verdicts = check(
        [*traces, *(trace for _, trace in with_defect)], folder, lambda n: progress.update(bar, completed=n)
    )
    rejected = [verdict for verdict in verdicts[:real] if verdict.rejected]
    mutants: dict[str, Counter[str]] = {}
    for (mutant, _), verdict in zip(with_defect, verdicts[real:], strict=True):
        mutants.setdefault(mutant.name, Counter())[verdict.found_by] += 1
    return {
        "traces_accepted": real - len(rejected),
        "traces_rejected": len(rejected),
        "trace_events": sum(len(trace.events) for trace in traces),
        "mutant_traces": len(with_defect),
        "mutant_traces_rejected": sum(verdict.rejected is not None for verdict in verdicts[real:]),
        "rejected": [str(verdict) for verdict in rejected],
        "mutants": mutants,
        "unnoticed": {name: what for name, what in UNNOTICED.items() if name in mutants},
        "without_traces": without_traces(),
    }


def _document(outcomes: Sequence[tuple[Check, Outcome]]) -> dict[str, Any]:
    sound = [(check, outcome) for check, outcome in outcomes if check not in HOLES]
    holes = [(check, outcome) for check, outcome in outcomes if check in HOLES]
    return {
        "states": sum(outcome.states for check, outcome in sound if not check.seconds),
        "random_states": sum(outcome.states for check, outcome in sound if check.seconds),
        "violations": sum(outcome.violated is not None for _, outcome in sound),
        "expected_counterexamples": len(holes),
        "found_counterexamples": sum(outcome.violated is not None for _, outcome in holes),
        "checks": {str(check): {"states": o.states, "violated": o.violated} for check, o in sound},
        "holes": {
            check.hole: {"bounds": str(check), "violated": o.violated, "trace_length": o.steps} for check, o in holes
        },
    }


def _end(report: Report, outcomes: Sequence[tuple[Check, Outcome]], traces: Mapping[str, Any]) -> int:
    wrong = [f"{check.hole}: {check}" for check, o in outcomes if (check in HOLES) is not (o.violated is not None)]
    wrong += [f"trace rejected: {rejected.splitlines()[0]}" for rejected in traces["rejected"]]
    defects, accepted = sum(check in HOLES for check, _ in outcomes), traces.get("traces_accepted", 0)
    done = f"{len(outcomes)} checks, {defects} of them with a defect; {accepted} traces accepted"
    return report.end(f"{done}; wrong: {', '.join(wrong) or 'none'}", failed=bool(wrong))


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns model", description=__doc__)
    parser.add_argument("--short", action="store_true", help="smaller bounds, as in the tests")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to check (default: everything)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="TLC's threads (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("build/model"), help="folder for work and report")
    return parser.parse_args(arguments)
