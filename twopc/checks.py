"""What is found out about a target before the first batch: told by ``TwoPhaseCommitSink.check``, shown by ``twopc
doctor``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from twopc.errors import TwoPhaseCommitError

PATIENCE_S = 5.0
"""Less than a client takes to find out that nobody is there, which is then not asked twice; more than a broker takes to
find who coordinates a group, or to end a transaction."""


class CheckStatus(Enum):
    """Of one examination. Warned: a batch can be written, and something that may come would stop the query or lose
    records."""

    PASSED = "passed"
    WARNED = "warned"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that was looked at.

    Attributes:
        what: was looked at, and seen, in a few words.
        advice: what to do now; empty where it passed.
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
        """Of a call that is tried: failed by the error that it raises, which says what to do; else passed.

        A call that the target system does not answer is repeated for ``PATIENCE_S``: the system may be starting.
        """
        from twopc.retry import until_answered  # its imports lead to the contract, which imports this module

        try:
            until_answered(what, call, patience_s=PATIENCE_S)
        except (TwoPhaseCommitError, OSError) as error:
            return cls.failed(what, error.message if isinstance(error, TwoPhaseCommitError) else str(error))
        return cls.passed(what)
