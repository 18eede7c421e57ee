"""The writer that all formats of text lines share: it holds no records, and may compress the whole file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import pyarrow as pa

from twopc_files.formats import Lent, Output

EXTENSIONS = {"none": "", "gzip": ".gz", "zstd": ".zst"}
"""Compression → the ending by which Spark, DuckDB and pyarrow recognize it."""

Encode: TypeAlias = "Callable[[pa.RecordBatch], Iterable[Any]]"
"""Turns a record batch into whole lines, as bytes or buffers."""


class Lines:
    """Writes each record batch immediately.

    Args:
        file: the file to write to.
        compression: one of ``EXTENSIONS``.
        encode: turns a record batch into lines.
    """

    held_bytes = kept_bytes = encoder_bytes = 0

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
