"""``twopc.loop`` over Kafka: offsets in the log, no silent skip, and docs/without-spark.md's service under kills."""

import itertools
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType

from tests.sinks.kafka.access import allow, by_provider
from tests.support.pages import DOCS, write_files
from twopc.errors import ConfigurationError, OperatorRequired, Retriable
from twopc.log.commit_log import read_tail
from twopc.log.store import store_of
from twopc.loop import run
from twopc.testing import MemorySink, MemoryTarget
from twopc_kafka.source import KafkaSource


def produce(topic: Any, values: list[str], partition: int = 0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": topic.servers})
    for value in values:
        producer.produce(topic.name, value.encode(), partition=partition)
    assert producer.flush(30) == 0


def source_of(topic: Any, **arguments: Any) -> KafkaSource:
    return KafkaSource({"bootstrap.servers": topic.servers}, [topic.name], **{"max_wait_s": 0.1, **arguments})


@pytest.fixture
def target() -> MemoryTarget:
    return MemoryTarget()


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / "log")


def read(topic: Any, log: str, target: MemoryTarget, until: int, **arguments: Any) -> None:
    """Run a loop until the target has this many values."""
    with source_of(topic, **arguments) as source:
        run(
            source,
            {"orders": MemorySink(target)},
            lambda records: {"orders": pa.record_batch({"value": records["value"].cast(pa.string())})},
            log=log,
            owner="service",
            is_stopping=lambda: len(values(target)) >= until,
        )


def values(target: MemoryTarget) -> list[str]:
    return sorted(row["value"] for row in target.visible)


def position(log: str, topic: Any) -> Any:
    newest = read_tail(store_of(log))
    assert newest
    reads: Any = newest[1].reads
    return reads[topic.name]


def test_a_restart_reads_on_after_the_newest_decided_batch(make_topic: Any, log: str, target: MemoryTarget) -> None:
    topic = make_topic(partitions=2)
    produce(topic, ["a", "b"])
    produce(topic, ["c"], partition=1)
    read(topic, log, target, until=3)
    produce(topic, ["d"])
    read(topic, log, target, until=4)
    assert values(target) == ["a", "b", "c", "d"]
    assert position(log, topic)["offsets"] == {"0": 3, "1": 1}


