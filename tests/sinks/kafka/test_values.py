"""Records that can never be written: both writers refuse them, in every delivery mode, in the same words."""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.sinks.kafka.writing import sealed, written
from tests.support.broker_properties import needs_kafka
from tests.support.phase_one import writes
from twopc import Committable, Coordinator, Participant, Round
from twopc.errors import ConfigurationError, RecordRefused, RoundAborted
from twopc_kafka.answers import ProducerIdentity
from twopc_kafka.client.cluster import Cluster, TopicRules
from twopc_kafka.options import parse_options
from twopc_kafka.values import check_values, require_accepted
from twopc_kafka.writers import librdkafka as writer_module
from twopc_kafka.writers.encoding.batches import Encoder
from twopc_kafka.writers.encoding.compression import Compression
from twopc_kafka.writers.encoding.records import records_of
from twopc_kafka.writers.librdkafka import Writer
from twopc_kafka_broker import KafkaBroker

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SECRET = "hunter2-is-the-value"  # noqa: S105  # what no message may show

MODES = (
    ("arrow", "exactly-once"),
    ("librdkafka", "exactly-once"),
    ("librdkafka", "at-least-once"),
    ("librdkafka", "none"),
)
REPORTING = MODES[:-1]
"""'none' does not wait for what the brokers say."""


def one(topic: str, highest: int) -> int:
    """How many partitions a topic has."""
    return 1


def text_that_is_none(*values: bytes) -> pa.Array:
    """Text as Spark hands it over, which does not look whether it is UTF-8."""
    column = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), column.buffers())


def headers(*of_second: Any) -> pa.Array:
    return pa.array([[{"key": "fine", "value": b"1"}, {"key": "fine", "value": None}], list(of_second)], HEADERS)


def headers_with(key: bytes) -> pa.Array:
    fields = [text_that_is_none(b"fine", b"fine", key), pa.array([SECRET.encode()] * 3)]
    of_all = pa.StructArray.from_arrays(fields, ["key", "value"])
    return pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), of_all)


def times(second: int, unit: str = "us") -> pa.Array:
    return pa.array([1_000_000_000, second], pa.timestamp(unit))


@dataclass(frozen=True)
class Bad:
    """A batch of two records, of which the second can't be written.

    Attributes:
        name: of the case.
        columns: beside 'value' and 'key'.
        said: what the message says.
        where: attributes of the error, beside the record's position.
        options: of the sink; ``_`` in a name stands for a dot.
    """

    name: str
    columns: dict[str, Any]
    said: str
    where: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


IN_COLUMN = {"topic": None}

BY_VALUE = (
    Bad("null topic", {"topic": ["{topic}", None]}, "it is null, and", {"column": "topic"}, IN_COLUMN),
    *(
        Bad(f"topic {name!r}", {"topic": ["{topic}", name]}, "no topic can have this", {"column": "topic"}, IN_COLUMN)
        for name in ("a b", "a\0b", "", ".", "..", "x" * 250, "ä")
    ),
    Bad(
        "topic of Kafka's own",
        {"topic": ["{topic}", "__consumer_offsets"]},
        "it is one of Kafka's internal topics",
        {"column": "topic", "topic": "__consumer_offsets"},
        IN_COLUMN,
    ),
    Bad(
        "topic that is not there",
        {"topic": ["{topic}", "no-such-topic"]},
        "does not exist at {servers}. Create it",
        {"column": "topic", "topic": "no-such-topic"},
        {**IN_COLUMN, "topic_metadata_propagation_max_ms": 300},
    ),
    *(
        Bad(
            f"partition {number}",
            {"partition": pa.array([0, number], pa.int32())},
            "it has 2 (0 to 1)",
            {"column": "partition", "topic": "{topic}", "partition": number},
        )
        for number in (2, 7, -1, -7, 2**31 - 1)
    ),
    Bad("null header", {"headers": headers(None)}, "a header without a key", {"column": "headers"}),
    Bad("header without a key", {"headers": headers({"key": None})}, "a header without a key", {"column": "headers"}),
    Bad("NUL in a header's key", {"headers": headers_with(b"a\0b")}, "with a NUL in its key", {"column": "headers"}),
    Bad("header's key not UTF-8", {"headers": headers_with(b"\xff")}, "that is not UTF-8", {"column": "headers"}),
    *(
        Bad(f"1969, {unit}", {"timestamp": times(-1, unit)}, "before 1970", {"column": "timestamp"})
        for unit in ("s", "ms", "us", "ns")
    ),
    Bad("time beyond 64 bits", {"timestamp": times(2**60, "s")}, "too far in the future", {"column": "timestamp"}),
    Bad("large value", {"value": [SECRET, SECRET * 100_000]}, "it is too large: it takes 2000"),
    Bad("large key", {"key": [SECRET, SECRET * 100_000]}, "it is too large: it takes 2000"),
    Bad(
        "large headers",
        {"headers": headers(*[{"key": "k" * 900, "value": b"v" * 100}] * 1000)},
        "it is too large: it takes 100",
    ),
    Bad("large for the option", {"value": ["a", "b" * 950]}, "'message.max.bytes' = 1000.", {}, {
        "message_max_bytes": 1000
    }),
)  # fmt: skip

