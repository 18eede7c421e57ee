"""Fixtures of the tests on a real Spark: a query on files of its own, a topic on a real broker, and a way to hold a
coordinator at a phase."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from pyspark.sql import DataFrame, SparkSession

import twopc
from tests.support.apicurio_server import ApicurioServer
from tests.support.observing import Killed, hearing, observing
from tests.support.s3_server import free_port
from tests.support.topic_reader import records_of
from twopc import TwoPhaseCommitSink
from twopc.events import Event, PhaseEntered
from twopc.phases import Phase
from twopc.spark import ForeachBatch, TwoPhaseCommitDataSource, foreach_batch
from twopc_kafka.client.control import control_of
from twopc_kafka.options import parse_options
from twopc_kafka_broker import KafkaBroker

Rows = list[dict[str, Any]]

AVAILABLE_NOW: Mapping[str, Any] = {"availableNow": True}


def rows(*ids: int, name: str = "a") -> Rows:
    return [{"id": number, "name": name} for number in ids]


def entries(log: Path, kind: str) -> Rows:
    """Return the entries of one kind of a commit log, oldest first."""
    found = [json.loads(file.read_text()) for file in sorted(log.glob("[0-9]*.json"))]
    return [entry for entry in found if entry["kind"] == kind]


def decided_batches(log: Path) -> list[int]:
    """Return the numbers of the decided batches of a commit log, oldest first."""
    return [entry["decided"] for entry in entries(log, "decide")]


def finished_jobs(spark: SparkSession) -> list[Any]:
    """Return Spark's own records of its jobs, which its UI shows, newest first."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    jobs = context.statusStore().jobsList(None)
    return [jobs.apply(number) for number in range(jobs.size())]


def descriptions(spark: SparkSession) -> list[str]:
    """Return the descriptions of jobs. A job outside a query has none."""
    return [str(job.description().get()) for job in finished_jobs(spark) if job.description().isDefined()]


def mortal(writer: ForeachBatch) -> Callable[[DataFrame, int], None]:
    """Wrap ``writer`` for a query of this process, which goes on when the driver is ``Killed``."""

    def write(batch: DataFrame, batch_id: int) -> None:
        try:
            writer(batch, batch_id)
        except Killed as killed:
            raise RuntimeError("the driver was killed") from killed

    return write


@contextlib.contextmanager
def dynamic_allocation(spark: SparkSession) -> Iterator[None]:
    """Enable it as if at the application's start: a session does not allow it later."""
    settings = spark._jsparkSession.sessionState().conf()
    settings.setConfString("spark.dynamicAllocation.enabled", "true")
    try:
        yield
    finally:
        settings.unsetConf("spark.dynamicAllocation.enabled")


