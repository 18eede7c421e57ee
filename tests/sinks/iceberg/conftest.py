"""What the tests of the Iceberg sink share: a catalog in SQLite on a disk, and for each test a table of its own."""

import contextlib
import json
import pickle
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyarrow.fs import S3FileSystem
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import (
    AddSchemaUpdate,
    RemovePartitionSpecsUpdate,
    RemoveSnapshotRefUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import IcebergBaseModel
from pyiceberg.types import NestedField, StringType

from tests.support.rest_catalog import ProxyIntoHost, RestCatalogServer
from tests.support.sink_place import ROUND, SinkPlace, Written, from_log
from tests.support.sql_databases import leave_syncs_to_the_system
from twopc import Committable, Coordinator, Participant, Round
from twopc_iceberg import IcebergSink

leave_syncs_to_the_system()

VALUE = Schema(NestedField(1, "value", StringType(), required=False))

BY_VALUE = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "value"))

NAME = "db.orders"

COMMIT = "/tables/orders"
"""The end of a commit's URL in a REST catalog."""


@dataclass(frozen=True)
class Place(SinkPlace[IcebergSink]):
    """A catalog with one table.

    Attributes:
        properties: the catalog's, as pyiceberg takes them.
        name: the namespace and the name of the table.
        deletes: how sinks with a key delete rows.
        version: the format version of tables that ``create`` makes.
    """

    properties: Mapping[str, str]
    name: str = NAME
    deletes: str = "equality"
    version: str = "2"
    catalogs: list[Catalog] = field(default_factory=list)

    def catalog(self) -> Catalog:
        """What another program has connected to."""
        catalog = load_catalog("default", **self.properties)
        self.catalogs.append(catalog)
        return catalog

    def close(self) -> None:
        """Close the connections of other programs."""
        for catalog in self.catalogs:
            catalog.close()

    def create(
        self,
        schema: Schema = VALUE,
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        order: SortOrder = UNSORTED_SORT_ORDER,
        location: str | None = None,
        properties: Mapping[str, str] = MappingProxyType({}),
    ) -> Table:
        """The table anew, without data."""
        catalog = self.catalog()
        catalog.create_namespace_if_not_exists("db")
        if catalog.table_exists(self.name):
            catalog.drop_table(self.name)
        wanted = {"format-version": self.version, **properties}
        with patch.object(TableMetadataV3, "model_dump_json", IcebergBaseModel.model_dump_json):  # pyiceberg lacks it
            return catalog.create_table(self.name, schema, location, spec, order, wanted)

    def table(self) -> Table:
        return self.catalog().load_table(self.name)

    def snapshot(self) -> Snapshot:
        """The newest one."""
        found = self.table().current_snapshot()
        assert found is not None
        return found

    def records(self, **scan: Any) -> list[dict[str, Any]]:
        """What a reader of the table sees."""
        found: list[dict[str, Any]] = self.table().scan(**scan).to_arrow().to_pylist()
        return found

    def values(self, branch: str = "main") -> list[str]:
        """The ``value`` of every record that a reader sees, sorted."""
        scan = self.table().scan()
        found = (scan if branch == "main" else scan.use_ref(branch)).to_arrow()["value"].to_pylist()
        return sorted(found, key=str)

    def appends(self) -> int:
        """How many snapshots of the table have added records. A table's first one may have none."""
        summaries = [snapshot.summary for snapshot in self.table().snapshots()]
        return sum(summary is not None and summary["added-records"] is not None for summary in summaries)

    def replace(self, schema: Schema | None = None) -> None:
        """What CREATE OR REPLACE TABLE of Iceberg for Java does: UUID, properties and ids of columns stay."""
        set_current = SetCurrentSchemaUpdate.model_validate({"schema-id": -1})
        new_schema = () if schema is None else (AddSchemaUpdate(schema=schema), set_current)
        self.change(*new_schema, RemoveSnapshotRefUpdate.model_validate({"ref-name": "main"}))

    def change(self, *updates: TableUpdate) -> None:
        """What another program asks of the catalog, whatever the table is like by then."""
        table = self.table()
        table.catalog.commit_table(table, (), updates)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        self.change(SetPropertiesUpdate(updates={**properties}))

    def remove_spec(self, spec_id: int) -> None:
        self.change(RemovePartitionSpecsUpdate.model_validate({"spec-ids": [spec_id]}))

    def add_partition_field(self, column: str = "value") -> None:
        """Have new files partitioned by the identity of a column, too."""
        with self.table().update_spec() as update:
            update.add_identity(column)

    def expire(self) -> None:
        """Have all snapshots expire but the newest one."""
        table = self.table()
        table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in table.snapshots()[:-1]]).commit()

    def lose_commit(self) -> None:
        """Lose the catalog's last commit, as a standby does that takes over too early."""
        self._in_database("UPDATE iceberg_tables SET metadata_location = previous_metadata_location")

    def _in_database(self, statement: str, *values: str) -> None:
        with contextlib.closing(sqlite3.connect(self.properties["uri"].removeprefix("sqlite:///"))) as database:
            database.execute(statement, values)
            database.commit()

    def point_to(self, metadata: str | Mapping[str, Any]) -> None:
        """Have the catalog name a metadata file; or a new one, with this content."""
        if not isinstance(metadata, str):
            location = f"{self.table().location()}/metadata/{uuid.uuid4()}.metadata.json"
            on_disk(location).write_text(json.dumps(metadata), encoding="utf-8")
            metadata = location
        self._in_database("UPDATE iceberg_tables SET metadata_location = ?", metadata)

    def branched(self, branch: str = "audit") -> None:
        """Add a record, ``old``, and begin a branch there."""
        table = self.table()
        table.append(pa.table({"value": ["old"]}))
        snapshot_id = table.metadata.current_snapshot_id
        assert snapshot_id is not None
        table.manage_snapshots().create_branch(snapshot_id, branch).commit()

    def marks(self) -> dict[str, str]:
        """The marks in the table's properties."""
        properties = self.table().properties
        return {name: value for name, value in properties.items() if name.startswith("twopc.committed.")}

    @property
    def folder(self) -> Path:
        """The table's, if it is on a disk."""
        return on_disk(self.table().location())

    def files(self) -> list[str]:
        """Every file of the table, if it is on a disk."""
        folder = self.folder
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    @property
    def options(self) -> dict[str, str]:
        return {"table": self.name, **{f"catalog.{name}": value for name, value in self.properties.items()}}

    def left_over(self) -> list[str]:
        """Data files, delete files and manifests that no snapshot has."""
        table = self.table()
        manifests = [each for snapshot in table.snapshots() for each in snapshot.manifests(table.io)]
        entries = (entry for each in manifests for entry in each.fetch_manifest_entry(table.io))
        known = {each.manifest_path for each in manifests} | {entry.data_file.file_path for entry in entries}
        names, ends = {Path(path).name for path in known}, (".parquet", "-m0.avro")
        return [name for name in self.files() if name.endswith(ends) and Path(name).name not in names]

    def unbound(self, **options: Any) -> IcebergSink:
        deletes = {"deletes": self.deletes} if "upsert_by" in options else {}
        return IcebergSink({**self.options, **deletes, **options})

    def decided(self, *records: Written, round: Round = ROUND, sink: IcebergSink | None = None) -> list[Committable]:
        """A batch with a transaction for each of ``records``, sealed and read back from a log."""
        votes = [self.vote(each, round, number, sink) for number, each in enumerate(records)]
        sealed = (sink or self.sink()).seal(votes, 0.0)
        return [from_log(each) for each in sealed]

    def run(self, batch_id: int, *records: Written, sink: IcebergSink | None = None) -> None:
        """Write, decide, commit and complete a batch with a transaction for each of ``records``."""
        sink = sink or self.sink()
        batch = self.decided(*records, round=Round(1, batch_id), sink=sink)
        sink.commit_batch(batch_id, batch)
        sink.complete(batch_id, batch)


