"""What ``make demo-cdc`` compares, and the demonstration itself with fewer transactions."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import ROOT

EXAMPLES = ROOT / "docs" / "examples"
SOURCE = [(1, "a"), (2, None), (3, "c")]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module: the demonstration's modules find each other in their own folder."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "cdc"))
    return import_module("cdc_report")


@pytest.mark.parametrize(
    ("copy", "missing", "extra", "different"),
    [
        (SOURCE[::-1], 0, 0, 0),
        (SOURCE[1:], 1, 0, 0),
        ([*SOURCE, (4, "d")], 0, 1, 0),
        ([*SOURCE, SOURCE[0]], 0, 1, 0),
        ([(1, "a"), (2, ""), (3, "c")], 0, 0, 1),
        ([], 3, 0, 0),
    ],
)
def test_missing_extra_and_different_rows_are_counted(
    report: Any, copy: list[tuple[int, str | None]], missing: int, extra: int, different: int
) -> None:
    found = report.CdcReport(3, {"a copy": report.Difference.of(SOURCE, copy)}, [], 0, 0, 0.0)
    assert found.to_json() | {"missing": missing, "extra": extra, "different": different} == found.to_json()
    assert found.is_exact == (not missing + extra + different)


def test_copies_of_an_empty_source_prove_nothing(report: Any) -> None:
    assert not report.CdcReport(0, {"a copy": report.Difference.of([], [])}, [], 0, 0, 0.0).is_exact


@pytest.mark.crash
@pytest.mark.long  # eight starts of Spark
@pytest.mark.timeout(900)
def test_six_kills_leave_every_copy_as_the_source_is(java_home: str, tmp_path: Path) -> None:
    demo = str(EXAMPLES / "cdc" / "cdc.py")
    command = [sys.executable, demo, "--transactions", "700", "--folder", str(tmp_path / "demo")]
    environment = {**os.environ, "JAVA_HOME": java_home, "PYTHONPATH": str(EXAMPLES / "flights")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    value = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert value["rows"] > 100
    expected = {"kills": 6, "missing": 0, "extra": 0, "different": 0}
    assert {name: value[name] for name in expected} == expected
