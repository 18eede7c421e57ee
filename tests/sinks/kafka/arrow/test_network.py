"""Plans that are slow, over a network that takes a large request in pieces, as any but loopback does."""

import itertools
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme

from tests.sinks.kafka.conftest import Topic, write_certificate
from tests.support import networks
from twopc import Participant, Round
from twopc_kafka import KafkaSink
from twopc_kafka.client import cluster
from twopc_kafka.options import WRITERS
from twopc_kafka_broker import KafkaBroker

pytestmark = pytest.mark.long

FAST = "1gbit"
PLAINTEXT_PORT, TLS_PORT, LOCAL_PORT, CONTROLLER_PORT = 9092, 9093, 9094, 9095  # free ones: the host is new
CLOSES_IDLE_MS = 20_000
"""The broker's setting is 10 minutes. With this one it closes connections in the pauses of these tests."""

BATCH = pa.record_batch({"value": [b"x" * 2000] * 2000})
"""Far more than a socket takes at once, in two requests of which the second waits for the first."""


@dataclass(frozen=True)
class FarBroker:
    network: networks.Network
    broker: KafkaBroker
    authority: Path

    def create_topic(self, partitions: int = 4) -> Topic:
        name = f"orders-{uuid.uuid4().hex[:8]}"
        with self.network.there.entered():
            self.broker.create_topic(name, partitions)
        return Topic(f"{self.network.there.address}:{PLAINTEXT_PORT}", name)

    def sink(self, topic: Topic, tls: bool = False, **options: Any) -> KafkaSink:
        port = TLS_PORT if tls else PLAINTEXT_PORT
        security = {"security.protocol": "ssl", "ssl.ca.location": str(self.authority)} if tls else {}
        given = {name.replace("_", "."): value for name, value in options.items()}
        servers = {"bootstrap.servers": f"{self.network.there.address}:{port}", "topic": topic.name}
        made = KafkaSink({**servers, "client.id": topic.name, **security, **given})  # its connections are its own
        made.bind("orders", topic.name)
        return made


@pytest.fixture(scope="module")
def far_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarBroker]:
    if reason := networks.why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("far-broker")
    network = networks.Network(FAST)
    address = network.there.address
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    write_certificate(authority.issue_cert(address), folder / "broker.pem")
    (folder / "ports.json").write_text(f'{{"broker": {LOCAL_PORT}, "controller": {CONTROLLER_PORT}}}')
    far = f"FAR://{address}:{PLAINTEXT_PORT},TLS://{address}:{TLS_PORT}"
    properties: dict[str, str | int | bool] = {
        "listeners": f"PLAINTEXT://127.0.0.1:{LOCAL_PORT},CONTROLLER://127.0.0.1:{CONTROLLER_PORT},{far}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{LOCAL_PORT},{far}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,FAR:PLAINTEXT,TLS:SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "connections.max.idle.ms": CLOSES_IDLE_MS,
    }
    with network.there.entered():
        broker = KafkaBroker(folder, properties=properties)
        broker.start()
    yield FarBroker(network, broker, folder / "authority.pem")
    broker.close()
    network.close()


@pytest.fixture(autouse=True)
def here(far_broker: FarBroker) -> Iterator[None]:
    """The test runs on the host that is not the broker's."""
    far_broker.network.shape(FAST)
    with far_broker.network.here.entered():
        yield


def sending(participant: Participant) -> Any:
    transaction: Any = participant._transactions["orders"]
    return transaction.writer._sending


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
def test_all_that_was_written_arrives_while_the_task_waits_for_its_plan(
    tls: bool, far_broker: FarBroker, wait: Any
) -> None:
    sink = far_broker.sink(far_broker.create_topic(), tls)
    with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
        participant.write("orders", BATCH)
        sent = sending(participant)
        wait.until("the brokers have acknowledged all records", lambda: sent.acknowledged == BATCH.num_rows)


