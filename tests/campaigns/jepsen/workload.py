"""What a query writes: batches whose records follow from their numbers, and the history of what was written.

Each record names its batch, its task, its number within the task, and the attempt that wrote it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import twopc
from tests.campaigns.model.recording import record
from tests.campaigns.tables.table import LakeTable
from tests.support.spark_checkpoint import Loss

TASKS = 3
PROGRESS = "progress"
"""The sink of the consumer group's offsets."""

FILLER = "x" * 60
SCHEMA = pa.schema({"key": pa.string(), "value": pa.string()})


@dataclass(frozen=True)
class Settings:
    """One query's settings, passed as JSON in the first argument of its processes.

    Attributes:
        kafka: options of the Kafka sink.
        makes_copies: whether there are replay copies, for a sink with a short timeout.
        records: the most records that a task writes.
        pace_s: the longest pause of a task between two record batches.
        defect: the planted defect; see ``defects.py``.
        has_lake: whether the query also writes to an Iceberg table and a Delta table.
        has_progress: whether it also commits offsets of a source to a consumer group.
    """

    folder: str
    topic: str
    kafka: Mapping[str, Any]
    makes_copies: bool
    conninfo: str
    records: int
    pace_s: float
    defect: str
    has_lake: bool = False
    has_progress: bool = False

    def sinks(self) -> dict[str, twopc.TwoPhaseCommitSink[Any]]:
        return {
            "kafka": twopc.create_sink("kafka", {**self.kafka, "topic": self.topic}),
            "files": twopc.create_sink("files", {"path": f"{self.folder}/files"}),
            "postgres": twopc.create_sink("postgres", {"conninfo": self.conninfo, "table": self.table}),
            **{name: table.sink() for name, table in self.lake().items()},
            **self._progress(),
        }

    def _progress(self) -> dict[str, twopc.TwoPhaseCommitSink[Any]]:
        if not self.has_progress:
            return {}
        options = {name: value for name, value in self.kafka.items() if name != "writer"}
        return {PROGRESS: twopc.create_sink("kafka-offsets", {**options, "group.id": self.group})}

    @property
    def group(self) -> str:
        return f"{self.topic}-progress"

    @property
    def source(self) -> str:
        """The topic of the group's offsets. It has no records."""
        return f"{self.topic}-source"

    def lake(self) -> dict[str, LakeTable]:
        """Return the lake tables, by the names of their sinks."""
        if not self.has_lake:
            return {}
        from tests.campaigns.tables.lake import tables_in

        return tables_in(Path(self.folder), "jepsen.records")

    @property
    def table(self) -> str:
        return self.topic.replace("-", "_")

    @property
    def stop(self) -> Path:
        """The file whose existence ends the query after a batch."""
        return Path(self.folder) / "stop"

    @property
    def steps(self) -> Path:
        """The file of what the query does, which is beside its folder, as the folder's disk may be full."""
        return Path(f"{self.folder}.steps.jsonl")

    def worker(self, host: str) -> str:
        """Return the socket where the worker of a host accepts tasks."""
        return f"{self.folder}/{host}.socket"

    def history(self) -> History:
        return History(Path(self.folder))

    def checkpoint(self) -> LoopCheckpoint:
        return LoopCheckpoint(Path(self.folder))


def begun() -> Settings:
    """Read the settings of this process, which is a driver or a worker. Have it record what it does, and write what its
    threads do into its log on a signal."""
    settings = Settings(**json.loads(sys.argv[1]))
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(format="%(asctime)s %(process)d %(name)s %(levelname)s %(message)s")
    record(settings.steps)
    return settings


class Record(NamedTuple):
    """One record, without its filler."""

    batch: int
    task: int
    number: int
    attempt: str

    @classmethod
    def parse(cls, value: str) -> Record:
        batch, task, number, attempt, _ = value.split(":")
        return cls(int(batch), int(task), int(number), attempt)

    @property
    def value(self) -> str:
        """The record as it is written."""
        return f"{self.batch}:{self.task}:{self.number}:{self.attempt}:{FILLER}"


