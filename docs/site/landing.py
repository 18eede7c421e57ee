"""A hook of MkDocs: the picture and the gallery of the first page, from tables of other pages.

The picture has what happens at each crash from ``docs/guarantees.md``. The gallery has each backend from the two tables
of ``docs/choose-a-backend.md``.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

PAGE = "docs/index.md"

STEPS = (
    ("Spark reads", "one batch from the source"),
    ("Prepare", "every task, in every sink: durable, and hidden"),
    ("Decide", "one entry in the commit log, for all sinks"),
    ("Commit", "in every sink: visible"),
    ("Spark records", "that the batch is done"),
)
CRASHES = (1, 1.5, 3, 3.5)
"""The step in which the driver dies, or the two between which it does, for each row of the table."""

DECISION = 2

_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  # MkDocs'
    """Return the first page with its picture and its gallery."""
    if page.file.src_uri != PAGE:
        return markdown
    docs = Path(config.docs_dir)
    crashes = rows((docs / "guarantees.md").read_text(encoding="utf-8"), "What happens in a crash")
    choice = (docs / "choose-a-backend.md").read_text(encoding="utf-8")
    cards = gallery(rows(choice, "Systems with a backend"), rows(choice, "State of each backend"))
    return markdown.replace("<!-- guarantee -->", picture(crashes)).replace("<!-- gallery -->", cards)


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    section = page.split(f"\n## {heading}\n", 1)[1]
    lines = re.search(r"^\|.*(?:\n\|.*)*", section, re.MULTILINE)
    assert lines, f"no table below {heading!r}"
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[0].splitlines()[2:]]


def gallery(systems: Sequence[Sequence[str]], states: Sequence[Sequence[str]]) -> str:
    """Return a card for each backend, as Markdown."""
    promises = {link: row for row in systems for _, link in _LINK.findall(row[0])}
    cards = [f"- {line}" for row in states for line in [_card(row, promises)]]
    return "\n".join(['<div class="grid cards sinks" markdown>', "", *cards, "", "</div>"])


def _card(row: Sequence[str], promises: dict[str, Sequence[str]]) -> str:
    backend, state, run_on, not_run_on = row
    [(_, link)] = _LINK.findall(backend)
    _, prepared, seen, _ = promises[link]
    facts = (("prepares by", prepared), ("readers see", seen), ("run on", run_on), ("not run on", not_run_on))
    lines = "".join(f"\n\n    *{name}* {text}" for name, text in facts)
    return f"**{backend}** {{{{ {state} }}}}".replace("{{ ", f'<span class="state {state}">').replace(" }}", "</span>") + lines


def picture(crashes: Sequence[Sequence[str]]) -> str:
    """Return the picture as SVG, once for wide and once for narrow screens."""
    title = "A batch from the source to all sinks, and what a crash of the driver means at each place"
    drawn = "".join(
        f'<svg class="{name}" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">{_ARROW}{"".join(parts)}</svg>'
        for name, width, height, parts in (("wide", 1000, 380, _wide(crashes)), ("narrow", 360, 900, _narrow(crashes)))
    )
    return f'<div class="guarantee">{drawn}</div>'


_ARROW = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" class="tip"/></marker></defs>'
)


def _wide(crashes: Sequence[Sequence[str]]) -> Iterator[str]:
    width, gap, top, height = 168, 40, 14, 96
    for place, (name, text) in enumerate(STEPS):
        x = place * (width + gap)
        yield _box(x, top, width, height, place == DECISION, name, text, 21)
        if place:
            yield f'<path class="flow" d="M{x - gap + 3} {top + height / 2}h{gap - 8}" marker-end="url(#tip)"/>'
    for place, (at, row) in enumerate(zip(CRASHES, crashes, strict=True)):
        x, left = at * (width + gap) + width / 2, place * 254
        start = top + height + 4 if at == int(at) else top + height / 2 + 8
        yield _crash(left, 200, 238, row, after=at > DECISION, columns=31)
        yield f'<path class="leader" d="M{x} {start}V172L{left + 119} 200"/><text class="bolt" x="{x}" y="{start + 18}">✕</text>'


def _narrow(crashes: Sequence[Sequence[str]]) -> Iterator[str]:
    y = 4
    rest = list(zip(CRASHES, crashes, strict=True))
    for place, (name, text) in enumerate(STEPS):
        yield _box(0, y, 360, 62, place == DECISION, name, text, 46)
        y += 62
        while rest and rest[0][0] < place + 1:
            at, row = rest.pop(0)
            yield f'<path class="leader" d="M24 {y}v64"/><text class="bolt" x="24" y="{y + 40}">✕</text>'
            yield _crash(48, y + 10, 312, row, after=at > DECISION, columns=42)
            y += 126
        if place + 1 < len(STEPS):
            yield f'<path class="flow" d="M180 {y + 4}v22" marker-end="url(#tip)"/>'
            y += 34


def _box(x: float, y: float, width: float, height: float, is_decision: bool, name: str, text: str, columns: int) -> str:
    kind = "box decision" if is_decision else "box"
    lines = _lines(text, x + width / 2, y + 46, columns)
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
        f'<text class="name" x="{x + width / 2}" y="{y + 26}">{name}</text>{lines}'
    )


def _crash(x: float, y: float, width: float, row: Sequence[str], *, after: bool, columns: int) -> str:
    died, _, restarted = row
    kind = "after" if after else "before"
    head = _lines(f"The driver dies {died}:", x + width / 2, y + 24, columns, "died")
    count = len(textwrap.wrap(f"The driver dies {died}:", columns))
    body = _lines(_sentence(restarted), x + width / 2, y + 30 + 17 * count, columns)
    return f'<rect class="crash {kind}" x="{x}" y="{y}" width="{width}" height="{116 if columns > 40 else 160}" rx="8"/>{head}{body}'


def _sentence(text: str) -> str:
    return "nothing of it is visible; the batch runs again." if text == "the same" else f"{text}."


def _lines(text: str, x: float, y: float, columns: int, kind: str = "text") -> str:
    spans = (
        f'<tspan x="{x}" y="{y + 17 * number}">{html.escape(line)}</tspan>'
        for number, line in enumerate(textwrap.wrap(text, columns))
    )
    return f'<text class="{kind}">{"".join(spans)}</text>'
