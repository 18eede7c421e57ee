"""Every row of the catalog of errors has a test that follows its advice, and sees it work; or a reason why none can."""

import re
from itertools import chain

import pytest

from tests.support.pages import ROOT, site_script

SCRIPT = site_script("advice")
CATALOG = SCRIPT.catalog()
ROWS = {*chain.from_iterable(CATALOG.values())}
FOLLOWED = SCRIPT.followed()
REASONS = [*chain.from_iterable(SCRIPT.REASONS.values())]

_PARTS = re.compile(r"""["']\n +f?["']""")
"""Between two parts of a text."""


@pytest.mark.parametrize("kind", CATALOG)
def test_a_row_has_a_test_that_follows_its_advice_or_a_reason_why_none_can(kind: str) -> None:
    assert not {*(CATALOG[kind] or [kind])} - {*FOLLOWED, *REASONS}, "mark a test with @pytest.mark.advice"


def test_every_mark_and_every_reason_names_a_row_of_the_catalog_and_no_row_has_both() -> None:
    assert FOLLOWED.keys() <= {*CATALOG, *ROWS}
    assert {*REASONS} <= ROWS - FOLLOWED.keys()


def test_the_words_of_every_row_are_in_a_message() -> None:
    sources = [*ROOT.glob("twopc/**/*.py"), *ROOT.glob("plugins/*/twopc_*/**/*.py")]
    said = [_PARTS.sub("", source.read_text(encoding="utf-8")) for source in sources]
    missing = [row for row in ROWS if not any(all(part in text for part in row.split("…")) for text in said)]
    assert missing == []


def test_the_page_has_the_tests() -> None:
    page = SCRIPT.PAGE.read_text(encoding="utf-8")
    assert SCRIPT.filled(page) == page, "run: python docs/site/advice.py"