NO_ROOM = "Raise the topic's max.message.bytes. Or lower the sink's 'batch.size'"

BY_BROKER: tuple[tuple[dict[str, str], Bad], ...] = (
    (
        {"cleanup.policy": "compact"},
        Bad("no key for a compacted topic", {"key": ["k", None]}, "INVALID_RECORD. The topic rejects such records"),
    ),
    ({}, Bad("time too far ahead", {"timestamp": times(2**60)}, "INVALID_TIMESTAMP. Column 'timestamp' is too far")),
    ({"max.message.bytes": "2000"}, Bad("large for the topic", {"value": ["a", SECRET * 200]}, NO_ROOM)),
    ({"max.message.bytes": "2000"}, Bad("together large for the topic", {"value": [SECRET * 50] * 2}, NO_ROOM)),
    (
        {"segment.bytes": str(1 << 20), "max.message.bytes": "3000000"},
        Bad(
            "large for a segment",
            {"value": ["a", SECRET * 60_000]},
            "RECORD_LIST_TOO_LARGE. A batch is larger than the topic's segment.bytes",
            options={"message_max_bytes": 2_000_000, "batch_size": 2_000_000},
        ),
    ),
)  # fmt: skip


def record_batch(topic: str, columns: dict[str, Any]) -> pa.RecordBatch:
    columns = {"value": [SECRET] * 2, "key": [SECRET] * 2} | columns
    if isinstance(columns.get("topic"), list):
        columns["topic"] = pa.array([each and each.format(topic=topic) for each in columns["topic"]], pa.string())
    return pa.record_batch(columns)


def told(refused: BaseException) -> tuple[object, ...]:
    return type(refused), str(refused), vars(refused)


# One place that looks at values. --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [each for each in BY_VALUE if "large" not in each.name], ids=lambda bad: bad.name)
def test_a_value_is_refused_by_its_position_in_the_batch_and_in_a_slice_of_one(bad: Bad) -> None:
    options = parse_options({"bootstrap.servers": "broker:9092", **({} if "topic" in bad.options else {"topic": "t"})})
    whole = pa.Table.from_batches([record_batch("t", bad.columns)] * 3).combine_chunks().to_batches()[0]

    def partitions(topic: str, highest: int) -> int:
        return 0 if topic == "no-such-topic" else 2

    for start, stop, position in ((0, 6, 1), (2, 6, 1), (3, 4, 0), (1, 2, 0)):
        with pytest.raises(RecordRefused) as refused:
            check_values(whole.slice(start, stop - start), options, partitions)
        assert refused.value.record == position
    check_values(whole.slice(2, 1), options, partitions)


def test_of_several_times_near_1970_the_one_before_it_is_named() -> None:
    options = parse_options({"bootstrap.servers": "broker:9092", "topic": "t"})
    column = pa.array([None, 0, 999, -1, 0], pa.timestamp("us"))
    with pytest.raises(RecordRefused, match=r"^record 3, column 'timestamp': the time is before 1970"):
        check_values(pa.record_batch({"value": ["a"] * 5, "timestamp": column}), options, one)


