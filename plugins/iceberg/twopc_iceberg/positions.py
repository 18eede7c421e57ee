"""Position deletes: which rows of a snapshot the keys of a batch have, and the delete files that name them.

The rows are found when the batch is committed, in the key's columns of the data files that bounds and partitions leave.
What was found holds for one snapshot, and the request requires that the branch still has it. If another writer was
faster, the rows are found again.

A data file has one delete file: a deletion vector in format version 3, which the specification demands, and a file of
positions in version 2. Rows that others have deleted are in it, too, and it replaces the one that the data file had.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
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
from pyiceberg.table.name_mapping import parse_mapping_from_json
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, NestedField
from pyroaring import BitMap64

from twopc_iceberg import avro
from twopc_iceberg.layout import Layout
from twopc_iceberg.manifests import NUMBERS_ROWS, ManifestWriter, data_file, entries
from twopc_iceberg.outcomes import Damaged, reading
from twopc_iceberg.partitions import transformed
from twopc_iceberg.prepared import with_both_zeros
from twopc_iceberg.table import avro_compression

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Record

    from twopc_iceberg.files import DurableFileIO

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

ROWS_AT_ONCE = 2**18
"""How many rows of a file are compared at a time."""

MOST_READERS = 8
"""How many files are read at a time."""

PATH, POSITION = 2147483546, 2147483545
"""The ids of the columns of a file of positions."""

_POSITIONS = pa.schema(
    [
        pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(field_id)})
        for name, kind, field_id in (("file_path", pa.string(), PATH), ("pos", pa.int64(), POSITION))
    ]
)
_PUFFIN = b"PFA1"
_VECTOR = b"\xd1\xd3\x39\x64"
_REFERENCED, _OFFSET, _LENGTH = 17, 18, 19
"""Where a delete file has the data file that it is for, and the place of its vector."""

_NAME_MAPPING = "schema.name-mapping.default"
_ROW = "__twopc_row"


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of a snapshot.

    Attributes:
        path: its location.
        format: of which kind it is.
        spec: the id of its partition spec.
        partition: its partition.
        sequence_number: when it came.
        bounds: the bounds of the key's columns, as the manifest has them; None where one is not known.
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
class Keys:
    """The keys of a batch.

    Attributes:
        ids: the ids of the key's columns.
        tables: the keys, with the columns as their tasks knew them.
    """

    ids: tuple[int, ...]
    tables: tuple[pa.Table, ...] = field(repr=False)

    @classmethod
    def read(cls, io: DurableFileIO, ids: Sequence[int], files: Sequence[str]) -> Keys:
        """Read files of keys. Raises Damaged; errors of the store pass through."""

        def table(location: str) -> pa.Table:
            with reading(location), io.new_input(location).open() as source:
                return pq.ParquetFile(source).read()

        return cls(tuple(ids), tuple(io.at_once(table, files)))


@dataclass(frozen=True, slots=True)
class Changes:
    """What a snapshot changes of the files before it.

    Attributes:
        manifests: the manifests of delete files that it gets.
        replaced: the locations of those that it does not keep.
        written: the locations of all files that were written for it.
        bytes: how large its delete files are.
        summary: what the summary of the snapshot has of them.
    """

    manifests: tuple[ManifestFile, ...] = ()
    replaced: frozenset[str] = frozenset()
    written: tuple[str, ...] = ()
    bytes: int = 0
    summary: Mapping[str, str] = field(default_factory=dict)


NO_CHANGES = Changes()


def unfit(files: Iterable[LiveFile], metadata: TableMetadata) -> str | None:
    """Return why rows of these files can't be deleted by their position; None if they can."""
    for file in files:
        if file.format is not FileFormat.PARQUET:
            return f"has file {file.path}, which is not Parquet: run rewrite_data_files, or use deletes=equality"
        spec = metadata.specs().get(file.spec)
        if spec is not None and any(isinstance(each, DoubleType) for each in _layout(metadata, spec).partition_types()):
            return (
                f"has file {file.path} in a partition by the identity of a double, which pyiceberg misreads: replace"
                " the partition field and run rewrite_data_files, or use deletes=equality"
            )
    return None


