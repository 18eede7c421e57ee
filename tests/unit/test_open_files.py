"""The files that a task writes at a time: how many there are, and what they may take."""

import io
import random
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from twopc import open_files
from twopc.open_files import OpenFiles, RowGroups, split_by

PLACES = 33
"""One more than files are open at a time."""


class Memory:
    """A file of row groups in memory."""

    fixed_bytes, room = RowGroups.fixed_bytes, RowGroups.room
    is_full = False

    def __init__(self, place: int, row_group_bytes: int = 1 << 20) -> None:
        self.place = place
        self.row_groups: list[pa.Table] = []
        self.is_finished = False
        self._groups = RowGroups(self.row_groups.append, row_group_bytes)
        self.write, self.flush, self.discard = self._groups.write, self._groups.flush, self._groups.discard

    @property
    def held_bytes(self) -> int:
        return self._groups.held_bytes

    @property
    def kept_bytes(self) -> int:
        return self._groups.kept_bytes

    def finish(self) -> None:
        self.flush()
        self.is_finished = True

    @property
    def numbers(self) -> list[int]:
        return [number for table in self.row_groups for number in table["n"].to_pylist()]


class Task:
    """What one task writes: files, and each call that has created some."""

    def __init__(self, **of_files: Any) -> None:
        self.files: list[Memory] = []
        self.calls: list[list[int]] = []
        self.open: OpenFiles[int, Memory] = OpenFiles(lambda places: self._create(places, **of_files))

    def _create(self, places: Sequence[int], **of_files: Any) -> list[Memory]:
        made = [Memory(place, **of_files) for place in places]
        self.files += made
        self.calls.append([*places])
        return made

    def write(self, places: Sequence[int], first: int = 0) -> None:
        batch = pa.record_batch({"n": range(first, first + len(places))})
        self.open.write((places[at], part) for at, part in split_by(batch, [pa.array(places)]))

    def finish(self) -> None:
        self.open.finish()
        assert all(file.is_finished for file in self.files)


def places_of(count: int) -> list[int]:
    unsorted = [number % PLACES for number in range(count)]
    random.Random(1).shuffle(unsorted)  # noqa: S311  # no secret
    return unsorted


def written(places: Sequence[int], at_once: int = 1000, **of_files: Any) -> Task:
    task = Task(**of_files)
    for first in range(0, len(places), at_once):
        task.write(places[first : first + at_once], first)
    task.finish()
    return task


def test_records_in_any_order_need_hardly_more_files_than_sorted_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "HELD_BYTES", 4_000_000)
    unsorted = places_of(100_000)
    task, of_sorted = written(unsorted), written(sorted(unsorted))
    assert len(of_sorted.files) == PLACES
    assert len(task.files) <= 1.2 * PLACES
    for file in task.files:
        assert file.numbers == sorted(number for number in file.numbers if unsorted[number] == file.place)
    assert sum(len(file.numbers) for file in task.files) == len(unsorted)


def test_files_are_created_together_so_that_they_can_be_announced_by_one_request() -> None:
    task = written([*range(2 * PLACES)])
    assert [len(call) for call in task.calls] == [1, 31, 32, 2]


def test_two_parts_of_one_place_go_into_one_file() -> None:
    task = Task()
    task.open.write([(0, pa.record_batch({"n": [1]})), (0, pa.record_batch({"n": [2]}))])
    task.finish()
    assert [file.numbers for file in task.files] == [[1, 2]]


def test_what_encoders_keep_of_row_groups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "KEPT_BYTES", 20_000)
    task = Task(row_group_bytes=5_000)
    for first in range(0, 20_000, 1000):
        task.write([number % 8 for number in range(1000)], first)
        assert sum(file.kept_bytes for file in task.files if not file.is_finished) <= 20_000
    task.finish()
    assert sorted(number for file in task.files for number in file.numbers) == [*range(20_000)]


def test_nulls_are_one_value_and_so_is_nan() -> None:
    columns = [pa.array(["a", "b", None, "a", None]), pa.array([1.0, float("nan"), float("nan"), 1.0, float("nan")])]
    found = [(at, part["n"].to_pylist()) for at, part in split_by(pa.record_batch({"n": range(5)}), columns)]
    assert found == [(0, [0, 3]), (1, [1]), (2, [2, 4])]


class Socket:
    """A file that returns new memory for each read, as those by which Spark sends record batches to a task."""

    closed = False

    def __init__(self, sent: bytes) -> None:
        self._sent, self.lent = io.BytesIO(sent), list[weakref.ref[Any]]()

    def read(self, count: int) -> Any:
        lent = np.frombuffer(self._sent.read(count), np.uint8).copy()
        self.lent.append(weakref.ref(lent))
        return lent


@pytest.mark.parametrize("waits", [False, True])
def test_records_that_wait_or_are_held_keep_no_other_columns_in_memory(waits: bool) -> None:
    sent = io.BytesIO()
    batch = pa.record_batch({"n": range(1000), "wide": ["x" * 100] * 1000})
    with pa.ipc.new_stream(sent, batch.schema) as stream:
        for _ in range(3):
            stream.write_batch(batch)
    task, socket = Task(), Socket(sent.getvalue())
    if waits:
        task.write([*range(1, 33)])
    for each in pa.ipc.open_stream(socket):
        task.open.write([(0, each.select(["n"]))])
    del each
    assert not any(lent.nbytes > 10_000 for lent in (each() for each in socket.lent) if lent is not None)
    task.finish()
    assert task.files[-1].numbers == [*range(1000)] * 3
