"""What the runbook in ``docs/operating.md`` tells people to search for is said by the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.pages import DOCS, ROOT

_SEARCHED = re.compile(r"^\| `(.*?[a-z] .*?)` \| .* \| .* \|$", re.MULTILINE)
"""Rows of three cells that begin with words, not with the name of an error."""


def runbook() -> str:
    page = (DOCS / "operating.md").read_text(encoding="utf-8")
    return page.partition("## From the message to what happened")[2].partition("\n## ")[0]


@cache
def said() -> tuple[str, ...]:
    """Every text of the code, with … for what is put in."""
    sources = [*ROOT.glob("twopc/**/*.py"), *ROOT.glob("plugins/*/twopc_*/**/*.py")]
    nodes = (node for source in sources for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))))
    return tuple(text for node in nodes for text in _texts(node))


def _texts(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield re.sub(r"%[.\d]*[sdf]", "…", text)
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)


@pytest.mark.parametrize("words", _SEARCHED.findall(runbook()))
def test_the_words_that_the_runbook_explains_are_said(words: str) -> None:
    pattern = re.compile(".*".join(map(re.escape, words.split("…"))))
    assert any(pattern.search(text.replace("\n", " ")) for text in said()), words


def test_the_runbook_explains_words() -> None:
    assert len(_SEARCHED.findall(runbook())) > 30
