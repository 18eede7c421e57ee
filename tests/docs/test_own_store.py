"""The store of the guide passes the contract as the guide runs it, and is found by its URL."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import DOCS, blocks, write_files

PAGE = DOCS / "write-your-own-store.md"


@pytest.fixture
def guide(tmp_path: Path) -> Path:
    """A folder with the files of the guide, as an installed distribution."""
    assert write_files(PAGE, tmp_path) == ["sqlite_log.py", "test_sqlite_log.py"]
    [entry_points] = [text for text in blocks(PAGE, "toml") if "twopc.log_stores" in text]
    info = tmp_path / "sqlite_log-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sqlite-log\nVersion: 1.0\n")
    [name] = [line for line in entry_points.splitlines() if "=" in line]
    (info / "entry_points.txt").write_text(f"[twopc.log_stores]\n{name.replace(chr(34), '')}\n")
    return tmp_path


def run(guide: Path, *arguments: str, succeeds: bool = True) -> str:
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(guide)}
    ended = subprocess.run(
        command, cwd=guide, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert (ended.returncode == 0) is succeeds, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.long
def test_the_store_of_the_guide_passes_the_contract(guide: Path) -> None:
    assert " passed" in run(guide, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_sqlite_log.py")


def test_the_store_of_the_guide_is_found_by_its_url(guide: Path) -> None:
    url = f"sqlitelog://{guide}/log.sqlite"
    script = (
        "import sys, twopc\n"
        "sink = twopc.testing.MemorySink(twopc.testing.MemoryTarget())\n"
        "with twopc.Coordinator({'sink': sink}, sys.argv[1], owner='query') as coordinator:\n"
        "    coordinator.run(0, lambda _: [])\n"
    )
    run(guide, "-c", f"import twopc.testing\n{script}", url)
    assert "last decided batch  0" in run(guide, "-m", "twopc.cli", "status", url)


def test_the_store_of_the_guide_creates_no_file_for_a_command_with_a_mistyped_path(guide: Path) -> None:
    url = f"sqlitelog://{guide}/mistyped.sqlite"
    assert "there is no commit log at" in run(guide, "-m", "twopc.cli", "status", url, succeeds=False)
    assert not (guide / "mistyped.sqlite").exists()