class Positions:
    """Finds rows in the snapshots of one table, and keeps what it has read of their manifests."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, tuple[int, ...]], tuple[LiveFile, ...]] = {}

    def files(self, io: DurableFileIO, manifests: Iterable[ManifestFile], key: Sequence[int]) -> list[LiveFile]:
        """Return the data files of a snapshot. Raises Damaged; errors of the store pass through."""
        found = {(each.manifest_path, tuple(key)): each for each in manifests if each.content is ManifestContent.DATA}
        new = [name for name in found if name not in self._kept]

        def read(name: tuple[str, tuple[int, ...]]) -> tuple[LiveFile, ...]:
            return tuple(LiveFile.of(entry, key) for entry in entries(io, found[name]))

        kept = self._kept | dict(zip(new, _in_threads(read, new), strict=True))
        self._kept = {name: kept[name] for name in found}
        return [file for files in self._kept.values() for file in files]

    def changes(
        self, table: Table, io: DurableFileIO, snapshot_id: int, manifests: Sequence[ManifestFile], keys: Keys
    ) -> Changes:
        """Find the rows of ``keys`` in a snapshot, and write what deletes them. Errors of the store pass through.

        Args:
            table: the table.
            io: access to its files.
            snapshot_id: the snapshot that gets the deletes.
            manifests: those of the snapshot before it.
            keys: the keys of the batch.

        Raises:
            Damaged: a file of the table is gone or can't be read.
        """
        search = _Search(io, table.metadata, keys)
        files = [file for file in self.files(io, manifests, keys.ids) if search.may_have(file)]
        if why := unfit(files, table.metadata):
            raise Damaged(f"the table {why}")
        found = {file: rows for file, rows in zip(files, _in_threads(search.rows_of, files), strict=True) if rows}
        deletes = _Deletes.read(io, manifests) if found else None
        if deletes is None:
            return NO_CHANGES
        earlier = {file: deletes.before(file) for file in found}
        touched = {file: rows | earlier[file] for file, rows in found.items() if rows - earlier[file]}
        return _written(table, io, snapshot_id, deletes, touched) if touched else NO_CHANGES


def _in_threads(call: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> list[ResultT]:
    if len(items) <= 1:
        return [call(each) for each in items]
    readers = min(MOST_READERS, len(items), max(2, os.cpu_count() or 1))
    with ThreadPoolExecutor(readers, thread_name_prefix="twopc-iceberg-positions") as pool:
        return list(pool.map(call, items))


def _layout(metadata: TableMetadata, spec: PartitionSpec) -> Layout:
    """Return the spec with columns that it can be written with: those of the newest schema that has its sources."""
    sources = {each.source_id for each in spec.fields}
    schemas = (metadata.schema(), *reversed(metadata.schemas))
    return Layout.of(next(each for each in schemas if sources <= each.field_ids), spec)


# The search. ----------------------------------------------------------------------------------------------------------


class _Search:
    """Finds the rows of a batch's keys in one data file after the other."""

    def __init__(self, io: DurableFileIO, metadata: TableMetadata, keys: Keys) -> None:
        self._io = io
        self._metadata = metadata
        schema = metadata.schema()
        self._schema = Schema(*[schema.find_field(field_id) for field_id in keys.ids])
        self._arrow = schema_to_pyarrow(self._schema, include_field_ids=False)
        # The key's columns may have been renamed and widened since their files were written.
        tables = [table.rename_columns(self._arrow.names).cast(self._arrow) for table in keys.tables]
        self._keys = pa.concat_tables(tables).combine_chunks()
        self._comparable = [_comparable(column) for column in self._keys.columns]
        self._of_spec = {spec.spec_id: self._partitions(spec) for spec in metadata.partition_specs}

    def _partitions(self, spec: PartitionSpec) -> dict[int, pa.Array]:
        """Return the place of each partition field by which keys can be told apart, and its value of each key. Bounds
        do as well for other transforms."""
        ids = self._schema.field_ids
        return {
            place: _comparable(pa.chunked_array([transformed(self._keys, each, self._schema)]))
            for place, each in enumerate(spec.fields)
            if each.source_id in ids and isinstance(each.transform, BucketTransform | IdentityTransform)
        }

    def may_have(self, file: LiveFile) -> bool:
        """Whether a file may have one of the keys."""
        return bool(pc.any(self._may_be_in(file)).as_py())

    def rows_of(self, file: LiveFile) -> BitMap64:
        """Return the rows of a file that have one of the keys. Raises Damaged; errors of the store pass through."""
        keys, found = self._keys.filter(self._may_be_in(file)), BitMap64()
        try:
            with reading(file.path), self._io.new_input(file.path).open() as source:
                for start, columns in self._columns(file, pq.ParquetFile(source, coerce_int96_timestamp_unit="us")):
                    found |= BitMap64(start + position for position in _positions(columns, keys))
        except FileNotFoundError:
            raise Damaged(f"file {file.path} is gone") from None
        return found

    def _may_be_in(self, file: LiveFile) -> pa.Array:
        """Return for each key whether the file may have it, by its bounds and its partition."""
        found = pa.repeat(pa.scalar(True), self._keys.num_rows)
        for column, (lower, upper), each in zip(self._comparable, file.bounds, self._schema.fields, strict=True):
            for bound, compare in ((lower, pc.greater_equal), (upper, pc.less_equal)):
                if bound is not None:
                    value = from_bytes(each.field_type, bound)  # type: ignore[arg-type]  # a primitive one
                    found = pc.and_(found, compare(column, pa.scalar(value, column.type)))
        for place, values in self._of_spec[file.spec].items():
            value = file.partition[place]
            is_there = pa.scalar(False) if value is None else pc.equal(values, pa.scalar(value, values.type))
            found = pc.and_(found, is_there)
        return found

    def _columns(self, file: LiveFile, parquet: pq.ParquetFile) -> Iterator[tuple[int, list[pa.Array]]]:
        """Yield parts of the key's columns, each with the position of its first row."""
        known = self._names(parquet.schema_arrow)
        names = [known.get(each.field_id) for each in self._schema.fields]
        wanted, start = [name for name in names if name is not None], 0
        for group in range(parquet.num_row_groups):
            count = parquet.metadata.row_group(group).num_rows
            parts: Iterable[Any] = [{}]
            if wanted:
                parts = parquet.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=wanted)
            for part in parts:
                rows = part.num_rows if wanted else count
                yield (
                    start,
                    [
                        self._absent(file, each, target.type, rows) if name is None else part[name].cast(target.type)
                        for name, each, target in zip(names, self._schema.fields, self._arrow, strict=True)
                    ],
                )
                start += rows

    def _names(self, schema: pa.Schema) -> dict[int, str]:
        """Return the name of each column of a file by its id."""
        ids = {int(each.metadata[b"PARQUET:field_id"]): each.name for each in schema if _has_id(each)}
        if ids:
            return ids
        mapping = self._metadata.properties.get(_NAME_MAPPING)
        if mapping is None:
            raise ValueError("it has no ids of columns, and the table no schema.name-mapping.default")
        known = parse_mapping_from_json(mapping).root
        by_name = {name: each.field_id for each in known for name in each.names if each.field_id is not None}
        return {by_name[name]: name for name in schema.names if name in by_name}

    def _absent(self, file: LiveFile, column: NestedField, kind: pa.DataType, rows: int) -> pa.Array:
        """Return the values of a column that a file lacks: those of its partition, as after an import of such files, or
        the default for rows that are older than the column."""
        spec = self._metadata.specs()[file.spec]
        for place, each in enumerate(spec.fields):
            if each.source_id == column.field_id and isinstance(each.transform, IdentityTransform):
                value = file.partition[place]
                return pa.repeat(pa.scalar(value, _comparable_type(kind)), rows).cast(kind)
        if column.initial_default is not None:
            raise ValueError(f"it lacks column {column.name!r}, which has a default: run rewrite_data_files")
        return pa.nulls(rows, kind)


