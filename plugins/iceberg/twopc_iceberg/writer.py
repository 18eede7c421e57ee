"""A task's part: Parquet files of one transaction, and the manifest that names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
)
from pyiceberg.table import TableProperties
from pyiceberg.typedef import Record

from twopc_iceberg import avro
from twopc_iceberg.columns import aligned, check_columns
from twopc_iceberg.files import DurableFile
from twopc_iceberg.layout import Layout
from twopc_iceberg.notes import Note
from twopc_iceberg.parquet import ParquetWriter
from twopc_iceberg.partitions import Partition, split
from twopc_iceberg.prepared import Prepared, digest_of, with_both_zeros
from twopc_iceberg.table import TableForTasks, avro_compression

ROW_GROUP_BYTES = 64 * 2**20
"""Bytes of Arrow that make one row group. Spark's batches of 10 000 rows are too small for a row group each."""

HELD_BYTES = 64 * 2**20
"""What all open files may hold together."""

ROW_GROUPS_BYTES = 128 * 2**20
"""What the last row groups of all open files may have together. Arrow keeps their pages, plain and compressed, until
the next row group begins or the file is closed."""

OPEN_FILES = 32
"""How many files are open at a time. The one that was written to longest ago is finished to make room."""


@dataclass(slots=True)
class _OpenFile:
    """A data file that is being written."""

    location: str
    output: DurableFile
    writer: ParquetWriter
    partition: Record
    held: list[pa.Table] = field(default_factory=list)
    held_bytes: int = 0
    row_group_bytes: int = 0

    @property
    def written_bytes(self) -> int:
        stream = self.output.stream
        return 0 if stream is None or stream.closed else int(stream.tell())


