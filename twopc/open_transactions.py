"""What a sink has open in its target system: reported by ``TwoPhaseCommitSink.open_transactions``, for monitoring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """The open transactions of a sink at one moment.

    Attributes:
        count: how many are open.
        oldest_s: the age of the oldest, in seconds, not negative; 0 if none is open, None if it is not known.
        timeout_s: the age at which the target system rolls the oldest back by itself; None if it never does.
        held_back: each place, such as a partition, beyond which committed readers can't read → the position at which
            they are held back. None if the sink does not know.
    """

    count: int
    oldest_s: float | None = None
    timeout_s: float | None = None
    held_back: Mapping[str, int] | None = None