def _has_id(column: pa.Field) -> bool:
    return column.metadata is not None and b"PARQUET:field_id" in column.metadata


def _comparable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's values in manifests, which have dates and times as whole numbers."""
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _comparable(column: pa.ChunkedArray) -> pa.Array:
    return column.cast(_comparable_type(column.type)).combine_chunks()


def _positions(columns: Sequence[pa.Array], keys: pa.Table) -> list[int]:
    """Return the positions at which the columns have one of the keys."""
    has_part = pc.is_in(columns[0], value_set=keys.column(0).combine_chunks())
    for column, of_keys in zip(columns[1:], keys.columns[1:], strict=True):
        has_part = pc.and_(has_part, pc.is_in(column, value_set=of_keys.combine_chunks()))
    at = pc.indices_nonzero(has_part)
    if len(columns) > 1 and len(at):
        candidates = pa.Table.from_arrays([*(column.take(at) for column in columns), at], [*keys.column_names, _ROW])
        at = candidates.join(keys, keys.column_names, join_type="left semi").column(_ROW)
    found: list[int] = at.to_pylist()
    return found


# What a snapshot deletes already. -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Deletes:
    """The position deletes of a snapshot.

    Attributes:
        io: access to the table's files.
        entries: the manifests of delete files, and what is in each.
        by_path: the location of a data file → the deletes for it alone.
        others: deletes for several data files.
    """

    io: DurableFileIO
    entries: Mapping[ManifestFile, Sequence[ManifestEntry]]
    by_path: Mapping[str, Sequence[ManifestEntry]]
    others: Sequence[ManifestEntry]

    @classmethod
    def read(cls, io: DurableFileIO, manifests: Iterable[ManifestFile]) -> _Deletes:
        """Read the manifests of delete files. Raises Damaged; errors of the store pass through."""
        of_deletes = [each for each in manifests if each.content is ManifestContent.DELETES]
        found = dict(zip(of_deletes, _in_threads(lambda each: entries(io, each), of_deletes), strict=True))
        by_path, others = defaultdict[str, list[ManifestEntry]](list), list[ManifestEntry]()
        for entry in (entry for each in found.values() for entry in each):
            if entry.data_file.content is DataFileContent.POSITION_DELETES:
                path = _only_path(entry.data_file)
                others.append(entry) if path is None else by_path[path].append(entry)
        return cls(io, found, by_path, others)

    def before(self, file: LiveFile) -> BitMap64:
        """Return the rows of a data file that are deleted. Raises Damaged; errors of the store pass through."""
        found = BitMap64()
        for entry in (*self.by_path.get(file.path, ()), *self.others):
            delete = entry.data_file
            is_meant = _only_path(delete) is not None or (
                (delete.spec_id, delete.partition) == (file.spec, file.partition) and _may_name(delete, file.path)
            )
            if is_meant and (entry.sequence_number or 0) >= file.sequence_number:
                found |= self._rows(delete, file.path)
        return found

    def _rows(self, delete: DataFile, path: str) -> BitMap64:
        location = delete.file_path
        try:
            with reading(location), self.io.new_input(location).open() as source:
                if delete.file_format is FileFormat.PUFFIN:
                    source.seek(delete[_OFFSET])
                    return _vector(source.read(delete[_LENGTH]))
                rows = pq.ParquetFile(source).read(["file_path", "pos"])
                return BitMap64(rows.filter(pc.equal(rows["file_path"], path))["pos"].to_pylist())
        except FileNotFoundError:
            raise Damaged(f"file {location} is gone") from None


