"""What a commit reports, and what keeps a transaction open until then."""

import time
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.sinks.pravega.conftest import Place
from tests.support.sink_place import ROUND
from tests.support.waiting import until
from twopc import Committable, Participant, Round
from twopc.errors import ConfigurationError, CorruptLog, OutcomeUnknown, Retriable, RoundAborted, TransactionLost
from twopc_pravega import sink as sink_module
from twopc_pravega.controller import Controller, State

SHORT_S = 10
"""The shortest lease that a controller grants."""


def end_of_lease(place: Place, committable: Committable) -> None:
    """Return when the controller has rolled a transaction back, whose lease it has just got."""
    until(lambda: place.state(committable) is State.ABORTED)


def test_a_transaction_whose_lease_has_ended_is_vetoed_and_a_decided_one_is_lost(place: Place) -> None:
    committable = place.pre_commit(["a"], lease_s=SHORT_S)
    end_of_lease(place, committable)
    sink = place.sink(lease_s=SHORT_S)
    with pytest.raises(RoundAborted, match=r"ABORTED.*lease_s"):
        sink.seal([committable], 0.0)
    with pytest.raises(TransactionLost, match="its lease of 10 s"):
        sink.commit(committable)
    assert place.values() == []
    assert list(sink.recover()) == []


def test_seal_gives_a_new_lease(place: Place) -> None:
    sink = place.sink(lease_s=SHORT_S)
    sealed = place.pre_commit(["a"], lease_s=SHORT_S)
    clock = place.pre_commit(["b"], partition=1, lease_s=SHORT_S)
    late = place.pre_commit(["c"], partition=2, lease_s=SHORT_S)
    halfway = time.monotonic() + SHORT_S / 2
    until(lambda: time.monotonic() > halfway)
    sink.seal([sealed], 0.0)
    end_of_lease(place, clock)
    end_of_lease(place, late)
    assert place.state(sealed) is State.OPEN
    sink.commit(sealed)
    assert place.values() == ["a"]


def test_a_task_that_writes_for_longer_than_its_lease_keeps_its_transaction(place: Place) -> None:
    values: list[str] = []
    with Participant({"orders": place.sink(lease_s=SHORT_S)}, ROUND, partition=0) as participant:
        clock = place.pre_commit(["clock"], partition=1, lease_s=SHORT_S)
        while place.state(clock) is not State.ABORTED:
            values.append(str(len(values)))
            participant.write("orders", pa.record_batch({"value": [values[-1]]}))
            time.sleep(0.1)
        committable = participant.pre_commit()["orders"]
    place.sink().commit(committable)
    assert sorted(place.values()) == sorted(values)


def test_a_task_that_is_silent_for_longer_than_its_lease_votes_no(place: Place) -> None:
    with Participant({"orders": place.sink(lease_s=SHORT_S)}, ROUND, partition=0) as participant:
        participant.write("orders", pa.record_batch({"value": ["a"]}))
        [found] = place.sink().recover()
        end_of_lease(place, found)
        with pytest.raises(RoundAborted):
            participant.pre_commit()


def test_a_lease_that_the_controller_does_not_grant_is_refused_by_its_option(place: Place) -> None:
    sink = place.sink(lease_s=601)
    with pytest.raises(ConfigurationError, match="max value is 600000") as refused:
        sink.begin(sink.transactional_ids.allocate(Round(1, 0), partition=0))
    assert refused.value.option == "lease_s"
    [_, failed] = sink.check()
    assert "lease_s" in failed.found


def test_a_transaction_that_the_controller_does_not_know_has_an_unknown_outcome(place: Place) -> None:
    committable = place.pre_commit(["a"])
    other = replace(committable, handle={**committable.handle, "txn": str(uuid.uuid4())})
    with pytest.raises(OutcomeUnknown, match="a day after"):
        place.sink().commit(other)
    gone = replace(committable, handle={**committable.handle, "stream": "another"})
    with pytest.raises(OutcomeUnknown):
        place.sink().commit(gone)


def test_a_commit_returns_when_readers_see_the_records(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller grants a commit before it takes effect."""
    committable = place.pre_commit(["a"])
    states = iter([State.OPEN, State.COMMITTING, State.COMMITTING, State.COMMITTED])
    monkeypatch.setattr(Controller, "state", lambda *_: next(states))
    place.sink().commit(committable)
    assert next(states, None) is None


@pytest.mark.advice("and the controller reports it as")
def test_a_commit_that_takes_too_long_is_repeated(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    committable = place.pre_commit(["a"])
    monkeypatch.setattr(sink_module, "VISIBLE_PATIENCE_S", 0.2)
    with monkeypatch.context() as patched:
        patched.setattr(Controller, "state", lambda *_: State.COMMITTING)
        with pytest.raises(Retriable, match="COMMITTING"):
            place.sink().commit(committable)
    place.sink().commit(committable)
    assert place.values() == ["a"]


def test_a_commit_that_is_not_granted_is_judged_by_the_state(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    committable = place.pre_commit(["a"])
    monkeypatch.setattr(Controller, "commit", lambda *_: False)
    with pytest.raises(Retriable, match="OPEN"):
        place.sink().commit(committable)


def test_the_stream_of_a_decided_transaction_is_the_one_that_it_was_written_to(place: Place) -> None:
    committable = place.pre_commit(["a"])
    place.admin.create_stream(replace(place.stream, name="other"))
    place.sink(stream=f"{place.stream.scope}/other").commit(committable)
    assert place.values() == ["a"]


@pytest.mark.parametrize("handle", [{}, {"scope": "a", "stream": "b", "txn": "c"}, {"scope": 1, "stream": 2, "txn": 3}])
def test_a_handle_that_names_no_transaction_is_an_error_of_the_log(handle: dict[str, str], place: Place) -> None:
    name = place.pre_commit(["a"]).transaction_id
    for call in (place.sink().commit, place.sink().abort):
        with pytest.raises(CorruptLog, match=name):
            call(Committable(name, handle))


def test_a_stream_that_does_not_exist_is_refused(place: Place) -> None:
    sink = place.unbound(stream=f"{place.stream.scope}/nowhere")
    with pytest.raises(ConfigurationError, match="does not exist"):
        sink.validate(pa.schema({"value": pa.string()}))
    sink.bind("orders", "log")
    with pytest.raises(ConfigurationError, match="does not exist"):
        sink.open()
    with pytest.raises(ConfigurationError, match="does not exist"):
        sink.begin(sink.transactional_ids.allocate(ROUND, partition=0))
