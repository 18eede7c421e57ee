"""What the tests of the Kafka sink share: topics, their committed readers, and writers that have pre-committed."""

import contextlib
import itertools
import json
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
import trustme
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat
from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from tests.sinks.kafka.access import scram_user
from tests.sinks.kafka.issuer import AUDIENCE, ISSUER, Issuer
from tests.sinks.kafka.three_brokers import ThreeBrokers, started
from tests.sinks.kafka.writing import sealed, text
from tests.support.broker_properties import WITHOUT_TIMEOUT, is_older
from tests.support.leftovers import of_the_run, running
from tests.support.topic_reader import records_of
from tests.support.waiting import until
from twopc import Committable, Round
from twopc.testing.query import answered
from twopc_kafka import KafkaSink
from twopc_kafka.client.control import Control
from twopc_kafka_broker import KafkaBroker
from twopc_kafka_broker.broker import _is_free

PATIENCE_S = 30.0
"""How long a test waits for what must come, before it takes it for missing."""


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    until(holds, PATIENCE_S, what)


def repeated(call: Callable[..., Any], *arguments: object) -> Any:
    """Make a call as the coordinator does: again while the broker can't answer. Return its result."""
    return answered(PATIENCE_S, call, *arguments)


def sweep(sink: KafkaSink) -> None:
    """As a coordinator does that has decided nothing, until nothing is left to sweep."""

    def nothing_left() -> bool:
        found = repeated(sink.recover)
        for transaction in found:
            repeated(sink.abort, transaction)
        return not found

    wait_until("nothing is open", nothing_left)


@pytest.fixture
def answer_first(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Any]], list[Any]]:
    """Have ``Control.end`` return or raise these, the last one first, and then ask the broker. Returns what is left."""

    def patch(answers: list[Any]) -> list[Any]:
        left, end = list(answers), Control.end

        def answered(*args: Any, **named: Any) -> Any:
            answer = left.pop() if left else end(*args, **named)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(Control, "end", answered)
        return left

    return patch


@dataclass(frozen=True)
class Topic:
    """A topic of one test, read by another client than the one that wrote."""

    servers: str
    name: str

    def records(self, isolation_level: str = "read_committed") -> list[Any]:
        """Every record that such a reader sees now."""
        return list(records_of(self.servers, self.name, isolation_level))

    def visible(self) -> list[str]:
        """The values that a committed reader sees, sorted."""
        return sorted(record.value.decode() for record in self.records())

    def becomes(self, values: list[str]) -> None:
        """Wait for exactly ``values``: a broker answers a commit before its markers are written."""
        wait_until(f"{self.name} shows {values[:3]}...", lambda: self.visible() == sorted(values))

    def has_no_open_transaction(self) -> bool:
        """Whether nothing holds back its committed readers, so that what they see is all they will see."""
        with KafkaConsumer(bootstrap_servers=self.servers, isolation_level="read_committed") as committed:
            partitions = [TopicPartition(self.name, n) for n in committed.partitions_for_topic(self.name)]
            stable = committed.end_offsets(partitions)
        with KafkaConsumer(bootstrap_servers=self.servers) as uncommitted:
            return bool(stable == uncommitted.end_offsets(partitions))

    def delete(self) -> None:
        """Delete the topic, and wait until its broker does not list it any more."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.delete_topics([self.name])[self.name].result(PATIENCE_S)
        wait_until(f"{self.name} is gone", lambda: self.name not in admin.list_topics(timeout=10).topics)

    def stays_empty(self) -> None:
        """Wait until nothing is open, and see that nothing is visible."""
        wait_until(f"{self.name} has no open transaction", self.has_no_open_transaction)
        assert self.visible() == []


class MakeTopic(Protocol):
    def __call__(self, partitions: int = 1, config: dict[str, str] | None = None, on: KafkaBroker = ...) -> Topic: ...


class MakeSink(Protocol):
    def __call__(self, on: Topic, /, log_id: str | None = "log", **options: Any) -> KafkaSink: ...


class PreCommit(Protocol):
    def __call__(self, sink: KafkaSink, values: list[str], round: Round = ..., partition: int = 0) -> Committable: ...


@pytest.fixture
def make_topic(kafka_broker: KafkaBroker) -> MakeTopic:
    def make(partitions: int = 1, config: dict[str, str] | None = None, on: KafkaBroker = kafka_broker) -> Topic:
        name = f"orders-{uuid.uuid4().hex[:8]}"
        # Else a broker removes records of past years when it looks for old ones, every five minutes.
        on.create_topic(name, partitions, {"retention.ms": "-1", **(config or {})})
        return Topic(on.bootstrap_servers, name)

    return make


@pytest.fixture
def topic(make_topic: MakeTopic) -> Topic:
    return make_topic()


@pytest.fixture
def recreate(kafka_broker: KafkaBroker) -> Callable[[Topic], None]:
    """Delete a topic, and create another one of its name."""

    def run(topic: Topic) -> None:
        topic.delete()
        kafka_broker.create_topic(topic.name)

    return run


@pytest.fixture
def prefix() -> str:
    """What the transactional ids of one test start with: tests share brokers."""
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_sink(prefix: str) -> MakeSink:
    """A new sink, bound as a coordinator binds it: a process of its own, as far as it knows. In an option's name
    ``_`` stands for a dot."""

    def make(on: Topic, /, log_id: str | None = "log", **options: Any) -> KafkaSink:
        given = {name.replace("_", "."): value for name, value in options.items()}
        defaults = {"bootstrap.servers": on.servers, "topic": on.name, "transactional.id.prefix": prefix}
        sink = KafkaSink(defaults | given)
        if log_id is not None:  # None: a coordinator will
            sink.bind("orders", log_id)
        return sink

    return make


@pytest.fixture
def sink(topic: Topic, make_sink: MakeSink) -> KafkaSink:
    return make_sink(topic)


@pytest.fixture
def pre_commit() -> PreCommit:
    """Have a participant pre-commit ``values`` and drop it; what comes back is sealed and has been through a log."""

    def run(sink: KafkaSink, values: list[str], round: Round = Round(1, 0), partition: int = 0) -> Committable:  # noqa: B008
        decided = sealed(sink, text(*values), round=round, partition=partition)
        return Committable.from_json(json.loads(json.dumps(decided.to_json())))

    return run


@dataclass(frozen=True)
class SecondBroker:
    """A broker that tests may kill. It rolls timed-out transactions back at once, and denies what is not granted to who
    comes to its other listeners: one asks for a password, one for the same through TLS by SCRAM, one for a certificate,
    one for a token.
    """

    broker: KafkaBroker
    sasl_servers: str
    scram_servers: str
    mtls_servers: str
    token_servers: str
    issuer: Issuer
    authority: trustme.CA
    folder: Path
    passwords: dict[str, str]

    def segment(self, topic: Topic) -> bytes:
        """What it has stored of the topic's first partition."""
        return (self.folder / "data" / f"{topic.name}-0" / "00000000000000000000.log").read_bytes()


