"""How cost grows on Spark: queries of a driver, tasks of a batch, records of a task; and executors that are lost.

Each measurement has a process of its own, with Spark in it. Its batches come from Spark's source ``rate-micro-batch``,
with one row per task, which becomes as many records as that task shall write.
"""

from __future__ import annotations

import functools
import itertools
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import psutil
import pyarrow as pa

import twopc
from tests.benchmarks.cpu import PYTHON, cpu_of, descent
from tests.benchmarks.lake_tables import create_iceberg
from tests.benchmarks.measuring import Row, alone, counted, in_turns, peak_mib, ratio
from tests.benchmarks.pipeline import session, source
from tests.benchmarks.scale import CountedLog
from tests.campaigns.spark.standalone import Standalone
from tests.support import spark_session
from tests.support.contents import difference, in_topic
from tests.support.kills import EXECUTOR, arguments
from tests.support.spark_home import set_java_and_python
from tests.support.waiting import until
from twopc.events import BatchFinished, Event
from twopc.phases import Phase
from twopc.spark import ForeachBatch, foreach_batch
from twopc.transactional_ids import BATCH_SLOTS
from twopc_kafka.client.control import control_of
from twopc_kafka_broker import KafkaBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERIES = (1, 10, 50)
TASKS = (1_000, 10_000)
BACKENDS = ("kafka", "files", "iceberg")
RECORDS = ((1, 1_000_000), (4, 50_000_000))
"""Tasks of a batch → records of 100 B in each."""

LARGE_RECORDS = {1_000_000: 200, 30_000_000: 10}
"""Bytes of a record → records of a batch of one task."""

HOT_RECORDS, OTHERS = 1_800_000, 3
"""Of the hot task, and how many tasks share the other tenth of a batch."""

EXECUTORS, KILLS, ROWS, SLICES = 4, 20, 40_000, 8
IDLE_S, HOUR_MS = 60.0, 3_600_000
MIB = 1024**2

