"""Reads and writes the position deletes of a snapshot.

Each data file has at most one delete file: a deletion vector in format version 3, as the specification requires, or a
position delete file in version 2. A new delete file includes the rows that other writers have deleted, and replaces the
data file's previous delete file.
"""

from __future__ import annotations

import json
import math
import struct
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.schema import Schema
from pyroaring import BitMap64

from twopc.deletion_vectors import bitmap_of, framed, unframed, vector_of
from twopc.keyed import READERS
from twopc.threads import call_at_once
from twopc_iceberg.layout import Layout
from twopc_iceberg.manifests import NUMBERS_ROWS, InMemory, ManifestWriter, entries
from twopc_iceberg.outcomes import Damaged, Unsearchable, reading
from twopc_iceberg.pyiceberg_internals import data_file

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Record

    from twopc_iceberg.files import DurableFileIO

PATH, POSITION = 2147483546, 2147483545
"""The column ids of a position delete file."""

_POSITIONS = pa.schema(
    [
        pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(field_id)})
        for name, kind, field_id in (("file_path", pa.string(), PATH), ("pos", pa.int64(), POSITION))
    ]
)
_PUFFIN = b"PFA1"
_REFERENCED, _OFFSET, _LENGTH = 17, 18, 19
"""Fields of a delete file's entry: its data file, and the offset and the length of its deletion vector."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of a snapshot.

    Attributes:
        path: its location.
        format: its file format.
        spec: the id of its partition spec.
        partition: its partition.
        sequence_number: the sequence number of the snapshot that added it.
        bounds: the lower and upper bounds of the key's columns, encoded as in the manifest; None for an unknown bound.
    """

    path: str
    format: FileFormat
    spec: int
    partition: Record
    sequence_number: int
    bounds: tuple[tuple[bytes | None, bytes | None], ...]

    @classmethod
    def of(cls, entry: ManifestEntry, key: Sequence[int]) -> LiveFile:
        file = entry.data_file
        lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
        bounds = tuple((lower.get(field_id), upper.get(field_id)) for field_id in key)
        sequence_number = entry.sequence_number or 0
        return cls(file.file_path, file.file_format, file.spec_id, file.partition, sequence_number, bounds)


@dataclass(frozen=True, slots=True)
class Changes:
    """The delete files of a snapshot, which delete rows of older files.

    Attributes:
        manifests: its new manifests of delete files.
        replaced: the locations of the parent's manifests that it drops.
        written: the locations of all files that were written for the snapshot.
        bytes: the total size of its new delete files.
        summary: the counts of delete files and deleted rows, for the snapshot's summary.
    """

    manifests: tuple[ManifestFile, ...] = ()
    replaced: frozenset[str] = frozenset()
    written: tuple[str, ...] = ()
    bytes: int = 0
    summary: Mapping[str, str] = field(default_factory=dict)


NO_CHANGES = Changes()


def layout_of(metadata: TableMetadata, spec_id: int) -> Layout | None:
    """Return a layout with which manifests of a partition spec can be written: the spec, and the newest schema that
    contains all source columns of the spec. None if there is no such schema."""
    spec = metadata.specs()[spec_id]
    sources = {each.source_id for each in spec.fields}
    schemas = (metadata.schema(), *reversed(metadata.schemas))
    return next((Layout.of(each, spec) for each in schemas if sources <= each.field_ids), None)


