"""Fills the table of ``docs/internals/releases.md`` in from what ``make compat`` has run.

python docs/site/versions.py build/compat/report.json
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "internals" / "releases.md"

_BLOCK = re.compile(r"(<!-- versions -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, runs: Mapping[str, Any]) -> str:
    """Return the page with the table of the runs in which no test has failed."""
    lines = ["", "| run | tests | passed | versions |", "| --- | --- | --- | --- |"]
    for name, run in runs.items():
        if not run["failed"]:
            versions = ", ".join(map(" ".join, run["borrowed"].items()))
            lines.append(f"| {name} | `{run['marks']}` | {run['tests']['passed']} | {versions} |")
    table = "\n".join([*lines, "\n"])
    return _BLOCK.sub(lambda found: f"{found[1]}{table}{found[2]}", page)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(text, json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), encoding="utf-8")
