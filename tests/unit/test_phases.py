"""The table of phases, enumerated."""

from itertools import product

import pytest

from twopc.phases import NEXT, Phase, advance

LEGAL = {
    (Phase.CLOSED, Phase.RECOVERING),
    (Phase.RECOVERING, Phase.IDLE),
    (Phase.IDLE, Phase.PRE_COMMITTING),
    (Phase.IDLE, Phase.RECOVERING),
    (Phase.PRE_COMMITTING, Phase.SEALING),
    (Phase.SEALING, Phase.DECIDING),
    (Phase.DECIDING, Phase.COMMITTING),
    (Phase.COMMITTING, Phase.SWEEPING),
    (Phase.SWEEPING, Phase.IDLE),
} | {(phase, Phase.CLOSED) for phase in Phase}


def test_a_legal_move_is_made_and_an_illegal_one_raises_and_changes_nothing() -> None:
    table = dict(NEXT)
    for current, following in product(Phase, Phase):
        if (current, following) in LEGAL:
            assert advance(current, following) is following
        else:
            with pytest.raises(RuntimeError, match=f"from {current.value} to {following.value}"):
                advance(current, following)
    assert table == NEXT


def test_nothing_becomes_committing_but_by_deciding() -> None:
    assert [phase for phase, following in NEXT.items() if Phase.COMMITTING in following] == [Phase.DECIDING]


def test_every_phase_is_in_the_table_and_can_be_reached() -> None:
    assert set(NEXT) == set(Phase)
    reached = {Phase.CLOSED}
    for _ in Phase:
        reached |= {following for phase in reached for following in NEXT[phase]}
    assert reached == set(Phase)
