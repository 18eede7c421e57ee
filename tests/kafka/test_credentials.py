"""A cluster that asks for a password and denies what is not granted; and what is seen of the password (invariant 8)."""

from __future__ import annotations

import logging
from typing import Any

import kafka.errors
import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.kafka.hanging import will_hang
from twopc import Committable, Participant, Round
from twopc.errors import OperatorRequired, Retriable, RoundAborted
from twopc_kafka import control

pytestmark = pytest.mark.kafka

SCHEMA = pa.schema([("value", pa.string())])


def as_user(second_broker: Any, name: str, password: str | None = None) -> dict[str, str]:
    return {
        "bootstrap_servers": second_broker.sasl_servers,
        "security_protocol": "sasl_plaintext",
        "sasl_mechanism": "PLAIN",
        "sasl_username": name,
        "sasl_password": password or second_broker.passwords[name],
    }


def allow(
    second_broker: Any,
    user: str,
    operation: AclOperation,
    kind: ResourceType,
    name: str,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> AclBinding:
    binding = AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
    admin = AdminClient({"bootstrap.servers": second_broker.broker.bootstrap_servers})
    [granted] = admin.create_acls([binding]).values()
    granted.result(timeout=10)
    return binding


def grant(second_broker: Any, user: str, topic: str, prefix: str) -> None:
    """The rights that the README tells to grant, and no other."""
    allow(second_broker, user, AclOperation.WRITE, ResourceType.TOPIC, topic)
    ids = ResourceType.TRANSACTIONAL_ID, f"{prefix}.", ResourcePatternType.PREFIXED
    allow(second_broker, user, AclOperation.WRITE, *ids)


def pre_committed(sink: Any, partition: int = 0) -> Committable:
    with Participant({"orders": sink}, Round(1, 0), partition) as participant:
        participant.write("orders", pa.record_batch({"value": ["a"]}))
        [sealed] = sink.seal([participant.pre_commit()["orders"]], age_s=0)
    return sealed  # type: ignore[no-any-return]


def test_the_rights_of_the_readme_suffice(
    second_broker: Any, make_topic: Any, make_sink: Any, prefix: str, wait: Any
) -> None:
    topic = make_topic(on=second_broker.broker)
    grant(second_broker, "granted", topic.name, prefix)
    sink = make_sink(topic, **as_user(second_broker, "granted"))
    wait.until("the grant has arrived", lambda: _is_valid(sink))
    left, committable = pre_committed(sink, 0), pre_committed(sink, 1)
    assert {found.transaction_id for found in sink.recover()} == {left.transaction_id, committable.transaction_id}
    wait.repeated(lambda: sink.commit(committable))
    wait.repeated(lambda: sink.abort(left))
    topic.becomes(["a"])
    assert list(sink.recover()) == []


def _is_valid(sink: Any) -> bool:
    try:
        sink.validate(SCHEMA)
    except OperatorRequired:
        return False
    return True


def test_what_the_brokers_deny_is_told_with_the_rights_to_grant(
    second_broker: Any, make_topic: Any, make_sink: Any, prefix: str
) -> None:
    topic = make_topic(on=second_broker.broker)
    sink = make_sink(topic, **as_user(second_broker, "denied"))
    rights = r"WRITE and DESCRIBE on the transactional ids .*'transactional.id.prefix'"
    with pytest.raises(OperatorRequired, match=rights):
        sink.validate(SCHEMA)
    with pytest.raises(RoundAborted, match=r"Grant this principal WRITE on the 'transactional.id.prefix'"):
        pre_committed(sink)
    handle: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "end_txn_version": 5}
    with pytest.raises(OperatorRequired, match=rights):
        sink.commit(Committable(f"{prefix}.log.orders.1.0.0.0", handle, 1))


def test_after_a_refused_login_the_next_call_logs_in_anew(second_broker: Any, make_topic: Any, make_sink: Any) -> None:
    topic = make_topic(on=second_broker.broker)
    sink = make_sink(topic, client_id=topic.name, **as_user(second_broker, "granted"))  # a connection of its own
    refused = kafka.errors.SaslAuthenticationFailedError("user unknown")
    [server] = sink._control._manager.cluster.bootstrap_brokers()
    sink._control._manager._auth_failures[server.node_id] = refused  # kafka-python keeps it
    with pytest.raises(OperatorRequired, match=r"refuse the login.*user unknown"):
        sink.recover()
    assert sink.recover() == []


def test_the_password_is_in_no_log_error_repr_or_committable(
    second_broker: Any,
    make_topic: Any,
    make_sink: Any,
    prefix: str,
    wait: Any,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "wrong-hunter2"
    monkeypatch.setattr(control, "CONNECT_TIMEOUT_MS", 500)
    monkeypatch.setattr(control, "_controls", {})  # this test sees the connection being made
    topic = make_topic(on=second_broker.broker)
    grant(second_broker, "granted", topic.name, prefix)
    right = make_sink(topic, **as_user(second_broker, "granted"), debug="all")
    wait.until("the grant has arrived", lambda: _is_valid(right))
    committable = pre_committed(right)
    wait.repeated(lambda: right.commit(committable))
    refused = make_sink(topic, **as_user(second_broker, "granted", wrong), message_timeout_ms=1000, debug="all")
    errors = []
    with pytest.raises((Retriable, OperatorRequired)) as unreachable:
        list(refused.recover())
    with pytest.raises(RoundAborted) as aborted:
        pre_committed(refused)
    chain: list[BaseException | None] = [unreachable.value, aborted.value]
    for error in chain:  # which grows by what led to each
        if error is not None:
            errors.append(f"{error!r} {error}")
            chain += [error.__cause__, error.__context__]
    printed = "".join(capfd.readouterr())
    shown = [caplog.text, *errors, printed, repr(right), repr(right._options), repr(committable.to_json())]
    assert "kafka.net.connection" in caplog.text, "kafka-python was listened to"
    assert "twopc_kafka.writer" in caplog.text, "librdkafka was listened to"
    for secret in (second_broker.passwords["granted"], wrong):
        assert secret not in "".join(shown)


def test_what_hangs_is_ended_with_the_rights_that_the_readme_names_for_it(
    second_broker: Any,
    make_topic: Any,
    make_sink: Any,
    prefix: str,
    wait: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = make_topic(partitions=2, on=second_broker.broker)
    grant(second_broker, "granted", topic.name, prefix)
    sink = make_sink(topic, **as_user(second_broker, "granted"))
    wait.until("the grant has arrived", lambda: _is_valid(sink))
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
        wait.until("ALTER is granted", lambda: _is_ended(sink, found))
    finally:
        _revoke(second_broker, binding)
    topic.stays_empty()


def _is_ended(sink: Any, found: Committable) -> bool:
    try:
        sink.abort(found)
    except OperatorRequired:
        return False
    return True


def _revoke(second_broker: Any, binding: AclBinding) -> None:
    given = binding.restype, binding.name, binding.resource_pattern_type, binding.principal, binding.host
    exactly = AclBindingFilter(*given, binding.operation, binding.permission_type)
    admin = AdminClient({"bootstrap.servers": second_broker.broker.bootstrap_servers})
    for revoked in admin.delete_acls([exactly]).values():
        revoked.result(timeout=10)
