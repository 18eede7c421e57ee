"""Words that the pages for operators tell them to search for are words of the code."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.pages import DOCS
from tests.support.sources import GROUP, SOURCES, nodes

_SEARCHED = re.compile(r"^\| `(.*?[a-z] .*?)` \| .*\| .*\|$", re.MULTILINE)
"""Rows of three cells that begin with words, not with the name of an error."""

SEARCHED = [
    words
    for page, start in (("errors.md", "# Errors"), ("operating.md", "## No error, but"))
    for words in _SEARCHED.findall((DOCS / page).read_text(encoding="utf-8").partition(start)[2])
]


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts of the code, with … for inserted values."""
    match node:
        case ast.Constant(value=str(text)):
            yield re.sub(r"%[.\d]*[sdf]", "…", text)
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)


@pytest.mark.xdist_group(GROUP)
def test_the_words_that_a_page_explains_are_in_the_code() -> None:
    lines = "\n".join(text.replace("\n", " ") for module in SOURCES for node in nodes(module) for text in _texts(node))
    patterns = {words: ".*".join(map(re.escape, words.split("…"))) for words in SEARCHED}
    assert [words for words, pattern in patterns.items() if not re.search(pattern, lines)] == []


def test_the_pages_explain_words() -> None:
    assert len(SEARCHED) > 45
