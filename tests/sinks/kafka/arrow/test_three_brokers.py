"""Three brokers, of which one goes, or stops leading, amid a transaction."""

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import AlterPartitionReassignmentsRequest, ElectLeadersRequest
from kafka.protocol.metadata import MetadataRequest

from tests.sinks.kafka.known_topics import wait_until_known
from tests.sinks.kafka.three_brokers import CONTROLLER, OTHERS, ThreeBrokers
from tests.sinks.kafka.writing import sealed, text
from twopc import Coordinator, Participant, Round
from twopc.checks import CheckStatus
from twopc.errors import RoundAborted
from twopc_kafka.checks import replication
from twopc_kafka.client.cluster import cluster_of
from twopc_kafka.client.control import Control

pytestmark = [pytest.mark.crash, pytest.mark.long]

TIMEOUT_MS = 10_000
_PREFERRED = 0  # of the kinds of election


@dataclass(frozen=True)
class Leadership:
    """Which broker leads a topic's only partition."""

    control: Control

    def move(self, topic: Any, replicas: Sequence[int], wait: Any) -> None:
        """Put the topic's partition on these brokers and no other, and have the first lead it."""
        of_topic = AlterPartitionReassignmentsRequest.ReassignableTopic
        partition = of_topic.ReassignablePartition(partition_index=0, replicas=list(replicas))
        self._ask(AlterPartitionReassignmentsRequest(topics=[of_topic(name=topic.name, partitions=[partition])]))

        def is_moved() -> bool:
            of_topic = ElectLeadersRequest.TopicPartitions(topic=topic.name, partitions=[0])
            self._ask(ElectLeadersRequest(election_type=_PREFERRED, topic_partitions=[of_topic]))
            return self.of(topic) == replicas[0]

        wait.until(f"{topic.name} is led by broker {replicas[0]}", is_moved)

    def of(self, topic: Any) -> int:
        wanted = [MetadataRequest.MetadataRequestTopic(name=topic.name)]
        return int(self._ask(MetadataRequest(topics=wanted)).topics[0].partitions[0].leader_id)

    def _ask(self, request: Any) -> Any:
        return self.control.run(self.control.manager.send, request)


@pytest.fixture
def brokers(three_brokers: ThreeBrokers) -> ThreeBrokers:
    """All of them are up, whichever the previous test has killed."""
    three_brokers.start()
    return three_brokers


@pytest.fixture
def leadership(brokers: ThreeBrokers) -> Leadership:
    return Leadership(brokers.control)


@pytest.fixture
def topic(brokers: ThreeBrokers, leadership: Leadership, make_topic: Any, wait: Any) -> Any:
    """On all of them, led by one that may be killed."""
    topic = replace(make_topic(on=brokers.nodes[CONTROLLER]), servers=brokers.servers)
    wait_until_known(topic.servers, topic.name)
    leadership.move(topic, [2, 3, 1], wait)
    return topic


def test_a_leader_that_moves_amid_a_transaction_loses_and_doubles_nothing(
    leadership: Leadership, topic: Any, sink: Any, wait: Any
) -> None:
    participant: Any = Participant({"orders": sink}, Round(1, 0), partition=0)
    for value, then in (("a", [3, 1]), ("b", [1, 2]), ("c", [2, 3])):
        participant.write("orders", text(value))
        writer = participant._transactions["orders"].writer
        writer._sending.drain()
        knew = writer._sending._leaders[topic.name]
        leadership.move(topic, then, wait)
        assert knew != [leadership.of(topic)]
    participant.write("orders", text("d"))
    [sealed] = sink.seal([participant.pre_commit()["orders"]], age_s=0)
    wait.repeated(lambda: sink.commit(sealed))
    wait.until("the markers are written", topic.has_no_open_transaction)
    assert [record.value for record in topic.records()] == [b"a", b"b", b"c", b"d"]


def test_a_coordinator_that_was_down_when_the_brokers_were_listed_begins_transactions_once_it_is_up(
    brokers: ThreeBrokers,
) -> None:
    cluster = cluster_of({"bootstrap_servers": [brokers.nodes[CONTROLLER].bootstrap_servers]}, TIMEOUT_MS)

    def coordinator_of(name: str) -> int:
        return int(cluster.run(cluster.coordinator, name)[1])

    name = next(name for name in map(str, itertools.count()) if coordinator_of(name) in OTHERS)
    for node in OTHERS:
        cluster._manager.cluster._brokers.pop(node)  # as if they had been down
    assert cluster.run(cluster.begin, name, False, TIMEOUT_MS, TIMEOUT_MS).transactional_id == name


def test_a_leader_that_is_killed_and_restarted_amid_a_transaction_loses_and_doubles_nothing(
    brokers: ThreeBrokers, leadership: Leadership, topic: Any, make_sink: Any, wait: Any, tmp_path: Path
) -> None:
    sinks = {"orders": make_sink(topic, log_id=None, writer="arrow")}
    leader = brokers.nodes[leadership.of(topic)]
    pid = leader.pid

    def phase_one(round: Round) -> list[Any]:
        with Participant(sinks, round, partition=0) as participant:
            participant.write("orders", text("a"))
            participant._transactions["orders"].writer._sending.drain()  # type: ignore[attr-defined]
            if leader.pid == pid:
                leader.kill()
                leader.start()
            participant.write("orders", text("b"))
            return [participant.pre_commit()]

    with Coordinator(sinks, f"file://{tmp_path}", owner="query") as coordinator:
        try:
            coordinator.run(0, phase_one)
        except RoundAborted:
            coordinator.run(0, phase_one)
    wait.until("nothing holds back readers", topic.has_no_open_transaction)
    assert [record.value for record in topic.records()] == [b"a", b"b"]


def test_what_is_decided_is_committed_although_the_broker_that_coordinates_it_is_gone(
    brokers: ThreeBrokers, topic: Any, sink: Any, wait: Any
) -> None:
    while True:
        decided = sealed(sink, text("a"))
        node = coordinator(sink, decided.transaction_id, wait)
        if node in OTHERS:  # which may be killed
            break
        sink.abort(decided)
    brokers.nodes[node].kill()
    wait.repeated(lambda: sink.commit(decided))
    topic.becomes(["a"])
    assert coordinator(sink, decided.transaction_id, wait) != node


def coordinator(sink: Any, name: str, wait: Any) -> int:
    """The broker that coordinates a transactional id, as far as the sink knows."""
    return int(wait.repeated(sink._control.run, sink._control.coordinators_of, [name])[name])


@pytest.mark.parametrize(
    ("needed", "result"), [("1", CheckStatus.WARNING), ("2", CheckStatus.PASSED), ("3", CheckStatus.WARNING)]
)
def test_three_replicas_of_which_two_acknowledge_outlive_a_broker_and_others_are_warned_of(
    needed: str, result: CheckStatus, brokers: ThreeBrokers
) -> None:
    name = f"needs-{needed}-{uuid.uuid4().hex[:8]}"
    brokers.nodes[CONTROLLER].create_topic(name, config={"min.insync.replicas": needed}, replicas=3)
    wait_until_known(brokers.servers, name)
    assert replication(brokers.control, name).result is result