@pytest.mark.parametrize("name", ["value", "key", "headers"])
def test_a_record_fits_to_the_byte_or_is_refused_with_its_size_and_the_limit(name: str) -> None:
    options = parse_options({"bootstrap.servers": "x:1", "topic": "t"})

    def check(batch: pa.RecordBatch, limit: int) -> None:
        check_values(batch, replace(options, properties={**options.properties, "message.max.bytes": limit}), one)

    for length in (*range(60, 68), *range(8180, 8200)):
        given = [{"key": "k", "value": b"v" * length}] if name == "headers" else "x" * length
        large = {"value": "v", "key": None, "headers": None} | {name: given}
        columns = {"value": ["v", large["value"]], "key": pa.array([None, large["key"]], pa.string())}
        batch = pa.record_batch(columns | {"headers": pa.array([None, large["headers"]], HEADERS)})
        size = len(encoded_alone(batch.slice(1)))
        check(batch, size)
        told = rf"record 1: it is too large: it takes {size} bytes .* = {size - 1}\."
        with pytest.raises(RecordRefused, match=told):
            check(batch, size - 1)


def encoded_alone(batch: pa.RecordBatch) -> memoryview:
    encoder = Encoder(ProducerIdentity(1, 0), 1_000_000, Compression("none"))
    [encoded] = encoder.encode(records_of(batch), np.arange(1), {0: slice(0, 1)}, np.arange(1))
    return encoded.data


@pytest.mark.parametrize(
    ("given", "is_refused"),
    [({}, True), ({"compression.type": "NONE"}, True), ({"compression.type": "GZIP"}, False)]
    + [({"writer": "librdkafka", "compression.codec": codec}, codec == " None ") for codec in (" None ", "gzip")],
)
def test_only_a_record_that_is_sent_compressed_may_be_larger_than_its_topic_takes(
    given: dict[str, str], is_refused: bool
) -> None:
    options = parse_options({"bootstrap.servers": "x:1", "topic": "t", **given})
    expected = pytest.raises(RecordRefused, match="too large") if is_refused else contextlib.nullcontext()
    with expected:
        require_accepted(pa.record_batch({"value": ["v" * 3000]}), options, lambda _: TopicRules(max_bytes=2000))


@pytest.mark.long
def test_a_topic_is_looked_up_again_for_a_partition_that_it_did_not_have() -> None:
    options = parse_options({"bootstrap.servers": "broker:9092"})
    asked: list[tuple[str, int]] = []

    def partitions(topic: str, highest: int) -> int:
        asked.append((topic, highest))
        return 9

    batch = pa.record_batch(
        {"value": ["a"] * 4, "topic": ["x", "y", "x", "z"], "partition": pa.array([3, 8, None, None], pa.int32())}
    )
    check_values(batch, options, partitions)
    assert sorted(asked) == [("x", 3), ("y", 8), ("z", 0)]


# Both writers, on a real broker. --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def creating_topics() -> Iterator[KafkaBroker]:
    with KafkaBroker(properties={"auto.create.topics.enable": True}) as broker:
        yield broker


def refusals(
    make_sink: Any, topic: Any, bad: Bad, modes: tuple[tuple[str, str], ...]
) -> Iterator[tuple[Any, RecordRefused]]:
    """What each mode says of a task's third and fourth record, of which the fourth is bad."""
    for writer, delivery in modes:
        options = {"writer": writer, "delivery": delivery, **bad.options}
        if writer == "librdkafka":
            options["linger_ms"] = 200  # so that both records are in one batch
        sink = make_sink(topic, log_id=f"{writer}-{delivery}", **options)
        fine = record_batch(topic.name, {"topic": ["{topic}"] * 2} if "topic" in bad.options else {})
        with pytest.raises(RecordRefused) as refused:
            written_apart(sink, fine, record_batch(topic.name, bad.columns))
        yield sink, refused.value


def written_apart(sink: Any, *batches: pa.RecordBatch) -> None:
    """Have a task, its sixth, write ``batches``, one after the other has arrived."""
    with Participant({"orders": sink}, Round(1, 0), partition=5) as participant:
        for number, batch in enumerate(batches):
            if number:
                arrived(participant)
            participant.write("orders", batch)
        participant.pre_commit()


