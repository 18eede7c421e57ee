"""Processes are killed with SIGKILL, and others settle what they left (invariants 2, 4 and 5)."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.pravega.conftest import Place
from tests.sinks.pravega.test_late_writes import write_and_vote
from tests.support.killed_writer import AFTER, BEFORE, VALUES, killed_writer
from tests.support.sink_place import ROUND
from twopc import Committable, Participant
from twopc.errors import Retriable, RoundAborted
from twopc.retry import until_answered
from twopc_pravega import controller as controller_module
from twopc_pravega import segments

pytestmark = pytest.mark.crash


def written(place: Place, when: str = AFTER) -> Committable | None:
    return killed_writer("pravega", place.options, when, place.prefix)


def answered(call: Callable[..., Any], *arguments: object) -> Any:
    return until_answered("a test", call, *arguments, patience_s=90)


def test_what_a_writer_pre_committed_before_its_kill_outlives_the_cluster_and_is_committed_by_another_process(
    place: Place,
) -> None:
    committable = written(place)
    assert committable is not None
    place.server.kill()
    with pytest.raises(Retriable):
        place.sink()
    place.server.start()
    sink = place.unbound()
    sink.bind("orders", "log")
    answered(sink.open)
    [found] = answered(lambda: [*sink.recover()])
    assert found.is_same_transaction(committable)
    assert answered(sink.seal, [committable], 0.0) == [committable]
    assert place.values() == []
    for _ in range(2):
        answered(sink.commit, committable)
    answered(sink.complete, 7, [committable])
    assert sorted(place.values()) == sorted(VALUES)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_what_a_killed_writer_left_undecided_is_found_and_rolled_back(when: str, place: Place) -> None:
    written(place, when)
    sink = place.sink()
    [found] = sink.recover()
    sink.abort(found)
    assert list(sink.recover()) == []
    assert place.values() == []


def test_a_commit_whose_answer_was_lost_is_repeated_and_counts_once(place: Place) -> None:
    committable = place.pre_commit(VALUES)
    assert place.admin.commit(controller_module.Txn.from_json(committable.handle))
    place.server.kill()
    place.server.start()
    answered(place.sink().commit, committable)
    assert sorted(place.values()) == sorted(VALUES)


def test_a_cluster_that_stands_still_is_in_doubt_and_answers_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, committable = place.sink(), place.pre_commit(VALUES)
    monkeypatch.setattr(controller_module, "ANSWER_TIMEOUT_S", 1.0)
    place.server.pause()
    try:
        for call in (
            lambda: sink.commit(committable),
            lambda: [*sink.recover()],
            lambda: sink.seal([committable], 0.0),
        ):
            with pytest.raises(Retriable, match="DEADLINE_EXCEEDED"):
                call()
    finally:
        place.server.resume()
    answered(sink.commit, committable)
    assert sorted(place.values()) == sorted(VALUES)


def test_a_task_whose_segment_store_is_killed_votes_no_and_its_batch_can_be_run_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MOVE_PATIENCE_S", 0.0)
    with Participant({"orders": place.sink()}, ROUND, partition=0) as participant:
        participant.write("orders", pa.record_batch({"value": VALUES}))
        place.server.store.kill()
        with pytest.raises(RoundAborted):
            write_and_vote(participant, pa.record_batch({"value": VALUES}))
        place.server.start()
    monkeypatch.undo()
    sink = place.sink()
    for found in answered(lambda: [*sink.recover()]):
        answered(sink.abort, found)
    answered(sink.commit, place.pre_commit(VALUES, partition=1))
    assert sorted(place.values()) == sorted(VALUES)
