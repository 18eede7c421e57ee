"""How cost grows with the transactions of a batch, and with the queries of a driver, without Spark.

Most of it is counted, so it is the same on any machine: bytes, memory, requests, calls of Python functions, threads,
descriptors. Milliseconds are reported beside that, and only a quiet machine gives them a meaning.
"""

import contextlib
import functools
import gc
import itertools
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import twopc
from tests.benchmarks.measuring import Row, alone, counted, held
from tests.benchmarks.protocol import WRITERS_AT_ONCE, drivers_ms, votes
from tests.support.forgetful_sink import ForgetfulSink
from twopc import Committable, Coordinator, Round, TwoPhaseCommitSink, Vote
from twopc.log.store import open_store
from twopc.testing import MemoryTarget
from twopc.transaction import JsonValue, Transaction
from twopc_kafka_broker import KafkaBroker

SIZES = (10, 100, 1_000, 10_000)
"""Transactions of one sink in a batch."""

QUERIES = (1, 10, 50)
TASKS = 4
"""In each batch of these queries."""

IDLE_S = 45.0
MIB = 1024**2

Sinks = Mapping[str, TwoPhaseCommitSink[Any]]


def run(quick: bool) -> list[Row]:
    """Return what wide batches and many queries cost."""
    sizes, queries = (SIZES[:3], QUERIES[:2]) if quick else (SIZES, QUERIES)
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder) / "broker") as broker:
        broker.create_topic("target", partitions=4)
        kafka = {"bootstrap.servers": broker.bootstrap_servers, "topic": "target", "writer": "arrow"}
        wide: dict[str, Callable[[], Sinks]] = {
            "1 in memory": functools.partial(_memory_sinks, 1),
            "4 in memory": functools.partial(_memory_sinks, 4),
            "1 of files": functools.partial(_file_sinks, 1, folder),
            "1 of Kafka": functools.partial(_kafka_sinks, 1, kafka),
        }
        rows = [
            row
            for (name, make), size in itertools.product(wide.items(), sizes)
            for row in alone(_wide, make, f"{folder}/{name} {size}", size, f"{size} transactions, {name}")
        ]
        rows += [
            row for count in queries for row in alone(_queries, kafka, folder, count, IDLE_S / (3 if quick else 1))
        ]
    return rows


# Sinks. --------------------------------------------------------------------------------------------------------------


class _LikeKafka(ForgetfulSink):
    """A sink whose handles are those of Kafka's sink."""

    def pre_commit(self, transaction: Transaction) -> Committable:
        voted, number = super().pre_commit(transaction), transaction.id.partition
        return replace(voted, handle={"producer_id": 4_000 + number, "producer_epoch": number % 7})

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:
        sealing: dict[str, JsonValue] = {"topic_ids": {"target": "1zUGTWZMSCmlq1ewpfrBfQ"}, "end_txn_version": 5}
        return [
            replace(each, handle={**each.handle, **sealing, "partitions": {"target": [number % 4]}})
            for number, each in enumerate(committables)
        ]


def _memory_sinks(count: int) -> Sinks:
    return {f"sink{number}": _LikeKafka(MemoryTarget()) for number in range(count)}


def _file_sinks(count: int, folder: str) -> Sinks:
    target = tempfile.mkdtemp(dir=folder)
    return {f"sink{n}": twopc.create_sink("files", {"path": f"{target}/{n}", "format": "json"}) for n in range(count)}


def _kafka_sinks(count: int, options: Mapping[str, Any]) -> Sinks:
    return {f"sink{number}": twopc.create_sink("kafka", options) for number in range(count)}


