"""Parquet files, through pyarrow's writer."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

COMPRESSIONS = ("none", "snappy", "gzip", "zstd", "lz4", "brotli")

ROW_GROUP_BYTES = 32 * 1024 * 1024
"""Arrow bytes that make one row group. Spark's batches of 10 000 rows are too few for one each: readers
would pay for the metadata, and columns would hardly compress. It also bounds what a task holds in memory."""


@dataclass(frozen=True, slots=True)
class Parquet:
    """Parquet, with one of ``COMPRESSIONS`` for every column."""

    compression: str = "snappy"

    @property
    def extension(self) -> str:
        """What every reader of Parquet looks for."""
        return ".parquet"

    def check_type(self, schema: pa.Schema) -> None:
        """Asks pyarrow itself, by writing no record to nowhere: its releases know different types."""
        with pq.ParquetWriter(pa.BufferOutputStream(), schema, compression=self.compression) as writer:
            writer.write_table(schema.empty_table())

    def open(self, file: IO[bytes], schema: pa.Schema) -> ParquetRecords:
        """A writer of records of ``schema`` into ``file``."""
        return ParquetRecords(file, schema, self.compression)


class ParquetRecords:
    """Collects record batches to row groups of ``ROW_GROUP_BYTES`` and writes each as soon as it is full."""

    def __init__(self, file: IO[bytes], schema: pa.Schema, compression: str) -> None:
        self._schema = schema
        self._writer: Any = pq.ParquetWriter(file, schema, compression=compression)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Hold ``batch`` until its row group is full."""
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def finish(self) -> None:
        """Write the last row group and the footer."""
        if self._held:
            self._write_row_group()
        self._writer.close()

    def discard(self) -> None:
        """Let go of what is held; no error of the file is raised."""
        self._held.clear()
        # Left open, the writer would write its footer when it is collected, into a file that is closed by
        # then.
        with contextlib.suppress(Exception):
            self._writer.close()

    def _write_row_group(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._held, self._schema))
        self._held.clear()
        self._held_bytes = 0