def _only_path(delete: DataFile) -> str | None:
    """Return the data file that a file of position deletes is for; None if it may be for several."""
    if delete[_REFERENCED] is not None:
        return str(delete[_REFERENCED])
    lower, upper = (delete.lower_bounds or {}).get(PATH), (delete.upper_bounds or {}).get(PATH)
    return lower.decode() if lower is not None and lower == upper else None


def _may_name(delete: DataFile, path: str) -> bool:
    lower, upper = (delete.lower_bounds or {}).get(PATH), (delete.upper_bounds or {}).get(PATH)
    return (lower is None or lower <= path.encode()) and (upper is None or path.encode() <= upper)


# What is written. -----------------------------------------------------------------------------------------------------


def _written(
    table: Table, io: DurableFileIO, snapshot_id: int, deletes: _Deletes, touched: Mapping[LiveFile, BitMap64]
) -> Changes:
    """Write delete files with all deleted rows of the touched data files, and the manifests with them."""
    metadata, name = table.metadata, uuid.uuid4()
    locations = table.location_provider()
    has_vectors = metadata.format_version >= NUMBERS_ROWS
    if has_vectors:
        new = _vectors(io, locations.new_data_location(f"{name}-deletes.puffin"), touched)
    else:
        places = {
            file: locations.new_data_location(f"{name}-{n:05d}-deletes.parquet") for n, file in enumerate(touched)
        }
        new = _in_threads(lambda file: _file_of_positions(io, places[file], file, touched[file]), [*touched])
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
    """Write a manifest of the added delete files, and of those before, as the snapshot keeps or removes them."""
    layout, in_memory = _layout(metadata, metadata.specs()[spec]), avro.InMemory(location=location)
    with ManifestWriter(
        ManifestContent.DELETES,
        metadata.format_version,
        spec=layout.spec,
        schema=Schema(*layout.columns.fields),
        output_file=in_memory,
        snapshot_id=snapshot_id,
        avro_compression=avro_compression(metadata.properties),
    ) as writer:
        for each in added:
            writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=each))
        for entry in before:
            (writer.delete if _identity(entry.data_file) in gone else writer.existing)(entry)
    _store(io, location, in_memory.content)
    return with_both_zeros(writer.to_manifest_file(), layout.partition_types())


