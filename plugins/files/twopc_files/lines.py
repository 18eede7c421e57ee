"""The writer that all formats of text lines share: it holds no records, and may compress the whole file."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from twopc_files.formats import Format, Lent, Output

EXTENSIONS = {"none": "", "gzip": ".gz", "zstd": ".zst"}
"""Compression → the ending by which Spark, DuckDB and pyarrow recognize it."""

Encode: TypeAlias = "Callable[[pa.RecordBatch], Iterable[Any]]"
"""Turns a record batch into whole lines, as bytes or buffers."""


@dataclass(frozen=True, slots=True)
class LinesFormat(Format):
    """A format of text lines.

    Attributes:
        compression: one of ``EXTENSIONS``.
    """

    compression: str = "none"

    @property
    def extension(self) -> str:
        """The ending that Spark and DuckDB use, too, with that of the compression."""
        return f".{'txt' if self.name == 'text' else self.name}{EXTENSIONS[self.compression]}"

    @abstractmethod
    def encoder(self, schema: pa.Schema) -> Encode:
        """Return what encodes the records of one file."""

    def open(self, file: Output, schema: pa.Schema) -> Lines:
        return Lines(file, self.compression, self.encoder(schema))


class Lines:
    """Writes each record batch immediately.

    Args:
        file: the file to write to.
        compression: one of ``EXTENSIONS``.
        encode: turns a record batch into lines.
    """

    held_bytes = kept_bytes = fixed_bytes = 0

    def __init__(self, file: Output, compression: str, encode: Encode) -> None:
        self._encode = encode
        self._lent = Lent(file)
        self._stream: Any = self._lent if compression == "none" else pa.CompressedOutputStream(self._lent, compression)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the lines of ``batch``."""
        for lines in self._encode(batch):
            self._stream.write(lines)
            self._lent.check()

    def flush(self) -> None:
        """Do nothing: no records are held."""

    def finish(self) -> None:
        """End the compressed stream, if there is one."""
        self._stream.close()
        self._lent.check()

    def discard(self) -> None:
        """End the stream without writing to the file."""
        self._lent.end()
        with contextlib.suppress(Exception):
            self._stream.close()
