"""Errors on their way through the core: it fills in what it knows, and decides what a failed commit means."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from twopc.errors import OperatorRequired, OutcomeUnknown, Retriable, TransactionLost, TwoPhaseCommitError
from twopc.transaction import Committable


@contextlib.contextmanager
def located(**known: Any) -> Iterator[None]:
    """Fill in what is known of an error that passes. Takes the attributes of ``TwoPhaseCommitError``."""
    try:
        yield
    except TwoPhaseCommitError as error:
        error.fill_in(**known)
        raise


def worst_of(errors: Sequence[Exception]) -> Exception:
    """Return the error that is the least likely to go away by itself."""
    return max(errors, key=lambda error: (isinstance(error, OperatorRequired), not isinstance(error, Retriable)))


def verdict(error: Exception, committables: Sequence[Committable], has_copies: bool, recovered: bool) -> Exception:
    """Return what the error of a commit means, after the log was seen to have no newer coordinator.

    Args:
        error: what the commit raised.
        committables: the transactions that one call had to commit: one, or all of the sink's in a batch.
        has_copies: whether the query runs with replay copies for this sink.
        recovered: whether an earlier incarnation decided the batch, and may have asked for its commit.
    """
    meant = error
    if isinstance(error, OutcomeUnknown) and error.was_refused_at_first and not recovered:
        # This incarnation decided it, this process alone asked for its commit, and the first request was refused.
        meant = TransactionLost(f"{sentence(error)} It was never committed, so another process has rolled it back.")
    copies = [committable.replay_copy for committable in committables if committable.replay_copy]
    if isinstance(meant, TransactionLost) and copies and not has_copies:
        which = copies[0] if len(copies) == 1 else f"{copies[0]} and {len(copies) - 1} more"
        meant = TransactionLost(
            f"{sentence(meant)} There is a copy of its records, {which}: start the query again with"
            " the 'replay_copies' that it had, and they are written again from it."
        )
    if meant is not error:
        meant.__cause__ = error
    return meant


def sentence(error: TwoPhaseCommitError) -> str:
    """Return the message of an error with a full stop, so that another sentence can follow."""
    return f"{error.message.removesuffix('.')}."
