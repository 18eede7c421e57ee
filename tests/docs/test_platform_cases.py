"""The page of cases of other platforms names tests that exist."""

import re

from tests.support.pages import ROOT

PAGE = (ROOT / "docs/internals/platform-cases.md").read_text(encoding="utf-8")


def test_a_test_that_holds_a_case_is_in_a_file_that_is_named_with_it() -> None:
    cases = [case for case in PAGE.split("\n\n") if "`test_" in case]
    for case in cases:
        files = "".join((ROOT / path).read_text("utf-8") for path in re.findall(r"`(tests/\S+\.py)`", case))
        assert [name for name in re.findall(r"`(test_\w+)`", case) if f"def {name}(" not in files] == [], case
    assert cases
