"""Contestants that run for the whole measurement, each in processes of its own, and one at a time.

In each turn, the source gets the same records for all. Then one contestant after the other is resumed, copies these
records, and is stopped by SIGSTOP. So all are equally warm, a contestant that waits takes no CPU time from the one that
is measured (idle, Spark's queries poll 100 times per second), and none is stopped amid a transaction.

One observer counts committed records in the target. A window begins when the first ``a_batch`` records are there and
ends with the last commit before the input runs short, so it has neither the start nor a partial checkpoint in it.
"""

import contextlib
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.benchmarks.cpu import Processes, descent
from tests.benchmarks.measuring import Turn

POLL_S = 0.05
LONGEST_WINDOW_S = 300
SETTLE_S = 0.3
"""How long a contestant goes on after its last commit, to write its checkpoint."""


class Topics:
    """The committed records of topics."""

    def __init__(self, servers: str, partitions: int) -> None:
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})  # it outlives the broker
        self._partitions = range(partitions)

    def end(self, topic: str) -> int:
        """Return the sum of the offsets at which committed readers end."""
        latest = {
            TopicPartition(topic, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
            for number in self._partitions
        }
        found = self._admin.list_offsets(latest, isolation_level=IsolationLevel.READ_COMMITTED)
        return sum(future.result().offset for future in found.values())

    def clear(self, topic: str) -> None:
        """Delete the records that are there."""
        all_of_it = [TopicPartition(topic, number, -1) for number in self._partitions]
        for future in self._admin.delete_records(all_of_it).values():
            future.result()


@dataclass(frozen=True, slots=True)
class Sample:
    """What was committed at a time, and the CPU seconds until then."""

    at_s: float
    records: int
    used_s: Counter[str]


class Contestant:
    """A program that copies what comes, in processes that are started in the first window.

    Args:
        log: the file that gets what the program prints.
        committed: returns how many records it has committed so far.
        cut_s: how long before its last commit a window ends: some of a checkpoint's interval where the input cuts a
            checkpoint short, and 0 where all batches are whole.
    """

    def __init__(self, command: Sequence[str], log: Path, committed: Callable[[], int], cut_s: float = 0) -> None:
        self._command, self._log, self._committed, self._cut_s = command, log, committed, cut_s
        self._process: subprocess.Popen[bytes] | None = None

    def window(self, broker_pid: int, records: int, a_batch: int) -> Turn:
        """Let it copy ``records``. Raises SystemExit if it ends before, or takes too long."""
        before, samples = self._committed(), list[Sample]()
        process = self._resumed()
        deadline_s = time.monotonic() + LONGEST_WINDOW_S
        start = Sample(time.perf_counter(), 0, Processes(broker_pid, process.pid).used_s())
        processes: Processes | None = None  # as they are from the first sample on, since Spark starts Python again
        while not samples or samples[-1].records < records:
            time.sleep(POLL_S)
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"{self._log.stem} ended or took too long:\n{self._log.read_text()[-3000:]}")
            found, now_s = self._committed() - before, time.perf_counter()
            if found >= a_batch and (not samples or found > samples[-1].records):
                processes = processes or Processes(broker_pid, process.pid)
                samples.append(Sample(now_s, found, processes.used_s()))
        time.sleep(SETTLE_S)
        self._signal(signal.SIGSTOP)
        whole = [each for each in samples if each.at_s <= samples[-1].at_s - self._cut_s] or samples[-1:]
        # A contestant that commits nearly all at once has no other window than from the start.
        begin, end = samples[0] if len(whole) > 1 else start, whole[-1]
        copied = end.records - begin.records
        cpu_us = {part: (s - begin.used_s[part]) / copied * 1e6 for part, s in end.used_s.items()}
        return Turn(copied / (end.at_s - begin.at_s), cpu_us)

    def end(self) -> None:
        """Kill its processes."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def _resumed(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        else:
            self._signal(signal.SIGCONT)
        return self._process

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in descent(self._process.pid) if self._process else ():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
