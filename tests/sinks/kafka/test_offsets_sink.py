"""Offsets in a consumer group, in the same decision as records: visible by the commit alone, and never ahead."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka.admin import AclOperation, ResourcePatternType, ResourceType
from kafka.protocol.producer.transaction import AddOffsetsToTxnRequest, TxnOffsetCommitRequest

from tests.sinks.kafka.access import allow, as_user
from tests.sinks.kafka.groups import Group
from tests.sinks.kafka.offsets_loop import BATCHES, KILLED_IN, PARTITIONS, RECORDS, Job, run, values
from tests.support.broker_properties import needs_kafka
from tests.support.kills import KillAt, run_killed
from tests.support.observing import Killed, Moments, killed, observing
from twopc import Coordinator, Participant, Round, Vote
from twopc.errors import ConfigurationError, OperatorRequired, Retriable, RoundAborted, SchemaMismatch, TransactionLost
from twopc.phases import Phase
from twopc_kafka import offsets_sink as progress
from twopc_kafka.client import control
from twopc_kafka.client.cluster import Cluster
from twopc_kafka.offsets_sink import KafkaProgressSink

LOOP = "tests.sinks.kafka.offsets_loop"


@pytest.fixture
def make_group(prefix: str, wait: Any) -> Callable[[Any], Group]:
    def make(topic: Any) -> Group:
        group = Group(topic, prefix)
        wait.until("the group has a coordinator", group.is_known)
        return group

    return make


@pytest.fixture
def group(make_topic: Any, make_group: Callable[[Any], Group]) -> Group:
    return make_group(make_topic(partitions=2))


# One transaction of offsets. ------------------------------------------------------------------------------------------


def test_a_zombies_late_commit_does_not_set_the_group_back(group: Group, wait: Any) -> None:
    """Which an offset that is committed without a transaction would."""
    zombie = group.sink()
    old = group.pre_commit(zombie, {0: 5}, Round(1, 0))
    for batch_id, sealed in ((0, old), (1, group.pre_commit(group.sink(), {0: 9}, Round(1, 1)))):
        wait.repeated(lambda sealed=sealed: group.sink().commit(sealed))
        group.sink().complete(batch_id, [sealed])
    wait.repeated(lambda: zombie.commit(old))
    assert group.offsets() == {0: 9}


def test_a_batch_is_complete_when_the_markers_are_written(sink: Any, pre_commit: Any) -> None:
    """Kafka mostly answers a commit before, and what commits last would be visible sooner than the records."""
    for batch_id in range(20):
        committable = pre_commit(sink, ["a"], Round(1, batch_id))
        sink.commit(committable)
        sink.complete(batch_id, [committable])
        [state] = sink._control.describe([committable.transaction_id]).values()
        assert state.state == "CompleteCommit"


def test_offsets_are_not_too_old_however_long_the_tasks_took(group: Group, wait: Any) -> None:
    sink = group.sink(transaction_timeout_ms=60_000)
    with Participant({"progress": sink}, Round(1, 0), partition=0) as participant:
        participant.write("progress", group.batch({0: 5}))
        [sealed] = sink.seal([participant.pre_commit()["progress"]], age_s=3600)
    wait.repeated(lambda: sink.commit(sealed))


@pytest.mark.long
@pytest.mark.crash
def test_a_broker_that_is_gone_for_too_long_costs_the_batch(
    second_broker: Any, make_topic: Any, make_group: Any
) -> None:
    """Librdkafka would wait for it without end."""
    group = make_group(make_topic(on=second_broker.broker))
    sink = group.sink(message_timeout_ms=3000)
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    second_broker.broker.kill()
    try:
        with pytest.raises(RoundAborted, match=rf"{group.name}.*(got no answer|failed for 3000 ms)"):
            sink.write(transaction, group.batch({0: 5}))
    finally:
        second_broker.broker.start()


# With records, on one decision. ---------------------------------------------------------------------------------------


@pytest.fixture
def job(group: Group, prefix: str, tmp_path: Path) -> Job:
    return Job(group.topic.servers, group.topic.name, group.name, prefix, str(tmp_path / "log"))


@pytest.mark.variants
@pytest.mark.parametrize(
    ("moment", "batches"), [("deciding", 1), ("committing", 1), ("commit of orders", 1), ("commit of a-progress", 2)]
)
def test_a_driver_that_dies_at_any_step_leaves_the_group_behind_the_records_and_the_next_settles_it(
    moment: str, batches: int, group: Group, job: Job, wait: Any
) -> None:
    with observing(KillAt(KILLED_IN, moment, killed)), pytest.raises(Killed):
        run(job)
    assert group.reaches(RECORDS * batches, wait)
    assert set(group.topic.visible()) >= set(values(batches))
    run(job)
    assert group.reaches(RECORDS * BATCHES, wait)
    group.topic.becomes(values(BATCHES))
    assert group.sink()._control.list_ongoing(job.prefix) == []


@pytest.mark.long
@pytest.mark.crash
def test_a_process_killed_before_the_offsets_are_committed_is_finished_by_another(
    group: Group, job: Job, wait: Any
) -> None:
    run_killed("-m", LOOP, json.dumps(asdict(job)), "commit of orders")
    assert group.reaches(RECORDS, wait)
    run(job)
    assert group.reaches(RECORDS * BATCHES, wait)
    group.topic.becomes(values(BATCHES))


def command(*arguments: object) -> dict[str, Any]:
    """What ``twopc`` says, as JSON."""
    given = [sys.executable, "-m", "twopc.cli", *map(str, arguments), "--yes", "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(given, capture_output=True, timeout=60, check=False).stdout)
    return found


@pytest.mark.long
@pytest.mark.crash
def test_offsets_of_a_killed_driver_that_are_lost_are_given_up_and_the_next_batch_makes_up_for_them(
    second_broker: Any, make_topic: Any, make_group: Any, prefix: str, tmp_path: Path, wait: Any
) -> None:
    group = make_group(make_topic(partitions=PARTITIONS, on=second_broker.broker))
    brief = {"transaction.timeout.ms": "2000", "commit.margin.ms": "1"}
    job = Job(group.topic.servers, group.topic.name, group.name, prefix, str(tmp_path / "log"), brief)
    run_killed("-m", LOOP, json.dumps(asdict(job)), "committing")
    ongoing = group.sink()._control.list_ongoing
    wait.until("the offsets are rolled back", lambda: len(ongoing(f"{prefix}.")) == PARTITIONS)

    sinks = tmp_path / "sinks.toml"
    common = f'bootstrap.servers = "{job.servers}"\ntransactional.id.prefix = "{prefix}"\n'
    sinks.write_text(
        f'[orders]\nbackend = "kafka"\ntopic = "{job.topic}"\n{common}'
        f'[a-progress]\nbackend = "kafka-offsets"\ngroup.id = "{job.group}"\n{common}'
    )
    lost = command("resolve", job.log, "--sinks", sinks)
    assert (lost["exit_code"], lost["error"]["kind"]) == (4, "TransactionLost")
    group.topic.becomes(values(2))
    assert group.reaches(RECORDS, wait)

    given_up = command("abandon", job.log, "--batch", 1, "--accept-loss", "--sinks", sinks)
    assert (given_up["exit_code"], given_up["noted"]) == (0, True)
    assert [(row["sink"], row["kind"]) for row in given_up["given_up"]] == [("a-progress", "TransactionLost")]
    assert group.reaches(RECORDS, wait)
    run(job)
    assert group.reaches(RECORDS * BATCHES, wait)
    group.topic.becomes(values(BATCHES))


@pytest.fixture
def one_batch(second_broker: Any, make_topic: Any, make_sink: Any, make_group: Any, tmp_path: Path) -> Any:
    """One batch of records and offsets by a driver that has just started; Kafka rolls it back after two seconds."""
    group = make_group(make_topic(on=second_broker.broker))
    timeout = {"transaction_timeout_ms": 2000, "commit_margin_ms": 1}

    def run(stage: str | None = None) -> None:
        sinks = {"orders": make_sink(group.topic, log_id=None), "progress": group.sink(log_id=None, **timeout)}

        def phase_one(round: Round) -> list[Vote]:
            with Participant(sinks, round, partition=0) as participant:
                participant.write("orders", pa.record_batch({"value": ["a"]}))
                participant.write("progress", group.batch({0: 1}))
                return [participant.pre_commit()]

        with Coordinator(sinks, f"{tmp_path}/log", owner="query", replay_copies=stage) as coordinator:
            coordinator.run(0, phase_one)

    run.group = group  # type: ignore[attr-defined]
    return run


@pytest.fixture
def killed_before_phase_two(one_batch: Any, wait: Any) -> Callable[[str | None], None]:
    """Decided, and the offsets rolled back by their time-out."""

    def run(stage: str | None) -> None:
        with observing(Moments(Phase.COMMITTING)), pytest.raises(Killed):
            one_batch(stage)
        sink = one_batch.group.sink(log_id=None)
        wait.until("the offsets are rolled back", lambda: len(sink._control.list_ongoing(sink.prefix)) == 1)

    return run


def test_offsets_that_timed_out_after_their_decision_are_written_again_from_their_copy(
    one_batch: Any, killed_before_phase_two: Any, tmp_path: Path
) -> None:
    killed_before_phase_two(f"{tmp_path}/stage")
    one_batch(f"{tmp_path}/stage")
    assert one_batch.group.offsets() == {0: 1}


@pytest.mark.long
def test_without_a_copy_the_records_are_committed_and_the_error_says_how_to_go_on(
    one_batch: Any, killed_before_phase_two: Any
) -> None:
    killed_before_phase_two(None)
    with pytest.raises(TransactionLost, match=r"until the next batch.*'twopc abandon'"):
        one_batch()
    one_batch.group.topic.becomes(["a"])
    assert one_batch.group.offsets() == {}


def test_a_group_is_added_to_a_transaction_once(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second time, after a rollback, it would begin another transaction where transaction.version is below 2."""
    real, seen = Cluster.send, []

    async def send(cluster: Cluster, node: int, request: Any, timeout_ms: int | None = None) -> Any:
        seen.append(type(request))
        return await real(cluster, node, request, timeout_ms)

    monkeypatch.setattr(Cluster, "send", send)
    with Participant({"progress": group.sink()}, Round(1, 0), partition=0) as participant:
        for partition in range(2):
            participant.write("progress", group.batch({partition: 7}))
        participant.pre_commit()
    assert (seen.count(AddOffsetsToTxnRequest), seen.count(TxnOffsetCommitRequest)) == (1, 2)


