"""Words that the pages for operators tell them to search for are words of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.pages import DOCS, ROOT

_SEARCHED = re.compile(r"^\| `(.*?[a-z] .*?)` \| .*\| .*\|$", re.MULTILINE)
"""Rows of three cells that begin with words, not with the name of an error."""

SEARCHED = [
    words
    for page, start in (("errors.md", "# Errors"), ("operating.md", "## No error, but"))
    for words in _SEARCHED.findall((DOCS / page).read_text(encoding="utf-8").partition(start)[2])
]


@cache
def texts() -> str:
    """Return every text of the code as a line, with … for inserted values."""
    sources = [*ROOT.glob("twopc/**/*.py"), *ROOT.glob("plugins/*/twopc_*/**/*.py")]
    nodes = (node for source in sources for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))))
    return "\n".join(text.replace("\n", " ") for node in nodes for text in _texts(node))


def _texts(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield re.sub(r"%[.\d]*[sdf]", "…", text)
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)


@pytest.mark.parametrize("words", sorted({*SEARCHED}))
def test_the_words_that_a_page_explains_are_in_the_code(words: str) -> None:
    assert re.search(".*".join(map(re.escape, words.split("…"))), texts()), words


def test_the_pages_explain_words() -> None:
    assert len(SEARCHED) > 45
