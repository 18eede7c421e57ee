"""How a transaction's records are distributed over files: Hive partition folders and file sizes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from twopc.columns import ADVICE
from twopc.errors import RecordRefused, SchemaMismatch
from twopc.open_files import DEFAULT_PARTITION, MOST_FILES, Encoder, OpenFiles, partition_folder, split_by
from twopc.refusals import NOT_UTF8, YEARS, Check, Rule, first_true, is_text
from twopc_files.formats import Format, check_names, check_same_schema
from twopc_files.stores.store import PendingFile


@dataclass(frozen=True, slots=True)
class Layout:
    """Which records go into which file, and how large files get.

    Attributes:
        partition_by: columns whose values name folders, outermost first. They are left out of the files.
        max_records_per_file: the most records in a file.
        max_bytes_per_file: a file is finished after the record batch that takes it to this size. Records that the
            writer still holds count with their size in memory. So a file may be larger by one batch, or smaller by
            as much as compression saves on held records.
        max_open_files: the most files that a task keeps open. In a store such as S3, each needs a buffer of several
            MiB. Records of other folders wait in memory. If too many records wait, the least recently written file is
            finished to make room. So a task may write several files to one folder.
    """

    partition_by: tuple[str, ...] = ()
    max_records_per_file: int | None = None
    max_bytes_per_file: int | None = None
    max_open_files: int = MOST_FILES

    def data_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the files for records of ``schema``.

        Raises:
            SchemaMismatch: a partition column is unknown, folder names can't hold its type, or no column is left for
                the files.
        """
        check_names(schema)
        for name in self.partition_by:
            if name not in schema.names:
                raise SchemaMismatch(_unknown(name, schema))
            if "\0" in name or name.startswith(("_", ".")):
                raise SchemaMismatch(
                    f"no folder can be named after partition column {name!r}, or readers skip it. Nothing was written."
                    " Rename the column, without '_' or '.' at its beginning."
                )
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


class _OpenFile:
    """A file and its format's writer. Implements ``twopc.open_files.OpenFile``."""

    def __init__(self, pending: PendingFile, writer: Encoder, layout: Layout) -> None:
        self.writer = writer
        self.fixed_bytes = writer.fixed_bytes + pending.buffer_bytes
        self._pending, self._layout, self._records = pending, layout, 0

    @property
    def held_bytes(self) -> int:
        return self.writer.held_bytes

    @property
    def kept_bytes(self) -> int:
        return self.writer.kept_bytes

    @property
    def room(self) -> int | None:
        most = self._layout.max_records_per_file
        return None if most is None else most - self._records

    @property
    def is_full(self) -> bool:
        most_bytes = self._layout.max_bytes_per_file
        return self.room == 0 or (most_bytes is not None and self._pending.tell() + self.held_bytes >= most_bytes)

    def write(self, records: pa.RecordBatch) -> None:
        self.writer.write(records)
        self._records += records.num_rows

    def flush(self) -> None:
        self.writer.flush()

    def finish(self) -> None:
        self.writer.finish()
        self._pending.close()

    def discard(self) -> None:
        self.writer.discard()


class Files:
    """Distributes one transaction's records over files.

    Args:
        format: the format of the files.
        layout: which records go into which file.
        create: creates an empty pending file in a partition folder, such as ``day=2024-05-01/city=Bern``, or in ``""``
            if the records are not partitioned.
        longest_name: the most bytes of a folder's name; None if the store has no limit.
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
        self._schema_of_files: pa.Schema | None = None
        self._check: Check | None = None
        self._open = OpenFiles(self._create_each, layout.max_open_files)
        self.discard = self._open.discard

    def write(self, batch: pa.RecordBatch) -> None:
        """Write each record to a file in its folder.

        Raises:
            SchemaMismatch: the schema differs from that of the first batch.
            RecordRefused: the format, or the name of a partition folder, can't hold a record. None is written.
            OSError: a file can't be created or written.
        """
        self._schema = self._schema or batch.schema
        check_same_schema(self._schema, batch)
        by = self._layout.partition_by
        records = batch.drop_columns(list(by)) if by else batch
        self._schema_of_files = records.schema
        self._check = self._check or self._format.checker(records.schema)
        self._check(records)
        self._open.write(split(batch, by, self._longest_name))

    def _create_each(self, folders: Sequence[str]) -> Iterator[_OpenFile]:
        for folder in folders:
            pending = self._create(folder)
            yield _OpenFile(pending, self._format.open(pending, self._schema_of_files), self._layout)

    def finish(self) -> None:
        """Write the waiting records, then finish and close every file. Raises OSError if a file is not durable."""
        self._open.finish()


def split(
    batch: pa.RecordBatch, partition_by: tuple[str, ...], longest_name: int | None = None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the records of ``batch`` by partition folder, in order, without the partition columns.

    Raises:
        RecordRefused: a folder can't be named after a record's value. Nothing has been yielded.
    """
    if not partition_by:
        yield "", batch
        return
    data = batch.drop_columns(list(partition_by))
    folders = _folders(batch, partition_by, longest_name)
    for first, part in split_by(data, [folders]):
        yield folders[first].as_py(), part


def _folders(batch: pa.RecordBatch, partition_by: tuple[str, ...], longest_name: int | None) -> pa.StringArray:
    """Return the folder of each record. A name is checked and built once per value, not once per record."""
    levels = []
    for column in partition_by:
        values = batch.column(column).dictionary_encode(null_encoding="encode")
        field = batch.schema.field(column)
        for rule in _NAME_RULES:
            if rule.concerns(field):
                _refuse(column, rule.reason, values.indices, rule.first(values.dictionary))
        names = pa.array([partition_folder(column, value) for value in values.dictionary.to_pylist()], pa.string())
        if longest_name is not None:
            too_long = first_true(pc.greater(pc.binary_length(names), longest_name))
            reason = f"a folder named after it would have more than {longest_name} bytes in its name. {ADVICE}"
            _refuse(column, reason, values.indices, too_long)
        levels.append(names.take(values.indices))
    return pc.binary_join_element_wise(*levels, "/")


def _refuse(column: str, reason: str, indices: pa.Array, value: int | None) -> None:
    """Raise RecordRefused for the first record whose entry in ``indices`` is ``value``. Do nothing if ``value`` is
    None."""
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
        lambda values: first_true(pc.match_substring_regex(values, f"\\A((?i:null)|{DEFAULT_PARTITION}|)\\z")),
        f"readers take an empty text, 'null' and {DEFAULT_PARTITION!r} in a folder's name for null. {ADVICE}",
    ),
)
