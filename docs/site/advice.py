"""Fills ``docs/internals/advice.md`` in from the tests: ``python docs/site/advice.py``.

A test that follows the advice of an error, and sees it work, has the mark ``advice`` with what names the error in
``docs/errors.md``: the words of a row, or the class. The tests are read, not imported.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "advice.md"
ERRORS = ROOT / "docs" / "errors.md"

_BLOCK = re.compile(r"^<!-- tests -->\n.*^<!-- end -->$", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"^## (\w+)$", re.MULTILINE)
_ROW = re.compile(r"^\| `(.+?)` \|", re.MULTILINE)


def catalog() -> dict[str, list[str]]:
    """Return the words of each error of the catalog, by its class."""
    _, *sections = _SECTION.split(ERRORS.read_text(encoding="utf-8"))
    found = dict(zip(sections[::2], sections[1::2], strict=True))
    del found["TwoPhaseCommitError"]
    return {name: _ROW.findall(text) for name, text in found.items()}


def followed() -> Mapping[str, Sequence[str]]:
    """Return the tests that follow an advice, by what their marks name."""
    found = defaultdict(list)
    for file in sorted((ROOT / "tests").glob("**/test_*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if ".advice(" in text else ():
            if isinstance(node, ast.FunctionDef):
                for named in _named(node):
                    found[named].append(f"{file.relative_to(ROOT / 'tests')}: {node.name}")
    return found


def _named(test: ast.FunctionDef) -> Iterator[str]:
    for each in test.decorator_list:
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.advice":
            yield from map(ast.literal_eval, each.args)


def filled(page: str) -> str:
    """Return the page with the tests as they are."""
    return _BLOCK.sub(lambda _: f"<!-- tests -->\n\n{_tables()}\n\n<!-- end -->", page)


def _tables() -> str:
    tests = followed()
    sections = []
    for kind, rows in catalog().items():
        lines = [
            f"| {'any' if name == kind else f'`{name}`'} | `{test}` |"
            for name in [kind, *rows]
            for test in tests.get(name, ())
        ]
        untried = sum(name not in tests for name in rows)
        left = f"\n\nWithout a test of their own: {untried} of {len(rows)} rows." if untried else ""
        table = "\n".join(["| the message has | test |", "| --- | --- |", *lines])
        sections.append(f"## {kind}\n\n{table}{left}")
    return "\n\n".join(sections)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
