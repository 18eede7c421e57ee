"""The offsets of a query's Kafka sources, in a consumer group: committed with its output, and never ahead of it."""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.errors import RetriableError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import twopc
from tests.spark.conftest import Pipeline, Topic, mortal
from tests.support.observing import Killed
from tests.support.spark_session import write_all
from twopc.events import Event, PhaseEntered, TransactionCommitted
from twopc.phases import Phase
from twopc.spark import ForeachBatch, Output, foreach_batch
from twopc_kafka_broker import KafkaBroker

PARTITIONS = 2
Place = tuple[str, int]
"""A topic and the number of a partition."""


class At:
    """Kills the driver once in a batch: when it enters a phase, or has committed a transaction of a sink."""

    def __init__(self, batch_id: int, moment: str) -> None:
        self._moment: tuple[int | None, str] | None = (batch_id, moment)

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        match event:
            case PhaseEntered(phase, batch_id):
                self._die_at((batch_id, phase.value))
            case TransactionCommitted(sink, batch_id, _, _):
                self._die_at((batch_id, f"{sink} committed"))
            case _:
                pass

    def _die_at(self, moment: tuple[int | None, str]) -> None:
        if moment == self._moment:
            self._moment = None
            raise Killed


@dataclass(frozen=True)
class FromKafka:
    """A query that copies topics to a topic, and its consumer group. A record's value is where it was read."""

    spark: SparkSession
    folder: Path
    target: Topic
    group: str

    @property
    def offsets(self) -> Any:
        options = {"bootstrap.servers": self.target.servers, "transactional.id.prefix": self.target.prefix}
        return twopc.create_sink("kafka-offsets", {**options, "group.id": self.group})

    def writer(self) -> ForeachBatch:
        sinks = {"orders": Output(self.target.sink(), ["value"])}
        return foreach_batch(sinks, log=f"{self.folder}/log", offsets=self.offsets)

    def source(self, topic: str, records_a_batch: int) -> DataFrame:
        stream = replace(self.target, name=topic).stream(self.spark, records_a_batch)
        return stream.selectExpr("concat_ws(' ', topic, partition, offset) AS value")

    def run(self, plan: DataFrame, write: Callable[[DataFrame, int], None] | None = None) -> None:
        """Run the query to the end of its topics. Raises StreamingQueryException."""
        write_all(plan.writeStream.foreachBatch(write or self.writer()), f"{self.folder}/checkpoint")

    def dies(self, plan: DataFrame, batch_id: int, moment: str) -> None:
        """Run the query until the driver is killed."""
        at = At(batch_id, moment)
        twopc.register_observer(at)
        try:
            with pytest.raises(StreamingQueryException, match="the driver was killed"):
                self.run(plan, mortal(self.writer()))
        finally:
            twopc.unregister_observer(at)

    def place(self) -> dict[Place, int]:
        """Return the group's offsets, as a lag tool sees them."""
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=self.target.servers)) as admin:
            found = admin.list_group_offsets(self.group).get(self.group, {})
        return {(place.topic, place.partition): at.offset for place, at in found.items()}

    def place_is_known(self) -> bool:
        try:
            self.place()
        except RetriableError:
            return False
        return True

    def is_behind_its_output(self) -> bool:
        """Return whether a committed reader that starts later sees everything that the group has read."""
        place = self.place()
        seen = set(self.target.values())
        return all(f"{topic} {number} {n}" in seen for (topic, number), end in place.items() for n in range(end))


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path, topic: Topic) -> FromKafka:
    query = FromKafka(spark, tmp_path, topic, f"group-{uuid.uuid4().hex[:8]}")
    while not query.place_is_known():  # a broker that has just started has no group coordinator yet
        time.sleep(0.1)
    return query


@pytest.fixture
def make_source(topic: Topic, kafka_broker: KafkaBroker) -> Callable[[int], str]:
    def make(records: int) -> str:
        """Create a topic with so many records in each partition."""
        source = topic.beside(kafka_broker, PARTITIONS)
        source.fill(range(PARTITIONS * records), PARTITIONS)
        return source.name

    return make


@pytest.fixture
def watched(query: FromKafka) -> Iterator[list[bool]]:
    """Whether the group was behind its output, each time that it was looked at during the test."""
    looks: list[bool] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            looks.append(query.is_behind_its_output())

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield looks
    stop.set()
    watcher.join()


def everywhere(records: int, *topics: str) -> dict[Place, int]:
    return {(topic, number): records for topic in topics for number in range(PARTITIONS)}


MOMENTS = ["deciding", "committing", "orders committed", "offsets committed"]
"""The moments at which the driver is killed, in consecutive batches."""


@pytest.mark.long
def test_the_group_is_never_ahead_of_the_output_however_the_driver_dies_and_has_no_lag_in_the_end(
    query: FromKafka, make_source: Callable[[int], str], watched: list[bool]
) -> None:
    records = len(MOMENTS) + 1
    source = make_source(records)
    plan = query.source(source, records_a_batch=PARTITIONS)
    for batch_id, moment in enumerate(MOMENTS):
        query.dies(plan, batch_id, moment)
        if moment != "offsets committed":  # the broker may still be writing its markers
            assert sum(query.place().values()) == PARTITIONS * batch_id
    query.run(plan)

    assert query.place() == everywhere(records, source)
    assert query.target.shows([f"{source} {number} {n}" for number in range(PARTITIONS) for n in range(records)])
    assert query.target.ongoing() == []
    assert len(watched) > 5
    assert all(watched)


@pytest.mark.long
def test_all_kafka_sources_of_a_query_are_in_the_group_and_no_other(
    query: FromKafka, pipeline: Pipeline, make_source: Callable[[int], str]
) -> None:
    first, second = make_source(4), make_source(2)
    pipeline.add_batch([{"id": 1, "name": "from a file"}])
    files = query.spark.readStream.schema("name STRING").json(str(pipeline.folder / "source"))
    kafka = query.source(first, 4).union(query.source(second, 100))
    query.run(kafka.union(files.selectExpr("name AS value")))
    assert query.place() == {**everywhere(4, first), **everywhere(2, second)}
    assert "from a file" in query.target.values()


@pytest.mark.long
def test_of_a_topic_that_two_sources_read_the_one_behind_counts(
    query: FromKafka, make_source: Callable[[int], str]
) -> None:
    topic = make_source(4)
    plan = query.source(topic, 2 * PARTITIONS).union(query.source(topic, PARTITIONS))
    query.dies(plan, 1, Phase.PRE_COMMITTING.value)
    assert query.place() == everywhere(1, topic)
    query.run(plan)
    assert query.place() == everywhere(4, topic)


def test_a_query_that_does_not_read_from_kafka_is_refused(query: FromKafka, pipeline: Pipeline) -> None:
    pipeline.add_batch([{"id": 1, "name": "a"}])
    with pytest.raises(StreamingQueryException, match=r"'offsets' is for queries that read from Kafka.*FileStream"):
        pipeline.run(query.writer(), lambda source: source.selectExpr("name AS value"))
    assert (query.target.values(), query.target.ongoing(), query.place()) == ([], [], {})
