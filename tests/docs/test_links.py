"""Relative links of the pages lead to a file, and to a heading of it, as ``make docs`` checks too, in more time."""

import re
from functools import cache
from pathlib import Path

from tests.support.pages import DOCS, PAGES, ROOT

_LINK = re.compile(r"\]\((?![a-z]+:)([^)\s#]*)(?:#([^)\s]+))?\)")
_NAMED = re.compile(r"`(docs/[\w/-]+\.md)(?:#([\w-]+))?`")
"""A page that a README of a plugin names, as an index of packages shows it alone."""

_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")

GENERATED = (DOCS / "api.md", DOCS / "configuration.md")
"""Pages that get their headings when the site is made."""

LINKS = {"README.md": 10}
"""How many links a page has at least, lest the pattern finds none."""


def test_each_link_of_a_page_leads_to_a_file_and_to_a_heading() -> None:
    dead = []
    assert len(PAGES) > 30
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found = _LINK.findall(_CODE.sub("", text))
        assert len(found) >= LINKS.get(page.relative_to(ROOT).as_posix(), 0), page
        targets = [((page.parent / path).resolve() if path else page, anchor) for path, anchor in found]
        targets += [(ROOT / path, anchor) for path, anchor in _NAMED.findall(text)]
        dead += [
            f"{page}: {path}#{anchor}"
            for path, anchor in targets
            if not path.exists() or (anchor and not has(path, anchor))
        ]
    assert dead == []


def has(path: Path, anchor: str) -> bool:
    return path in GENERATED or anchor in anchors(path)


@cache
def anchors(page: Path) -> set[str]:
    """Return the names that the repository's web page, and the site, give to the headings."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    found = {*re.findall(r'<a id="([\w-]+)">', text)}
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)|<[^>]*>", r"\1", heading)
        name = _NOT_IN_ANCHORS.sub("", title).strip().lower().replace(" ", "-")
        found.add(name if name not in found else f"{name}-1")
    return found
