"""Position deletes: finds the rows of a snapshot that match a batch's keys.

The search runs when the batch is committed. It reads the key's columns of each data file that bounds and partitions do
not rule out. The result is valid for one snapshot only, so the commit requires that the branch still points to that
snapshot. If another writer was faster, the search runs again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import PYARROW_PARQUET_FIELD_ID_KEY, schema_to_pyarrow
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import parse_mapping_from_json
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, NestedField
from pyroaring import BitMap64

from twopc.keyed import READERS, ROWS_AT_ONCE, Part, find_rows, in_shares
from twopc.threads import call_at_once
from twopc_iceberg.delete_files import NO_CHANGES, Changes, DeletesOfSnapshot, LiveFile, layout_of, written
from twopc_iceberg.files import LOCAL
from twopc_iceberg.manifests import entries
from twopc_iceberg.outcomes import Damaged, Unsearchable, reading
from twopc_iceberg.partitions import transformed

if TYPE_CHECKING:
    import threading

    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from twopc_iceberg.files import DurableFileIO

REWRITE = "run rewrite_data_files with rewrite-all=true"
"""Advice that makes all files of a table searchable. Without rewrite-all, files of the right size are skipped."""

_NAME_MAPPING = "schema.name-mapping.default"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a batch.

    Attributes:
        ids: the ids of the key's columns.
        tables: the keys, with the columns that the table had when the tasks wrote the keys.
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


def unfit(files: Iterable[LiveFile], metadata: TableMetadata) -> str | None:
    """Return why rows of these files can't be deleted by position; None if they can."""
    specs = dict[int, str]()
    for file in files:
        specs.setdefault(file.spec, file.path)
        if file.format is not FileFormat.PARQUET:
            return f"has file {file.path}, which is not Parquet"
    for spec, path in specs.items():
        layout = layout_of(metadata, spec)
        if layout is None or any(isinstance(each, DoubleType) for each in layout.partition_types()):
            why = "the identity of a double, which pyiceberg misreads" if layout else "a column that was dropped"
            return f"has file {path} in a partition by {why}"
    return None


