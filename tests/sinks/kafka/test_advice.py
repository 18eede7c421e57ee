"""What the errors of the Kafka sink advise is done, and works: the query goes on, and the records are there once."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions

from tests.sinks.kafka.test_other_clusters import unprovable  # noqa: F401  # a fixture
from tests.support.advice import Query, raises, told
from twopc import Participant, Round
from twopc.errors import ConfigurationError, OperatorRequired, RecordRefused
from twopc.log.history import read_history
from twopc_kafka import ending
from twopc_kafka.answers import TransactionState
from twopc_kafka.client import control
from twopc_kafka.client.control import Control
from twopc_kafka.sink import KafkaSink
from twopc_kafka.writers.librdkafka import Writer


@pytest.fixture
def query(topic: Any, prefix: str, tmp_path: Path) -> Query:
    given = {"bootstrap.servers": topic.servers, "topic": topic.name, "transactional.id.prefix": prefix}
    return Query(tmp_path, "kafka", given, start_timeout_s=60)  # of a broker that has just started


# What can't be committed any more. ------------------------------------------------------------------------------------


def sink_of(query: Query) -> KafkaSink:
    """Another process's."""
    sink = KafkaSink(query.options)
    sink.bind("orders", read_history(str(query.log)).tail.log_id)
    return sink


def roll_back(query: Query, wait: Any, request: pytest.FixtureRequest) -> None:
    [committable], sink = query.decided(), sink_of(query)
    wait.repeated(lambda: sink.abort(committable))
    name = committable.transaction_id
    wait.until("it is rolled back", lambda: sink._control.describe([name])[name].state == "CompleteAbort")


def use_again(query: Query, wait: Any, request: pytest.FixtureRequest) -> None:
    [committable] = query.decided()
    Writer(sink_of(query)._options, committable.transaction_id)


def make_unprovable(query: Query, wait: Any, request: pytest.FixtureRequest) -> None:
    roll_back(query, wait, request)
    request.getfixturevalue("unprovable")


LOST: dict[str, Callable[[Query, Any, pytest.FixtureRequest], None]] = {
    ", but Kafka has rolled it back": roll_back,
    "and Kafka can't say what became of it": use_again,
    "can't prove that its answer about transaction": make_unprovable,
}


@pytest.mark.variants
@pytest.mark.advice(*LOST)
@pytest.mark.parametrize("words", LOST)
def test_a_query_goes_on_when_a_batch_was_given_up_by_the_command_of_the_message(
    words: str, query: Query, topic: Any, wait: Any, request: pytest.FixtureRequest
) -> None:
    query.decide(0, "lost")
    LOST[words](query, wait, request)
    query.abandon(query.stops(0, words))
    topic.stays_empty()
    query.run(1, "next")
    topic.becomes(["next"])


def test_a_decided_batch_is_committed_when_what_the_brokers_refuse_is_corrected(
    query: Query, topic: Any, answer_first: Any
) -> None:
    query.decide(0, "a")
    answer_first([ConfigurationError("the brokers are too old")])
    error = query.stops(0, "batch 0 is decided, and can't be finished now")
    assert isinstance(error, OperatorRequired)
    told(error, r"the brokers are too old\. Correct that and start again")
    query.run(0)
    topic.becomes(["a"])


