"""A task that was given up wakes up and writes: Pravega refuses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.support.sink_place import ROUND
from twopc import Committable, Participant
from twopc.errors import RoundAborted

if TYPE_CHECKING:
    from tests.sinks.pravega.conftest import Place

LATE = pa.record_batch({"value": ["late"] * 100})


def open_transaction(place: Place) -> Committable:
    [found] = place.sink().recover()
    return found


@pytest.mark.parametrize("ended_by", ["abort", "commit"])
@pytest.mark.parametrize("has_written", [True, False], ids=["open segment", "new segment"])
def test_what_is_written_after_the_end_of_a_transaction_is_refused_and_never_visible(
    ended_by: str, has_written: bool, place: Place
) -> None:
    before = ["a"] if has_written else []
    with pytest.raises(RoundAborted), Participant({"orders": place.sink()}, ROUND, partition=0) as participant:
        participant.write("orders", pa.record_batch({"value": before or ["a"], "key": ["k"]}))
        participant._transactions["orders"].appenders[max(participant._transactions["orders"].appenders)].flush()
        committable = open_transaction(place)
        getattr(place.sink(), ended_by)(committable)
        keys = pa.array(["k" if has_written else f"{n}" for n in range(100)])
        participant.write("orders", LATE.append_column("key", keys))
        participant.pre_commit()
    assert place.values() == (["a"] if ended_by == "commit" else [])


def test_a_vote_for_a_transaction_that_was_rolled_back_meanwhile_is_no(place: Place) -> None:
    with Participant({"orders": place.sink()}, ROUND, partition=0) as participant:
        participant.write("orders", pa.record_batch({"value": ["a"]}))
        participant._transactions["orders"].appenders.copy().popitem()[1].flush()
        place.sink().abort(open_transaction(place))
        with pytest.raises(RoundAborted, match="ABORT"):
            participant.pre_commit()
    assert place.values() == []


def test_records_that_were_not_acknowledged_do_not_count_as_pre_committed(place: Place) -> None:
    with Participant({"orders": place.sink()}, ROUND, partition=0) as participant:
        participant.write("orders", pa.record_batch({"value": ["a"]}))
        place.server.to_store.cut()
        with pytest.raises(RoundAborted, match="could not be written"):
            for _ in range(100):
                participant.write("orders", LATE)
            participant.pre_commit()
    assert list(place.sink().recover()) == []
