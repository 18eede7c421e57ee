"""Errors on their way through the core: what it knows of each is filled in, and of several the worst is raised."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from twopc.errors import OperatorRequired, Retriable, TwoPhaseCommitError


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
