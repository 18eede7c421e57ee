"""The pages of cases, of other platforms and of change streams, name tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import ROOT


@pytest.mark.parametrize("page", ["platform-cases", "change-cases"])
def test_a_test_that_holds_a_case_is_in_a_file_that_is_named_with_it(page: str) -> None:
    text = (ROOT / f"docs/internals/{page}.md").read_text(encoding="utf-8")
    cases = [case for case in text.split("\n\n") if "`test_" in case]
    for case in cases:
        paths = re.findall(r"`((?:tests|twopc)/\S+\.py)`", case)
        files = "".join((ROOT / path).read_text("utf-8") for path in paths)
        assert [name for name in re.findall(r"`(test_\w+)`", case) if f"def {name}(" not in files] == [], case
    assert cases
