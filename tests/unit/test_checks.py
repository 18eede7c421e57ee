"""What a call that is tried tells."""

import pytest

from tests.support.raising import raising
from twopc import CheckResult, checks
from twopc.checks import CheckStatus
from twopc.errors import ConfigurationError, Retriable


def test_what_is_tried_fails_with_what_its_error_says_to_do() -> None:
    refused = raising(ConfigurationError("set it lower"))
    assert CheckResult.of("it", refused) == CheckResult(CheckStatus.FAILED, "it", "set it lower")
    assert CheckResult.of("it", list) == CheckResult(CheckStatus.PASSED, "it")


def test_what_could_not_be_answered_yet_is_asked_again_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PATIENCE_S", 0.2)
    asked = []

    def answers_at(number: int) -> None:
        asked.append(number)
        if len(asked) < number:
            raise Retriable("loading")

    assert CheckResult.of("it answers", lambda: answers_at(2)).result is CheckStatus.PASSED
    assert CheckResult.of("it answers", lambda: answers_at(1_000_000)) == CheckResult(
        CheckStatus.FAILED, "it answers", "loading", may_pass_later=True
    )


def test_a_defect_is_no_finding() -> None:
    with pytest.raises(ZeroDivisionError):
        CheckResult.of("it counts", lambda: 1 // 0)


def test_a_result_is_one_status_line() -> None:
    line = "topic 'orders': replication   warning   1 replica; use 3, min.insync.replicas=2"
    assert str(CheckResult.warning("topic 'orders': replication", "1 replica", "use 3, min.insync.replicas=2")) == line
    assert str(CheckResult.passed("trial transaction")) == "trial transaction   passed"
