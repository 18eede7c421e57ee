"""Generates the table of values that the contract writes, in ``docs/internals/support-matrix.md``.

Run ``python -m tests.support.drawn_values`` to update it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tests.sinks.delta import test_contract as delta
from tests.sinks.files import readers as files
from tests.sinks.iceberg import test_contract as iceberg
from tests.sinks.mysql import test_contract as mysql
from tests.sinks.postgres import test_contract as postgres
from tests.sinks.prepared_contract import schema_of
from tests.sinks.sql import test_contract as sql
from tests.support.kept_columns import filled
from tests.support.pages import ROOT
from twopc.testing.values import edges

PAGE = ROOT / "docs" / "internals" / "support-matrix.md"


def drawn() -> Iterator[tuple[str, pa.Schema, str]]:
    """Yield each backend with the columns for which values are drawn, and its readers."""
    yield "PostgreSQL", schema_of(postgres.KEPT), postgres.TestAppend.client
    yield "MariaDB", schema_of(mysql.KEPT), mysql.TestAppend.client
    yield "SQL, on SQLite", schema_of(sql.KEPT["sqlite"]), ", ".join(sql.TestAppend().readers())
    yield "SQL, on DuckDB", schema_of(sql.KEPT["duckdb"]), ", ".join(sql.TestAppend().readers())
    yield "Iceberg", iceberg.DRAWN, ", ".join(iceberg.TestAppend().readers())
    yield "Delta", delta.DRAWN, ", ".join([*delta.TestAppend().readers(), "Spark"])
    for name, readers in files.READERS.items():
        yield f"files, {name}", files.kept(name), ", ".join(readers)


def table() -> str:
    """Return the table as Markdown."""
    lines = ["| backend | columns | edges | read by |", "| --- | --- | --- | --- |"]
    for backend, schema, readers in drawn():
        columns = schema.types[1:]  # all but ``value``
        count = sum(len(edges(type_)) for type_ in columns)
        lines.append(f"| {backend} | {len(columns)} | {count:,} | {readers} |")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(filled("drawn", table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