def left_out(sink: Any, batch: pa.RecordBatch, at_most: int = 1) -> tuple[Sequence[RecordRefused], Committable]:
    """What a task leaves out of a batch, and its vote."""
    with Participant({"orders": sink}, Round(1, 0), partition=0, max_bad_records=at_most) as participant:
        return participant.write("orders", batch), participant.pre_commit()["orders"]


def write_directly(sink: Any, batch: pa.RecordBatch) -> None:
    """What a task does whose sink was validated on the coordinator."""
    transaction = sink.begin(sink.transactional_ids.allocate(Round(1, 0), 0))
    try:
        sink.write(transaction, batch)
        sink.pre_commit(transaction)
    finally:
        sink.discard(transaction)


def arrived(participant: Any) -> None:
    writer = participant._transactions["orders"].writer
    if isinstance(writer, Writer):
        writer._producer.flush(10)
    else:
        writer._sending.drain()


def filled(expected: dict[str, Any], topic: Any) -> dict[str, Any]:
    return {name: topic.name if value == "{topic}" else value for name, value in expected.items()}


@pytest.mark.variants
@pytest.mark.parametrize("bad", BY_VALUE, ids=lambda bad: bad.name)
def test_what_can_never_be_written_is_refused_alike_whatever_writes_it(
    bad: Bad, make_topic: Any, make_sink: Any
) -> None:
    topic = make_topic(partitions=2)
    found = []
    for sink, refused in refusals(make_sink, topic, bad, MODES):
        found.append(told(refused))
        assert list(sink.recover()) == []
    assert found == found[:1] * len(found)
    message = str(found[0][1])
    assert bad.said.format(servers=topic.servers) in message
    assert SECRET not in message
    where = {"sink": "orders", "task": 5, "record": 3} | filled(bad.where, topic)
    assert where.items() <= vars(refused).items()
    assert message.startswith("sink 'orders', task 5, record 3")


@pytest.mark.variants
@pytest.mark.parametrize(("config", "bad"), BY_BROKER, ids=lambda each: getattr(each, "name", ""))
def test_what_the_brokers_will_always_refuse_is_refused_alike_whatever_writes_it(
    config: dict[str, str], bad: Bad, make_topic: Any, make_sink: Any
) -> None:
    topic = make_topic(config=config)
    found = []
    for sink, refused in refusals(make_sink, topic, bad, REPORTING):
        found.append((type(refused), refused.reason, refused.column))  # only the Arrow writer names the record
        assert list(sink.recover()) == []
    assert found == found[:1] * len(found)
    message = str(refused)
    assert f"the brokers at {topic.servers} refuse records: " in message
    assert bad.said in message
    assert SECRET not in message
    assert (refused.sink, refused.topic, refused.partition) == ("orders", topic.name, 0)


def test_a_supervisor_sees_that_to_run_the_batch_again_is_in_vain(
    make_topic: Any, make_sink: Any, tmp_path: Any
) -> None:
    topic = make_topic()
    sinks = {"orders": make_sink(topic, log_id=None)}
    with Coordinator(sinks, str(tmp_path / "log"), owner="query") as coordinator:
        with pytest.raises(RecordRefused, match=r"^sink 'orders', task 0, record 1, column 'timestamp': .*before 1970"):
            coordinator.run(0, writes(sinks, record_batch(topic.name, {"timestamp": times(-1)})))
        topic.stays_empty()


@pytest.mark.variants
@pytest.mark.advice("the time is 1970-01-01 00:00:00.000")
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_the_first_millisecond_of_1970_is_written_or_refused_and_never_another_time(
    unit: str, make_topic: Any, make_sink: Any, wait: Any
) -> None:
    topic = make_topic()
    batch = record_batch(topic.name, {"timestamp": pa.array([1_000_000_000, 0], pa.timestamp(unit))})
    for delivery in ("exactly-once", "at-least-once", "none"):
        sink = make_sink(topic, log_id=delivery, writer="librdkafka", delivery=delivery)
        with pytest.raises(RecordRefused, match=r"record 1, column 'timestamp': .*'writer' = 'arrow', which writes it"):
            written(sink, batch)
    sink = make_sink(topic, writer="arrow")
    decided = sealed(sink, batch.slice(1))
    wait.repeated(lambda: sink.commit(decided))
    wait.until("it is of 1970", lambda: [record.timestamp for record in topic.records()] == [0])


