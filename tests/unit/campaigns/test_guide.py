"""The guide's sink, found by its entry point, passes the contract. ``make prove-plugin`` tests it from its wheel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import DOCS, write_files


@pytest.mark.long
def test_the_sink_of_the_guide_keeps_the_contract(tmp_path: Path) -> None:
    assert write_files(DOCS / "write-your-own-sink.md", tmp_path) == [
        "pyproject.toml",
        "test_contract.py",
        "twopc_sqlite.py",
    ]
    entry_point = 'sqlite = "twopc_sqlite"'
    assert f"[project.entry-points.twopc]\n{entry_point}\n" in (tmp_path / "pyproject.toml").read_text()
    metadata = tmp_path / "twopc_sqlite-0.1.0.dist-info"  # as an installer would create it
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: twopc-sqlite\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[twopc]\n" + entry_point.replace('"', ""))
    contract = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert contract.returncode == 0, contract.stdout
