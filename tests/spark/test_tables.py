"""A query that writes to tables: each batch is in them once, and a restart goes on behind it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema
from pyiceberg.catalog.sql import SqlCatalog

import twopc
from tests.spark.conftest import Pipeline, Rows, rows
from twopc import TwoPhaseCommitSink

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})


def delta(folder: Path) -> tuple[Callable[[], TwoPhaseCommitSink[Any]], Callable[[], Rows]]:
    """An empty table; how to make a sink of it, and how to read it."""
    path = str(folder / "delta")
    DeltaTable.create(path, Schema.from_arrow(SCHEMA))

    def read() -> Rows:
        found = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t").read_all()
        return list(pa.table(found).to_pylist())

    return lambda: twopc.create_sink("delta", {"path": path}), read


def iceberg(folder: Path) -> tuple[Callable[[], TwoPhaseCommitSink[Any]], Callable[[], Rows]]:
    """The same in Iceberg."""
    properties = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    catalog = SqlCatalog("default", **properties)
    catalog.create_namespace("db")
    catalog.create_table("db.orders", SCHEMA)
    options = {"table": "db.orders", **{f"catalog.{name}": value for name, value in properties.items()}}

    def read() -> Rows:
        return list(catalog.load_table("db.orders").scan().to_arrow().to_pylist())

    return lambda: twopc.create_sink("iceberg", options), read


@pytest.mark.usefixtures("unpooled_sqlite")
@pytest.mark.parametrize("table", [delta, pytest.param(iceberg, marks=pytest.mark.long)])
def test_each_batch_reaches_a_table_exactly_once(pipeline: Pipeline, table: Any) -> None:
    make_sink, read = table(pipeline.folder)
    for batch in ((1, 2), (3,)):
        pipeline.add_batch(rows(*batch))
        pipeline.run(pipeline.writer(make_sink()))  # a restart, the second time
    assert sorted(read(), key=lambda row: row["id"]) == rows(1, 2, 3)
    assert pipeline.decided_batches() == [0, 1]
