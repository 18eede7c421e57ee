"""What a sink of partitioned tables upholds, however many partitions the records of a task have (invariant 7)."""

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.sink_place import ROUND, SinkPlace
from twopc import Committable, Participant, open_files

PARTITIONS = 33
"""One more than a task has files open at a time."""

MIB = 2**20


class ManyPartitions:
    """Its tests need the fixture ``parted``: the place of a table below ``tmp_path`` with the columns ``value`` and
    ``payload``, partitioned by the first. Its ``values`` are what a reader sees."""

    @pytest.fixture(autouse=True)
    def no_sync(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It would take most of the time."""
        monkeypatch.setattr(os, "fsync", lambda _: None)

    def test_unsorted_records_need_hardly_more_files_than_sorted_ones(
        self, parted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(open_files, "HELD_BYTES", 40_000)
        unsorted = [f"{number % PARTITIONS:02d}" for number in range(60 * PARTITIONS)]
        random.Random(1).shuffle(unsorted)  # noqa: S311  # no secret
        counts, votes = [0], list[Committable]()
        for partition, values in enumerate((sorted(unsorted), unsorted)):
            votes.append(written(parted, values, payload_bytes=1000, at_once=400, partition=partition))
            counts.append(sum("_delta_log" not in path.parts for path in tmp_path.rglob("*.parquet")))
        of_sorted, of_unsorted = counts[1] - counts[0], counts[2] - counts[1]
        assert of_sorted == PARTITIONS
        assert of_unsorted <= 1.2 * of_sorted
        sink = parted.sink()
        sink.commit_batch(0, sink.seal(votes, 0.0))
        assert parted.values() == sorted([*unsorted, *unsorted])

    def test_a_task_has_few_files_open_and_closes_all(self, parted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        counts = list[int]()
        write = open_files.RowGroups.flush

        def counting(file: open_files.RowGroups) -> None:
            write(file)
            counts.append(parquet_files_open())

        monkeypatch.setattr(open_files.RowGroups, "flush", counting)
        written(parted, [f"{number:03d}" for number in range(2 * PARTITIONS)], at_once=PARTITIONS)
        assert len(counts) >= 2 * PARTITIONS
        assert max(counts) <= open_files.MOST_FILES
        assert parquet_files_open() == 0

    @pytest.mark.parametrize("partitions", [8, pytest.param(2 * PARTITIONS, marks=pytest.mark.long)])
    def test_open_files_and_waiting_records_take_no_more_memory_than_their_bounds(
        self, parted: Any, partitions: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of 32 MiB that are written: what is held, what waits, the last row group of each file both plain and
        compressed, and what is at work."""
        monkeypatch.setattr(open_files, "HELD_BYTES", 2 * MIB)
        monkeypatch.setattr(open_files, "KEPT_BYTES", 2 * MIB)
        before, taken = pa.total_allocated_bytes(), list[int]()
        write = open_files.OpenFiles.write

        def measuring(files: open_files.OpenFiles[Any, Any], parts: Any) -> None:
            write(files, parts)
            taken.append(pa.total_allocated_bytes() - before)

        monkeypatch.setattr(open_files.OpenFiles, "write", measuring)
        written(parted, [f"{number % partitions:02d}" for number in range(32 * 1024)], payload_bytes=1024, at_once=1024)
        assert max(taken) < 12 * MIB


def written(
    place: SinkPlace[Any], values: list[str], payload_bytes: int = 1, at_once: int = 1000, partition: int = 0
) -> Committable:
    """What a task has pre-committed that gets so many records at once."""
    with Participant({"orders": place.sink()}, ROUND, partition=partition) as participant:
        for start in range(0, len(values), at_once):
            part = values[start : start + at_once]
            payload = pa.array([os.urandom(payload_bytes) for _ in part])
            participant.write("orders", pa.record_batch({"value": pa.array(part), "payload": payload}))
        return participant.pre_commit()["orders"]


def parquet_files_open() -> int:
    """How many Parquet files this process has open."""
    return sum(os.path.realpath(each).endswith(".parquet") for each in Path("/proc/self/fd").iterdir())
