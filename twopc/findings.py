"""What is found out about a target before the first batch: told by ``TwoPhaseCommitSink.examine``, shown by ``twopc
doctor``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import tenacity

from twopc.errors import Retriable, TwoPhaseCommitError

PATIENCE_S = 5.0
"""Less than a client takes to find out that nobody is there, which is then not asked twice; more than a broker takes to
find who coordinates a group, or to end a transaction."""

PAUSE_S = 0.1


class Result(Enum):
    """Of one examination. Warned: a batch can be written, and something that may come would stop the query or lose
    records."""

    PASSED = "passed"
    WARNED = "warned"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: was looked at, and seen, in a few words.
        advice: what to do now; empty where it passed.
    """

    result: Result
    what: str
    advice: str = ""

    @classmethod
    def passed(cls, what: str) -> Finding:
        return cls(Result.PASSED, what)

    @classmethod
    def warned(cls, what: str, advice: str) -> Finding:
        return cls(Result.WARNED, what, advice)

    @classmethod
    def failed(cls, what: str, advice: str) -> Finding:
        return cls(Result.FAILED, what, advice)

    @classmethod
    def of(cls, what: str, call: Callable[[], object]) -> Finding:
        """Of a call that is tried: failed by the error that it raises, which says what to do; else passed.

        What a target could not answer is asked again for a while, and observers get a ``CallRetried``: it may be about
        to begin.
        """
        from twopc.events import CallRetried  # both import the contract, which imports this module
        from twopc.plugins import notify

        def told(state: tenacity.RetryCallState) -> None:
            reason = str((state.outcome and state.outcome.exception()) or "")
            notify(CallRetried(what, state.attempt_number, PAUSE_S, reason, state.seconds_since_start or 0.0))

        again = tenacity.retry_if_exception_type(Retriable)
        wait, stop = tenacity.wait_fixed(PAUSE_S), tenacity.stop_after_delay(PATIENCE_S)
        try:
            tenacity.Retrying(retry=again, wait=wait, stop=stop, before_sleep=told, reraise=True)(call)
        except (TwoPhaseCommitError, OSError) as error:
            return cls.failed(what, str(error))
        return cls.passed(what)
