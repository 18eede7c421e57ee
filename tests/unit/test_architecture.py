"""The picture of the phases in the docs is the one in the table."""

from __future__ import annotations

from pathlib import Path

from twopc.phases import NEXT, Phase


def test_the_diagram_in_the_docs_shows_the_table_of_phases() -> None:
    arrows = ["    [*] --> closed"]
    arrows += [
        f"    {phase.value} --> {following.value}".replace("pre-committing", "pre_committing")
        for phase in Phase
        for following in sorted(NEXT[phase], key=lambda phase: phase.value)
    ]
    diagram = "\n".join(["stateDiagram-v2", *arrows])
    document = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert diagram in document
