"""What a commit log costs: requests of a batch and of a driver's start, bytes of a decision, dollars on S3."""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import twopc
from tests.benchmarks.measuring import Row, counted
from tests.benchmarks.protocol import run_batches
from tests.campaigns.every_step.steps import azure_operation
from tests.campaigns.stores.kinds import KINDS
from twopc import Coordinator
from twopc.log.steps import ENTRIES_KEPT
from twopc.log.store import LogStore, open_store
from twopc.stores.places import file_system
from twopc.testing import MemorySink, MemoryTarget
from twopc_kafka_broker import KafkaBroker

BATCHES = 4 * ENTRIES_KEPT
"""The log is pruned once per ``ENTRIES_KEPT`` entries, and a decision is one."""

PARTITIONS = (10, 1_000, 10_000)

S3_DOLLARS = {"PutObject": 5e-6, "ListObjectsV2": 5e-6, "GetObject": 0.4e-6, "HeadObject": 0.4e-6, "DeleteObject": 0.0}
"""The price of a request to S3 Standard in us-east-1, from https://aws.amazon.com/s3/pricing."""

SECONDS_PER_MONTH = 365.25 * 86_400 / 12


def run(quick: bool) -> list[Row]:
    """Return the requests to each store, the bytes of a decision, and the dollars of a batch per second on S3."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for store, watch in STORES.items():
            if KINDS[store].obstacle() is None:
                with _log(store, Path(folder) / store) as log:
                    rows += _requests(store, watch, log, ENTRIES_KEPT if quick else BATCHES)
        sizes = _decision_bytes(Path(folder))
    return [*rows, *(Row(f"a decision of {n} partitions into Kafka", "bytes", (size,)) for n, size in sizes.items())]


def _of_hdfs(_: object, method: str, url: str, **options: Any) -> str:
    return str((options.get("params") or {}).get("op") or f"{method} to a DataNode")


def _of_postgres(_: object, statement: Any, *__: Any, **___: Any) -> str:
    return str(statement if isinstance(statement, str) else statement.as_string(None)).split()[0]


Watch = Callable[[Counter[str]], contextlib.AbstractContextManager[None]]

STORES: Mapping[str, Watch] = {
    "s3": partial(counted, "aiobotocore.client:AioBaseClient._make_api_call", lambda _, operation, __: str(operation)),
    "azure": partial(
        counted,
        "azure.core.pipeline.transport:AioHttpTransport.send",
        lambda _, request, **__: azure_operation(request),
    ),
    "gcs": partial(counted, "gcsfs.core:GCSFileSystem._request", lambda _, method, *__, **___: str(method)),
    "hdfs": partial(counted, "twopc.stores.webhdfs:_Session.request", _of_hdfs),
    "postgres-log": partial(counted, "twopc_postgres.sessions:Connection.execute", _of_postgres),
}
"""Store → counts the requests of its client."""


@contextlib.contextmanager
def _log(store: str, folder: Path) -> Iterator[LogStore]:
    kind = KINDS[store]
    assert kind.server
    folder.mkdir()
    with kind.server(folder) as server:
        url, options = kind.log.format(name="costs"), server.storage_options
        if store in ("s3", "azure", "gcs"):
            file_system(url, **options)[0].mkdir("costs")
        yield open_store(url, **options)


def _requests(store: str, watch: Watch, log: LogStore, batches: int) -> Iterator[Row]:
    """Return the requests of a driver's start after a clean stop, and of a batch on average, by their kind."""
    starts, runs = Counter[str](), Counter[str]()
    with _coordinator(log) as coordinator:
        coordinator.run(0, lambda _: ())
    with _coordinator(log) as coordinator:
        with watch(starts):
            coordinator.recover()
        coordinator.run(1, lambda _: ())  # the first entry of a process also tries the store
        with watch(runs):
            for batch_id in range(2, batches + 2):
                coordinator.run(batch_id, lambda _: ())
    per_batch = {kind: count / batches for kind, count in sorted(runs.items())}
    yield from (Row(f"{store}: {kind} per start", "requests", (count,)) for kind, count in sorted(starts.items()))
    yield from (Row(f"{store}: {kind} per batch", "requests", (each,)) for kind, each in per_batch.items())
    if store == "s3":
        dollars = sum(S3_DOLLARS[kind] * each for kind, each in per_batch.items()) * SECONDS_PER_MONTH
        yield Row("s3: a batch per second", "dollars per month", (dollars,), "log_s3_dollars_per_month")


def _coordinator(log: LogStore) -> Coordinator:
    return Coordinator({"sink": MemorySink(MemoryTarget())}, log, owner="benchmark", rest_interval_s=None)


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
