"""The distributions and extras that pages and messages name exist."""

import re
import shlex
import sys
from importlib.metadata import metadata, version

import pytest
from packaging.requirements import Requirement

from tests.support.pages import PAGES, ROOT, installations
from twopc import cli

DISTRIBUTIONS = (
    *("twopc-core", "twopc-delta", "twopc-files", "twopc-iceberg", "twopc-kafka", "twopc-kafka-broker"),
    *("twopc-mysql", "twopc-postgres", "twopc-pravega", "twopc-sql"),
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


def test_what_a_page_or_a_message_installs_is_a_distribution_with_such_extras() -> None:
    for page, requirement in {*INSTALLED, *NAMED}:
        asked = Requirement(requirement)
        assert asked.name in DISTRIBUTIONS, page
        assert asked.extras <= set(metadata(asked.name).get_all("Provides-Extra") or []), page


def test_a_page_installs_the_spark_that_was_run_and_has_a_kafka_source() -> None:
    asked = [found for page in PAGES for found in re.findall(r"pip install '(pyspark[^']*)'", page.read_text("utf-8"))]
    assert {*asked} == {f"pyspark=={version('pyspark')}"}


@pytest.mark.parametrize("package", ["click", "rich"])
def test_the_command_without_its_packages_names_the_extra_that_brings_them(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for loaded in [name for name in sys.modules if name.startswith("twopc.cli.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(sys, "argv", ["twopc", "status", "log"])
    for loaded in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == f"twopc: the command needs {package}: pip install 'twopc-core[cli]'\n"
