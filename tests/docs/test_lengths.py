"""Pages for users stay short: what is written down for those who work on twopc belongs to ``docs/internals``."""

import re

import pytest

from tests.support.pages import ROOT

READ = {
    "README.md": 600,
    "docs/index.md": 230,
    "docs/change-a-query.md": 1000,
    "docs/change-streams.md": 850,
    "docs/choose-a-backend.md": 800,
    "docs/getting-started.md": 1200,
    "docs/glossary.md": 600,
    "docs/guarantees.md": 1400,
    "docs/kubernetes.md": 800,
    "docs/migration.md": 850,
    "docs/monitoring.md": 1100,
    "docs/operating.md": 2975,
    "docs/other-ways.md": 1200,
    "docs/performance.md": 700,
    "docs/production.md": 1100,
    "docs/proof.md": 700,
    "docs/security.md": 550,
    "docs/spark.md": 2250,
    "docs/stores.md": 1300,
    "docs/versions.md": 600,
    "docs/without-spark.md": 500,
}
"""Page → the most words, where somebody starts with twopc, uses it, runs it or wants to understand it."""

LOOKED_UP = {
    "docs/cli.md": 3400,
    "docs/errors.md": 4700,
    "plugins/delta/README.md": 1500,
    "plugins/files/README.md": 2000,
    "plugins/iceberg/README.md": 2000,
    "plugins/kafka/README.md": 2340,
    "plugins/mysql/README.md": 1300,
    "plugins/postgres/README.md": 1450,
    "plugins/pravega/README.md": 700,
    "plugins/sql/README.md": 1050,
}

OTHERS = {"CHANGELOG.md": 200, "SECURITY.md": 50, "docs/write-your-own-sink.md": 3050}

MOST_WORDS = READ | LOOKED_UP | OTHERS

MOST_READ, MOST_LOOKED_UP = 20_000, 20_000

WORDS_BEFORE_CODE = 150

_TABLE_LINE = re.compile(r"^\| ?-.*$", re.MULTILINE)

_MENU = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")

USE = ["README.md", *re.findall(r"docs/\S+\.md", _MENU.partition("- Use:")[2].partition("- Run:")[0])]


def test_a_page_has_no_more_words_than_a_reader_has_time_for() -> None:
    lengths = {page: words((ROOT / page).read_text(encoding="utf-8")) for page in MOST_WORDS}
    assert {page: length for page, length in lengths.items() if length > MOST_WORDS[page]} == {}


@pytest.mark.parametrize(("pages", "most"), [(READ, MOST_READ), (LOOKED_UP, MOST_LOOKED_UP)], ids=["read", "looked up"])
def test_all_pages_together_have_no_more_words_than_a_reader_has_time_for(pages: dict[str, int], most: int) -> None:
    assert sum(words((ROOT / page).read_text(encoding="utf-8")) for page in pages) <= most


def test_every_page_of_the_menu_that_is_read_has_its_limit() -> None:
    read, _, reference = _MENU.partition("nav:\n")[2].partition("  - Reference:")
    backends = set(re.findall(r"plugins/\S+/README.md", reference)) - {"plugins/kafka-broker/README.md"}
    assert {*re.findall(r"\S+\.md", read), "docs/glossary.md"} - {"docs/write-your-own-store.md"} <= {*READ, *OTHERS}
    assert backends <= {*LOOKED_UP}


def test_a_page_on_using_twopc_begins_with_something_to_run() -> None:
    assert len(USE) > 3
    for page in USE:
        before, fence, _ = re.split(r"(\n *```)", (ROOT / page).read_text(encoding="utf-8"), maxsplit=1)
        assert fence, page
        assert words(before) <= WORDS_BEFORE_CODE, page


def words(text: str) -> int:
    """Return the number of words, code included; lines and bars of tables are none."""
    return len(_TABLE_LINE.sub("", text).replace("|", " ").split())