# Existing deletes. ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeletesOfSnapshot:
    """The position deletes of a snapshot.

    Attributes:
        io: access to the table's files.
        entries: the manifests of delete files, with their entries.
        by_path: the location of a data file → the deletes that apply to no other file.
        others: the deletes that may apply to several data files.
    """

    io: DurableFileIO
    entries: Mapping[ManifestFile, Sequence[ManifestEntry]]
    by_path: Mapping[str, Sequence[ManifestEntry]]
    others: Sequence[ManifestEntry]

    @classmethod
    def read(cls, io: DurableFileIO, manifests: Iterable[ManifestFile]) -> DeletesOfSnapshot:
        """Read the manifests of delete files. Raises Damaged; errors of the store pass through."""
        of_deletes = [each for each in manifests if each.content is ManifestContent.DELETES]
        found = dict(zip(of_deletes, call_at_once(lambda each: entries(io, each), of_deletes, READERS), strict=True))
        by_path, others = defaultdict[str, list[ManifestEntry]](list), list[ManifestEntry]()
        for entry in (entry for each in found.values() for entry in each):
            if entry.data_file.content is DataFileContent.POSITION_DELETES:
                path = _only_path(entry.data_file)
                (others if path is None else by_path[path]).append(entry)
        return cls(io, found, by_path, others)

    def before(self, file: LiveFile) -> BitMap64:
        """Return the rows of a data file that are already deleted. Raises Damaged; errors of the store pass through."""
        found = BitMap64()
        for delete in self.of_file(file):
            found |= self._rows(delete, file.path)
        return found

    def of_file(self, file: LiveFile) -> list[DataFile]:
        """Return the delete files that may apply to a data file. Raises Unsearchable if such a file has an unsupported
        format."""
        found: list[DataFile] = []
        others = (entry for entry in self.others if _applies(entry.data_file, file))
        for entry in (*self.by_path.get(file.path, ()), *others):
            delete = entry.data_file
            if (entry.sequence_number or 0) < file.sequence_number:
                continue
            if delete.file_format not in (FileFormat.PUFFIN, FileFormat.PARQUET):
                raise Unsearchable(
                    f"file {delete.file_path} has position deletes in {delete.file_format.name}: set the table's"
                    " property 'write.delete.format.default' to parquet, run rewrite_position_delete_files with"
                    " rewrite-all=true"
                )
            found.append(delete)
        return found

    def _rows(self, delete: DataFile, path: str) -> BitMap64:
        location = delete.file_path
        try:
            with reading(location), self.io.new_input(location).open() as source:
                if delete.file_format is FileFormat.PUFFIN:
                    source.seek(delete[_OFFSET])
                    return BitMap64.deserialize(bitmap_of(unframed(source.read(delete[_LENGTH]))))
                rows = pq.ParquetFile(source).read(["file_path", "pos"])
                return BitMap64(rows.filter(pc.equal(rows["file_path"], path))["pos"].to_pylist())
        except FileNotFoundError:
            raise Damaged(f"file {location} is gone") from None


def _only_path(delete: DataFile) -> str | None:
    """Return the only data file that a position delete file applies to; None if there may be several."""
    if delete[_REFERENCED] is not None:
        return str(delete[_REFERENCED])
    lower, upper = (delete.lower_bounds or {}).get(PATH), (delete.upper_bounds or {}).get(PATH)
    return lower.decode() if lower is not None and lower == upper else None


