"""``make model``: check the specification of the protocol, and that it finds each defect. See ``docs/model.md``."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import TextColumn, TimeElapsedColumn

from tests.campaigns.model.checks import FULL, HOLES, NO_HOLE, SHORT, Check
from tests.campaigns.model.tlc import Outcome, run
from tests.campaigns.report import Report
from tests.support.progress_lines import ProgressLines

console = Console()


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if a check is violated or a defect is not found."""
    given = _parsed(arguments)
    shutil.rmtree(given.folder, ignore_errors=True)
    checks = SHORT if given.short else FULL
    report = Report(given.folder / "report.json")
    outcomes: list[tuple[Check, Outcome]] = []
    columns = (*ProgressLines.get_default_columns(), TimeElapsedColumn(), TextColumn("{task.fields[states]:,} states"))
    with ProgressLines(*columns, console=console) as progress:
        for number, check in enumerate((*HOLES, *checks), 1):
            bar = progress.add_task(str(check) if check.hole == NO_HOLE else check.hole, total=1, states=0)
            folder = given.folder.resolve() / str(number)
            outcome = run(check, folder, given.workers, lambda states, bar=bar: progress.update(bar, states=states))  # type: ignore[misc]
            progress.update(bar, completed=1, states=outcome.states)
            if outcome.violated:
                (folder / "counterexample.txt").write_text(outcome.text, encoding="utf-8")
            outcomes.append((check, outcome))
            report.write(_document(outcomes))
    report.show(hidden=("checks", "holes"))
    return _end(report, outcomes)


def _document(outcomes: Sequence[tuple[Check, Outcome]]) -> dict[str, Any]:
    sound = [(check, outcome) for check, outcome in outcomes if check not in HOLES]
    holes = [(check, outcome) for check, outcome in outcomes if check in HOLES]
    return {
        "states": sum(outcome.states for _, outcome in sound),
        "violations": sum(outcome.violated is not None for _, outcome in sound),
        "expected_counterexamples": len(HOLES),
        "found_counterexamples": sum(outcome.violated is not None for _, outcome in holes),
        "checks": {str(check): {"states": o.states, "violated": o.violated} for check, o in sound},
        "holes": {
            check.hole: {"bounds": str(check), "violated": o.violated, "trace_length": o.steps} for check, o in holes
        },
    }


def _end(report: Report, outcomes: Sequence[tuple[Check, Outcome]]) -> int:
    wrong = [f"{check.hole}: {check}" for check, o in outcomes if (check in HOLES) is not (o.violated is not None)]
    summary = f"{len(outcomes)} checks, {len(HOLES)} of them with a defect; wrong: {', '.join(wrong) or 'none'}"
    return report.end(summary, failed=bool(wrong))


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns model", description=__doc__)
    parser.add_argument("--short", action="store_true", help="smaller bounds, as in the tests")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="TLC's threads (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("build/model"), help="folder for work and report")
    return parser.parse_args(arguments)
