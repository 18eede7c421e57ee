"""A task's memory does not grow with what it writes, in any format.

``python tests/sinks/files/test_memory.py parquet 2048`` writes 2 GiB and prints the peak.
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
RECORDS = 10_000  # as in Spark's record batches


def batches(size_mib: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """``size_mib`` of Arrow, none of it like the other: encoders have no easy time."""
    written_bytes, number = 0, 0
    while written_bytes < size_mib * MIB:
        random = np.random.default_rng(number)
        letters = random.bytes(RECORDS * 90).translate(LETTERS)
        offsets = pa.py_buffer(np.arange(RECORDS + 1, dtype=np.int32) * 90)
        text = pa.StringArray.from_buffers(RECORDS, offsets, pa.py_buffer(letters))
        day = pa.array(random.integers(19_000, 19_100, RECORDS, dtype=np.int32)).cast(pa.date32())
        batch = pa.record_batch({"text": text, "id": random.integers(0, 2**63, RECORDS), "day": day})
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


def measure(name: str, size_mib: int, *partition_by: str) -> dict[str, float]:
    before = peak_mib()
    made: list[NoFile] = []

    def create(folder: str) -> NoFile:
        made.append(NoFile())
        return made[-1]

    files = Files(parse_format({"format": name}), Layout(partition_by), create)
    for batch in batches(size_mib, ["text"] if name == "text" else None):
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
    run = subprocess.run(
        [sys.executable, __file__, name, str(SIZE_MIB), *partition_by],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    figures = json.loads(run.stdout)
    assert figures["written"] > 100
    assert figures["over"] < BOUND_MIB


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])) + "\n")
