"""Records on their way, through librdkafka if no other writer is named: all of them arrive as they were given, or the
vote is no."""

import contextlib
import gc
import struct
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka.errors
import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2

from tests.sinks.kafka.writing import sealed, text, written
from twopc import Committable, Coordinator, Participant, Round
from twopc.errors import ConfigurationError, RecordRefused, Retriable, RoundAborted
from twopc_kafka import checks, leases
from twopc_kafka.client import control, requests
from twopc_kafka.client.control import Control
from twopc_kafka.options import WRITERS, parse_options
from twopc_kafka.writers import librdkafka
from twopc_kafka.writers.librdkafka import Writer

pytestmark = pytest.mark.in_turn("make_either")

CLOSED_PORT = "127.0.0.1:1"
VALUE = pa.schema([("value", pa.string())])


@pytest.fixture
def make_sink(make_sink: Any) -> Any:
    def make(on: Any, /, **options: Any) -> Any:
        return make_sink(on, **{"writer": "librdkafka"} | options)

    return make


def threads_of_librdkafka() -> int:
    count = 0
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has ended since
            count += path.read_text().startswith("rdk:")
    return count


# As given. ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["librdkafka", "arrow", "arrow, added first"])
def make_either(request: pytest.FixtureRequest, make_sink: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A sink of either writer. A partition gets into the Arrow writer's transaction in two ways: by a Produce
    (KIP-890), or by AddPartitionsToTxn, as on clusters whose transaction.version is below 2."""
    writer, _, is_added = request.param.partition(", ")
    if is_added:
        monkeypatch.setattr(requests, "IMPLICIT_PARTITIONS", 99)
    return lambda on, /, **options: make_sink(on, writer=writer, **options)


def test_every_column_arrives_as_it_was_given(make_topic: Any, make_either: Any, wait: Any) -> None:
    topic = make_topic(partitions=3)
    sink = make_either(topic)
    moment = datetime(2013, 1, 1, 10, 0, 0, 123_000, tzinfo=timezone.utc)
    batch = pa.record_batch(
        {
            "key": pa.array(["k", None, "", "e"]),
            "value": pa.array([b"v", None, b"", b"e"]),
            "partition": pa.array([2, 1, 0, None], pa.int32()),
            "timestamp": pa.array([moment, None, None, moment], pa.timestamp("us", "UTC")),
            "headers": pa.array(
                [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], [], None, None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    before_ms = int(time.time() * 1000)
    decided = sealed(sink, batch)
    assert topic.visible() == []
    wait.repeated(lambda: sink.commit(decided))
    wait.until("nothing holds back readers", topic.has_no_open_transaction)
    found = {record.value: record for record in topic.records()}
    by_key = (murmur2(b"e") & 0x7FFFFFFF) % 3
    places = {b"v": (2, b"k"), None: (1, None), b"": (0, b""), b"e": (by_key, b"e")}
    assert {value: (record.partition, record.key) for value, record in found.items()} == places
    headers = {value: list(map(tuple, record.headers)) for value, record in found.items()}
    assert headers == {b"v": [("a", b"1"), ("a", None)], None: [], b"": [], b"e": []}
    assert {found[value].timestamp for value in (b"v", b"e")} == {int(moment.timestamp() * 1000)}
    assert all(before_ms - 1000 <= found[value].timestamp <= before_ms + 60_000 for value in (None, b""))


def test_keys_land_where_java_puts_them(make_topic: Any, make_sink: Any) -> None:
    topic = make_topic(partitions=5)
    keys = ["", "a", "ä", *(f"key-{n}" for n in range(50))]
    written(make_sink(topic, delivery="at-least-once"), pa.record_batch({"key": keys, "value": keys}))
    landed = {record.key: record.partition for record in topic.records()}
    assert landed == {key.encode(): (murmur2(key.encode()) & 0x7FFFFFFF) % 5 for key in keys}


def test_options_of_librdkafka_reach_the_producer(second_broker: Any, make_topic: Any, make_sink: Any) -> None:
    topic = make_topic(on=second_broker.broker)
    sink = make_sink(topic, delivery="at-least-once", compression_type="zstd", batch_num_messages=10, linger_ms=50)
    written(sink, text(*(f"{n:0100d}" for n in range(100))))
    batches = stored_batches(second_broker.segment(topic))
    assert {codec for codec, _ in batches} == {4}  # zstd
    assert sum(count for _, count in batches) == 100
    assert max(count for _, count in batches) == 10


def stored_batches(segment: bytes) -> list[tuple[int, int]]:
    """(codec, records) of each record batch (format v2) in a log segment."""
    found, at = [], 0
    while at < len(segment):
        (length,) = struct.unpack_from(">i", segment, at + 8)
        (attributes,) = struct.unpack_from(">h", segment, at + 21)
        (count,) = struct.unpack_from(">i", segment, at + 57)
        found.append((attributes & 7, count))
        at += 12 + length
    return found


# Delivery modes. ------------------------------------------------------------------------------------------------------


def test_at_least_once_is_flushed_and_visible_at_pre_commit_and_its_commit_does_nothing(
    topic: Any, make_sink: Any
) -> None:
    sink = make_sink(topic, delivery="at-least-once")
    vote = written(sink, text("a"))
    assert topic.visible() == ["a"]
    assert (vote.handle, vote.records) == ({}, 1)
    [sealed] = sink.seal([vote], age_s=0)
    sink.commit(sealed)
    sink.abort(sealed)
    assert list(sink.recover()) == []
    assert topic.visible() == ["a"]


@pytest.mark.parametrize(
    ("delivery", "options", "idempotent"),
    [
        ("exactly-once", {}, True),
        ("at-least-once", {}, True),
        ("at-least-once", {"enable_idempotence": False}, False),
        ("none", {}, False),
    ],
)
def test_retries_of_librdkafka_double_no_record_where_records_are_waited_for(
    delivery: str,
    options: dict[str, Any],
    idempotent: bool,
    second_broker: Any,
    make_topic: Any,
    make_sink: Any,
    wait: Any,
) -> None:
    topic = make_topic(on=second_broker.broker)
    written(make_sink(topic, delivery=delivery, **options), text("a"))
    wait.until("the record is stored", lambda: len(second_broker.segment(topic)) > 0)  # 'none' waits for nothing
    (producer_id,) = struct.unpack_from(">q", second_broker.segment(topic), 43)
    assert (producer_id >= 0) is idempotent, "by its id and sequence numbers the broker knows a repeat"


def test_none_waits_for_nothing_and_drops_nothing_while_the_process_lives(topic: Any, make_sink: Any) -> None:
    values = [str(n) for n in range(1000)]
    sink = make_sink(topic, delivery="none", linger_ms=500)
    sink.commit(*sink.seal([written(sink, text(*values))], age_s=0))
    topic.becomes(values)


@pytest.mark.variants
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once", "none"])
def test_a_producer_and_its_threads_are_gone_with_the_transaction(
    delivery: str, topic: Any, make_sink: Any, wait: Any
) -> None:
    def threads() -> int:
        """Those of producers. Others may begin meanwhile."""
        return threads_of_librdkafka() + sum(each.name.startswith("twopc") for each in threading.enumerate())

    sink = make_sink(topic, delivery=delivery)
    list(sink.recover())  # the control connection stays
    gc.disable()  # not whenever it comes by
    try:
        before = threads()
        for _ in range(3):
            written(sink, text("a"))
        wait.until("no thread is left", lambda: threads() <= before)
    finally:
        gc.enable()


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_sink_of_another_mode_settles_what_was_decided_before_the_change(
    delivery: str, topic: Any, make_sink: Any, pre_commit: Any, wait: Any
) -> None:
    decided = pre_commit(make_sink(topic), ["a"])
    wait.repeated(lambda: make_sink(topic, delivery=delivery).commit(decided))
    topic.becomes(["a"])


def test_recover_finds_open_transactions_also_after_the_mode_was_changed(
    topic: Any, make_sink: Any, pre_commit: Any
) -> None:
    left = pre_commit(make_sink(topic), ["a"])
    [found] = make_sink(topic, delivery="at-least-once").recover()
    assert found.is_same_transaction(left)


# The vote is no. ------------------------------------------------------------------------------------------------------


def test_the_reason_is_told_also_when_a_later_record_runs_into_its_consequence(make_topic: Any, make_sink: Any) -> None:
    topic = make_topic(config={"max.message.bytes": "2000"})
    participant = Participant({"orders": make_sink(topic)}, Round(1, 0), partition=0)
    participant.write("orders", text("x" * 5000))
    producer: Any = participant._transactions["orders"].writer._producer  # type: ignore[attr-defined]
    producer.flush(10)  # the broker has refused it, and the transaction takes no more
    with pytest.raises(RecordRefused, match="too large"):
        participant.write("orders", text("b"))


def test_a_certificate_that_is_missing_where_the_task_runs_is_a_wrong_option(sink: Any) -> None:
    options = sink._options
    tls = {"security.protocol": "ssl", "ssl.ca.location": "/no/such/file"}
    elsewhere = replace(options, properties={**options.properties, **tls})
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location"):
        Writer(elsewhere, "never-begun")


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """As in a worker that waits for its next task."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.crash
@pytest.mark.usefixtures("no_garbage_collection")
def test_a_producer_whose_rollback_got_no_answer_leaves_no_thread(
    second_broker: Any, make_topic: Any, make_sink: Any, wait: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """confluent-kafka leaks an exception that is being handled when it raises an error, and the producer with it."""
    monkeypatch.setattr(librdkafka, "ABORT_TIMEOUT_S", 0.5)
    monkeypatch.setattr("twopc.participant.logger.disabled", True)  # pytest keeps what is logged, with its traceback
    monkeypatch.setattr(librdkafka, "POLL_INTERVAL_S", 0.05)
    sink = make_sink(make_topic(on=second_broker.broker), message_timeout_ms=2000)
    before = threads_of_librdkafka()
    votes = 0
    with contextlib.suppress(RoundAborted), Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
        participant.write("orders", text("a"))
        transactions: Any = participant._transactions
        transactions["orders"].writer._producer.flush(10)
        second_broker.broker.kill()
        participant.write("orders", text("b"))
        votes += len(participant.pre_commit())
    assert not votes
    del participant, transactions
    second_broker.broker.start()
    wait.until("no thread is left", lambda: threads_of_librdkafka() <= before)


def test_a_transaction_that_was_rolled_back_takes_no_more_records_and_has_no_vote(topic: Any, sink: Any) -> None:
    writer = Writer(sink._options, f"ended-{topic.name}")
    writer.write(text("a"))
    writer.abort()
    for call in (lambda: writer.write(text("b")), lambda: writer.write(text("c")), writer.finish):
        with pytest.raises(RoundAborted, match="has been rolled back by its task"):
            call()
    assert not [*sink.recover()]


def test_polling_goes_on_when_a_handler_of_log_records_raises(
    topic: Any, sink: Any, wait: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(librdkafka, "POLL_INTERVAL_S", 0.05)
    writer = Writer(sink._options, f"handler-{topic.name}")
    polls = list[int]()

    def raises() -> None:
        polls.append(len(polls))
        raise ValueError

    writer.poll = raises  # type: ignore[method-assign]
    wait.until("it is polled twice", lambda: len(polls) > 1)
    writer.abort()


@pytest.mark.parametrize("has_rolled_back", [False, True])
def test_statistics_are_taken_for_as_long_as_a_writer_is_kept(
    has_rolled_back: bool, topic: Any, sink: Any, wait: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka would keep them, which takes 3 MB of memory per second."""
    monkeypatch.setattr(librdkafka, "POLL_INTERVAL_S", 0.05)
    writer = Writer(sink._options, f"slow-{topic.name}")
    if has_rolled_back:
        writer.abort()
    for _ in range(10):  # a queue that nobody polls any more would still hand out a few
        last = writer._reports.statistics
        wait.until("newer ones are taken", lambda last=last: writer._reports.statistics != last)
    writer.abort()


def refused(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def refused_by_librdkafka(*_: object, **__: object) -> None:
    error = confluent_kafka.KafkaError(confluent_kafka.KafkaError._CRIT_SYS_RESOURCE, "Failed to create thread")
    raise confluent_kafka.KafkaException(error)


@pytest.mark.parametrize(
    ("what", "refuses"), [("threading.Thread.start", refused), ("confluent_kafka.Producer", refused_by_librdkafka)]
)
def test_a_host_without_threads_to_spare_fails_the_attempt_and_not_the_query(
    what: str, refuses: Any, topic: Any, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = sink._options
    monkeypatch.setattr(what, refuses)
    with pytest.raises(RoundAborted, match="this host can start no thread for a producer"):
        Writer(options, f"no-thread-{topic.name}")


def test_a_host_without_threads_to_spare_fails_an_attempt_whose_records_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = Writer(parse_options({"bootstrap.servers": CLOSED_PORT, "delivery": "none"}), "")
    monkeypatch.setattr("threading.Thread.start", refused)
    with pytest.raises(RoundAborted, match="this host can start no thread for a producer"):
        writer.finish()


def test_a_transaction_is_rolled_back_on_a_host_without_threads_to_spare(
    sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.suppress(ValueError), Participant({"orders": sink}, Round(1, 0), partition=0) as participant:
        participant.write("orders", text("a"))
        participant._transactions["orders"].writer._producer.flush(10)  # type: ignore[attr-defined]
        monkeypatch.setattr("threading.Thread.start", refused)
        raise ValueError
    assert not [*sink.recover()]


# Another producer took over. ------------------------------------------------------------------------------------------

TAKEN_OVER = "another producer took over its transactional id"


@pytest.fixture
def fenced(topic: Any, make_sink: Any) -> Iterator[Writer]:
    """A writer with a record on its way when another has written by the same transactional id."""
    options = make_sink(topic, linger_ms=1000)._options
    old, new = (Writer(options, f"fenced-{topic.name}") for _ in range(2))
    new.write(text("new"))
    new.finish()
    with contextlib.suppress(RoundAborted):  # a slow machine lets it learn that amid the first write
        old.write(text("old"))
    yield old
    old.abort()


def test_a_writer_whose_id_another_took_over_votes_no_and_says_so(fenced: Writer) -> None:
    with pytest.raises(RoundAborted, match=TAKEN_OVER):
        fenced.finish()


def test_a_writer_that_is_stopped_without_a_reason_finds_out_that_its_id_was_taken_over(fenced: Writer) -> None:
    with pytest.raises(RoundAborted):
        fenced.finish()
    with pytest.raises(RoundAborted, match=TAKEN_OVER):
        fenced._served(without_a_reason, 0)


def test_a_writer_that_learns_it_while_writing_says_so_too(fenced: Writer, wait: Any) -> None:
    def writes_on() -> bool:
        fenced.write(text("b"))
        return False

    with pytest.raises(RoundAborted, match=TAKEN_OVER):
        wait.until("the writer is told", writes_on)


@pytest.mark.variants
@pytest.mark.parametrize("call", [Writer.finish, lambda writer: writer.write(text("b"))])
def test_a_writer_that_learns_it_while_its_task_waits_says_so_in_the_next_call(
    call: Any, fenced: Writer, wait: Any
) -> None:
    """librdkafka reports it once, to the thread that polls meanwhile."""
    wait.until("the polling thread is told", lambda: fenced._reports.broken)
    with pytest.raises(RoundAborted, match=TAKEN_OVER):
        call(fenced)


@pytest.mark.parametrize("learns_of_it_before", [False, True])
def test_what_another_producer_took_over_is_aborted_already_and_leaves_no_thread(
    learns_of_it_before: bool, fenced: Writer
) -> None:
    if learns_of_it_before:
        with pytest.raises(RoundAborted):
            fenced.finish()
    before = threads_of_librdkafka()
    for _ in range(2):
        fenced.abort()
    assert not learns_of_it_before or threads_of_librdkafka() < before


def without_a_reason(_: float) -> int:
    raise SystemError("<method 'flush' of 'cimpl.Producer' objects> returned NULL without setting an exception")


class Broken:
    """A producer with a fatal error that is not about its epoch."""

    def __init__(self) -> None:
        self.is_closed = False

    def abort_transaction(self, _: float) -> None:
        code = confluent_kafka.KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
        raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(code, "gap", fatal=True))

    def purge(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


def test_a_producer_that_has_failed_for_good_is_closed(topic: Any, sink: Any) -> None:
    writer = Writer(sink._options, f"broken-{topic.name}")
    live, broken = writer._producer, Broken()
    writer._producer = broken  # type: ignore[assignment]
    with pytest.raises(RoundAborted, match="could not be rolled back by its own producer: gap"):
        writer.abort()
    assert broken.is_closed
    live.abort_transaction()


class Silent:
    """A producer that stops in the middle of its callbacks without saying why, as one that is fenced may."""

    flush = poll = abort_transaction = staticmethod(without_a_reason)

    def begin_transaction(self) -> None:
        without_a_reason(0)

    def produce(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_producer_that_stops_without_a_reason_makes_the_vote_no(delivery: str, topic: Any, make_sink: Any) -> None:
    sink = make_sink(topic, delivery=delivery)
    participant = Participant({"orders": sink}, Round(1, 0), partition=0)
    participant.write("orders", text("a"))
    writer: Any = participant._transactions["orders"].writer  # type: ignore[attr-defined]
    live, writer._producer = writer._producer, Silent()
    for call in (participant.pre_commit, lambda: participant.write("orders", text("b"))):
        with pytest.raises(RoundAborted, match=r"can't go on at .*librdkafka gave up: .*without setting an exception"):
            call()
    if delivery == "exactly-once":
        with pytest.raises(RoundAborted, match=r"could not be rolled back by its own producer.*sweep rolls it back"):
            writer.abort()
    writer._producer = live
    writer.abort()


# Within bounded time. -------------------------------------------------------------------------------------------------


def test_a_topic_that_a_broker_does_not_know_yet_is_asked_for_again(
    topic: Any, sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, unknown = Control.unknown_topics, [[topic.name]] * 3
    monkeypatch.setattr(Control, "unknown_topics", lambda self, names: unknown.pop() if unknown else look(self, names))
    sink.validate(pa.schema({"value": pa.string()}))
    assert unknown == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda control: control.leaders.open_transactions({}, "o o"),
        lambda control: control.leaders.away("o o"),
        lambda control: control.leaders.topic_ids(["o o"], time.monotonic()),
        lambda control: control.leaders.may_read("o o"),
        lambda control: checks.replication(control, "o o"),
    ],
    ids=["open transactions", "leaders", "ids", "rights", "replication"],
)
def test_a_name_that_no_topic_can_have_is_refused_and_not_asked_for_again(ask: Any, topic: Any, make_sink: Any) -> None:
    with pytest.raises(ConfigurationError, match="brokers refuse the topic name 'o o'"):
        ask(make_sink(topic)._control)
    assert make_sink(topic)._control.unknown_topics(["o o"]) == ["o o"]


@pytest.mark.variants
@pytest.mark.parametrize("server", [CLOSED_PORT, "no-such-host.invalid:9092"])
def test_what_asks_a_broker_that_can_not_be_reached_is_retriable_and_told_by_address(
    server: str, make_sink: Any, topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CONNECT_TIMEOUT_MS", 100)  # the rest of the wait is not for every run
    sink = make_sink(topic, bootstrap_servers=server)
    handle: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "end_txn_version": 5}
    decided = Committable(leases.lease(sink.transactional_ids.scope, (1, 0)).name, handle, 1)
    for ask in (
        lambda: sink.validate(VALUE),
        sink.open,
        sink.recover,
        lambda: sink.seal([decided], age_s=0),
        lambda: sink.commit(decided),
        lambda: sink.abort(decided),
    ):
        for _ in range(2):  # a repeat tells no less
            with pytest.raises(
                Retriable, match=rf"no broker answered at {server} .* Is 'bootstrap.servers' right"
            ) as raised:
                ask()
            assert "kafka.errors" not in "".join(traceback.format_exception(raised.value))  # its text is in the message


def test_what_a_broker_answers_is_in_the_message_and_not_below_a_trace_of_its_client(sink: Any) -> None:
    async def fails() -> None:
        raise kafka.errors.CoordinatorNotAvailableError("orders.7")

    with pytest.raises(Retriable, match=r"a broker answered COORDINATOR_NOT_AVAILABLE about orders\.7\.") as raised:
        sink._control.run(fails)
    assert "direct cause" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.variants
@pytest.mark.timeout(60, method="thread")  # a call of librdkafka without a limit hears no signal
@pytest.mark.parametrize(
    ("writer", "delivery"),
    [("arrow", "exactly-once"), *(("librdkafka", each) for each in ("exactly-once", "at-least-once", "none"))],
)
def test_a_task_waits_for_a_broker_that_is_gone_as_long_as_message_timeout_says(
    writer: str, delivery: str, make_sink: Any, topic: Any
) -> None:
    at = {"bootstrap_servers": CLOSED_PORT, "message_timeout_ms": 1000}
    sink = make_sink(topic, writer=writer, delivery=delivery, **at)
    sink._validated = text("a").schema  # as of a sink that comes from a driver
    started = time.monotonic()
    with pytest.raises(RoundAborted, match=rf"{CLOSED_PORT}.*Is the broker up.*'message.timeout.ms'"):
        written(sink, text("a"))
    assert time.monotonic() - started < 10


@pytest.mark.variants
@pytest.mark.parametrize("writer", WRITERS)
def test_a_transaction_timeout_that_the_broker_refuses_names_both_settings(
    writer: str, topic: Any, make_sink: Any, tmp_path: Any
) -> None:
    sink = make_sink(topic, writer=writer, transaction_timeout_ms=900_001)
    with pytest.raises(ConfigurationError, match=r"'transaction.timeout.ms' = 900001.*transaction\.max\.timeout\.ms"):
        written(sink, text("a"))
    coordinator = Coordinator({"orders": sink}, str(tmp_path / "log"), owner="query")
    with pytest.raises(ConfigurationError):  # to the user it is no round that could be run again
        coordinator.run(0, lambda _: [{"orders": written(sink, text("a"))}])
