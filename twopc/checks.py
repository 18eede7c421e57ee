"""Health checks before the first batch: made by ``TwoPhaseCommitSink.check``, shown by ``twopc doctor``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from twopc.errors import TwoPhaseCommitError

PATIENCE_S = 5.0
"""How long a check is retried: shorter than a client's connection timeout, so a dead system is tried once; longer than
a broker needs to find a coordinator or end a transaction."""


class CheckStatus(Enum):
    """The result of a check. Warned: a batch can be written, but a later event could stop the query or lose records."""

    PASSED = "passed"
    WARNED = "warned"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check and its result.

    Attributes:
        result: passed, warned or failed.
        what: the subject, and what was found, in a few words.
        advice: what to do now; empty if the check passed.
    """

    result: CheckStatus
    what: str
    advice: str = ""

    @classmethod
    def passed(cls, what: str) -> CheckResult:
        return cls(CheckStatus.PASSED, what)

    @classmethod
    def warned(cls, what: str, advice: str) -> CheckResult:
        return cls(CheckStatus.WARNED, what, advice)

    @classmethod
    def failed(cls, what: str, advice: str) -> CheckResult:
        return cls(CheckStatus.FAILED, what, advice)

    @classmethod
    def of(cls, what: str, call: Callable[[], object]) -> CheckResult:
        """Make ``call``: failed by the error that it raises, with its message as the advice; else passed.

        A call that gets no answer is repeated for ``PATIENCE_S``, as the target system may be starting.
        """
        from twopc.retry import until_answered  # its imports lead to the contract, which imports this module

        try:
            until_answered(what, call, patience_s=PATIENCE_S)
        except (TwoPhaseCommitError, OSError) as error:
            return cls.failed(what, error.message if isinstance(error, TwoPhaseCommitError) else str(error))
        return cls.passed(what)