@dataclass(frozen=True)
class Pipeline:
    """A query with its own source, checkpoint, commit log and output folder. Each file of the source is a batch."""

    spark: SparkSession
    folder: Path

    def beside(self, name: str) -> Pipeline:
        """Return another pipeline, which shares the session."""
        return Pipeline(self.spark, self.folder / name)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def add_batch(self, rows: Rows) -> None:
        source = self.folder / "source"
        source.mkdir(parents=True, exist_ok=True)
        number = len(list(source.iterdir()))
        file = source / f"{number:05d}.json"
        aside = self.folder / file.name
        aside.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(aside, (number, number))  # Spark takes the oldest first
        aside.rename(file)

    def files(self) -> TwoPhaseCommitSink[Any]:
        return twopc.create_sink("files", {"path": str(self.folder / "archive"), "format": "json"})

    def writer(self, sinks: Any = None, **arguments: Any) -> ForeachBatch:
        """Return a writer to sinks, or to the output folder, with this pipeline's log."""
        return foreach_batch(self.files() if sinks is None else sinks, log=str(self.log), **arguments)

    def run(
        self,
        writer: ForeachBatch | Callable[[DataFrame, int], None],
        plan: Callable[[DataFrame], DataFrame] = lambda source: source,
        output_mode: str = "append",
    ) -> None:
        """Run the query over all added batches. Raises StreamingQueryException."""
        self.start(writer, plan, output_mode).awaitTermination()

    def source(self) -> DataFrame:
        """Return the stream of the added batches."""
        files = self.spark.readStream.schema("id LONG, name STRING").option("maxFilesPerTrigger", 1)
        return files.json(str(self.folder / "source"))

    def start(
        self,
        writer: ForeachBatch | Callable[[DataFrame, int], None],
        plan: Callable[[DataFrame], DataFrame] = lambda source: source,
        output_mode: str = "append",
        trigger: Mapping[str, Any] = AVAILABLE_NOW,
    ) -> Any:
        return (
            plan(self.source())
            .writeStream.foreachBatch(writer)
            .outputMode(output_mode)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**trigger)
            .start()
        )

    def archived(self) -> Rows:
        """Return every committed record, read without code of the sink."""
        files = sorted((self.folder / "archive").glob("part-*.json"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def archived_ids(self) -> list[int]:
        return sorted(row["id"] for row in self.archived())

    def pending_files(self) -> list[str]:
        """The files that are not committed."""
        pending = self.folder / "archive" / "_twopc"
        return sorted(file.name for file in pending.iterdir()) if pending.exists() else []

    def entries(self, kind: str) -> Rows:
        """Return the commit log's entries of one kind, oldest first."""
        return entries(self.log, kind)

    def decided_batches(self) -> list[int]:
        """The numbers of the decided batches, oldest first."""
        return decided_batches(self.log)

    def decided(self, batch_id: int) -> dict[str, list[dict[str, Any]]]:
        """Return the committables of a decided batch, by sink."""
        [entry] = [entry for entry in self.entries("decide") if entry["decided"] == batch_id]
        found: dict[str, list[dict[str, Any]]] = entry["unresolved"][-1]["sinks"]
        return found


@pytest.fixture(scope="session")
def apicurio(tmp_path_factory: pytest.TempPathFactory, java_home: str) -> Iterator[str]:
    """The URL of a schema registry, which tests of a session share."""
    with ApicurioServer(tmp_path_factory.mktemp("registry"), java_home) as server:
        yield server.url


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, tmp_path)


@pytest.fixture(scope="module")
def data_source(spark: SparkSession) -> Iterator[None]:
    """Register the data source. The faulty backends are on the path of the processes that Spark starts for it."""
    environment = spark.sparkContext.environment
    environment["PYTHONPATH"] = str(Path(__file__).with_name("backends"))
    spark.dataSource.register(TwoPhaseCommitDataSource)
    yield
    del environment["PYTHONPATH"]


@pytest.fixture(scope="module")
def client(spark: SparkSession) -> Iterator[Any]:
    """A Spark Connect client. The server runs in the JVM of the tests' session."""
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    context = spark.sparkContext._jsc.sc()
    service = spark._jvm.org.apache.spark.sql.connect.service.SparkConnectService  # type: ignore[union-attr]
    port = free_port()
    context.conf().set("spark.connect.grpc.binding.address", "127.0.0.1")
    context.conf().set("spark.connect.grpc.binding.port", str(port))
    service.start(context)
    session = RemoteSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    session.dataSource.register(TwoPhaseCommitDataSource)
    yield session
    session.stop()
    service.stop(getattr(service, "stop$default$1")(), getattr(service, "stop$default$2")())


@pytest.fixture
def connected(client: Any, pipeline: Pipeline) -> Pipeline:
    """A pipeline of the client's."""
    return Pipeline(client, pipeline.folder)


@dataclass(frozen=True)
class Topic:
    """A topic on the session's broker, of one test."""

    servers: str
    name: str
    prefix: str

    @property
    def options(self) -> dict[str, str]:
        return {"bootstrap.servers": self.servers, "topic": self.name, "transactional.id.prefix": self.prefix}

    def sink(self) -> TwoPhaseCommitSink[Any]:
        return twopc.create_sink("kafka", self.options)

    def stream(self, spark: SparkSession, records_a_batch: int) -> DataFrame:
        """Return the topic as a stream, from its beginning."""
        return (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.servers)
            .option("subscribe", self.name)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", records_a_batch)
            .load()
        )

    def beside(self, broker: KafkaBroker, partitions: int = 2) -> Topic:
        """Return another topic, for a source."""
        made = replace(self, name=f"source-{uuid.uuid4().hex[:8]}")
        broker.create_topic(made.name, partitions)
        return made

    def fill(self, values: Iterable[object], partitions: int = 2) -> None:
        """Add values, one to each partition in turn."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers})
        for number, value in enumerate(values):
            producer.produce(self.name, str(value), partition=number % partitions)
        assert producer.flush(30) == 0

    def values(self) -> list[str]:
        """Return every value that a committed reader sees now, read by another client than the one that wrote."""
        return [record.value.decode() for record in records_of(self.servers, self.name)]

    def shows(self, expected: list[str], timeout_s: float = 10) -> bool:
        """Return whether exactly ``expected`` is visible, now or soon: a broker answers a commit before it has written
        the markers."""
        deadline = time.monotonic() + timeout_s
        while Counter(self.values()) != Counter(expected) and time.monotonic() < deadline:
            time.sleep(0.05)
        return Counter(self.values()) == Counter(expected)

    def ongoing(self) -> list[str]:
        """Return the open transactions."""
        return control_of(parse_options(self.options).control).list_ongoing(f"{self.prefix}.")


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> Topic:
    unique = uuid.uuid4().hex[:8]
    kafka_broker.create_topic(f"spark-{unique}", partitions=2)
    return Topic(kafka_broker.bootstrap_servers, f"spark-{unique}", f"test-{unique}")


@pytest.fixture
def events() -> Iterator[list[Event]]:
    """The events of coordinators while the test runs."""
    seen: list[Event] = []
    with hearing(seen.append):
        yield seen


class Hold:
    """Holds a coordinator when it enters a phase of a batch, once."""

    def __init__(self) -> None:
        self.where: tuple[Phase, int | None] | None = None
        self.reached, self.released = threading.Event(), threading.Event()

    def at(self, phase: Phase, batch_id: int) -> None:
        self.where = (phase, None if phase is Phase.RECOVERING else batch_id)
        self.reached.clear()
        self.released.clear()

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        if isinstance(event, PhaseEntered) and (event.phase, event.batch_id) == self.where:
            self.where = None
            self.reached.set()
            self.released.wait(60)


@pytest.fixture
def hold() -> Iterator[Hold]:
    with observing(Hold()) as held:
        yield held
