"""Whole batches: what a record and a marker say, when the marker is written, and what readers make of both."""

import contextlib
import json
import random
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType
from kafka import KafkaAdminClient

from tests.sinks.kafka.access import allow, as_user, grant
from tests.sinks.kafka.markers_loop import Job, numbers
from tests.support.incarnations import log_of
from tests.support.kills import Process, is_alive, kill_all_of, start_logged
from tests.support.observing import Killed, Moments, killed, observing
from tests.support.whole_batches import EXAMPLES, JAVA, PYTHON, SHOWN_S, NoCompiler, Reader, reader_in, reading
from twopc import Committable, Coordinator, Participant, Round, TwoPhaseCommitSink, Vote
from twopc.checks import CheckStatus
from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    OutcomeUnknown,
    RecordRefused,
    RoundAborted,
    TransactionLost,
)
from twopc.log.commit_log import read_tail
from twopc.log.store import open_store
from twopc.phases import Phase
from twopc.testing import MemorySink, MemoryTarget
from twopc_kafka import KafkaSink, values
from twopc_kafka.columns import _headers
from twopc_kafka.markers import HEADER, UNKNOWN_END, Marker, due, handle_of, stamped
from twopc_kafka.options import ARROW, LIBRDKAFKA, parse_options
from twopc_kafka.values import check_values
from twopc_kafka.writers.librdkafka import _Reports
from twopc_kafka_broker import KafkaBroker

SERVERS = {"bootstrap.servers": "broker:9092"}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
STAMP = (HEADER, b"log/7")


# The option. --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        *(
            ({"batch.markers": "markers", "delivery": each}, "'batch.markers' is only for 'delivery' = 'exactly-once'")
            for each in ("at-least-once", "none")  # records may come twice
        ),
        ({"batch.markers": "orders", "topic": "orders"}, "'batch.markers' and 'topic' are both 'orders'"),
        ({"batch.markers": "no such/topic"}, "'batch.markers' of the kafka sink must be the name of another topic"),
    ],
)
def test_markers_of_nothing_or_among_the_records_or_in_no_topic_are_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        KafkaSink({**SERVERS, **options})


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_a_record_for_the_topic_of_markers_is_refused(kind: pa.DataType) -> None:
    options = parse_options({**SERVERS, "batch.markers": "markers"})
    batch = pa.record_batch({"value": ["a", "b"], "topic": pa.array([b"orders", b"markers"], pa.binary()).cast(kind)})
    with pytest.raises(RecordRefused, match=r"the topic of 'batch\.markers'") as refused:
        check_values(batch, options, lambda *_: 1)
    assert (refused.value.record, refused.value.topic, refused.value.column) == (1, "markers", "topic")


def test_stamps_make_no_batch_so_large_that_each_record_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "alone_bytes", lambda *_: pytest.fail("each record was measured"))
    batch = stamped(pa.record_batch({"value": ["v"] * 100_000}), "3f2a9c4e71b0/42")
    check_values(batch, parse_options({**SERVERS, "topic": "orders", "batch.markers": "markers"}), lambda *_: 1)


# The header. --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers", [[None, [("x", b"1"), ("y", None)], [], [("z", b"")]], [[("x", b"1")], None], [None, None], [[]], []]
)
def test_a_header_is_added_after_those_that_a_record_has(headers: list[Any]) -> None:
    batch = pa.record_batch({"value": ["v"] * len(headers), "headers": pa.array(headers, HEADERS)})
    expected = [[*(given or ()), STAMP] for given in headers]
    assert list(_headers(stamped(batch, "log/7").column("headers"))) == expected
    for start in range(len(headers)):
        assert list(_headers(stamped(batch.slice(start), "log/7").column("headers"))) == expected[start:]


def test_a_record_without_a_column_of_headers_gets_one() -> None:
    stamps = stamped(pa.record_batch({"value": ["a", "b"]}), "log/7")
    assert stamps.schema.names == ["value", "headers"]
    assert list(_headers(stamps.column("headers"))) == [[STAMP], [STAMP]]