def test_a_request_that_takes_long_to_send_does_not_time_out(far_broker: FarBroker) -> None:
    far_broker.network.shape("20mbit")
    sink = far_broker.sink(far_broker.create_topic(), socket_timeout_ms=1000)  # 4 MB take 1.6 s
    with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
        participant.write("orders", BATCH)
        assert participant.pre_commit()["orders"].records == BATCH.num_rows


@pytest.fixture
def slowly_under_way(far_broker: FarBroker, monkeypatch: pytest.MonkeyPatch, wait: Any) -> Iterator[Participant]:
    """A task whose requests take longer to send than a broker has to show that it is alive."""
    monkeypatch.setattr(cluster, "CONTACT_TIMEOUT_MS", 1000)  # 4 MB take 1.6 s
    monkeypatch.setattr(cluster, "KNOWN_ALIVE_S", 0)
    sink = far_broker.sink(far_broker.create_topic(partitions=8))
    with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
        participant.write("orders", pa.record_batch({"value": ["a"]}))
        sending(participant).drain()
        far_broker.network.shape("20mbit")
        participant.write("orders", BATCH)
        wait.until("requests are under way", lambda: any(sending(participant)._under_way.values()))
        yield participant


def test_a_batch_follows_requests_that_take_long_to_send_without_a_question_first(
    slowly_under_way: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_amid: list[int] = []
    contact = cluster.Cluster.contact

    async def counted(self: cluster.Cluster, node: int) -> Any:
        if node not in self._contacts:  # else it waits for a question that is asked already, which is under way, too
            asked_amid.append(self._under_way[node])
        return await contact(self, node)

    monkeypatch.setattr(cluster.Cluster, "contact", counted)
    slowly_under_way.write("orders", BATCH)
    assert slowly_under_way.pre_commit()["orders"].records == 2 * BATCH.num_rows + 1
    assert not any(asked_amid)


def test_a_task_that_begins_does_not_take_a_connection_that_is_busy_for_one_that_is_dead(
    slowly_under_way: Participant,
) -> None:
    sinks = slowly_under_way._sinks
    with Participant(sinks, Round(1, 0), partition=1) as other:
        other.write("orders", pa.record_batch({"value": ["b"]}))
        assert other.pre_commit()["orders"].records == 1
    assert slowly_under_way.pre_commit()["orders"].records == BATCH.num_rows + 1


@dataclass(frozen=True)
class Pauses:
    """Seconds that a plan takes before each of its two batches, and after them. A request may take 30 s by default."""

    before: float
    between: float
    after: float


SLOW_PLANS = (Pauses(35, 35, 35), Pauses(0, 100, 0))


def test_a_slow_plan_loses_doubles_and_fails_nothing(far_broker: FarBroker, wait: Any) -> None:
    """All cases side by side: together they take as long as the slowest."""
    batch = BATCH.slice(0, 500)
    topics: dict[tuple[str, bool, Pauses], Topic] = {
        case: far_broker.create_topic() for case in itertools.product(WRITERS, (False, True), SLOW_PLANS)
    }

    def run(case: tuple[str, bool, Pauses]) -> None:
        writer, tls, pauses = case
        with far_broker.network.here.entered():
            sink = far_broker.sink(topics[case], tls, writer=writer)
            with Participant({"orders": sink}, Round(1, 0), partition=0) as earlier:
                earlier.write("orders", batch)
                sink.abort(earlier.pre_commit()["orders"])
            time.sleep(pauses.before)
            with Participant({"orders": sink}, Round(1, 1), partition=0) as participant:
                participant.write("orders", batch)
                time.sleep(pauses.between)
                participant.write("orders", batch)
                time.sleep(pauses.after)
                [sealed] = sink.seal([participant.pre_commit()["orders"]], age_s=0)
            wait.repeated(lambda: sink.commit(sealed))

    with ThreadPoolExecutor(len(topics)) as pool:
        running = {case: pool.submit(run, case) for case in topics}
    assert {case: error for case, ran in running.items() if (error := ran.exception())} == {}
    for topic in topics.values():
        wait.until("nothing holds back readers", topic.has_no_open_transaction)
        assert len(topic.records()) == 2 * batch.num_rows