def delete_before(topic: Any, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": topic.servers})
    for future in admin.delete_records([TopicPartition(topic.name, 0, offset)]).values():
        future.result(30)


def test_deleted_records_are_refused_with_their_number_and_skipped_only_where_that_is_allowed(
    make_topic: Any, log: str, target: MemoryTarget
) -> None:
    topic = make_topic()
    produce(topic, ["a", "b"])
    read(topic, log, target, until=2)
    produce(topic, ["c", "d", "e"])
    delete_before(topic, 4)
    with pytest.raises(OperatorRequired, match=r"begins at offset 4, and the next record to read is 2: 2 records"):
        read(topic, log, target, until=3)
    read(topic, log, target, until=3, fail_on_data_loss=False)
    assert values(target) == ["a", "b", "e"]
    assert position(log, topic)["skipped"] == {"0": [2, 4]}
    produce(topic, ["f"])
    read(topic, log, target, until=4)
    assert "skipped" not in position(log, topic)


@pytest.mark.parametrize(("fails", "kind"), [(True, OperatorRequired), (False, Retriable)])
def test_records_that_are_deleted_while_a_source_reads_end_it_and_only_a_refusal_keeps_it_stopped(
    fails: bool, kind: type[Exception]
) -> None:
    error = confluent_kafka.KafkaError(confluent_kafka.KafkaError._AUTO_OFFSET_RESET)
    report = SimpleNamespace(error=lambda: error, topic=lambda: "orders", partition=lambda: 0)
    source = KafkaSource({"bootstrap.servers": "127.0.0.1:1"}, ["orders"], fail_on_data_loss=fails)
    with pytest.raises(kind, match="orders-0 no longer has the next record"):
        source._is_passing(report)  # type: ignore[arg-type]


@pytest.mark.variants
@pytest.mark.parametrize("records", [1, 5])
def test_a_topic_that_was_created_again_is_refused_however_long_it_is(
    records: int, make_topic: Any, log: str, target: MemoryTarget, recreate: Any
) -> None:
    topic = make_topic()
    produce(topic, ["a", "b"])
    read(topic, log, target, until=2)
    recreate(topic)
    produce(topic, ["x"] * records)
    with pytest.raises(OperatorRequired, match="was deleted and created again"):
        read(topic, log, target, until=3)


def next_read(source: KafkaSource) -> Any:
    return next(each for each in iter(source.read, 0) if each)


def test_a_topic_that_is_created_again_while_it_is_read_is_refused_and_no_record_is_skipped(
    make_topic: Any, recreate: Any
) -> None:
    topic = make_topic()
    produce(topic, ["a", "b"])
    with source_of(topic) as source:
        source.begin(None)
        next_read(source)
        recreate(topic)
        produce(topic, ["x"] * 5)
        with pytest.raises(OperatorRequired, match="was deleted and created again"):
            next_read(source)


def test_a_source_that_begins_again_reads_again_what_the_log_has_not(make_topic: Any) -> None:
    topic = make_topic()
    produce(topic, ["a", "b"])
    with source_of(topic) as source:
        for _ in range(2):
            source.begin(None)
            assert next_read(source).records["value"].to_pylist() == [b"a", b"b"]


def test_a_topic_that_is_gone_ends_a_start_and_stops_the_next_one(topic: Any) -> None:
    with source_of(topic) as source:
        source.begin(None)
        topic.delete()
        with pytest.raises(Retriable, match="which was there before"):
            source._found()
        with pytest.raises(OperatorRequired, match="can't be read"):
            source.begin(None)


def test_a_topic_that_is_left_out_is_not_read_and_read_on_when_it_comes_back(make_topic: Any) -> None:
    kept, left = make_topic(), make_topic()
    told: Any = None
    seen: list[list[Any]] = []
    for names in ([kept.name, left.name], [kept.name], [kept.name, left.name]):
        produce(kept, ["k"])
        produce(left, ["l"])
        found: list[Any] = []
        with KafkaSource({"bootstrap.servers": kept.servers}, names, max_wait_s=0.1) as source:
            source.begin(told)
            while len(found) < (1 if names == [kept.name] else 3 if seen else 2):
                read = next_read(source)
                told = read.position
                found += zip(read.records["topic"].to_pylist(), read.records["offset"].to_pylist(), strict=True)
        seen.append(sorted(found, key=lambda each: (each[0] != kept.name, each[1])))
    assert seen == [
        [(kept.name, 0), (left.name, 0)],
        [(kept.name, 1)],
        [(kept.name, 2), (left.name, 1), (left.name, 2)],
    ]


def test_the_latest_records_are_counted_from_the_first_start_on(make_topic: Any) -> None:
    topic = make_topic()
    produce(topic, ["old"])
    with source_of(topic, starts_at="latest") as source:
        source.begin(None)
        begun = next_read(source)
        assert begun.records.num_rows == 0
    produce(topic, ["new"])
    with source_of(topic, starts_at="latest") as source:
        source.begin(begun.position)
        assert next_read(source).records["value"].to_pylist() == [b"new"]


def test_a_topic_that_ends_before_the_offset_in_the_log_is_refused(make_topic: Any) -> None:
    topic = make_topic()
    produce(topic, ["a"])
    with source_of(topic) as source:
        source.begin(None)
        told: Any = next_read(source).position
    told[topic.name]["offsets"]["0"] = 9
    with source_of(topic) as source, pytest.raises(OperatorRequired, match=r"ends at offset 1, .* up to 9"):
        source.begin(told)


OURS = ("enable.auto.commit", "auto.commit.enable", "group.id", "auto.offset.reset", "enable.auto.offset.store")


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        *((name, "true", "can't be set on the kafka source") for name in OURS),
        ("metadata.broker.list", "SASL_SSL://127.0.0.1:2", "other name for 'bootstrap.servers'"),
        ("default.topic.config", {"auto.offset.reset": "earliest"}, "must be text or a number"),
        ("error_cb", print, "must be text or a number"),
        ("sasl.mechanisms", "GSSAPI", "two names of the same option of the kafka source"),
    ],
)
def test_what_would_read_other_records_or_elsewhere_is_refused(name: str, given: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        KafkaSource({"bootstrap.servers": "127.0.0.1:1", "sasl.mechanism": "PLAIN", name: given}, ["orders"])
    assert refused.value.option == name


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *(("topics", "orders"), ("topics", []), ("max_records", 0), ("max_records", 10**7), ("starts_at", "now")),
        *(("max_wait_s", seconds) for seconds in (-1, 0, math.inf, math.nan)),  # -1 is librdkafka's wait without end
    ],
)
def test_an_argument_with_which_nothing_or_something_else_is_read_is_refused(name: str, given: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be") as refused:
        KafkaSource({"bootstrap.servers": "127.0.0.1:1"}, **{"topics": ["orders"], name: given})
    assert refused.value.option == name


def test_the_other_name_of_the_mechanism_is_taken() -> None:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "u", "sasl.password": "p"}
    KafkaSource({"bootstrap.servers": "127.0.0.1:1", **login, "sasl.mechanisms": "PLAIN"}, ["orders"])


