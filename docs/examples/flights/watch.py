"""Watchers that read while drivers are killed: a committed reader of the topic, and a reader of the Parquet folder.

They check that no record is visible before its batch is decided, according to the commit log, which they read after the
record. The topic is read with kafka-python and the files with DuckDB, neither of which wrote them.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import orjson
from flights import checksum
from kafka import KafkaConsumer, TopicPartition

from twopc.log.commit_log import read_tail
from twopc.log.store import open_store

POLL_S = 0.05


class Watcher:
    """Collects the visible records by key, and counts those that were visible too early."""

    def __init__(self, log: str | None) -> None:
        self.seen: Counter[tuple[int, int]] = Counter()  # (id, checksum) → how often
        self.records = 0
        self.early = 0
        self._log = open_store(log) if log else None

    def poll(self) -> None:
        """Read the records that are visible now."""
        raise NotImplementedError

    def add(self, record: dict[str, object]) -> None:
        """Count one visible record."""
        self.seen[int(str(record["id"])), checksum(record)] += 1
        self.records += 1

    def check_decided(self, newest_batch: int, records: int) -> None:
        """Count ``records`` as too early unless ``newest_batch`` is decided. Call this after its records were seen."""
        assert self._log is not None
        tail = read_tail(self._log)
        if tail is None or tail[1].decided is None or tail[1].decided < newest_batch:
            self.early += records


class TopicWatcher(Watcher):
    """Reads all committed records of a topic."""

    def __init__(self, servers: str, topic: str, log: str | None) -> None:
        super().__init__(log)
        self._consumer = KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed")
        numbers = sorted(self._consumer.partitions_for_topic(topic))
        self._partitions = [TopicPartition(topic, number) for number in numbers]
        self._consumer.assign(self._partitions)
        self._consumer.seek_to_beginning(*self._partitions)

    def poll(self) -> None:
        """Read some of the records that are visible now."""
        values = [
            orjson.loads(record.value)
            for records in self._consumer.poll(timeout_ms=int(POLL_S * 1000), max_records=5000).values()
            for record in records
        ]
        for value in values:
            self.add(value)
        if values and self._log:
            self.check_decided(max(value["batch"] for value in values), len(values))

    def length(self) -> int:
        """Return up to which offsets a committed reader could read now, summed over the partitions."""
        return sum(self._consumer.end_offsets(self._partitions).values())

    def read_to_end(self) -> None:
        """Read everything that a committed reader sees now."""
        ends = self._consumer.end_offsets(self._partitions)
        while any(self._consumer.position(partition) < ends[partition] for partition in self._partitions):
            self.poll()
        self._consumer.close()


class FolderWatcher(Watcher):
    """Lists a folder like any reader, and reads its files at the end."""

    def __init__(self, folder: Path, log: str) -> None:
        super().__init__(log)
        self._folder = folder
        self._files: set[str] = set()

    def poll(self) -> None:
        """Look for new files. A file's name contains its batch id."""
        new = {path.name for path in self._folder.glob("**/*.parquet")} - self._files
        if new:
            self._files |= new
            self.check_decided(max(int(name.split("-")[1]) for name in new), len(new))

    def read_to_end(self) -> None:
        """Read all files of the folder."""
        self.poll()
        rows = duckdb.connect().execute("SELECT * FROM read_parquet(?)", [f"{self._folder}/**/*.parquet"])
        names = [column[0] for column in rows.description]
        while some := rows.fetchmany(10_000):
            for row in some:
                self.add(dict(zip(names, row, strict=False)))


@contextmanager
def watching(watchers: Sequence[Watcher]) -> Iterator[None]:
    """Poll every watcher in its own thread until the block ends."""
    stop = threading.Event()

    def watch(watcher: Watcher) -> None:
        if sys.platform == "linux":  # threads have their own priorities there: give way to the drivers
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while not stop.wait(POLL_S):
            watcher.poll()

    threads = [threading.Thread(target=watch, args=(watcher,), daemon=True) for watcher in watchers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
