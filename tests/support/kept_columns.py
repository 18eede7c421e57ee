"""Generates the tables of Arrow types and column types in ``docs/internals/databases.md``, from the code that matches
them.

Run ``python -m tests.support.kept_columns`` to update them, from tables on real servers.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from tests.support.pages import ROOT
from twopc.columns import TableColumn

PAGE = ROOT / "docs" / "internals" / "databases.md"

ARROW: Sequence[pa.DataType] = [
    pa.bool_(),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal128(5, 2), pa.decimal128(18, 0), pa.decimal128(38, 18), pa.decimal256(40, 0)),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(16)),
    *(pa.date32(), pa.date64(), pa.time64("us"), pa.duration("us"), pa.month_day_nano_interval()),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")),
    *(pa.null(), pa.struct([("a", pa.int32())]), pa.map_(pa.string(), pa.int32())),
    *(pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_(pa.string()), pa.list_(pa.list_(pa.int32()))),
    pa.dictionary(pa.int32(), pa.string()),
]
"""Every kind of Arrow type, and the Arrow types of Spark's types."""


def declared(kinds: Iterable[str]) -> str:
    """Return definitions of columns c0, c1 and so on with these types."""
    return ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))


def kept(kinds: Sequence[str], columns: Collection[TableColumn], is_tried: Callable[[Any], bool]) -> str:
    """Return a Markdown table of the types in ``ARROW`` that each column accepts, omitting columns that accept none.

    Args:
        kinds: the columns' types, as the table declares them.
        columns: the columns as the sink reads them from the table.
        is_tried: whether the sink tries each value on the server before writing it.
    """
    taken: dict[str, list[str]] = {}
    for kind, column in zip(kinds, columns, strict=True):
        takes = ", ".join(f"{each}" for each in ARROW if column.keeps(each))
        if takes:
            tried = "each value is tried: " if is_tried(column) else ""
            taken.setdefault(tried + takes, []).append(f"`{kind}`")
    lines = ("| column | takes |", "| --- | --- |")
    return "\n".join([*lines, *(f"| {', '.join(of)} | {takes} |" for takes, of in taken.items())])


def filled(backend: str, table: str, page: str) -> str:
    begin, end = f"<!-- {backend}: kept -->\n\n", f"\n\n<!-- {backend}: end -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return before + begin + table + end + after


def main() -> None:
    from tests.sinks.mysql import conftest as mysql
    from tests.sinks.mysql import test_every_value as of_mysql
    from tests.sinks.postgres import conftest as postgres
    from tests.sinks.postgres import test_every_value as of_postgres
    from tests.sinks.sql import conftest as sql
    from tests.sinks.sql import test_every_value as of_sql
    from tests.support.mariadb_server import MariaDbServer
    from tests.support.postgres_server import PostgresServer
    from tests.support.sql_databases import Databases

    page = PAGE.read_text(encoding="utf-8")
    with PostgresServer() as server, postgres.new_place(server) as place:
        page = filled("PostgreSQL", of_postgres.table(place), page)
    with MariaDbServer() as maria, contextlib.contextmanager(mysql.places)(maria) as other:
        page = filled("MariaDB", of_mysql.table(other), page)
    for name, title in of_sql.TITLES.items():
        with TemporaryDirectory() as folder, Databases() as databases:
            page = filled(title, of_sql.table(sql.Place(databases.url(name, Path(folder)))), page)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
