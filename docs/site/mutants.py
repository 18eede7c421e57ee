"""A hook of MkDocs: the table of mutants on the page on the simulation, from the record of what caught each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

PAGE, PLACE = "docs/internals/simulation.md", "<!-- mutants -->"
RECORD = "tests/campaigns/simulation/caught.jsonl"

_HEADING = ("| defect | in | caught by | broken promise |", "| --- | --- | --- | --- |")


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  # MkDocs'
    """Return the text of a page with the table in its place."""
    if page.file.src_uri != PAGE:
        return markdown
    record = (Path(config.docs_dir).parent / RECORD).read_text(encoding="utf-8")
    return markdown.replace(PLACE, "\n".join([*_HEADING, *map(_row, map(json.loads, record.splitlines()))]))


def _row(caught: dict[str, Any]) -> str:
    scenario = {"sinks": "kf", "batches": 1, "partitions": [2], **caught["scenario"]}
    marks = [scenario["sinks"], f"{scenario['batches']}\u00d7{max(scenario['partitions'])}"]
    marks += [name for name in ("stage", "backlog", "orphans") if scenario.get(name)]
    marks += ["disk"] if scenario.get("log") == "disk" else []
    schedule = ", ".join(f"{step} {fault}" for step, fault in caught["schedule"].items()) or "no fault"
    promise = caught["promise"].replace("_", " ").lower()
    where = caught["where"].split(":")[1]
    return f"| {caught['mutant']} | `{where}` | {schedule} ({', '.join(marks)}) | {promise} |"
