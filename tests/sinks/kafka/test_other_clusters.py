"""Clusters that lack what the sink needs, or answer otherwise than Kafka does. What they lack is found before the first
batch, and what they can't prove stops the query instead of repeating for ever."""

import logging
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import kafka.errors
import pyarrow as pa
import pytest
from kafka.protocol.admin.groups import ListGroupsRequest, ListGroupsResponse
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.metadata import FindCoordinatorResponse
from kafka.protocol.producer.transaction import InitProducerIdRequest, InitProducerIdResponse, WriteTxnMarkersRequest

from tests.sinks.kafka.arrow.java import run_java
from tests.support.phase_one import writes
from twopc import Coordinator
from twopc.checks import CheckResult, CheckStatus
from twopc.errors import ConfigurationError, OutcomeUnknown, Retriable, RoundAborted
from twopc.sink import TwoPhaseCommitSink
from twopc_kafka import KafkaSink, checks
from twopc_kafka.answers import NotCommitted, TransactionState, unanswered
from twopc_kafka.client import requests
from twopc_kafka.client.control import Control
from twopc_kafka.offsets_sink import KafkaProgressSink
from twopc_kafka.sink import _GivenUp
from twopc_kafka_broker import KafkaBroker

OFFSET = pa.record_batch([["orders"], pa.array([0], pa.int32()), [5]], ["topic", "partition", "offset"])


def found(sink: KafkaSink, result: CheckStatus) -> dict[str, CheckResult]:
    return {each.check: each for each in sink.check() if each.result is result}


@pytest.fixture
def progress_sink(topic: Any, prefix: str) -> KafkaProgressSink:
    given = {"bootstrap.servers": topic.servers, "group.id": topic.name, "transactional.id.prefix": prefix}
    sink = KafkaProgressSink(given)
    sink.bind("progress", "log")
    return sink


# Requests that are missing. -------------------------------------------------------------------------------------------


