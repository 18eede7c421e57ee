"""The page on the model has what a report of its traces has."""

from typing import Any

import pytest

from tests.support.pages import site_script

REPORT = {
    "mutants": {
        "phase two is left out": {"both": 5},
        "seal vetoes nothing": {"none": 1, "specification": 1},
        "no sync": {"ledger": 2},
    },
    "unnoticed": {"no sync": "the syncs of a disk"},
    "without_traces": {"no mark": "tables that commit whole batches"},
}


@pytest.fixture
def script() -> Any:
    return site_script("traces")


def test_each_defect_has_a_row(script: Any) -> None:
    page = script.filled("<!-- defects -->\nold\n<!-- end -->\n", REPORT)
    assert "| phase two is left out | 5 | | | |" in page
    assert "| seal vetoes nothing | | 1 | | 1 |" in page
    assert "| all | 5 | 1 | 2 | 1 |" in page
    assert "old" not in page


def test_each_defect_counts_once_among_the_shares(script: Any) -> None:
    page = script.filled("<!-- shares -->\n<!-- end -->\n", REPORT)
    assert "| in what the specification has | 2 | 50 % | specification and ledger |" in page
    assert "| in the syncs of a disk | 1 | 25 % | ledger (the trace is accepted) |" in page
    assert "| in runs with tables that commit whole batches | 1 | 25 % | ledger (no trace) |" in page
    assert "| all | 4 | 100 % | |" in page


def test_the_tables_of_a_filled_page_are_filled_in_again(script: Any) -> None:
    page = script.filled("<!-- shares -->\n<!-- end -->\n\n<!-- defects -->\n<!-- end -->\n", REPORT)
    assert script.filled(page, REPORT) == page
