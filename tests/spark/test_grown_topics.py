"""A topic that gets partitions while a query makes a table of its changes."""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

import twopc
from tests.support.spark_session import write_all
from twopc.checks import CheckStatus
from twopc.spark import ForeachBatch, Output, debezium, doctor, foreach_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Topic


@dataclass(frozen=True)
class Copy:
    """A table that a query makes of a topic."""

    spark: SparkSession
    topic: Topic
    folder: Path

    def add(self, partition: int, id: int, name: str, lsn: int) -> None:
        """Add a change to the topic."""
        change = {"op": "u", "after": {"id": id, "name": name}, "source": {"connector": "postgresql", "lsn": lsn}}
        producer = confluent_kafka.Producer({"bootstrap.servers": self.topic.servers})
        producer.produce(self.topic.name, json.dumps(change), json.dumps({"id": id}), partition)
        assert producer.flush(30) == 0

    def grow(self, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.topic.servers})
        admin.create_partitions([NewPartitions(self.topic.name, partitions)])[self.topic.name].result(10)

    def writer(self, upsert_by: str = "id") -> ForeachBatch:
        table = {"url": f"sqlite:///{self.folder}/copy.db", "table": "copy"}
        sink = twopc.create_sink("sql", {**table, **({"upsert_by": upsert_by} if upsert_by else {})})
        arguments: dict[str, Any] = {"delete_where": "_op = 'd'", "latest_by": "_order"} if upsert_by else {}
        return foreach_batch(Output(sink, ["id", "name"], **arguments), log=self.folder / "log")

    def run(self, upsert_by: str = "id") -> None:
        """Read the topic to its end."""
        write = self.writer(upsert_by)

        def apply(batch: DataFrame, batch_id: int) -> None:
            write(debezium(batch, key=["id"], schema="id INT, name STRING"), batch_id)

        write_all(self.topic.stream(self.spark, 1000).writeStream.foreachBatch(apply), self.folder / "checkpoint")

    def rows(self) -> list[tuple[int, str]]:
        with sqlite3.connect(self.folder / "copy.db") as database:
            return database.execute("SELECT id, name FROM copy ORDER BY id").fetchall()

    def warned(self, upsert_by: str = "id") -> list[str]:
        """The warnings of ``doctor`` on topics."""
        found = doctor(self.writer(upsert_by)).results
        return [str(each) for each in found if each.result is CheckStatus.WARNING and "topic" in each.check]


@pytest.fixture
def copy(spark: SparkSession, topic: Topic, tmp_path: Path) -> Copy:
    with sqlite3.connect(tmp_path / "copy.db") as database:
        database.execute("CREATE TABLE copy (id INTEGER NOT NULL PRIMARY KEY, name TEXT)")
    return Copy(spark, topic, tmp_path)


@pytest.mark.long
def test_doctor_and_the_query_warn_of_a_topic_whose_partitions_grew_as_an_older_change_may_come_later(
    copy: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    copy.add(0, 1, "first", 5)
    copy.run()
    copy.grow(3)
    copy.add(2, 1, "new", 20)
    assert copy.warned() == []  # no batch has read of it yet
    copy.run()
    assert copy.rows() == [(1, "new")]
    copy.add(0, 1, "old", 10)
    copy.run()
    assert copy.rows() == [(1, "old")]
    logged = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    [of_topic] = [each for each in logged if "partitions since" in each]
    assert of_topic.startswith(f"topic {copy.topic.name!r} has 3 partitions since batch 1, up from 2. ")
    [warning] = copy.warned()
    assert warning.startswith(f"partitions of topic {copy.topic.name!r}   warning   3 since batch 1, and 2 before: ")
    copy.add(2, 1, "new", 30)  # the way on: it is changed again in the source
    copy.run()
    assert copy.rows() == [(1, "new")]


@pytest.mark.long
def test_partitions_that_are_added_while_the_query_has_read_everything_leave_the_newest_change(copy: Copy) -> None:
    copy.add(0, 1, "old", 10)
    copy.run()
    copy.grow(3)
    copy.add(2, 1, "new", 20)
    copy.run()
    assert copy.rows() == [(1, "new")]


@pytest.mark.long
def test_an_output_without_a_key_is_not_warned_of(copy: Copy, caplog: pytest.LogCaptureFixture) -> None:
    copy.add(0, 1, "a", 5)
    copy.run(upsert_by="")
    copy.grow(3)
    copy.add(2, 2, "b", 20)
    copy.run(upsert_by="")
    assert copy.rows() == [(1, "a"), (2, "b")]
    assert copy.warned(upsert_by="") == []
    assert not [each for each in caplog.records if "partitions since" in each.getMessage()]
