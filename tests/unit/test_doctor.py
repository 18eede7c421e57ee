"""The checks as a driver calls them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import twopc
from twopc import CheckResult, CheckStatus, ConfigurationError, Retriable
from twopc.testing.memory import MemorySink, MemoryTarget


class Checked(MemorySink):
    """A sink with checks that a test chooses."""

    def __init__(self, *results: CheckResult) -> None:
        super().__init__(MemoryTarget())
        self.results = results

    def check(self) -> Iterator[CheckResult]:
        yield from self.results


REPLICAS = CheckResult.warning("replication", "1 replica", "use 3")
DENIED = CheckResult.failed_by("trial transaction", ConfigurationError("not granted"))
SILENT = CheckResult.failed_by("trial transaction", Retriable("no broker answered"))


def test_each_check_is_a_value_that_names_its_sink(tmp_path: Path) -> None:
    found = twopc.doctor({"orders": Checked(REPLICAS), "archive": Checked()}, tmp_path / "log")
    assert [(each.sink, each.check, each.result.value) for each in found.results] == [
        (None, "put-if-absent", "passed"),
        (None, "commit log", "passed"),
        ("orders", "backend", "passed"),
        ("orders", "list of open transactions", "passed"),
        ("orders", "replication", "warning"),
        ("archive", "backend", "passed"),
        ("archive", "list of open transactions", "passed"),
    ]
    assert "sink 'orders': replication   warning   1 replica; use 3" in str(found).splitlines()
    assert not (tmp_path / "log").exists()


def test_warnings_raise_nothing_and_failures_raise_with_their_status_lines() -> None:
    twopc.doctor(Checked(REPLICAS)).raise_for_failed()
    diagnosis = twopc.doctor({"orders": Checked(REPLICAS, DENIED)})
    assert [each.result for each in diagnosis.failed] == [CheckStatus.FAILED]
    with pytest.raises(ConfigurationError, match="sink 'orders': trial transaction   failed   not granted"):
        diagnosis.raise_for_failed()


def test_a_target_system_without_an_answer_is_worth_another_start_unless_something_else_failed_too() -> None:
    with pytest.raises(Retriable, match="no broker answered"):
        twopc.doctor(Checked(SILENT)).raise_for_failed()
    with pytest.raises(ConfigurationError, match="not granted"):
        twopc.doctor(Checked(SILENT, DENIED)).raise_for_failed()


class Silent:
    """A log store that does not answer: any other error than a refusal, such as one of its client's own."""

    url = "silent://log"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def slots(self) -> list[int]:
        raise self.error

    read = put_if_absent = delete = slots


@pytest.mark.parametrize("error", [OSError("no route to host"), RuntimeError("EndpointConnectionError")])
def test_a_log_store_without_an_answer_is_worth_another_start(error: Exception) -> None:
    with pytest.raises(Retriable, match=str(error)):
        twopc.doctor(Checked(), Silent(error)).raise_for_failed()  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no bucket"):
        twopc.doctor(Checked(), Silent(ConfigurationError("no bucket"))).raise_for_failed()  # type: ignore[arg-type]


def test_the_querys_own_sinks_are_as_they_were() -> None:
    sink = Checked()
    sink.bind("orders", "0123456789ab")
    assert twopc.doctor({"orders": sink}).failed == ()
    assert sink.transactional_ids.scope == "twopc.0123456789ab.orders."
