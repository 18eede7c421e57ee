"""Errors on their way through the core, which fills in what it knows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from twopc.errors import OperatorRequired, Refused, Retriable, RoundAborted, TwoPhaseCommitError


@contextlib.contextmanager
def located(**known: Any) -> Iterator[None]:
    """Fill in what is known of an error that passes. Takes the attributes of ``TwoPhaseCommitError``."""
    try:
        yield
    except TwoPhaseCommitError as error:
        error.fill_in(**known)
        raise


Kind: TypeAlias = "type[Exception] | tuple[type[Exception], ...]"


@contextlib.contextmanager
def mapped(kind: Kind, failed: Callable[..., Exception], *what: Any) -> Iterator[None]:
    """Raise ``failed(error, *what)`` for an error of a target system's client."""
    try:
        yield
    except kind as error:
        raise failed(error, *what) from error


def worst_of(errors: Sequence[Exception]) -> Exception:
    """Return the error that is the least likely to go away by itself."""
    return max(errors, key=lambda error: (isinstance(error, OperatorRequired), not isinstance(error, Retriable)))


def sentence(error: TwoPhaseCommitError) -> str:
    """Return the message of an error with a full stop, so that another sentence can follow."""
    return f"{error.message.removesuffix('.')}."


@contextlib.contextmanager
def decided_batch(batch_id: int) -> Iterator[None]:
    """Upholds: no error after the decision means that the batch is not decided."""
    try:
        yield
    except (Refused, RoundAborted) as error:
        raise OperatorRequired(
            f"batch {batch_id} is decided, and can't be finished now: {sentence(error)} Correct that and start again:"
            " the next start goes on with it.",
            sink=error.sink,
            batch_id=batch_id,
            transaction_id=error.transaction_id,
        ) from error
