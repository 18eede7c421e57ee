"""A catalog in SQLite or PostgreSQL whose commits do not become slower with each snapshot that the table keeps.

Each commit of pyiceberg's ``SqlCatalog`` parses the table's metadata file, and copies all of it in memory, snapshot by
snapshot. Neither is needed: a metadata file never changes, as each commit writes one of a new name, and parsed metadata
is immutable.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.io import load_file_io
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from sqlalchemy import select
from sqlalchemy.orm import Session

from twopc_iceberg.outcomes import reading


class SharedMetadata(TableMetadataV2):
    """A table's metadata, of which a changed copy shares what has not changed."""

    def model_copy(self, *, update: Any = None, deep: bool = False) -> SharedMetadata:  # noqa: ARG002
        return super().model_copy(update=update)

    @classmethod
    def of(cls, metadata: TableMetadata) -> TableMetadata:
        """Return the same metadata. That of other versions than 2, which the sink refuses, is left as it is."""
        return cls.model_construct(**dict(metadata)) if type(metadata) is TableMetadataV2 else metadata


class KeptSqlCatalog(SqlCatalog):
    """A SQL catalog that keeps the metadata of the table that it was last asked for.

    It asks the database for the location of the metadata each time, and reads the file only if that has changed.
    """

    _kept: tuple[str, TableMetadata] | None = None

    def load_table(self, identifier: str | Identifier) -> Table:
        kept, location = self._kept, self._location(identifier)
        if kept is None or kept[0] != location:
            with reading(location):
                table = super().load_table(identifier)
            kept = self._kept = table.metadata_location, SharedMetadata.of(table.metadata)
        location, metadata = kept
        io = load_file_io({**self.properties, **metadata.properties}, location)
        return Table(Catalog.identifier_to_tuple(identifier), metadata, location, io, self)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        response = super().commit_table(table, requirements, updates)
        self._kept = response.metadata_location, response.metadata
        return response

    def _location(self, identifier: str | Identifier) -> str | None:
        """Return the location of the table's metadata by the database."""
        wanted = select(IcebergTables.metadata_location).where(
            IcebergTables.catalog_name == self.name,
            IcebergTables.table_namespace == Catalog.namespace_to_string(Catalog.namespace_from(identifier)),
            IcebergTables.table_name == Catalog.table_name_from(identifier),
        )
        with Session(self.engine) as session:
            return session.scalar(wanted)
