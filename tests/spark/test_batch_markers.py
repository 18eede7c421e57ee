"""Batch markers of a query in Spark, in both of its ways."""

import json
import uuid
from collections import Counter

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import twopc
from tests.spark.conftest import Pipeline, Topic, rows
from tests.support.spark_session import write_all
from tests.support.topic_reader import records_of
from twopc.spark import Output, TwoPhaseCommitDataSource, foreach_batch
from twopc_kafka_broker import KafkaBroker

VALUE = "CAST(id AS STRING) AS value"


@pytest.mark.long
@pytest.mark.parametrize("way", ["foreach_batch", "data source"])
def test_each_batch_of_a_query_has_its_marker(
    way: str, spark: SparkSession, pipeline: Pipeline, topic: Topic, kafka_broker: KafkaBroker
) -> None:
    markers = f"markers-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(markers)
    options = {**topic.options, "batch.markers": markers}
    pipeline.add_batch(rows(1, 2))
    pipeline.add_batch(rows(3))
    writer: DataStreamWriter
    if way == "data source":
        spark.dataSource.register(TwoPhaseCommitDataSource)
        ours = {"sink": "kafka", "log": str(pipeline.log)}
        writer = pipeline.source().selectExpr(VALUE).writeStream.format("twopc").options(**ours, **options)
    else:
        sink = Output(twopc.create_sink("kafka", options), [VALUE])
        writer = pipeline.source().writeStream.foreachBatch(foreach_batch(sink, str(pipeline.log)))
    write_all(writer, pipeline.checkpoint)

    stated = [json.loads(record.value) for record in records_of(kafka_broker.bootstrap_servers, markers)]
    assert [int(each["batch"].split("/")[1]) for each in stated] == [0, 1]
    counts = {each["batch"]: sum(records for _, _, records, _ in each["partitions"]) for each in stated}
    assert [*counts.values()] == [2, 1]
    named = Counter(dict(record.headers)["twopc-batch"].decode() for record in records_of(topic.servers, topic.name))
    assert named == counts
