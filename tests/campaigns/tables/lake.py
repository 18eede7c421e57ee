"""A table of each format, in a folder."""

from pathlib import Path

from tests.campaigns.tables.delta import DeltaLakeTable
from tests.campaigns.tables.iceberg import IcebergTable
from tests.campaigns.tables.table import LakeTable


def tables_in(folder: Path, name: str, upsert_by: str = "") -> dict[str, LakeTable]:
    """Return an Iceberg table and a Delta table below a folder, by the names of their sinks.

    Args:
        name: of the Iceberg table, with its namespace.
        upsert_by: the key of the sinks' records, if they have one.
    """
    catalog = f"sqlite:///{folder}/catalog.db"
    return {
        "delta": DeltaLakeTable(str(folder / "delta"), upsert_by=upsert_by),
        "iceberg": IcebergTable(name, catalog, f"file://{folder}/iceberg", folder, upsert_by=upsert_by),
    }
