"""Repeat what a target could not answer: only its definite word ends a decided transaction."""

from __future__ import annotations

import logging
import threading
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
    given_up: threading.Event | None = None,
) -> ResultT:
    """Call until no ``Retriable`` is raised, and return the result. ``what`` names the call to a person.

    Without ``patience_s`` there is no limit: only its target's definite word ends a decided transaction.

    Raises:
        Retriable: there was no answer for ``patience_s``, or until ``given_up`` was set.
    """

    def told(state: tenacity.RetryCallState) -> None:
        reason = str(state.outcome.exception()) if state.outcome else ""
        event = CallRetried(what, state.attempt_number, state.upcoming_sleep, reason, state.seconds_since_start or 0.0)
        level = logging.ERROR if event.needs_operator else logging.WARNING
        message = "%s: no answer for %.0f s (%s), again in %.1f s"
        logger.log(level, message, what, event.waited_s, reason, event.wait_s)
        tell(event)

    given_up = given_up or threading.Event()
    stops = tenacity.stop_never if patience_s is None else tenacity.stop_after_delay(patience_s)
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Retriable),
        wait=_WAIT,
        stop=stops | tenacity.stop_when_event_set(given_up),
        sleep=tenacity.sleep_using_event(given_up),
        before_sleep=told,
        reraise=True,
    )
    return retrying(call, *arguments)


_WAIT = tenacity.wait_exponential(multiplier=0.01, max=1) + tenacity.wait_random(0, 0.01)
