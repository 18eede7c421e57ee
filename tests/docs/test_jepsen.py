"""The page on three brokers has the times of the report that is kept."""

from typing import Any

import pytest

from tests.support.pages import DOCS, site_script


@pytest.fixture
def script() -> Any:
    return site_script("alone")


def test_the_page_has_the_times_of_the_kept_report(script: Any) -> None:
    page = (DOCS / "internals" / "jepsen.md").read_text(encoding="utf-8")
    assert script.filled(page) == page, "run: python docs/site/alone.py"


def test_each_kind_has_a_row_with_the_times_of_each_query(script: Any) -> None:
    of_arrow = {"bridge": {"times": 2, "median": 1.5, "longest": 2.0}}
    of_flink = {"bridge": {"times": 2, "median": 10.0, "longest": 20.5}}
    report = {
        "alone": True,
        "queries": {"arrow": {"unavailable_alone_s": of_arrow, "recovery_alone_s": of_arrow, "records": 7}},
        "flink": {"unavailable_alone_s": of_flink, "recovery_alone_s": of_flink},
    }
    head, _, row = script.table(script.times(report))
    assert (
        head == "| kind | times | unavailable, `arrow` | unavailable, `flink` | recovery, `arrow` | recovery, `flink` |"
    )
    assert row == "| bridge | 2 | 1.5, 2.0 | 10.0, 20.5 | 1.5, 2.0 | 10.0, 20.5 |"


def test_a_report_whose_faults_overlapped_is_not_kept(script: Any) -> None:
    with pytest.raises(SystemExit, match="--alone"):
        script.times({"alone": False, "queries": {}})
