"""The interface of a file format, and the schema checks that all formats share."""

from __future__ import annotations

import contextlib
import io
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from twopc.errors import SchemaMismatch
from twopc.open_files import Encoder
from twopc.refusals import Check
from twopc_files.kept_types import require_kept


class Output(Protocol):
    """The file that a format writes to. Formats only call ``write``; the file's owner syncs and closes the file."""

    def write(self, data: bytes, /) -> object:
        """Write all of ``data``."""


class Format(ABC):
    """A file format. An immutable value, which is pickled together with its sink.

    Attributes:
        name: its name in ``kept_types``.
    """

    __slots__ = ()
    name: ClassVar[str]

    @property
    def extension(self) -> str:
        """The extension of committed files, with the dot. All readers of the format expect it."""
        return f".{self.name}"

    def check_type(self, schema: pa.Schema) -> None:
        """Raise ArrowException or TypeError if the format can't hold the columns of ``schema``, which may be only some
        of the records' columns."""
        require_kept(self.name, schema)

    @abstractmethod
    def checker(self, schema: pa.Schema) -> Check:
        """Return a function that checks record batches of ``schema``, and raises for a record that the format can't
        hold."""

    @abstractmethod
    def open(self, file: Output, schema: pa.Schema) -> Encoder:
        """Return an encoder that writes records of ``schema`` to ``file``."""


class Lent(io.RawIOBase):
    """A file on loan to one of pyarrow's writers.

    Some writers close the file that they are given. Closing a ``Lent`` does not close the real file. Errors of the file
    do not pass through the writer: most writers would drop the errno, and the ORC writer would end the process.
    ``check`` raises such an error afterwards.
    """

    def __init__(self, file: Output) -> None:
        super().__init__()
        self._file: Output | None = file
        self._error: BaseException | None = None
        self.written_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # pyarrow passes bytes
        """Write ``data``, or drop it after an error or the end of the loan. Raises nothing."""
        if self._file is not None and self._error is None:
            try:
                self._file.write(data)
                self.written_bytes += len(data)
            except BaseException as error:  # noqa: BLE001  # raised by ``check``
                self._error = error
        return len(data)

    def check(self) -> None:
        """Raise the error that the file has raised, if any. Call this after every call that may have written."""
        if self._error is not None:
            raise self._error

    def finish(self, writer: Any) -> None:
        """Have ``writer`` write the end of the file."""
        writer.close()
        self.check()

    def discard(self, writer: Any) -> None:
        """Close ``writer``, and drop everything that it still writes, such as a footer. A writer left open would write
        the footer when it is garbage-collected."""
        self._file = None
        with contextlib.suppress(Exception):
            writer.close()


def check_schema(kind: Format, schema: pa.Schema) -> None:
    """Make sure that files of format ``kind`` can hold records of ``schema``, before anything is written.

    Raises:
        SchemaMismatch: the format can't hold a column; the message names it.
    """
    check_names(schema)
    for column in schema:
        _check_types(kind, pa.schema([column]), f"column {column.name!r} of type {column.type}")
    _check_types(kind, schema, f"columns {', '.join(schema.names)}")


def check_names(schema: pa.Schema) -> None:
    """Raise SchemaMismatch if there are no columns, a name is empty, or two columns have the same name. Spark and
    DuckDB ignore case, and Spark would read a partition column's value for the other column."""
    if not schema.names:
        raise SchemaMismatch("the records for the file sink have no columns. Nothing was written. Select at least one.")
    if "" in schema.names:
        raise SchemaMismatch("a column has an empty name, and readers lose it or give it another. Rename it.")
    alike: dict[str, list[str]] = {}
    for name in schema.names:
        alike.setdefault(name.casefold(), []).append(name)
    twice = next((names for names in alike.values() if len(names) > 1), None)
    if twice:
        raise SchemaMismatch(
            f"columns {', '.join(map(repr, twice))} have one name to readers, which do not distinguish upper and lower"
            " case. Nothing was written. Rename all but one."
        )


def _check_types(kind: Format, schema: pa.Schema, what: str) -> None:
    try:
        kind.check_type(schema)
    except (pa.ArrowException, TypeError) as error:
        raise SchemaMismatch(
            f"{what} can't be written to a {kind.extension} file ({error}). Nothing was written. Cast or drop columns."
        ) from error


def check_same_schema(first: pa.Schema, batch: pa.RecordBatch) -> None:
    """Raise SchemaMismatch if the schema of ``batch`` differs from ``first``. The message shows the difference.
    Upholds: a file has one schema."""
    if batch.schema.equals(first):
        return
    if batch.schema.names != first.names:
        difference = f"columns {', '.join(batch.schema.names)} after {', '.join(first.names)}"
    else:
        now, before = next((a, b) for a, b in zip(batch.schema, first, strict=True) if not a.equals(b))
        difference = f"column {now.name!r} of type {_described(now)} after {_described(before)}"
    raise SchemaMismatch(f"the record batches of one transaction must have the same schema, but one has {difference}")


def _described(column: pa.Field) -> str:
    return str(column.type) if column.nullable else f"{column.type} not null"
