"""Lines of text: one column, one line a record, in UTF-8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from twopc_files.compressed import EXTENSIONS, compressed
from twopc_files.formats import Output


@dataclass(frozen=True, slots=True)
class Text:
    """Text. ``compression`` is one of ``compressed.EXTENSIONS``."""

    compression: str = "none"

    @property
    def extension(self) -> str:
        """What Spark calls its text files, too."""
        return ".txt" + EXTENSIONS[self.compression]

    def check_type(self, schema: pa.Schema) -> None:
        """Raises TypeError but for one column of strings."""
        if len(schema) != 1:
            raise TypeError("a line of text is one column")
        if not (types.is_string(schema[0].type) or types.is_large_string(schema[0].type)):
            raise TypeError("a line of text is a string")

    def open(self, file: Output, schema: pa.Schema) -> TextRecords:  # noqa: ARG002  # one schema is like the other
        """A writer of lines into ``file``."""
        return TextRecords(compressed(file, self.compression))


class TextRecords:
    """Writes each record batch at once and holds nothing back."""

    held_bytes = 0

    def __init__(self, lines: Any) -> None:
        self._lines = lines

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises ValueError for a record that is null, or more than one line: it would be read as another one."""
        if batch.num_rows == 0:
            return
        column = batch.column(0)
        if column.null_count:
            raise ValueError(f"column {batch.schema.names[0]!r} has a null, and a line of text can't be one")
        # Hadoop's reader, and so Spark, ends a line at either.
        if pc.any(pc.match_substring_regex(column, "[\r\n]")).as_py():
            raise ValueError(f"column {batch.schema.names[0]!r} has a line break in a record, which would make it two")
        offsets = pa.array([0, len(column)], pa.int64())
        column = pa.LargeListArray.from_arrays(offsets, column.cast(pa.large_string()))
        lines = pc.binary_join(column, pa.scalar("\n", pa.large_string()))
        self._lines.write(lines[0].as_buffer())
        self._lines.write(b"\n")

    def flush(self) -> None:
        """Nothing is held."""

    def finish(self) -> None:
        """Ends the compressed stream, where it is one."""
        self._lines.close()

    def discard(self) -> None:
        """Nothing is held."""