# What is refused. -----------------------------------------------------------------------------------------------------


@pytest.fixture
def joined(group: Group, wait: Any) -> Callable[[str], Any]:
    """A new member of the group, by either of Kafka's protocols."""

    def join(protocol: str) -> Any:
        properties = {"bootstrap.servers": group.topic.servers, "group.id": group.name, "group.protocol": protocol}
        member = confluent_kafka.Consumer(properties)
        member.subscribe([group.topic.name])
        wait.until("it is a member", lambda: member.poll(0.1) is None and bool(member.assignment()))
        return member

    return join


@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=needs_kafka(4, 0))])
def test_a_group_that_somebody_reads_by_is_refused(protocol: str, group: Group, joined: Any) -> None:
    """The broker would let the offsets in, and whoever reads by the group would lose its place."""
    schema = group.batch({}).schema
    group.sink().validate(schema)
    member = joined(protocol)
    with pytest.raises(ConfigurationError, match=rf"{group.name}.*'group\.id'.*has members"):
        group.sink().validate(schema)
    member.close()
    group.sink().validate(schema)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "has gained members" in record.getMessage()]


def test_a_member_that_joins_while_the_query_runs_is_warned_of_once_each_time(
    group: Group,
    joined: Callable[[str], Any],
    wait: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "MEMBERS_INTERVAL_S", 0.0)
    sink = group.sink()
    sink.validate(group.batch({}).schema)
    batches = itertools.count()

    def runs_a_batch() -> None:
        batch_id = next(batches)
        committable = group.pre_commit(sink, {0: batch_id}, Round(1, batch_id))
        wait.repeated(lambda: sink.commit(committable))
        sink.complete(batch_id, [committable])

    for times in (1, 2):
        runs_a_batch()
        assert len(warnings_of(caplog)) == times - 1
        member = joined("classic")
        for _ in range(3):
            runs_a_batch()
        assert len(warnings_of(caplog)) == times
        member.close()
        runs_a_batch()
    assert group.name in warnings_of(caplog)[0]
    assert "'group.id'" in warnings_of(caplog)[0]


