"""What a format of files must offer, and what all formats ask of a schema."""

from __future__ import annotations

import io
from collections import Counter
from typing import Protocol

import pyarrow as pa

from twopc.errors import SchemaMismatch

COLUMN_BYTES = 700
"""What a column of a record batch takes besides its values, measured with pyarrow 26."""


class Output(Protocol):
    """The file that a format writes to, as far as a format has to know it. Its owner syncs and closes it."""

    def write(self, data: bytes, /) -> object:
        """Take all of ``data``."""


class RecordWriter(Protocol):
    """Encodes the record batches of one file, and never closes the file."""

    @property
    def held_bytes(self) -> int:
        """About how much of what it was given has not reached the file, in bytes of Arrow. Bounded."""

    @property
    def encoder_bytes(self) -> int:
        """About what the encoder takes besides, however little it was given; 0 where that is not much."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Encode ``batch``. Raises ValueError for a record that the format can't hold."""

    def flush(self) -> None:
        """Hold less, if the format can do so in the middle of a file."""

    def finish(self) -> None:
        """Hand everything to the file. What is in it now is complete."""

    def discard(self) -> None:
        """Let go of what is held. The file is not wanted any more, and nothing is raised."""


class Format(Protocol):
    """One format. A value: it travels to the participants with its sink."""

    @property
    def extension(self) -> str:
        """What the names of committed files end with, with the dot."""

    def check_type(self, schema: pa.Schema) -> None:
        """Raises ArrowException or TypeError where the columns of ``schema``, be it only one, can't be written."""

    def open(self, file: Output, schema: pa.Schema) -> RecordWriter:
        """A writer of records of ``schema`` into ``file``."""


def memory_bytes(batch: pa.RecordBatch) -> int:
    """What ``batch`` takes in memory: its values, and the objects around each column, which count where it is short."""
    return int(batch.nbytes + COLUMN_BYTES * batch.num_columns)


class Lent(io.RawIOBase):
    """A file on loan to one of pyarrow's writers.

    Some of them close what they write to, which ends nothing here. No error of the file passes through them:
    most would drop its number, and the one of ORC ends the whole process. ``check`` raises it afterwards.
    """

    def __init__(self, file: Output) -> None:
        super().__init__()
        self._file: Output | None = file
        self._error: BaseException | None = None
        self.written_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # pyarrow gives bytes
        """Raises nothing; what comes after an error, or the end of the loan, is dropped."""
        if self._file is not None and self._error is None:
            try:
                self._file.write(data)
                self.written_bytes += len(data)
            except BaseException as error:  # noqa: BLE001  # raised by ``check``
                self._error = error
        return len(data)

    def check(self) -> None:
        """Raises what the file raised. To be called after every call that may have written."""
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Nothing reaches the file from now on, such as the footer of a writer that is let go of."""
        self._file = None


def check_schema(kind: Format, schema: pa.Schema) -> None:
    """Whether files of format ``kind`` can hold records of ``schema``, asked before anything is written.

    Raises:
        SchemaMismatch: no; the message names the column.
    """
    check_names(schema)
    for column in schema:
        _check_types(kind, pa.schema([column]), f"column {column.name!r} of type {column.type}")
    _check_types(kind, schema, f"columns {', '.join(schema.names)}")


def check_names(schema: pa.Schema) -> None:
    """Raises SchemaMismatch where there is no column, or two of one name."""
    if not schema.names:
        raise SchemaMismatch("the file sink got no column at all. Nothing was written. Select at least one.")
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise SchemaMismatch(
            f"column {twice[0]!r} is there {schema.names.count(twice[0])} times, and readers of a file tell"
            " columns apart by name. Nothing was written. Rename all but one."
        )


def _check_types(kind: Format, schema: pa.Schema, what: str) -> None:
    try:
        kind.check_type(schema)
    except (pa.ArrowException, TypeError) as error:
        raise SchemaMismatch(
            f"{what} can't be written to a {kind.extension} file ({error}). Nothing was written. Cast or drop columns."
        ) from error


def check_same_schema(first: pa.Schema, batch: pa.RecordBatch) -> None:
    """Upholds: one file has one schema. Raises SchemaMismatch that names the first column that differs."""
    if batch.schema.equals(first):
        return
    if batch.schema.names != first.names:
        difference = f"columns {', '.join(batch.schema.names)} after {', '.join(first.names)}"
    else:
        now, before = next((a, b) for a, b in zip(batch.schema, first, strict=True) if not a.equals(b))
        difference = f"column {now.name!r} of type {_described(now)} after {_described(before)}"
    raise SchemaMismatch(f"the record batches of one transaction must have one schema, and there came {difference}")


def _described(column: pa.Field) -> str:
    return str(column.type) if column.nullable else f"{column.type} not null"
