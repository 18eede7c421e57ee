"""Caches metadata for catalogs that store it in a file, so that commits do not slow down as a table's snapshots
accumulate.

pyiceberg checks the requirements of a commit against that file in this process. The catalog only replaces the file's
location, and refuses the commit if the location has changed by then.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import load_file_io
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2, TableMetadataV3
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate, ValidatableTableRequirement
from pyiceberg.typedef import IcebergBaseModel, Identifier

from twopc_iceberg.outcomes import reading


class _Shared(IcebergBaseModel):
    """Table metadata whose modified copies share the unchanged parts."""

    def model_copy(self, *, update: Any = None, deep: bool = False) -> Any:  # noqa: ARG002
        return super().model_copy(update=update)

    def model_dump_json(  # type: ignore[override]  # as pyiceberg has it
        self, exclude_none: bool = True, exclude: Any | None = None, by_alias: bool = True, **kwargs: Any
    ) -> str:
        # pyiceberg 0.12 refuses version 3.
        return IcebergBaseModel.model_dump_json(self, exclude_none, exclude, by_alias, **kwargs)


class _SharedV2(_Shared, TableMetadataV2):
    """Metadata of format version 2."""


class _SharedV3(_Shared, TableMetadataV3):
    """Metadata of format version 3."""


def _shared(metadata: TableMetadata) -> TableMetadata:
    """Return the metadata as a class whose copies share. Version 1, which the sink refuses, is returned unchanged."""
    match metadata:
        case TableMetadataV2():
            return _SharedV2.model_construct(**dict(metadata))
        case TableMetadataV3():  # pyiceberg creates these without next-row-id, which the specification requires
            return _SharedV3.model_construct(**{**dict(metadata), "next_row_id": metadata.next_row_id or 0})
        case _:
            return metadata


class _NewSequenceNumber(ValidatableTableRequirement):
    """Requires that a snapshot's sequence number is new. pyiceberg checks this only in version 2."""

    type: str = "twopc-new-sequence-number"
    snapshot: Snapshot

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as pyiceberg has it
        if not isinstance(base_metadata, TableMetadataV3) or self.snapshot.parent_snapshot_id is None:
            return
        if (self.snapshot.sequence_number or 0) <= base_metadata.last_sequence_number:
            raise CommitFailedException(f"sequence number {self.snapshot.sequence_number} is taken")


class KeepsMetadata(MetastoreCatalog):
    """Keeps the metadata of the last loaded table, and reads the metadata file only if its location has changed."""

    _kept: tuple[str, TableMetadata] | None = None

    def answers(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that maps errors of the catalog's client to errors that ``outcomes`` classifies."""
        return contextlib.nullcontext()

    def load_table(self, identifier: str | Identifier) -> Table:
        with self.answers():
            return super().load_table(identifier)  # type: ignore[safe-super]

    def _kept_table(self, identifier: str | Identifier, location: str | None, load: Callable[[], Table]) -> Table:
        """Return the table. Calls ``load`` only if ``location``, which the catalog has returned, is not the location of
        the kept metadata."""
        kept = self._kept
        if kept is None or kept[0] != location:
            with reading(location):
                table = load()
            kept = self._kept = table.metadata_location, _shared(table.metadata)
        location, metadata = kept
        io = load_file_io({**self.properties, **metadata.properties}, location)
        return Table(Catalog.identifier_to_tuple(identifier), metadata, location, io, self)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        added = [each.snapshot for each in updates if isinstance(each, AddSnapshotUpdate)]
        own = (_NewSequenceNumber(snapshot=each) for each in added)
        response = super().commit_table(table, (*requirements, *own), updates)  # type: ignore[arg-type, safe-super]
        self._kept = response.metadata_location, response.metadata
        return response


class ProbedCatalog(Catalog):
    """A catalog that can't be tested with a false requirement, because pyiceberg itself rejects the requirement before
    it sends a request."""

    @abstractmethod
    def probe(self, table: Table) -> None:
        """Request a change that the catalog must refuse if concurrent commits are to exclude each other.

        Raises:
            CommitFailedException: the catalog refuses the change, as it must.
            ConfigurationError: the sink can't write tables of this kind.
        """