def test_members_are_looked_for_seldom_and_no_batch_fails_of_it(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def taken_by(_: object, name: str) -> NoReturn:
        looks.append(name)
        raise Retriable("the cluster did not answer")

    sink = group.sink()
    sink.require_valid(group.batch({}).schema)
    monkeypatch.setattr(control.Control, "taken_by", taken_by)
    for batch_id in range(5):
        group.pre_commit(sink, {0: 5}, Round(1, batch_id))
    assert looks == [group.name]


def test_offsets_of_a_topic_that_this_cluster_does_not_have_are_refused_by_name(group: Group) -> None:
    elsewhere = pa.record_batch([["elsewhere"], [0], [1]], group.batch({}).schema)
    sink = group.sink()
    participant = Participant({"progress": sink}, Round(1, 0), partition=0)
    with (
        pytest.raises(ConfigurationError, match=rf"{group.name}.*on the cluster that the query reads from"),
        participant,
    ):
        participant.write("progress", elsewhere)
    assert sink.recover() == []


def test_columns_that_are_no_offsets_are_refused(group: Group) -> None:
    with pytest.raises(SchemaMismatch, match=r"'topic': .*'partition': .*'offset': .*not \['value'\]"):
        group.sink().validate(pa.schema({"value": "string"}))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "'group.id'"),
        ({"group.id": ""}, "'group.id'"),
        ({"group.id": "g", "topic": "t"}, "'topic'"),
        ({"group.id": "g", "delivery": "none"}, "'delivery'"),
        ({"group.id": "g", "writer": "arrow"}, "'writer'"),
        ({"group.id": "g", "linger.ms": "1"}, "'linger.ms'"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        KafkaProgressSink({"bootstrap.servers": "x:1", **options})


def test_the_rights_of_the_readme_suffice_and_what_is_denied_is_told(
    second_broker: Any, make_topic: Any, make_group: Any, prefix: str, wait: Any
) -> None:
    group = make_group(make_topic(on=second_broker.broker))
    sink, schema = group.sink(**as_user(second_broker, "granted")), group.batch({}).schema
    with pytest.raises(OperatorRequired, match=r"READ on its group and on the topics"):
        sink.validate(schema)
    sink._validated = schema  # as of a sink that a driver with these rights has validated

    def pre_commits(denied: str | None = None) -> bool:
        try:
            committable = group.pre_commit(sink, {0: 5})
        except (RoundAborted, OperatorRequired) as error:
            return denied is not None and denied in str(error)
        wait.repeated(lambda: sink.commit(committable))
        return denied is None

    ids = ResourceType.TRANSACTIONAL_ID, f"{prefix}.", ResourcePatternType.PREFIXED
    allow(second_broker, "granted", AclOperation.WRITE, *ids)
    wait.until("the group is denied", lambda: pre_commits("GROUP_AUTHORIZATION_FAILED. Grant"))
    allow(second_broker, "granted", AclOperation.READ, ResourceType.GROUP, group.name)
    wait.until("the topic is denied", lambda: pre_commits("TOPIC_AUTHORIZATION_FAILED. Grant"))
    allow(second_broker, "granted", AclOperation.READ, ResourceType.TOPIC, group.topic.name)
    wait.until("all is granted", pre_commits)
    sink.validate(schema)
    wait.until("the group has them", lambda: group.offsets() == {0: 5})
