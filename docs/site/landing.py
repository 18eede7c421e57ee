"""A hook of MkDocs: the picture and the gallery of the first page, from tables of other pages.

The picture has what happens at each crash from ``docs/guarantees.md``. The gallery has each backend from the two tables
of ``docs/choose-a-backend.md``. The README shows the picture as a file: ``python docs/site/landing.py`` writes it.
"""

from __future__ import annotations

import html
import itertools
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

PAGE = "docs/index.md"

DOCS = Path(__file__).parents[1]
PICTURE = DOCS / "guarantee.svg"

STYLE = """
svg { --text: #1f2328; --line: #59636e; --box: #f6f8fa; --decision: #0969da; font-family: sans-serif }
@media (prefers-color-scheme: dark) { svg { --text: #f0f6fc; --line: #9198a1; --box: #151b23; --decision: #4493f8 } }
text { fill: var(--text); font-size: 13px; text-anchor: middle }
.name { font-size: 17px; font-weight: 700 }
.died { font-weight: 700 }
.box { fill: var(--box); stroke: var(--line) }
.decision { stroke: var(--decision); stroke-width: 3 }
.flow { fill: none; stroke: var(--line); stroke-width: 2 }
.tip { fill: var(--line) }
.leader { fill: none; stroke: var(--line); stroke-dasharray: 3 4 }
.bolt { fill: #d55e00; font-size: 20px; font-weight: 700 }
.crash { fill: none; stroke-width: 2 }
.before { stroke: #d98a00 }
.after { stroke: #009e73 }
"""
"""Of the picture as a file, which the site's style sheet does not reach."""

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

LINE = 17
"""From one line of text to the next."""

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
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[0].splitlines()[2:]]
    for before, row in itertools.pairwise(found):
        row[:] = [above if cell == "the same" else cell for above, cell in zip(before, row, strict=True)]
    return found


def gallery(systems: Sequence[Sequence[str]], states: Sequence[Sequence[str]]) -> str:
    """Return a card for each backend, as Markdown."""
    promises = {link: row for row in systems for _, link in _LINK.findall(row[0])}
    cards = "\n\n".join(f"- {_card(row, promises)}" for row in states)
    return f'<div class="grid cards sinks" markdown>\n\n{cards}\n\n</div>'


def _card(row: Sequence[str], promises: dict[str, Sequence[str]]) -> str:
    backend, state, run_on, not_run_on = row
    [(_, link)] = _LINK.findall(backend)
    _, seen, _ = promises[link]
    facts = (("readers see", seen), ("run on", run_on), ("not run on", not_run_on))
    lines = "".join(f"\n\n    *{name}* {text}" for name, text in facts)
    return f'**{backend}** <span class="state {state}">{state}</span>{lines}'


def picture(crashes: Sequence[Sequence[str]]) -> str:
    """Return the picture as SVG, once for wide and once for narrow screens."""
    wide, narrow = _drawn("wide", 1000, *_wide(crashes)), _drawn("narrow", 360, *_narrow(crashes))
    return f'<div class="guarantee">{wide}{narrow}</div>'


def picture_file() -> str:
    """Return the picture as a file of its own, for wide screens."""
    crashes = rows((DOCS / "guarantees.md").read_text(encoding="utf-8"), "What happens in a crash")
    svg = _drawn("wide", 1000, *_wide(crashes))
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
        "<defs>", f"<style>{STYLE}</style><defs>", 1
    )


def _drawn(name: str, width: float, height: float, parts: Sequence[str]) -> str:
    title = "A batch from the source to all sinks, and what a crash of the driver means at each place"
    tip = (
        f'<defs><marker id="tip-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto"><path d="M0 0L8 4L0 8z" class="tip"/></marker></defs>'
    )
    box = f"-2 -2 {width + 4} {height + 4}"  # half of a stroke lies outside
    return f'<svg class="{name}" viewBox="{box}" role="img" aria-label="{title}">{tip}{"".join(parts)}</svg>'


