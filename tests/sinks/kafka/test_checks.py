"""What the Kafka sinks find out about a cluster before the first batch."""

from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourcePatternType, ResourceType

from tests.sinks.kafka.access import allow, as_user, grant
from tests.sinks.kafka.groups import Group
from tests.support.broker_properties import needs_kafka
from twopc import CheckResult
from twopc.checks import CheckStatus
from twopc_kafka import checks
from twopc_kafka.options import WRITERS

TRIED = "trial transaction"
MARKERS = "right to write missing markers (KAFKA-20734)"


def of(result: CheckStatus, findings: list[CheckResult]) -> dict[str, str]:
    return {finding.check: finding.found for finding in findings if finding.result is result}


@needs_kafka(4, 0)
@pytest.mark.variants
@pytest.mark.parametrize("writer", WRITERS)
def test_a_broker_for_development_passes_but_for_its_replicas_and_shows_no_record(
    writer: str, topic: Any, make_sink: Any, wait: Any
) -> None:
    findings = list(make_sink(topic, writer=writer).check())
    assert of(CheckStatus.FAILED, findings) == {}
    assert {TRIED, MARKERS, f"topic {topic.name!r}: existence"} <= of(CheckStatus.PASSED, findings).keys()
    logs = {f"topic {name!r}: replication" for name in (topic.name, "__transaction_state")}
    assert of(CheckStatus.WARNING, findings).keys() == logs
    status_line = (
        "replication   warning   1 replica: a lost broker takes acknowledged records with it; use 3, min.insync"
    )
    assert any(status_line in str(finding) for finding in findings)
    assert of(CheckStatus.PASSED, findings)["clock of a broker"].startswith("0.0 s ")
    assert list(make_sink(topic).recover()) == []
    wait.until("the roll-back is through", topic.has_no_open_transaction)
    assert topic.records("read_uncommitted") == []


@pytest.mark.long
def test_what_the_cluster_refuses_is_told_and_nothing_is_tried(topic: Any, make_sink: Any) -> None:
    failed = of(CheckStatus.FAILED, list(make_sink(topic, topic="nobody-made-this").check()))
    assert "Create it with the partitions" in failed["topic 'nobody-made-this': existence"]
    assert TRIED not in failed
    failed = of(CheckStatus.FAILED, list(make_sink(topic, transaction_timeout_ms=86_400_000).check()))
    assert "transaction.max.timeout.ms" in failed["transaction options"]


def test_what_may_lose_records_is_warned_of(topic: Any, make_sink: Any) -> None:
    warned = of(CheckStatus.WARNING, list(make_sink(topic, transaction_timeout_ms=60_000).check()))
    assert "; raise 'transaction.timeout.ms'" in warned["transaction timeout"]
    warned = of(CheckStatus.WARNING, list(make_sink(topic, delivery="at-least-once").check()))
    assert "duplicate or lose" in warned["option 'delivery'"]
    warned = of(CheckStatus.WARNING, list(make_sink(topic, topic=None).check()))
    assert "create the topics first" in warned["topics of the column 'topic'"]
    assert checks.clock(-4.9).result is CheckStatus.PASSED
    assert "5.1 s ahead of this machine's" in checks.clock(5.1).detail
    assert "5.1 s behind this machine's" in checks.clock(-5.1).detail


@pytest.mark.long
def test_the_least_rights_pass_and_each_that_is_missing_is_found_by_trying(
    second_broker: Any, make_topic: Any, make_sink: Any, prefix: str, wait: Any
) -> None:
    topic = make_topic(on=second_broker.broker)
    user = as_user(second_broker, "denied")
    allow(second_broker, "denied", AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name)

    def examined(**options: Any) -> list[CheckResult]:
        return list(make_sink(topic, message_timeout_ms=5_000, **user, **options).check())

    wait.until("DESCRIBE is granted", lambda: f"topic {topic.name!r}: existence" in of(CheckStatus.PASSED, examined()))
    denied = of(CheckStatus.FAILED, examined())
    assert "WRITE and DESCRIBE on the transactional ids" in denied["transaction options"]
    assert TRIED not in denied
    ids = ResourceType.TRANSACTIONAL_ID, f"{prefix}.", ResourcePatternType.PREFIXED
    allow(second_broker, "denied", AclOperation.WRITE, *ids)
    wait.until("the ids are granted", lambda: "TopicAuthorization" in of(CheckStatus.FAILED, examined()).get(TRIED, ""))

    grant(second_broker, "denied", topic.name, prefix)
    wait.until("the topic is granted", lambda: not of(CheckStatus.FAILED, examined()))
    warned = of(CheckStatus.WARNING, examined())
    assert "READ on the topic" in warned[f"topic {topic.name!r}: detection of hanging transactions (KAFKA-20734)"]
    assert "ALTER on the cluster" in warned[MARKERS]
    assert "DESCRIBE_CONFIGS" in warned["topic '__transaction_state': replication"]
    assert "DESCRIBE_CONFIGS" in warned["transactional.id.expiration.ms of the brokers"]
    wait.until("what was tried is rolled back", topic.has_no_open_transaction)
    assert topic.records("read_uncommitted") == []


def test_a_group_for_progress_is_tried_and_keeps_its_place(topic: Any, prefix: str) -> None:
    group = Group(topic, prefix)
    sink = group.sink()
    findings = list(sink.check())
    assert of(CheckStatus.FAILED, findings) == {}
    assert {TRIED, f"consumer group {group.name!r}: members"} <= of(CheckStatus.PASSED, findings).keys()
    assert list(sink.recover()) == []
