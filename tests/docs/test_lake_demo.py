"""What ``make demo-lake`` compares, and the demonstration itself with fewer flights."""

import json
import subprocess
import sys
from collections.abc import Callable
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


RESULTS = ("kafka", "iceberg", "delta")

Rows = list[dict[str, Any]]

CHANGES: dict[str, tuple[Callable[[Rows], dict[str, Rows]], tuple[int, int, int]]] = {
    "none": (lambda _: {}, (0, 0, 0)),
    "a lost record, which tears its batch": (lambda rows: {"delta": rows[1:]}, (1, 0, 1)),
    "a doubled record": (lambda rows: {"kafka": [*rows, rows[0]]}, (0, 1, 1)),
    "a batch that is doubled everywhere": (lambda rows: dict.fromkeys(RESULTS, rows * 2), (0, 9, 0)),
    "wrong contents": (lambda rows: {"iceberg": [{**rows[0], "airline": "another"}, *rows[1:]]}, (1, 1, 1)),
    "another batch, which tears both": (lambda rows: {"iceberg": [{**rows[0], "batch": 1}, *rows[1:]]}, (0, 0, 2)),
}
"""What is changed in the results, and how many records are then lost and doubled, and how many batches torn."""


@pytest.mark.parametrize("change", CHANGES)
def test_lost_and_doubled_records_and_torn_batches_of_three_results_are_counted(report: Any, change: str) -> None:
    """Of three flights in two batches."""
    changed, expected = CHANGES[change]
    sent = report.sent(3)
    rows = [{**row, "batch": number // 2} for number, row in enumerate(sent.to_pylist())]
    found = dict.fromkeys(RESULTS, rows) | changed(rows)
    connection = duckdb.connect()
    for name in RESULTS:
        connection.register(f"{name}_rows", pa.Table.from_pylist(found[name], report.RESULT))
    comparison = report.compare(connection, sent, {name: f"{name}_rows" for name in RESULTS})
    told = report.LakeReport(3, comparison, frozenset(), 0, [], 0, 0, 0.0)
    assert told.to_json() | dict(zip(("lost", "duplicates", "torn"), expected, strict=True)) == told.to_json()
    assert told.is_exact == (expected == (0, 0, 0))


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
