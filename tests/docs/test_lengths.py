"""Pages for users stay short: what is written down for those who work on twopc belongs to ``docs/internals``."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import ROOT

MOST_WORDS = {
    "README.md": 610,
    "CHANGELOG.md": 200,
    "docs/change-a-query.md": 1000,
    "docs/change-streams.md": 900,
    "docs/choose-a-backend.md": 600,
    "docs/getting-started.md": 1250,
    "docs/glossary.md": 600,
    "docs/guarantees.md": 1500,
    "docs/kubernetes.md": 1050,
    "docs/migration.md": 1000,
    "docs/monitoring.md": 1800,
    "docs/other-ways.md": 1200,
    "docs/performance.md": 700,
    "docs/production.md": 1000,
    "docs/proof.md": 700,
    "docs/security.md": 550,
    "docs/spark.md": 2250,
    "docs/stores.md": 1600,
    "docs/versions.md": 600,
    "docs/without-spark.md": 500,
}

WORDS_BEFORE_CODE = 150

_TABLE_LINE = re.compile(r"^\| ?-.*$", re.MULTILINE)


@pytest.mark.parametrize("page", MOST_WORDS)
def test_a_page_has_no_more_words_than_a_reader_has_time_for(page: str) -> None:
    assert words((ROOT / page).read_text(encoding="utf-8")) <= MOST_WORDS[page]


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{name}.md" for name in ("spark", "change-streams", "other-ways", "migration"))]
)
def test_a_page_on_using_twopc_begins_with_something_to_run(page: str) -> None:
    before, fence, _ = (ROOT / page).read_text(encoding="utf-8").partition("\n```")
    assert fence
    assert words(before) <= WORDS_BEFORE_CODE


def words(text: str) -> int:
    """Return the number of words, code included; lines and bars of tables are none."""
    return len(_TABLE_LINE.sub("", text).replace("|", " ").split())
