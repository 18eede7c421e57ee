"""Keeps the figures of campaigns, and adds them up in ``docs/proof.md``.

    python docs/site/runs.py "make jepsen SECONDS=600 SEED=1" build/jepsen/report.json   # keeps a report's figures
    python docs/site/runs.py                                                             # fills the page in

``docs/site/runs.jsonl`` has one line per report. A report is kept for the commit that is checked out, and only if no
file has been changed since. A test compares the page with the lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import kept

PAGE = Path(__file__).parents[1] / "proof.md"
RUNS = Path(__file__).with_name("runs.jsonl")

_TABLE = re.compile(r"(?<=^<!-- runs -->\n).*?(?=^<!-- end -->$)", re.MULTILINE | re.DOTALL)

_WRONG = (
    *("lost", "duplicates", "aborted_reads", "torn", "reordered", "progress_ahead", "progress_behind"),
    *("stuck", "leftovers", "failures", "traces_rejected"),
)
"""What every report counts that must be 0, by the names that reports have for it."""


def figures(campaign: str, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a report: how much was tried, in what unit, and how much was wrong."""
    match campaign:
        case "model":
            missed = report["expected_counterexamples"] - report["found_counterexamples"]
            return {"tried": report["states"], "unit": "states", "wrong": report["violations"] + missed}
        case "simulation":
            wrong = len(report["violations"])
            return {"tried": report["schedules"], "unit": "schedules", "wrong": wrong, "seconds": report["seconds"]}
        case "jepsen":
            return {**_counted(report, "faults"), "records": report["records"], "seconds": report["seconds"]}
        case "storm":
            wrong = sum(sum(report[what].values()) for what in ("lost", "duplicates")) + report["dangling"]
            return {
                "tried": report["kills_in_all"],
                "unit": "kills",
                "wrong": wrong + (not report["settled"]) + report.get("traces_rejected", 0),
                "records": report["records"],
                "seconds": report["seconds"],
            }
    present = [one for one in report.values() if "absent" not in one]
    counted = [_counted(one, "kills") for one in present]
    return {
        **{what: sum(one[what] for one in counted) for what in ("tried", "wrong")},
        "unit": "kills",
        "seconds": sum(one.get("seconds", 0) for one in present),
    }


def _counted(report: Mapping[str, Any], unit: str) -> dict[str, Any]:
    tried = sum(value for name, value in report.items() if name == unit or name.endswith(f"_{unit}"))
    wrong = sum(report.get(what, 0) for what in _WRONG) + len(report.get("told", ()))
    return {"tried": tried, "unit": unit, "wrong": wrong}


def keep(command: str, report: Path) -> None:
    """Add a line for a report, whose folder is named after its campaign."""
    campaign = report.resolve().parent.name
    line = {
        "campaign": campaign,
        "command": command,
        "commit": kept.commit(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        **figures(campaign, json.loads(report.read_text(encoding="utf-8"))),
    }
    with RUNS.open("a", encoding="utf-8") as runs:
        runs.write(json.dumps(line) + "\n")


def filled(page: str) -> str:
    """Return the page with the sums of all lines."""
    lines = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
    table = [
        "| campaign | runs | hours | tried | records | wrong | last run |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    by_campaign = itemgetter("campaign")
    for campaign, runs in groupby(sorted(lines, key=by_campaign), key=by_campaign):
        table.append(f"| {' | '.join(_row(campaign, list(runs)))} |")
    return _TABLE.sub(lambda _: "\n" + "\n".join(table) + "\n\n", page)


def _row(campaign: str, runs: list[dict[str, Any]]) -> list[str]:
    hours, tried, records, wrong = (
        sum(run.get(what, 0) for run in runs) for what in ("seconds", "tried", "records", "wrong")
    )
    last = runs[-1]
    return [
        campaign,
        str(len(runs)),
        f"{hours / 3600:.1f}" if hours else "",
        f"{tried:,} {last['unit']}",
        f"{records:,}" if records else "",
        str(wrong),
        f"`{last['command']}` at {last['commit']}",
    ]


if __name__ == "__main__":
    kept.main(PAGE, keep, filled)