def on_disk(location: str) -> Path:
    """Return the path of a file or folder on a disk."""
    return Path(location.removeprefix("file://"))


def few(kept: Sequence[object], *others: object) -> list[Any]:
    """The values of a parameter, of which the gate tries those that are kept."""
    parts = [other if isinstance(other, tuple) else (other,) for other in others]
    return [*kept, *(pytest.param(*each, marks=pytest.mark.long) for each in parts)]


def place_on_s3(storage: Mapping[str, str], folder: Path, **properties: str) -> Place:
    """A catalog in SQLite whose tables are in a bucket of their own. ``properties`` replace those of the catalog."""
    bucket = f"lake-{uuid.uuid4().hex[:8]}"
    keys = {"access_key": storage["key"], "secret_key": storage["secret"], "region": "us-east-1"}
    S3FileSystem(**keys, endpoint_override=storage["endpoint_url"], allow_bucket_creation=True).create_dir(bucket)
    of_s3 = {
        "s3.endpoint": storage["endpoint_url"],
        "s3.access-key-id": storage["key"],
        "s3.secret-access-key": storage["secret"],
        "s3.region": "us-east-1",
    }
    catalog = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"s3://{bucket}/warehouse"}
    return Place({**catalog, **of_s3, **properties})


class Query:
    """A query whose tasks get a copy of its sink, as Spark's do."""

    def __init__(self, place: Place, log: Path) -> None:
        self.sink = place.unbound()
        self._sinks = {"orders": self.sink}
        self._coordinator = Coordinator(self._sinks, log, owner="query", rest_interval_s=None)

    def close(self) -> None:
        self._coordinator.close()

    def run(self, batch_id: int, validates: bool = True, **columns: list[str]) -> None:
        batch = pa.record_batch(columns)
        if validates:
            self._coordinator.validate({"orders": batch.schema})

        def write(round: Round) -> list[dict[str, Committable]]:
            with Participant(pickle.loads(pickle.dumps(self._sinks)), round, partition=0) as participant:  # noqa: S301
                participant.write("orders", batch)
                return [participant.pre_commit()]

        self._coordinator.run(batch_id, write)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A table of one column, ``value``."""
    place = Place({"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"})
    place.create()
    yield place
    place.close()


@pytest.fixture(autouse=True, scope="session")
def _planner() -> Iterator[None]:
    """polars warns where a faster planner of its own is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    with RestCatalogServer(tmp_path_factory.mktemp("rest")) as server:
        yield server


@pytest.fixture(scope="module")
def direct(server: RestCatalogServer) -> Iterator[ProxyIntoHost]:
    """What other programs go through: nothing is disturbed."""
    with server.proxy() as proxy:
        yield proxy


@pytest.fixture
def proxy(server: RestCatalogServer) -> Iterator[ProxyIntoHost]:
    with server.proxy() as proxy:
        yield proxy
