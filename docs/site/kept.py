"""What the scripts have in common that keep a campaign's report and print it in a page."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def commit() -> str:
    """Return the commit that a campaign has just run on.

    Raises:
        SystemExit: files have been changed since.
    """
    if _git("status", "--porcelain", "--untracked-files=no"):
        raise SystemExit("files have been changed since the commit: commit them, and run the campaign again")
    return _git("rev-parse", "--short=7", "HEAD")


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603  # our own


def main(page: Path, keep: Callable[[str, Path], None], filled: Callable[[str], str]) -> None:
    """Keep a report if one is given, by its command and its path, and fill the page in."""
    if sys.argv[1:]:
        keep(sys.argv[1], Path(sys.argv[2]))
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
