"""What Kafka ended, but for a partition of which it left out the marker (KAFKA-20734), is ended there by the sink."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.sinks.kafka.hanging import will_hang
from tests.sinks.kafka.writing import sealed
from twopc import Committable, Coordinator, Round
from twopc.errors import RoundAborted
from twopc_kafka import KafkaSink
from twopc_kafka.client.leaders import Leaders
from twopc_kafka.handles import identity_of
from twopc_kafka.writers.librdkafka import Writer

NOTICED, UNNOTICED = 0, 1  # partitions: one gets its marker, one does not


@pytest.fixture
def topic(second_broker: Any, make_topic: Any) -> Any:
    return make_topic(partitions=2, on=second_broker.broker)


def begun(sink: KafkaSink, value: str, round: Round = Round(1, 0)) -> Committable:  # noqa: B008
    """A sealed transaction, of which one partition will get no marker."""
    transaction: Committable = sealed(sink, record(value, NOTICED), round=round)
    will_hang(sink, transaction, [f"{value}, unnoticed"], UNNOTICED)
    [topic] = cast("dict[str, Any]", transaction.handle["partitions"])
    return replace(transaction, handle=dict(transaction.handle) | {"partitions": {topic: [NOTICED, UNNOTICED]}})


def record(value: str, partition: int) -> pa.RecordBatch:
    return pa.record_batch({"value": [value], "partition": pa.array([partition], pa.int32())})


def committed_there(sink: KafkaSink, value: str, round: Round) -> Committable:
    """A later transaction of the same producer, in the partition that has no marker."""
    committed: Committable = sealed(sink, record(value, UNNOTICED), round=round)
    sink.commit(committed)
    sink.complete(0, [committed])
    return committed


SAME_NAME = Round(1, 4)  # as that of round (1, 0)


def rolled_back_by_the_coordinator(sink: KafkaSink, transaction: Committable) -> None:
    sink.abort(Committable(transaction.transaction_id, transaction.handle))


def rolled_back_by_another_producer(sink: KafkaSink, transaction: Committable) -> None:
    Writer(sink._options, transaction.transaction_id)


def rolled_back_as_its_own_writer_does(sink: KafkaSink, transaction: Committable) -> None:
    sink._control.end(transaction.transaction_id, *identity_of(transaction), commit=False, version=4)


ROLL_BACKS = (rolled_back_by_the_coordinator, rolled_back_by_another_producer, rolled_back_as_its_own_writer_does)


def test_records_that_hang_would_become_visible_with_the_next_commit_by_their_id(topic: Any, sink: KafkaSink) -> None:
    """The danger itself. Where this fails one day, Kafka is better than it was."""
    undecided = begun(sink, "undecided")
    rolled_back_by_the_coordinator(sink, undecided)
    writer = Writer(sink._options, undecided.transaction_id)
    writer.write(record("decided", UNNOTICED))
    identity = writer.finish()
    assert identity is not None
    [decided] = sink.seal([Committable(undecided.transaction_id, asdict(identity), 1)], age_s=0)
    sink.commit(decided)
    topic.becomes(["decided", "undecided, unnoticed"])


@pytest.mark.variants
@pytest.mark.parametrize("roll_back", ROLL_BACKS)
def test_what_was_rolled_back_and_hangs_is_swept_and_never_visible(
    topic: Any, sink: KafkaSink, wait: Any, roll_back: Callable[..., None]
) -> None:
    roll_back(sink, begun(sink, "undecided"))
    wait.sweep(sink)
    wait.until("readers are not held back", topic.has_no_open_transaction)
    committed_there(sink, "decided", SAME_NAME)
    topic.becomes(["decided"])


def test_a_sweep_finds_what_hung_when_the_batch_was_completed(sink: KafkaSink) -> None:
    rolled_back_by_the_coordinator(sink, begun(sink, "undecided"))
    committed_there(sink, "decided", SAME_NAME)
    [hanging] = sink.recover()
    assert "hanging" in hanging.handle


@pytest.mark.parametrize("follows", ["a restart", "another sweep"])
def test_a_sweep_does_not_repeat_the_look_of_the_batch_that_was_completed_but_any_later_one_looks(
    follows: str, sink: KafkaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed_there(sink, "decided", SAME_NAME)
    looks: list[object] = []
    look = Leaders.open_transactions

    def looked(self: Leaders, *where: Any) -> Any:
        looks.append(where)
        return look(self, *where)

    monkeypatch.setattr(Leaders, "open_transactions", looked)
    if follows == "a restart":
        sink.open()
    else:
        assert list(sink.recover()) == []
        assert not looks
    assert list(sink.recover()) == []
    assert looks


def test_a_batch_without_transactions_is_complete_without_a_look(
    sink: KafkaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Leaders, "open_transactions", lambda *_: pytest.fail("Kafka may be away"))
    sink.complete(0, [Committable("delivered without a transaction", {})])


@pytest.mark.variants
@pytest.mark.parametrize("writer", ["arrow", "librdkafka"])
@pytest.mark.parametrize(
    "ended", [lambda *_: None, *ROLL_BACKS], ids=["not ended", "by the coordinator", "by another", "by itself"]
)
def test_what_was_not_committed_is_never_visible_though_nobody_sees_that_it_hangs(
    ended: Callable[..., None], writer: str, topic: Any, make_sink: Any, wait: Any
) -> None:
    """Nobody uses its name again. No sweep comes between."""
    sink = make_sink(topic, writer=writer)
    late = begun(sink, "undecided")
    ended(sink, late)
    decided = committed_there(sink, "decided", SAME_NAME)
    assert decided.transaction_id != late.transaction_id
    wait.sweep(sink)
    topic.becomes(["decided"])


def test_what_timed_out_and_hangs_is_swept(topic: Any, make_sink: Any, wait: Any) -> None:
    brief = make_sink(topic, **{"transaction.timeout.ms": 1000, "commit.margin.ms": 0})
    timed_out = begun(brief, "undecided")

    def is_over() -> bool:
        return bool(
            brief._control.describe([timed_out.transaction_id])[timed_out.transaction_id].state == "CompleteAbort"
        )

    wait.until("Kafka has rolled it back", is_over)
    wait.sweep(brief)
    topic.stays_empty()


def test_what_was_committed_and_hangs_is_visible_when_its_batch_is_complete(topic: Any, sink: KafkaSink) -> None:
    decided = begun(sink, "decided")
    sink.commit(decided)
    sink.complete(0, [decided])
    assert topic.visible() == ["decided", "decided, unnoticed"]
    assert topic.has_no_open_transaction()


def test_what_was_committed_and_hangs_is_never_swept(topic: Any, sink: KafkaSink, wait: Any) -> None:
    decided = begun(sink, "decided")
    sink.commit(decided)
    wait.sweep(sink)
    sink.complete(0, [decided])
    assert topic.visible() == ["decided", "decided, unnoticed"]


def test_what_others_have_open_is_left_alone(topic: Any, make_sink: Any, sink: KafkaSink) -> None:
    other = make_sink(topic, log_id="another")
    open_ = begun(other, "other")
    assert list(sink.recover()) == []
    committed_there(sink, "decided", Round(1, 0))
    [still_open] = other.recover()
    assert open_.is_same_transaction(still_open)


def test_a_late_marker_ends_no_later_transaction(topic: Any, sink: KafkaSink) -> None:
    rolled_back_by_the_coordinator(sink, begun(sink, "undecided"))
    [hanging] = sink.recover()
    sink.abort(hanging)
    later = begun(sink, "later", SAME_NAME)  # by the same producer
    sink.abort(hanging)
    sink.commit(later)
    sink.complete(0, [later])
    assert topic.visible() == ["later", "later, unnoticed"]


def test_a_coordinator_sweeps_what_hangs_after_a_failed_round(topic: Any, make_sink: Any, tmp_path: Any) -> None:
    def coordinator() -> Coordinator:
        return Coordinator({"orders": make_sink(topic, log_id=None)}, str(tmp_path), owner="query")

    def fails(round: Round) -> Any:
        sink: Any = running._sinks["orders"]
        rolled_back_as_its_own_writer_does(sink, begun(sink, "undecided", round))
        raise OSError("the task failed")

    with coordinator() as running, pytest.raises(RoundAborted):
        running.run(0, fails)
    assert topic.has_no_open_transaction()
    topic.stays_empty()
