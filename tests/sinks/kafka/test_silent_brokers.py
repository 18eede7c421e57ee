"""Brokers that are silent: stopped by a signal, or cut off. A few of them must cost no more than a few seconds."""

import contextlib
import copy
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.protocol.broker_version_data import BrokerVersionData

from tests.sinks.kafka.writing import written
from twopc.errors import Retriable, RoundAborted
from twopc_kafka.client import control
from twopc_kafka.client import kafka_python as connections
from twopc_kafka.client.cluster import Cluster
from twopc_kafka.client.control import Control

PATIENCE_MS = 60_000
"""How long a task, or a question of the coordinator's, may wait for brokers in these tests."""

SOON_S = 20
"""Long for what takes one turn per silent broker, and well below what one broker may take by itself."""


@contextlib.contextmanager
def silent_in_connecting() -> Iterator[str]:
    """An address whose answers to connections never come: its queue of them is full."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def silent_when_connected() -> Iterator[str]:
    """An address that takes connections and answers nothing, as the kernel does for a process that is stopped."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(params=[silent_in_connecting, silent_when_connected], ids=["connecting", "connected"])
def silent_servers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Four of them, which are asked first."""
    monkeypatch.setattr("random.shuffle", lambda _: None)
    monkeypatch.setattr(connections, "TURN_S", 0.2)
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context(request.param()) for _ in range(4)]


def servers(silent: list[str], on: Any) -> dict[str, Any]:
    return {"bootstrap_servers": [*silent, on.servers]}


@pytest.mark.variants
def test_a_task_finds_the_broker_that_answers_among_silent_ones(
    silent_servers: list[str], topic: Any, make_sink: Any
) -> None:
    all_servers = ",".join([*silent_servers, topic.servers])
    sink = make_sink(topic, writer="arrow", bootstrap_servers=all_servers, message_timeout_ms=PATIENCE_MS)
    started = time.monotonic()
    vote = written(sink, "a")
    assert time.monotonic() - started < SOON_S
    sink.abort(vote)


@pytest.mark.variants
def test_the_control_connection_finds_the_broker_that_answers_among_silent_ones(
    silent_servers: list[str], topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CONNECT_TIMEOUT_MS", PATIENCE_MS)
    asked = Control(servers(silent_servers, topic))
    started = time.monotonic()
    assert asked.unknown_topics([topic.name]) == []
    assert time.monotonic() - started < SOON_S
    asked.close()


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_where_all_are_silent_the_wait_ends_when_it_should(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CONNECT_TIMEOUT_MS", 1000)
    monkeypatch.setattr(connections, "SETUP_TIMEOUT_MS", 300)
    with silent_when_connected() as silent:
        properties = {"bootstrap_servers": [silent], "security_protocol": protocol}
        started = time.monotonic()
        cluster = Cluster(properties)
        with pytest.raises(RoundAborted, match=r"no broker answered at .* within 1000 ms"):
            cluster.find_brokers(1000)
        asked = Control(properties)
        with pytest.raises(Retriable, match="no broker answered"):
            asked.unknown_topics(["orders"])
        assert time.monotonic() - started < SOON_S
        asked.close()
        cluster.close()


@pytest.mark.long
def test_a_tls_handshake_that_gets_no_answer_leaves_no_connection_open(
    monkeypatch: pytest.MonkeyPatch, wait: Any
) -> None:
    monkeypatch.setattr(connections, "SETUP_TIMEOUT_MS", 100)
    with silent_when_connected() as silent:
        cluster = Cluster({"bootstrap_servers": [silent], "security_protocol": "SSL"})
        with pytest.raises(RoundAborted):
            cluster.find_brokers(1500)
        watched = cluster._net._selector.get_map()
        wait.until("only what wakes the thread is watched", lambda: len(watched) == 1)
        cluster.close()


def test_a_process_that_has_met_older_brokers_speaks_to_newer_ones_as_they_do(topic: Any) -> None:
    """They were upgraded one by one while it ran."""
    asked = Control({"bootstrap_servers": [topic.servers]})
    assert asked.unknown_topics([topic.name]) == []
    newest = asked.manager.broker_version_data.broker_version
    asked.manager.broker_version_data = BrokerVersionData((3, 0))
    [node] = asked.brokers()
    asked.manager.close(node)
    assert asked.unknown_topics([topic.name]) == []
    assert asked.manager._conns[node].broker_version_data.broker_version == newest
    asked.close()


@pytest.mark.variants
def test_of_several_brokers_one_that_answers_is_asked_after_those_that_do_not(
    silent_servers: list[str], topic: Any
) -> None:
    """What any broker could answer: here the ones that the cluster listed are silent when it is asked."""
    asked = Control({"bootstrap_servers": [topic.servers]})
    assert asked.unknown_topics([topic.name]) == []
    known = asked.manager.cluster
    [broker] = known.brokers()
    for number, server in enumerate(silent_servers, start=2):
        known._brokers[number] = silent = copy.copy(broker)
        silent.node_id, silent.port = number, int(server.split(":")[1])
    asked.manager.close(broker.node_id)
    known._brokers = dict(reversed(known._brokers.items()))  # the silent ones come first
    started = time.monotonic()
    assert asked.unknown_topics([topic.name]) == []
    assert time.monotonic() - started < SOON_S
    asked.close()
