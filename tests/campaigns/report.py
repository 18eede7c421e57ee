"""A campaign's report: one JSON file, one closing line, one exit code."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

Document: TypeAlias = "Mapping[str, Any] | Sequence[Any]"


class Report:
    """A JSON file that is complete at any moment, and may be rewritten while the campaign runs.

    Args:
        path: the file. The class creates its folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, document: Document) -> None:
        aside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        aside.write_text(json.dumps(document, indent=1), encoding="utf-8")
        aside.replace(self._path)

    def show(self, hidden: Collection[str] = ()) -> None:
        """Print the document without the ``hidden`` keys."""
        document = json.loads(self._path.read_text(encoding="utf-8"))
        print(json.dumps({key: value for key, value in document.items() if key not in hidden}, indent=1))

    def end(self, summary: str, *, failed: bool) -> int:
        """Print the closing line and return the exit code."""
        print(f"{'FAILED' if failed else 'passed'}: {summary}; {self._path}", flush=True)
        return int(failed)
