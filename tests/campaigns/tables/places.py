"""The tables to which a case's sinks write, for each kind of place."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import s3fs

import twopc
from tests.campaigns.every_step.blows import SERVER_AND_WRITER, WRITER
from tests.campaigns.every_step.place import Findings, NoServer, Server, Sinks
from tests.campaigns.every_step.processes import let_an_hour_pass
from tests.campaigns.every_step.query import KEY, SCHEMA
from tests.campaigns.every_step.steps import Steps, on_disk
from tests.campaigns.stores.go_servers import PROGRAMS, GoServer
from tests.campaigns.tables import contents
from tests.campaigns.tables.delta import DeltaLakeTable
from tests.campaigns.tables.iceberg import IcebergTable
from tests.campaigns.tables.others import Beside, Others
from tests.support.networks import Host
from tests.support.rest_catalog import CATALOG_URI, RestCatalogServer
from twopc.log.store import LogStore, open_store

if TYPE_CHECKING:
    from tests.campaigns.every_step.blows import Strike
    from tests.campaigns.tables.table import LakeTable

S3_SERVER = "versitygw"
"""The S3 server that is killed unless another one is named."""


@dataclass(frozen=True)
class TablePlace:
    """The tables of one case, and its commit log.

    Attributes:
        work: a local folder.
        tables: by the names of their sinks.
        bucket: what has to be created in S3 first, as the server's options; None without S3.
    """

    work: Path
    tables: Mapping[str, LakeTable]
    bucket: Mapping[str, Any] | None = None
    is_keyed: bool = False
    survives = True

    @cached_property
    def log(self) -> LogStore:
        return open_store(str(self.work / "log"))

    @property
    def others(self) -> Others:
        return Others(self.work, self.tables)

    def sinks(self) -> Sinks:
        return {name: table.sink() for name, table in self.tables.items()}

    def make(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        if self.bucket is not None:
            s3fs.S3FileSystem(**self.bucket).mkdir(self.work.name)
        for table in self.tables.values():
            table.create(SCHEMA, ["kind"])
        self.others.plant()

    def patch(self, steps: Steps) -> None:
        on_disk(steps)
        for table in self._kinds():
            table.patch(steps)
        twopc.register_observer(Beside(self.others, steps))

    def watch_commits(self, strike: Strike) -> None:
        for table in self._kinds():
            table.watch_commits(strike)

    def _kinds(self) -> Collection[LakeTable]:
        """Return one table of each kind: what is patched for one is patched for all."""
        return {type(table): table for table in self.tables.values()}.values()

    def meanwhile(self) -> None:
        """Let an hour pass, in which others write."""
        let_an_hour_pass(self.work, is_on_disk=self.bucket is None)
        self.others.write()

    def look(self, findings: Findings, when: str) -> None:
        contents.look(findings, when, self)

    def judge(self, findings: Findings) -> None:
        contents.judge(findings, self)


@dataclass(frozen=True)
class TablePlaces:
    """Creates the places of one kind.

    Attributes:
        name: the kind, a key of ``KINDS``.
        folder: the folder of all cases.
        catalog: the host of the REST catalog that the cases share, unless it is killed.
        s3: the options to reach the S3 server that they share, unless it is killed.
        s3_server: the program of the S3 server that is killed.
    """

    name: str
    folder: Path
    catalog: Host | None = None
    s3: Mapping[str, Any] | None = None
    s3_server: str = S3_SERVER

    @property
    def victims(self) -> Sequence[tuple[str, ...]]:
        return SERVER_AND_WRITER if self.name in WITH_SERVER else WRITER

    def new(self) -> TablePlace:
        return self._place(self.folder / f"case-{uuid.uuid4().hex}", self.catalog, self.s3)

    @contextlib.contextmanager
    def with_server(self) -> Iterator[tuple[TablePlace, Server]]:
        work = self.folder / f"case-{uuid.uuid4().hex}"
        work.mkdir(parents=True)
        if self.name in ON_CATALOG:
            with RestCatalogServer(work / "server") as catalog:
                yield self._place(work, catalog.host, None), catalog
        elif self.name in WITH_S3:
            with GoServer(PROGRAMS[self.s3_server], work / "server") as s3:
                yield self._place(work, None, s3.storage_options), s3
        else:
            yield self._place(work, None, None), NoServer()

    def _place(self, work: Path, catalog: Host | None, s3: Mapping[str, Any] | None) -> TablePlace:
        found: dict[str, LakeTable] = {}
        sqlite = f"sqlite:///{work}/catalog.db"
        if self.name in ("iceberg-sqlite", "both"):
            found["iceberg"] = IcebergTable("db.orders", sqlite, f"file://{work}/warehouse/orders", work)
        if self.name == "upserts":
            location = f"file://{work}/warehouse/orders"
            found["iceberg"] = IcebergTable("db.orders", sqlite, location, work, upsert_by=KEY)
            location = f"file://{work}/warehouse/items"
            found["positions"] = IcebergTable("db.items", sqlite, location, work, upsert_by=KEY, deletes="position")
            found["delta"] = DeltaLakeTable(str(work / "delta"), upsert_by=KEY)
        if self.name == "iceberg-s3":
            assert s3 is not None
            found["iceberg"] = IcebergTable("db.orders", sqlite, f"s3://{work.name}/orders", work, _of_pyiceberg(s3))
        for sink, table in ON_CATALOG.get(self.name, {}).items():
            assert catalog is not None
            name = f"{work.name.replace('-', '_')}.{table}"
            location = f"file://{work}/warehouse/{table}"
            found[sink] = IcebergTable(name, CATALOG_URI, location, work, reach=catalog.enter)
        if self.name in ("delta", "both"):
            found["delta"] = DeltaLakeTable(str(work / "delta"))
        if self.name == "delta-s3":
            assert s3 is not None
            options = {**s3, "client_kwargs": {"region_name": "us-east-1"}}
            found["delta"] = DeltaLakeTable(f"s3://{work.name}/orders", options)
        return TablePlace(work, found, s3, is_keyed=self.name == "upserts")


def _of_pyiceberg(s3: Mapping[str, Any]) -> Mapping[str, str]:
    return {
        "s3.endpoint": s3["endpoint_url"],
        "s3.access-key-id": s3["key"],
        "s3.secret-access-key": s3["secret"],
        "s3.region": "us-east-1",
    }


KINDS = ("iceberg-sqlite", "iceberg-rest", "iceberg-joint", "iceberg-s3", "delta", "delta-s3", "both", "upserts")

ON_CATALOG: Mapping[str, Mapping[str, str]] = {
    "iceberg-rest": {"iceberg": "orders"},
    "iceberg-joint": {"iceberg": "orders", "iceberg2": "items"},
}
"""Kind with a REST catalog → sink → table. Two tables are committed together."""

WITH_S3 = ("iceberg-s3", "delta-s3")
WITH_SERVER = (*ON_CATALOG, *WITH_S3)
