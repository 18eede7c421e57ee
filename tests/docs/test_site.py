"""The documentation as a site, built as ``make docs`` builds it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

_LOADED = re.compile(r'<(?:script|img|iframe|link)\b[^>]* (?:src|href)="?(?:https?:)?//')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: a link to what is not there fails it, and so does a page that is in no menu."""
    folder = tmp_path_factory.mktemp("site")
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(mkdocs, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def test_the_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.glob("**/*.html"))
    assert len(pages) > 10
    assert [page for page in pages if _LOADED.search(page.read_text(encoding="utf-8"))] == []


def test_a_page_of_a_plugin_and_a_page_of_docs_lead_to_each_other(site: Path) -> None:
    assert 'href="../../docs/performance/"' in (site / "plugins/files/index.html").read_text(encoding="utf-8")
    assert 'href="../../plugins/files/"' in (site / "docs/stores/index.html").read_text(encoding="utf-8")
