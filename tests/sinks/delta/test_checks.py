"""What ``twopc doctor`` reports of a table."""

import pytest

from tests.sinks.delta.conftest import Place
from tests.support.raising import raising
from twopc.checks import CheckResult, CheckStatus
from twopc.errors import Retriable
from twopc_delta.log_files import LogFiles

OF_SPARK = {"engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0"}


def reported(place: Place, about: str) -> CheckResult:
    [found] = [each for each in place.sink().check() if about in each.check]
    return found


def test_a_table_to_which_spark_writes_on_a_disk_is_reported(place: Place) -> None:
    place.put(commitInfo={**OF_SPARK, "operation": "WRITE"})
    place.append("newer")
    found = reported(place, "Spark")
    assert found.result is CheckStatus.WARNING
    assert found.detail.startswith("version 1. ")
    assert "renames its entry over it" in found.detail


@pytest.mark.parametrize("operation", ["CREATE TABLE", "SET TBLPROPERTIES"])
def test_a_table_that_spark_has_only_made_is_not(place: Place, operation: str) -> None:
    place.put(commitInfo={**OF_SPARK, "operation": operation})
    place.put(commitInfo={"timestamp": 1})
    place.append("newer")
    assert reported(place, "Spark").result is CheckStatus.PASSED


def test_what_spark_wrote_long_ago_is_not_reported(place: Place) -> None:
    place.put(commitInfo={**OF_SPARK, "operation": "WRITE"})
    for _ in range(20):
        place.put(commitInfo={"engineInfo": "delta-rs", "operation": "WRITE"})
    assert reported(place, "Spark").result is CheckStatus.PASSED


def test_a_store_that_is_away_during_a_check_has_not_answered(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = place.sink()
    monkeypatch.setattr(LogFiles, "entry", raising(OSError("timed out")))
    with pytest.raises(Retriable, match="no answer: timed out"):
        list(sink.check())


def test_a_log_that_begins_with_a_checkpoint_is_looked_at(place: Place) -> None:
    place.append("a")
    place.table().create_checkpoint()
    place.entry_path(0).unlink()
    assert reported(place, "Spark").result is CheckStatus.PASSED


def test_a_damaged_entry_that_no_reader_needs_ends_no_check(place: Place) -> None:
    place.append("a")
    place.append("b")
    place.table().create_checkpoint()
    place.entry_path(1).write_bytes(b"damaged")
    assert reported(place, "Spark").result is CheckStatus.PASSED
