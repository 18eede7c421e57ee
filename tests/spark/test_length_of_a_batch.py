"""How much code a batch goes through: calls of the JVM, each of which takes 0.05 ms or more, and files of the bridge,
which a reader of its path opens."""

import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from py4j.clientserver import JavaClient
from pyspark.sql import SparkSession

import twopc.spark
from tests.spark.conftest import Topic
from tests.support.spark_session import write_all
from twopc.spark import ForeachBatch, foreach_batch
from twopc_kafka.sink import KafkaSink
from twopc_kafka_broker import KafkaBroker

BATCHES, RECORDS = 4, 10

FREES_AN_OBJECT = "m\n"
"""The start of py4j's command for an object that Python has dropped, which may come at any time."""

BRIDGE = Path(twopc.spark.__file__).parent

COMMITS = {KafkaSink.commit.__code__, KafkaSink.commit_many.__code__}


@dataclass
class Seen:
    """What a batch has gone through in its thread: calls of the JVM, and files up to its commit."""

    calls: int = 0
    files: set[str] = field(default_factory=set)

    def enter(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self.files.add(frame.f_code.co_filename)
            if frame.f_code in COMMITS:
                sys.setprofile(None)

    @property
    def of_bridge(self) -> list[str]:
        """The files of ``twopc.spark``."""
        return sorted(Path(file).name for file in self.files if Path(file).is_relative_to(BRIDGE))


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """What each batch has gone through."""
    found: list[Seen] = []
    in_batch = threading.local()
    send, write = JavaClient.send_command, ForeachBatch.__call__

    def counted(self: Any, command: str, *arguments: Any, **named: Any) -> Any:
        if getattr(in_batch, "is_on", False) and not command.startswith(FREES_AN_OBJECT):
            found[-1].calls += 1
        return send(self, command, *arguments, **named)

    def written(self: ForeachBatch, *arguments: Any) -> None:
        found.append(Seen())
        in_batch.is_on = True
        sys.setprofile(found[-1].enter)
        try:
            write(self, *arguments)
        finally:
            sys.setprofile(None)
            in_batch.is_on = False

    monkeypatch.setattr(JavaClient, "send_command", counted)
    monkeypatch.setattr(ForeachBatch, "__call__", written)
    return found


@pytest.mark.long
@pytest.mark.parametrize(("small_batches", "most_calls", "most_files"), [("few-tasks", 66, 8), ("driver", 51, 9)])
def test_a_batch_makes_few_calls_to_the_jvm_and_crosses_few_files(
    small_batches: Any,
    most_calls: int,
    most_files: int,
    batches: list[Seen],
    spark: SparkSession,
    topic: Topic,
    kafka_broker: KafkaBroker,
    tmp_path: Path,
) -> None:
    source = topic.beside(kafka_broker, partitions=4)
    source.fill(range(BATCHES * RECORDS), partitions=4)
    write = foreach_batch(topic.sink(), log=str(tmp_path / "log"), small_batches=small_batches)
    stream = source.stream(spark, RECORDS).select("value").writeStream
    write_all(stream.foreachBatch(write), tmp_path / "checkpoint")
    assert batches[-1].calls == batches[-2].calls <= most_calls
    assert len(batches[-1].of_bridge) <= most_files, batches[-1].of_bridge
