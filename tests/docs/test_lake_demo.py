"""What ``make demo-lake`` compares, and the demonstration itself with fewer flights."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.support.pages import ROOT

FLIGHTS = ROOT / "docs" / "examples" / "flights"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module: the demonstration's modules find each other in their own folder."""
    monkeypatch.syspath_prepend(str(FLIGHTS))
    return import_module("lake_report")


def compared(report: Any, **changed: list[dict[str, Any]]) -> Any:
    """Compare three flights in two batches with three results, some of them changed."""
    sent = report.sent(3)
    rows = [{**row, "batch": number // 2} for number, row in enumerate(sent.to_pylist())]
    connection = duckdb.connect()
    for name in ("kafka", "iceberg", "delta"):
        connection.register(f"{name}_rows", pa.Table.from_pylist(changed.get(name, rows), report.RESULT))
    comparison = report.compare(connection, sent, {name: f"{name}_rows" for name in ("kafka", "iceberg", "delta")})
    return report.LakeReport(3, comparison, frozenset(), 0, [], 0, 0, 0.0)


def rows_of(report: Any) -> list[dict[str, Any]]:
    return [{**row, "batch": number // 2} for number, row in enumerate(report.sent(3).to_pylist())]


def counts(found: Any) -> tuple[int, int, int]:
    value = found.to_json()
    return value["lost"], value["duplicates"], value["torn"]


def test_equal_results_are_exact(report: Any) -> None:
    found = compared(report)
    assert counts(found) == (0, 0, 0)
    assert found.is_exact


def test_a_lost_record_is_lost_and_tears_its_batch(report: Any) -> None:
    found = compared(report, delta=rows_of(report)[1:])
    assert counts(found) == (1, 0, 1)
    assert not found.is_exact


def test_a_doubled_record_is_a_duplicate(report: Any) -> None:
    rows = rows_of(report)
    assert counts(compared(report, kafka=[*rows, rows[0]])) == (0, 1, 1)


def test_a_batch_that_is_doubled_everywhere_is_no_torn_one(report: Any) -> None:
    rows = rows_of(report) * 2
    assert counts(compared(report, kafka=rows, iceberg=rows, delta=rows)) == (0, 9, 0)


def test_a_record_of_wrong_contents_is_lost_and_a_duplicate(report: Any) -> None:
    first, *others = rows_of(report)
    assert counts(compared(report, iceberg=[{**first, "airline": "another"}, *others])) == (1, 1, 1)


def test_a_record_in_another_batch_tears_both(report: Any) -> None:
    first, *others = rows_of(report)
    assert counts(compared(report, iceberg=[{**first, "batch": 1}, *others])) == (0, 0, 2)


@pytest.mark.crash
@pytest.mark.long  # seven starts of Spark
@pytest.mark.timeout(600)
def test_six_kills_lose_and_double_nothing(java_home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home)
    command = [sys.executable, str(FLIGHTS / "lake.py"), "--records", "12000", "--folder", str(tmp_path / "demo")]
    # A demonstration needs a module of the tests, as a script run from the repository's root finds it.
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    value = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert {name: value[name] for name in ("kills", "lost", "duplicates", "torn")} == {
        "kills": 6,
        "lost": 0,
        "duplicates": 0,
        "torn": 0,
    }
    assert " s: kill 1 of 6: while tasks write: " in done.stdout