def _wide(crashes: Sequence[Sequence[str]]) -> tuple[float, list[str]]:
    """Return the height and the parts of a picture from left to right."""
    width, gap, height, y = 168, 40, 96, 190
    parts = []
    for place, step in enumerate(STEPS):
        x = place * (width + gap)
        parts.append(_box(x, 0, width, height, step, columns=21))
        if place:
            parts.append(_flow("wide", f"M{x - gap + 4} {height / 2}h{gap - 8}"))
    boxes = [_Crash(at, row, columns=30) for at, row in zip(CRASHES, crashes, strict=True)]
    tallest = max(box.height for box in boxes)
    for place, box in enumerate(boxes):
        at_x, left = box.at * (width + gap) + width / 2, place * 254
        top = height + 4 if box.at == int(box.at) else height / 2 + 8
        parts.append(_leader(f"M{at_x} {top}V165L{left + 119} {y}", at_x, top + 20))
        parts.append(box.draw(left, y, 238, tallest))
    return y + tallest, parts


def _narrow(crashes: Sequence[Sequence[str]]) -> tuple[float, list[str]]:
    """Return the height and the parts of a picture from top to bottom."""
    y = 0.0
    parts = []
    boxes = [_Crash(at, row, columns=40) for at, row in zip(CRASHES, crashes, strict=True)]
    for place, step in enumerate(STEPS):
        parts.append(_box(0, y, 360, 62, step, columns=46))
        y += 62
        for box in boxes:
            if place <= box.at < place + 1:
                parts.append(_leader(f"M22 {y}v{box.height / 2 + 10}h24", 22, y + box.height / 2 + 16))
                parts.append(box.draw(48, y + 10, 312, box.height))
                y += box.height + 10
        if place + 1 < len(STEPS):
            parts.append(_flow("narrow", f"M180 {y + 4}v24"))
            y += 34
    return y, parts


def _box(x: float, y: float, width: float, height: float, step: tuple[str, str], columns: int) -> str:
    name, text = step
    kind = "box decision" if step == STEPS[DECISION] else "box"
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
        f'<text class="name" x="{x + width / 2}" y="{y + 26}">{name}</text>'
        f"{_lines(textwrap.wrap(text, columns, break_on_hyphens=False), x + width / 2, y + 46)}"
    )


def _flow(picture: str, path: str) -> str:
    return f'<path class="flow" d="{path}" marker-end="url(#tip-{picture})"/>'


def _leader(path: str, x: float, y: float) -> str:
    return f'<path class="leader" d="{path}"/><text class="bolt" x="{x}" y="{y}">✕</text>'


class _Crash:
    """What a crash at one place means, as a box of text."""

    def __init__(self, at: float, row: Sequence[str], columns: int) -> None:
        died, _, restarted = row
        self.at = at
        self._head = textwrap.wrap(f"The driver dies {died}:", columns, break_on_hyphens=False)
        self._body = textwrap.wrap(f"{restarted}.", columns, break_on_hyphens=False)

    @property
    def height(self) -> float:
        return LINE * (len(self._head) + len(self._body)) + 28

    def draw(self, x: float, y: float, width: float, height: float) -> str:
        kind = "after" if self.at > DECISION else "before"
        middle = x + width / 2
        return (
            f'<rect class="crash {kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
            f"{_lines(self._head, middle, y + 24, 'died')}"
            f"{_lines(self._body, middle, y + 30 + LINE * len(self._head))}"
        )


def _lines(texts: Sequence[str], x: float, y: float, kind: str = "text") -> str:
    spans = (f'<tspan x="{x}" y="{y + LINE * number}">{html.escape(text)}</tspan>' for number, text in enumerate(texts))
    return f'<text class="{kind}">{"".join(spans)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture_file(), encoding="utf-8")
