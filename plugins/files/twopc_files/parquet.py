"""Parquet files, written by pyarrow."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from twopc.columns import ADVICE
from twopc.errors import ConfigurationError
from twopc.open_files import RowGroups, values_at_once, with_bounds
from twopc.refusals import KEY_TWICE, NOT_UTF8, TIMES, YEARS, Check, Rule, checker, first_null
from twopc_files.formats import Format, Lent, Output

COMPRESSIONS = ("none", "snappy", "gzip", "zstd", "lz4", "brotli")

_CODECS = {"gzip": "gzip", "zstd": "zstd", "lz4": "lz4_raw", "brotli": "brotli"}
"""Compression that has levels → pyarrow's name for it."""


@dataclass(frozen=True, slots=True)
class Parquet(Format):
    """The Parquet format, with one compression for all columns.

    Attributes:
        compression: one of ``COMPRESSIONS``.
        compression_level: the level, in the codec's own range; None for pyarrow's default.
        row_group_bytes: the size of a row group, in bytes of Arrow. It bounds a task's memory.

    Raises:
        ConfigurationError: the compression does not have this level.
    """

    name = "parquet"
    compression: str = "snappy"
    compression_level: int | None = None
    row_group_bytes: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.compression_level is None:
            return
        if self.compression not in _CODECS:
            raise ConfigurationError(
                f"the option 'compression_level' of the file sink is only for 'compression' ="
                f" {' or '.join(map(repr, _CODECS))}, not {self.compression!r}",
                option="compression_level",
            )
        codec = _CODECS[self.compression]
        least, most = pa.Codec.minimum_compression_level(codec), pa.Codec.maximum_compression_level(codec)
        if not least <= self.compression_level <= most:
            raise ConfigurationError(
                "the option 'compression_level' of the file sink must be a whole number from"
                f" {least} to {most} with 'compression' = {self.compression!r}.",
                option="compression_level",
            )

    def check_type(self, schema: pa.Schema) -> None:
        super(Parquet, self).check_type(schema)
        # Which types are supported depends on pyarrow's version.
        empty = schema.empty_table()
        with self.writer(io.BytesIO(), schema, empty) as writer:
            writer.write_table(empty)

    def checker(self, schema: pa.Schema) -> Check:
        return checker(schema, _RULES)

    def open(self, file: Output, schema: pa.Schema) -> ParquetRecords:
        return ParquetRecords(self, file, schema)

    def writer(self, file: io.IOBase, schema: pa.Schema, first: pa.Table) -> Any:
        """Return pyarrow's writer with these settings, for the row group ``first`` and others like it."""
        return pq.ParquetWriter(
            file,
            schema,
            compression=self.compression,
            compression_level=self.compression_level,
            write_statistics=with_bounds(schema),
            write_batch_size=values_at_once(first),
        )


_RULES = (
    replace(NOT_UTF8, reason=f"{NOT_UTF8.reason} Or write the column as binary."),
    KEY_TWICE,
    YEARS,
    TIMES,
    Rule(
        lambda field: not field.nullable,
        first_null,
        f"it is null, and the schema of the records allows no null there. {ADVICE}",
    ),
)


class ParquetRecords(RowGroups):
    """Collects record batches into row groups of a file."""

    def __init__(self, parquet: Parquet, file: Output, schema: pa.Schema) -> None:
        super().__init__(self._write_row_group, parquet.row_group_bytes)
        self._lent = Lent(file)
        self._create = functools.partial(parquet.writer, self._lent, schema)
        self._writer: Any = None

    def _write_row_group(self, records: pa.Table) -> None:
        self._writer = self._writer or self._create(records)
        self._writer.write_table(records)
        self._lent.check()

    def finish(self) -> None:
        """Write the last row group and the footer."""
        self.flush()
        self._lent.finish(self._writer)

    def discard(self) -> None:
        """Drop the held batches. Errors of the file are not raised."""
        super().discard()
        self._lent.discard(self._writer)
