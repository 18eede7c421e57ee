"""The documentation's pages, and the code on them."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.glob("**/*.md"), *ROOT.glob("plugins/*/*.md")]

_FILE = re.compile(r"^```\w+\n# (?P<name>\S+\.\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of code whose first line names its file."""


def blocks(page: Path, language: str) -> Iterator[str]:
    """Yield the page's code blocks in ``language``, in order."""
    block = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    yield from block.findall(page.read_text(encoding="utf-8"))


def installations(page: Path) -> list[str]:
    """Return the arguments of each ``pip install`` of this project on the page."""
    lines = re.findall(r"pip install ([^`\n#&]+)", page.read_text(encoding="utf-8"))
    return [line.strip() for line in lines if "twopc" in line]


def site_script(name: str) -> Any:
    """Import a script of the site, which is not in a package."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", DOCS / "site" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    with mock.patch.object(sys, "path", [str(DOCS / "site"), *sys.path]):  # for its imports, as if it were run
        spec.loader.exec_module(module)
    return module


def write_files(page: Path, folder: Path) -> list[str]:
    """Write the page's files into ``folder``. Return their names."""
    files = {found["name"]: found["text"] for found in _FILE.finditer(page.read_text(encoding="utf-8"))}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return sorted(files)
