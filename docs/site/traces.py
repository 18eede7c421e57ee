"""Fills ``docs/internals/model.md`` in from a report of ``make model``: what has found each defect in the code.

python docs/site/traces.py build/model/report.json
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "internals" / "model.md"

FOUND_BY = ("both", "specification", "ledger", "none")

_BLOCK = re.compile(r"^<!-- (shares|defects) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def filled(page: str, report: Mapping[str, Any]) -> str:
    """Return the page with the tables of a report."""
    tables = {"shares": _shares, "defects": _defects}

    def block(found: re.Match[str]) -> str:
        return "\n".join([f"<!-- {found[1]} -->", "", *tables[found[1]](report), "", "<!-- end -->"])

    return _BLOCK.sub(block, page)


def _shares(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of all defects, by who rejects a trace of each."""
    accepted = [name for name, found in report["mutants"].items() if not found.keys() & {"both", "specification"}]
    rejected, outside = len(report["mutants"]) - len(accepted), Counter(report["without_traces"].values())
    every = len(report["mutants"]) + outside.total()
    yield from _head("defects of the code", "number", "share", "a trace is rejected by")
    yield _row("in what the specification has", rejected, _percent(rejected, every), "specification and ledger")
    for lack, number in Counter(report["unnoticed"].get(name, "?") for name in accepted).most_common():
        yield _row(f"in {lack}", number, _percent(number, every), "ledger (the trace is accepted)")
    for lack, number in outside.most_common():
        yield _row(f"in runs with {lack}", number, _percent(number, every), "ledger (no trace)")
    yield _row("all", every, _percent(every, every), "")


def _defects(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of the defects that have traces, with the numbers of traces."""
    yield from _head("defect in the code", *FOUND_BY)
    for name, found in report["mutants"].items():
        yield _row(name, *(found.get(by) or "" for by in FOUND_BY))
    totals = sum(map(Counter[str], report["mutants"].values()), Counter[str]())
    yield _row("all", *(totals[by] or "" for by in FOUND_BY))


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"


def _head(*columns: str) -> Sequence[str]:
    return _row(*columns), _row(*["---"] * len(columns))


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |".replace("|  |", "| |").replace("|  |", "| |")


def main() -> None:
    """Fill the page in."""
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), report), encoding="utf-8")


if __name__ == "__main__":
    main()
