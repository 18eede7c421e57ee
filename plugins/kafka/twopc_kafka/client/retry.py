"""Retries of a task's request until the brokers accept it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from twopc.errors import RoundAborted
from twopc_kafka.answers import Meaning, WriteAnswer, failure

_OPTION = "message.timeout.ms"

ResultT = TypeVar("ResultT")


class NotSent(Exception):
    """A request was not sent, or had no effect at the broker, so it may be repeated."""


class Unanswered(Exception):
    """A request may have been sent, and no response arrived."""


def pause_s(attempts: int) -> float:
    """Return how long to wait after this many attempts: at first as long as Kafka takes to end a transaction, at most
    as long as a leader election takes."""
    return float(min(1.0, 0.01 * 2**attempts))


async def until_accepted(
    what: str,
    timeout_ms: int,
    ask: Callable[[], Awaitable[tuple[Meaning, ResultT]]],
    sleep: Callable[[float], Awaitable[None]],
) -> ResultT:
    """Repeat a request until it succeeds, and return its result.

    A request is repeated if it was not sent, or if the brokers rejected it for a reason that may pass. A request whose
    response was lost is not repeated, because the broker may still process the lost request at any later time.

    Args:
        what: the request, for messages, such as "beginning transaction t at broker:9092".
        timeout_ms: how long to repeat the request.
        ask: sends the request, and returns the meaning of the response and the result.
        sleep: waits while other coroutines run.

    Raises:
        RoundAborted: the time is up, the response was lost, or the brokers rejected the request for a reason that a new
            attempt of the task avoids.
        ConfigurationError: the brokers would reject every attempt.
        OperatorRequired: the brokers deny this principal a right.
    """
    deadline, attempts = time.monotonic() + timeout_ms / 1000, 0
    while True:
        try:
            answer, result = await ask()
        except Unanswered as error:
            raise RoundAborted(f"{what} got no answer: {error}. The batch can be run again.") from error
        except NotSent as error:
            reason = f"{error}. Is the broker up?"
        else:
            if answer.answer is WriteAnswer.DONE:
                return result
            if answer.answer is not WriteAnswer.REPEAT:
                raise failure(answer, f"{what} was refused")
            reason = f"{answer.name}. {answer.advice}"
        if time.monotonic() > deadline:
            bound = "" if _OPTION in reason else f" {_OPTION!r} bounds the wait."
            raise RoundAborted(f"{what} failed for {timeout_ms} ms: {reason}{bound}")
        attempts += 1
        await sleep(pause_s(attempts))
