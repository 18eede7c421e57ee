"""Health checks before the first batch: made by ``TwoPhaseCommitSink.check`` and by log stores, collected by
``twopc.doctor``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from twopc.errors import TwoPhaseCommitError
from twopc.exit_codes import code_of

PATIENCE_S = 5.0
"""How long a check is retried: shorter than a client's connection timeout, so a dead system is tried once; longer than
a broker needs to find a coordinator or end a transaction."""


class CheckStatus(Enum):
    """The result of a check. Warning: a batch can be written, but a later event could stop the query or lose
    records."""

    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check and its result. Its text is a status line.

    Attributes:
        result: passed, warning or failed.
        check: the name of the check: a noun phrase that fits every result, such as ``topic 'orders': replication``.
        detail: what was found, such as ``1 replica``. May be empty if the check passed.
        advice: what to do now, such as ``use 3``. Empty if the check passed, or if ``detail`` is an error message,
            which ends with advice itself.
        sink: the sink's name, or None for a check of the commit log. ``twopc.doctor`` fills it in.
        may_pass_later: whether the check failed without a definite answer, so that the driver may be started again.
    """

    result: CheckStatus
    check: str
    detail: str = ""
    advice: str = ""
    sink: str | None = None
    may_pass_later: bool = False

    @classmethod
    def passed(cls, check: str, detail: str = "") -> CheckResult:
        return cls(CheckStatus.PASSED, check, detail)

    @classmethod
    def warning(cls, check: str, detail: str, advice: str) -> CheckResult:
        return cls(CheckStatus.WARNING, check, detail, advice)

    @classmethod
    def failed(cls, check: str, detail: str, advice: str = "") -> CheckResult:
        return cls(CheckStatus.FAILED, check, detail, advice)

    @classmethod
    def failed_by(cls, check: str, error: Exception) -> CheckResult:
        """Return the result of a check that ended with ``error``, with its message as the detail."""
        match error:
            case TwoPhaseCommitError():
                detail = error.message
            case OSError():
                detail = str(error)
            case _:
                detail = f"{type(error).__name__}: {error}"
        return cls(CheckStatus.FAILED, check, detail, may_pass_later=not code_of(type(error)).stays_stopped)

    @classmethod
    def of(cls, check: str, call: Callable[[], object]) -> CheckResult:
        """Run a check that passes unless ``call`` raises.

        A call that gets no answer is repeated for ``PATIENCE_S``, because the target system may be starting.
        """
        from twopc.retry import until_answered  # here, because it imports the contract, which imports this module

        try:
            until_answered(check, call, patience_s=PATIENCE_S)
        except (TwoPhaseCommitError, OSError) as error:
            return cls.failed_by(check, error)
        return cls.passed(check)

    def __str__(self) -> str:
        name = self.check if self.sink is None else f"sink {self.sink!r}: {self.check}"
        return "   ".join(filter(None, (name, self.result.value, self.found)))

    @property
    def found(self) -> str:
        """The detail and the advice."""
        return "; ".join(filter(None, (self.detail, self.advice)))
