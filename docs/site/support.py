"""Fills ``docs/internals/support-matrix.md`` in from what ``make prove-plugin`` has run.

python docs/site/support.py build/plugin/contracts.xml
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from pathlib import Path

PAGE = Path(__file__).parents[1] / "internals" / "support-matrix.md"

COLUMNS = {
    "sinks.kafka": "Kafka",
    "sinks.files": "files",
    "sinks.postgres": "PostgreSQL",
    "sinks.mysql": "MariaDB",
    "sinks.pravega": "Pravega",
    "sinks.sql": "SQL",
    "sinks.iceberg": "Iceberg",
    "sinks.delta": "Delta",
    "guide": "the guide's",
}
"""Part of a test's class → column."""

_BLOCK = re.compile(r"^<!-- (support|keys) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def filled(page: str, results: ET.Element) -> str:
    """Return the page with the matrices of these results, as JUnit has them: of the contract of all sinks, and of that
    of sinks with keys. A matrix of which nothing was run stays as it is."""

    def block(found: re.Match[str]) -> str:
        outcomes = [*_outcomes(results, with_keys=found[1] == "keys")]
        return "\n".join([f"<!-- {found[1]} -->", "", *_matrix(outcomes), "", "<!-- end -->"]) if outcomes else found[0]

    return _BLOCK.sub(block, page)


def _outcomes(results: ET.Element, with_keys: bool) -> Iterator[tuple[str, str, str]]:
    """Yield test, column and outcome: empty if it passed, ``failed``, or why it was skipped."""
    for case in results.iter("testcase"):
        classname = case.get("classname", "")
        column = next((name for part, name in COLUMNS.items() if part in classname), None)
        if column is None or with_keys != (".TestKeyed" in classname):
            continue
        skipped = case.find("skipped")
        outcome = "" if skipped is None else skipped.get("message", "").rpartition(": ")[2]
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
        yield case.get("name", "").partition("[")[0], column, outcome


def _matrix(outcomes: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield the lines: a row for each test, then the reasons for what was not run. A backend that has several kinds of
    sinks has a check mark if a test has passed for one, and failed for none."""
    found: dict[str, dict[str, set[str]]] = {}
    for test, column, outcome in outcomes:
        found.setdefault(test, {}).setdefault(column, set()).add(outcome)
    reasons: list[str] = []

    def cell(seen: set[str]) -> str:
        if "failed" in seen or not seen:
            return "**failed**" if seen else ""
        if "" in seen:
            return "✓"
        [reason] = sorted(seen)[:1]
        if reason not in reasons:
            reasons.append(reason)
        return str(reasons.index(reason) + 1)

    used = [name for name in COLUMNS.values() if any(name in columns for columns in found.values())]
    yield f"| the contract's test | {' | '.join(used)} |"
    yield f"| --- |{' --- |' * len(used)}"
    for test, columns in found.items():
        sentence = test.removeprefix("test_").replace("_", " ")
        yield f"| {sentence} | {' | '.join(cell(columns.get(name, set())) for name in used)} |"
    if reasons:
        yield ""
    for number, reason in enumerate(reasons, start=1):
        yield f"{number}. {reason[0].upper()}{reason[1:]}."


def main() -> None:
    """Fill the page in."""
    results = ET.parse(sys.argv[1]).getroot()  # noqa: S314  # pytest has written it
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