def _applies(delete: DataFile, file: LiveFile) -> bool:
    """Return whether a delete file for several data files may contain deletes for ``file``. Both must be in the same
    partition, as the Iceberg specification requires, and the path of ``file`` within the path bounds of the delete
    file."""
    places = range(len(file.partition))
    if delete.spec_id != file.spec or not all(_is_same(delete.partition[at], file.partition[at]) for at in places):
        return False
    lower, upper = (delete.lower_bounds or {}).get(PATH), (delete.upper_bounds or {}).get(PATH)
    return (lower is None or lower <= file.path.encode()) and (upper is None or file.path.encode() <= upper)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two partition values are the same. NaN is the same as NaN."""
    return one == other or all(isinstance(each, float) and math.isnan(each) for each in (one, other))


# New deletes. ---------------------------------------------------------------------------------------------------------


def written(
    table: Table, io: DurableFileIO, snapshot_id: int, deletes: DeletesOfSnapshot, touched: Mapping[LiveFile, BitMap64]
) -> Changes:
    """Write delete files with all deleted rows of the touched data files, and manifests that list the delete files."""
    metadata, name = table.metadata, uuid.uuid4()
    locations = table.location_provider()
    has_vectors = metadata.format_version >= NUMBERS_ROWS
    if has_vectors:
        new = _vectors(io, locations.new_data_location(f"{name}-deletes.puffin"), touched)
    else:
        places = {
            file: locations.new_data_location(f"{name}-{n:05d}-deletes.parquet") for n, file in enumerate(touched)
        }
        new = call_at_once(lambda file: _file_of_positions(io, places[file], file, touched[file]), [*touched], READERS)
    gone = {_identity(entry.data_file) for file in touched for entry in deletes.by_path.get(file.path, ())}
    affected = {m: found for m, found in deletes.entries.items() if any(_identity(e.data_file) in gone for e in found)}
    removed = [e.data_file for found in affected.values() for e in found if _identity(e.data_file) in gone]
    manifests = []
    for spec in sorted({each.spec_id for each in new} | {each.partition_spec_id for each in affected}):
        location = locations.new_metadata_location(f"{uuid.uuid4()}-m0.avro")
        of_spec = [entry for m, found in affected.items() if m.partition_spec_id == spec for entry in found]
        added = [each for each in new if each.spec_id == spec]
        manifests.append(_manifest(metadata, io, snapshot_id, location, spec, added, of_spec, gone))
    sizes = {each.file_path: each.file_size_in_bytes for each in new}
    return Changes(
        manifests=tuple(manifests),
        replaced=frozenset(each.manifest_path for each in affected),
        written=(*sizes, *(each.manifest_path for each in manifests)),
        bytes=sum(sizes.values()),
        summary={**_counts("added", new), **_counts("removed", removed)},
    )


def _identity(delete: DataFile) -> tuple[str, int | None]:
    return delete.file_path, delete[_OFFSET]


def _counts(how: str, deletes: Collection[DataFile]) -> dict[str, str]:
    of_vectors = sum(each.file_format is FileFormat.PUFFIN for each in deletes)
    found = {
        f"{how}-delete-files": len(deletes),
        f"{how}-dvs": of_vectors,
        f"{how}-position-delete-files": len(deletes) - of_vectors,
        f"{how}-position-deletes": sum(each.record_count for each in deletes),
    }
    return {name: str(count) for name, count in found.items() if count}


def _manifest(
    metadata: TableMetadata,
    io: DurableFileIO,
    snapshot_id: int,
    location: str,
    spec: int,
    added: Sequence[DataFile],
    before: Sequence[ManifestEntry],
    gone: Collection[tuple[str, int | None]],
) -> ManifestFile:
    """Write a manifest that lists the added delete files, and the previous delete files as existing or deleted."""
    layout, in_memory = layout_of(metadata, spec), InMemory(location=location)
    assert layout is not None  # otherwise ``unfit`` has refused its files
    schema = Schema(*layout.columns.fields)
    with ManifestWriter(ManifestContent.DELETES, metadata, layout.spec, schema, in_memory, snapshot_id) as writer:
        for each in added:
            writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=each))
        for entry in before:
            (writer.delete if _identity(entry.data_file) in gone else writer.existing)(entry)
    io.create(location, in_memory.getvalue())
    return writer.to_manifest_file()


def _file_of_positions(io: DurableFileIO, location: str, file: LiveFile, rows: BitMap64) -> DataFile:
    content = pa.BufferOutputStream()
    table = pa.table([pa.array([file.path]).take(pa.repeat(0, len(rows))), [*rows]], schema=_POSITIONS)
    pq.write_table(
        table, content, compression="zstd", column_encoding={"pos": "DELTA_BINARY_PACKED"}, use_dictionary=["file_path"]
    )
    data = content.getvalue().to_pybytes()
    io.create(location, data)
    return _delete(file, rows, location, len(data), FileFormat.PARQUET)


def _vectors(io: DurableFileIO, location: str, touched: Mapping[LiveFile, BitMap64]) -> list[DataFile]:
    """Write a Puffin file of deletion vectors."""
    content, blobs, places = bytearray(_PUFFIN), list[dict[str, Any]](), dict[LiveFile, tuple[int, int]]()
    for file, rows in touched.items():
        blob = framed(vector_of(rows.serialize()))
        places[file] = len(content), len(blob)
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [POSITION],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": {"referenced-data-file": file.path, "cardinality": str(len(rows))},
            }
        )
        content += blob
    footer = json.dumps({"blobs": blobs, "properties": {"created-by": "twopc"}}).encode()
    content += _PUFFIN + footer + struct.pack("<i", len(footer)) + bytes(4) + _PUFFIN
    io.create(location, bytes(content))
    return [
        _delete(file, rows, location, len(content), FileFormat.PUFFIN, *places[file]) for file, rows in touched.items()
    ]


def _delete(
    file: LiveFile,
    rows: BitMap64,
    location: str,
    length: int,
    of_format: FileFormat,
    offset: int | None = None,
    size: int | None = None,
) -> DataFile:
    found = data_file(
        content=DataFileContent.POSITION_DELETES,
        file_path=location,
        file_format=of_format,
        partition=file.partition,
        record_count=len(rows),
        file_size_in_bytes=length,
        # Readers infer from equal bounds that the file applies to a single data file.
        lower_bounds={PATH: file.path.encode()},
        upper_bounds={PATH: file.path.encode()},
        referenced_data_file=file.path,
        content_offset=offset,
        content_size_in_bytes=size,
    )
    found.spec_id = file.spec
    return found