class CountedLog:
    """A log on a disk that counts what it is asked."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url)
        self.url, self.asked, self.longest = self._store.url, Counter[str](), 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        self.asked[name] += 1
        return found

    def put_if_absent(self, slot: int, data: bytes) -> None:
        self.longest = max(self.longest, len(data))
        self.asked["put_if_absent"] += 1
        self._store.put_if_absent(slot, data)


# Wide batches. -------------------------------------------------------------------------------------------------------


def _wide(make: Callable[[], Sinks], log: str, transactions: int, what: str) -> list[Row]:
    """Run three batches, and recover from one that was killed before its decision."""
    sinks, store = make(), CountedLog(log)
    of_each = transactions * len(sinks)
    driver = Coordinator(sinks, store, owner="benchmark", rest_interval_s=None)
    driver.run(0, functools.partial(_votes, sinks, transactions))
    store.asked.clear()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    driver.run(1, functools.partial(_votes, sinks, transactions))
    peak_mib = (tracemalloc.get_traced_memory()[1] - before) / MIB
    tracemalloc.stop()
    requests = store.asked.total()
    with _calls() as calls:
        ended = driver.run(2, functools.partial(_votes, sinks, transactions, at_end=calls.clear))
    killed = functools.partial(_votes, sinks, transactions, at_end=_killed)
    with contextlib.suppress(KeyboardInterrupt):
        driver.run(3, killed)
    successor = Coordinator(sinks, store, owner="benchmark", rest_interval_s=None)
    with _calls() as in_recovery:
        successor.recover()
    successor.close()
    return [
        Row(f"{what}: decision", "bytes per transaction", (store.longest / of_each,)),
        Row(f"{what}: driver's memory above its base", "MiB", (peak_mib,)),
        Row(f"{what}: requests to the log", "requests per batch", (requests,)),
        Row(f"{what}: Python's calls after the last vote", "calls per transaction", (calls.total() / of_each,)),
        Row(f"{what}: Python's calls of a recovery", "calls per transaction", (in_recovery.total() / of_each,)),
        Row(f"{what}: last vote to the end of phase two, with calls counted", "ms", (drivers_ms(ended),)),
    ]


def _votes(sinks: Sinks, transactions: int, round: Round, at_end: Callable[[], None] = lambda: None) -> list[Vote]:
    found = votes(sinks, round, transactions)
    gc.collect()
    if tracemalloc.is_tracing():
        tracemalloc.reset_peak()
    at_end()
    return found


def _killed() -> None:
    raise KeyboardInterrupt  # nothing is rolled back, as after a kill


@contextlib.contextmanager
def _calls() -> Iterator[Counter[str]]:
    """Count the calls of functions, in Python and in C, on all threads that start meanwhile and on this one."""
    counted = Counter[str]()

    def count(_: Any, event: str, __: Any) -> None:
        if event in ("call", "c_call"):
            counted[event] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield counted
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


# Many queries. -------------------------------------------------------------------------------------------------------


def _queries(kafka: Mapping[str, Any], folder: str, queries: int, idle_s: float) -> list[Row]:
    """Run queries of four tasks in one driver, at once, and then leave them without a batch."""
    logs = [CountedLog(tempfile.mkdtemp(dir=folder)) for _ in range(queries + 1)]
    sinks = [_kafka_sinks(1, kafka) for _ in logs]
    drivers = [
        Coordinator(of_query, log, owner=f"query {number}")
        for number, (of_query, log) in enumerate(zip(sinks, logs, strict=True))
    ]

    def work(number: int) -> None:
        for _ in range(3):
            drivers[number].run(drivers[number].next_batch_id, functools.partial(_votes, sinks[number], TASKS))

    work(0)  # what a process has once
    base, busy = held(), Counter[str]()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, queries + 1)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        busy |= held()
        time.sleep(0.002)
    resting, asked = held(), Counter[str]()
    for log in logs:
        log.asked.clear()
    requests = Counter[str]()
    with counted("twopc_kafka.client.control:Control.send", lambda _, request, *__: type(request).__name__, requests):
        time.sleep(idle_s)
    for log in logs:
        asked += log.asked
    rests = 10 / idle_s / (queries + 1)
    what = f"{queries} queries in one driver"
    for driver in drivers:
        driver.close()
    own = 1 + min(TASKS, WRITERS_AT_ONCE)  # of the benchmark, per query: its loop and its participants
    return [
        Row(f"{what}, working: threads", "per query", (max(0, busy["threads"] - base["threads"]) / queries - own,)),
        *(Row(f"{what}, resting: {each}", "per query", ((resting[each] - base[each]) / queries,)) for each in base),
        Row(f"{what}, idle: requests to Kafka", "per query and 10 s", (requests.total() * rests,)),
        Row(f"{what}, idle: requests to the log", "per query and 10 s", (asked.total() * rests,)),
    ]
