"""Memory of the driver over many large batches, with the size of its log; memory of a worker by batch size.

Each measurement has its own process, because a process does not return memory to the system.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import twopc
from tests.benchmarks.measuring import Row, alone, peak_mib
from tests.benchmarks.protocol import votes
from tests.support.forgetful_sink import ForgetfulSink
from twopc import Coordinator, Participant, Round
from twopc.testing import MemoryTarget
from twopc_kafka_broker import KafkaBroker

PARTITIONS = 2_000
BATCHES = 500
RECORD_BYTES = 1_000
A_BATCH = 10_000  # records per Arrow batch, by Spark's default
KIB_IN_MIB = 1024


def run(quick: bool) -> list[Row]:
    """Return the MiB that batches take, beyond the memory before the first batch or after an early one."""
    batches, sizes = (20, (100_000,)) if quick else (BATCHES, (50_000, 200_000, 1_000_000))
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder) / "broker") as broker:
        broker.create_topic("target", partitions=4)
        driver_mib, log_mib = alone(_driver, f"{folder}/log", batches)
        workers = [
            Row(
                f"worker, {writer}, {records} records of {RECORD_BYTES} B",
                "MiB",
                (alone(_worker, broker.bootstrap_servers, writer, records),),
                f"worker_mib_{writer}_{records}",
            )
            for writer in ("librdkafka", "arrow")
            for records in sizes
        ]
    return [
        Row(f"driver, {batches} batches of {PARTITIONS} partitions, beyond a tenth of them", "MiB", (driver_mib,)),
        Row("its log, at most", "MiB", (log_mib,)),
        *workers,
    ]


def _driver(log: str, batches: int) -> tuple[float, float]:
    sinks = {"sink": ForgetfulSink(MemoryTarget())}
    early_mib, largest = 0.0, 0
    with Coordinator(sinks, log, owner="benchmark", commits_at_once=1) as coordinator:
        for batch_id in range(batches):
            coordinator.run(batch_id, lambda each: votes(sinks, each, PARTITIONS))
            largest = max(largest, sum(entry.stat().st_size for entry in Path(log).iterdir()))
            if batch_id + 1 == batches // 10:
                early_mib = peak_mib()
    return peak_mib() - early_mib, largest / KIB_IN_MIB**2


def _worker(servers: str, writer: str, records: int) -> float:
    sink = twopc.create_sink("kafka", {"bootstrap.servers": servers, "topic": "target", "writer": writer})
    sink.bind("sink", "benchmark")
    before_mib = peak_mib()
    with Participant({"sink": sink}, Round(1, 0), partition=0) as participant:
        for _ in range(0, records, A_BATCH):
            participant.write("sink", _batch())
        participant.pre_commit()
    return peak_mib() - before_mib


def _batch() -> pa.RecordBatch:
    """Return a new record batch, as Spark passes it. No source data stays in memory beside it."""
    ends = np.arange(A_BATCH + 1, dtype=np.int32) * RECORD_BYTES
    data = np.random.default_rng(0).integers(0, 256, A_BATCH * RECORD_BYTES, np.uint8)
    return pa.record_batch(
        {"value": pa.Array.from_buffers(pa.binary(), A_BATCH, [None, pa.py_buffer(ends), pa.py_buffer(data)])}
    )
