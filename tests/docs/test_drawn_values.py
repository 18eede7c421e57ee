"""The page says how many values the contract draws for each backend."""

from __future__ import annotations

from tests.support.drawn_values import PAGE, table
from tests.support.kept_columns import filled


def test_the_page_says_how_many_values_are_drawn_for_each_backend() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert filled("drawn", table(), page) == page, "run python -m tests.support.drawn_values"
