"""Writes the Parquet files of one transaction, and the manifests that name them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.fileformat import DataFileStatistics
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.types import DoubleType, FloatType

from twopc.open_files import OpenFiles, RowGroups, values_at_once
from twopc.stores.disk import discard
from twopc_iceberg.columns import aligned, check_columns
from twopc_iceberg.files import DurableFile
from twopc_iceberg.keys import Deletes, require_whole
from twopc_iceberg.layout import Layout
from twopc_iceberg.manifests import InMemory, ManifestWriter
from twopc_iceberg.notes import Note
from twopc_iceberg.options import POSITION, IcebergOptions
from twopc_iceberg.partitions import WHOLE, Partition, split
from twopc_iceberg.prepared import Prepared, digest_of
from twopc_iceberg.pyiceberg_internals import data_file, parquet_options
from twopc_iceberg.table import TableForTasks

ROW_GROUP_BYTES = 64 * 2**20
"""The target size of a row group, in bytes of Arrow data."""

SAMPLE_RECORDS = 10_000
MOST_DISTINCT = 0.8
"""The share of distinct values in a sample above which a column gets no dictionary."""

_DELETES = replace(WHOLE, content=DataFileContent.EQUALITY_DELETES)
"""The partition of files of keys: none."""


@dataclass(frozen=True, slots=True)
class _Form:
    """How files with one kind of content are written.

    Attributes:
        schema: the columns in them.
        spec: their partition spec.
        equality_ids: the ids of the key's columns; None for data files.
        manifest: the location of their manifest.
    """

    schema: Schema
    spec: PartitionSpec
    equality_ids: list[int] | None
    manifest: str


class _OpenFile(RowGroups):
    """A Parquet file that is being written. For other attributes, see ``twopc.open_files.OpenFile``.

    Attributes:
        length: the number of bytes written, set on close. Not read back from the store, which may have kept other
            bytes.
    """

    length = 0

    def __init__(
        self,
        output: DurableFile,
        schema: Schema,
        properties: dict[str, str],
        target_bytes: int,
        finished: Callable[[_OpenFile], None],
    ) -> None:
        super().__init__(self._write_group, min(ROW_GROUP_BYTES, target_bytes))
        self._output, self._schema, self._target_bytes, self._finished = output, schema, target_bytes, finished
        self._ids = parquet_path_to_id_mapping(schema)
        floats = FloatType | DoubleType
        self._floats = {path for path, leaf in self._ids.items() if isinstance(schema.find_type(leaf), floats)}
        names = (schema.find_column_name(self._ids[path]) for path in self._floats)
        modes = {f"{TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX}.{name}": "none" for name in names}
        self._properties = {**properties, **modes}  # otherwise pyiceberg would warn about each one
        most = TableProperties.PARQUET_ROW_GROUP_LIMIT
        self._most_rows = int(properties.get(most, TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT))
        self._writer: pq.ParquetWriter | None = None

    @property
    def is_full(self) -> bool:
        return self._writer is not None and self._output.stream.tell() >= self._target_bytes

    def _write_group(self, table: pa.Table) -> None:
        if self._writer is None:
            options = {
                **parquet_options(self._properties),
                "use_dictionary": sorted(self._ids.keys() - without_dictionary(table)),
                # Parquet bounds exclude NaN. Spark and DuckDB treat NaN as the greatest value, and would skip files and
                # row groups that contain it.
                "write_statistics": sorted(self._ids.keys() - self._floats),
                "write_batch_size": values_at_once(table),
            }
            stream = self._output.create(overwrite=True)
            self._writer = pq.ParquetWriter(stream, table.schema, store_decimal_as_integer=True, **options)
        self._writer.write(table, row_group_size=self._most_rows)

    def finish(self) -> None:
        self.flush()
        self._finished(self)

    def close(self) -> DataFileStatistics:
        """Finish the file. Its bounds, by which readers skip files, enclose every value."""
        assert self._writer is not None
        with self._output.stream as stream:
            self._writer.close()
            self.length = stream.tell()
        metadata, ids = self._writer.writer.metadata, self._ids
        plan = compute_statistics_plan(self._schema, self._properties)
        statistics = data_file_statistics_from_parquet_metadata(metadata, plan, ids)
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for column in map(group.column, range(metadata.num_columns)):
                # Arrow keeps no bounds for strings longer than 4 kB. pyiceberg would use the bounds of the other row
                # groups.
                known = column.statistics
                if known is None or not (known.has_min_max or known.null_count == column.num_values):
                    statistics.column_aggregates.pop(ids[column.path_in_schema], None)
        for bounds in statistics.column_aggregates.values():
            if isinstance(bounds.current_max, str):
                bounds.current_max = _upper_bound(bounds.current_max, bounds.trunc_length)
        return statistics

    def discard(self) -> None:
        super().discard()
        if self._output.stream is not None:
            discard(self._output.stream)


class TransactionWriter:
    """Writes the files of one transaction. Errors of the store pass through.

    Args:
        table: the table as it was when the task began.
        name: the transaction's name, the prefix of every file's name.
        announce: writes the transaction's note, before the files that it names exist.
        options: the sink's.
    """

    def __init__(
        self, table: TableForTasks, name: str, announce: Callable[[Note], None], options: IcebergOptions
    ) -> None:
        self._table, self._options, self._what = table, options, str(options)
        self._checked: pa.Schema | None = None
        self._name = name
        self._announce = announce
        self._target_file_bytes = options.target_file_bytes or _target_file_bytes(table.parsed.properties)
        self._io = table.io()
        self._locations = table.locations
        self._open = OpenFiles(self._create_each, fixed_bytes=_OpenFile.fixed_bytes)
        self._done: list[DataFile] = []
        self._named: list[str] = []
        of_data, of_deletes = (self._locations.new_metadata_location(f"{name}-m{number}.avro") for number in (0, 1))
        self._forms = {DataFileContent.DATA: _Form(table.file_schema, table.spec, None, of_data)}
        self._deletes = Deletes.of(table.parsed, options.upsert_by, self._what) if options.upsert_by else None
        if (deletes := self._deletes) is not None:
            of_keys = _Form(deletes.file_schema, deletes.spec, deletes.equality_ids, of_deletes)
            self._forms[DataFileContent.EQUALITY_DELETES] = of_keys

    def write(self, batch: pa.RecordBatch) -> None:
        """Write records.

        Checks columns again: the table's may have changed since the coordinator's check.

        Raises:
            RecordRefused: a value does not fit.
            SchemaMismatch: a column does not fit into the table.
        """
        if batch.schema != self._checked:
            check_columns(batch.schema, self._table.schema, self._what)
            if self._deletes is not None:
                require_whole(batch.schema, self._table.schema, self._what)
            self._checked = batch.schema
        deletes = [] if self._deletes is None else [(_DELETES, self._deletes.keys(batch))]
        records = aligned(batch, self._table.schema, self._table.arrow_schema)
        self._open.write([*split(records, self._table.spec, self._table.schema), *deletes])

    def delete(self, keys: pa.RecordBatch) -> None:
        """Delete the rows of these keys.

        Raises:
            RecordRefused: a value does not fit.
        """
        assert self._deletes is not None
        self._open.write([(_DELETES, self._deletes.keys(keys))])

    def _create_each(self, partitions: Sequence[Partition]) -> Iterator[_OpenFile]:
        """Create a file for each partition, after a note that names all of them."""
        locations = [self._new_location(each, number) for number, each in enumerate(partitions, len(self._named))]
        self._named += locations
        manifest, *others = (form.manifest for form in self._forms.values())
        self._announce(Note(manifest, (*others, *self._named)))
        for partition, location in zip(partitions, locations, strict=True):
            output, schema = self._io.new_output(location), self._forms[partition.content].schema
            finished = functools.partial(self._finished, partition, location)
            yield _OpenFile(output, schema, self._table.parsed.properties, self._target_file_bytes, finished)

    def _new_location(self, partition: Partition, number: int) -> str:
        name = f"{self._name}-{number:05d}.parquet"
        return self._locations.new_data_location(name, partition if partition.folder else None)  # type: ignore[arg-type]

    def _finished(self, partition: Partition, location: str, file: _OpenFile) -> None:
        statistics, form = file.close(), self._forms[partition.content]
        self._done.append(
            data_file(
                content=partition.content,
                file_path=location,
                file_format=FileFormat.PARQUET,
                partition=partition.values,
                file_size_in_bytes=file.length,
                sort_order_id=None,
                spec_id=form.spec.spec_id,
                equality_ids=form.equality_ids,
                key_metadata=None,
                **statistics.to_serialized_dict(),
            )
        )

    def finish(self) -> list[Prepared]:
        """Make every record durable, and write a manifest of data files and one of delete files, each only if it has
        files."""
        self._open.finish()
        done = {content: [each for each in self._done if each.content is content] for content in self._forms}
        return [self._described(files, self._forms[content]) for content, files in done.items() if files]

    def _described(self, files: Sequence[DataFile], form: _Form) -> Prepared:
        """Write a manifest of files, and describe it."""
        metadata, in_memory = self._table.parsed, InMemory(location=form.manifest)
        content = ManifestContent.DATA if form.equality_ids is None else ManifestContent.DELETES
        with ManifestWriter(content, metadata, form.spec, self._table.schema, in_memory, None) as writer:
            for each in files:
                writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=each))
        sizes = sum(each.file_size_in_bytes for each in files)
        self._io.create(form.manifest, in_memory.getvalue())
        digest, table = digest_of(in_memory.getvalue()), str(metadata.table_uuid)
        by_position = True if self._options.deletes == POSITION and form.equality_ids is not None else None
        layout, manifest = Layout.of(self._table.schema, form.spec), writer.to_manifest_file()
        return Prepared.of(table, layout.fingerprint, manifest, sizes, digest, form.equality_ids, by_position)

    def changed_file(self) -> str | None:
        """Return a finished file that is missing from the store or has another length; None if there is none."""
        return self._io.first_changed({each.file_path: each.file_size_in_bytes for each in self._done})

    def discard(self) -> None:
        """Close and remove every file."""
        self._open.discard()
        self._io.remove([*self._named, *(form.manifest for form in self._forms.values())])


def _target_file_bytes(properties: dict[str, str]) -> int:
    """Return the target size of a file, from the table's property."""
    default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
    return int(properties.get(TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, default))


def _upper_bound(text: str, length: int | None) -> str | None:
    """Return the least string of at most ``length`` characters that is not below any string with the same beginning as
    ``text``; None if there is none. pyiceberg's own function may return a surrogate, which is not a character and can't
    be encoded."""
    if length is None or len(text) <= length:
        return text
    for end in range(length, 0, -1):
        if (character := ord(text[end - 1])) < sys.maxunicode:
            return text[: end - 1] + chr(0xE000 if character == 0xD7FF else character + 1)
    return None


def without_dictionary(table: pa.Table) -> set[str]:
    """Return the columns of ``table`` that gain nothing from a dictionary. Never returns nested columns."""
    sample = table.slice(0, SAMPLE_RECORDS)
    columns = zip(sample.column_names, sample.columns, strict=True)
    return {
        name
        for name, column in columns
        if not pa.types.is_nested(column.type) and _distinct(column) > MOST_DISTINCT * len(column)
    }


def _distinct(column: pa.ChunkedArray) -> int:
    if isinstance(column.type, pa.BaseExtensionType):  # such as UUIDs
        column = column.cast(column.type.storage_type)
    return int(pc.count_distinct(column).as_py())
