"""An Iceberg table in a SQLite or REST catalog, with its files on a disk or in S3."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType, S3FileSystem
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from tests.campaigns.every_step.blows import Strike
from tests.campaigns.every_step.steps import Steps
from tests.campaigns.tables.calls import on_files, on_requests, on_sql
from tests.campaigns.tables.table import reader
from twopc_iceberg import IcebergSink
from twopc_iceberg.catalogs import TransactionalCatalog
from twopc_iceberg.notes import BATCH, FOLDER

PROPERTIES = {
    # Maintenance that comes after weeks in production comes after batches here.
    "commit.manifest.min-count-to-merge": "3",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # A rewrite that pyiceberg repeats after a conflict would remove the records that were appended meanwhile.
    "commit.retry.num-retries": "0",
}

OURS = "twopc."
"""The start of the name of every file of a transaction, and of its note."""


def here() -> None:
    """The catalog is reached from where this process is."""


@dataclass(frozen=True)
class IcebergTable:
    """One table.

    Attributes:
        name: the namespace and the name.
        catalog_uri: the URI of the catalog.
        location: where the table's files are.
        folder: a local folder, for what the campaign notes.
        s3: pyiceberg's options to reach S3; none without it.
        reach: called before the catalog is used.
        kept: how long ``expire`` keeps versions.
        upsert_by: the key of the sink's records. pyiceberg reads no table with equality deletes.
        deletes: how the sink deletes rows; its default if empty.
    """

    name: str
    catalog_uri: str
    location: str
    folder: Path
    s3: Mapping[str, str] = field(default_factory=dict)
    reach: Callable[[], None] = here
    kept: timedelta = timedelta(0)
    upsert_by: str = ""
    deletes: str = ""

    def catalog(self) -> Catalog:
        """Return the catalog, as another program connects to it."""
        self.reach()
        return load_catalog("default", uri=self.catalog_uri, warehouse=self.location, **self.s3)

    def create(self, schema: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        catalog = self.catalog()
        catalog.create_namespace_if_not_exists(self.name.partition(".")[0])
        with catalog.create_table_transaction(
            self.name, schema, self.location, properties=PROPERTIES
        ) as created, created.update_spec() as spec:  # fmt: skip
            for column in partition_by:
                spec.add_field(column, IdentityTransform(), column)

    def table(self) -> Table:
        return self.catalog().load_table(self.name)

    def sink(self) -> IcebergSink:
        self.reach()
        return IcebergSink(self.options)

    @property
    def options(self) -> Mapping[str, Any]:
        of_s3 = {f"catalog.{name}": value for name, value in self.s3.items()}
        key = {"upsert_by": self.upsert_by} if self.upsert_by else {}
        key |= {"deletes": self.deletes} if self.deletes else {}
        return {"table": self.name, "catalog.uri": self.catalog_uri, **of_s3, **key}

    def append(self, records: pa.Table) -> None:
        table = self.table()
        table.append(records.cast(table.schema().as_arrow()))

    def compact(self) -> None:
        table = self.table()
        with suppress(CommitFailedException):  # another writer was faster; there will be a next time
            table.overwrite(self._read(table))

    def expire(self) -> None:
        with suppress(CommitFailedException):
            table = self.table()
            self._note(_files(table) | self._files_of(_batches(table)))
            oldest = datetime.now(tz=timezone.utc) - self.kept
            table.maintenance.expire_snapshots().older_than(oldest.replace(tzinfo=None)).commit()

    def _note(self, names: set[str]) -> set[str]:
        """Note the files of versions that are about to be forgotten. Only ``remove_orphan_files`` removes them: nobody
        can tell any more whether a lost attempt of a batch is in the batch's snapshot."""
        path = self.folder / f"files-of-forgotten-versions-of-{self.name}"
        names |= set(json.loads(path.read_text())) if path.exists() else set()
        aside = path.with_name(f"{path.name}.aside")
        aside.write_text(json.dumps(sorted(names)))
        aside.replace(path)
        return names

    def _files_of(self, batches: set[str]) -> set[str]:
        """Return the names of the data files and manifests of some batches, in the table or not."""
        return {
            path.rpartition("/")[2]
            for path in self._ours()
            if f"/{FOLDER}/" not in path and path.rpartition("/")[2].split(".")[4] in batches
        }

    def _ours(self) -> list[str]:
        """Return the paths of all files of transactions, and of their notes."""
        files, path = FileSystem.from_uri(self.location) if not self.s3 else (of_s3(self.s3), self.location[5:])
        found = files.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
        return [each.path for each in found if each.type is FileType.File and each.base_name.startswith(OURS)]

    def read(self) -> pa.Table:
        return self._read(self.table())

    def _read(self, table: Table) -> pa.Table:
        if not self.upsert_by:
            return table.scan().to_arrow()
        found = reader().execute(f"SELECT * FROM {_scan(table)}").to_arrow_table()  # noqa: S608  # ours
        return found.cast(table.schema().as_arrow())

    def scan(self) -> str | None:
        return None if self.s3 else _scan(self.table())

    def files(self) -> set[str]:
        return {path.rpartition("/")[2] for path in self._ours()} - self._note(_files(self.table()))

    def patch(self, steps: Steps) -> None:
        (on_requests if self.catalog_uri.startswith("http") else on_sql)(steps)
        on_files(steps, is_on_disk=not self.s3)

    def watch_commits(self, strike: Strike) -> None:
        strike.watch(type(self.catalog()), "commit_table")
        strike.watch(TransactionalCatalog, "commit_tables")


def _scan(table: Table) -> str:
    return f"iceberg_scan('{table.metadata_location.removeprefix('file://')}')"


def of_s3(options: Mapping[str, str]) -> S3FileSystem:
    """Return access to S3 by pyiceberg's options."""
    return S3FileSystem(
        access_key=options["s3.access-key-id"],
        secret_key=options["s3.secret-access-key"],
        endpoint_override=options["s3.endpoint"],
        region=options["s3.region"],
    )


def _batches(table: Table) -> set[str]:
    """Return the batches that have a snapshot."""
    summaries = [snapshot.summary for snapshot in table.snapshots()]
    return {str(summary[BATCH]) for summary in summaries if summary is not None}


def _files(table: Table) -> set[str]:
    """Return the names of all data files and manifests of all versions."""
    manifests = [each for snapshot in table.snapshots() for each in snapshot.manifests(table.io)]
    entries = [entry for each in manifests for entry in each.fetch_manifest_entry(table.io, discard_deleted=False)]
    locations = {*(each.manifest_path for each in manifests), *(entry.data_file.file_path for entry in entries)}
    return {location.rpartition("/")[2] for location in locations}
