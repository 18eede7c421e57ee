"""The writer that all formats of text lines share, and the format of plain text. The writer holds no records, and may
compress the whole file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from twopc.columns import ADVICE
from twopc.refusals import NOT_UTF8, Check, Rule, checker, first_null, first_true, is_text
from twopc_files.formats import Format, Lent, Output

EXTENSIONS = {"none": "", "gzip": ".gz", "zstd": ".zst"}
"""Compression → the extension by which Spark, DuckDB and pyarrow recognize it."""

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
        """The extension that Spark and DuckDB expect, followed by the extension of the compression."""
        return f".{'txt' if self.name == 'text' else self.name}{EXTENSIONS[self.compression]}"

    @abstractmethod
    def encoder(self, schema: pa.Schema) -> Encode:
        """Return the function that encodes the records of one file."""

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
        self._lent.finish(self._stream)

    def discard(self) -> None:
        """End the stream without writing to the file."""
        self._lent.discard(self._stream)


# Plain text. ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text(LinesFormat):
    """The text format: one column, one line per record."""

    name = "text"

    def check_type(self, schema: pa.Schema) -> None:
        if len(schema) != 1:
            raise TypeError("text files have exactly one column")
        super(Text, self).check_type(schema)

    def checker(self, schema: pa.Schema) -> Check:
        return checker(schema, _RULES)

    def encoder(self, schema: pa.Schema) -> Encode:  # noqa: ARG002  # there is only one schema
        return _encode


def _encode(batch: pa.RecordBatch) -> Iterator[Any]:
    if batch.num_rows:
        all_of_them = pa.array([0, batch.num_rows], pa.int64())
        lines = pa.LargeListArray.from_arrays(all_of_them, batch.column(0).cast(pa.large_string()))
        yield pc.binary_join(lines, pa.scalar("\n", pa.large_string()))[0].as_buffer()
        yield b"\n"


_RULES = (
    NOT_UTF8,
    Rule(
        lambda _: True,
        first_null,
        "it is null, and a line of text can't be one. Write an empty string for it, or filter such records.",
    ),
    # Hadoop's reader, and therefore Spark, ends a line at either character.
    Rule(
        is_text,
        lambda column: first_true(pc.match_substring_regex(column, "[\r\n]")),
        f"it has a line break, and readers would take it for several records. {ADVICE}",
    ),
    Rule(
        is_text,
        lambda column: first_true(pc.starts_with(column, "\ufeff")),
        f"it begins with U+FEFF, a mark of Unicode that readers drop at the beginning of a file. {ADVICE}",
    ),
)
