"""What the formats that are lines of text have in common: nothing is held, and the whole file may be compressed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import pyarrow as pa

from twopc_files.formats import Lent, Output

EXTENSIONS = {"none": "", "gzip": ".gz", "zstd": ".zst"}
"""By which compression a file is known to Spark, DuckDB and pyarrow, at the end of its name."""

Encode: TypeAlias = "Callable[[pa.RecordBatch], Iterable[Any]]"
"""Makes whole lines of a record batch, as bytes or buffers."""


class Lines:
    """Writes each record batch at once.

    Args:
        file: takes the lines.
        compression: one of ``EXTENSIONS``.
        encode: makes them.
    """

    held_bytes = 0
    encoder_bytes = 0

    def __init__(self, file: Output, compression: str, encode: Encode) -> None:
        self._encode = encode
        self._lent = Lent(file)
        self._stream: Any = self._lent if compression == "none" else pa.CompressedOutputStream(self._lent, compression)

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises ValueError for a record that is no line."""
        for lines in self._encode(batch):
            self._stream.write(lines)
            self._lent.check()

    def flush(self) -> None:
        """Does nothing: nothing is held."""

    def finish(self) -> None:
        """End the compressed stream, where it is one."""
        self._stream.close()
        self._lent.check()

    def discard(self) -> None:
        """End it without a word to the file."""
        self._lent.end()
        with contextlib.suppress(Exception):
            self._stream.close()
