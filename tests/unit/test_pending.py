"""The pending-transaction ordered map."""

from __future__ import annotations

import pytest

from twopc import Committable
from twopc.pending import PendingTransactions

A, B, C = (Committable(name, {}) for name in "abc")


def pending(*batch_ids: int) -> PendingTransactions:
    transactions = PendingTransactions()
    for batch_id in batch_ids:
        transactions.add(batch_id, [Committable(f"t{batch_id}", {})])
    return transactions


def test_batches_are_iterated_oldest_first() -> None:
    assert list(pending(3, 4, 9)) == [3, 4, 9]


def test_a_batch_keeps_its_transactions_in_order() -> None:
    transactions = PendingTransactions()
    transactions.add(3, [C, A, B])
    transactions.add(4, [])
    assert dict(transactions) == {3: (C, A, B), 4: ()}


def test_what_is_remembered_does_not_change_with_the_callers_list() -> None:
    transactions, mine = PendingTransactions(), [A]
    transactions.add(0, mine)
    mine.append(B)
    assert transactions[0] == (A,)


@pytest.mark.parametrize("late", [2, 3, 4])
def test_a_batch_that_is_not_newer_than_every_pending_one_is_refused_and_changes_nothing(late: int) -> None:
    transactions = pending(3, 4)
    with pytest.raises(ValueError, match=f"batch {late} is not newer"):
        transactions.add(late, [B])
    assert list(transactions) == [3, 4]


def test_committing_through_a_batch_takes_every_batch_up_to_it() -> None:
    transactions = pending(3, 4, 6)
    assert transactions.through(2) == ()
    assert transactions.through(4) == (3, 4)
    assert transactions.through(5) == (3, 4)
    assert transactions.through(9) == (3, 4, 6)


def test_a_batch_that_was_passed_over_is_committed_with_the_next_one() -> None:
    transactions = pending(3, 4, 5)
    for batch_id in transactions.through(4):
        transactions.settle(batch_id)
    assert list(transactions) == [5]


def test_settling_a_batch_late_or_again_changes_nothing() -> None:
    transactions = pending(3, 4)
    transactions.settle(3)
    transactions.settle(3)
    transactions.settle(1)
    assert transactions.through(3) == ()
    assert list(transactions) == [4]


def test_batches_can_be_settled_while_they_are_iterated() -> None:
    transactions = pending(1, 2, 3)
    for batch_id in transactions:
        transactions.settle(batch_id)
    assert len(transactions) == 0


def test_looking_through_does_not_forget() -> None:
    transactions = pending(1, 2)
    transactions.through(2)
    assert len(transactions) == 2


def test_an_amended_decision_takes_the_place_of_the_first() -> None:
    transactions = pending(1, 2)
    transactions.amend(1, [B, C])
    assert dict(transactions) == {1: (B, C), 2: (Committable("t2", {}),)}
