"""Tables of the benchmarks, on a local disk: an Iceberg table with its catalog in SQLite, and a Delta table."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, Schema
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

NAME = "lake.rows"


def create_iceberg(folder: Path | str, schema: pa.Schema) -> dict[str, str]:
    """Create an Iceberg table. Return the options of its sink."""
    properties = _catalog(folder)
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("lake")
    # As the documentation advises.
    catalog.create_table(NAME, schema, properties={"write.metadata.delete-after-commit.enabled": "true"})
    catalog.close()
    return {"table": NAME, **{f"catalog.{name}": value for name, value in properties.items()}}


def create_delta(folder: Path | str, schema: pa.Schema) -> dict[str, str]:
    """Create a Delta table. Return the options of its sink."""
    path = f"{folder}/delta"
    DeltaTable.create(path, Schema.from_arrow(schema))
    return {"path": path}


def iceberg_rows(folder: Path | str) -> int:
    """Return the number of records."""
    with _iceberg(folder) as table:
        return table.scan().count()


def delta_rows(folder: Path | str) -> int:
    """Return the number of records."""
    return int(DeltaTable(f"{folder}/delta").count())


def expire_snapshots(folder: Path | str) -> None:
    """Expire all snapshots of the Iceberg table but the newest."""
    with _iceberg(folder) as table:
        table.maintenance.expire_snapshots().older_than(datetime.now(timezone.utc).replace(tzinfo=None)).commit()


@contextmanager
def _iceberg(folder: Path | str) -> Iterator[Table]:
    catalog = load_catalog("default", **_catalog(folder))
    yield catalog.load_table(NAME)
    catalog.close()


def _catalog(folder: Path | str) -> dict[str, str]:
    Path(folder).mkdir(parents=True, exist_ok=True)
    return {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/iceberg"}
