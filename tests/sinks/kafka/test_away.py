"""A partition that nobody leads: what does not write to it goes on, and what was rolled back there stays invisible."""

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.sinks.kafka.conftest import Topic
from tests.sinks.kafka.known_topics import wait_until_known
from tests.sinks.kafka.writing import sealed
from tests.support.phase_one import writes
from twopc import Coordinator, Round
from twopc.checks import CheckStatus
from twopc.errors import Retriable
from twopc_kafka import KafkaSink
from twopc_kafka_broker import KafkaBroker

pytestmark = [pytest.mark.crash, pytest.mark.long]


@dataclass(frozen=True)
class TwoBrokers:
    """One leads all internal topics, the other may be killed."""

    one: KafkaBroker
    other: KafkaBroker

    def create_topic(self, on: Sequence[int]) -> str:
        """A topic with one partition on each of these nodes, without replicas."""
        name = f"orders-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": self.one.bootstrap_servers})
        topic = NewTopic(name, len(on), replica_assignment=[[node] for node in on])
        admin.create_topics([topic])[name].result(timeout=15)
        wait_until_known(self.one.bootstrap_servers, name)
        return name


@pytest.fixture(scope="module")
def started() -> Iterator[TwoBrokers]:
    with KafkaBroker() as one:
        one.create_topic("first")
        sink = KafkaSink({"bootstrap.servers": one.bootstrap_servers, "topic": "first"})
        sink.bind("orders", "first")
        write(sink, "a")  # so that __transaction_state is made here alone
        with closing(KafkaBroker(properties={"node.id": 2}, joins=one)) as other:
            yield TwoBrokers(one, other)


@pytest.fixture
def brokers(started: TwoBrokers) -> TwoBrokers:
    started.other.start()
    return started


@pytest.fixture
def make(brokers: TwoBrokers, make_sink: Any) -> Any:
    def sink(topic: str | None = None, log_id: str | None = "log") -> KafkaSink:
        made: KafkaSink = make_sink(Topic(brokers.one.bootstrap_servers, topic or ""), log_id, topic=topic)
        return made

    return sink


def write(sink: KafkaSink, value: str, round: Round = Round(1, 0), **where: Any) -> Any:  # noqa: B008
    """What was pre-committed, and sealed."""
    columns = {name: pa.array([at], pa.int32() if name == "partition" else None) for name, at in where.items()}
    return sealed(sink, pa.record_batch({"value": pa.array([value]), **columns}), round=round)


def leaderless(sink: KafkaSink, topic: str) -> int | None:
    """How many of its partitions nobody leads; None while nobody answers that."""
    try:
        return len(sink._leaders.away(topic))
    except Retriable:
        return None


def visible(brokers: TwoBrokers, topic: str) -> list[str]:
    return Topic(brokers.one.bootstrap_servers, topic).visible()


def test_a_batch_that_does_not_write_to_the_partition_goes_on_and_the_operator_is_told_which_it_is(
    brokers: TwoBrokers, make: Any, tmp_path: Path, wait: Any, caplog: pytest.LogCaptureFixture
) -> None:
    away, there = brokers.create_topic([2]), brokers.create_topic([1])
    sink = make(log_id=None)
    coordinator = Coordinator({"orders": sink}, str(tmp_path), owner="query")

    def run(batch_id: int, topic: str) -> None:
        coordinator.run(batch_id, writes({"orders": sink}, {"value": [str(batch_id)], "topic": [topic]}))

    run(0, away)
    brokers.other.kill()
    ran: list[int] = []

    def run_others() -> None:
        for batch_id in (1, 2, 3):
            run(batch_id, there)
            ran.append(batch_id)

    threading.Thread(target=run_others, daemon=True).start()
    wait.until("the batches that don't write there are through", lambda: ran == [1, 2, 3])
    assert caplog.text.count(f"partition {away}-0 can't be asked for hanging transactions") == 1
    brokers.other.start()
    wait.until("the partition is led", lambda: leaderless(sink, away) == 0)
    run(4, away)
    assert caplog.text.count(f"partition {away}-0 can be asked again") == 1
    coordinator.close()


def test_a_decided_batch_that_wrote_to_the_partition_waits_for_it_and_says_which_it_is(
    brokers: TwoBrokers, make: Any, wait: Any
) -> None:
    topic = brokers.create_topic([1, 2])
    sink = make(topic)
    decided = [write(sink, str(number), Round(1, number), partition=number) for number in (0, 1)]
    brokers.other.kill()
    wait.until("the partition has no leader", lambda: leaderless(sink, topic) == 1)
    for committable in decided:
        wait.repeated(sink.commit, committable)

    def waits_for() -> str:
        with pytest.raises(Retriable) as waiting:
            sink.complete(0, decided)
        return str(waiting.value)

    wait.until("the operator is told", lambda: f"partition {topic}-1 can't be asked: it has no leader" in waits_for())
    brokers.other.start()
    wait.repeated(lambda: sink.complete(0, decided))
    assert visible(brokers, topic) == ["0", "1"]


@pytest.mark.advice("wrote a marker that Kafka had left out")
def test_what_was_rolled_back_while_the_partition_was_away_is_ended_there_when_it_is_back(
    brokers: TwoBrokers, make: Any, wait: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = brokers.create_topic([2])
    sink = make(topic)
    write(sink, "undecided")
    brokers.other.kill()
    wait.until("the partition has no leader", lambda: leaderless(sink, topic) == 1)
    [open_] = wait.repeated(sink.recover)
    wait.repeated(sink.abort, open_)
    wait.repeated(sink.recover)
    brokers.other.start()

    def asks_all() -> bool:
        wait.sweep(sink)
        return not sink._hanging.away

    wait.until("the partition was asked", asks_all)
    decided = write(sink, "decided", Round(1, 4))
    wait.repeated(lambda: sink.commit(decided))
    wait.repeated(lambda: sink.complete(4, [decided]))
    assert visible(brokers, topic) == ["decided"]
    assert "wrote a marker that Kafka had left out" in caplog.text


def test_what_was_rolled_back_there_by_a_new_process_is_never_visible_though_a_column_names_the_topic(
    brokers: TwoBrokers, make: Any, wait: Any
) -> None:
    """The new process has never written there."""
    topic = brokers.create_topic([2])
    write(make(), "undecided", topic=topic)
    brokers.other.kill()
    sink = make(topic)
    wait.until("the partition has no leader", lambda: leaderless(sink, topic) == 1)
    sink = make()
    [open_] = wait.repeated(sink.recover)
    wait.repeated(sink.abort, open_)
    brokers.other.start()
    wait.until("the partition is led", lambda: leaderless(sink, topic) == 0)
    decided = write(sink, "decided", Round(1, 4), topic=topic)
    assert decided.transaction_id != open_.transaction_id
    wait.repeated(lambda: sink.commit(decided))
    wait.sweep(sink)
    assert visible(brokers, topic) == ["decided"]


def test_the_doctor_warns_of_a_partition_without_a_leader(brokers: TwoBrokers, make: Any, wait: Any) -> None:
    topic = brokers.create_topic([1, 2])
    sink = make(topic)
    what = f"topic {topic!r}: partition leaders"
    assert {f.check: f.result for f in sink.check()}[what] is CheckStatus.PASSED
    brokers.other.kill()
    wait.until("the partition has no leader", lambda: leaderless(sink, topic) == 1)
    [found] = [f for f in sink.check() if f.check == what]
    assert found.result is CheckStatus.WARNING
    assert f"{topic}-1" in found.found
