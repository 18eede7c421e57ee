"""Watchers: a committed reader of the topic and a reader of the Parquet folder, while drivers are killed.

They check that nothing is visible before its batch is decided: what is seen is compared with the commit log, read
afterwards. The topic is read with kafka-python, the files with DuckDB: neither wrote them.
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
    """What is visible so far: contents by key, and how much of it was visible too early."""

    def __init__(self, log: str | None) -> None:
        self.seen: Counter[tuple[int, int]] = Counter()  # (id, checksum) → how often
        self.records = 0
        self.early = 0
        self._log = open_store(log) if log else None

    def poll(self) -> None:
        """Take in what can be read now."""
        raise NotImplementedError

    def add(self, record: dict[str, object]) -> None:
        """Count one visible record."""
        self.seen[int(str(record["id"])), checksum(record)] += 1
        self.records += 1

    def check_decided(self, newest_batch: int, records: int) -> None:
        """To be called after records of ``newest_batch`` were seen: is it decided?"""
        assert self._log is not None
        tail = read_tail(self._log)
        if tail is None or tail[1].decided is None or tail[1].decided < newest_batch:
            self.early += records


class TopicWatcher(Watcher):
    """Reads a whole topic, committed records only, from a thread of its own."""

    def __init__(self, servers: str, topic: str, log: str | None) -> None:
        super().__init__(log)
        self._consumer = KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed")
        numbers = sorted(self._consumer.partitions_for_topic(topic))
        self._partitions = [TopicPartition(topic, number) for number in numbers]
        self._consumer.assign(self._partitions)
        self._consumer.seek_to_beginning(*self._partitions)

    def poll(self) -> None:
        """Take in what can be read now."""
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
        """How many offsets a committed reader could read by now, without reading them."""
        return sum(self._consumer.end_offsets(self._partitions).values())

    def read_to_end(self) -> None:
        """Take in all that a committed reader sees now."""
        ends = self._consumer.end_offsets(self._partitions)
        while any(self._consumer.position(partition) < ends[partition] for partition in self._partitions):
            self.poll()
        self._consumer.close()


class FolderWatcher(Watcher):
    """Lists a folder as any reader does, and at the end reads its files."""

    def __init__(self, folder: Path, log: str) -> None:
        super().__init__(log)
        self._folder = folder
        self._files: set[str] = set()

    def poll(self) -> None:
        """Look for new files. A file's name starts with its batch."""
        new = {path.name for path in self._folder.glob("**/*.parquet")} - self._files
        if new:
            self._files |= new
            self.check_decided(max(int(name.split("-")[1]) for name in new), len(new))

    def read_to_end(self) -> None:
        """Read every file that is there now."""
        self.poll()
        rows = duckdb.connect().execute("SELECT * FROM read_parquet(?)", [f"{self._folder}/**/*.parquet"])
        names = [column[0] for column in rows.description]
        while some := rows.fetchmany(10_000):
            for row in some:
                self.add(dict(zip(names, row, strict=False)))


@contextmanager
def watching(watchers: Sequence[Watcher]) -> Iterator[None]:
    """Poll every watcher, each in a thread of its own, until the block ends."""
    stop = threading.Event()

    def watch(watcher: Watcher) -> None:
        if sys.platform == "linux":  # where each thread has a priority of its own: give way to what is watched
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
