"""A task that was given up wakes up and writes: Pravega refuses it."""

import contextlib

import pyarrow as pa
import pytest

from tests.sinks.pravega.conftest import Place
from tests.support.sink_place import ROUND
from twopc import Committable, Participant
from twopc.errors import RoundAborted

LATE = pa.record_batch({"value": ["late"] * 100})


def open_transaction(place: Place) -> Committable:
    [found] = place.sink().recover()
    return found


def flush(participant: Participant) -> None:
    for appender in participant._transactions["orders"].appenders.values():  # type: ignore[attr-defined]
        appender.flush()


def write_and_vote(participant: Participant, records: pa.RecordBatch) -> None:
    participant.write("orders", records)
    participant.pre_commit()


@pytest.mark.parametrize("ended_by", ["abort", "commit"])
@pytest.mark.parametrize("is_same_segment", [True, False], ids=["open segment", "new segment"])
def test_what_is_written_after_the_end_of_a_transaction_is_refused_and_never_visible(
    ended_by: str, is_same_segment: bool, place: Place
) -> None:
    segments = {True: "key", False: "Grüße 🐎"}  # these keys are in different halves, see test_routing
    keys = pa.array([segments[is_same_segment]] * 100)
    with Participant({"orders": place.sink()}, ROUND, partition=0) as participant:
        participant.write("orders", pa.record_batch({"value": ["a"], "key": [segments[True]]}))
        flush(participant)
        getattr(place.sink(), ended_by)(open_transaction(place))
        with pytest.raises(RoundAborted):
            write_and_vote(participant, LATE.append_column("key", keys))
    assert place.values() == (["a"] if ended_by == "commit" else [])


def test_records_that_were_not_acknowledged_do_not_count_as_pre_committed(place: Place) -> None:
    with contextlib.suppress(RoundAborted), Participant({"orders": place.sink()}, ROUND, partition=0) as participant:
        participant.write("orders", pa.record_batch({"value": ["a"]}))
        place.server.to_store.cut()
        with pytest.raises(RoundAborted, match="could not be written") as refused:
            write_and_vote(participant, LATE)
        raise refused.value
    assert list(place.sink().recover()) == []
