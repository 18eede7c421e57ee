"""Records written by the Arrow writer arrive as they were given, or the vote is no; through a real broker."""

import contextlib
import itertools
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.kafka.access import as_user
from tests.sinks.kafka.writing import sealed, text, written
from twopc import Committable, Round
from twopc.errors import OperatorRequired, RoundAborted
from twopc_kafka.client import requests
from twopc_kafka.writers.arrow import ArrowWriter
from twopc_kafka.writers.encoding.batches import OVERHEAD_BYTES
from twopc_kafka.writers.encoding.compression import NUMBERS

pytestmark = pytest.mark.in_turn("partitions_come")


@pytest.fixture(params=["implicit", "added"])
def partitions_come(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which a partition gets into a transaction: by a Produce (KIP-890), or by AddPartitionsToTxn, as on
    clusters whose transaction.version is below 2; a newer one serves such writers just the same."""
    if request.param == "added":
        monkeypatch.setattr(requests, "IMPLICIT_PARTITIONS", 99)
    return str(request.param)


# As given. ------------------------------------------------------------------------------------------------------------


@pytest.mark.variants
@pytest.mark.parametrize("codec", list(NUMBERS))
def test_the_broker_takes_batches_of_every_codec(codec: str, make_topic: Any, make_sink: Any, wait: Any) -> None:
    topic = make_topic(partitions=2)
    sink = make_sink(topic, compression_type=codec)
    values = [f"{n % 10:0100d}{n}" for n in range(1000)]
    decided = sealed(sink, text(*values))
    wait.repeated(lambda: sink.commit(decided))
    topic.becomes(values)


@pytest.mark.variants
def test_many_batches_to_many_partitions_and_topics_keep_their_order(
    partitions_come: str, make_topic: Any, make_sink: Any, wait: Any
) -> None:
    topics = [make_topic(partitions=5), make_topic(partitions=1)]
    sink = make_sink(topics[0], topic=None, batch_size=500, queue_buffering_max_kbytes=5)
    batches = [
        pa.record_batch(
            {
                "value": [f"{batch:03d}-{n:03d}" for n in range(200)],
                "key": [f"key-{n % 17}" for n in range(200)],
                "topic": [topics[n % 2].name for n in range(200)],
            }
        )
        for batch in range(10)
    ]
    decided = sealed(sink, *batches)
    assert decided.records == 2000
    wait.repeated(lambda: sink.commit(decided))
    for topic in topics:
        wait.until("all are visible", topic.has_no_open_transaction)
        by_key: dict[bytes, list[bytes]] = {}
        for record in topic.records():
            by_key.setdefault(record.key, []).append(record.value)
        assert sum(map(len, by_key.values())) == 1000
        assert all(values == sorted(values) for values in by_key.values())


def test_records_without_a_key_go_to_one_partition_a_batch_and_to_the_next_with_the_next(
    make_topic: Any, make_sink: Any
) -> None:
    topic = make_topic(partitions=3)
    written(make_sink(topic), *(text(*[str(n)] * 10) for n in range(6)))
    landed: dict[bytes, set[int]] = {}
    for record in topic.records("read_uncommitted"):
        landed.setdefault(record.value, set()).add(record.partition)
    assert all(len(partitions) == 1 for partitions in landed.values())
    in_order = [landed[b"%d" % n].pop() for n in range(6)]
    assert all(after == (before + 1) % 3 for before, after in itertools.pairwise(in_order))


# One transaction, one epoch. ------------------------------------------------------------------------------------------


def test_each_transaction_of_an_id_has_an_epoch_of_its_own_and_rolls_the_one_before_back(
    topic: Any, make_sink: Any, wait: Any
) -> None:
    sink = make_sink(topic)
    first = written(sink, text("a"))
    taking_over = ArrowWriter(sink._options, first.transaction_id)
    taking_over.write(text("b"))
    second = Committable(first.transaction_id, asdict(taking_over.finish()))
    assert first.handle["producer_epoch"] < second.handle["producer_epoch"]
    with pytest.raises(RoundAborted, match="can't be committed any more"):
        sink.seal([first], age_s=0)
    [sealed] = sink.seal([second], age_s=0)
    wait.repeated(lambda: sink.commit(sealed))
    topic.becomes(["b"])


def test_a_writer_that_was_fenced_can_add_nothing(partitions_come: str, topic: Any, make_sink: Any) -> None:
    fenced = pytest.raises(RoundAborted, match=r"(INVALID_PRODUCER_EPOCH|PRODUCER_FENCED). A newer attempt")
    sink = make_sink(topic)
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    with fenced:
        sink.write(transaction, text("a"))
        taking_over = ArrowWriter(sink._options, transaction.lease.name)
        taking_over.write(text("b"))
        taking_over.finish()
        sink.write(transaction, text("late"))
        sink.pre_commit(transaction)
    with contextlib.suppress(RoundAborted):
        sink.discard(transaction)
    assert b"late" not in {record.value for record in topic.records("read_uncommitted")}
    [left] = make_sink(topic).recover()  # the abort of the fenced one hit nothing
    assert left.handle["producer_epoch"] > 0


# The vote is no. ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [OVERHEAD_BYTES, 2000], ids=["without room", "2000"])
def test_a_batch_size_below_the_topics_limit_lets_all_records_through(
    batch_size: int, make_topic: Any, make_sink: Any
) -> None:
    topic = make_topic(config={"max.message.bytes": "2000"})
    vote = written(make_sink(topic, batch_size=batch_size), text(*["x" * 500] * 50))
    assert vote.records == 50


@pytest.mark.long
def test_what_the_brokers_deny_stops_the_query_with_the_rights_to_grant(
    second_broker: Any, make_topic: Any, make_sink: Any
) -> None:
    topic = make_topic(on=second_broker.broker)
    sink = make_sink(topic, **as_user(second_broker, "denied"))
    sink._validated = text("a").schema  # as of a sink that comes from a driver with these rights
    with pytest.raises(OperatorRequired, match=r"TRANSACTIONAL_ID_AUTHORIZATION_FAILED.*WRITE and DESCRIBE on"):
        written(sink, text("a"))


# Connections. ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.crash
def test_a_broker_that_was_restarted_between_tasks_is_connected_anew(
    second_broker: Any, make_topic: Any, make_sink: Any
) -> None:
    topic = make_topic(on=second_broker.broker)
    sink = make_sink(topic)
    written(sink, text("a"))
    second_broker.broker.kill()
    second_broker.broker.start()
    assert written(sink, text("b"), partition=1).records == 1
