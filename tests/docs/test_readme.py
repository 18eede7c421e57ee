"""The README and the first programs of other pages run as they stand. The README's figures and picture are true."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaProducer
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from tests.support.pages import DOCS, ROOT, blocks, site_script
from tests.support.topic_reader import records_of
from twopc.spark import stop
from twopc_kafka_broker import KafkaBroker

README = ROOT / "README.md"


@pytest.mark.long
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
def test_the_first_query_of_the_page_on_spark_writes_each_record_to_both_systems(
    spark: SparkSession, tmp_path: Path
) -> None:
    code, *_ = blocks(DOCS / "spark.md", "python")
    with KafkaBroker() as broker:
        send_events(broker)
        processed = code.replace("\n...\n", "\nquery.processAllAvailable()\n").replace(
            '.option("subscribe"', '.option("startingOffsets", "earliest").option("subscribe"'
        )
        exec(processed, {"spark": spark, "servers": broker.bootstrap_servers, "folder": str(tmp_path)})  # noqa: S102
        records = [(record.key, record.value) for record in records_of(broker.bootstrap_servers, "orders")]
    assert sorted(records) == [(b"a", b"A"), (b"b", b"B")]
    archived = spark.read.parquet(f"{tmp_path}/archive").collect()
    assert sorted((row.id, row.text) for row in archived) == [("a", "A"), ("b", "B")]


@pytest.mark.long
@pytest.mark.usefixtures("spark", "unpooled_sqlite")
def test_the_program_of_the_checklist_writes_each_record_to_a_topic_and_to_a_table(tmp_path: Path) -> None:
    code, *_ = blocks(DOCS / "production.md", "python")
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    tables = load_catalog("default", type="sql", uri=uri, warehouse=warehouse)
    tables.create_namespace("sales")
    tables.create_table("sales.orders", pa.schema([("id", pa.string()), ("text", pa.string())]))
    with KafkaBroker() as broker:
        send_events(broker)
        for place, here in {
            "broker:9092": broker.bootstrap_servers,
            "s3a://bucket": str(tmp_path),
            "s3://bucket": str(tmp_path),
            '"rest", "catalog.uri": "https://catalog.example"': (
                f'"sql", "catalog.uri": "{uri}", "catalog.warehouse": "{warehouse}"'
            ),
            '.option("subscribe"': '.option("startingOffsets", "earliest").option("subscribe"',
            ".writeStream": ".writeStream.trigger(availableNow=True)",
        }.items():
            assert code.count(place) == 1
            code = code.replace(place, here)
        exec(code, {"__name__": "__main__"})  # noqa: S102  # ours
        records = [(record.key, record.value) for record in records_of(broker.bootstrap_servers, "orders")]
    assert sorted(records) == [(b"a", b"A"), (b"b", b"B")]
    rows = tables.load_table("sales.orders").scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["text"]) for row in rows) == [("a", "A"), ("b", "B")]


def send_events(broker: KafkaBroker) -> None:
    broker.create_topic("events")
    broker.create_topic("orders")
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for key in (b"a", b"b"):
            producer.send("events", key=key, value=key.upper())


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
