"""A slice of ``make prove-stores``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.crash


def test_a_writer_that_is_killed_at_any_of_some_moments_loses_doubles_and_leaves_nothing(tmp_path: Path) -> None:
    # A process of its own: whoever forks must have no thread.
    command = [sys.executable, "-m", "tests.prove_stores", "--folder", str(tmp_path / "stores")]
    slice_ = ["--stores", "local", "memory", "--steps-stride", "53"]
    run = subprocess.run([*command, *slice_], capture_output=True, text=True, timeout=110, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((tmp_path / "stores" / "report.json").read_text())
    assert {store: found["kills"] > 4 for store, found in report.items()} == {"local": True, "memory": True}