PROPERTIES = {
    "message.max.bytes": 2**26,
    "transaction.max.timeout.ms": HOUR_MS,
    "log.segment.bytes": 2**27,
    "log.retention.bytes": 2**29,  # so that a disk need not hold what is only counted
    "log.retention.check.interval.ms": 1000,
    "log.segment.delete.delay.ms": 100,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a measurement runs: a broker and its process, and a folder."""

    servers: str
    broker_pid: int
    folder: str

    def new_folder(self) -> str:
        return tempfile.mkdtemp(dir=self.folder)

    def write(self, backend: str, **arguments: Any) -> ForeachBatch:
        """Return what writes with a new log, into a new target or into the topic."""
        limits = {"message.max.bytes": 2**25, "transaction.timeout.ms": HOUR_MS}
        options: dict[str, Callable[[], Mapping[str, Any]]] = {
            "kafka": lambda: {"bootstrap.servers": self.servers, "topic": "target", **limits},
            "files": lambda: {"path": f"{self.new_folder()}/files"},
            "iceberg": lambda: create_iceberg(self.new_folder(), pa.schema({"value": pa.binary()})),
        }
        sink = twopc.create_sink(backend, options[backend]())
        return foreach_batch(sink, **{"log": self.new_folder(), "small_batches": "all-tasks", **arguments})

    def batch(self, frame: DataFrame, write: ForeachBatch) -> Callable[[], BatchFinished]:
        """Return what writes one batch of a new query."""
        writer, checkpoint = frame.writeStream.foreachBatch(write), self.new_folder()

        def run() -> BatchFinished:
            spark_session.write_all(writer, checkpoint)
            assert write.last_progress is not None
            return write.last_progress

        return run


def run(quick: bool) -> list[Row]:
    """Return what queries, tasks, records and lost executors cost."""
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "broker", properties=PROPERTIES, heap_mb=1024) as broker,
    ):
        broker.create_topic("target", partitions=4)
        broker.create_topic("source", partitions=1)
        assert broker.pid is not None
        place = Place(broker.bootstrap_servers, broker.pid, folder)
        measured: list[functools.partial[list[Row]]] = [
            *(functools.partial(_queries, place, count) for count in QUERIES[: 2 if quick else 3]),
            *(
                functools.partial(_tasks, place, *each)
                for each in itertools.product(TASKS[: 1 if quick else 2], (1, 100))
            ),
            *(
                functools.partial(_worker, place, backend, *each, 100)
                for backend, each in itertools.product(BACKENDS, RECORDS[: 1 if quick else 2])
            ),
            *(
                functools.partial(_worker, place, backend, 1, records, size)
                for backend, (size, records) in itertools.product(BACKENDS, LARGE_RECORDS.items())
            ),
            functools.partial(_hot, place, 2 if quick else 8),
            functools.partial(_executors, place, 3 if quick else KILLS),
        ]
        return [row for each in measured for row in alone(each)]


# Many queries. -------------------------------------------------------------------------------------------------------


def _queries(place: Place, queries: int) -> list[Row]:
    """Run batches of one record in each query, at most one per second, beside one query that has what a process has
    once. Then leave all without a record."""
    spark = session(Path(place.folder))
    producer = confluent_kafka.Producer({"bootstrap.servers": place.servers})
    logs = [CountedLog(place.new_folder()) for _ in range(queries + 1)]
    writes = [place.write("kafka", log=log, small_batches="driver") for log in logs]
    busy = Counter[str]()

    def start(write: ForeachBatch) -> None:
        writer = source(spark, place.servers, "source").writeStream.foreachBatch(write)
        writer.option("checkpointLocation", place.new_folder()).trigger(processingTime="1 second").start()

    def feed(rounds: int, running: Sequence[ForeachBatch]) -> None:
        for _ in range(rounds):
            before = [write.last_progress for write in running]
            producer.produce("source", b"x" * 100)
            producer.flush()

            def have_written(before: Sequence[BatchFinished | None] = before) -> bool:
                busy.update(_threads() - busy)
                return all(write.last_progress not in (None, old) for write, old in zip(running, before, strict=True))

            until(have_written, 300)

    start(writes[0])
    feed(5, writes[:1])
    base = _held(spark, place)
    for write in writes[1:]:
        start(write)
    feed(5 + 100 // queries, writes)  # the JVM compiles what it runs often
    rounds = 5 if queries > 1 else 30
    began_s = time.process_time()
    with cpu_of(place.broker_pid) as used_s:
        feed(rounds, writes)
    cpu = {**used_s, PYTHON: time.process_time() - began_s}  # workers, which are not used, may have ended
    held, requests = _held(spark, place), Counter[str]()
    for log in logs:
        log.asked.clear()
    with counted("twopc_kafka.client.control:Control.send", lambda _, request, *__: type(request).__name__, requests):
        time.sleep(IDLE_S)
    asked = sum(log.asked.total() for log in logs)
    for query in spark.streams.active:
        query.stop()
    spark.stop()
    what, of_all = f"{queries} queries on Spark", queries + 1
    rests = 10 / IDLE_S / of_all
    return [
        *(Row(f"{what}: CPU of {part}", "ms per batch", (s * 1000 / rounds / of_all,)) for part, s in cpu.items()),
        *(Row(f"{what}: {each}", "more per query", ((held[each] - base[each]) / queries,)) for each in held),
        *(Row(f"{what}: {each}, at most", "in all", (busy[each],)) for each in busy if each.startswith("twopc")),
        Row(f"{what}, idle: requests to Kafka", "per query and 10 s", (requests.total() * rests,)),
        Row(f"{what}, idle: requests to the log", "per query and 10 s", (asked * rests,)),
    ]


def _threads() -> Counter[str]:
    """Return the threads of this Python by name, without the number in it."""
    return Counter(f"{thread.name.rstrip('0123456789 ()').split('-')[0]} threads" for thread in threading.enumerate())


def _held(spark: SparkSession, place: Place) -> Counter[str]:
    """Return what the driver holds."""
    jvm: Any = spark.sparkContext._jvm
    java, process = jvm.java.lang, psutil.Process()
    java.System.gc()
    runtime, port = java.Runtime.getRuntime(), int(place.servers.rpartition(":")[2])
    connections = [each for each in process.net_connections("tcp") if each.raddr and each.raddr.port == port]
    return Counter(
        {
            "MiB of Python": process.memory_info().rss / MIB,
            "MiB of the JVM's heap": (runtime.totalMemory() - runtime.freeMemory()) / MIB,
            "connections of Python to Kafka": len(connections),
            **_threads(),
        }
    )


# Wide, large and uneven batches. -------------------------------------------------------------------------------------


def _rows(spark: SparkSession, tasks: int, each: int = 1) -> DataFrame:
    """Return a stream in each of whose batches each task has so many rows. Their ``value`` modulo ``tasks`` is the
    number of the task."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", tasks * each)
    return rows.option("numPartitions", tasks).load()


