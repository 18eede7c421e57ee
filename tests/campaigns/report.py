"""The report of a campaign: one JSON file, one closing line, one exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Report:
    """A file that is whole at any moment, and may be written again while the campaign goes on.

    Args:
        path: where it is. Its folder is made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, document: Mapping[str, Any] | list[Any]) -> None:
        aside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        aside.write_text(json.dumps(document, indent=1), encoding="utf-8")
        aside.replace(self._path)

    def end(self, summary: str, *, failed: bool) -> int:
        """Print the closing line. Return the exit code."""
        print(f"{'FAILED' if failed else 'passed'}: {summary}; {self._path}", flush=True)
        return int(failed)