@pytest.mark.advice("Kafka has not written the markers of")
def test_a_batch_is_complete_when_the_brokers_have_written_its_markers(
    sink: KafkaSink, topic: Any, pre_commit: Any, wait: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable = pre_commit(sink, ["a"])
    wait.repeated(lambda: sink.commit(committable))
    of: Any = committable.handle
    being_ended = TransactionState("PrepareCommit", of["producer_id"], of["producer_epoch"] + 1, {})
    with monkeypatch.context() as away:
        away.setattr(ending, "MARKERS_TIMEOUT_S", 0.1)
        away.setattr(Control, "describe", lambda *_: {committable.transaction_id: being_ended})
        with raises("Kafka has not written the markers of"):
            sink.complete(0, [committable])
    wait.repeated(lambda: sink.complete(0, [committable]))
    topic.becomes(["a"])


# Options. -------------------------------------------------------------------------------------------------------------


@pytest.mark.advice("no broker answered at … within … s")
def test_a_query_goes_on_with_the_address_that_the_message_asks_for(
    query: Query, topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CONNECT_TIMEOUT_MS", 100)
    query.options["bootstrap.servers"], query.start_timeout_s = "127.0.0.1:1", 0
    option = told(query.stops(0, "no broker answered at … within … s"), r"Is '([\w.]+)' right")[1]
    monkeypatch.undo()
    query.options[option], query.start_timeout_s = topic.servers, 60
    query.run(0, "a")
    topic.becomes(["a"])


# Records. -------------------------------------------------------------------------------------------------------------


def set_topic(query: Query, advice: str, topic: Any) -> None:
    query.columns = {}
    query.options[advice] = topic.name


def create_topic(query: Query, _: str, topic: Any) -> None:
    query.columns = {"topic": [topic.name]}


def add_partition(query: Query, _: str, topic: Any) -> None:
    admin = AdminClient({"bootstrap.servers": topic.servers})
    admin.create_partitions([NewPartitions(topic.name, 3)])[topic.name].result(10)


def correct(query: Query, _: str, topic: Any) -> None:
    query.columns = {}


def raise_option(query: Query, advice: str, topic: Any) -> None:
    query.options[advice] = 2000


def lower_option(query: Query, advice: str, topic: Any) -> None:
    query.options[advice] = 1000


def at(second: int) -> Mapping[str, Any]:
    return {"timestamp": pa.array([second], pa.timestamp("s"))}


REFUSED: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], str, Callable[[Query, str, Any], None]]] = {
    "it is null, and the option 'topic' is not set": (
        {"topic": None}, {"topic": pa.array([None], pa.string())}, r"the option '(topic)' is not set", set_topic
    ),
    "the topic does not exist at": (
        {"topic": None, "topic.metadata.propagation.max.ms": 300}, {"topic": ["no-such-topic"]},
        "correct the column", create_topic,
    ),
    "the topic does not have this partition": (
        {}, {"partition": pa.array([2], pa.int32())}, "add partitions to the topic", add_partition
    ),
    "the time is before 1970": ({}, at(-1), "Correct or filter such records", correct),
    "it is too large: it takes": (
        {"message.max.bytes": 1000}, {"key": ["x" * 950]}, r"Raise '([\w.]+)' of the sink", raise_option
    ),
    "the brokers at … refuse records: …": (
        {"batch.size": 5000}, {"key": ["x" * 1500]}, r"lower the sink's '([\w.]+)'", lower_option
    ),
}  # fmt: skip
"""The words of an error → options, columns besides the value, the advice, and who follows it."""


@pytest.mark.variants
@pytest.mark.advice(*REFUSED)
@pytest.mark.parametrize("words", REFUSED)
def test_a_record_that_was_refused_is_written_when_the_advice_is_followed(
    words: str, query: Query, make_topic: Any
) -> None:
    options, columns, advice, follow = REFUSED[words]
    topic = make_topic(config={"max.message.bytes": "2000"})
    query.options = {**query.options, "topic": topic.name, **options}
    query.columns, count = columns, 2 if "refuse records" in words else 1
    with raises(words) as refused:
        query.run(0, *["a"] * count)
    found = told(refused.value, advice)
    follow(query, found[found.lastindex or 0], topic)
    query.run(0, *["a"] * count)
    topic.becomes(["a"] * count)


@pytest.mark.long
@pytest.mark.advice("the time is further from now than")
def test_a_time_is_taken_when_the_limit_that_the_message_names_was_raised(
    make_topic: Any, make_sink: Any, wait: Any
) -> None:
    topic = make_topic(config={"message.timestamp.after.max.ms": "3600000"})
    batch = pa.record_batch({"value": ["a"], **at(int(time.time()) + 90_000)})

    def refused(incarnation: int) -> Sequence[RecordRefused]:
        given = {"partition": 0, "max_bad_records": 1}
        with Participant({"orders": make_sink(topic)}, Round(incarnation, 0), **given) as participant:
            found = participant.write("orders", batch)
            participant.pre_commit()
        return found

    [too_late] = refused(1)
    limit = told(too_late, r"the topic's ([\w.]+) = .* Raise that limit")[1]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic.name)
    never = ConfigEntry(limit, str(2**63 - 1), incremental_operation=AlterConfigOpType.SET)
    resource.add_incremental_config(never)
    admin = AdminClient({"bootstrap.servers": topic.servers})
    [done] = admin.incremental_alter_configs([resource]).values()
    done.result(10)
    wait.until("the broker takes it", lambda: not refused(2))