def test_headers_of_other_arrow_types_are_kept() -> None:
    wide = pa.large_list(pa.struct([("value", pa.large_binary()), ("key", pa.large_string())]))
    batch = pa.record_batch({"value": ["a"], "headers": pa.array([[{"key": "x", "value": b"1"}]], wide)})
    assert list(_headers(stamped(batch, "log/7").column("headers"))) == [[("x", b"1"), STAMP]]


# The marker. --------------------------------------------------------------------------------------------------------


def committable(
    written: dict[tuple[str, int], tuple[int, int]], topic: str = "markers", cluster: str = "1"
) -> Committable:
    records = sum(count for count, _ in written.values())
    handle = {**handle_of(topic, written, records), "marker_cluster": cluster}
    return Committable("t", json.loads(json.dumps(handle)), records)


def test_a_marker_has_the_sums_and_the_last_ends_of_all_transactions() -> None:
    some = [committable({("a", 0): (2, 5), ("b", 1): (1, 9)}), committable({("a", 0): (3, 12), ("a", 1): (1, 4)})]
    [marker] = due("orders", "log/7", {"orders": some, "files": [Committable("f", {})]}, {})
    assert marker.written == {("a", 0): (5, 12), ("b", 1): (1, 9), ("a", 1): (1, 4)}


def test_the_first_of_the_sinks_that_have_records_writes_the_marker_of_all() -> None:
    committed = {"c": [committable({("c", 0): (1, 1)})], "b": [committable({("b", 0): (1, 1)})], "a": []}
    assert [*due("a", "log/7", committed, {}), *due("c", "log/7", committed, {})] == []
    [marker] = due("b", "log/7", committed, {})
    assert marker.written == {("b", 0): (1, 1), ("c", 0): (1, 1)}


def test_sinks_of_two_clusters_write_a_marker_each() -> None:
    committed = {name: [committable({(name, 0): (1, 1)}, cluster=name)] for name in "ab"}
    markers = [marker for name in "ab" for marker in due(name, "log/7", committed, {})]
    assert [[*marker.written] for marker in markers] == [[("a", 0)], [("b", 0)]]


def test_a_batch_without_records_has_no_marker() -> None:
    assert [*due("orders", "log/7", {"orders": []}, {})] == []


def test_what_was_given_up_counts_in_the_ends_of_a_marker_and_not_in_its_numbers_of_records() -> None:
    kept, lost = committable({("a", 0): (2, 5)}), committable({("a", 0): (3, 12), ("b", 0): (1, 4)})
    [marker] = due("orders", "log/7", {"orders": [kept]}, {"orders": [lost]})
    assert (marker.written, marker.given_up) == ({("a", 0): (2, 12), ("b", 0): (0, 4)}, 4)


def test_a_batch_of_which_all_was_given_up_has_a_marker() -> None:
    [marker] = due("orders", "log/7", {"orders": []}, {"orders": [committable({("a", 0): (3, 12)})]})
    assert marker.written == {("a", 0): (0, 12)}


def test_a_batch_whose_marker_would_be_too_large_is_refused_before_its_decision() -> None:
    sink = KafkaSink({**SERVERS, "batch.markers": "markers", "message.max.bytes": 1000})
    sink.bind("orders", "log")
    chance = random.Random(1)  # noqa: S311  # it makes the marker hard to compress
    written = {("a", number): (chance.randrange(1000), chance.randrange(10**9)) for number in range(300)}
    sink._refuse_too_large_a_marker([committable({("a", 0): (1, 1)})])
    with pytest.raises(ConfigurationError, match=r"300 partitions, more than 'message\.max\.bytes' = 1000"):
        sink._refuse_too_large_a_marker([committable(written)])


@pytest.mark.parametrize("written", [{("a", 0): (2, 5)}, {("a", 0): (3, UNKNOWN_END)}, {}])
def test_a_transaction_whose_offsets_are_not_all_known_votes_no(
    written: dict[tuple[str, int], tuple[int, int]],
) -> None:
    with pytest.raises(RoundAborted, match="of 3 records"):
        handle_of("markers", written, 3)