def _records(spark: SparkSession, by_task: Sequence[int], size: int) -> DataFrame:
    """Return a stream in each of whose batches each task has so many records of ``size`` bytes.

    A row becomes 1,000 records if there are so many: Spark keeps all that one row becomes in memory.
    """
    tasks, of_a_row = len(by_task), 1_000 if min(by_task) >= 1_000 else 1
    rows = max(by_task) // of_a_row
    taken = ", ".join(str(records // of_a_row) for records in by_task)
    found = _rows(spark, tasks, rows).where(
        f"value % {tasks * rows} div {tasks} < element_at(array({taken}), CAST(value % {tasks} AS INT) + 1)"
    )
    records = found.selectExpr("value", f"explode(sequence(1, {of_a_row})) AS number")
    return records.selectExpr(f"CAST(rpad(concat_ws('-', value, number), {size}, 'x') AS BINARY) AS value")


def _tasks(place: Place, tasks: int, one_full_in: int) -> list[Row]:
    """Write a batch of so many tasks to Kafka, of which one in ``one_full_in`` has a record."""
    spark = session(Path(place.folder))

    def batch(count: int) -> Callable[[], BatchFinished]:
        full = _rows(spark, count).where(f"value % {one_full_in} = 0")
        return place.batch(full.selectExpr("CAST(value AS STRING) AS value"), place.write("kafka"))

    batch(4)()
    base_mib = peak_mib()
    with cpu_of(place.broker_pid) as used_s:
        written = batch(tasks)()
    what = f"{tasks} tasks on Spark, one in {one_full_in} with a record"
    found = [
        Row(f"{what}: transactions", "in all", (sum(written.transactions.values()),)),
        Row(f"{what}: peak of the driver's Python above that of four tasks", "MiB", (peak_mib() - base_mib,)),
        *(Row(f"{what}: CPU of {part}", "ms per task", (s * 1000 / tasks,)) for part, s in used_s.items()),
        *(Row(f"{what}: {phase}", "s", (ms / 1000,)) for phase, ms in written.phases_ms.items()),
    ]
    spark.stop()
    return found


def _worker(place: Place, backend: str, tasks: int, records: int, size: int) -> list[Row]:
    """Write a batch of so many tasks, each of so many records. Return the peak memory of a Python worker."""
    spark = session(Path(place.folder))
    with cpu_of(place.broker_pid) as used_s:
        written = place.batch(_records(spark, [records] * tasks, size), place.write(backend))()
    assert sum(written.records.values()) == tasks * records
    pythons = [
        each for each in descent(None)[1:] if "java" not in each.name() and each.status() != psutil.STATUS_ZOMBIE
    ]
    peak = max(peak_mib(each.pid) for each in pythons)
    spark.stop()
    what = f"{tasks} x {records} records of {size} B into {backend}"
    return [
        Row(f"{what}: peak of a worker", "MiB", (peak,)),
        Row(f"{what}: CPU of all", "µs per KB", (used_s.total() / tasks / records / size * 1e9,)),
        Row(f"{what}: {Phase.PRE_COMMITTING.value}", "s", (written.phases_ms[Phase.PRE_COMMITTING.value] / 1000,)),
    ]


def _hot(place: Place, turns: int) -> list[Row]:
    """Compare a task alone with one of the same records beside others that have a ninth of them together."""
    spark = session(Path(place.folder))
    rates, cpu = dict[str, list[float]](), dict[str, list[float]]()

    def contestant(others: int) -> Callable[[], tuple[float, float]]:
        by_task = [HOT_RECORDS, *[HOT_RECORDS // 9 // OTHERS] * others]
        batch = place.batch(_records(spark, by_task, 100), place.write("kafka"))

        def turn() -> tuple[float, float]:
            with cpu_of(place.broker_pid) as used_s:
                written = batch()
            return HOT_RECORDS / written.phases_ms[Phase.PRE_COMMITTING.value], sum(by_task) / used_s.total()

        return turn

    contestants = {"hot": contestant(OTHERS), "alone": contestant(0)}
    in_turns(contestants, 2)
    for name, results in in_turns(contestants, turns).items():
        rates[name], cpu[name] = map(list, zip(*results, strict=True))
    spark.stop()
    what = "a task with nine tenths of a batch, over the task alone"
    return [
        ratio(f"{what}: throughput of the task", rates, "hot", "alone"),
        ratio(f"{what}: records of the batch per second of CPU", cpu, "hot", "alone"),
    ]


# Executors that are lost. --------------------------------------------------------------------------------------------


class _Open:
    """An observer that counts the open transactions at the end of each batch, and those that are not of that batch."""

    def __init__(self, servers: str) -> None:
        self._control = control_of({"bootstrap_servers": [servers]})
        self.at_ends, self.older = 0, 0

    def names(self) -> list[str]:
        return self._control.list_ongoing("twopc.")

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        if isinstance(event, BatchFinished):
            names = self.names()
            self.at_ends += len(names)
            self.older += sum(not name.endswith(f".{event.batch_id % BATCH_SLOTS}") for name in names)


def _executors(place: Place, kills: int) -> list[Row]:
    """Kill executors of a cluster at any moment of a query's batches, and compare what it wrote."""
    set_java_and_python()
    write, opened, chance = place.write("kafka"), _Open(place.servers), random.Random(1)  # noqa: S311  # no secret
    twopc.register_observer(opened)
    open_at_kills = 0
    with Standalone(Path(place.folder) / "cluster", EXECUTORS) as cluster:
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "600m",
            "spark.executorEnv.PYTHONPATH": str(Path.cwd()),
            "spark.task.maxFailures": "16",
        }
        spark = spark_session.session(cluster.master, settings)
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
        frame = rows.option("numPartitions", SLICES).load().selectExpr("CAST(value AS STRING) AS value")
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", place.new_folder())
        query = writer.start()

        def executors() -> list[psutil.Process]:
            return [each for each in descent(None) if EXECUTOR in arguments(each)]

        def batches() -> int:
            if (error := query.exception()) is not None:
                raise error
            return write.last_progress.batch_id + 1 if write.last_progress else 0

        def wait_for_more_than(before: int) -> None:
            until(lambda: batches() > before, 240)

        wait_for_more_than(0)
        for _ in range(kills):
            until(lambda: len(executors()) >= EXECUTORS, 120)
            time.sleep(chance.uniform(0, 2))  # a moment of a batch, whichever
            open_at_kills += len(opened.names())
            chance.choice(executors()).kill()
            wait_for_more_than(batches())
        query.stop()
        done = batches()
        spark.stop()
    expected = map(str, range(done * ROWS))
    found = difference(expected, in_topic(place.servers, "target"))
    what = f"{kills} kills of one of {EXECUTORS} executors"
    counts = {
        "batches": done,
        "records that are lost": found.lost,
        "records that are there twice": found.duplicates,
        "transactions that were open at a kill": open_at_kills,
        "open at the end of a batch": opened.at_ends,
        "open at the end of a batch, and of one before it": opened.older,
    }
    return [Row(f"{what}: {each}", "in all", (count,)) for each, count in counts.items()]
