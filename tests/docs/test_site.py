"""The documentation as a site, built as ``make docs`` builds it."""

import html
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import griffe
import pytest

from tests.campaigns.simulation.mutants import MUTANTS
from tests.support.pages import DOCS, ROOT, site_script
from tests.unit.public_surface import PUBLIC
from twopc import errors, events
from twopc.cli.commands import COMMANDS
from twopc.options import names
from twopc_files.options import OPTIONS

EXPORTING = ("twopc", *(name for name in PUBLIC if name.startswith(("twopc_", "twopc.spark", "twopc.testing"))))
OBSERVERS = (
    "twopc.observers.json_lines.EventReader",
    "twopc.observers.json_lines.JsonLinesObserver",
    "twopc.observers.openlineage.OpenLineageObserver",
    "twopc.observers.opentelemetry.OpenTelemetryObserver",
    "twopc.observers.prometheus.PrometheusObserver",
)

_LOADED = re.compile(r'<(?:script|img|iframe|link)\b[^>]* (?:src|href)="?(?:https?:)?//')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: a link to what is not there fails it, and so does a page that is in no menu."""
    folder = tmp_path_factory.mktemp("site")
    # Not with --quiet, which keeps warnings from --strict as well.
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(mkdocs, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.long
def test_the_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.glob("**/*.html"))
    assert len(pages) > 10
    assert [page for page in pages if _LOADED.search(page.read_text(encoding="utf-8"))] == []


@pytest.mark.long
def test_the_first_page_has_every_backend_with_its_state(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    landing, choice = site_script("landing"), (DOCS / "choose-a-backend.md").read_text(encoding="utf-8")
    states = landing.rows(choice, "State of each backend")
    names = [re.findall(r"\[(.+?)\]\(\.\./(plugins/[\w-]+)/README.md\)", row[0])[0] for row in states]
    assert {place for _, place in names} == {
        readme.parent.relative_to(ROOT).as_posix()
        for readme in ROOT.glob("plugins/*/README.md")
        if readme.parent.name != "kafka-broker"
    }
    for (name, place), (_, state, run_on, _) in zip(names, states, strict=True):
        assert state in ("stable", "experimental")
        assert f'<a href="{place}/">{name}</a></strong> <span class="state {state}">{state}</span>' in page
        assert run_on in page


def test_each_state_is_of_a_backend_in_the_matrix() -> None:
    choice = (DOCS / "choose-a-backend.md").read_text(encoding="utf-8")
    columns = {name for part, name in site_script("support").COLUMNS.items() if part != "guide"}
    states = site_script("landing").rows(choice, "State of each backend")
    assert {re.findall(r"\w+", row[0])[0] for row in states} == columns


@pytest.mark.long
def test_the_picture_on_the_first_page_has_each_crash_of_the_guarantees(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    crashes = site_script("landing").rows(
        (DOCS / "guarantees.md").read_text(encoding="utf-8"), "What happens in a crash"
    )
    for picture in re.findall(r'<svg class="(?:wide|narrow)".*?</svg>', page, re.DOTALL):
        text = " ".join(re.sub(r"<[^>]+>", " ", picture).split())
        for died, _, restarted in crashes:
            assert f"The driver dies {died}: {restarted}." in text
    assert page.count("The driver dies while") == 2


@pytest.mark.long
def test_a_search_has_its_index_beside_the_pages(site: Path) -> None:
    assert "in doubt" in (site / "search/search_index.json").read_text(encoding="utf-8")


@pytest.mark.long
def test_a_page_of_a_plugin_and_a_page_of_docs_lead_to_each_other(site: Path) -> None:
    assert 'href="../../docs/performance/"' in (site / "plugins/files/index.html").read_text(encoding="utf-8")
    assert 'href="../../plugins/files/"' in (site / "docs/stores/index.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_every_public_name_has_a_docstring_and_is_in_the_reference(site: Path) -> None:
    page = (site / "docs/api/index.html").read_text(encoding="utf-8")
    paths = [ROOT, *ROOT.glob("plugins/*")]
    packages = {name: griffe.load(name, search_paths=paths) for name in EXPORTING if "." not in name}
    for name, defined in public_names().items():
        package, _, path = defined.partition(".")
        assert packages[package][path].docstring, f"{name} has no docstring"
        assert f'id="{name}"' in page or f'id="{defined}"' in page, f"{name} is not on docs/api.md"


def public_names() -> dict[str, str]:
    """Each public name, and where that is defined."""
    found = {name: name for name in OBSERVERS}
    for module in map(import_module, EXPORTING):
        for name in module.__all__:
            exported, value = f"{module.__name__}.{name}", getattr(module, name)
            is_defined = inspect.isclass(value) or inspect.isfunction(value)
            found[exported] = f"{value.__module__}.{value.__qualname__}" if is_defined else exported
    for module in errors, events:
        of_module = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
        found |= {name: name for name in (f"{module.__name__}.{value.__name__}" for value in of_module)}
    assert len(found) > 50
    return found


@pytest.mark.parametrize("name", ["api.md", "configuration.md", "cli.md", "metrics.md"])
def test_the_tables_of_a_reference_page_are_those_of_the_code(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert site_script("reference").filled(page) == page, "run: python docs/site/reference.py"


def test_the_configuration_reference_has_the_options_of_the_coordinator_and_the_sinks() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    for name in ("commits_at_once", "storage_options", "first_batch_id", *names(OPTIONS)):
        assert f"\n| `{name}` |" in page


@pytest.mark.long
def test_the_page_on_the_simulation_shows_what_catches_each_mutant(site: Path) -> None:
    page = (site / "docs/internals/simulation/index.html").read_text(encoding="utf-8")
    for mutant in MUTANTS:
        assert f"<td>{html.escape(mutant.name, quote=False)}</td>" in page


def test_the_reference_of_the_command_has_the_options_of_each_command() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"\n## `twopc {name}" in page
    for option in ("--accept-loss", "--orphans", "--even-if-repairable", "--timeout-s"):
        assert f"\n| `{option}` |" in page


@pytest.mark.parametrize("readme", sorted(ROOT.glob("plugins/*/README.md")), ids=lambda path: path.parent.name)
def test_a_readme_of_a_plugin_has_no_link_that_an_index_of_packages_would_break(readme: Path) -> None:
    text = readme.read_text(encoding="utf-8")
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", text) == []
    for name in re.findall(r"`(docs/[\w/-]+\.md)", text):
        assert (ROOT / name).exists(), name
