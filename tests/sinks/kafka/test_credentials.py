"""A cluster that asks for a password or a certificate and denies what is not granted; and what is seen of the password
(invariant 8)."""

import contextlib
import itertools
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka.errors
import pyarrow as pa
import pytest
import trustme
from confluent_kafka.admin import AclBinding, AclBindingFilter, AclOperation, AdminClient, ResourceType

from tests.sinks.kafka.access import (
    allow,
    as_user,
    by_certificate,
    by_provider,
    by_scram,
    by_store,
    by_token,
    certificate,
    grant,
    scram_user,
)
from tests.sinks.kafka.hanging import will_hang
from tests.sinks.kafka.writing import sealed
from twopc import Committable, Participant, Round
from twopc.errors import OperatorRequired, Retriable, RoundAborted
from twopc_kafka.client import control
from twopc_kafka.client.control import CONNECT_TIMEOUT_MS
from twopc_kafka.client.kafka_python import OfProcess
from twopc_kafka.options import WRITERS

SCHEMA = pa.schema([("value", pa.string())])


LOGINS = {
    "password": lambda broker, _: as_user(broker, "granted"),
    "scram": by_scram,
    "certificate": by_certificate,
    "token": by_token,
    "provider": by_provider,
    "store": by_store,
}


def pre_committed(sink: Any, partition: int = 0) -> Committable:
    sink._validated = SCHEMA  # as of a sink that comes from a driver
    decided: Committable = sealed(sink, "a", partition=partition)
    return decided


def is_permitted(call: Callable[..., object], *given: Any) -> bool:
    try:
        call(*given)
    except (OperatorRequired, Retriable):  # the second of a broker that has just started
        return False
    return True


Granted = Callable[..., tuple[Any, Any]]


@pytest.fixture
def granted(second_broker: Any, make_topic: Any, make_sink: Any, prefix: str, wait: Any) -> Granted:
    """Return a function that makes a topic, and a sink whose users have the rights of the README there."""

    def made(*users: str, partitions: int = 1, **options: Any) -> tuple[Any, Any]:
        topic = make_topic(partitions=partitions, on=second_broker.broker)
        for user in ("granted", *users):
            grant(second_broker, user, topic.name, prefix)
        sink = make_sink(topic, **options)
        wait.until("the grant has arrived", lambda: is_permitted(sink.open) and is_permitted(sink.validate, SCHEMA))
        return topic, sink

    return made


@pytest.mark.variants
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("login", LOGINS)
def test_the_rights_of_the_readme_suffice(
    login: str, writer: str, second_broker: Any, granted: Granted, wait: Any, tmp_path: Path
) -> None:
    topic, sink = granted(writer=writer, **LOGINS[login](second_broker, tmp_path))
    left, committable = pre_committed(sink, 0), pre_committed(sink, 1)
    assert {found.transaction_id for found in sink.recover()} == {left.transaction_id, committable.transaction_id}
    wait.repeated(lambda: sink.commit(committable))
    wait.repeated(lambda: sink.abort(left))
    topic.becomes(["a"])
    assert list(sink.recover()) == []


def test_what_the_brokers_deny_is_told_with_the_rights_to_grant(
    second_broker: Any, make_topic: Any, make_sink: Any, prefix: str
) -> None:
    topic = make_topic(on=second_broker.broker)
    sink = make_sink(topic, writer="librdkafka", **as_user(second_broker, "denied"))
    rights = r"WRITE and DESCRIBE on the transactional ids .*'transactional.id.prefix'"
    with pytest.raises(OperatorRequired, match=rights):
        sink.validate(SCHEMA)
    with pytest.raises(OperatorRequired, match=rights):
        pre_committed(sink)
    handle: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "end_txn_version": 5}
    with pytest.raises(OperatorRequired, match=rights):
        sink.commit(Committable(f"{prefix}.log.orders.{0:016x}.0", handle, 1))


