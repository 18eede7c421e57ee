"""The distribution of one transaction's records over files: Hive's partition folders, and file sizes."""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from twopc.errors import RecordRefused, SchemaMismatch
from twopc_files.formats import Format, RecordWriter, check_names, check_same_schema, memory_bytes
from twopc_files.refusals import ADVICE, NOT_UTF8, YEARS, Check, Rule, first_true, is_text
from twopc_files.stores.store import PendingFile

HELD_BYTES = 48 * 1024 * 1024
"""How many bytes the writers of several open files may hold together. As many again may wait for a file. A single file
is bounded by its format."""

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The value in a folder's name that Hive and Spark read as null."""

# The characters that Spark escapes (ExternalCatalogUtils.charToEscape), as Hive does.
_ESCAPED = str.maketrans({c: f"%{ord(c):02X}" for c in (*map(chr, range(1, 0x20)), *"\"#%'*/:=?\\\x7f{[]^")})


@dataclass(frozen=True, slots=True)
class Layout:
    """How many files there are, and which records go into which file.

    Attributes:
        partition_by: columns whose values name folders, outermost first. They are left out of the files.
        max_records_per_file: the most records in a file.
        max_bytes_per_file: a file is finished after the record batch that takes it to this size. Records that the
            writer still holds count with their size in memory. So a file may be larger by one batch, and smaller by
            as much as compression saves on held records.
        max_open_files: how many files a task keeps open at a time. In a store such as S3, each needs a buffer of
            several MiB. Records of further folders wait in memory. If they become too many, the least recently written
            file is finished to make room. So a task may write several files to one folder.
    """

    partition_by: tuple[str, ...] = ()
    max_records_per_file: int | None = None
    max_bytes_per_file: int | None = None
    max_open_files: int = 32

    def data_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the files for records of ``schema``.

        Raises:
            SchemaMismatch: a partition column is unknown, its type has no form in a folder's name, or no column is
                left for the files.
        """
        check_names(schema)
        for name in self.partition_by:
            if name not in schema.names:
                raise SchemaMismatch(_unknown(name, schema))
            type_ = schema.field(name).type
            if not any(is_type(type_) for is_type in _IN_FOLDERS):
                raise SchemaMismatch(
                    f"partition column {name!r} has type {type_}, which not every reader restores from a folder's name."
                    " Nothing was written. Derive a date, a string, an integer, a boolean or a decimal from it, and"
                    " partition by that."
                )
        data = [column for column in schema if column.name not in self.partition_by]
        if not data:
            raise SchemaMismatch(
                "all columns are partition columns, so the files would have none. Nothing was written."
            )
        return pa.schema(data, schema.metadata)


_IN_FOLDERS = (
    *(types.is_string, types.is_large_string, types.is_boolean, types.is_integer),
    *(types.is_date32, types.is_decimal),
)


def _unknown(name: str, schema: pa.Schema) -> str:
    near = difflib.get_close_matches(name.lower(), [known.lower() for known in schema.names], n=1)
    meant = [known for known in schema.names if known.lower() in near]
    hint = f" Did you mean {meant[0]!r}?" if meant else ""
    return (
        f"there is no column {name!r} to partition by.{hint} Nothing was written. The columns are:"
        f" {', '.join(schema.names)}."
    )


@dataclass(slots=True)
class _OpenFile:
    pending: PendingFile
    writer: RecordWriter
    records: int = 0

    def is_full(self, layout: Layout) -> bool:
        if layout.max_bytes_per_file is None:
            return self.records == layout.max_records_per_file
        size_bytes = self.pending.tell() + self.writer.held_bytes
        return self.records == layout.max_records_per_file or size_bytes >= layout.max_bytes_per_file


@dataclass(slots=True)
class _Waiting:
    """Records of one folder for which no file is open yet."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, records: pa.RecordBatch) -> None:
        self.batches.append(records)
        self.size_bytes += memory_bytes(records)


