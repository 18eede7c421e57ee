"""A coordinator with the Kafka sink: beside a newer one, and beside a broker that comes and goes."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.incarnations import swept_by
from tests.support.observing import hearing
from tests.support.phase_one import writes
from twopc import Coordinator, Round
from twopc.errors import Fenced, Retriable, RoundAborted
from twopc.events import CallRetried, Event, PhaseEntered
from twopc.participant import Vote
from twopc.phases import Phase
from twopc_kafka.client import control
from twopc_kafka.writers import librdkafka as writer
from twopc_kafka_broker import KafkaBroker

PATIENCE_S = 200.0
"""Longer than a killed broker may take to answer again."""


@dataclass
class Query:
    """One driver of the query: a coordinator, its sink, and what it writes."""

    coordinator: Coordinator
    sink: Any
    value: str

    def run(self, batch_id: int, before_voting: Callable[[list[Vote]], None] = lambda _: None) -> None:
        def phase_one(round: Round) -> list[Vote]:
            votes = [*writes({"orders": self.sink}, {"value": [self.value]})(round)]
            before_voting(votes)
            return votes

        self.coordinator.run(batch_id, phase_one)


@pytest.fixture
def start(make_sink: Any, tmp_path: Path) -> Callable[[Any, str], Query]:
    def make(topic: Any, value: str) -> Query:
        sink = make_sink(topic, log_id=None)
        coordinator = Coordinator({"orders": sink}, str(tmp_path / "log"), owner="query", start_timeout_s=PATIENCE_S)
        return Query(coordinator, sink, value)

    return make


@contextmanager
def restarts(broker: KafkaBroker) -> Iterator[Callable[[], None]]:
    """A call that starts the broker again, in a thread; why a broker does not start is raised at the end."""
    started: list[Future[None]] = []
    with ThreadPoolExecutor(1) as threads:
        try:
            yield lambda: started.append(threads.submit(broker.start))
        finally:
            for start in started:
                start.result()


# Two drivers on one log (invariants 3 and 5). -------------------------------------------------------------------------


def test_an_older_coordinator_that_is_about_to_decide_is_fenced_and_nothing_of_it_becomes_visible(
    topic: Any, start: Any
) -> None:
    old, new = start(topic, "old"), start(topic, "new")
    entered = 0

    def let_the_new_one_run(event: Event) -> None:
        nonlocal entered
        if isinstance(event, PhaseEntered) and (event.phase, event.batch_id) == (Phase.DECIDING, 0):
            entered += 1
            if entered == 1:
                new.run(0)

    with hearing(let_the_new_one_run), pytest.raises(Fenced):
        old.run(0)
    assert entered == 2
    topic.becomes(["new"])
    assert topic.has_no_open_transaction()


def test_an_older_coordinator_whose_transactions_a_newer_one_swept_decides_nothing(topic: Any, start: Any) -> None:
    old, new = start(topic, "old"), start(topic, "new")
    with pytest.raises((Fenced, RoundAborted)):
        old.run(0, before_voting=lambda _: new.run(0))
    topic.becomes(["new"])
    assert topic.has_no_open_transaction()


def test_late_aborts_and_sweeps_of_an_older_coordinator_leave_the_newer_ones_transactions_alone(
    topic: Any, start: Any
) -> None:
    old, new = start(topic, "old"), start(topic, "new")

    def the_old_one_wakes_up(votes_of_old: list[Vote], votes_of_new: list[Vote]) -> None:
        names = [votes[0]["orders"].transaction_id for votes in (votes_of_old, votes_of_new)]
        assert names[0] != names[1]  # on one machine, but that of the old one was rolled back
        old.sink.abort(votes_of_old[0]["orders"])
        with pytest.raises(Fenced):
            swept_by(old.coordinator)

    def the_new_one_takes_over(votes_of_old: list[Vote]) -> None:
        new.run(0, before_voting=lambda votes_of_new: the_old_one_wakes_up(votes_of_old, votes_of_new))

    with pytest.raises((Fenced, RoundAborted)):
        old.run(0, before_voting=the_new_one_takes_over)
    topic.becomes(["new"])
    assert topic.has_no_open_transaction()


# A broker that comes and goes (invariant 4). --------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.crash
def test_what_was_pre_committed_before_the_broker_was_killed_is_committed_after_its_restart(
    second_broker: Any, make_topic: Any, make_sink: Any, pre_commit: Any, wait: Any
) -> None:
    topic = make_topic(on=second_broker.broker)
    committable = pre_commit(make_sink(topic), ["a"])
    second_broker.broker.kill()
    second_broker.broker.start()
    wait.repeated(lambda: make_sink(topic).commit(committable))
    topic.becomes(["a"])


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.advice("…: no answer… for … s (…), again in … s")
def test_a_query_that_is_started_while_the_broker_is_down_goes_on_when_it_is_up(
    second_broker: Any, make_topic: Any, start: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CONNECT_TIMEOUT_MS", 500)
    topic = make_topic(on=second_broker.broker)
    second_broker.broker.kill()
    retried: list[CallRetried] = []
    query = start(topic, "a")
    with restarts(second_broker.broker) as restart:

        def restart_when_told(event: Event) -> None:
            if isinstance(event, CallRetried):
                retried.append(event)
                if len(retried) == 1:
                    restart()

        with hearing(restart_when_told):
            query.run(0)
    assert {event.what for event in retried} >= {"look at the target of sink 'orders'"}
    assert re.search(r"look at the target of sink 'orders': no answer for \d+ s \(no broker answered at ", caplog.text)
    topic.becomes(["a"])


@pytest.mark.long
@pytest.mark.crash
def test_a_participant_that_can_not_roll_back_says_that_nobody_answers(
    second_broker: Any, make_topic: Any, make_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "ABORT_TIMEOUT_S", 0.5)
    topic = make_topic(on=second_broker.broker)
    live = writer.Writer(make_sink(topic)._options, f"live-{topic.name}")
    live.write(pa.record_batch({"value": ["a"]}))
    live.finish()
    second_broker.broker.kill()
    try:
        with pytest.raises(Retriable, match=rf"live-{topic.name} could not be rolled back.*sweep"):
            live.abort()
    finally:
        second_broker.broker.start()


@pytest.mark.long
@pytest.mark.crash
def test_a_commit_is_repeated_until_the_broker_is_back_and_the_observer_is_told(
    second_broker: Any, make_topic: Any, start: Any
) -> None:
    topic = make_topic(on=second_broker.broker)
    retried: list[CallRetried] = []
    with restarts(second_broker.broker) as restart:

        def kill_and_restart(event: Event) -> None:
            if isinstance(event, PhaseEntered) and (event.phase, event.batch_id) == (Phase.COMMITTING, 0):
                second_broker.broker.kill()
            elif isinstance(event, CallRetried) and "commit of" in event.what:  # not of a restart before
                retried.append(event)
                if len(retried) == 1:
                    restart()

        with hearing(kill_and_restart):
            start(topic, "a").run(0)
    assert "batch 0 is decided; commit of " in retried[0].what
    assert [event.attempt for event in retried[:2]] == [1, 2][: len(retried)]
    topic.becomes(["a"])