@pytest.mark.variants
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("password", "invalid credentials with SASL mechanism SCRAM-SHA-512"),
        ("authority", "CERTIFICATE_VERIFY_FAILED"),
        ("host", "certificate is not valid for 'localhost'"),
        ("certificate", r"ALERT_\w+"),
        ("no certificate", r"ALERT_\w+"),
    ],
)
def test_the_arrow_writer_does_not_get_past_a_wrong_login_or_a_wrong_broker(
    wrong: str,
    reason: str,
    second_broker: Any,
    make_topic: Any,
    make_sink: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    login = (by_scram if wrong == "password" else by_certificate)(second_broker, tmp_path)
    match wrong:
        case "password":
            login["sasl_password"] = "wrong"  # noqa: S105
        case "authority":
            trustme.CA().cert_pem.write_to_path(login["ssl_ca_location"])
        case "host":
            login["bootstrap_servers"] = login["bootstrap_servers"].replace("127.0.0.1", "localhost")
        case "certificate":
            login |= certificate(trustme.CA(), tmp_path)
        case _:
            del login["ssl_certificate_location"], login["ssl_key_location"]
    sink = make_sink(make_topic(on=second_broker.broker), writer="arrow", message_timeout_ms=1500, **login)
    with pytest.raises((RoundAborted, OperatorRequired)):
        pre_committed(sink)
    assert re.search(reason, caplog.text + second_broker.broker.log_file.read_text())


def test_a_wrong_password_is_told_in_the_brokers_words_at_once(
    second_broker: Any, make_topic: Any, make_sink: Any, tmp_path: Path
) -> None:
    login = by_scram(second_broker, tmp_path) | {"sasl_password": "wrong"}
    sink = make_sink(make_topic(on=second_broker.broker), **login)
    began = time.monotonic()
    with pytest.raises(
        OperatorRequired, match=r"the brokers refuse the login: .*Authentication failed.*'sasl\.password'"
    ):
        sink.open()
    assert time.monotonic() - began < CONNECT_TIMEOUT_MS / 1000


@pytest.mark.variants
@pytest.mark.parametrize("writer", ["arrow", "librdkafka"])
def test_a_login_that_is_revoked_while_a_query_runs_is_told_in_the_brokers_words_at_once(
    writer: str, second_broker: Any, granted: Granted, prefix: str, tmp_path: Path
) -> None:
    """The control connection, which has logged in before, stays up."""
    login = by_scram(second_broker, tmp_path)
    _, sink = granted(writer=writer, client_id=prefix, **login)  # connections of its own
    scram_user(second_broker.broker, login["sasl_username"], "another")
    try:
        began = time.monotonic()
        with pytest.raises(OperatorRequired, match=r"the brokers refuse the login: .*Authentication failed"):
            pre_committed(sink)
        assert time.monotonic() - began < 30  # and not after 'message.timeout.ms', which is 120 s
    finally:
        scram_user(second_broker.broker, login["sasl_username"], login["sasl_password"])
    assert pre_committed(sink).records


def test_after_a_refused_login_the_next_call_logs_in_anew(second_broker: Any, make_topic: Any, make_sink: Any) -> None:
    topic = make_topic(on=second_broker.broker)
    sink = make_sink(topic, client_id=topic.name, **as_user(second_broker, "granted"))  # a connection of its own
    refused = kafka.errors.SaslAuthenticationFailedError("user unknown")
    [server] = sink._control.manager.cluster.bootstrap_brokers()
    sink._control.manager._auth_failures[server.node_id] = refused  # kafka-python keeps it
    with pytest.raises(OperatorRequired, match=r"refuse the login.*user unknown"):
        sink.recover()
    assert sink.recover() == []


@pytest.mark.long
@pytest.mark.parametrize("login", [by_token, by_provider])
def test_a_connection_outlives_its_token(
    login: Callable[[Any, Path], dict[str, str]],
    second_broker: Any,
    make_topic: Any,
    make_sink: Any,
    prefix: str,
    wait: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issuer = second_broker.issuer
    monkeypatch.setattr(issuer, "life_s", 3)
    options = login(second_broker, tmp_path) | own_tokens(login, prefix)
    sink = make_sink(make_topic(on=second_broker.broker), **options)
    given = len(issuer.tokens)
    wait.until("it has logged in twice", lambda: sink.recover() == [] and len(issuer.tokens) == given + 2)
    assert sink.recover() == []


def own_tokens(login: Any, prefix: str) -> dict[str, str]:
    """An option by which a sink shares its tokens with no other."""
    return {"sasl_oauthbearer_scope": prefix} if login is by_token else {"sasl_token_name": prefix}


@pytest.mark.long
@pytest.mark.parametrize("writer", WRITERS)
def test_a_task_outlives_its_token_and_a_renewed_token_of_another_principal_fails_no_decided_batch(
    writer: str,
    second_broker: Any,
    granted: Granted,
    prefix: str,
    wait: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    issuer = second_broker.issuer
    monkeypatch.setattr(issuer, "life_s", 3)
    # Whichever of two or three clients asks next: each gets another principal sooner or later.
    monkeypatch.setattr(issuer, "subjects", itertools.cycle(f"session-{number}" for number in "12211122"))
    login = by_provider(second_broker, tmp_path) | own_tokens(by_provider, prefix)
    topic, sink = granted("session-1", "session-2", writer=writer, **login)
    with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
        for value in ("a", "b", "c"):
            participant.write("orders", pa.record_batch({"value": [value]}))
            tokens = len(issuer.tokens)
            wait.until("the token is renewed", lambda tokens=tokens: _looks(sink) and len(issuer.tokens) > tokens)
        committables = participant.pre_commit()["orders"]
    [sealed] = sink.seal([committables], age_s=0)
    wait.until("a renewal is refused", lambda: _looks(sink) and "Does the principal change" in caplog.text)
    wait.repeated(lambda: sink.commit(sealed))
    topic.becomes(["a", "b", "c"])


def _looks(sink: Any) -> bool:
    """Send requests over the control connection, which is replaced when its renewal is refused."""
    with contextlib.suppress(Retriable):  # a refused login would be an OperatorRequired
        sink.recover()
    return True


@pytest.fixture(params=["password", "token", "provider"])
def as_granted(request: pytest.FixtureRequest, second_broker: Any, tmp_path: Path) -> dict[str, str]:
    return LOGINS[request.param](second_broker, tmp_path)


@pytest.mark.variants
def test_the_secret_is_in_no_log_error_repr_or_committable(
    as_granted: dict[str, str],
    second_broker: Any,
    granted: Granted,
    make_sink: Any,
    wait: Any,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "wrong-hunter2"
    [secret] = [name for name in as_granted if name.endswith(("_password", "_secret"))]
    hidden = [as_granted[secret], wrong]
    monkeypatch.setattr(control, "_controls", OfProcess())  # this test sees the connection being made
    librdkafka = {"writer": "librdkafka", "debug": "all"}
    topic, right = granted(**as_granted, **librdkafka)
    committable = pre_committed(right)
    wait.repeated(lambda: right.commit(committable))
    monkeypatch.setattr(control, "CONNECT_TIMEOUT_MS", 500)
    refused = make_sink(topic, **as_granted | {secret: wrong}, message_timeout_ms=1000, **librdkafka)
    errors = []
    with pytest.raises((Retriable, OperatorRequired)) as unreachable:
        list(refused.recover())
    with pytest.raises((Retriable, OperatorRequired), match=r"refuse the login|returned no token") as aborted:
        pre_committed(refused)
    chain: list[BaseException | None] = [unreachable.value, aborted.value]
    for error in chain:  # which grows by what led to each
        if error is not None:
            errors.append(f"{error!r} {error}")
            chain += [error.__cause__, error.__context__]
    printed = "".join(capfd.readouterr())
    shown = [caplog.text, *errors, printed, repr(right), repr(right._options), repr(committable.to_json())]
    assert "kafka.net.connection" in caplog.text, "kafka-python was listened to"
    assert "twopc_kafka.writers.librdkafka" in caplog.text, "librdkafka was listened to"
    for each in (*hidden, *second_broker.issuer.tokens):
        assert each not in "".join(shown)


@pytest.mark.advice(
    "Kafka has left out a marker (KAFKA-20734)", "can't be detected or repaired. Grant it to this principal"
)
def test_what_hangs_is_ended_with_the_rights_that_the_readme_names_for_it(
    second_broker: Any, granted: Granted, wait: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic, sink = granted(partitions=2, **as_user(second_broker, "granted"))
    hanging = pre_committed(sink)
    told: Any = hanging.handle["partitions"]
    [[noticed]] = told.values()
    will_hang(sink, hanging, ["unnoticed"], partition=1 - noticed)
    wait.repeated(lambda: sink.abort(Committable(hanging.transaction_id, hanging.handle)))

    assert list(sink.recover()) == []
    assert f"the brokers deny READ on topic {topic.name}" in caplog.text

    allow(second_broker, "granted", AclOperation.READ, ResourceType.TOPIC, topic.name)
    wait.until("READ is granted", lambda: len(list(sink.recover())) == 1)
    [found] = sink.recover()
    with pytest.raises(OperatorRequired, match=r"KAFKA-20734.*Grant it ALTER on the cluster.*kafka-transactions.sh"):
        sink.abort(found)

    binding = allow(second_broker, "granted", AclOperation.ALTER, ResourceType.BROKER, "kafka-cluster")
    try:
        wait.until("ALTER is granted", lambda: is_permitted(sink.abort, found))
    finally:
        _revoke(second_broker, binding)
    topic.stays_empty()


def _revoke(second_broker: Any, binding: AclBinding) -> None:
    given = binding.restype, binding.name, binding.resource_pattern_type, binding.principal, binding.host
    exactly = AclBindingFilter(*given, binding.operation, binding.permission_type)
    admin = AdminClient({"bootstrap.servers": second_broker.broker.bootstrap_servers})
    for revoked in admin.delete_acls([exactly]).values():
        revoked.result(timeout=10)
