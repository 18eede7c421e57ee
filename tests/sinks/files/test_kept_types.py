"""The README says which types each format keeps."""

from __future__ import annotations

from pathlib import Path

from twopc_files.kept_types import KINDS, Kind

README = Path(__file__).parents[3] / "plugins" / "files" / "README.md"


def test_the_readme_has_the_table() -> None:
    assert table() in README.read_text()


def table() -> str:
    """Return the table of the README."""
    formats = ["parquet", "json", "csv", "orc", "text"]
    lines = [f"| column | {' | '.join(formats)} | in the others |", f"| --- | {'--- | ' * len(formats)}--- |"]
    for kind in KINDS:
        kept = ["yes" if format in kind.formats.split() else "" for format in formats]
        lines.append(f"| {kind.name} | {' | '.join(kept)} | {_instead(kind)} |")
    return "\n".join(lines)


def _instead(kind: Kind) -> str:
    return f"`{kind.instead}`" if kind.instead.endswith("(c)") or kind.instead.startswith("CAST") else kind.instead


if __name__ == "__main__":
    print(table())  # noqa: T201  # to paste into the README
