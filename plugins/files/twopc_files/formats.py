"""What a format of files must offer, and what all formats ask of a schema."""

from __future__ import annotations

from collections import Counter
from typing import IO, Protocol

import pyarrow as pa

from twopc.errors import SchemaMismatch


class RecordWriter(Protocol):
    """Encodes the record batches of one file, which the sink opened, syncs and closes."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Encode ``batch``. Holds back at most a bounded part of what it was given."""

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
        """Raises ArrowException or TypeError where the one column of ``schema`` can't be written."""

    def open(self, file: IO[bytes], schema: pa.Schema) -> RecordWriter:
        """A writer of records of ``schema`` into ``file``."""


def check_schema(kind: Format, schema: pa.Schema) -> None:
    """Whether files of format ``kind`` can hold records of ``schema``, asked before anything is written.

    Raises:
        SchemaMismatch: no; the message names the column.
    """
    if not schema.names:
        raise SchemaMismatch("the file sink got no column at all. Nothing was written. Select at least one.")
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise SchemaMismatch(
            f"column {twice[0]!r} is there {schema.names.count(twice[0])} times, and readers of a file tell"
            " columns apart by name. Nothing was written. Rename all but one."
        )
    for field in schema:
        _check_column(kind, field)


def _check_column(kind: Format, column: pa.Field) -> None:
    try:
        kind.check_type(pa.schema([column]))
    except (pa.ArrowException, TypeError) as error:
        raise SchemaMismatch(
            f"column {column.name!r} of type {column.type} can't be written to a {kind.extension} file"
            f" ({error}). Nothing was written. Cast or drop the column."
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
