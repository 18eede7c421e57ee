"""The README and the first query of the page on Spark run as they stand. The README's figures and picture are true."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer

from tests.support.pages import DOCS, ROOT, blocks, site_script
from tests.support.topic_reader import records_of
from twopc.spark import stop
from twopc_kafka_broker import KafkaBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = ROOT / "README.md"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.kafka
def test_its_code_writes_each_record_to_both_systems(spark: SparkSession, tmp_path: Path) -> None:
    [code] = blocks(README, "python")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "events.json").write_text('{"id": "a", "price": 1}\n{"id": "b", "price": 2}\n')
    with KafkaBroker() as broker:
        broker.create_topic("orders")
        found: dict[str, Any] = {
            "servers": broker.bootstrap_servers,
            "folder": str(tmp_path),
            "events": spark.readStream.schema("id STRING, price INT").json(str(tmp_path / "source")),
        }
        exec(code, found)  # noqa: S102  # ours
        found["query"].processAllAvailable()
        stop(found["query"])
        records = [(record.key, json.loads(record.value)) for record in records_of(broker.bootstrap_servers, "orders")]
    assert sorted(records) == [(b"a", {"id": "a", "price": 1}), (b"b", {"id": "b", "price": 2})]
    archived = spark.read.parquet(f"{tmp_path}/archive").collect()
    assert sorted((row.id, row.price) for row in archived) == [("a", 1), ("b", 2)]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.kafka
def test_the_first_query_of_the_page_on_spark_writes_each_record_to_both_systems(
    spark: SparkSession, tmp_path: Path
) -> None:
    code, *_ = blocks(DOCS / "spark.md", "python")
    with KafkaBroker() as broker:
        broker.create_topic("events")
        broker.create_topic("orders")
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for key in (b"a", b"b"):
                producer.send("events", key=key, value=key.upper())
        processed = code.replace("\n...\n", "\nquery.processAllAvailable()\n").replace(
            '.option("subscribe"', '.option("startingOffsets", "earliest").option("subscribe"'
        )
        exec(processed, {"spark": spark, "servers": broker.bootstrap_servers, "folder": str(tmp_path)})  # noqa: S102
        records = [(record.key, record.value) for record in records_of(broker.bootstrap_servers, "orders")]
    assert sorted(records) == [(b"a", b"A"), (b"b", b"B")]
    archived = spark.read.parquet(f"{tmp_path}/archive").collect()
    assert sorted((row.id, row.text) for row in archived) == [("a", "A"), ("b", "B")]


def test_its_figures_are_those_of_the_pages_that_name_the_runs() -> None:
    text = README.read_text(encoding="utf-8")
    proof, performance = ((DOCS / page).read_text(encoding="utf-8") for page in ("proof.md", "performance.md"))
    kills, costs, _ = re.findall(r"^- \*\*It .*?(?=^- |^!)", text, re.MULTILINE | re.DOTALL)
    for page, said in (proof, kills), (performance, costs.replace("1 000", "")):
        figures = re.findall(r"\d[\d,.]*\d", said)
        assert len(figures) >= 3
        assert [figure for figure in figures if figure not in page] == []


def test_its_picture_is_the_one_of_the_site() -> None:
    landing = site_script("landing")
    assert landing.PICTURE.read_text(encoding="utf-8") == landing.picture_file(), "run: python docs/site/landing.py"
