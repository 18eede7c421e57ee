"""The two tables of the lakehouse demonstration: their creation, and a reader of each while drivers are killed.

The tables are read with DuckDB, which did not write them.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, Schema
from pyiceberg.catalog import load_catalog
from watch import Watcher

from tests.support.duckdb_extension import lake_reader

ICEBERG_TABLE = "lake.flights"
RESULT = pa.schema(
    {
        **dict.fromkeys(("id", "flight", "dep_delay", "arr_delay", "distance", "made_up_min", "batch"), pa.int32()),
        **dict.fromkeys(("carrier", "airline", "tailnum", "origin", "dest"), pa.string()),
    }
)
"""The columns of all three results."""


def iceberg_options(folder: str) -> dict[str, str]:
    """Return the options of the Iceberg sink, whose catalog is in SQLite."""
    return {
        "table": ICEBERG_TABLE,
        "catalog.uri": f"sqlite:///{folder}/catalog.db",
        "catalog.warehouse": f"file://{folder}/iceberg",
    }


def delta_options(folder: str) -> dict[str, str]:
    """Return the options of the Delta sink."""
    return {"path": f"{folder}/delta"}


def create_tables(folder: str) -> None:
    """Create both tables, without records."""
    catalog = load_catalog("default", **_catalog(folder))
    catalog.create_namespace("lake")
    catalog.create_table(ICEBERG_TABLE, RESULT)
    catalog.close()
    DeltaTable.create(delta_options(folder)["path"], Schema.from_arrow(RESULT))


def _catalog(folder: str) -> dict[str, str]:
    prefix = "catalog."
    return {k.removeprefix(prefix): v for k, v in iceberg_options(folder).items() if k.startswith(prefix)}


class TableWatcher(Watcher):
    """Reads the versions of a table while drivers are killed."""

    def __init__(self, folder: str, log: str) -> None:
        super().__init__(log)
        self.folder = folder
        self._seen_version = ""
        self._counts: dict[int, set[int]] = defaultdict(set)
        self._reader = lake_reader()

    @property
    def version(self) -> str:
        """The name of the newest version."""
        raise NotImplementedError

    def scan(self, version: str) -> str:
        """Return the SQL that reads a version."""
        raise NotImplementedError

    @property
    def torn(self) -> set[int]:
        """Batches that a reader has seen in part."""
        return {batch for batch, counts in self._counts.items() if len(counts) > 1}

    def poll(self) -> None:
        """Count the records of each batch in the newest version."""
        if (version := self.version) == self._seen_version:
            return
        sql = f"SELECT batch, count(*) FROM {self.scan(version)} GROUP BY batch"  # noqa: S608  # ours
        counts = dict(self._reader.execute(sql).fetchall())
        for batch, count in counts.items():
            self._counts[batch].add(count)
        if counts:
            newest = max(counts)
            self.check_decided(newest, counts[newest])
        self._seen_version, self.records = version, sum(counts.values())


class IcebergWatcher(TableWatcher):
    """Reads the Iceberg table."""

    def __init__(self, folder: str, log: str) -> None:
        super().__init__(folder, log)
        self._table = load_catalog("default", **_catalog(folder)).load_table(ICEBERG_TABLE)

    @property
    def version(self) -> str:
        return self._table.refresh().metadata_location.removeprefix("file://")

    def scan(self, version: str) -> str:
        return f"iceberg_scan('{version}')"


class DeltaWatcher(TableWatcher):
    """Reads the Delta table."""

    @property
    def version(self) -> str:
        return str(DeltaTable(self._path).version())

    def scan(self, version: str) -> str:  # noqa: ARG002  # DuckDB takes the newest
        return f"delta_scan('{self._path}')"

    @property
    def _path(self) -> Path:
        return Path(delta_options(self.folder)["path"])