def test_delivery_reports_count_in_any_order_and_an_unknown_offset_is_not_forgotten() -> None:
    def report(offset: int | None, partition: int) -> None:
        message = SimpleNamespace(topic=lambda: "a", partition=lambda: partition, offset=lambda: offset)
        reports.delivered(None, message)  # type: ignore[arg-type]

    reports = _Reports()
    for offset in (7, 5, 6):
        report(offset, 0)
    for wrong_after_first in (-1001, None, 3):
        report(wrong_after_first, 1)
    assert reports.written == {("a", 0): (3, 8), ("a", 1): (3, UNKNOWN_END)}


def test_a_marker_for_many_partitions_is_compressed() -> None:
    written = {
        (f"orders-{topic}", number): (1000 + number, 10**7 + number) for topic in range(30) for number in range(600)
    }
    marker = Marker("markers", "3f2a9c4e71b0/42", written, 0)
    assert len(marker.encoded()) < 10 * len(written)


# With a broker. -----------------------------------------------------------------------------------------------------

TOPICS, PARTITIONS, RECORDS = 3, 24, 600
STORM_S = 180


class Query:
    """A query of four tasks to three topics of 24 partitions, and to a target in memory."""

    def __init__(self, make_topic: Any, make_sink: Any, folder: Path, **options: Any) -> None:
        self.topics = [make_topic(PARTITIONS) for _ in range(TOPICS)]
        self.markers = make_topic()
        self.options: dict[str, Any] = {"batch.markers": self.markers.name, **options}
        self.replay_copies: str | None = None
        self._make_sink: Callable[[], KafkaSink] = lambda: make_sink(
            self.topics[0], log_id=None, topic=None, **{name: o for name, o in self.options.items() if o is not None}
        )
        self._folder = folder
        self.memory = MemoryTarget()

    def coordinator(self, **options: Any) -> Coordinator:
        sinks: dict[str, TwoPhaseCommitSink[Any]] = {"kafka": self._make_sink(), "memory": MemorySink(self.memory)}
        return Coordinator(sinks, f"{self._folder}/log", owner="query", replay_copies=self.replay_copies, **options)

    def run(self, batch_id: int, coordinator: Coordinator | None = None, fails: bool = False) -> None:
        coordinator = coordinator or self.coordinator()

        def phase_one(round: Round) -> Iterator[Vote]:
            for partition in range(4):
                with Participant(coordinator._sinks, round, partition=partition) as participant:
                    numbers = range(batch_id * RECORDS + partition, (batch_id + 1) * RECORDS, 4)
                    topics = [self.topics[n % TOPICS].name for n in numbers]
                    keys = pa.array([str(n) if n % 5 else None for n in numbers], pa.string())
                    records = pa.record_batch({"value": [str(n) for n in numbers], "topic": topics, "key": keys})
                    participant.write("kafka", records)
                    participant.write("memory", records)
                    yield participant.pre_commit()
            if fails:
                raise RuntimeError("the job failed")

        coordinator.run(batch_id, phase_one)

    def written(self, isolation_level: str = "read_committed") -> dict[str, dict[tuple[str, int], tuple[int, int]]]:
        """Batch → topic and partition → what a committed reader finds."""
        found: dict[str, dict[tuple[str, int], tuple[int, int]]] = {}
        for topic in self.topics:
            for record in topic.records(isolation_level):
                of_batch = found.setdefault(dict(record.headers)[HEADER].decode(), {})
                count, _ = of_batch.get((topic.name, record.partition), (0, 0))
                of_batch[topic.name, record.partition] = count + 1, record.offset + 1
        return found

    def stated(self) -> list[tuple[str, dict[tuple[str, int], tuple[int, int]]]]:
        """What the markers say, in their order."""
        markers = self.markers.records()
        assert {marker.partition for marker in markers} <= {0}
        stated = [json.loads(marker.value) for marker in markers]
        assert [(marker.key.decode(), dict(marker.headers)[HEADER].decode()) for marker in markers] == [
            (each["batch"], each["batch"]) for each in stated
        ]
        return [(each["batch"], {(t, n): (count, end) for t, n, count, end in each["partitions"]}) for each in stated]


@pytest.fixture(params=[ARROW, pytest.param(LIBRDKAFKA, marks=pytest.mark.long)])
def query(request: Any, make_topic: Any, make_sink: Any, tmp_path: Path) -> Query:
    return Query(make_topic, make_sink, tmp_path, writer=request.param)


