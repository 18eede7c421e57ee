"""What a commit log costs: requests of a batch and of a driver's start, bytes of a decision, dollars on S3."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec

import twopc
from tests.benchmarks.measuring import Row
from tests.benchmarks.protocol import run_batches
from tests.support.http_proxy import HttpProxy, Request
from tests.support.s3_server import S3Server
from twopc import Coordinator
from twopc.log.commit_log import ENTRIES_KEPT
from twopc.log.store import LogStore, open_store
from twopc.testing import MemorySink, MemoryTarget
from twopc_kafka_broker import KafkaBroker

BATCHES = 4 * ENTRIES_KEPT
"""The log is pruned once per ``ENTRIES_KEPT`` entries, and a decision is one."""

PARTITIONS = (10, 1_000, 10_000)

S3_DOLLARS = {"PUT": 5e-6, "POST": 5e-6, "LIST": 5e-6, "GET": 0.4e-6, "HEAD": 0.4e-6, "DELETE": 0.0}
"""The price of a request to S3 Standard in us-east-1, from https://aws.amazon.com/s3/pricing."""

SECONDS_PER_MONTH = 365.25 * 86_400 / 12


def run(quick: bool) -> list[Row]:
    """Return the requests to each store, the bytes of a decision, and the dollars of a batch per second on S3."""
    batches = ENTRIES_KEPT if quick else BATCHES
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for store, reached in STORES.items():
            with reached(Path(folder)) as (proxy, log):
                start, per_batch = _requests(proxy, log, batches)
            rows += [Row(f"{store}: {kind} per start", "requests", (count,)) for kind, count in sorted(start.items())]
            rows += [Row(f"{store}: {kind} per batch", "requests", (each,)) for kind, each in sorted(per_batch.items())]
            if store == "s3":
                dollars = sum(S3_DOLLARS[kind] * each for kind, each in per_batch.items()) * SECONDS_PER_MONTH
                rows.append(Row("s3: a batch per second", "dollars per month", (dollars,), "log_s3_dollars_per_month"))
        sizes = _decision_bytes(Path(folder))
    return [*rows, *(Row(f"a decision of {n} partitions into Kafka", "bytes", (size,)) for n, size in sizes.items())]


@contextlib.contextmanager
def _s3(folder: Path) -> Iterator[tuple[HttpProxy, LogStore]]:
    with S3Server(folder / "s3.log") as server, HttpProxy(server.endpoint_url) as proxy:
        fsspec.filesystem("s3", **server.storage_options).mkdir("bucket")
        yield proxy, open_store("s3://bucket/log", **{**server.storage_options, "endpoint_url": proxy.url})


STORES: Mapping[str, Callable[[Path], contextlib.AbstractContextManager[tuple[HttpProxy, LogStore]]]] = {"s3": _s3}
"""Store → runs its server, and gives the proxy on the way to it, and a log that is reached through the proxy."""


def _requests(proxy: HttpProxy, log: LogStore, batches: int) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return the requests of a driver's start, and of a batch on average, by their kind."""
    with _coordinator(log) as coordinator:
        coordinator.run(0, lambda _: ())
    before = len(proxy.requests)
    with _coordinator(log) as coordinator:
        coordinator.recover()
        started = len(proxy.requests)
        for batch_id in range(1, batches + 1):
            coordinator.run(batch_id, lambda _: ())
        run = proxy.requests[started:]
    return Counter(map(_kind, proxy.requests[before:started])), {
        kind: count / batches for kind, count in Counter(map(_kind, run)).items()
    }


def _coordinator(log: LogStore) -> Coordinator:
    return Coordinator({"sink": MemorySink(MemoryTarget())}, log, owner="benchmark", rest_interval_s=None)


def _kind(request: Request) -> str:
    return "LIST" if "list-type" in request.target else request.method


def _decision_bytes(folder: Path) -> dict[int, int]:
    """Return partitions → the bytes of the decision of a batch, where each partition has a transaction."""
    sizes = {}
    with KafkaBroker(folder / "broker") as broker:
        broker.create_topic("target", partitions=4)
        options: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers, "topic": "target", "writer": "arrow"}
        for partitions in PARTITIONS:
            logs = folder / str(partitions)
            [_] = run_batches(twopc.create_sink("kafka", options), logs, partitions, 1)
            sizes[partitions] = max(entry.stat().st_size for entry in logs.rglob("*.json"))
    return sizes
