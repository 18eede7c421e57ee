"""Manifests and manifest lists of format versions 2 and 3. pyiceberg 0.12 reads version 3 without its new fields, and
does not write it.

A batch's manifest list is the previous list plus one manifest. So this process keeps the list that it wrote last and
copies its Avro blocks: a commit neither reads nor encodes the table's earlier manifests again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.avro.codecs import AVRO_CODEC_KEY
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFile, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestListWriterV2,
    ManifestWriterV2,
    PartitionFieldSummary,
)
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, IcebergType, IntegerType, ListType, NestedField, StructType

from twopc_iceberg.outcomes import reading
from twopc_iceberg.table import avro_compression

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from twopc_iceberg.files import DurableFileIO

NUMBERS_ROWS: Final = 3
"""The format version that introduced row ids, and replaced position delete files by deletion vectors."""

PARTITION, EQUALITY_IDS, ELEMENT = 102, 135, 136
"""Field ids in a manifest."""

_OF_LIST = len(MANIFEST_LIST_FILE_SCHEMAS[2].fields)
_FIRST_ROW_ID = 16
"""The positions of the first row's id in the records of a manifest list and of a data file."""


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """The snapshot for which a manifest list is written.

    Attributes:
        snapshot_id: the snapshot's id.
        sequence_number: the snapshot's sequence number, unique in the table's history.
        manifest_list: the location of its manifest list.
        parent_snapshot_id: the branch's previous snapshot.
        first_row_id: the first row id that it assigns; None before format version 3.
    """

    snapshot_id: int
    sequence_number: int
    manifest_list: str
    parent_snapshot_id: int | None
    first_row_id: int | None


# Avro files in memory, split and joined without decoding their blocks. ----------------------------------------------

_HEADER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


def header(content: bytes) -> tuple[AvroFileHeader, int]:
    """Return the header of an Avro file, and the offset of the sync marker that ends it."""
    decoder = new_decoder(content)
    return _HEADER.read(decoder), decoder.tell() - SYNC_SIZE


def blocks_of(content: bytes, start: int) -> Iterator[bytes]:
    """Yield the blocks of an Avro file, without their sync markers.

    Args:
        content: the file.
        start: the offset of the sync marker that ends its header.

    Raises:
        EOFError: the file is cut short.
    """
    decoder = new_decoder(content)
    decoder.skip(start)
    sync = decoder.read(SYNC_SIZE)
    while (begin := decoder.tell()) < len(content):
        decoder.read_int()  # entries
        decoder.skip(decoder.read_int())
        end = decoder.tell()
        if end + SYNC_SIZE > len(content) or decoder.read(SYNC_SIZE) != sync:
            raise EOFError
        yield content[begin:end]


def with_blocks(content: bytes, start: int, others: Iterable[bytes]) -> bytes:
    """Return an Avro file with the header of ``content``, which ends at ``start``, and with other blocks."""
    sync = content[start : start + SYNC_SIZE]
    return b"".join([content[:start], sync, *(part for block in others for part in (block, sync))])


class InMemory(BytesIO):
    """A file in memory that is also its own input, output and stream, for pyiceberg."""

    def __init__(self, content: bytes = b"", location: str = "") -> None:
        super().__init__(content)
        self.location = location

    def __len__(self) -> int:
        return len(self.getvalue())

    def new_input(self, location: str) -> InMemory:  # noqa: ARG002
        return self

    def open(self) -> BytesIO:
        return BytesIO(self.getvalue())

    def create(self, overwrite: bool = False) -> InMemory:  # noqa: ARG002
        return self

    def close(self) -> None:
        """Do nothing: the bytes outlive their stream."""


# Entries. -------------------------------------------------------------------------------------------------------------


def entries(io: DurableFileIO, manifest: ManifestFile) -> list[ManifestEntry]:
    """Return the live entries of a manifest, with the values that they inherit from it. Errors of the store pass
    through.

    Raises:
        Damaged: the manifest is damaged.
    """
    with reading(manifest.manifest_path):
        file = AvroFile[ManifestEntry](
            io.new_input(manifest.manifest_path),
            MANIFEST_ENTRY_SCHEMAS[NUMBERS_ROWS],
            read_types={-1: ManifestEntry, 2: DataFile},
            read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
        )
        with file as reader:
            found = [entry for entry in reader if entry.status is not ManifestEntryStatus.DELETED]
    next_row_id = _first_row_id(manifest)
    for entry in found:
        is_new = entry.status is ManifestEntryStatus.ADDED or manifest.sequence_number == 0
        if entry.snapshot_id is None and manifest.added_snapshot_id is not None:
            entry.snapshot_id = manifest.added_snapshot_id
        if is_new and entry.sequence_number is None:
            entry.sequence_number = manifest.sequence_number
        if is_new and entry.file_sequence_number is None:
            entry.file_sequence_number = manifest.sequence_number
        entry.data_file.spec_id = manifest.partition_spec_id
        if next_row_id is not None and entry.data_file[_FIRST_ROW_ID] is None:
            entry.data_file[_FIRST_ROW_ID] = next_row_id
            next_row_id += entry.data_file.record_count
    return found


