"""Three brokers, of which some restart, fall silent, or have not heard yet that they do not lead any more."""

import contextlib
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from tests.sinks.kafka.conftest import Topic
from tests.sinks.kafka.known_topics import wait_until_known
from tests.sinks.kafka.three_brokers import CONTROLLER, OTHERS, ThreeBrokers
from tests.sinks.kafka.writing import written
from tests.support.phase_one import writes
from twopc import Committable, Coordinator, Round, Vote
from twopc.errors import Retriable
from twopc_kafka import KafkaSink
from twopc_kafka.client.control import Control
from twopc_kafka.handles import identity_of, version_of
from twopc_kafka.options import WRITERS

pytestmark = [pytest.mark.crash, pytest.mark.long]

PARTITIONS = 3
CHANCES = 5
A_FEW_SECONDS = 20.0
"""A broker that is silent is left out of the cluster after 3 s here, and this machine may be busy."""


@dataclass(frozen=True)
class Stale:
    """Transactions, and a sink that reaches no broker but one which takes itself for their coordinator."""

    topic: Topic
    sink: Any
    node: int
    rest: Collection[int]
    votes: list[Committable]
    sealed: list[Committable]


@pytest.fixture
def brokers(three_brokers: ThreeBrokers) -> ThreeBrokers:
    """All of them are in the cluster, whichever the previous test has silenced."""
    three_brokers.wait_for_members(*three_brokers.nodes)
    return three_brokers