@pytest.fixture
def without(topic: Any, make_sink: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A sink whose brokers lack a request."""

    def make(request: Any) -> KafkaSink:
        sink: KafkaSink = make_sink(topic)
        sink.open()
        monkeypatch.delitem(sink._control.manager.broker_version_data.api_versions, request.API_KEY)
        return sink

    return make


@pytest.mark.advice("do not support … without which the sink can't roll back")
def test_brokers_without_a_request_that_a_crash_needs_are_refused_before_the_first_batch(
    without: Any, topic: Any, make_sink: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r"do not support DescribeProducers.* Use brokers that do"):
        without(DescribeProducersRequest).open()
    monkeypatch.undo()
    sink = make_sink(topic, log_id=None)
    run_a_batch(sink, pa.record_batch({"value": ["a"]}), tmp_path / "log", start_timeout_s=30)
    topic.becomes(["a"])


def test_what_is_decided_is_committed_before_the_next_batch_is_refused(
    without: Any, pre_commit: Any, topic: Any, wait: Any
) -> None:
    sink = without(WriteTxnMarkersRequest)
    committable = pre_commit(sink, ["a"])
    sink.pending = {0: (committable,)}
    sink._options = replace(sink._options, asks_for_most=False).with_transaction_timeout(2**31 - 1)
    sink._options = replace(sink._options, has_timeout=True, two_phase_commit="off")
    schema = pa.schema({"value": "string"})
    sink.require_valid(schema)  # as a query does before its log is opened
    wait.repeated(sink.open)
    sink.commit(committable)
    topic.becomes(["a"])
    with pytest.raises(ConfigurationError, match=r"transaction\.max\.timeout\.ms"):
        sink.require_valid(schema)


def test_the_doctor_warns_of_brokers_that_write_no_missing_marker(without: Any) -> None:
    warned = found(without(WriteTxnMarkersRequest), CheckStatus.WARNING)
    assert "WriteTxnMarkers" in warned["right to write missing markers (KAFKA-20734)"].detail


def test_the_doctor_goes_on_where_no_topic_of_transactions_is_listed(
    topic: Any, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "TRANSACTION_LOG", "not-listed")
    results = {each.check: each for each in sink.check()}
    assert "list no such topic" in results["topic 'not-listed': replication"].detail
    assert results["right to write missing markers (KAFKA-20734)"].result is CheckStatus.PASSED


# Coordinators. --------------------------------------------------------------------------------------------------------


def test_a_missing_coordinator_names_the_settings_that_keep_one_away() -> None:
    reason = unanswered(kafka.errors.CoordinatorNotAvailableError("orders"))
    for setting in (
        *("transaction.state.log.replication.factor", "transaction.state.log.min.isr"),
        "offsets.topic.replication.factor",
    ):
        assert setting in reason


def sinks(broker: KafkaBroker) -> dict[str, tuple[TwoPhaseCommitSink[Any], pa.RecordBatch]]:
    at = {"bootstrap.servers": broker.bootstrap_servers}
    records = pa.record_batch({"value": ["a"]})
    return {
        "arrow": (KafkaSink({**at, "topic": "orders"}), records),
        "librdkafka": (KafkaSink({**at, "topic": "orders", "writer": "librdkafka"}), records),
        "offsets": (KafkaProgressSink({**at, "group.id": "orders"}), OFFSET),
    }


def run_a_batch(sink: TwoPhaseCommitSink[Any], batch: pa.RecordBatch, log: Path, start_timeout_s: float) -> None:
    with Coordinator({"sink": sink}, log, owner="query", start_timeout_s=start_timeout_s) as coordinator:
        coordinator.run(0, writes({"sink": sink}, batch))


@pytest.mark.long  # starts a broker twice
@pytest.mark.advice("a broker answered …")
@pytest.mark.parametrize("setting", ["transaction.state.log.replication.factor", "offsets.topic"])
def test_a_single_broker_with_kafkas_default_replication_is_told_in_time_and_the_advice_works(
    setting: str, tmp_path: Path
) -> None:
    lowered = {
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "offsets.topic.replication.factor": 1,
    }
    first = lowered | {name: 3 for name in lowered if name.startswith(setting)}
    concerned = ["offsets"] if setting == "offsets.topic" else ["arrow", "librdkafka", "offsets"]
    with KafkaBroker(tmp_path / "broker", properties=first) as broker:
        broker.create_topic("orders")
        for name in concerned:
            sink, batch = sinks(broker)[name]
            began_s = time.monotonic()
            with pytest.raises(Retriable, match=setting):
                run_a_batch(sink, batch, tmp_path / name, start_timeout_s=3)
            assert time.monotonic() - began_s < 30
        (tmp_path / "sinks.toml").write_text(
            '[sink]\nbackend = "kafka-offsets"\ngroup.id = "orders"\n'
            f'bootstrap.servers = "{broker.bootstrap_servers}"\n'
        )
        command = [sys.executable, "-m", "twopc.cli", "doctor", "--sinks", str(tmp_path / "sinks.toml")]
        doctor = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert doctor.returncode != 0
        assert setting in doctor.stdout
    with KafkaBroker(tmp_path / "broker", properties=lowered) as broker:
        for name in concerned:
            sink, batch = sinks(broker)[name]
            run_a_batch(sink, batch, tmp_path / name, start_timeout_s=60)


@pytest.fixture
def unprovable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the cluster coordinate two ids of one Java hash at two brokers."""
    send = Control.send

    def answered(control: Control, request: Any, node: int | None = None) -> Any:
        name = request.transactional_id if isinstance(request, InitProducerIdRequest) else ""
        if "probe" in name and not name.endswith("probe"):  # beside another
            asked: Any = control.manager.call_soon(lambda: _soon(InitProducerIdResponse(error_code=16)))
            return asked
        return send(control, request, node)

    async def find(control: Control, names: list[str], kind: Any) -> list[tuple[str, Any]]:
        found = await real_find(control, names, kind)
        if len(names) < 2:
            return found
        of = FindCoordinatorResponse.Coordinator
        return [(name, of(key=name, node_id=number, error_code=0)) for number, name in enumerate(names)]

    real_find = Control.find
    monkeypatch.setattr(Control, "send", answered)
    monkeypatch.setattr(Control, "find", find)


async def _soon(answer: Any) -> Any:
    return answer


def test_a_cluster_that_can_not_prove_what_it_says_vetoes_the_batch_and_stops_a_decided_one(
    topic: Any, sink: Any, pre_commit: Any, wait: Any, request: pytest.FixtureRequest
) -> None:
    committable = pre_commit(sink, ["a"])
    sink.abort(committable)
    name = committable.transaction_id
    wait.until("it is rolled back", lambda: sink._control.describe([name])[name].state == "CompleteAbort")
    request.getfixturevalue("unprovable")
    with pytest.raises(OutcomeUnknown, match=r"can't prove that its answer.*Read the topic") as stopped:
        sink.commit(committable)
    assert not stopped.value.was_refused_at_first
    with pytest.raises(RoundAborted, match="can't prove that its answer"):
        sink.seal([committable], age_s=0)
    assert not sink._control.can_prove(sink.transactional_ids.scope)


def test_the_doctor_tells_what_a_cluster_can_not_prove_or_does_not_report(
    sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Control, "can_prove", lambda *_: False)
    monkeypatch.setattr(TransactionState, "may_go_on", False)
    monkeypatch.setattr(Control, "expiration_ms", lambda _: 3_600_000)
    warned = found(sink, CheckStatus.WARNING)
    assert "OutcomeUnknown" in warned["proof of what coordinators report"].detail
    assert "takes a new one" in warned["report of a committed transaction"].detail
    assert warned["transactional.id.expiration.ms of the brokers"].detail.startswith("1 h: ")


def test_ids_that_grow_are_warned_of_at_the_tenth_and_then_ever_more_seldom(caplog: pytest.LogCaptureFixture) -> None:
    given_up = _GivenUp()
    for number in range(1, 121):
        given_up.note(NotCommitted(f"orders.{number}", "Empty"))
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.split(" transactional")[0] for text in warned] == [
        f"this process has given up {count}" for count in (10, 100)
    ]
    assert "Empty" in warned[0]


