"""The files sink compared with Spark's Parquet sink on the same data, and phase two of many files by itself."""

from __future__ import annotations

import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds

import twopc
from tests.benchmarks.appending import append_ratios
from tests.benchmarks.measuring import Row
from tests.support.spark_home import set_java_and_python
from twopc import Coordinator, Participant, Round, Vote
from twopc.events import Event, PhaseEntered
from twopc.phases import Phase

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES = (1, 100, 1000)


def run(quick: bool) -> list[Row]:
    """Return the throughput as a ratio, and the milliseconds of phase two."""
    with tempfile.TemporaryDirectory() as folder:
        return [_throughput(Path(folder), quick), *(_phase_two(Path(folder), files, quick) for files in FILES)]


def _throughput(folder: Path, quick: bool) -> Row:
    set_java_and_python()
    from pyspark.sql import SparkSession

    from twopc.spark import foreach_batch

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    write = foreach_batch(twopc.create_sink("files", {"path": str(folder / "ours")}), log=f"{folder}/log")
    theirs = folder / "theirs"
    ratios, records = append_ratios(spark, folder, write, lambda batch: _spark_writes(batch, theirs), quick)
    spark.stop()
    for name in ("ours", "theirs"):
        assert ds.dataset(folder / name).count_rows() == records, f"the output of {name} is not complete"
    return Row("throughput of the Parquet sink, over Spark's own", "ratio", tuple(ratios), "parquet_vs_spark")


def _spark_writes(frame: DataFrame, folder: Path) -> None:
    frame.write.mode("append").parquet(str(folder))


class _Clock:
    """Records when each phase was entered."""

    def __init__(self) -> None:
        self.at: dict[Phase, float] = {}

    @twopc.hookimpl
    def twopc_event(self, event: Event) -> None:
        if isinstance(event, PhaseEntered):
            self.at[event.phase] = time.perf_counter()


def _phase_two(folder: Path, files: int, quick: bool) -> Row:
    """Measure from the decision to the last rename and its sync, on a local disk."""
    sink = twopc.create_sink("files", {"path": f"{folder}/{uuid.uuid4().hex}"})
    coordinator = Coordinator({"files": sink}, f"{folder}/{uuid.uuid4().hex}", owner="benchmark")
    clock = _Clock()
    twopc.register_observer(clock)
    rows = pa.record_batch({"value": ["a"]})

    def phase_one(round: Round) -> list[Vote]:
        votes = []
        for partition in range(files):
            with Participant({"files": sink}, round, partition=partition) as participant:
                participant.write("files", rows)
                votes.append(participant.pre_commit())
        return votes

    took_ms = []
    for batch_id in range(3 if quick else 10):
        coordinator.run(batch_id, phase_one)
        took_ms.append((clock.at[Phase.SWEEPING] - clock.at[Phase.COMMITTING]) * 1000)
    coordinator.close()
    twopc.unregister_observer(clock)
    return Row(f"phase two of {files} files on a disk", "ms", tuple(took_ms))