class Files:
    """Distributes one transaction's records over files.

    Args:
        format: the format of the files.
        layout: which records go into which file.
        create: creates an empty pending file in a partition folder, such as ``day=2024-05-01/city=Bern``, or in ``""``
            if the records are not partitioned.
        longest_name: how many bytes the name of a folder may have; None if the store has no limit.
    """

    def __init__(
        self,
        format: Format,
        layout: Layout,
        create: Callable[[str], PendingFile],
        longest_name: int | None = None,
    ) -> None:
        self._format = format
        self._layout = layout
        self._create = create
        self._longest_name = longest_name
        self._schema: pa.Schema | None = None
        self._check: Check | None = None
        # Folder → its open file, the least recently written first.
        self._open: dict[str, _OpenFile] = {}
        # Folder without an open file → its records.
        self._waiting: dict[str, _Waiting] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Write each record to a file of its folder.

        Raises:
            SchemaMismatch: the schema differs from that of the first batch.
            RecordRefused: the format, or the name of a partition folder, can't hold a record. None is written.
            OSError: a file can't be created or written.
        """
        self._schema = self._schema or batch.schema
        check_same_schema(self._schema, batch)
        by = self._layout.partition_by
        records = batch.drop_columns(list(by)) if by else batch
        self._check = self._check or self._format.checker(records.schema)
        self._check(records)
        for folder, part in split(batch, by, self._longest_name):
            if folder in self._open or self._has_room():
                self._write(folder, part)
            else:
                self._wait(folder, part)
            self._hold_less()

    def finish(self) -> None:
        """Write the waiting records, then finish and close every file. Raises OSError if a file is not durable."""
        for folder in list(self._open):
            self._finish(folder)
        for folder in list(self._waiting):
            self._write_waiting(folder)
            if folder in self._open:
                self._finish(folder)

    def discard(self) -> None:
        """Discard the writers. Their creator discards the files. Raises nothing."""
        self._waiting.clear()
        for file in self._open.values():
            file.writer.discard()
        self._open.clear()

    def _has_room(self) -> bool:
        taken_bytes = sum(file.writer.encoder_bytes + file.pending.buffer_bytes for file in self._open.values())
        return len(self._open) < self._layout.max_open_files and taken_bytes < HELD_BYTES

    def _wait(self, folder: str, records: pa.RecordBatch) -> None:
        """Hold ``records``, as no further file may be open. If too many records wait, finish a file, and give its place
        to the folder with the most waiting records."""
        self._waiting.setdefault(folder, _Waiting()).add(records)
        if sum(waiting.size_bytes for waiting in self._waiting.values()) > HELD_BYTES:
            self._finish(next(iter(self._open)))
            # That folder has at least as many as ``folder``, so no more wait afterwards than before this call.
            self._write_waiting(max(self._waiting, key=lambda folder: self._waiting[folder].size_bytes))

    def _write_waiting(self, folder: str) -> None:
        waiting = self._waiting.pop(folder, _Waiting())
        for records in waiting.batches:
            self._write(folder, records)

    def _write(self, folder: str, records: pa.RecordBatch) -> None:
        """Write ``records``, after the waiting ones, to the open file of ``folder`` or to new files."""
        self._write_waiting(folder)
        rest = records
        while rest.num_rows:
            file = self._file(folder, rest.schema)
            most = self._layout.max_records_per_file
            room = rest.num_rows if most is None else most - file.records
            taken, rest = rest.slice(0, room), rest.slice(room)
            file.writer.write(taken)
            file.records += taken.num_rows
            if file.is_full(self._layout):
                self._finish(folder)

    def _file(self, folder: str, schema: pa.Schema) -> _OpenFile:
        """Return the open file of ``folder``, or a new one, and make it the most recently written one."""
        file = self._open.pop(folder, None)
        if file is None:
            pending = self._create(folder)
            file = _OpenFile(pending, self._format.open(pending, schema))
        self._open[folder] = file
        return file

    def _hold_less(self) -> None:
        """Uphold that memory is bounded, however many files are open: flush or finish the files that hold most."""
        while len(self._open) > 1 and sum(file.writer.held_bytes for file in self._open.values()) > HELD_BYTES:
            folder, file = max(self._open.items(), key=lambda item: item[1].writer.held_bytes)
            file.writer.flush()
            if file.writer.held_bytes:
                self._finish(folder)

    def _finish(self, folder: str) -> None:
        # The file counts as open until it is closed, so that its writer is discarded if this fails.
        file = self._open[folder]
        file.writer.finish()
        file.pending.close()
        del self._open[folder]


def split(
    batch: pa.RecordBatch, partition_by: tuple[str, ...], longest_name: int | None = None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the records of ``batch`` by partition folder, in their order, without the partition columns.

    Each part is a copy: a slice would keep the whole batch in memory while a writer holds it.

    Raises:
        RecordRefused: a folder can't be named after a record's value. No part has been yielded.
    """
    if not partition_by:
        yield "", batch
        return
    data = batch.drop_columns(list(partition_by))
    folders = _folders(batch, partition_by, longest_name).dictionary_encode()
    if len(folders.dictionary) == 1:
        yield folders.dictionary[0].as_py(), data
        return
    order = pc.sort_indices(folders.indices)  # stable
    runs = pc.run_end_encode(folders.indices.take(order))
    start = 0
    for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield folders.dictionary[number].as_py(), data.take(order.slice(start, end - start))
        start = end