@pytest.mark.variants
@pytest.mark.parametrize(("writer", "delivery"), MODES)
def test_bytes_that_are_no_text_arrive_as_they_are(
    writer: str, delivery: str, make_topic: Any, make_sink: Any, wait: Any
) -> None:
    topic = make_topic()
    odd = text_that_is_none(b"\xff\x00", b"\xc3\x28")
    written(make_sink(topic, writer=writer, delivery=delivery), pa.record_batch({"value": odd, "key": odd}))
    wait.until("both are there", lambda: len(topic.records("read_uncommitted")) == 2)
    found = {(record.key, record.value) for record in topic.records("read_uncommitted")}
    assert found == {(each, each) for each in (b"\xff\x00", b"\xc3\x28")}


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once", "none"])
def test_a_record_that_librdkafkas_queue_has_no_room_for_is_refused_and_waits_for_nothing(
    delivery: str, make_topic: Any, make_sink: Any
) -> None:
    topic = make_topic()
    sink = make_sink(topic, writer="librdkafka", delivery=delivery, queue_buffering_max_kbytes=5)
    with pytest.raises(RecordRefused, match=r"task 0: a record is larger than 'queue.buffering.max.kbytes' = 5"):
        written(sink, "a", SECRET * 500)


@pytest.mark.variants
@pytest.mark.parametrize(("writer", "delivery"), MODES)
def test_records_without_a_key_for_a_compacted_topic_are_left_out_before_the_broker_refuses_all(
    writer: str, delivery: str, make_topic: Any, make_sink: Any, wait: Any
) -> None:
    compacted, other = make_topic(config={"cleanup.policy": "compact,delete"}), make_topic()
    sink = make_sink(compacted, topic=None, writer=writer, delivery=delivery)
    batch = pa.record_batch(
        {
            "value": ["a", "b", "c", "d"],
            "key": pa.array(["k", None, None, None], pa.string()),
            "topic": [compacted.name, compacted.name, other.name, compacted.name],
        }
    )
    refused, _ = left_out(sink, batch, at_most=2)
    assert [(each.record, each.topic, each.column) for each in refused] == [
        (1, compacted.name, "key"),
        (3, compacted.name, "key"),
    ]
    wait.until(
        "both are there", lambda: [len(each.records("read_uncommitted")) for each in (compacted, other)] == [1, 1]
    )


AHEAD = pa.array([None, int(time.time()) + 7200, None, int(time.time()) + 3500], pa.timestamp("s"))


@dataclass(frozen=True)
class NotAccepted:
    """What a topic does not accept of the second of four records."""

    config: dict[str, str]
    columns: dict[str, Any]
    column: str | None
    told: str


NOT_ACCEPTED = {
    "ahead": NotAccepted({}, {"timestamp": AHEAD}, "timestamp", "message.timestamp.after.max.ms = 3600000 allows"),
    "behind": NotAccepted(
        {"message.timestamp.before.max.ms": "60000"},
        {"timestamp": pa.array([None, 1_000_000_000, None, None], pa.timestamp("s"))},
        "timestamp",
        "message.timestamp.before.max.ms = 60000 allows",
    ),
    "large": NotAccepted(
        {"max.message.bytes": "2000"}, {"value": ["a", "b" * 2000, "c", "d"]}, None, "max.message.bytes = 2000"
    ),
}


@needs_kafka(3, 6)
@pytest.mark.variants
@pytest.mark.parametrize(("writer", "delivery"), MODES)
@pytest.mark.parametrize("case", NOT_ACCEPTED)
def test_a_record_that_its_topic_does_not_accept_is_left_out_before_the_broker_refuses_all(
    writer: str, delivery: str, case: str, make_topic: Any, make_sink: Any, wait: Any
) -> None:
    of_second = NOT_ACCEPTED[case]
    topic = make_topic(config=of_second.config)
    batch = pa.record_batch({"value": ["a", "b", "c", "d"]} | of_second.columns)
    [refused], _ = left_out(make_sink(topic, writer=writer, delivery=delivery), batch)
    assert (refused.record, refused.topic, refused.column) == (1, topic.name, of_second.column)
    assert of_second.told in refused.message
    written = {b"a", b"c", b"d"}
    wait.until("the others are there", lambda: {each.value for each in topic.records("read_uncommitted")} == written)


