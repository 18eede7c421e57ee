"""Writes the Parquet files of one task, and describes each for the log."""

from __future__ import annotations

import contextlib
import functools
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from twopc.open_files import OpenFiles, RowGroups, partition_folder, values_at_once, with_bounds
from twopc.stores.disk import discard
from twopc_delta.columns import Fit
from twopc_delta.notes import AddedFile
from twopc_delta.partitions import Partition, split
from twopc_delta.statistics import FloatBounds, indexed, statistics
from twopc_delta.storage import Storage

ROW_GROUP_BYTES = 32 * 1024 * 1024
"""The target size of a row group, in bytes of Arrow data."""


class _OpenFile(RowGroups):
    """A file that is being written. For its attributes, see ``twopc.open_files.OpenFile``."""

    def __init__(
        self, output: IO[bytes], schema: pa.Schema, target_bytes: int, finished: Callable[[_OpenFile], None]
    ) -> None:
        self.output, self._target_bytes, self._finished = output, target_bytes, finished
        self.footers: list[pq.FileMetaData] = []
        self.floats = {column.name: FloatBounds() for column in schema if types.is_floating(column.type)}
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None
        super().__init__(self._write_group, min(ROW_GROUP_BYTES, target_bytes))

    @property
    def is_full(self) -> bool:
        return self.output.tell() >= self._target_bytes

    def write(self, records: pa.RecordBatch) -> None:
        for name, bounds in self.floats.items():
            bounds.add(records.column(name))
        super().write(records)

    def _write_group(self, table: pa.Table) -> None:
        self._writer = self._writer or pq.ParquetWriter(
            self.output,
            self._schema,
            compression="snappy",
            store_schema=False,
            write_statistics=with_bounds(self._schema),
            write_batch_size=values_at_once(table),
            metadata_collector=self.footers,
        )
        self._writer.write_table(table)

    def finish(self) -> None:
        self.flush()
        self._close()
        self._finished(self)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def discard(self) -> None:
        super().discard()
        for closes in (self._close, functools.partial(discard, self.output)):
            with contextlib.suppress(Exception):  # the file is removed, whatever the error
                closes()


class TaskFiles:
    """The files of one transaction.

    Args:
        storage: the table's folder.
        fit: how records map to the table.
        name: the transaction's name, a part of every file's name.
        target_bytes: the size at which a file is finished.
        announce: called before new files are created, when ``paths`` already includes them.

    Attributes:
        paths: the paths of all files.
        finished: the durable files.
    """

    def __init__(
        self, storage: Storage, fit: Fit, name: str, target_bytes: int, announce: Callable[[], object]
    ) -> None:
        self._storage = storage
        self.fit = fit
        self._name = name
        self._target_bytes = target_bytes
        self._announce = announce
        self._schema = pa.schema([column for column in fit.nullable if column.name not in fit.partition_by])
        self._indexed = indexed(fit.view.schema, fit.view.configuration)
        self._open = OpenFiles(self._create_each, fixed_bytes=_OpenFile.fixed_bytes)
        self.paths: list[str] = []
        self.finished: list[AddedFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Write each record to a file of its partition."""
        self._open.write(split(self.fit.convert(batch), self.fit.partition_by))

    def _create_each(self, partitions: Sequence[Partition]) -> Iterator[_OpenFile]:
        """Create a file for each partition, after announcing all of their paths."""
        created = [dict(zip(self.fit.partition_by, each, strict=True)) for each in partitions]
        paths = [self._new_path(values, number) for number, values in enumerate(created, len(self.paths))]
        self.paths += paths
        self._announce()
        for path, values in zip(paths, created, strict=True):
            finished = functools.partial(self._finished, path, values)
            yield _OpenFile(self._storage.create(path), self._schema, self._target_bytes, finished)

    def _new_path(self, values: Mapping[str, str | None], number: int) -> str:
        # The common prefix lets the driver list the files of a batch in one request. The random suffix prevents
        # collisions if a commit log restored from an old copy reuses the names of transactions.
        name = f"part-{self._name}-{number:05d}-{secrets.token_hex(8)}.snappy.parquet"
        return "/".join([*(partition_folder(column, value) for column, value in values.items()), name])

    def _finished(self, path: str, values: Mapping[str, str | None], file: _OpenFile) -> None:
        size_bytes = file.output.tell()
        file.output.close()
        stats = statistics(file.footers[0], self._schema, self._indexed, file.floats)
        now_ms = int(time.time() * 1000)  # only for readers; twopc does not use it
        self.finished.append(AddedFile(path, size_bytes, values, now_ms, stats))

    def finish(self) -> list[AddedFile]:
        """Make every file durable, and return all of them."""
        self._open.finish()
        return self.finished

    def discard(self) -> None:
        """Close open files, and remove all files."""
        self._open.discard()
        for path in self.paths:
            self._storage.remove(path)
