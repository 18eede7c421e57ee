"""The page on proof has the sums of the reports that are kept."""

import json
from typing import Any

import pytest

from tests.support.pages import DOCS, site_script


@pytest.fixture
def script() -> Any:
    return site_script("runs")


def test_the_page_has_what_the_reports_have(script: Any) -> None:
    page = (DOCS / "proof.md").read_text(encoding="utf-8")
    assert script.filled(page) == page, "run: python docs/site/runs.py"


def test_what_is_wrong_in_a_report_is_counted(script: Any) -> None:
    ways = {
        "aqe": {"kills": 3, "lost": 1, "duplicates": 0, "told": ["1 lost"], "seconds": 2.5},
        "old": {"absent": "no"},
    }
    assert script.figures("spark", ways) == {"tried": 3, "wrong": 2, "unit": "kills", "seconds": 2.5}
    places = {"minio": {"server_kills": 4, "driver_kills": 2, "failures": 1, "told": [], "seconds": 1}}
    assert script.figures("stores", places) == {"tried": 6, "wrong": 1, "unit": "kills", "seconds": 1}


def test_the_runs_of_a_campaign_are_added_up(script: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = {
        "campaign": "storm",
        "command": "make storm",
        "commit": "abc1234",
        "tried": 1_500,
        "unit": "kills",
        "wrong": 0,
    }
    kept = tmp_path / "runs.jsonl"
    kept.write_text("".join(json.dumps({**run, "seconds": 1_800, "records": 5}) + "\n" for _ in range(2)))
    monkeypatch.setattr(script, "RUNS", kept)
    row = "| storm | 2 | 1.0 | 3,000 kills | 10 | 0 | `make storm` at abc1234 |"
    assert row in script.filled("<!-- runs -->\nold\n<!-- end -->\n")
