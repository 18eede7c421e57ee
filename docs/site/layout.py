"""A hook of MkDocs: the site has the layout of the repository, so a relative link that works in one works in the other.

MkDocs itself reads one folder. This hook gives it all pages of the repository, and the pictures and source files that
they link to.

An index of packages shows the README of a plugin alone, where a relative link leads nowhere. So these READMEs name
pages of the repository in code, such as ``docs/stores.md#options-and-credentials``. The site makes links of them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "plugins/*/README.md")

PLACES = {"docs/index.md": "index.html", "README.md": "README/index.html"}
"""The first page of the site is not that of the repository, which is about the code as well."""

_TARGET = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)")
"""The target of a relative link in Markdown."""

_NAMED = re.compile(r"`(docs/[\w/-]+\.md)(#[\w-]+)?`")
"""A page of the repository that a plugin's README names."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return all files of the site, by their paths in the repository."""
    repository = Path(config.docs_dir).parent
    pages = [page for pattern in PAGES for page in sorted(repository.glob(pattern))]
    paths = dict.fromkeys([*(page.relative_to(repository).as_posix() for page in pages), *_linked(repository, pages)])
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    styles = [path for path in config.extra_css if (repository / path).is_file()]
    found = [File.generated(config, path, abs_src_path=str(repository / path)) for path in [*paths, *styles]]
    for file in found:
        file.dest_uri = PLACES.get(file.src_uri, file.dest_uri)
    return Files([*of_theme, *found])


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  # MkDocs'
    """Return a plugin's README with links to the pages that it names."""
    if not page.file.src_uri.startswith("plugins/"):
        return markdown
    return _NAMED.sub(lambda found: f"[`{found[1]}`](../../{found[1]}{found[2] or ''})", markdown)


def _linked(repository: Path, pages: list[Path]) -> Iterator[str]:
    """Files that pages link to. MkDocs reports those that do not exist."""
    for page in pages:
        folder = page.parent.relative_to(repository).as_posix()
        for target in _TARGET.findall(page.read_text(encoding="utf-8")):
            path = posixpath.normpath(posixpath.join(folder, target))
            if (repository / path).is_file():
                yield path
