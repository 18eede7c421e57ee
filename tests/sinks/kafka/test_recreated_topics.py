"""A topic that is deleted, and maybe created again, while there is a transaction with records in it."""

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.sinks.kafka.writing import written
from tests.support.observing import Killed, killed
from tests.support.phase_one import writes
from twopc import Committable, Coordinator, Round, Vote
from twopc.errors import OutcomeUnknown, Retriable, RoundAborted, TransactionLost
from twopc_kafka import KafkaSink
from twopc_kafka.client.leaders import Leaders
from twopc_kafka.options import WRITERS

pytestmark = pytest.mark.in_turn("writer")


@pytest.mark.in_turn("by")
@pytest.mark.in_turn("is_first")
@pytest.mark.in_turn("again")
@pytest.mark.parametrize("by", ["option", "column"])
@pytest.mark.parametrize("is_first", [True, False], ids=["the first", "a later one"])
@pytest.mark.parametrize("again", [True, False], ids=["created-again", "only-deleted"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_batch_whose_topic_is_deleted_while_it_is_written_fails_before_its_decision(
    writer: str, again: bool, is_first: bool, by: str, topic: Any, make_sink: Any, kafka_broker: Any, tmp_path: Path
) -> None:
    named = {"topic": [topic.name]} if by == "column" else {}
    sink = make_sink(topic, log_id=None, writer=writer, topic=None if named else topic.name)

    def phase_one(*values: str) -> Any:
        return writes({"orders": sink}, *({"value": [value], **named} for value in values))

    def deleted_amid(round: Round) -> Iterator[Vote]:
        yield from phase_one("gone")(round)
        topic.delete()
        if again:
            kafka_broker.create_topic(topic.name)

    with Coordinator({"orders": sink}, str(tmp_path), owner="query") as coordinator:
        if not is_first:
            coordinator.run(0, phase_one("before"))
        with pytest.raises(RoundAborted, match=rf"topic '{topic.name}' was deleted while the batch was written"):
            coordinator.run(int(not is_first), deleted_amid)
        if not again:
            kafka_broker.create_topic(topic.name)
        assert topic.visible() == []
        coordinator.run(int(not is_first), phase_one("after"))
    assert topic.visible() == ["after"]


def test_a_topic_that_is_created_again_between_two_batches_fails_neither(
    topic: Any, make_sink: Any, recreate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twopc_kafka.sink.METADATA_MAX_AGE_S", 0.0)  # as if the query had rested
    sink = make_sink(topic, log_id=None)

    with Coordinator({"orders": sink}, str(tmp_path), owner="query") as coordinator:
        coordinator.run(0, writes({"orders": sink}, {"value": ["0"]}))
        recreate(topic)
        coordinator.run(1, writes({"orders": sink}, {"value": ["1"]}))
    assert topic.visible() == ["1"]


def test_a_coordinator_in_another_process_than_the_one_before_the_tasks_sees_it_too(
    topic: Any, make_sink: Any, recreate: Any
) -> None:
    """As with ``format("twopc")``: what was known before the tasks travels with their votes."""
    before_tasks = make_sink(topic)
    in_task: KafkaSink = pickle.loads(pickle.dumps(before_tasks))  # noqa: S301  # our own
    vote = written(in_task, "gone")
    recreate(topic)
    with pytest.raises(RoundAborted, match="was deleted while the batch was written"):
        make_sink(topic).seal([Committable.from_json(json.loads(json.dumps(vote.to_json())))], age_s=0)
    before_tasks.abort(vote)


@pytest.mark.variants
@pytest.mark.parametrize("again", [True, False], ids=["created-again", "only-deleted"])
def test_what_was_decided_and_not_committed_before_its_topic_was_deleted_is_lost(
    again: bool, topic: Any, make_sink: Any, pre_commit: Any, recreate: Any, wait: Any
) -> None:
    committable = pre_commit(make_sink(topic), ["gone"])
    recreate(topic) if again else topic.delete()
    sink = make_sink(topic)
    sink._leaders._topics.clear()  # another process
    with pytest.raises(TransactionLost, match=rf"topic '{topic.name}' was deleted since.*Nothing of it is committed"):
        wait.repeated(lambda: sink.commit(committable))
    assert sink.recover() == []
    if again:
        topic.stays_empty()


def test_what_was_decided_is_written_again_from_its_copy_into_the_new_topic(
    topic: Any, make_sink: Any, recreate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> tuple[KafkaSink, Coordinator]:
        sink = make_sink(topic, log_id=None, two_phase_commit="off")
        stage = f"file://{tmp_path}/stage"
        return sink, Coordinator({"orders": sink}, str(tmp_path / "log"), owner="query", replay_copies=stage)

    sink, coordinator = start()
    with monkeypatch.context() as dying:
        dying.setattr(KafkaSink, "commit", lambda *_: killed())
        with pytest.raises(Killed):
            coordinator.run(0, writes({"orders": sink}, {"value": ["a"]}))
    recreate(topic)
    sink._leaders._topics.clear()  # another process
    _, coordinator = start()
    coordinator.recover()
    assert topic.visible() == ["a"]
    coordinator.close()


def test_a_batch_that_was_committed_when_its_topic_was_deleted_stops_the_query_loudly(
    topic: Any, make_sink: Any, pre_commit: Any, recreate: Any, wait: Any
) -> None:
    sink = make_sink(topic)
    committable = pre_commit(sink, ["seen or not"])
    wait.repeated(lambda: sink.commit(committable))
    recreate(topic)
    told = rf"{committable.transaction_id} .* and committed, but topic '{topic.name}' was deleted since"
    with pytest.raises(OutcomeUnknown, match=told):
        sink.complete(0, [committable])
    with pytest.raises(OutcomeUnknown, match=told):  # so that 'twopc abandon' finds it
        make_sink(topic).commit(committable)


def test_a_decision_of_before_topics_were_noted_is_committed(topic: Any, sink: Any, pre_commit: Any) -> None:
    noted = pre_commit(sink, ["a"])
    committable = replace(noted, handle={key: noted.handle[key] for key in noted.handle if key != "topic_ids"})
    sink.commit(committable)
    sink.complete(0, [committable])
    assert topic.visible() == ["a"]


class Told:
    """Brokers, each with what it says of a topic: its id's first byte; 0: there is none; None: no answer; "no id": it
    is there; "denied"."""

    def __init__(self, *told: int | str | None) -> None:
        self._told = told

    def brokers(self) -> range:
        return range(len(self._told))

    async def metadata_of(self, node: int, topics: list[str]) -> Any:
        import uuid

        import kafka.errors
        from kafka.protocol.metadata import MetadataResponse

        told = self._told[node]
        if told is None:
            raise kafka.errors.RequestTimedOutError
        of_topic = MetadataResponse.MetadataResponseTopic
        if told in ("no id", "denied"):
            topic = of_topic(name=topics[0], topic_id=None, error_code=0 if told == "no id" else 29)
            return MetadataResponse(topics=[topic])
        assert isinstance(told, int)
        topic = of_topic(name=topics[0], topic_id=uuid.UUID(int=told << 120), error_code=0 if told else 3)
        return MetadataResponse(topics=[topic])

    def run(self, asked: Any, *args: object) -> Any:
        import asyncio

        return asyncio.run(asked(*args))


@pytest.mark.parametrize(
    ("told", "is_known"),
    [
        ((0, 0, 1), False),
        ((0, 1, 1), True),
        (("no id", "no id", 0), True),
        (("denied",), True),
        ((0, None, 0), False),
        ((0, 1), None),
        ((0, None, None), None),
    ],
)
def test_a_topic_is_unknown_by_the_word_of_most_brokers_alone(
    told: tuple[int | str | None, ...], is_known: bool | None
) -> None:
    leaders = Leaders(Told(*told))  # type: ignore[arg-type]
    if is_known is None:
        with pytest.raises(Retriable, match="don't agree whether topic 'orders' exists"):
            leaders.is_known_to_most("orders")
    else:
        assert leaders.is_known_to_most("orders") is is_known


@pytest.mark.parametrize(
    ("told", "believed"),
    [
        ((1,), 1),
        ((0,), 0),
        ((1, 1, 2), 1),
        ((2, 1, 1), 1),
        ((0, 1, 1), 1),
        ((1, 0, 0), 0),
        ((1, None, 1), 1),
        ((1, 2), None),
        ((1, 2, 0), None),
        ((0, None, None), None),
        ((None,), None),
        (("no id", "no id", "no id"), None),
        (("denied", "denied", 1), None),
        (("denied", 1, 1), 1),
    ],
)
def test_a_topic_is_another_one_by_the_word_of_most_brokers_alone(
    told: tuple[int | str | None, ...], believed: int | None
) -> None:
    leaders = Leaders(Told(*told))  # type: ignore[arg-type]
    if believed is None:
        with pytest.raises(Retriable, match="don't agree"):
            leaders.topic_ids_of_most(["orders"])
    else:
        [id] = leaders.topic_ids_of_most(["orders"]).values()
        assert id == {0: "", 1: "AQAAAAAAAAAAAAAAAAAAAA", 2: "AgAAAAAAAAAAAAAAAAAAAA"}[believed]
