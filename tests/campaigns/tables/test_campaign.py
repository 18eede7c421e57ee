"""A part of ``make prove-tables``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.tables.contents import COUNTED

pytestmark = pytest.mark.crash


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run a campaign in its own process, because it forks and must have no thread. Return its report."""
    command = [sys.executable, "-m", "tests.campaigns", "tables", "--folder", str(folder), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def test_a_killed_query_loses_nothing_doubles_nothing_and_leaves_nothing_in_two_tables(tmp_path: Path) -> None:
    report = run(tmp_path / "tables", "--tables", "both", "delta", "--steps-stride", "450", "--kills", "1")
    assert report["both"]["kills"] > 1
    assert report["both, amid commits"]["writer_kills"] == 1
    assert report["delta, amid commits"]["writer_kills"] == 1
    assert not any(found[kind] for found in report.values() for kind in COUNTED)
