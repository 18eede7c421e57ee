"""The cluster's transaction.version, lowered amid a transaction: what was decided is committed, or an operator is told.

Kafka 4.3.1 does not get over an EndTxn of version 5 that comes when transaction.version is 0: the transaction stays as
it is until the brokers are restarted, and times out.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.campaigns.jepsen.transaction_version import request
from tests.sinks.kafka.writing import written
from twopc import Committable, Coordinator, Round
from twopc.errors import OperatorRequired, Retriable
from twopc_kafka import ending
from twopc_kafka.answers import TransactionState
from twopc_kafka.client.control import Control, control_of
from twopc_kafka.handles import identity_of, version_of
from twopc_kafka_broker import KafkaBroker

pytestmark = pytest.mark.long


class Cluster:
    """One broker, and its transaction.version."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self.version = 2

    def set(self, version: int, wait: Any) -> None:
        """On return all that the tests' sinks ask know it: they share a connection."""
        control = control_of({"bootstrap_servers": [self.broker.bootstrap_servers]})
        if version != self.version:
            assert wait.repeated(lambda: request(control, version, raises=version > self.version)) == 0
            self.version = version
        wait.until(f"transaction.version is {version}", lambda: control.transaction_version == version)

    def restart(self) -> None:
        self.broker.stop()
        self.broker.start()


@pytest.fixture(scope="module")
def started() -> Iterator[Cluster]:
    with KafkaBroker() as broker:
        yield Cluster(broker)


@pytest.fixture
def cluster(started: Cluster, wait: Any) -> Cluster:
    started.set(2, wait)
    return started


@pytest.fixture
def topic(cluster: Cluster, make_topic: Any) -> Any:
    return make_topic(on=cluster.broker)


@pytest.fixture
def committable(sink: Any, pre_commit: Any) -> Committable:
    """Sealed while transaction.version is 2."""
    decided: Committable = pre_commit(sink, ["a"])
    return decided


def ended(sink: Any, committable: Committable, *, commit: bool) -> str:
    """By the version that was sealed, whatever the cluster's is."""
    sink._control._versions = {node: (2, float("inf")) for node in sink._control.brokers()}
    name, identity = committable.transaction_id, identity_of(committable)
    answer: str = sink._control.end(name, *identity, commit, version_of(committable))
    sink._control._versions = {}
    return answer


@pytest.mark.parametrize("version", [0, 1])
def test_what_was_decided_before_the_version_was_lowered_is_committed_also_when_it_is_raised_again(
    version: int, cluster: Cluster, topic: Any, sink: Any, make_sink: Any, committable: Committable, wait: Any
) -> None:
    assert committable.handle["end_txn_version"] == 5
    cluster.set(version, wait)
    wait.repeated(lambda: sink.commit(committable))
    wait.repeated(lambda: sink.complete(0, [committable]))
    assert topic.visible() == ["a"]
    cluster.set(2, wait)
    for process in (sink, make_sink(topic)):
        wait.repeated(process.commit, committable)
        wait.repeated(process.complete, 0, [committable])


def test_what_was_committed_before_the_version_was_lowered_is_committed(
    cluster: Cluster, topic: Any, sink: Any, pre_commit: Any, wait: Any
) -> None:
    committable = pre_commit(sink, ["a"])
    wait.repeated(lambda: sink.commit(committable))
    wait.repeated(lambda: sink.complete(0, [committable]))
    cluster.set(0, wait)
    wait.repeated(lambda: sink.commit(committable))
    assert topic.visible() == ["a"]


def test_a_query_goes_on_while_the_version_is_lowered_and_raised(
    cluster: Cluster, topic: Any, make_sink: Any, wait: Any, tmp_path: Path
) -> None:
    sink = make_sink(topic, log_id=None)
    lowered: list[int] = []

    def phase_one(round: Round) -> list[Any]:
        vote = written(sink, str(round.batch_id), round=round)
        written(sink, "lost", round=round, partition=1)  # for the sweep
        version = (2, 0, 0, 1, 0, 2)[round.batch_id]
        cluster.set(version, wait)
        lowered.append(version)
        return [{"orders": vote}]

    with Coordinator({"orders": sink}, str(tmp_path), owner="query") as coordinator:
        for batch_id in range(6):
            coordinator.run(batch_id, phase_one)
    assert lowered == [2, 0, 0, 1, 0, 2]
    topic.becomes([str(batch_id) for batch_id in range(6)])
    assert topic.has_no_open_transaction()


