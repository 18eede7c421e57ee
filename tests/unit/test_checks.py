"""What a call that is tried tells."""

from __future__ import annotations

import pytest

from twopc import CheckResult, checks
from twopc.checks import CheckStatus
from twopc.errors import ConfigurationError, Retriable


def test_what_is_tried_fails_with_what_its_error_says_to_do() -> None:
    def refused() -> None:
        raise ConfigurationError("set it lower")

    assert CheckResult.of("it can be set", refused) == CheckResult(CheckStatus.FAILED, "it can be set", "set it lower")
    assert CheckResult.of("it can be set", list) == CheckResult(CheckStatus.PASSED, "it can be set")


def test_what_could_not_be_answered_yet_is_asked_again_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PATIENCE_S", 0.2)
    asked = []

    def answers_at(number: int) -> None:
        asked.append(number)
        if len(asked) < number:
            raise Retriable("loading")

    assert CheckResult.of("it answers", lambda: answers_at(2)).result is CheckStatus.PASSED
    assert CheckResult.of("it answers", lambda: answers_at(1_000_000)) == CheckResult.failed("it answers", "loading")


def test_a_defect_is_no_finding() -> None:
    with pytest.raises(ZeroDivisionError):
        CheckResult.of("it counts", lambda: 1 // 0)
