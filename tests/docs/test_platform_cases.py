"""The page of cases of other platforms names tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import ROOT

PAGE = (ROOT / "docs/internals/platform-cases.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted({*re.findall(r"`(test_\w+)`", PAGE)}))
def test_a_test_that_holds_a_case_is_in_a_file_that_is_named_with_it(name: str) -> None:
    [*cases] = (case for case in PAGE.split("\n\n") if f"`{name}`" in case)
    for case in cases:
        files = [(ROOT / path).read_text(encoding="utf-8") for path in re.findall(r"`(tests/\S+\.py)`", case)]
        assert any(f"def {name}(" in text for text in files), case