@pytest.mark.parametrize("raised", [0, 1])
def test_an_operator_is_told_what_to_do_about_a_transaction_that_kafka_does_not_get_over(
    raised: int,
    cluster: Cluster,
    topic: Any,
    sink: Any,
    make_sink: Any,
    committable: Committable,
    wait: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster.set(0, wait)
    assert ended(sink, committable, commit=True) == "UNSUPPORTED_VERSION"
    with monkeypatch.context() as patch:
        patch.setattr(ending, "STUCK_S", 0.5)  # a restarted coordinator below may take longer
        for process in (sink, make_sink(topic)):
            with pytest.raises(
                OperatorRequired, match=rf"{committable.transaction_id}: transaction\.version was lowered"
            ):
                wait.repeated(process.commit, committable)
    cluster.set(raised, wait)
    cluster.restart()
    wait.repeated(lambda: make_sink(topic).commit(committable))
    topic.becomes(["a"])


@pytest.mark.parametrize(
    "answers",
    [
        ["COORDINATOR_LOAD_IN_PROGRESS"] * 3,
        ["NOT_COORDINATOR"] * 3,
        ["CONCURRENT_TRANSACTIONS", "COORDINATOR_NOT_AVAILABLE", "CONCURRENT_TRANSACTIONS"],
    ],
)
def test_only_a_transaction_that_looks_stuck_each_time_counts_as_stuck(
    answers: list[str],
    answer_first: Any,
    cluster: Cluster,
    topic: Any,
    sink: Any,
    pre_commit: Any,
    wait: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as after a restart, while coordinators load their transactions."""
    committable = pre_commit(sink, ["a"])
    cluster.set(0, wait)
    monkeypatch.setattr(ending, "STUCK_S", 0.0)
    left = answer_first(answers)
    wait.repeated(lambda: sink.commit(committable))
    assert not left
    topic.becomes(["a"])


def test_an_operator_is_told_at_once_where_the_version_is_lowered_between_the_look_at_it_and_the_commit(
    cluster: Cluster, sink: Any, pre_commit: Any, wait: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable = pre_commit(sink, ["a"])
    cluster.set(0, wait)

    async def looked_too_early(*_: object) -> int:
        return 2

    monkeypatch.setattr(sink._control, "_transaction_version", looked_too_early)
    with pytest.raises(OperatorRequired, match=r"transaction\.version was lowered below 1"):
        sink.commit(committable)
    cluster.restart()


@pytest.mark.parametrize("version", [0, 2])
def test_an_operator_is_told_of_a_commit_whose_end_kafka_could_not_note(
    version: int, cluster: Cluster, sink: Any, pre_commit: Any, wait: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As seen when the version is lowered amid the markers: they are all written, and it stays like that."""
    monkeypatch.setattr(ending, "STUCK_S", 0.2)
    monkeypatch.setattr(ending, "MARKERS_TIMEOUT_S", 0.2)
    committable = pre_commit(sink, ["a"])
    sink.commit(committable)
    cluster.set(version, wait)
    of: Any = committable.handle
    stuck = TransactionState("PrepareCommit", of["producer_id"], of["producer_epoch"] + 1, {})
    monkeypatch.setattr(Control, "describe", lambda *_: {committable.transaction_id: stuck})
    for call in (partial(sink.complete, 0, [committable]), partial(sink.commit, committable)):
        with pytest.raises(OperatorRequired if version == 0 else Retriable, match=r"transaction\.version"):
            wait.repeated(call) if version == 0 else call()
        monkeypatch.setattr(Control, "end", lambda *_, **__: "PRODUCER_FENCED")


def test_what_nobody_decided_is_rolled_back_while_the_version_is_lowered(
    cluster: Cluster, topic: Any, sink: Any, pre_commit: Any, wait: Any
) -> None:
    pre_commit(sink, ["a"])
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 1))
    sink.write(transaction, pa.record_batch({"value": ["b"]}))
    cluster.set(0, wait)
    sink.discard(transaction)
    for open_ in sink.recover():
        wait.repeated(sink.abort, open_)
    topic.stays_empty()