class Positions:
    """Finds rows in the snapshots of one table, and caches the manifests that it has read."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, tuple[int, ...]], tuple[LiveFile, ...]] = {}
        self._searchable: tuple[object, frozenset[str]] = (None, frozenset())

    def files(self, io: DurableFileIO, manifests: Iterable[ManifestFile], key: Sequence[int]) -> list[LiveFile]:
        """Return the data files of a snapshot. Raises Damaged; errors of the store pass through."""
        found = {(each.manifest_path, tuple(key)): each for each in manifests if each.content is ManifestContent.DATA}
        new = [name for name in found if name not in self._kept]

        def read(name: tuple[str, tuple[int, ...]]) -> tuple[LiveFile, ...]:
            return tuple(LiveFile.of(entry, key) for entry in entries(io, found[name]))

        kept = self._kept | dict(zip(new, call_at_once(read, new, READERS), strict=True))
        self._kept = {name: kept[name] for name in found}
        return [file for files in self._kept.values() for file in files]

    def require_searchable(
        self, metadata: TableMetadata, io: DurableFileIO, manifests: Sequence[ManifestFile], keys: Keys
    ) -> None:
        """Check that ``changes`` will be able to search a snapshot for the rows with these keys, and to read the
        deletes of the searched files. Errors of the store pass through.

        Opens each file that may contain one of the keys, once per process.

        Raises:
            Unsearchable: a file can't be searched; the message says what to do. Damaged: a file of the table can't be
                read.
        """
        search, known = _Search(io, metadata, keys), self._searchable
        files = [file for file in self.files(io, manifests, keys.ids) if search.may_have(file)]
        proven = known[1] if known[0] == search.finds_by else frozenset[str]()
        call_at_once(search.require_columns, [file for file in files if file.path not in proven], READERS)
        live = (file.path for of_manifest in self._kept.values() for file in of_manifest)
        self._searchable = search.finds_by, proven.intersection(live).union(file.path for file in files)
        deletes = DeletesOfSnapshot.read(io, manifests)
        for file in files:
            deletes.of_file(file)

    def changes(
        self, table: Table, io: DurableFileIO, snapshot_id: int, manifests: Sequence[ManifestFile], keys: Keys
    ) -> Changes:
        """Find the rows with these keys in a snapshot, and write delete files for the rows. Errors of the store pass
        through.

        Args:
            table: the table.
            io: access to its files.
            snapshot_id: the snapshot that gets the deletes.
            manifests: the manifests of its parent.
            keys: the keys of the batch.

        Raises:
            Damaged: a file of the table is gone or can't be read.
        """
        search = _Search(io, table.metadata, keys)
        files = [file for file in self.files(io, manifests, keys.ids) if search.may_have(file)]
        if why := unfit(files, table.metadata):
            raise Unsearchable(f"the table {why}: {REWRITE}")
        is_local = io.scheme(table.location()) == LOCAL
        found = {file: rows for share in in_shares(search.rows_of, files, is_local) for file, rows in share.items()}
        if not found:
            return NO_CHANGES
        deletes = DeletesOfSnapshot.read(io, manifests)
        earlier = {file: deletes.before(file) for file in found}
        touched = {file: rows | earlier[file] for file, rows in found.items() if rows - earlier[file]}
        return written(table, io, snapshot_id, deletes, touched) if touched else NO_CHANGES


# The search. ----------------------------------------------------------------------------------------------------------


class _Search:
    """Searches data files for the keys of a batch."""

    def __init__(self, io: DurableFileIO, metadata: TableMetadata, keys: Keys) -> None:
        self._io = io
        self._metadata = metadata
        self._mapping = metadata.properties.get(_NAME_MAPPING)
        schema = metadata.schema()
        self._schema = Schema(*[schema.find_field(field_id) for field_id in keys.ids])
        self._arrow = schema_to_pyarrow(self._schema, include_field_ids=False)
        # The key's columns may have been renamed or widened since the files of keys were written.
        tables = [table.rename_columns(self._arrow.names).cast(self._arrow) for table in keys.tables]
        self._keys = pa.concat_tables(tables).combine_chunks()
        self._comparable = [_comparable(column) for column in self._keys.columns]
        self._of_spec = {spec.spec_id: self._partitions(spec) for spec in metadata.partition_specs}

    def _partitions(self, spec: PartitionSpec) -> dict[int, pa.Array]:
        """Return the keys' values for each partition field that can exclude files, by the field's position. For other
        transforms, bounds exclude as much."""
        ids = self._schema.field_ids
        return {
            place: _comparable(pa.chunked_array([transformed(self._keys, each, self._schema)]))
            for place, each in enumerate(spec.fields)
            if each.source_id in ids and isinstance(each.transform, BucketTransform | IdentityTransform)
        }

    @property
    def finds_by(self) -> object:
        """The key's schema and the table's name mapping, which determine whether the key's columns are found in a
        file."""
        return self._schema, self._mapping

    def require_columns(self, file: LiveFile) -> None:
        """Check that a file's key columns can be found. Raises Unsearchable or Damaged; errors of the store pass
        through."""
        with reading(file.path), self._io.new_input(file.path).open() as source:
            known = self._names(file, pq.read_schema(source))
        for each, target in zip(self._schema.fields, self._arrow, strict=True):
            if each.field_id not in known:
                self._absent(file, each, target.type, 0)

    def may_have(self, file: LiveFile) -> bool:
        """Return whether a file may contain one of the keys."""
        return bool(pc.any(self._may_be_in(file)).as_py())

    def rows_of(self, files: Sequence[LiveFile], given_up: threading.Event) -> dict[LiveFile, BitMap64]:
        """Return the rows with one of the keys, by file. Raises Damaged; errors of the store pass through."""
        found = defaultdict[LiveFile, BitMap64](BitMap64)
        for file, positions in find_rows(self._keys, self._parts(files), given_up):
            found[file] |= BitMap64(positions)
        return found

    def _parts(self, files: Iterable[LiveFile]) -> Iterator[Part[LiveFile]]:
        for file in files:
            may_have = self._may_be_in(file)
            try:
                with reading(file.path), self._io.new_input(file.path).open() as source:
                    for first, columns in self._columns(file, pq.ParquetFile(source, coerce_int96_timestamp_unit="us")):
                        yield Part(file, first, columns, may_have)
            except FileNotFoundError:
                raise Damaged(f"file {file.path} is gone") from None

    def _may_be_in(self, file: LiveFile) -> pa.Array:
        """Return for each key whether the file may contain the key, judging by the file's bounds and partition."""
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
        """Yield chunks of the key's columns, each with the position of its first row."""
        known = self._names(file, parquet.schema_arrow)
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

    def _names(self, file: LiveFile, schema: pa.Schema) -> dict[int, str]:
        """Return the names of a file's columns by field id."""
        with_ids = [each for each in schema if PYARROW_PARQUET_FIELD_ID_KEY in (each.metadata or {})]
        if with_ids:
            return {int(each.metadata[PYARROW_PARQUET_FIELD_ID_KEY]): each.name for each in with_ids}
        if self._mapping is None:
            raise Unsearchable(
                f"file {file.path} has no ids of columns, and the table no property {_NAME_MAPPING!r}: set it, or"
                f" {REWRITE}"
            )
        known = parse_mapping_from_json(self._mapping).root
        by_name = {name: each.field_id for each in known for name in each.names if each.field_id is not None}
        return {by_name[name]: name for name in schema.names if name in by_name}

    def _absent(self, file: LiveFile, column: NestedField, kind: pa.DataType, rows: int) -> pa.Array:
        """Return the values of a column that a file lacks: the partition's value, as in imported files, or otherwise
        nulls. Raises Unsearchable if the column has a default for older rows."""
        spec = self._metadata.specs()[file.spec]
        for place, each in enumerate(spec.fields):
            if each.source_id == column.field_id and isinstance(each.transform, IdentityTransform):
                value = file.partition[place]
                return pa.repeat(pa.scalar(value, _comparable_type(kind)), rows).cast(kind)
        if column.initial_default is not None:
            raise Unsearchable(f"file {file.path} lacks column {column.name!r}, which has a default: {REWRITE}")
        return pa.nulls(rows, kind)


def _comparable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's values in manifests, where dates and times are integers."""
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _comparable(column: pa.ChunkedArray) -> pa.Array:
    return column.cast(_comparable_type(column.type)).combine_chunks()
