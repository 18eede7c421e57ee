"""The copies: their creation, and the rows that DuckDB, Spark and PostgreSQL read from them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
from bank import CREATE, TABLES
from cdc_query import CdcSettings, options
from cdc_report import Row
from deltalake import DeltaTable, Schema
from pyiceberg.catalog import Catalog, load_catalog

from tests.support.duckdb_extension import lake_reader
from tests.support.iceberg_spark import iceberg_environment

_TYPES = {
    "BIGINT": pa.int64(),
    "STRING": pa.string(),
    "DECIMAL(12,2)": pa.decimal128(12, 2),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
}


def create_copies(settings: CdcSettings) -> None:
    """Create the tables of all copies, without rows."""
    with psycopg.connect(settings.mirror) as connection:
        connection.execute(CREATE.encode())
    catalog = _catalog(settings)
    catalog.create_namespace("bank")
    for table, columns in TABLES.items():
        schema = pa.schema([(name, _TYPES[type]) for name, type in map(str.split, columns.split(", "))])
        catalog.create_table(options("iceberg", table, settings)["table"], schema)
        path = options("delta", table, settings)["path"]
        DeltaTable.create(path, Schema.from_arrow(schema), configuration={"delta.enableDeletionVectors": "true"})
    catalog.close()


def read_copies(settings: CdcSettings) -> Iterator[tuple[str, str, list[Row]]]:
    """Yield a table, the copy and its reader, and the rows that the reader finds."""
    places = dict[str, tuple[str, str]]()
    catalog = _catalog(settings)
    for table in TABLES:
        metadata = catalog.load_table(options("iceberg", table, settings)["table"]).metadata_location
        places[f"iceberg {table}"] = ("iceberg", metadata.removeprefix("file://"))
        places[f"delta {table}"] = ("delta", options("delta", table, settings)["path"])
    catalog.close()
    by_spark = _read_by_spark(places, Path(settings.folder))
    duckdb = lake_reader()
    for name, (kind, place) in places.items():
        copy, table = name.split()
        yield table, f"{copy}, read by DuckDB", _rows(duckdb.sql(f"FROM {kind}_scan('{place}')").to_arrow_table())
        yield table, f"{copy}, read by Spark", _rows(by_spark[name])
    with psycopg.connect(settings.mirror) as connection:
        for table in TABLES:
            yield table, "postgres", connection.execute(f"TABLE {table}".encode()).fetchall()


def _catalog(settings: CdcSettings) -> Catalog:
    given, prefix = options("iceberg", "", settings), "catalog."
    return load_catalog("default", **{k.removeprefix(prefix): v for k, v in given.items() if k.startswith(prefix)})


def _rows(table: pa.Table) -> list[Row]:
    return [*zip(*(column.to_pylist() for column in table.columns), strict=True)]


def _read_by_spark(places: dict[str, tuple[str, str]], folder: Path) -> dict[str, pa.Table]:
    """Read tables in a process with Spark 4.1, because Iceberg publishes no runtime for later versions."""
    script, found = Path(__file__).with_name("spark_reader.py"), folder / "by-spark"
    found.mkdir()
    with (folder / "spark-reader.log").open("wb") as log:
        command = [iceberg_environment().python, str(script), json.dumps(places), str(found)]
        subprocess.run(command, stdout=log, stderr=log, check=True)
    return {name: pa.ipc.open_file(found / f"{name}.arrow").read_all() for name in places}
