"""The pages on proof have what the reports that are kept have, and name tests that exist."""

import json
from typing import Any

import pytest

from tests.support.pages import DOCS, site_script

RUNS = site_script("runs")


def test_the_page_has_what_the_reports_have() -> None:
    page = (DOCS / "proof.md").read_text(encoding="utf-8")
    assert RUNS.filled(page) == page, "run: python docs/site/runs.py"


def test_what_is_wrong_in_a_report_is_counted() -> None:
    ways = {
        "aqe": {"kills": 3, "lost": 1, "duplicates": 0, "told": ["1 lost"], "seconds": 2.5},
        "old": {"absent": "no"},
    }
    assert RUNS.figures("spark", ways) == {"tried": 3, "wrong": 2, "unit": "kills", "seconds": 2.5}
    places = {"minio": {"server_kills": 4, "driver_kills": 2, "failures": 1, "told": [], "seconds": 1}}
    assert RUNS.figures("stores", places) == {"tried": 6, "wrong": 1, "unit": "kills", "seconds": 1}


def test_the_runs_of_a_campaign_are_added_up(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(RUNS, "RUNS", kept)
    row = "| storm | 2 | 1.0 | 3,000 kills | 10 | 0 | `make storm` at abc1234 |"
    assert row in RUNS.filled("<!-- runs -->\nold\n<!-- end -->\n")


ALONE = site_script("alone")


def test_the_page_has_the_times_of_the_kept_report() -> None:
    page = (DOCS / "internals" / "jepsen.md").read_text(encoding="utf-8")
    assert ALONE.filled(page) == page, "run: python docs/site/alone.py"


def test_each_kind_has_a_row_with_the_times_of_each_query() -> None:
    of_arrow = {"bridge": {"times": 2, "median": 1.5, "longest": 2.0}}
    of_flink = {"bridge": {"times": 2, "median": 10.0, "longest": 20.5}}
    report = {
        "alone": True,
        "queries": {"arrow": {"unavailable_alone_s": of_arrow, "recovery_alone_s": of_arrow, "records": 7}},
        "flink": {"unavailable_alone_s": of_flink, "recovery_alone_s": of_flink},
    }
    head, _, row = ALONE.table(ALONE.times(report))
    assert (
        head == "| kind | times | unavailable, `arrow` | unavailable, `flink` | recovery, `arrow` | recovery, `flink` |"
    )
    assert row == "| bridge | 2 | 1.5, 2.0 | 10.0, 20.5 | 1.5, 2.0 | 10.0, 20.5 |"


def test_a_report_whose_faults_overlapped_is_not_kept() -> None:
    with pytest.raises(SystemExit, match="--alone"):
        ALONE.times({"alone": False, "queries": {}})


REPORT = {
    "mutants": {
        "phase two is left out": {"both": 5},
        "seal vetoes nothing": {"none": 1, "specification": 1},
        "no sync": {"ledger": 2},
    },
    "unnoticed": {"no sync": "the syncs of a disk"},
    "without_traces": {"no mark": "tables that commit whole batches"},
}


TRACES = site_script("traces")


def test_each_defect_has_a_row() -> None:
    page = TRACES.filled("<!-- defects -->\nold\n<!-- end -->\n", REPORT)
    assert "| phase two is left out | 5 | | | |" in page
    assert "| seal vetoes nothing | | 1 | | 1 |" in page
    assert "| all | 5 | 1 | 2 | 1 |" in page
    assert "old" not in page


def test_each_defect_counts_once_among_the_shares() -> None:
    page = TRACES.filled("<!-- shares -->\n<!-- end -->\n", REPORT)
    assert "| in what the specification has | 2 | 50 % | specification and ledger |" in page
    assert "| in the syncs of a disk | 1 | 25 % | ledger (the trace is accepted) |" in page
    assert "| in runs with tables that commit whole batches | 1 | 25 % | ledger (no trace) |" in page
    assert "| all | 4 | 100 % | |" in page


def test_the_tables_of_a_filled_page_are_filled_in_again() -> None:
    page = TRACES.filled("<!-- shares -->\n<!-- end -->\n\n<!-- defects -->\n<!-- end -->\n", REPORT)
    assert TRACES.filled(page, REPORT) == page