# Groups that take no offsets. -----------------------------------------------------------------------------------------


def answering_groups(monkeypatch: pytest.MonkeyPatch, group: str, type_: str) -> None:
    send = Control.send

    def answered(control: Control, request: Any, node: int | None = None) -> Any:
        if isinstance(request, ListGroupsRequest):
            listed = ListGroupsResponse.ListedGroup(group_id=group, group_state="Empty", group_type=type_)
            return control.manager.call_soon(lambda: _soon(ListGroupsResponse(error_code=0, groups=[listed])))
        return send(control, request, node)

    monkeypatch.setattr(Control, "send", answered)


@pytest.mark.advice("can't take the query's offsets")
@pytest.mark.parametrize(("type_", "is_taken"), [("share", True), ("streams", True), ("Classic", False), ("", False)])
def test_only_an_empty_consumer_group_takes_offsets(
    type_: str,
    is_taken: bool,
    topic: Any,
    progress_sink: Any,
    monkeypatch: pytest.MonkeyPatch,
    wait: Any,
    tmp_path: Path,
) -> None:
    wait.repeated(lambda: progress_sink.validate(OFFSET.schema))
    answering_groups(monkeypatch, topic.name, type_)
    if is_taken:
        with pytest.raises(ConfigurationError, match=f"it is a {type_} group.*Name a group that only this query uses"):
            progress_sink.validate(OFFSET.schema)
        own = {"bootstrap.servers": topic.servers, "group.id": f"{topic.name}-own"}
        read = OFFSET.set_column(0, "topic", pa.array([topic.name]))
        run_a_batch(KafkaProgressSink(own), read, tmp_path / "log", start_timeout_s=30)
    else:
        progress_sink.validate(OFFSET.schema)


@pytest.mark.long
def test_what_refuses_the_offsets_is_found_by_the_trial_of_the_doctor(
    progress_sink: Any, monkeypatch: pytest.MonkeyPatch, topic: Any
) -> None:
    passed = found(progress_sink, CheckStatus.PASSED)
    assert "trial transaction" in passed
    monkeypatch.setattr(requests, "commit_offsets", _into_another_group(requests.commit_offsets))
    failed = found(progress_sink, CheckStatus.FAILED)["trial transaction"]
    assert "INVALID_GROUP_ID" in failed.detail
    assert "group.id" in failed.detail


def _into_another_group(commit_offsets: Any) -> Any:
    def into_none(name: str, producer: Any, group: str, offsets: Any) -> Any:
        return commit_offsets(name, producer, "", offsets)

    return into_none


@pytest.mark.long  # compiles a Java program
def test_a_share_group_is_refused_by_the_doctor_and_at_the_first_batch(
    topic: Any, progress_sink: Any, tmp_path: Path
) -> None:
    run_java("ShareGroup.java", topic.servers, topic.name, topic.name)
    failed = found(progress_sink, CheckStatus.FAILED)
    assert "share group" in failed[f"consumer group {topic.name!r}: members"].detail.lower()
    progress = KafkaProgressSink({"bootstrap.servers": topic.servers, "group.id": topic.name})
    with pytest.raises(ConfigurationError, match=r"(?i)it is a share group"):
        run_a_batch(progress, OFFSET, tmp_path / "log", start_timeout_s=30)