def test_every_record_names_its_batch_and_the_marker_has_what_a_committed_reader_finds(query: Query) -> None:
    coordinator = query.coordinator()
    for batch_id in range(3):
        query.run(batch_id, coordinator)
    written, stated = query.written(), query.stated()
    assert [int(name.split("/")[1]) for name, _ in stated] == [0, 1, 2]
    assert dict(stated) == written
    assert [sum(count for count, _ in parts.values()) for _, parts in stated] == [RECORDS] * 3


@pytest.mark.long
def test_the_marker_is_written_when_all_of_the_batch_is_visible(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator, seen = query.coordinator(), []
    memory = coordinator._sinks["memory"]
    memory.commits_last = True
    monkeypatch.setattr(memory, "complete", lambda *_: seen.append(query.stated()))
    query.run(0, coordinator)
    assert seen == [[]]
    [(batch, parts)] = query.stated()
    assert query.written() == {batch: parts}


@pytest.mark.long
def test_what_was_rolled_back_is_in_no_marker(query: Query) -> None:
    with pytest.raises(Exception, match="the job failed"):
        query.run(0, fails=True)
    assert query.written() == {}
    query.run(0)
    assert dict(query.stated()) == query.written()


def test_a_batch_that_comes_again_gets_no_second_marker(query: Query) -> None:
    coordinator = query.coordinator()
    query.run(0, coordinator)
    query.run(0, coordinator)
    assert len(query.stated()) == 1


def test_a_crash_after_the_marker_repeats_it_as_it_was(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = query.coordinator()
    monkeypatch.setattr(coordinator._sinks["memory"], "announce", lambda *_: killed())
    with pytest.raises(Killed):
        query.run(0, coordinator)
    query.coordinator().recover()
    first, second = query.stated()
    assert first == second
    assert dict([first]) == query.written()


@pytest.mark.long
def test_a_batch_decided_with_markers_gets_its_own_when_the_option_is_gone(query: Query) -> None:
    with observing(Moments(Phase.COMMITTING)), pytest.raises(Killed):
        query.run(0)
    assert query.stated() == []
    coordinator = query.coordinator()
    coordinator._sinks["kafka"] = KafkaSink(
        {"bootstrap.servers": query.markers.servers, "transactional.id.prefix": coordinator._sinks["kafka"].prefix}
    )
    coordinator.recover()
    assert dict(query.stated()) == query.written() != {}


@pytest.mark.long
@pytest.mark.parametrize("now", [None, "another"])
def test_what_is_written_again_after_the_option_changed_is_written_for_the_marker_of_its_batch(
    query: Query, now: str | None, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided, query.replay_copies = query.markers, str(query._folder / "copies")
    commit = KafkaSink.commit

    def lost_at_first(sink: KafkaSink, committable: Committable) -> None:
        if committable.transaction_id in lost:
            sink.abort(committable)
            raise TransactionLost("rolled back")
        commit(sink, committable)

    def dies(_: KafkaSink, committable: Committable) -> None:
        lost.add(committable.transaction_id)
        raise Killed

    lost: set[str] = set()
    with monkeypatch.context() as patch:
        patch.setattr(KafkaSink, "commit_many", lambda *_: ())
        patch.setattr(KafkaSink, "commit", dies)
        with pytest.raises(Killed):
            query.run(0, query.coordinator(commits_at_once=1))
    assert len(lost) == 1
    query.options["batch.markers"] = now and make_topic().name
    monkeypatch.setattr(KafkaSink, "commit_many", lambda *_: ())
    monkeypatch.setattr(KafkaSink, "commit", lost_at_first)
    query.coordinator().recover()
    assert dict(query.stated()) == query.written()
    assert sum(count for count, _ in query.stated()[0][1].values()) == RECORDS
    assert query.markers is decided


@pytest.mark.long
def test_a_batch_of_which_a_transaction_was_given_up_has_a_marker_with_its_ends(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, unknown = KafkaSink.commit, set[str]()

    def commit_all_but_one(sink: KafkaSink, committable: Committable) -> None:
        commit(sink, committable)  # readers see its records, and the operator is told that nobody knows
        if not unknown or committable.transaction_id in unknown:
            unknown.add(committable.transaction_id)
            raise OutcomeUnknown("its id has expired")

    monkeypatch.setattr(KafkaSink, "commit_many", lambda *_: ())
    monkeypatch.setattr(KafkaSink, "commit", commit_all_but_one)
    coordinator = query.coordinator(commits_at_once=1)
    with pytest.raises(OutcomeUnknown):
        query.run(0, coordinator)
    [decision] = log_of(coordinator).tail.unresolved
    given_up = [each for each in decision.committables["kafka"] if each.transaction_id in unknown]
    coordinator.abandon(0, {"kafka": given_up}, "ann@ops")
    query.coordinator().recover()
    [(batch, parts)] = query.stated()
    found = query.written()[batch]
    assert {place: end for place, (_, end) in parts.items()} == {place: end for place, (_, end) in found.items()}
    assert sum(count for count, _ in found.values()) == RECORDS
    assert sum(count for count, _ in parts.values()) == RECORDS - RECORDS // 4


def test_a_missing_topic_of_markers_is_refused_before_anything_is_written(topic: Any, make_sink: Any) -> None:
    sink = make_sink(topic, **{"batch.markers": "no-such-topic"})
    with pytest.raises(
        ConfigurationError, match=r"topic 'no-such-topic' \(the option 'batch\.markers'\) does not exist"
    ):
        sink.validate(pa.schema({"value": pa.string()}))


@pytest.mark.long
@pytest.mark.advice("but its marker can't be written to topic")
def test_a_topic_of_markers_that_was_deleted_after_the_decision_stops_the_query_until_it_is_there(
    query: Query, kafka_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = query.coordinator()
    admin = KafkaAdminClient(bootstrap_servers=query.markers.servers)
    memory = coordinator._sinks["memory"]
    monkeypatch.setattr(memory, "complete", lambda *_: admin.delete_topics([query.markers.name]))
    with pytest.raises(OperatorRequired, match="all of batch 0 is committed, but its marker can't be written"):
        query.run(0, coordinator)
    kafka_broker.create_topic(query.markers.name)
    admin.close()
    query.coordinator().recover()
    assert dict(query.stated()) == query.written() != {}


@pytest.fixture
def granted(second_broker: Any, make_topic: Any, make_sink: Any) -> Any:
    """A sink of a principal that may not write markers yet, and a function that lets it."""
    orders, markers = make_topic(on=second_broker.broker), make_topic(on=second_broker.broker)
    sink = make_sink(orders, **as_user(second_broker, "granted"), **{"batch.markers": markers.name})
    grant(second_broker, "granted", orders.name, sink.prefix)

    def let(operation: AclOperation) -> None:
        allow(second_broker, "granted", operation, ResourceType.TOPIC, markers.name)

    return SimpleNamespace(sink=sink, let=let, markers=markers)


def test_a_missing_right_to_write_markers_is_refused_before_anything_is_written(granted: Any, wait: Any) -> None:
    schema = pa.schema({"value": pa.string()})
    granted.let(AclOperation.DESCRIBE)

    def refused() -> bool:  # brokers learn of grants after a moment
        with contextlib.suppress(OperatorRequired):
            granted.sink.validate(schema)
            pytest.fail("it was accepted")
        return False

    with pytest.raises(ConfigurationError, match=r"may not write to topic .* \(the option 'batch\.markers'\)"):
        wait.until("it is refused", refused)
    assert [check.check for check in granted.sink.check() if check.result is CheckStatus.FAILED] == [
        f"topic {granted.markers.name!r}: right to write"
    ]
    granted.let(AclOperation.WRITE)
    granted.sink.validate(schema)


@pytest.mark.advice("the brokers deny what the sink needs")
@pytest.mark.parametrize("operations", [[], [AclOperation.DESCRIBE]], ids=str)
def test_a_right_to_write_markers_that_is_taken_away_needs_an_operator_and_is_not_asked_for_for_ever(
    granted: Any, operations: list[AclOperation]
) -> None:
    for operation in operations:
        granted.let(operation)
    committed = {"orders": [committable({("a", 0): (1, 1)}, topic=granted.markers.name)]}
    with pytest.raises(
        OperatorRequired, match=r"the brokers deny what the sink needs: .* WRITE and DESCRIBE on its topics"
    ):
        granted.sink.announce(0, committed, {})
    granted.let(AclOperation.WRITE)
    granted.sink.announce(0, committed, {})
    assert len(granted.markers.records()) == 1


# The readers. -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["whole_batches.py", "WholeBatches.java"])
def test_a_reader_of_whole_batches_takes_forty_lines(name: str) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.parametrize("language", [PYTHON, JAVA])
def test_a_reader_that_is_killed_again_and_again_shows_each_batch_once_and_whole(
    language: str, make_topic: Any, make_sink: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(make_topic, make_sink, tmp_path)
    topics = [topic.name for topic in query.topics]
    try:
        reader = reader_in(language, query.markers.servers, tmp_path / "shown", query.markers.name, topics)
    except NoCompiler as error:
        pytest.skip(str(error))
    coordinator, chance = query.coordinator(), random.Random(1)  # noqa: S311  # it chooses when to kill
    with reading(reader):
        for batch_id in range(12):
            if chance.random() < 0.3:  # the marker is written twice
                monkeypatch.setattr(coordinator._sinks["memory"], "announce", lambda *_: killed())
                with pytest.raises(Killed):
                    query.run(batch_id, coordinator)
                coordinator = query.coordinator()
                coordinator.recover()
            else:
                query.run(batch_id, coordinator)
            if chance.random() < 0.5:
                reader.kill()
                reader.start()
        reader.has_shown(12)
    for name, rows in reader.shown().items():
        batch_id = int(name.split(".")[1])
        values = sorted(int(value) for topic, value in rows if topic != query.markers.name)
        assert values == [*range(batch_id * RECORDS, (batch_id + 1) * RECORDS)]


@dataclass(frozen=True)
class Hand:
    """Writes records and markers as the sink would, and what no sink writes."""

    servers: str
    markers: str

    def write(self, topic: str, *rows: tuple[str | None, bytes | None], ends: str = "commit") -> None:
        """Write rows of batch and value in one transaction."""
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": f"hand-{uuid.uuid4().hex}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for batch, value in rows:
            headers: Any = [(HEADER, batch.encode())] if batch else []
            producer.produce(topic, value, headers=headers, partition=0)
        producer.flush(30)
        producer.commit_transaction(30) if ends == "commit" else producer.abort_transaction(30)

    def mark(self, batch: str, *rows: tuple[str, int, int, int]) -> None:
        stated = json.dumps({"batch": batch, "partitions": rows}, separators=(",", ":"))
        self.write(self.markers, (batch, stated.encode()))


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.parametrize("language", [PYTHON, pytest.param(JAVA, marks=pytest.mark.long)])
def test_a_reader_passes_what_it_cannot_show(language: str, make_topic: Any, tmp_path: Path) -> None:
    busy, idle, other, markers = (make_topic() for _ in range(4))
    try:
        reader = reader_in(language, busy.servers, tmp_path / "shown", markers.name, [busy.name, idle.name])
    except NoCompiler as error:
        pytest.skip(str(error))
    hand = Hand(busy.servers, markers.name)
    # Records of other producers, some of which are no text.
    hand.write(busy.name, (None, None), (None, b"\xff"))  # offsets 0 and 1, and 2 for Kafka's marker
    # A batch of which the first record is gone, in a partition that is idle since.
    hand.write(idle.name, ("log/0", b"gone"), ("log/0", b"kept"))
    hand.mark("log/0", (idle.name, 0, 2, 2))
    admin = AdminClient({"bootstrap.servers": busy.servers})
    [deleted] = admin.delete_records([TopicPartition(idle.name, 0, 1)]).values()
    deleted.result(30)
    # A batch whose records are all gone.
    hand.write(idle.name, ("log/1", b"gone"))  # at offset 3
    hand.mark("log/1", (idle.name, 0, 1, 4))
    [deleted] = admin.delete_records([TopicPartition(idle.name, 0, 5)]).values()
    deleted.result(30)
    # A batch of which a transaction was rolled back and given up, and a batch of topics that this reader does not read.
    hand.write(busy.name, ("log/2", b"2"))  # at offset 3
    hand.write(busy.name, ("log/2", b"given up"), ends="abort")  # at offset 5
    hand.mark("log/2", (busy.name, 0, 1, 6))
    hand.mark("log/3", (other.name, 0, 1, 1))
    hand.write(busy.name, ("log/4", b"\xff"), ("log/4", None))  # from offset 7
    hand.mark("log/4", (busy.name, 0, 2, 9))
    with reading(reader):
        reader.has_shown(2)
    shown = {batch: [row for row in rows if row[0] != markers.name] for batch, rows in reader.shown().items()}
    assert shown == {"log.2": [(busy.name, "2")], "log.4": [(busy.name, "\ufffd"), (busy.name, "")]}
    told = Path(f"{reader.folder}.log").read_text(encoding="utf-8")
    assert [batch for batch in ("log.0", "log.1", "log.2", "log.3", "log.4") if batch in told] == ["log.0", "log.1"]


class Storm:
    """A writer, a broker and readers, each of which is started again when it was killed."""

    def __init__(self, job: Job, broker: KafkaBroker, folder: Path) -> None:
        self._job, self._broker, self._folder = job, broker, folder
        self.readers: dict[str, Reader] = {}
        for language in (PYTHON, JAVA):
            with contextlib.suppress(NoCompiler):
                self.readers[language] = reader_in(language, job.servers, folder / language, job.markers, job.topics)
        self.writer = self._start(job)
        self.kills: Counter[str] = Counter()

    def _start(self, job: Job) -> Process:
        log = self._folder / "writer.log"
        return start_logged(log, "-m", "tests.sinks.kafka.markers_loop", json.dumps(asdict(job)))

    def kill(self, victim: str) -> None:
        self.kills[victim] += 1
        if victim == "broker":
            self._broker.kill()
            self._broker.start()
        elif victim == "writer":
            kill_all_of(self.writer)
        else:
            self.readers[victim].kill()

    def supervise(self) -> None:
        if not is_alive(self.writer):
            kill_all_of(self.writer)
            self.writer = self._start(self._job)
        for reader in self.readers.values():
            reader.supervise()

    def settle(self) -> int:
        """Have a last writer commit what is decided, and the readers show all. Return how many batches there are."""
        kill_all_of(self.writer)
        tail = read_tail(open_store(self._job.log))
        assert tail is not None
        assert tail[1].decided is not None
        batches = tail[1].decided + 1
        self.writer = self._start(replace(self._job, batches=batches))
        assert self.writer.wait(SHOWN_S) == 0
        for reader in self.readers.values():
            reader.has_shown(batches)
        return batches

    def end(self) -> None:
        kill_all_of(self.writer)
        for reader in self.readers.values():
            reader.kill()


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.timeout(5 * STORM_S)
def test_readers_show_whole_batches_while_they_and_the_writer_and_the_broker_are_killed(
    second_broker: Any, make_topic: Any, prefix: str, tmp_path: Path
) -> None:
    chance = random.Random(1)  # noqa: S311  # it chooses what to kill
    job = Job(
        servers=second_broker.broker.bootstrap_servers,
        topics=[make_topic(PARTITIONS // TOPICS, on=second_broker.broker).name for _ in range(TOPICS)],
        markers=make_topic(on=second_broker.broker).name,
        prefix=prefix,
        log=str(tmp_path / "log"),
        replay_copies=str(tmp_path / "stage"),
        batches=10_000,
    )
    storm = Storm(job, second_broker.broker, tmp_path)
    with contextlib.ExitStack() as running:
        running.callback(storm.end)
        deadline = time.monotonic() + STORM_S
        while time.monotonic() < deadline:
            time.sleep(chance.uniform(2, 15))
            storm.kill(chance.choice(["writer", "writer", "writer", "broker", *storm.readers, *storm.readers]))
            storm.supervise()
        batches = storm.settle()
    for reader in storm.readers.values():
        shown = {int(name.split(".")[1]): rows for name, rows in reader.shown().items()}
        assert {
            batch_id: sorted(int(value) for topic, value in rows if topic != job.markers)
            for batch_id, rows in shown.items()
        } == {batch_id: [*numbers(batch_id)] for batch_id in range(batches)}
