"""How often a batch calls the driver's JVM, which takes 0.05 ms each time, or more on a busy machine."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from py4j.clientserver import JavaClient

from twopc.spark import ForeachBatch, foreach_batch

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.conftest import Topic
    from twopc_kafka_broker import KafkaBroker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

BATCHES, RECORDS = 4, 10

FREES_AN_OBJECT = "m\n"
"""The start of py4j's command for an object that Python has dropped, which may come at any time."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The calls of each batch."""
    found: list[int] = []
    in_batch = threading.local()
    send, write = JavaClient.send_command, ForeachBatch.__call__

    def counted(self: Any, command: str, *arguments: Any, **named: Any) -> Any:
        if getattr(in_batch, "is_on", False) and not command.startswith(FREES_AN_OBJECT):
            found[-1] += 1
        return send(self, command, *arguments, **named)

    def written(self: ForeachBatch, *arguments: Any) -> None:
        found.append(0)
        in_batch.is_on = True
        try:
            write(self, *arguments)
        finally:
            in_batch.is_on = False

    monkeypatch.setattr(JavaClient, "send_command", counted)
    monkeypatch.setattr(ForeachBatch, "__call__", written)
    return found


@pytest.mark.variants
@pytest.mark.parametrize(("collect", "at_most"), [(True, 51), (False, 66)], ids=["by-driver", "by-tasks"])
def test_a_batch_makes_few_calls_to_the_jvm(
    collect: bool,
    at_most: int,
    calls: list[int],
    spark: SparkSession,
    topic: Topic,
    kafka_broker: KafkaBroker,
    tmp_path: Path,
) -> None:
    source = f"source-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(source, 4)
    producer = confluent_kafka.Producer({"bootstrap.servers": topic.servers})
    for number in range(BATCHES * RECORDS):
        producer.produce(source, str(number).encode(), partition=number % 4)
    assert producer.flush(30) == 0
    stream = replace(topic, name=source).stream(spark, RECORDS)
    write = foreach_batch(topic.sink(), log=str(tmp_path / "log"), collect=collect)
    query = stream.select("value").writeStream.foreachBatch(write).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert calls[-1] == calls[-2] <= at_most
