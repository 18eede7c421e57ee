"""Fills ``docs/internals/advice.md`` in from the tests: ``python docs/site/advice.py``.

A test that follows the advice of an error, and sees it work, has the mark ``advice`` with what names the error in
``docs/errors.md``: the words of a row, or the class. A mark may have the keys of a dict of its module, as ``*CASES``.
The tests are read, not imported. A row without such a test has its reason here.
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

REASONS: Mapping[str, Sequence[str]] = {
    "an operator compares and corrects the target systems": ["as done, with other input than it was decided with"],
    "the controller forgets after a day": [", but the controller does not know it"],
}
"""Why no test follows an advice → the words of the rows."""

_BLOCK = re.compile(r"^<!-- tests -->\n.*^<!-- end -->$", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_ROW = re.compile(r"^\| `(.+?)` \|", re.MULTILINE)


def catalog() -> dict[str, list[str]]:
    """Return the words of each row of the catalog, by the class of the error or the heading of the section."""
    _, *sections = _SECTION.split(ERRORS.read_text(encoding="utf-8"))
    found = dict(zip(sections[::2], sections[1::2], strict=True))
    del found["TwoPhaseCommitError"]
    return {name: _ROW.findall(text) for name, text in found.items()}


def followed() -> Mapping[str, Sequence[str]]:
    """Return the tests that follow an advice, by what their marks name."""
    found = defaultdict(list)
    for file in sorted((ROOT / "tests").glob("**/*.py")):
        text = file.read_text(encoding="utf-8")
        module = ast.parse(text if ".advice(" in text else "")
        dicts = {ast.unparse(node.target): node.value for node in module.body if isinstance(node, ast.AnnAssign)}
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef):
                for named in _named(node, dicts):
                    found[named].append(f"{file.relative_to(ROOT / 'tests')}: {node.name}")
    return found


def _named(test: ast.FunctionDef, dicts: Mapping[str, ast.expr | None]) -> Iterator[str]:
    for each in test.decorator_list:
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.advice":
            for argument in each.args:
                cases = dicts[ast.unparse(argument.value)] if isinstance(argument, ast.Starred) else None
                for name in cases.keys if isinstance(cases, ast.Dict) else [argument]:
                    yield str(ast.literal_eval(name or argument))


def filled(page: str) -> str:
    """Return the page with the tests as they are."""
    return _BLOCK.sub(lambda _: f"<!-- tests -->\n\n{_tables()}\n\n<!-- end -->", page)


def _tables() -> str:
    tests, rows = followed(), catalog()
    reasons = {words: reason for reason, those in REASONS.items() for words in those}
    count, followed_rows = sum(map(len, rows.values())), sum(name in tests for names in rows.values() for name in names)
    sections = [f"Of {count} rows, tests follow the advice of {followed_rows}. The others have a reason."]
    for kind, names in rows.items():
        lines = [f"| any | `{test}` |" for test in tests.get(kind, ())]
        for name in names:
            lines += [f"| `{name}` | `{test}` |" for test in tests.get(name, ())] or [
                f"| `{name}` | {reasons.get(name, '')} |"
            ]
        sections.append("\n".join([f"## {kind}", "", "| the message has | test |", "| --- | --- |", *lines]))
    return "\n\n".join(sections)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
