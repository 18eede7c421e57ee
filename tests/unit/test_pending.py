"""The pending-transaction ordered map."""

import pytest

from twopc import Committable
from twopc.pending import PendingTransactions

A, B, C = (Committable(name, {}) for name in "abc")


def pending(*batch_ids: int) -> PendingTransactions:
    transactions = PendingTransactions()
    for batch_id in batch_ids:
        transactions.add(batch_id, {"x": [Committable(f"t{batch_id}", {})], "y": []})
    return transactions


def test_batches_are_iterated_oldest_first() -> None:
    assert list(pending(3, 4, 9)) == [3, 4, 9]


def test_a_batch_keeps_its_transactions_in_order() -> None:
    transactions = PendingTransactions()
    transactions.add(3, {"x": [C, A, B], "y": []})
    assert transactions[3] == {"x": (C, A, B), "y": ()}


def test_what_is_remembered_does_not_change_with_the_callers_list() -> None:
    transactions, mine = PendingTransactions(), [A]
    transactions.add(0, {"x": mine})
    mine.append(B)
    assert transactions[0] == {"x": (A,)}


@pytest.mark.parametrize("late", [2, 3, 4])
def test_a_batch_that_is_not_newer_than_every_pending_one_is_refused_and_changes_nothing(late: int) -> None:
    transactions = pending(3, 4)
    with pytest.raises(ValueError, match=f"batch {late} is not newer"):
        transactions.add(late, {"x": [B]})
    assert list(transactions) == [3, 4]


def test_a_sink_sees_its_own_part_of_each_batch_that_it_has_not_completed() -> None:
    transactions = pending(3, 4)
    seen_by_x, seen_by_y = transactions.of("x"), transactions.of("y")
    transactions.complete(3, "x")
    assert dict(seen_by_x) == {4: (Committable("t4", {}),)}
    assert dict(seen_by_y) == {3: (), 4: ()}
    assert (3 in seen_by_x, len(seen_by_x)) == (False, 1)


def test_a_batch_is_pending_until_every_sink_has_completed_it() -> None:
    transactions = pending(3, 4)
    transactions.complete(3, "x")
    with pytest.raises(AssertionError):
        transactions.settle(3)
    transactions.complete(3, "y")
    transactions.settle(3)
    assert list(transactions) == [4]


def test_batches_can_be_settled_while_they_are_iterated() -> None:
    transactions = pending(1, 2, 3)
    for batch_id in transactions:
        transactions.complete(batch_id, "x")
        transactions.complete(batch_id, "y")
        transactions.settle(batch_id)
    assert len(transactions) == 0


def test_an_amended_decision_takes_the_place_of_the_first() -> None:
    transactions = pending(1, 2)
    transactions.amend(1, "x", [B, C])
    assert dict(transactions.of("x")) == {1: (B, C), 2: (Committable("t2", {}),)}