class TransactionWriter:
    """Writes the files of one transaction. Errors of the store pass through.

    Args:
        table: the table as it was when the task began.
        name: the transaction's name, with which every file's name begins.
        announce: makes the transaction's note, before the files that it names exist.
        target_file_bytes: when a file is full.
        what: names the table in errors.
    """

    def __init__(
        self, table: TableForTasks, name: str, announce: Callable[[Note], None], target_file_bytes: int, what: str
    ) -> None:
        self._table = table
        self._what = what
        self._checked: pa.Schema | None = None
        self._name = name
        self._announce = announce
        self._target_file_bytes = target_file_bytes
        self._io = table.io()
        self._locations = table.locations
        # By the partition's key, the one that was written to longest ago first.
        self._open: dict[tuple[str, ...], _OpenFile] = {}
        self._done: list[DataFile] = []
        self._named: list[str] = []
        self._manifest = self._locations.new_metadata_location(f"{name}-m0.avro")

    @property
    def note(self) -> Note:
        return Note(self._manifest, tuple(self._named))

    def write(self, batch: pa.RecordBatch) -> None:
        """Write records.

        The columns are checked here, too: the table may have others than those the coordinator has checked.

        Raises:
            RecordRefused: a value does not fit.
            SchemaMismatch: a column does not fit into the table.
        """
        if batch.schema != self._checked:
            check_columns(batch.schema, self._table.schema, self._what)
            self._checked = batch.schema
        records = aligned(batch, self._table.schema, self._table.arrow_schema)
        partitions = list(split(records, self._table.spec, self._table.schema))
        new = [each for each in partitions if each.key not in self._open]
        # Those with an open file first: a new file may need its room.
        for partition in partitions:
            if partition.key in self._open:
                self._write(partition)
        for partition, location in zip(new, self._named_first(new), strict=True):
            self._create(partition, location)
            self._write(partition)
        while sum(each.held_bytes for each in self._open.values()) > HELD_BYTES:
            self._flush(max(self._open.values(), key=lambda each: each.held_bytes))
        while sum(each.row_group_bytes for each in self._open.values()) > ROW_GROUPS_BYTES:
            self._finish(next(iter(self._open)))

    def _write(self, partition: Partition) -> None:
        file = self._open[partition.key] = self._open.pop(partition.key)
        file.held.append(partition.records)
        file.held_bytes += partition.records.nbytes
        if file.held_bytes >= ROW_GROUP_BYTES or file.held_bytes >= self._target_file_bytes:
            self._flush(file)
        if file.written_bytes >= self._target_file_bytes:
            self._finish(partition.key)

    def _named_first(self, partitions: list[Partition]) -> list[str]:
        """Return the location of a new file for each partition. The note names them before they exist."""
        locations = [self._new_location(each, number) for number, each in enumerate(partitions, len(self._named))]
        if locations:
            self._named += locations
            self._announce(self.note)
        return locations

    def _create(self, partition: Partition, location: str) -> None:
        if len(self._open) >= OPEN_FILES:
            self._finish(next(iter(self._open)))
        output = self._io.new_output(location)
        writer = ParquetWriter(output, self._table.file_schema, self._table.parsed.properties)
        self._open[partition.key] = _OpenFile(location, output, writer, partition.values)

    def _new_location(self, partition: Partition, number: int) -> str:
        name = f"{self._name}-{number:05d}.parquet"
        return self._locations.new_data_location(name, _Folder(partition.folder) if partition.folder else None)  # type: ignore[arg-type]

    def _flush(self, file: _OpenFile) -> None:
        if file.held:
            file.writer.write(pa.concat_tables(file.held))
            file.held, file.held_bytes, file.row_group_bytes = [], 0, file.held_bytes

    def _finish(self, key: tuple[str, ...]) -> None:
        file = self._open.pop(key)
        self._flush(file)
        statistics = file.writer.close()
        self._done.append(
            DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=file.location,
                file_format=FileFormat.PARQUET,
                partition=file.partition,
                file_size_in_bytes=file.writer.length,
                sort_order_id=None,
                spec_id=self._table.spec.spec_id,
                equality_ids=None,
                key_metadata=None,
                **statistics.to_serialized_dict(),
            )
        )

    def finish(self) -> Prepared:
        """Make every record durable, and write the manifest."""
        for key in list(self._open):
            self._finish(key)
        metadata, in_memory = self._table.parsed, avro.InMemory(location=self._manifest)
        # Entries without a snapshot id: they inherit that of the manifest list which first names the manifest.
        with write_manifest(
            format_version=metadata.format_version,
            spec=self._table.spec,
            schema=self._table.schema,
            output_file=in_memory,  # type: ignore[arg-type]
            snapshot_id=None,  # type: ignore[arg-type]
            avro_compression=avro_compression(metadata.properties),
        ) as writer:
            for data_file in self._done:
                writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=data_file))
        sizes = sum(data_file.file_size_in_bytes for data_file in self._done)
        layout = Layout.of(self._table.schema, self._table.spec)
        manifest = with_both_zeros(writer.to_manifest_file(), layout.partition_types())
        with self._io.new_output(self._manifest).create(overwrite=True) as stream:
            stream.write(in_memory.content)
        digest = digest_of(in_memory.content)
        return Prepared.of(str(metadata.table_uuid), layout.fingerprint, manifest, sizes, digest)

    def changed_file(self) -> str | None:
        """Return a finished data file that the store does not have as it was written; None if there is none."""
        return self._io.first_changed({each.file_path: each.file_size_in_bytes for each in self._done})

    def discard(self) -> None:
        """Close and remove every file."""
        for file in self._open.values():
            if file.output.stream is not None:
                file.output.stream.close()
        self._open.clear()
        self._io.remove([*self._named, self._manifest])


@dataclass(frozen=True, slots=True)
class _Folder:
    """A partition as a location provider asks for it."""

    folder: str

    def to_path(self) -> str:
        return self.folder


def target_file_bytes(given: int | None, properties: dict[str, str]) -> int:
    """Return when a file is full: by the option, or by the table's property."""
    if given is not None:
        return given
    return int(
        properties.get(
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        )
    )
