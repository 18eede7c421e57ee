"""Repeat a request of a task until the brokers accept it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from twopc.errors import RoundAborted
from twopc_kafka.answers import Answer, Meaning, failure

ResultT = TypeVar("ResultT")


class NotSent(Exception):
    """A request did not leave: it has had no effect."""


class Unanswered(Exception):
    """A request may have left, and its answer did not come."""


class Patience:
    """How long to repeat a request, and the error for when that was in vain.

    Args:
        what: the request, as in "to begin transaction t at broker:9092".
        timeout_ms: how long.
        option: the sink's option that has this timeout.
    """

    def __init__(self, what: str, timeout_ms: int, option: str = "message.timeout.ms") -> None:
        self.what = what
        self._timeout_ms = timeout_ms
        self._option = option
        self._deadline = time.monotonic() + timeout_ms / 1000
        self._attempts = 0

    @property
    def is_over(self) -> bool:
        """Whether the next pause would raise."""
        return time.monotonic() > self._deadline

    def pause_s(self, reason: str) -> float:
        """How long to wait before the next attempt, when the last one failed for this reason.

        Raises:
            RoundAborted: time is up.
        """
        if self.is_over:
            bound = "" if self._option in reason else f" {self._option!r} bounds the wait."
            raise RoundAborted(f"{self.what} failed for {self._timeout_ms} ms: {reason}{bound}")
        self._attempts += 1
        return pause_s(self._attempts)


def pause_s(attempts: int) -> float:
    """How long to wait after so many attempts: from what an ending transaction takes to what an election does."""
    return float(min(1.0, 0.01 * 2**attempts))


async def until_accepted(
    patience: Patience,
    ask: Callable[[], Awaitable[tuple[Meaning, ResultT]]],
    sleep: Callable[[float], Awaitable[None]],
) -> ResultT:
    """Repeat a request until its answer is a success, and return what came with that.

    A request that was refused for now, or did not leave, is repeated. One whose answer was lost is not: the broker may
    still have it before it, and would carry it out whenever it gets to it.

    Args:
        patience: how long.
        ask: sends the request. Returns the meaning of the answer, and what came with it.
        sleep: lets other coroutines go on meanwhile.

    Raises:
        RoundAborted: time is up, the answer was lost, or the brokers refuse for a reason that a new attempt avoids.
        ConfigurationError: they refuse for good.
        OperatorRequired: they deny it.
    """
    while True:
        try:
            answer, result = await ask()
        except Unanswered as error:
            raise RoundAborted(f"{patience.what} got no answer: {error}. The batch can be run again.") from error
        except NotSent as error:
            reason = f"{error}. Is the broker up?"
        else:
            if answer.answer is Answer.DONE:
                return result
            if answer.answer is not Answer.REPEAT:
                raise failure(answer, f"{patience.what} was refused")
            reason = f"{answer.name}. {answer.advice}"
        await sleep(patience.pause_s(reason))
