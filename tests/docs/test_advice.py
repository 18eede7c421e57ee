"""Every error of the catalog has a test that follows its advice, and sees it work."""

from __future__ import annotations

from itertools import chain

import pytest

from tests.support.pages import site_script

SCRIPT = site_script("advice")
CATALOG = SCRIPT.catalog()
FOLLOWED = SCRIPT.followed()


@pytest.mark.parametrize("kind", CATALOG)
def test_an_error_has_a_test_that_follows_its_advice(kind: str) -> None:
    assert not FOLLOWED.keys().isdisjoint({kind, *CATALOG[kind]}), "mark one with @pytest.mark.advice"


def test_every_mark_names_an_error_of_the_catalog() -> None:
    assert FOLLOWED.keys() <= {*CATALOG, *chain.from_iterable(CATALOG.values())}


def test_the_page_has_the_tests() -> None:
    page = SCRIPT.PAGE.read_text(encoding="utf-8")
    assert SCRIPT.filled(page) == page, "run: python docs/site/advice.py"
