"""The documentation as a site, built as ``make docs`` builds it."""

from __future__ import annotations

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
from tests.support.pages import ROOT
from twopc import errors, events
from twopc.cli.commands import cli
from twopc.options import names
from twopc_files.options import OPTIONS

EXPORTING = (
    "twopc",
    "twopc.spark",
    "twopc.testing",
    "twopc_delta",
    "twopc_files",
    "twopc_kafka",
    "twopc_kafka_broker",
    "twopc_postgres",
    "twopc_iceberg",
    "twopc_mysql",
    "twopc_pravega",
    "twopc_sql",
)
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


def test_the_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.glob("**/*.html"))
    assert len(pages) > 10
    assert [page for page in pages if _LOADED.search(page.read_text(encoding="utf-8"))] == []


def test_a_page_of_a_plugin_and_a_page_of_docs_lead_to_each_other(site: Path) -> None:
    assert 'href="../../docs/performance/"' in (site / "plugins/files/index.html").read_text(encoding="utf-8")
    assert 'href="../../plugins/files/"' in (site / "docs/stores/index.html").read_text(encoding="utf-8")


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


def test_the_configuration_reference_is_filled_in_from_the_code(site: Path) -> None:
    page = (site / "docs/configuration/index.html").read_text(encoding="utf-8")
    for name in ("commits_at_once", "storage_options", "first_batch_id", *names(OPTIONS)):
        assert f"<code>{name}</code>" in page
    assert "<!-- twopc" not in page


def test_the_page_on_the_simulation_shows_what_catches_each_mutant(site: Path) -> None:
    page = (site / "docs/simulation/index.html").read_text(encoding="utf-8")
    for mutant in MUTANTS:
        assert f"<td>{html.escape(mutant.name, quote=False)}</td>" in page


def test_the_reference_of_the_command_has_the_options_of_each_command(site: Path) -> None:
    page = (site / "docs/cli/index.html").read_text(encoding="utf-8")
    for name in cli.commands:
        assert f'id="twopc-{name}' in page
    for option in ("--accept-loss", "--orphans", "--watch", "-o, --output", "--timeout-s"):
        assert f"<code>{option}</code>" in page
    assert "<!-- twopc" not in page


@pytest.mark.parametrize("readme", sorted(ROOT.glob("plugins/*/README.md")), ids=lambda path: path.parent.name)
def test_a_readme_of_a_plugin_has_no_link_that_an_index_of_packages_would_break(readme: Path) -> None:
    text = readme.read_text(encoding="utf-8")
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", text) == []
    for name in re.findall(r"`(docs/[\w-]+\.md)", text):
        assert (ROOT / name).exists(), name
