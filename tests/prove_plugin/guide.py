"""The distribution that ``docs/write-your-own-sink.md`` builds, taken from the page."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "write-your-own-sink.md"

_FILE = re.compile(r"^```\w+\n# (?P<name>\S+\.\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of code whose first line names its file."""


def write_distribution(folder: Path) -> list[str]:
    """Write the files of the page into ``folder``. Returns their names."""
    files = {found["name"]: found["text"] for found in _FILE.finditer(PAGE.read_text(encoding="utf-8"))}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return sorted(files)