def test_a_topic_that_sets_the_timestamps_itself_and_a_compressed_batch_are_left_to_the_brokers(
    make_topic: Any, make_sink: Any
) -> None:
    topic = make_topic(config={"message.timestamp.type": "LogAppendTime", "max.message.bytes": "2000"})
    sink = make_sink(topic, compression_type="gzip")
    batch = pa.record_batch({"value": ["a", "b" * 9000, "c", "d"], "timestamp": AHEAD})
    assert left_out(sink, batch)[0] == ()
    assert len(topic.records("read_uncommitted")) == 4


@needs_kafka(3, 6)
@pytest.mark.parametrize("before", [0, 3])
def test_a_record_that_the_broker_alone_refuses_is_named_by_its_position_and_column(
    before: int, make_topic: Any, make_sink: Any
) -> None:
    topic, other = make_topic(partitions=3), make_topic()
    names = [other.name, *[topic.name] * 5]
    batch = pa.record_batch(
        {
            "value": [*"abcdef"],
            "key": [*"abcdef"],
            "topic": names,
            "timestamp": pa.array([None, None, None, None, int(time.time()) + 7200, None], pa.timestamp("s")),
        }
    )

    with pytest.raises(RecordRefused, match="INVALID_TIMESTAMP") as refused:
        written(make_sink(topic, topic=None), *[batch.slice(0, 4)] * before, batch)
    assert (refused.value.record, refused.value.column) == (4 * before + 4, "timestamp")