def test_an_option_that_librdkafka_does_not_know_is_refused_without_its_value() -> None:
    with pytest.raises(ConfigurationError, match="the kafka source on this host: No such") as refused:
        KafkaSource({"bootstrap.servers": "127.0.0.1:1", "fetch.minn": "hunter2"}, ["orders"]).begin(None)
    assert "hunter2" not in str(refused.value)


def test_a_source_reads_with_the_tokens_of_a_provider(second_broker: Any, make_topic: Any, tmp_path: Path) -> None:
    topic = make_topic(on=second_broker.broker)
    produce(topic, ["a"])
    allow(second_broker, "granted", AclOperation.READ, ResourceType.TOPIC, topic.name)
    login = {name.replace("_", "."): value for name, value in by_provider(second_broker, tmp_path).items()}
    with KafkaSource(login, [topic.name], max_wait_s=0.1) as source:
        source.begin(None)
        found = next_read(source)
    assert found.records["value"].to_pylist() == [b"a"]


@pytest.fixture
def service(tmp_path: Path, kafka_broker: Any) -> Callable[[], subprocess.Popen[bytes]]:
    write_files(DOCS / "without-spark.md", tmp_path)
    page = tmp_path / "service.py"
    topic = f"orders-{os.urandom(4).hex()}"
    page.write_text(page.read_text().replace('["orders"]', f'["{topic}"]').replace('"orders-to-lake"', f'"{topic}"'))
    kafka_broker.create_topic(topic, 2)
    environment = os.environ | {
        "KAFKA": kafka_broker.bootstrap_servers,
        "CATALOG": f"sqlite:///{tmp_path}/catalog.db",
        "WAREHOUSE": f"file://{tmp_path}/lake",
        "LOG": str(tmp_path / "log"),
    }

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "service.log").open("ab") as printed:
            return subprocess.Popen([sys.executable, str(page)], env=environment, stdout=printed, stderr=printed)

    start.topic = topic  # type: ignore[attr-defined]
    return start


def catalog(folder: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake")


def in_table(folder: Path) -> list[int]:
    found: list[int] = catalog(folder).load_table("sales.orders").scan().to_arrow()["id"].to_pylist()
    return found


def batches(folder: Path) -> int:
    return len(list((folder / "log").glob("*.json")))


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_service_of_the_page_writes_each_record_once_through_twenty_kills(
    service: Any, kafka_broker: Any, tmp_path: Path
) -> None:
    catalog(tmp_path).create_namespace("sales")
    catalog(tmp_path).create_table("sales.orders", pa.schema([("id", pa.int64()), ("amount", pa.float64())]))
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
    numbers, sent, kills, chance = itertools.count(), 0, 0, random.Random(7)  # noqa: S311
    running = service()
    try:
        deadline = time.monotonic() + 500
        while kills < 20 and time.monotonic() < deadline:
            for sent in itertools.islice(numbers, 50):
                producer.produce(service.topic, json.dumps({"id": sent, "amount": 0.5}).encode(), partition=sent % 2)
            producer.flush(30)
            before = batches(tmp_path)
            while batches(tmp_path) == before and running.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            assert running.poll() is None, (tmp_path / "service.log").read_text()[-3000:]
            time.sleep(chance.random() * 0.4)  # amid the next batch, or its commit
            running.kill()
            running.wait()
            kills += 1
            running = service()
        while len(in_table(tmp_path)) <= sent and time.monotonic() < deadline:
            time.sleep(0.2)
        running.terminate()
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait()
    assert kills == 20
    assert sorted(in_table(tmp_path)) == list(range(sent + 1))
    group = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    [future] = group.list_consumer_group_offsets(
        [confluent_kafka.ConsumerGroupTopicPartitions(service.topic)]
    ).values()  # fmt: skip
    assert sum(each.offset for each in future.result(30).topic_partitions) == sent + 1
