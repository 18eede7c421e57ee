"""Calls into Spark's JVM that a platform forbids one by one, as Databricks does: twopc does without, or fails early."""

import sqlite3
import sys
from contextlib import closing
from types import FrameType
from typing import Any

import confluent_kafka
import pytest
from pyspark.sql import DataFrame, SparkSession

import twopc
from tests.spark.conftest import Pipeline, Topic, rows
from twopc.spark import ForeachBatch, Output

CALL, CONSTRUCT = "c", "i"  # in py4j's protocol

DISPENSABLE = {"PYTHON_UDF", "SCALA_UDF", "containsPattern", "children", "child", "rdd", "lastExecution"}
"""Without these, a batch keeps the tasks of its plan."""

OF_LATER_BATCHES = {"isActive", "numInputRows", "reset", "get", "serialize"}


class Guard:
    """Forbids one method that twopc calls. While none is forbidden, notes the name of each.

    A call is twopc's if its code makes it or has PySpark's context make it. Those of frames and columns are PySpark's.
    """

    def __init__(self, client: Any) -> None:
        self._send = client.send_command
        self.forbidden: str | None = None
        self.called = set[str]()

    def __call__(self, command: str, *arguments: Any, **keywords: Any) -> str:
        kind, target, method, *_ = command.split("\n")
        if kind in (CALL, CONSTRUCT) and _is_of_twopc():
            name = target if kind == CONSTRUCT else method
            if self.forbidden is None:
                self.called.add(name)
            if name == self.forbidden:
                return f"xspy4j.security.Py4JSecurityException: Method public {name} is not whitelisted on class"
        return str(self._send(command, *arguments, **keywords))


def _is_of_twopc() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame and frame.f_globals["__name__"].startswith(("py4j.", "pyspark.core.")):
        frame = frame.f_back
    return frame is not None and frame.f_globals["__name__"].startswith("twopc.")


@pytest.fixture
def guard(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Guard:
    client: Any = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
    guard = Guard(client)
    monkeypatch.setattr(client, "send_command", guard)
    return guard


def writer_of(place: Pipeline, topic: Topic) -> ForeachBatch:
    """Return a writer to files, a table with a key and a consumer group, which together need every call."""
    place.folder.mkdir()
    with closing(sqlite3.connect(place.folder / "db")) as connection:
        connection.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, name TEXT)")
    table = {"url": f"sqlite:///{place.folder}/db", "table": "orders", "upsert_by": "id"}
    group = {"bootstrap.servers": topic.servers, "group.id": f"{topic.prefix}.{place.folder.name}"}
    outputs = {"files": place.files(), "table": Output(twopc.create_sink("sql", table), latest_by="name")}
    return place.writer(outputs, offsets=twopc.create_sink("kafka-offsets", group))


@pytest.mark.long
def test_a_forbidden_call_is_done_without_or_fails_a_batch_before_its_decision_by_name(
    pipeline: Pipeline, topic: Topic, guard: Guard
) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": topic.servers})
    for number in range(4):
        producer.produce(topic.name, str(number), partition=number % 2)
    producer.flush()
    pipeline.add_batch(rows(10))
    pipeline.add_batch(rows(11))
    writers = {"none": writer_of(pipeline.beside("none"), topic)}
    failed: dict[int, dict[str, str]] = {0: {}, 1: {}}

    def write(batch: DataFrame, batch_id: int) -> None:
        guard.forbidden = None
        writers["none"](batch, batch_id)
        if batch_id == 0:
            names = guard.called | OF_LATER_BATCHES
            writers.update({name: writer_of(pipeline.beside(name), topic) for name in names})
        for guard.forbidden in writers.keys() - failed[0].keys() - {"none"}:
            try:
                writers[guard.forbidden](batch, batch_id)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is looked at below
                failed[batch_id][guard.forbidden] = str(error)

    def plan(source: DataFrame) -> DataFrame:
        from_topic = topic.stream(pipeline.spark, 2).selectExpr("offset AS id", "CAST(value AS STRING) AS name")
        return source.unionByName(from_topic)

    pipeline.run(write, plan)
    assert guard.called == writers.keys() - {"none"}
    assert failed[0].keys() == guard.called - DISPENSABLE - OF_LATER_BATCHES
    assert failed[1].keys() == OF_LATER_BATCHES
    for batch_id, errors in failed.items():
        for name, error in errors.items():
            assert f"public {name} is not whitelisted" in error
            assert pipeline.beside(name).decided_batches() == [*range(batch_id)]
            assert 11 not in pipeline.beside(name).archived_ids()
    for name in ("none", *DISPENSABLE):
        assert pipeline.beside(name).decided_batches() == [0, 1]
        assert pipeline.beside(name).archived_ids() == pipeline.beside("none").archived_ids()
