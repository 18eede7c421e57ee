"""Tables in Markdown, for the pages that are filled in from the code."""

from __future__ import annotations

from collections.abc import Iterable

from twopc.options import Option


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table."""
    header = [*columns]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(" ".join(["|", *(f"{cell} |" if cell else "|" for cell in line)]) for line in lines)


def options_table(options: Iterable[Option]) -> str:
    """Return the table of options."""
    rows = (
        (
            f"`{each.name}`",
            each.kind.values,
            each.default_cell,
            ": ".join(filter(None, ("needed" if each.needed else "", each.meaning))),
        )
        for each in options
    )
    return table(("option", "values", "default", ""), rows)
