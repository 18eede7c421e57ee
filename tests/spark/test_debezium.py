"""Records of Debezium, as a topic has them, become the rows of the source's table."""

import json
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.keyed_tables import Tables, state
from twopc.errors import ConfigurationError, RecordRefused
from twopc.spark import debezium
from twopc.spark.debezium_records import UNAVAILABLE
from twopc.spark.task import refusals_from_tasks

SCHEMA = "id INT, doc STRING, n INT"
TOPIC = "shop.public.docs"
HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
OF_KAFKA = f"key BINARY, value BINARY, topic STRING, partition INT, offset LONG, headers {HEADERS}"


class Topic:
    """A topic with one partition, and the table that is made of it."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.records: list[tuple[Any, ...]] = []
        self.tables = Tables(spark)
        self.target = self.tables.add(columns=["id", "doc", "n"], delete_where="_op = 'd'", latest_by="_order")
        self.arguments: dict[str, Any] = {"key": ["id"], "schema": SCHEMA}

    def add(
        self,
        op: str,
        id: int | None = None,
        doc: str | None = None,
        n: int = 0,
        lsn: int | None = None,
        transaction: int = 1,
        header: str = "other",
    ) -> None:
        offset = len(self.records) + self.tables.batch_id * 100
        lsn = offset if lsn is None else lsn
        source = {"connector": "postgresql", "lsn": lsn, "ts_ms": 7, "txId": transaction}
        row = {"id": id, "doc": doc, "n": n}
        before, after = ({"id": id}, None) if op == "d" else (None, None if op == "t" else row)
        value = json.dumps({"op": op, "before": before, "after": after, "source": source}).encode()
        self.records.append((json.dumps({"id": id}).encode(), value, TOPIC, 0, offset, [(header, b"")]))

    def move(self, old: int, new: int, doc: str, transaction: int = 1) -> None:
        """Add what the connector sends for an UPDATE of the primary key."""
        self.add("d", old, transaction=transaction, header="__debezium.newkey")
        self.add("c", new, doc, transaction=transaction, header="__debezium.oldkey")

    def add_tombstone(self, id: int) -> None:
        self.records.append((json.dumps({"id": id}).encode(), None, TOPIC, 0, len(self.records), None))

    def changes(self) -> DataFrame:
        return debezium(self.spark.createDataFrame(self.records, OF_KAFKA).repartition(2), **self.arguments)

    def apply(self) -> list[tuple[int, str | None, int]]:
        """Apply the records as a batch, and return the table."""
        with refusals_from_tasks():
            self.tables.apply(self.changes())
        self.records = []
        return state(self.target, "id", "doc", "n")


@pytest.fixture
def topic(spark: SparkSession) -> Topic:
    return Topic(spark)


@pytest.mark.long
def test_changes_of_one_time_apply_in_their_order(topic: Topic) -> None:
    topic.add("c", 1, "hello")
    topic.add("d", 1)
    topic.add("c", 1, "hallo")
    topic.add("u", 2, "a")
    topic.add("u", 2, "b")
    assert topic.apply() == [(1, "hallo", 0), (2, "b", 0)]


@pytest.mark.long
def test_a_null_value_after_a_delete_takes_back_nothing(topic: Topic) -> None:
    topic.add("c", 1, "old")
    topic.add("d", 1)
    topic.add_tombstone(1)
    topic.add("c", 1, "x")
    assert topic.apply() == [(1, "x", 0)]
    topic.add("d", 1)
    assert topic.apply() == []
    topic.add_tombstone(1)
    topic.add("c", 1, "y")
    assert topic.apply() == [(1, "y", 0)]


@pytest.mark.long
def test_a_snapshot_that_comes_late_replaces_no_change_and_doubles_nothing(topic: Topic) -> None:
    topic.add("d", 1, lsn=50)
    topic.add("c", 1, "510", lsn=51)
    topic.add("r", 1, "70", lsn=51)
    assert topic.apply() == [(1, "510", 0)]
    for id in range(20):
        topic.add("r", id, f"{id}")
    assert len(topic.apply()) == 20


@pytest.mark.long
def test_where_the_source_was_replaced_within_a_batch_the_order_of_offsets_takes_the_newer_change(topic: Topic) -> None:
    def replace() -> None:
        topic.add("u", 1, "old", lsn=5000)
        topic.add("u", 1, "new", lsn=40)

    replace()
    assert topic.apply() == [(1, "old", 0)]  # nothing tells a smaller position from a repeated change
    topic.arguments["order"] = "offset"
    replace()
    assert topic.apply() == [(1, "new", 0)]


@pytest.mark.long
def test_positions_of_a_source_that_was_replaced_between_two_batches_are_not_compared(topic: Topic) -> None:
    topic.add("u", 1, "old", lsn=5000)
    topic.apply()
    topic.add("u", 1, "new", lsn=40)
    assert topic.apply() == [(1, "new", 0)]


@pytest.mark.long
def test_changes_that_a_restarted_connector_repeats_take_back_nothing(topic: Topic) -> None:
    for name, lsn in (("a", 10), ("b", 11), ("a", 10)):  # the batch ends within the repetition
        topic.add("u", 1, name, lsn=lsn)
    assert topic.apply() == [(1, "b", 0)]


def test_an_unchanged_value_is_taken_from_an_earlier_record_of_its_key(topic: Topic) -> None:
    topic.add("c", 1, "OLD", 1)
    assert topic.apply() == [(1, "OLD", 1)]
    topic.add("u", 1, "NEW", 1)
    topic.add("u", 1, UNAVAILABLE, 2)
    assert topic.apply() == [(1, "NEW", 2)]
    topic.add("d", 1)
    topic.add("c", 1, "X", 4)
    topic.add("u", 1, UNAVAILABLE, 5)
    topic.add("u", 1, UNAVAILABLE, 6)
    assert topic.apply() == [(1, "X", 6)]


@pytest.mark.long
def test_an_unchanged_value_that_the_batch_lacks_is_refused_only_where_it_is_used(topic: Topic) -> None:
    topic.add("c", 1, "OLD", 1)
    topic.apply()
    topic.add("u", 1, UNAVAILABLE, 3)
    with pytest.raises(Exception, match=r"column doc of the record in topic shop\.public\.docs.*REPLICA IDENTITY FULL"):
        topic.apply()
    assert state(topic.target, "id", "doc", "n") == [(1, "OLD", 1)]
    [changed] = topic.changes().select("id", "n", "_unavailable").collect()
    assert (changed.n, changed._unavailable) == (3, ["doc"])


@pytest.mark.long
def test_a_value_from_before_a_delete_is_not_taken(topic: Topic) -> None:
    topic.add("c", 1, "A", 1)
    topic.add("d", 1)
    topic.add("c", 1, UNAVAILABLE, 2)
    with pytest.raises(Exception, match="column doc of the record"):
        topic.apply()


@pytest.mark.long
def test_a_record_without_the_value_that_a_later_one_replaces_is_no_error(topic: Topic) -> None:
    topic.add("u", 1, UNAVAILABLE, 1)
    topic.add("u", 1, "NEW", 2)
    topic.add("u", 2, UNAVAILABLE, 1)
    topic.add("d", 2)
    assert topic.apply() == [(1, "NEW", 2)]


@pytest.mark.long
def test_after_a_truncate_the_documented_way_on_works(topic: Topic) -> None:
    topic.add("c", 1, "a")
    topic.add("c", 2, "b")
    topic.add("t")
    topic.add("c", 3, "c")
    with pytest.raises(RecordRefused, match=rf"truncated=\[\('{TOPIC}', 0, 2\)\]"):
        topic.apply()
    topic.arguments["truncated"] = [(TOPIC, 0, 2)]
    assert topic.apply() == [(3, "c", 0)]


@pytest.mark.long
def test_an_exchange_of_primary_keys_is_refused_if_it_may_lose_a_row(topic: Topic) -> None:
    topic.move(1, 2, "a")
    topic.move(2, 1, "b")
    with pytest.raises(Exception, match=rf"the record in topic {TOPIC}, partition 0, offset 2 is refused: its transac"):
        topic.apply()
    topic.add("u", 2, "c", transaction=2)
    assert topic.apply() == [(1, "b", 0), (2, "c", 0)]
    topic.move(1, 3, "d", transaction=3)
    topic.move(3, 4, "e", transaction=4)
    topic.add("c", 5, "f", transaction=5)
    topic.add("d", 5, transaction=5)
    assert topic.apply() == [(2, "c", 0), (4, "e", 0)]


def test_on_a_stream_an_unchanged_value_is_refused(topic: Topic, tmp_path: Any) -> None:
    topic.add("u", 1, UNAVAILABLE, 1)
    topic.spark.createDataFrame(topic.records, OF_KAFKA).write.parquet(str(tmp_path / "records"))
    stream = topic.spark.readStream.schema(OF_KAFKA).parquet(str(tmp_path / "records"))
    query = debezium(stream, **topic.arguments).writeStream.format("noop")
    started = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    with pytest.raises(Exception, match="Call debezium in the function for foreachBatch"):
        started.awaitTermination()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"key": ["no"]}, "'key' of debezium"),
        ({"key": "id"}, "'key' of debezium"),
        ({"schema": "id INTEGRAL"}, "'schema' of debezium"),
        ({"schema": "id INT, _topic STRING"}, "'schema' of debezium has .'_topic'"),
        ({"schema": "id INT, m MAP<INT, INT>"}, "column 'm' .* declare STRING"),
        ({"order": "ts_ms"}, "'order' of debezium must be one of position, offset"),
        ({"flattened": True}, "order='offset'"),
        ({"truncated": [(TOPIC, 0, 2)], "order": "offset"}, "'truncated' of debezium .* order='offset'"),
    ],
)
def test_a_wrong_argument_is_refused(topic: Topic, arguments: dict[str, Any], reason: str) -> None:
    topic.add("c", 1, "a")
    topic.arguments |= arguments
    with pytest.raises(ConfigurationError, match=reason):
        topic.changes()


def test_a_frame_that_is_not_of_kafka_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="the columns of Spark's Kafka source"):
        debezium(spark.range(1), ["id"], "id INT")