def _file_of_positions(io: DurableFileIO, location: str, file: LiveFile, rows: BitMap64) -> DataFile:
    content = pa.BufferOutputStream()
    table = pa.table([pa.array([file.path]).take(pa.repeat(0, len(rows))), [*rows]], schema=_POSITIONS)
    pq.write_table(
        table, content, compression="zstd", column_encoding={"pos": "DELTA_BINARY_PACKED"}, use_dictionary=["file_path"]
    )
    data = content.getvalue().to_pybytes()
    _store(io, location, data)
    return _delete(file, rows, location, len(data), FileFormat.PARQUET)


def _vectors(io: DurableFileIO, location: str, touched: Mapping[LiveFile, BitMap64]) -> list[DataFile]:
    """Write a Puffin file of deletion vectors."""
    content, blobs, places = bytearray(_PUFFIN), list[dict[str, Any]](), dict[LiveFile, tuple[int, int]]()
    for file, rows in touched.items():
        data = _VECTOR + rows.serialize()
        blob = struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
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
    _store(io, location, bytes(content))
    return [
        _delete(file, rows, location, len(content), FileFormat.PUFFIN, *places[file]) for file, rows in touched.items()
    ]


def _store(io: DurableFileIO, location: str, data: bytes) -> None:
    with io.new_output(location).create(overwrite=True) as stream:
        stream.write(data)


def _vector(blob: bytes) -> BitMap64:
    """Read a deletion vector. Raises ValueError."""
    data = blob[4:-4]
    if (
        blob[:4] != struct.pack(">i", len(data))
        or data[:4] != _VECTOR
        or blob[-4:] != struct.pack(">I", zlib.crc32(data))
    ):
        raise ValueError("its deletion vector is cut short, or its checksum is wrong")
    return BitMap64.deserialize(data[4:])


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
        # Readers take equal bounds for a file that is for one data file alone.
        lower_bounds={PATH: file.path.encode()},
        upper_bounds={PATH: file.path.encode()},
        referenced_data_file=file.path,
        content_offset=offset,
        content_size_in_bytes=size,
    )
    found.spec_id = file.spec
    return found
