"""The phases of a coordinator. One table has every legal transition; an illegal one raises and changes nothing.

A test compares the diagram in ``docs/internals/architecture.md`` with this table.
"""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """What a coordinator is doing."""

    CLOSED = "closed"
    RECOVERING = "recovering"
    IDLE = "idle"
    PRE_COMMITTING = "pre-committing"
    SEALING = "sealing"
    DECIDING = "deciding"
    COMMITTING = "committing"
    SWEEPING = "sweeping"


NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.CLOSED: frozenset({Phase.RECOVERING}),
    Phase.RECOVERING: frozenset({Phase.IDLE}),
    Phase.IDLE: frozenset({Phase.PRE_COMMITTING, Phase.RECOVERING}),
    Phase.PRE_COMMITTING: frozenset({Phase.SEALING}),
    Phase.SEALING: frozenset({Phase.DECIDING}),
    Phase.DECIDING: frozenset({Phase.COMMITTING}),
    Phase.COMMITTING: frozenset({Phase.SWEEPING}),
    Phase.SWEEPING: frozenset({Phase.IDLE}),
}
"""The phases that may follow each phase. In addition, an error or a stop leads from every phase to CLOSED."""


def advance(current: Phase, following: Phase) -> Phase:
    """Return ``following`` if it is CLOSED, or ``NEXT`` allows it after ``current``. Raises RuntimeError otherwise, so
    that a defect of the coordinator does no harm."""
    if following is not Phase.CLOSED and following not in NEXT[current]:
        raise RuntimeError(f"a coordinator can't go from {current.value} to {following.value}")
    return following