def size(batch: int, task: int, most: int) -> int:
    """Return how many records a task writes: different numbers, none of them 0."""
    return 1 + (most // 3 + batch * 131 + task * 37) % most


def record_batches(batch: int, task: int, attempt: str, most: int) -> Iterator[pa.RecordBatch]:
    """Yield the records of one attempt, in one to four record batches."""
    total = size(batch, task, most)
    step = -(-total // (1 + (batch + task) % 4))
    for start in range(0, total, step):
        numbers = range(start, min(total, start + step))
        values = [Record(batch, task, number, attempt).value for number in numbers]
        yield pa.record_batch({"key": [str((batch + number) % 97) for number in numbers], "value": values})


def new_attempt() -> str:
    return uuid.uuid4().hex[:12]


class Votes(NamedTuple):
    """What one run of a batch may make visible: the successful attempts, by task, and when the last one had voted."""

    batch: int
    attempts: tuple[str, ...]
    at: float


class History:
    """Files in a query's folder. Each line is one write, so a kill leaves whole lines.

    Times are those of the system's monotonic clock, which all processes share.
    """

    def __init__(self, folder: Path) -> None:
        self._votes, self._done = folder / "votes.jsonl", folder / "done"
        self._recognized = folder / "recognized"

    def voted(self, batch: int, attempts: Sequence[str]) -> None:
        """Record the attempts that a coordinator may decide from now on."""
        _append(self._votes, json.dumps([batch, list(attempts), time.monotonic()]))

    def votes(self) -> list[Votes]:
        lines = self._votes.read_text(encoding="utf-8").splitlines() if self._votes.exists() else []
        return [Votes(batch, tuple(attempts), at) for batch, attempts, at in map(json.loads, lines)]

    def done(self, batch: int) -> None:
        """Record that a batch was acknowledged."""
        _append(self._done, str(batch))

    def next_batch(self) -> int:
        """Return the number of acknowledged batches. A driver that wakes up late may acknowledge an old one last."""
        return max(_newest_numbers(self._done), default=-1) + 1

    def recognized(self, batch: int) -> None:
        """Record that a batch came again and was not written, as the log had decided it."""
        _append(self._recognized, str(batch))

    @property
    def recognitions(self) -> int:
        """How many batches were recognized."""
        return self._recognized.read_bytes().count(b"\n") if self._recognized.exists() else 0


class LoopCheckpoint:
    """Where a loop goes on: the last line of a file in the query's folder. The history, which the checker compares, is
    in other files, so that a checkpoint that falls back does not change it.

    The next driver begins earlier by what the checkpoint has lost. A driver that still runs does not: otherwise, the
    batch that it ends while the next driver starts would repair the checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._file, self._fallen = folder / "next-batch", folder / "fallen-back"
        self.is_damaged = False
        """Always: the coordinator recognizes what it has decided, so nothing needs a repair."""

        self.lost, self.repairs = Counter[str](), Counter[str]()

    def begin(self) -> int:
        """Return the batch that a driver begins with. What the checkpoint has lost counts for one driver."""
        lost = 0
        taken = self._fallen.with_name(f"{self._fallen.name}-{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            self._fallen.rename(taken)
            lost = int(taken.read_text(encoding="utf-8"))
        return max(0, self._next_batch() - lost)

    def _next_batch(self) -> int:
        numbers = _newest_numbers(self._file)
        return numbers[-1] if numbers else 0

    def advance(self, next_batch: int) -> None:
        """Record the batch that the next driver begins with."""
        _append(self._file, str(next_batch))

    def lose(self, loss: Loss) -> bool:
        """Fall back by one batch or two. Return whether there were as many."""
        batches = 2 if loss is Loss.TWO_BATCHES else 1
        if self._next_batch() < batches:
            return False
        aside = self._fallen.with_name(f".{self._fallen.name}")
        aside.write_text(str(batches), encoding="utf-8")
        aside.replace(self._fallen)
        self.lost[loss.value] += 1
        return True

    def repair(self) -> None:
        """Do nothing."""


def _newest_numbers(path: Path) -> list[int]:
    """Return the numbers on the last lines of a file, oldest first. A line that is being written does not count."""
    if not path.exists():
        return []
    with path.open("rb") as lines:
        lines.seek(max(0, lines.seek(0, os.SEEK_END) - 1000))
        whole = b"\n" + lines.read()
    return [int(line) for line in whole.split(b"\n")[2 if len(whole) > 1000 else 1 : -1]]


def _append(path: Path, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)