def _folders(batch: pa.RecordBatch, partition_by: tuple[str, ...], longest_name: int | None) -> pa.StringArray:
    """Return the folder of each record. A name is checked and built once per value, not once per record."""
    levels = []
    for column in partition_by:
        values = batch.column(column).dictionary_encode(null_encoding="encode")
        field = batch.schema.field(column)
        for rule in _NAME_RULES:
            if rule.concerns(field):
                _refuse(column, rule.reason, values.indices, rule.first(values.dictionary))
        names = pa.array([folder_name(column, value) for value in values.dictionary.to_pylist()], pa.string())
        if longest_name is not None:
            too_long = first_true(pc.greater(pc.binary_length(names), longest_name))
            reason = f"a folder named after it would have more than {longest_name} bytes in its name. {ADVICE}"
            _refuse(column, reason, values.indices, too_long)
        levels.append(names.take(values.indices))
    return pc.binary_join_element_wise(*levels, "/")


def _refuse(column: str, reason: str, indices: pa.Array, value: int | None) -> None:
    """Raise RecordRefused for the first record with the value of this number, if any."""
    if value is not None:
        raise RecordRefused(reason, record=pc.index(indices, value).as_py(), column=column)


_NAME_RULES = (
    NOT_UTF8,
    Rule(
        is_text,
        lambda values: first_true(pc.match_substring(values, "\0")),
        f"it has a NUL, and a folder can't be named after it. {ADVICE}",
    ),
    YEARS,
    Rule(
        is_text,
        lambda values: first_true(pc.or_(pc.equal(values, ""), pc.equal(values, DEFAULT_PARTITION))),
        f"readers take an empty text and {DEFAULT_PARTITION!r} in a folder's name for null. {ADVICE}",
    ),
)


def folder_name(column: str, value: Any) -> str:
    """Return ``column=value`` as Spark writes it. Injective, as text that Spark does not distinguish from null is
    refused before."""
    text = "" if value is None else _text(value)
    return f"{column.translate(_ESCAPED)}={text.translate(_ESCAPED) or DEFAULT_PARTITION}"


def _text(value: Any) -> str:
    """Return ``value`` as Spark casts it to a string."""
    match value:
        case bool():
            return str(value).lower()
        case Decimal():
            return format(value, "f")  # never an exponent
        case dt.date():
            return value.isoformat()
        case _:
            return str(value)
