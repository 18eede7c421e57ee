"""A task's memory does not grow with what it writes, in any format.

``python tests/sinks/files/test_memory.py parquet 2048 90`` writes 2 GiB of records of 90 bytes and prints the peak.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from twopc_files.file_names import FileHandle
from twopc_files.layout import Files, Layout
from twopc_files.options import parse_format
from twopc_files.stores.store import PendingFile

MIB = 1024 * 1024
SIZE_MIB, BOUND_MIB = 320, 250
LETTERS = bytes(97 + byte % 26 for byte in range(256))
RECORDS, RECORD_BYTES = 10_000, 90  # as in Spark's record batches
LARGE_MIB, LARGE_BOUND_MIB = 128, 200


def batches(size_mib: int, record_bytes: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """``size_mib`` of Arrow, none of it like the other: encoders have no easy time."""
    written_bytes, number, records = 0, 0, min(RECORDS, 32 * MIB // record_bytes)
    while written_bytes < size_mib * MIB:
        random = np.random.default_rng(number)
        letters = random.bytes(records * record_bytes).translate(LETTERS)
        offsets = pa.py_buffer(np.arange(records + 1, dtype=np.int32) * record_bytes)
        text = pa.StringArray.from_buffers(records, offsets, pa.py_buffer(letters))
        day = pa.array(random.integers(19_000, 19_100, records, dtype=np.int32)).cast(pa.date32())
        batch = pa.record_batch({"text": text, "id": random.integers(0, 2**63, records), "day": day})
        yield batch if columns is None else batch.select(columns)
        written_bytes += batch.nbytes
        number += 1


def peak_mib() -> float:
    """The most that this process has had in memory. ``ru_maxrss`` would count the process that started it."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


class NoFile(PendingFile):
    """Takes bytes and keeps none."""

    def __init__(self) -> None:
        self.written_bytes = 0

    def write(self, data: Any) -> int:
        self.written_bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self.written_bytes

    def made_durable(self) -> FileHandle:
        return FileHandle("", "", "")

    def discard(self) -> None:
        """There is nothing."""


def measure(name: str, size_mib: int, record_bytes: int, *partition_by: str) -> dict[str, float]:
    before = peak_mib()
    made: list[NoFile] = []

    def create(folder: str) -> NoFile:
        made.append(NoFile())
        return made[-1]

    files = Files(parse_format({"format": name}), Layout(partition_by), create)
    for batch in batches(size_mib, record_bytes, ["text"] if name == "text" else None):
        files.write(batch)
    files.finish()
    written = sum(file.written_bytes for file in made) / MIB
    return {"before": before, "over": peak_mib() - before, "written": written, "files": len(made)}


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux' /proc")
@pytest.mark.parametrize(
    "arguments",
    [["parquet"], ["json"], ["csv"], ["orc"], ["text"], ["orc", "day"]],
    ids=" by ".join,
)
def test_a_task_that_writes_much_has_little_in_memory(arguments: list[str]) -> None:
    name, *partition_by = arguments
    figures = measured(name, SIZE_MIB, RECORD_BYTES, *partition_by)
    assert figures["written"] > 100
    assert figures["over"] < BOUND_MIB


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux' /proc")
def test_large_records_take_the_memory_of_a_few_row_groups() -> None:
    """Arrow's writer looks at a page's size every 1,024 values, so 32 records of 1 MiB were one page."""
    figures = measured("parquet", LARGE_MIB, MIB)
    assert figures["written"] > LARGE_MIB / 2
    assert figures["over"] < LARGE_BOUND_MIB


def measured(*arguments: object) -> dict[str, float]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    figures: dict[str, float] = json.loads(run.stdout)
    return figures


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])) + "\n")