class ManifestWriter(ManifestWriterV2):
    """Writes manifests of data files or delete files. pyiceberg supports neither delete files nor version 3.

    Args:
        content: whether the files are data or delete files.
        metadata: the table's metadata.
        spec: the partition spec of the files.
        schema: the columns of the files.
        output: the file to write.
        snapshot_id: the snapshot that adds the manifest; None if its entries inherit the id from the first manifest
            list that names it.
    """

    def __init__(
        self,
        content: ManifestContent,
        metadata: TableMetadata,
        spec: PartitionSpec,
        schema: Schema,
        output: Any,
        snapshot_id: int | None,
    ) -> None:
        super().__init__(spec, schema, output, snapshot_id, avro_compression(metadata.properties))  # type: ignore[arg-type]
        self._output, self._content = output, content
        self._types = [field.field_type for field in spec.partition_type(schema).fields]
        self._format_version: Any = metadata.format_version

    def to_manifest_file(self) -> ManifestFile:
        return _with_both_zeros(super().to_manifest_file(), self._types)

    def content(self) -> ManifestContent:
        return self._content

    @property
    def version(self) -> Any:
        return self._format_version

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": self._content.name.lower()}

    def _with_partition(self, format_version: Any) -> Schema:
        """Return the schema of entries, corrected to match the specification. Column ids are ``int``, where pyiceberg
        uses ``long``. Partition fields are optional, where pyiceberg makes the field of a required column required,
        although a struct around the column may be null."""
        schema = super()._with_partition(format_version)
        return Schema(*[_as_specified(field) for field in schema.fields])

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        schema = self._with_partition(self.version)
        return AvroOutputFile[ManifestEntry](
            output_file=self._output,
            file_schema=schema,
            record_schema=schema,
            schema_name="manifest_entry",
            metadata=self._meta,
        )


def _as_specified(field: NestedField) -> NestedField:
    if isinstance(field.field_type, StructType):
        parts = [_as_specified(part) for part in field.field_type.fields]
        if field.field_id == PARTITION:
            parts = [part.model_copy(update={"required": False}) for part in parts]
        return field.model_copy(update={"field_type": StructType(*parts)})
    if field.field_id == EQUALITY_IDS:
        return field.model_copy(update={"field_type": ListType(ELEMENT, IntegerType(), element_required=True)})
    return field


def _with_both_zeros(manifest: ManifestFile, types: Iterable[IcebergType]) -> ManifestFile:
    """Widen partition bounds that end at a zero, so that they include both -0.0 and 0.0. Changes and returns
    ``manifest``.

    Iceberg for Java orders -0.0 before 0.0. For Python, and so for pyiceberg, they are equal, and the bound is
    whichever came first.
    """
    for summary, of_type in zip(manifest.partitions or (), types, strict=False):
        if isinstance(of_type, FloatType | DoubleType):
            zeros = [to_bytes(of_type, zero) for zero in (-0.0, 0.0)]
            for place, bound in enumerate((summary.lower_bound, summary.upper_bound)):
                if bound in zeros:
                    summary[2 + place] = zeros[place]
    return manifest


# Lists. ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Written:
    """A manifest list that this process wrote.

    Attributes:
        location: its file, which is never modified.
        form: the format version and the codec of its blocks.
        blocks: its Avro blocks.
        manifests: the manifests in it.
    """

    location: str
    form: tuple[int, str]
    blocks: tuple[bytes, ...]
    manifests: tuple[ManifestFile, ...]