@pytest.fixture
def topic(brokers: ThreeBrokers) -> Topic:
    """A topic that outlives each of the brokers."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    brokers.nodes[CONTROLLER].create_topic(name, PARTITIONS, {"min.insync.replicas": "2"}, replicas=3)
    wait_until_known(brokers.servers, name)
    return Topic(brokers.servers, name)


def pre_committed(sink: KafkaSink, serials: Sequence[int]) -> list[Committable]:
    """Transactions whose names tell their serials, so that their coordinators are known before they begin."""
    votes = []
    for serial in serials:
        token = mock.patch("twopc_kafka.leases.secrets.token_hex", lambda _, serial=serial: f"{serial:016x}")
        with token:
            votes.append(written(sink, str(serial), partition=serial))
    return votes


def coordinators(sink: KafkaSink, serials: Sequence[int], wait: Any) -> dict[int, int]:
    """Serial → the broker that coordinates its transaction now."""
    sink._control._coordinators.clear()
    names = {serial: f"{sink.transactional_ids.scope}{serial:016x}.0" for serial in serials}
    found = wait.repeated(sink._control.run, sink._control.coordinators_of, list(names.values()))
    return {serial: found[name] for serial, name in names.items()}


def test_a_silent_broker_holds_up_the_rest_for_a_few_seconds_at_most(
    brokers: ThreeBrokers, topic: Topic, make_sink: Any, wait: Any
) -> None:
    sink = make_sink(topic, bootstrap_servers=brokers.nodes[CONTROLLER].bootstrap_servers)
    votes = pre_committed(sink, range(12))
    sink.recover()
    brokers.stand_still(3)  # which coordinates or leads a part of them, or is asked by chance
    began = time.monotonic()
    sealed = wait.repeated(sink.seal, votes, 0)
    for committable in sealed:
        wait.repeated(sink.commit, committable)
    wait.repeated(lambda: sink.complete(0, sealed))
    wait.repeated(sink.recover)
    assert time.monotonic() - began < A_FEW_SECONDS
    brokers.go_on(3)
    assert topic.visible() == sorted(str(serial) for serial in range(12))


def test_markers_that_wait_for_replicas_are_reported_with_what_to_do(
    brokers: ThreeBrokers, make_sink: Any, wait: Any
) -> None:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    brokers.nodes[CONTROLLER].create_topic(name, 1, {"min.insync.replicas": "3"}, replicas=3)
    wait_until_known(brokers.servers, name)
    topic = Topic(brokers.servers, name)
    sink = make_sink(topic)
    sealed = wait.repeated(sink.seal, pre_committed(sink, [0]), 0)

    def reported() -> str:
        try:
            sink.complete(0, sealed)
        except Retriable as error:
            return str(error)
        return "complete"

    brokers.nodes[3].stop()
    try:
        wait.repeated(lambda: sink.commit(sealed[0]))
        advice = "min.insync.replicas asks for: see kafka-topics.sh --describe"
        wait.until(
            "the operator is told", lambda: f"{sealed[0].transaction_id} yet" in (told := reported()) and advice in told
        )
    finally:
        brokers.start()
    wait.repeated(lambda: sink.complete(0, sealed))
    assert topic.visible() == ["0"]


@pytest.fixture
def stale(brokers: ThreeBrokers, topic: Topic, make_sink: Any, wait: Any) -> Iterator[Stale]:
    """A broker that is cut off. On a busy machine the cluster may exclude a broker just before it stands still, and the
    broker hears of that. Then cut one off again."""
    for _ in range(CHANCES):
        brokers.wait_for_members(*brokers.nodes)
        with cut_off(brokers, topic, make_sink, wait) as stale:
            control = stale.sink._control
            wait.repeated(control.run, control.metadata)
            if stale.node in control.brokers():
                yield stale
                return
    pytest.fail(f"{CHANCES} times, the broker heard that it is excluded")


@contextlib.contextmanager
def cut_off(brokers: ThreeBrokers, topic: Topic, make_sink: Any, wait: Any) -> Iterator[Stale]:
    """A broker stood still while another took over and began transactions. Now the others stand still, as if a network
    was cut between it and them, so that nothing tells it."""
    sink = make_sink(topic, bootstrap_servers=brokers.nodes[CONTROLLER].bootstrap_servers)
    led_by = coordinators(sink, range(40), wait)
    node = max(OTHERS, key=list(led_by.values()).count)
    rest = brokers.nodes.keys() - {node}
    earlier, *led = [serial for serial in led_by if led_by[serial] == node][:3]
    wait.repeated(lambda: sink.abort(pre_committed(sink, [earlier])[0]))  # it has producer ids to give away
    brokers.stand_still(node)
    try:
        wait.until("others have taken over", lambda: node not in coordinators(sink, led, wait).values())
        votes = pre_committed(sink, led)
        sealed = wait.repeated(sink.seal, votes, 0)
        brokers.stand_still(*rest)
    finally:
        brokers.go_on(node)
    try:
        of_node = make_sink(topic, bootstrap_servers=brokers.nodes[node].bootstrap_servers)
        yield Stale(topic, of_node, node, rest, votes, sealed)
    finally:
        brokers.go_on(*rest)


def test_a_coordinator_that_has_not_heard_that_it_is_none_any_more_ends_no_query(
    brokers: ThreeBrokers, stale: Stale, wait: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stale.sealed
    name = one.transaction_id
    control = stale.sink._control
    with monkeypatch.context() as reached:
        reached.setattr(control.manager, "by_load", lambda: [stale.node])
        wait.repeated(lambda: control.describe([name]))
        assert control.describe([name]) == {}
        answer = control.end(name, *identity_of(one), True, version_of(one))
        assert answer == "INVALID_PRODUCER_ID_MAPPING"
        with pytest.raises(Retriable, match="has not proved"):
            stale.sink.commit(one)
        with pytest.raises(Retriable, match="has not proved"):
            stale.sink.seal(stale.votes, age_s=0)
    brokers.go_on(*stale.rest)
    wait.repeated(stale.sink.seal, stale.votes, 0)
    for committable in (one, other):
        wait.repeated(stale.sink.commit, committable)
    wait.repeated(lambda: stale.sink.complete(0, stale.sealed))
    assert len(stale.topic.visible()) == 2


def test_a_topic_that_one_broker_has_not_heard_of_is_not_refused(
    brokers: ThreeBrokers, make_sink: Any, wait: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lagging, knowing = OTHERS
    topic = Topic(brokers.nodes[lagging].bootstrap_servers, f"orders-{uuid.uuid4().hex[:8]}")
    sink, schema = make_sink(topic), pa.schema({"value": pa.string()})
    control: Control = sink._control
    wait.repeated(lambda: control.unknown_topics([topic.name]))  # now it knows the other brokers, too

    async def is_known() -> bool:
        [answer] = (await control.metadata_of(knowing, [topic.name])).topics
        return not answer.error_code

    brokers.stand_still(lagging)
    try:
        # By then its last question to the controller is answered, and no client is referred to it.
        brokers.wait_for_members(CONTROLLER, knowing)
        brokers.nodes[CONTROLLER].create_topic(topic.name)
        wait.until("another broker knows the topic", lambda: control.run(is_known))
        brokers.stand_still(CONTROLLER)  # else the lagging one learns of it at once
    finally:
        brokers.go_on(lagging)
    try:
        with monkeypatch.context() as reached:
            reached.setattr(control.manager, "by_load", lambda: [lagging])
            wait.repeated(lambda: control.unknown_topics([topic.name]))
            assert control.unknown_topics([topic.name]) == [topic.name]
            with pytest.raises(Retriable, match="the brokers don't agree"):
                sink.validate(schema)
    finally:
        brokers.go_on(CONTROLLER)
    wait.repeated(lambda: sink.validate(schema))


@pytest.mark.parametrize("writer", WRITERS)
def test_a_query_runs_through_a_rolling_restart_of_all_brokers(
    brokers: ThreeBrokers, topic: Topic, writer: str, make_sink: Any, tmp_path: Path
) -> None:
    sink = make_sink(topic, log_id=None, writer=writer)
    restarted = threading.Event()

    def restart() -> None:
        try:
            for broker in brokers.nodes.values():
                time.sleep(0.5)  # batches that run while all are up
                broker.stop()
                broker.start()
        finally:
            restarted.set()

    def phase_one(round: Round) -> Iterator[Vote]:
        numbers = {number: pa.array([number], pa.int32()) for number in range(PARTITIONS)}
        records = ({"value": [f"{round.batch_id}-{n}"], "partition": column} for n, column in numbers.items())
        return writes({"orders": sink}, *records)(round)

    restarting = threading.Thread(target=restart)
    batches = 0
    with Coordinator({"orders": sink}, str(tmp_path), owner="query") as coordinator:
        restarting.start()
        try:
            while not restarted.is_set():
                coordinator.run(batches, phase_one)
                batches += 1
        finally:
            restarting.join()
    assert topic.visible() == sorted(f"{batch}-{number}" for batch in range(batches) for number in range(PARTITIONS))