@pytest.fixture(scope="session")
def broker_to_kill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecondBroker]:
    with _started(tmp_path_factory.mktemp("second-broker")) as broker:
        yield broker


@pytest.fixture
def second_broker(broker_to_kill: SecondBroker, pytestconfig: pytest.Config) -> Iterator[SecondBroker]:
    """The broker that tests may kill, running: a failed test may have left it dead. A test may start it again."""
    broker_to_kill.broker.start()
    yield broker_to_kill
    of_the_run(pytestconfig).started |= {each for each in running() if each.startswith("thread kafka-broker")}


@pytest.fixture(scope="session")
def broker_without_timeouts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecondBroker]:
    """One more, which grants transactions without a time-out to whom it is asked by."""
    with _started(tmp_path_factory.mktemp("without-timeouts"), WITHOUT_TIMEOUT) as broker:
        yield broker


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[ThreeBrokers]:
    with started() as brokers:
        yield brokers


_OAUTHBEARER = "org.apache.kafka.common.security.oauthbearer"
_KEYS: list[str] = []  # of all brokers


@contextlib.contextmanager
def _started(folder: Path, more: Mapping[str, str | int | bool] | None = None) -> Iterator[SecondBroker]:
    if is_older(3, 5):
        pytest.skip("without ZooKeeper, brokers have access rules since Kafka 3.2, and SCRAM since 3.5")
    broker_port, controller_port, *other_ports = _free_ports(6)
    (folder / "ports.json").write_text(json.dumps({"broker": broker_port, "controller": controller_port}))
    sasl, scram, mtls, token = (f"127.0.0.1:{port}" for port in other_ports)
    listeners = (
        f"PLAINTEXT://127.0.0.1:{broker_port},SASL_PLAINTEXT://{sasl},SCRAM://{scram},MTLS://{mtls},TOKEN://{token}"
    )
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    write_certificate(authority.issue_cert("127.0.0.1"), folder / "broker.pem")
    passwords = {name: f"{name}-hunter2-{uuid.uuid4().hex}" for name in ("granted", "denied")}
    issuer = Issuer(authority, passwords)
    keys = folder / "keys.json"
    issuer.write_keys(keys)
    users = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
    properties: dict[str, str | int | bool] = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SCRAM:SASL_SSL,MTLS:SSL,TOKEN:SASL_SSL,CONTROLLER:PLAINTEXT"
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        ),
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.token.oauthbearer.sasl.jaas.config": f"{_OAUTHBEARER}.OAuthBearerLoginModule required;",
        "listener.name.token.oauthbearer.sasl.server.callback.handler.class": (
            f"{_OAUTHBEARER}.OAuthBearerValidatorCallbackHandler"
        ),
        "listener.name.token.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "listener.name.token.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
        "listener.name.token.oauthbearer.sasl.oauthbearer.expected.issuer": ISSUER,
        # A connection lasts no longer than its token, as brokers in earnest have it (KIP-368).
        "listener.name.token.oauthbearer.connections.max.reauth.ms": 3_600_000,
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.mtls.ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "authority.pem"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
        "transaction.partition.verification.enable": False,  # so that tests can have a transaction hang
        **(more or {}),
    }
    with issuer, pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as started:
        # Kafka reads keys from where its JVM is told that it may, also when another broker is started again.
        _KEYS.append(keys.as_uri())
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={','.join(_KEYS)}")
        broker = started.enter_context(KafkaBroker(folder, properties=properties, ready_timeout_s=180))
        scram_user(broker, "granted", passwords["granted"])
        yield SecondBroker(broker, sasl, scram, mtls, token, issuer, authority, folder, passwords)


def write_certificate(issued: trustme.LeafCert, file: Path) -> None:
    """The key and the certificate, in the one form of a key that Kafka reads."""
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(pkcs8 + b"".join(part.bytes() for part in issued.cert_chain_pems))


def _free_ports(count: int) -> list[int]:
    """Ports below those that systems give to outgoing connections: the broker comes back to its own after a kill."""
    ports = random.sample(range(14000, 15000), 1000)  # the session's broker looks above
    return [*itertools.islice(filter(_is_free, ports), count)]


@dataclass(frozen=True)
class Tools:
    """The ways in which tests wait."""

    until: Callable[[str, Callable[[], bool]], None] = wait_until
    repeated: Callable[..., Any] = repeated
    sweep: Callable[[KafkaSink], None] = sweep


@pytest.fixture(scope="session")
def wait() -> Tools:
    return Tools()