def test_a_topic_is_asked_for_what_it_accepts_once_per_transaction(
    topic: Any, make_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = Cluster.rules

    async def rules(self: Cluster, topic: str, timeout_ms: int) -> TopicRules:
        asked.append(topic)
        return await real(self, topic, timeout_ms)

    monkeypatch.setattr(Cluster, "rules", rules)
    sink = make_sink(topic, writer="arrow")
    with Participant({"orders": sink}, Round(1, 0), partition=0, max_bad_records=1) as participant:
        for _ in range(3):
            assert participant.write("orders", pa.record_batch({"value": ["a"]})) == ()
    assert asked == [topic.name]


@pytest.mark.variants
@pytest.mark.parametrize(("writer", "delivery"), MODES)
def test_a_topic_that_is_missing_is_waited_for_once_however_many_records_name_one(
    writer: str, delivery: str, topic: Any, make_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: dict[str, int] = {}
    real = Cluster.find

    async def find(self: Cluster, topic: str, unknown_ms: int, *more: Any) -> Any:
        assert topic not in waits
        waits[topic] = unknown_ms
        return await real(self, topic, unknown_ms, *more)

    monkeypatch.setattr(Cluster, "find", find)
    sink = make_sink(topic, topic=None, writer=writer, delivery=delivery, topic_metadata_propagation_max_ms=1000)
    first, second = (f"missing-{uuid.uuid4().hex}" for _ in range(2))
    names = [first, topic.name, second, first, topic.name, second, first]
    batch = pa.record_batch({"value": ["a"] * len(names), "topic": names})  # without keys, which are looked up, too
    refused, committable = left_out(sink, batch, at_most=9)
    assert sorted((each.record, each.topic) for each in refused) == [
        (n, name) for n, name in enumerate(names) if name != topic.name
    ]
    assert committable.records == 2
    assert (waits[first], waits[second]) in [(1000, 0), (0, 1000)]


@pytest.mark.variants
@pytest.mark.parametrize(("writer", "delivery"), MODES)
@pytest.mark.parametrize("wrong", [b"no topic!", b"\xff", b"", b"x" * 250, None])
def test_a_record_whose_topic_has_no_possible_name_is_left_out_though_it_has_no_key(
    wrong: bytes | None, writer: str, delivery: str, topic: Any, make_sink: Any
) -> None:
    names = pa.array([topic.name.encode(), wrong, topic.name.encode()], pa.binary())
    batch = pa.record_batch({"value": ["a", "b", "c"], "topic": pa.Array.from_buffers(pa.string(), 3, names.buffers())})
    sink = make_sink(topic, topic=None, writer=writer, delivery=delivery)
    [refused], committable = left_out(sink, batch)
    assert (refused.record, refused.column, committable.records) == (1, "topic", 2)


# Topics are not created. ----------------------------------------------------------------------------------------------


def topics_of(servers: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": servers}).list_topics(timeout=10).topics)


def add_partition(topic: Any) -> None:
    admin = AdminClient({"bootstrap.servers": topic.servers})
    admin.create_partitions([NewPartitions(topic.name, 2)])[topic.name].result(10)


@pytest.mark.long
@pytest.mark.parametrize(("writer", "delivery"), MODES)
@pytest.mark.parametrize("by", ["option", "column"])
def test_a_misspelt_topic_is_refused_and_not_created_where_brokers_create_topics(
    by: str, writer: str, delivery: str, make_topic: Any, make_sink: Any, creating_topics: KafkaBroker
) -> None:
    topic = make_topic(on=creating_topics)
    name = f"misspelt-{topic.name}"
    options = {"writer": writer, "delivery": delivery, "topic_metadata_propagation_max_ms": 300}
    columns: dict[str, Any] = {"value": ["a"]} if by == "option" else {"value": ["a", "b"], "topic": [topic.name, name]}
    sink = make_sink(topic, topic=name if by == "option" else None, **options)
    expected = ConfigurationError if by == "option" else RecordRefused
    with pytest.raises(expected, match=f"{name}'.* does not exist") as refused:
        write_directly(sink, pa.record_batch(columns))
    assert getattr(refused.value, "record", 1) == 1
    if by == "option":
        with pytest.raises(ConfigurationError, match=f"'{name}' \\(the option 'topic'\\) does not exist") as validated:
            sink.validate(pa.schema([("value", pa.string())]))
        assert str(validated.value) == str(refused.value)
    assert name not in topics_of(topic.servers)


@pytest.mark.long
def test_a_topic_that_was_deleted_since_it_was_seen_is_not_created_again(
    make_topic: Any, make_sink: Any, creating_topics: KafkaBroker
) -> None:
    topic = make_topic(on=creating_topics)
    options = {"writer": "librdkafka", "delivery": "at-least-once", "topic_metadata_propagation_max_ms": 300}

    written(make_sink(topic, **options), "a")
    topic.delete()
    with pytest.raises((RoundAborted, ConfigurationError), match="does not exist"):
        write_directly(make_sink(topic, **options), pa.record_batch({"value": ["a"]}))
    assert topic.name not in topics_of(topic.servers)


def test_a_transaction_looks_for_a_topic_once_and_for_a_new_partition_at_once(
    make_topic: Any, make_sink: Any, wait: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, looked = writer_module.Writer._look_up, []

    def look_up(self: Any, topic: str) -> int:
        looked.append(topic)
        return real(self, topic)

    monkeypatch.setattr(writer_module.Writer, "_look_up", look_up)
    topic = make_topic()

    def write(partition: int) -> None:
        batch = pa.record_batch({"value": ["a"], "partition": pa.array([partition], pa.int32())})
        written(make_sink(topic, writer="librdkafka", delivery="at-least-once"), *[batch] * 3)

    write(0)
    assert looked == [topic.name]
    add_partition(topic)
    wait.until("it has another partition", lambda: takes(lambda: write(1)))


def takes(write: Callable[[], None]) -> bool:
    try:
        write()
    except RecordRefused:
        return False
    return True


def test_a_partition_that_was_added_amid_a_transaction_is_written_to(
    make_topic: Any, make_sink: Any, wait: Any
) -> None:
    topic = make_topic()
    sink = make_sink(topic, writer="arrow")
    with Participant({"orders": sink}, Round(1, 0), partition=0) as participant:

        def write(partition: int) -> None:
            numbers = pa.array([partition], pa.int32())
            participant.write("orders", pa.record_batch({"value": ["a"], "partition": numbers}))

        write(0)
        add_partition(topic)
        wait.until("it has another partition", lambda: takes(lambda: write(1)))
        write(0)
        assert participant.pre_commit()["orders"].records == 3
