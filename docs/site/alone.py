"""Keeps the times of ``make jepsen ARGS=--alone`` for each kind of fault; prints them in ``docs/internals/jepsen.md``.

    python docs/site/alone.py "make jepsen ARGS=--alone" build/jepsen/report.json   # keeps a report's times
    python docs/site/alone.py                                                       # fills the page in

``docs/site/alone.json`` has the times of one report, with its command and commit. A test compares the page with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kept

PAGE = Path(__file__).parents[1] / "internals" / "jepsen.md"
KEPT = Path(__file__).with_name("alone.json")

_TABLE = re.compile(r"(?<=^<!-- alone -->\n).*?(?=^<!-- end -->$)", re.MULTILINE | re.DOTALL)
_TIMES = ("unavailable_alone_s", "recovery_alone_s")


def times(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a report: for each query and kind of fault, both times.

    Raises:
        SystemExit: the faults of the report overlapped.
    """
    if not report["alone"]:
        raise SystemExit("the faults of this report overlapped: run 'make jepsen ARGS=--alone'")
    queries = {**report["queries"], **({"flink": report["flink"]} if "flink" in report else {})}
    return {name: {which: query[which] for which in _TIMES} for name, query in queries.items()}


def keep(command: str, report: Path) -> None:
    """Replace the kept report."""
    queries = times(json.loads(report.read_text(encoding="utf-8")))
    run = {"command": command, "commit": kept.commit(), "queries": queries}
    KEPT.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


def filled(page: str) -> str:
    """Return the page with the table of the kept report, or without one if none is kept."""
    if not KEPT.exists():
        return page
    run = json.loads(KEPT.read_text(encoding="utf-8"))
    lines = [f"`{run['command']}` at {run['commit']}:", "", *table(run["queries"])]
    return _TABLE.sub(lambda _: "\n" + "\n".join(lines) + "\n\n", page)


def table(queries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a Markdown table with a row per kind of fault. Each query has two columns: median and longest time."""
    columns = [f"{what}, `{name}`" for what in ("unavailable", "recovery") for name in queries]
    by_kind = [query[which] for which in _TIMES for query in queries.values()]
    rows = [
        [kind.replace("_", " "), str(found["times"]), *(_shown(each[kind]) for each in by_kind)]
        for kind, found in by_kind[0].items()
    ]
    return [
        f"| kind | times | {' | '.join(columns)} |",
        f"| --- | ---: |{' ---: |' * len(columns)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _shown(found: Mapping[str, float]) -> str:
    return f"{found['median']:.1f}, {found['longest']:.1f}"


if __name__ == "__main__":
    kept.main(PAGE, keep, filled)
