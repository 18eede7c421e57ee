"""A task's memory and its open files are bounded, however many partitions its records have (invariant 7)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.delta.conftest import Place
from tests.support.sink_place import ROUND, from_log
from twopc import Participant
from twopc_delta import writer
from twopc_delta.storage import Storage

MIB = 2**20
PAYLOAD = pa.schema({"value": pa.string(), "payload": pa.binary()})


@pytest.fixture
def parted(tmp_path: Path) -> Place:
    place = Place(str(tmp_path / "parted"))
    place.create(PAYLOAD, ["value"])
    return place


def open_files() -> int:
    """How many Parquet files this process has open."""
    return sum(os.path.realpath(each).endswith(".parquet") for each in Path("/proc/self/fd").iterdir())


def records(values: list[str], bytes_each: int = 1) -> pa.RecordBatch:
    return pa.record_batch({"value": values, "payload": [os.urandom(bytes_each) for _ in values]})


@pytest.mark.long
def test_a_task_with_many_partitions_has_few_files_open(parted: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    create = Storage.create

    def counting(storage: Storage, path: str) -> Any:
        file = create(storage, path)
        counts.append(open_files())
        return file

    monkeypatch.setattr(Storage, "create", counting)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    values = [f"{number:03d}" for number in range(150)]
    with Participant({"orders": parted.sink()}, ROUND, partition=0) as participant:
        for start in (*range(0, 150, 50), 0):
            participant.write("orders", records(values[start : start + 50]))
        vote = participant.pre_commit()["orders"]
    assert len(counts) == 200
    assert max(counts) <= writer.OPEN_FILES
    assert open_files() == 0
    parted.sink().commit_batch(0, [from_log(each) for each in parted.sink().seal([vote], 0.0)])
    assert parted.values() == sorted([*values, *values[:50]])


def test_all_open_files_together_hold_no_more_than_the_limit(parted: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "HELD_BYTES", 4 * MIB)
    before, held = pa.total_allocated_bytes(), 0
    with Participant({"orders": parted.sink()}, ROUND, partition=0) as participant:
        for number in range(64):
            participant.write("orders", records([str(number % 8)] * 1024, 1024))  # far from a row group each
            held = max(held, pa.total_allocated_bytes() - before)
        participant.pre_commit()
    assert held < 12 * MIB  # of 64 MiB that were written
