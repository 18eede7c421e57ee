"""Repeat what a target could not answer: only its definite word ends a decided transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable

import tenacity

from twopc.errors import Retriable
from twopc.events import CallRetried, Event
from twopc.plugins import notify

logger = logging.getLogger(__name__)


def until_answered(
    what: str, call: Callable[..., None], *arguments: object, tell: Callable[[Event], None] = notify
) -> None:
    """Call until no ``Retriable`` is raised, without limit. ``what`` names the call to a person."""
    _retrying(_ask, what, tell, call, *arguments)


def _ask(what: str, tell: object, call: Callable[..., None], *arguments: object) -> None:  # noqa: ARG001  # told by _tell
    call(*arguments)


def _tell(state: tenacity.RetryCallState) -> None:
    what, tell = state.args[:2]
    reason = str(state.outcome.exception()) if state.outcome else ""
    logger.warning("%s: no answer (%s), again in %.1f s", what, reason, state.upcoming_sleep)
    tell(CallRetried(what, state.attempt_number, state.upcoming_sleep, reason))


_retrying = tenacity.Retrying(
    retry=tenacity.retry_if_exception_type(Retriable),
    wait=tenacity.wait_exponential(multiplier=0.01, max=1) + tenacity.wait_random(0, 0.01),
    stop=tenacity.stop_never,
    before_sleep=_tell,
    reraise=True,
)
