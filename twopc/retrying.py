"""Repeat what a target could not answer: only its definite word ends a decided transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import tenacity

from twopc.errors import Retriable
from twopc.events import CallRetried, Event
from twopc.plugins import notify

logger = logging.getLogger(__name__)


ResultT = TypeVar("ResultT")


def until_answered(
    what: str,
    call: Callable[..., ResultT],
    *arguments: object,
    tell: Callable[[Event], None] = notify,
    patience_s: float | None = None,
) -> ResultT:
    """Call until no ``Retriable`` is raised, and return the result. ``what`` names the call to a person.

    Without ``patience_s`` there is no limit: only its target's definite word ends a decided transaction.

    Raises:
        Retriable: there was no answer for ``patience_s``.
    """

    def told(state: tenacity.RetryCallState) -> None:
        reason = str(state.outcome.exception()) if state.outcome else ""
        event = CallRetried(what, state.attempt_number, state.upcoming_sleep, reason, state.seconds_since_start or 0.0)
        level = logging.ERROR if event.needs_operator else logging.WARNING
        message = "%s: no answer for %.0f s (%s), again in %.1f s"
        logger.log(level, message, what, event.waited_s, reason, event.wait_s)
        tell(event)

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Retriable),
        wait=_WAIT,
        stop=tenacity.stop_never if patience_s is None else tenacity.stop_after_delay(patience_s),
        before_sleep=told,
        reraise=True,
    )
    return retrying(call, *arguments)


_WAIT = tenacity.wait_exponential(multiplier=0.01, max=1) + tenacity.wait_random(0, 0.01)
