"""The code of ``docs/migration.md``: a cut-over with it loses and doubles nothing."""

import json
import runpy
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.pages import DOCS, write_files
from tests.support.topic_reader import records_of
from twopc_kafka_broker import KafkaBroker


@pytest.fixture
def page(tmp_path: Path) -> Any:
    """The names that the files of the page define, by file."""
    files = [tmp_path / name for name in write_files(DOCS / "migration.md", tmp_path)]
    return SimpleNamespace(**{file.stem: SimpleNamespace(**runpy.run_path(str(file))) for file in files})


def orders(spark: SparkSession, folder: Path, *batches: range) -> DataFrame:
    """A stream of orders, of which ``batches`` are new."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    for batch in batches:
        lines = "".join(json.dumps({"id": number}) + "\n" for number in batch)
        (source / f"{batch.start:05d}.json").write_text(lines)
    return spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 1).json(str(source))


@pytest.mark.long
def test_a_query_moves_from_sparks_kafka_sink(
    page: Any, spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    servers, topic = kafka_broker.bootstrap_servers, f"orders-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, partitions=2)
    page.kafka_before.start(
        orders(spark, tmp_path, range(5), range(5, 9)), servers, topic, str(tmp_path)
    ).awaitTermination()

    first = page.next_batch.next_batch(f"{tmp_path}/checkpoint")
    for new in range(9, 15), range(15, 20):  # the second start passes the same number
        page.kafka_after.start(orders(spark, tmp_path, new), servers, topic, str(tmp_path), first).awaitTermination()

    assert first == 2
    assert sorted(json.loads(record.value)["id"] for record in records_of(servers, topic)) == list(range(20))


@pytest.mark.long
def test_a_query_moves_from_deduplication_by_hand(page: Any, spark: SparkSession, tmp_path: Path) -> None:
    page.dedup_before.start(orders(spark, tmp_path, range(5), range(5, 9)), str(tmp_path)).awaitTermination()

    first = page.next_batch.next_batch(f"{tmp_path}/checkpoint")
    page.dedup_after.start(orders(spark, tmp_path, range(9, 15)), str(tmp_path), first).awaitTermination()

    assert first == 2
    assert sorted(row.id for row in spark.read.parquet(f"{tmp_path}/archive").collect()) == list(range(15))


def test_the_next_batch_of_a_checkpoint_in_a_store_is_found(page: Any) -> None:
    store = fsspec.filesystem("memory")
    for file in "offsets/0", "offsets/1", "commits/0", "commits/1", "commits/.1.crc":
        store.touch(f"/next-batch/{file}")
    assert page.next_batch.next_batch("memory://next-batch") == 2
    store.rm("/next-batch", recursive=True)


def test_a_checkpoint_whose_last_batch_is_not_finished_is_refused(page: Any, tmp_path: Path) -> None:
    for file in "offsets/0", "offsets/1", "commits/0", "commits/.0.crc":
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(SystemExit, match="batch 1 is not finished"):
        page.next_batch.next_batch(str(tmp_path))
