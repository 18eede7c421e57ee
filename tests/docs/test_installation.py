"""The distributions and extras that pages and messages name exist."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.metadata import metadata, version

import pytest
from packaging.requirements import Requirement

from tests.support.pages import PAGES, ROOT, installations
from twopc import cli

DISTRIBUTIONS = (
    "twopc-core",
    "twopc-delta",
    "twopc-files",
    "twopc-iceberg",
    "twopc-kafka",
    "twopc-kafka-broker",
    "twopc-mysql",
    "twopc-postgres",
    "twopc-pravega",
    "twopc-sql",
)

INSTALLED = [
    (page.name, requirement)
    for page in PAGES
    for line in installations(page)
    for requirement in shlex.split(line)
    if requirement.startswith("twopc")
]

SOURCES = [*(ROOT / "twopc").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]

NAMED = [
    (source.name, requirement)
    for source in SOURCES
    for requirement in re.findall(r"pip install '?(twopc[\w\[\],-]*)", source.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("page", "requirement"), sorted({*INSTALLED, *NAMED}))
def test_what_a_page_or_a_message_installs_is_a_distribution_with_such_extras(page: str, requirement: str) -> None:
    asked = Requirement(requirement)
    assert asked.name in DISTRIBUTIONS, page
    assert asked.extras <= set(metadata(asked.name).get_all("Provides-Extra") or []), page


def test_a_page_installs_the_spark_that_was_run_and_has_a_kafka_source() -> None:
    asked = [found for page in PAGES for found in re.findall(r"pip install '(pyspark[^']*)'", page.read_text("utf-8"))]
    assert {*asked} == {f"pyspark=={version('pyspark')}"}


def test_the_command_without_its_packages_names_the_extra_that_brings_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "twopc.cli.commands", raising=False)
    monkeypatch.setitem(sys.modules, "click", None)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "twopc: the command needs click: pip install 'twopc-core[cli]'\n"
