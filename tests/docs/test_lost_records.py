"""The procedure for lost records of ``docs/operating.md``: its script reads exactly what the batch has read, by the log
or by the checkpoint."""

import json
import re
import runpy
import sys
import textwrap
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

import twopc
from tests.support.pages import DOCS, write_files
from twopc.checkpoint.offsets import Reads, text_of
from twopc.testing import MemorySink, MemoryTarget
from twopc.transaction import JsonValue
from twopc_kafka_broker import KafkaBroker


@pytest.fixture
def script(tmp_path: Path) -> Any:
    """The names that the script of the page defines."""
    [name] = write_files(DOCS / "operating.md", tmp_path)
    return SimpleNamespace(**runpy.run_path(str(tmp_path / name)))


def read_by(folder: Path, *ends: JsonValue) -> tuple[str, str]:
    """A log and a checkpoint whose batches have read up to these offsets."""
    log, checkpoint = f"{folder}/log", folder / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    with twopc.Coordinator({"sink": MemorySink(MemoryTarget())}, log, owner="query") as coordinator:
        for batch_id, end in enumerate(ends):
            reads: Reads = {"sources": [end], "metadata": {}, "version": "v1"}
            coordinator.run(batch_id, lambda _: [], reads=reads)
            (checkpoint / "offsets" / str(batch_id)).write_text(text_of(reads), encoding="utf-8")
    return log, str(checkpoint)


def test_the_script_finds_where_a_batch_begins_and_ends_also_in_a_new_partition(script: Any, tmp_path: Path) -> None:
    log, checkpoint = read_by(tmp_path, {"orders": {"0": 5}}, {"orders": {"0": 9, "1": 2}})
    assert script.planned(checkpoint) == script.logged(log)
    options = {name: json.loads(value) for name, value in script.batch_range(script.logged(log), 1).items()}
    assert options == {
        "assign": {"orders": [0, 1]},
        "startingOffsets": {"orders": {"0": 5, "1": -2}},
        "endingOffsets": {"orders": {"0": 9, "1": 2}},
    }


def test_the_script_names_the_batches_that_the_log_keeps_if_another_is_asked_for(script: Any, tmp_path: Path) -> None:
    log, _ = read_by(tmp_path, {"orders": {"0": 5}}, {"orders": {"0": 9}})
    with pytest.raises(SystemExit, match=r"batches \[0, 1\]"):
        script.batch_range(script.logged(log), 7)


@pytest.mark.long
@pytest.mark.parametrize("place", ["logged", "planned"])
def test_the_steps_write_what_was_lost_and_double_nothing(
    script: Any,
    place: str,
    spark: SparkSession,
    kafka_broker: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = kafka_broker.bootstrap_servers
    source, target = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("events", "orders"))
    kept = [0, 1, 2, 3, 5, 7]  # batch 1 has lost 4, 6 and 8; later records are of batches to come
    producer = Producer({"bootstrap.servers": servers})
    for topic, numbers in (source, [*range(12)]), (target, kept):
        kafka_broker.create_topic(topic, partitions=1)
        for number in numbers:
            producer.produce(topic, str(number))
    producer.flush(30)
    log, checkpoint = read_by(tmp_path, {source: {"0": 4}}, {source: {"0": 9}})

    page = (DOCS / "operating.md").read_text(encoding="utf-8")
    [computing] = re.findall(r"^    ```python\n(    from lost_batch .*?)^    ```$", page, re.MULTILINE | re.DOTALL)
    writing = re.search(r"`(rows\.write\.save\(.*?\))`", page)
    assert writing
    for old, new in {
        'logged("/data/twopc-log"), 417': f"logged({log if place == 'logged' else checkpoint!r}), 1",
        "logged": place,
        "broker:9092": servers,
        '"orders"': repr(target),
    }.items():
        assert old in computing
        computing = computing.replace(old, new)
    monkeypatch.setitem(sys.modules, "lost_batch", script)

    def transform(events: DataFrame) -> DataFrame:
        return events.selectExpr("CAST(value AS STRING) AS value")

    names: dict[str, Any] = {"spark": spark, "transform": transform}
    exec(textwrap.dedent(computing), names)  # noqa: S102  # the page's
    assert names["rows"].count() == 3
    exec(writing[1].replace('"orders"', repr(target)), names)  # noqa: S102

    written = spark.read.load(format="kafka", subscribe=target, **names["kafka"])
    assert sorted(int(row.value) for row in transform(written).collect()) == list(range(9))
