"""Parquet files of one task: which record goes into which, and what the log will have of each."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from twopc_delta.columns import Fit
from twopc_delta.notes import AddedFile
from twopc_delta.partitions import folder_of, split
from twopc_delta.statistics import FloatBounds, indexed, statistics, with_bounds
from twopc_delta.storage import Storage

ROW_GROUP_BYTES = 32 * 1024 * 1024
"""Bytes of Arrow that make one row group. Spark's batches of 10 000 rows are too small for a row group each."""

HELD_BYTES = 64 * 1024 * 1024
"""What all open files may hold together."""

OPEN_FILES = 32
"""How many files are open at a time. The one that was written to longest ago is finished to make room."""

Partition = tuple[str | None, ...]
"""The values of a partition, in the order of the table's partition columns."""


@dataclass
class _OpenFile:
    path: str
    partition_values: Mapping[str, str | None]
    file: IO[bytes]
    writer: pq.ParquetWriter
    footers: list[pq.FileMetaData]
    floats: dict[str, FloatBounds] = field(default_factory=dict)
    held: list[pa.RecordBatch] = field(default_factory=list)
    held_bytes: int = 0


class TaskFiles:
    """The files of one transaction.

    Args:
        storage: the table's folder.
        fit: how the records go into the table.
        name: a part of every file's name; the same in all files of the transaction.
        target_bytes: the size at which a file is finished.
        begins: called with the paths of all files before each new one is created.
    """

    def __init__(
        self, storage: Storage, fit: Fit, name: str, target_bytes: int, begins: Callable[[list[str]], object]
    ) -> None:
        self._storage = storage
        self._fit = fit
        self._name = name
        self._target_bytes = target_bytes
        self._begins = begins
        self._schema = pa.schema([column for column in fit.schema if column.name not in fit.partition_by])
        self._indexed = indexed(fit.view.schema, fit.view.configuration)
        self._open: dict[Partition, _OpenFile] = {}  # the one that was written to longest ago first
        self.paths: list[str] = []
        self.finished: list[AddedFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Write each record to a file of its partition."""
        for values, records in split(self._fit.convert(batch), self._fit.partition_by):
            self._write(values, records)
        while sum(each.held_bytes for each in self._open.values()) > HELD_BYTES:
            self._flush(max(self._open.values(), key=lambda each: each.held_bytes))

    def _write(self, values: Mapping[str, str | None], records: pa.RecordBatch) -> None:
        partition = tuple(values.values())
        each = self._open.pop(partition, None) or self._create(values, records.schema)
        self._open[partition] = each
        each.held.append(records)
        each.held_bytes += records.nbytes
        for column in records.schema:
            if types.is_floating(column.type):
                each.floats.setdefault(column.name, FloatBounds()).add(records.column(column.name))
        if each.held_bytes >= ROW_GROUP_BYTES or each.held_bytes >= self._target_bytes:
            self._flush(each)
        if each.file.tell() >= self._target_bytes:
            self._finish(partition)

    def _create(self, values: Mapping[str, str | None], schema: pa.Schema) -> _OpenFile:
        if len(self._open) >= OPEN_FILES:
            self._finish(next(iter(self._open)))
        # First what the files of one batch have in common: the driver finds them by one listing of names that begin so.
        # A commit log that is an old copy gives out the names of transactions again, whose files the table has.
        name = f"part-{self._name}-{len(self.paths):05d}-{secrets.token_hex(8)}.snappy.parquet"
        path = "/".join([*(folder_of(column, value) for column, value in values.items()), name])
        self.paths.append(path)
        self._begins(self.paths)
        file = self._storage.create(path)
        footers: list[pq.FileMetaData] = []
        writer = pq.ParquetWriter(
            file,
            schema,
            compression="snappy",
            store_schema=False,
            write_statistics=with_bounds(schema),
            metadata_collector=footers,
        )
        return _OpenFile(path, values, file, writer, footers)

    def _flush(self, each: _OpenFile) -> None:
        if each.held:
            each.writer.write_table(pa.Table.from_batches(each.held))
            each.held.clear()
            each.held_bytes = 0

    def _finish(self, partition: Partition) -> None:
        each = self._open[partition]
        self._flush(each)
        each.writer.close()
        size_bytes = each.file.tell()
        self._storage.close(each.file, each.path)
        del self._open[partition]
        stats = statistics(each.footers[0], self._schema, self._indexed, each.floats)
        now_ms = int(time.time() * 1000)  # for readers alone; nothing here compares it
        self.finished.append(AddedFile(each.path, size_bytes, dict(each.partition_values), now_ms, stats))

    def finish(self) -> list[AddedFile]:
        """Make every file durable, and return all of them."""
        for partition in list(self._open):
            self._finish(partition)
        return self.finished

    def discard(self) -> None:
        """Close what is open, and remove every file."""
        for each in self._open.values():
            with contextlib.suppress(Exception):  # whatever it is, the file goes away
                each.writer.close()
            with contextlib.suppress(Exception):
                each.file.close()
        self._open.clear()
        for path in self.paths:
            self._storage.remove(path)