class ManifestLists:
    """Reads and writes the manifest lists of one table, and caches the last one written and the last one read. Errors
    of the store pass through."""

    def __init__(self) -> None:
        self._last: _Written | None = None
        self._read: tuple[str, Sequence[ManifestFile]] | None = None  # location and manifests of the last one read

    def read(self, io: DurableFileIO, snapshot: Snapshot) -> Sequence[ManifestFile]:
        """Return the manifests of a snapshot. Raises Damaged."""
        if (last := self._written_for(snapshot)) is not None:
            return last.manifests
        if self._read is None or self._read[0] != snapshot.manifest_list:
            with reading(snapshot.manifest_list):
                self._read = snapshot.manifest_list, _parsed(io.new_input(snapshot.manifest_list))
        return self._read[1]

    def live(self, io: DurableFileIO, snapshot: Snapshot | None) -> list[ManifestFile]:
        """Return the manifests of a snapshot that list live files."""
        found = [] if snapshot is None else self.read(io, snapshot)
        return [manifest for manifest in found if manifest.has_added_files() or manifest.has_existing_files()]

    def write(
        self,
        io: DurableFileIO,
        metadata: TableMetadata,
        new: NewSnapshot,
        manifests: Iterable[ManifestFile],
        parent: Snapshot | None = None,
        without: Collection[str] = (),
    ) -> int:
        """Write the manifest list of a proposed snapshot. Return the number of rows to which it assigns ids.

        Args:
            io: access to the table's files.
            metadata: the table's metadata.
            new: the snapshot.
            manifests: the snapshot's manifests besides those of ``parent``.
            parent: the snapshot whose manifests it keeps; None to keep none.
            without: the locations of the parent's manifests that it drops.
        """
        form = metadata.format_version, avro_compression(metadata.properties)
        last = None if without else self._written_for(parent)
        if last is None or last.form != form:
            others = [each for each in self.live(io, parent) if each.manifest_path not in without]
            content, rows = _encoded(form, new, [*manifests, *others])
            blocks, kept = list[bytes](), tuple[ManifestFile, ...]()
        else:
            content, rows = _encoded(form, new, manifests)
            blocks, kept = [*last.blocks], last.manifests
        start = header(content)[1]
        blocks = [*blocks_of(content, start), *blocks]
        io.create(new.manifest_list, with_blocks(content, start, blocks))
        added = _parsed(InMemory(content))
        self._last = _Written(new.manifest_list, form, tuple(blocks), (*added, *kept))
        return rows

    def _written_for(self, snapshot: Snapshot | None) -> _Written | None:
        last = self._last
        return last if last is not None and snapshot is not None and snapshot.manifest_list == last.location else None


def _parsed(file: Any) -> list[ManifestFile]:
    reader = AvroFile[ManifestFile](
        file,
        MANIFEST_LIST_FILE_SCHEMAS[NUMBERS_ROWS],
        read_types={-1: ManifestFile, 508: PartitionFieldSummary},
        read_enums={517: ManifestContent},
    )
    with reader as manifests:
        return [*manifests]


def _first_row_id(manifest: ManifestFile) -> int | None:
    """Return the first row id that a manifest list has assigned to a manifest; None if it has assigned none."""
    found: int | None = manifest[_OF_LIST] if len(manifest) > _OF_LIST else None
    return found


def _encoded(form: tuple[int, str], new: NewSnapshot, manifests: Iterable[ManifestFile]) -> tuple[bytes, int]:
    """Return the bytes of a manifest list, and the number of rows to which it assigns ids. In version 3, each manifest
    of data files without a first row id is assigned one."""
    version, codec = form
    meta = {
        "snapshot-id": str(new.snapshot_id),
        "parent-snapshot-id": "null" if new.parent_snapshot_id is None else str(new.parent_snapshot_id),
        "sequence-number": str(new.sequence_number),
        "format-version": str(version),
        AVRO_CODEC_KEY: codec,
    }
    if new.first_row_id is not None:
        meta["first-row-id"] = str(new.first_row_id)
    file: Any = InMemory()
    schema, listed, rows = MANIFEST_LIST_FILE_SCHEMAS[version], list[ManifestFile](), 0
    of_version_2 = ManifestListWriterV2(file, new.snapshot_id, new.parent_snapshot_id, new.sequence_number, codec)  # type: ignore[arg-type]
    for manifest in manifests:
        each, first = of_version_2.prepare_manifest(manifest), _first_row_id(manifest)
        if new.first_row_id is not None and first is None and each.content is ManifestContent.DATA:
            first = new.first_row_id + rows
            rows += (each.added_rows_count or 0) + (each.existing_rows_count or 0)
        listed.append(ManifestFile(*(each[place] for place in range(_OF_LIST)), first))
    with AvroOutputFile[ManifestFile](
        output_file=file, record_schema=schema, file_schema=schema, schema_name="manifest_file", metadata=meta
    ) as writer:
        writer.write_block(listed)
    return file.getvalue(), rows
