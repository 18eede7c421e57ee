"""A part of ``make prove-stores`` and of ``make prove-tables``."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.stores.go_servers import PROGRAMS
from tests.campaigns.tables.contents import COUNTED

pytestmark = [pytest.mark.crash, pytest.mark.long]

RUN_TIMEOUT_S = 300
"""A run takes half a minute on an idle machine."""


def run(folder: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run the campaign that ``folder`` is named for in its own process, because it forks and must have no thread.
    Return its report."""
    command = [sys.executable, "-m", "tests.campaigns", folder.name, "--folder", str(folder), *arguments]
    ended = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def test_a_writer_that_is_killed_loses_nothing_duplicates_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    report = run(tmp_path / "stores", "--stores", "local", "memory", "--steps-stride", "53")
    assert {store: found["kills"] > 4 for store, found in report.items()} == {"local": True, "memory": True}


def test_a_writer_with_its_log_in_postgres_loses_nothing_when_killed(tmp_path: Path) -> None:
    report = run(tmp_path / "stores", "--stores", "postgres-log", "--steps-stride", "97")
    assert {store: found["kills"] > 4 for store, found in report.items()} == {"postgres-log": True}


def test_a_postgres_with_the_log_that_is_killed_during_an_append_loses_nothing(tmp_path: Path) -> None:
    report = run(tmp_path / "stores", "--stores", "postgres-log-killed", "--kills", "2")
    found = report["postgres-log-killed"]
    assert found["server_kills"] == found["writer_kills"] == 2


def test_a_server_and_a_writer_that_are_killed_during_completions_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    if not PROGRAMS["versitygw"].path.exists():
        pytest.skip("versitygw is not in the cache; make prove-stores ARGS='--stores versitygw' builds it in minutes")
    report = run(tmp_path / "stores", "--stores", "versitygw", "--kills", "2")
    assert report["versitygw"]["server_kills"] == report["versitygw"]["writer_kills"] == 2


def test_a_store_whose_server_cannot_be_built_is_skipped_with_what_to_install(tmp_path: Path) -> None:
    report = run(tmp_path / "stores", "--stores", "minio", PATH="", UV="none", XDG_CACHE_HOME=str(tmp_path))
    assert "install Go 1.24 or later" in report["minio"]["skipped"]


def test_hdfs_is_skipped_where_there_is_no_java_with_what_to_install(tmp_path: Path) -> None:
    report = run(tmp_path / "stores", "--stores", "hdfs", PATH="", JAVA_HOME="", XDG_CACHE_HOME=str(tmp_path))
    assert "no Java runtime of version 17 or later was found" in report["hdfs"]["skipped"]
    assert "Install one" in report["hdfs"]["skipped"]


def test_a_killed_query_loses_nothing_doubles_nothing_and_leaves_nothing_in_two_tables(tmp_path: Path) -> None:
    report = run(tmp_path / "tables", "--tables", "both", "delta", "--steps-stride", "450", "--kills", "1")
    assert report["both"]["kills"] > 1
    assert report["both, amid commits"]["writer_kills"] == 1
    assert report["delta, amid commits"]["writer_kills"] == 1
    assert not any(found[kind] for found in report.values() for kind in COUNTED)
