"""A hook of MkDocs: the site has the repository's layout, so a relative link that works in one works in the other.

MkDocs itself takes one folder. Here its files are all pages of the repository, and whatever else they link to:
pictures, and source files as they are.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**/*.md", "plugins/*/README.md")

_TARGET = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)")
"""Where a relative link of Markdown leads."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """All files of the site, by their paths in the repository."""
    repository = Path(config.docs_dir).parent
    pages = [page for pattern in PAGES for page in sorted(repository.glob(pattern))]
    paths = dict.fromkeys([*(page.relative_to(repository).as_posix() for page in pages), *_linked(repository, pages)])
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    return Files([*of_theme, *(File.generated(config, path, abs_src_path=str(repository / path)) for path in paths)])


def _linked(repository: Path, pages: list[Path]) -> Iterator[str]:
    """Files that pages link to. What is not there, MkDocs finds out."""
    for page in pages:
        folder = page.parent.relative_to(repository).as_posix()
        for target in _TARGET.findall(page.read_text(encoding="utf-8")):
            path = posixpath.normpath(posixpath.join(folder, target))
            if (repository / path).is_file():
                yield path
