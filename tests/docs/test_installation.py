"""What pages tell to install: distributions and extras that there are."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import metadata

import pytest
from packaging.requirements import Requirement

from tests.pages import PAGES

DISTRIBUTIONS = ("twopc", "twopc-files", "twopc-kafka", "twopc-postgres")

INSTALLED = [
    (page.name, requirement)
    for page in PAGES
    for line in re.findall(r"pip install ([^`\n#]+)", page.read_text(encoding="utf-8"))
    for requirement in shlex.split(line.split("&&")[0])
    if requirement.startswith("twopc")
]


@pytest.mark.parametrize(("page", "requirement"), sorted(set(INSTALLED)))
def test_what_a_page_installs_is_a_distribution_with_such_extras(page: str, requirement: str) -> None:
    asked = Requirement(requirement)
    assert asked.name in DISTRIBUTIONS, page
    assert asked.extras <= set(metadata(asked.name).get_all("Provides-Extra") or []), page
