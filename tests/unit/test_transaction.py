"""A committable names exactly one transaction; a sink travels without what only the coordinator knows."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twopc import Committable
from twopc.testing import MemorySink, MemoryTarget
from twopc.transaction import Fingerprint, JsonValue


@pytest.mark.parametrize(
    ("mine", "listed", "same"),
    [
        ({}, {}, True),
        ({"epoch": 3}, {"epoch": 3}, True),
        ({"epoch": 3}, {"epoch": 4}, False),
        ({"epoch": 3, "producer": 7}, {"epoch": 3}, True),  # a listing tells less than a participant knows
        ({"epoch": 3, "producer": 7}, {"epoch": 3, "producer": 8}, False),
        ({"epoch": 3}, {"state": "ongoing"}, True),
    ],
)
def test_a_name_used_again_is_another_transaction_when_any_part_that_both_know_differs(
    mine: dict[str, JsonValue], listed: dict[str, JsonValue], same: bool
) -> None:
    one, other = Committable("t", mine, 5), Committable("t", listed)
    assert one.is_same_transaction(other) is same
    assert other.is_same_transaction(one) is same


def test_another_name_is_another_transaction_whatever_the_handle() -> None:
    assert not Committable("t", {"epoch": 3}).is_same_transaction(Committable("u", {"epoch": 3}))


def test_a_fingerprint_survives_a_round_trip_through_json_and_nothing_else_is_taken_for_one() -> None:
    committable = Committable("t", {}, 3, fingerprint=Fingerprint(2, 2**64 - 1))
    value = json.loads(json.dumps(committable.to_json()))
    assert Committable.from_json(value) == committable
    for wrong in ("ffffffffffffffff", [2], [-1, "ffffffffffffffff"], [2, "ff"], ["2", "ffffffffffffffff"], [2, 3]):
        with pytest.raises(TypeError, match="fingerprint"):
            Committable.from_json(value | {"fingerprint": wrong})


@given(st.text(), st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()), st.integers(0))
def test_a_committable_survives_a_round_trip_through_json(
    name: str, handle: dict[str, JsonValue], records: int
) -> None:
    for committable in (Committable(name, handle, records, bytes=records), Committable(name, handle)):
        assert Committable.from_json(json.loads(json.dumps(committable.to_json()))) == committable


class Portable(MemorySink):
    """Without its target, which has a lock, a sink in memory can travel."""

    def __init__(self) -> None:
        super().__init__(MemoryTarget(lock=None))  # type: ignore[arg-type]


def test_what_is_pending_does_not_travel_to_a_participant() -> None:
    sink = Portable()
    sink.bind("a", "log")
    sink.pending = {0: (Committable("twopc.log.a.1.0.0.0.0", {"offsets": list(range(1000))}),)}
    twin = pickle.loads(pickle.dumps(sink))  # noqa: S301  # our own bytes
    assert twin.transactional_ids == sink.transactional_ids
    assert not hasattr(twin, "pending")
    assert len(sink.pending) == 1
