"""The procedure for lost records of ``docs/operating.md``: its script reads exactly what the batch has read."""

from __future__ import annotations

import json
import runpy
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

import twopc
from tests.support.pages import DOCS, write_files
from twopc.testing import MemorySink, MemoryTarget
from twopc.transaction import JsonValue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twopc_kafka_broker import KafkaBroker


@pytest.fixture
def script(tmp_path: Path) -> Any:
    """The names that the script of the page defines."""
    [name] = write_files(DOCS / "operating.md", tmp_path)
    return SimpleNamespace(**runpy.run_path(str(tmp_path / name)))


def log_of(folder: Path, *ends: JsonValue) -> str:
    """A log whose batches have read up to these offsets."""
    log = f"{folder}/log"
    with twopc.Coordinator({"sink": MemorySink(MemoryTarget())}, log, owner="query") as coordinator:
        for batch_id, end in enumerate(ends):
            coordinator.run(batch_id, lambda _: [], reads={"sources": [end], "metadata": {}, "version": "v1"})
    return log


def test_the_script_finds_where_a_batch_begins_and_ends_also_in_a_new_partition(script: Any, tmp_path: Path) -> None:
    log = log_of(tmp_path, {"orders": {"0": 5}}, {"orders": {"0": 9, "1": 2}})
    options = {name: json.loads(value) for name, value in script.batch_range(log, 1).items()}
    assert options == {
        "assign": {"orders": [0, 1]},
        "startingOffsets": {"orders": {"0": 5, "1": -2}},
        "endingOffsets": {"orders": {"0": 9, "1": 2}},
    }


def test_the_script_names_the_batches_that_the_log_keeps_if_another_is_asked_for(script: Any, tmp_path: Path) -> None:
    log = log_of(tmp_path, {"orders": {"0": 5}}, {"orders": {"0": 9}})
    with pytest.raises(SystemExit, match=r"batches \[0, 1\]"):
        script.batch_range(log, 7)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.kafka
def test_the_steps_write_what_was_lost_and_double_nothing(
    script: Any, spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    servers, topic = kafka_broker.bootstrap_servers, f"orders-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, partitions=1)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(12):
        producer.produce(topic, str(number))
    producer.flush(30)
    log, folder = log_of(tmp_path, {topic: {"0": 4}}, {topic: {"0": 9}}), f"{tmp_path}/orders"
    kept = [0, 1, 2, 3, 5, 7]  # batch 1 has lost 4, 6 and 8; later records are of batches to come
    spark.createDataFrame([(str(number),) for number in kept], "value STRING").write.parquet(folder)

    events = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
    computed = events.options(**script.batch_range(log, 1)).load().selectExpr("CAST(value AS STRING) AS value")
    script.missing(computed, spark.read.parquet(folder)).write.mode("append").parquet(folder)

    assert sorted(int(row.value) for row in spark.read.parquet(folder).collect()) == list(range(9))
