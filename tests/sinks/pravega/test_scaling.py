"""A stream is scaled while a transaction of it is open."""

from collections import Counter

import pyarrow as pa

from tests.sinks.pravega.conftest import Place
from tests.support.sink_place import ROUND
from twopc import Participant, Round

KEYS = [f"{n % 5}" for n in range(100)]
VALUES = [f"{n % 5}:{n}" for n in range(100)]


def test_a_transaction_that_was_pre_committed_before_the_stream_was_scaled_is_committed_once(place: Place) -> None:
    before = place.pre_commit(pa.record_batch({"value": VALUES, "key": KEYS}))
    place.admin.scale(place.stream, 4)
    after = place.pre_commit(["after"], Round(1, 1))
    sink = place.sink()
    assert sink.seal([before], 0.0) == [before]
    for _ in range(2):
        sink.commit(before)
    sink.commit(after)
    assert Counter(place.values()) == Counter([*VALUES, "after"])


def test_a_task_goes_on_writing_while_the_stream_is_scaled(place: Place) -> None:
    with Participant({"orders": place.sink()}, ROUND, partition=0) as participant:
        participant.write("orders", pa.record_batch({"value": VALUES[:30], "key": KEYS[:30]}))
        place.admin.scale(place.stream, 3)
        participant.write("orders", pa.record_batch({"value": VALUES[30:], "key": KEYS[30:]}))
        committable = participant.pre_commit()["orders"]
    place.admin.scale(place.stream, 2)
    place.sink().commit(committable)
    assert Counter(place.values()) == Counter(VALUES)
    for events in place.admin.events(place.stream).values():
        for key in range(5):
            numbers = [int(event.decode().split(":")[1]) for event in events if event.startswith(b"%d:" % key)]
            assert numbers == sorted(numbers)


def test_a_transaction_that_was_open_when_the_stream_was_scaled_can_be_rolled_back(place: Place) -> None:
    committable = place.pre_commit(["a"])
    place.admin.scale(place.stream, 3)
    sink = place.sink()
    [found] = sink.recover()
    sink.abort(found)
    assert found.is_same_transaction(committable)
    assert list(sink.recover()) == []
    assert place.values() == []
