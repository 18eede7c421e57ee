"""The error catalog has every error class, and words that pages tell operators to search for are words of the code."""

import ast
import re
from collections.abc import Iterator

import pytest

import twopc
from tests.support.pages import DOCS, ROOT, site_script
from tests.support.sources import GROUP, SOURCES, nodes
from twopc import errors

PAGE = (DOCS / "errors.md").read_text(encoding="utf-8")
CLASSES = [
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.TwoPhaseCommitError)
]


def test_the_page_has_what_the_classes_have() -> None:
    assert site_script("errors").filled(PAGE) == PAGE, "run: python docs/site/errors.py"


def test_the_page_of_answers_has_what_the_tables_of_the_backends_have() -> None:
    page = (DOCS / "answers.md").read_text(encoding="utf-8")
    assert site_script("answers").filled(page) == page, "run: python docs/site/answers.py"


def test_every_class_has_a_section_in_the_order_of_the_module() -> None:
    assert re.findall(r"^## (\w+)$", PAGE, re.MULTILINE) == CLASSES
    assert re.findall(r"^<!-- twopc\.errors\.(\w+) -->$", PAGE, re.MULTILINE) == CLASSES


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "TwoPhaseCommitError"])
def test_every_section_has_the_state_and_what_to_do(name: str) -> None:
    section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert "**State.**" in section
    assert "**What to do.**" in section


@pytest.mark.parametrize("name", [name for name in CLASSES if name not in ("TwoPhaseCommitError", "Refused")])
def test_the_runbook_leads_to_every_section_and_every_section_to_a_command_or_the_runbook(name: str) -> None:
    runbook = (DOCS / "operating.md").read_text(encoding="utf-8")
    assert f"errors.md#{name.lower()}" in runbook


@pytest.mark.xdist_group(GROUP)
def test_no_message_names_a_page_that_pip_does_not_install() -> None:
    named = []
    for module in SOURCES:
        docstrings = {id(node.value) for node in nodes(module) if isinstance(node, ast.Expr)}
        constants = [node for node in nodes(module) if isinstance(node, ast.Constant) and id(node) not in docstrings]
        spoken = [str(node.value) for node in constants if isinstance(node.value, str)]
        named += [text for text in spoken if re.search(r"\bdocs/[\w/-]+\.md", text)]
    assert len(SOURCES) > 100
    assert named == []


def test_what_messages_name_instead_is_described_wherever_twopc_is_installed() -> None:
    named = {
        name
        for source in [*ROOT.glob("twopc/**/*.py"), *ROOT.glob("plugins/*/twopc_*/**/*.py")]
        for name in re.findall(r"\{DESCRIBED_BY\}(\w+)", source.read_text(encoding="utf-8"))
    }
    assert named == {"open_store"}
    assert all(getattr(twopc, name).__doc__ for name in named)


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
