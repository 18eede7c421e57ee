"""What the tests of the SQL sink share: real databases, and for each test a table of its own."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support import sql_databases
from tests.support.sink_place import SinkPlace
from tests.support.sql_databases import TYPES, Databases, leave_syncs_to_the_system
from twopc_sql import SqlSink

leave_syncs_to_the_system()


@dataclass(frozen=True)
class Place(SinkPlace[SqlSink]):
    """A table of one test, in a database of its own."""

    backend = "sql"
    sink_class = SqlSink
    url: sa.URL
    table: str = "orders"

    @property
    def password(self) -> str:
        return self.url.password or ""

    def reach(self, password: str) -> sa.URL:
        return self.url.set(password=password)

    def as_reached(self, url: sa.URL) -> dict[str, sa.URL]:
        return {"url": url}

    @property
    def database(self) -> str:
        return self.url.get_backend_name()

    def ask(self, statement: str) -> list[Any]:
        """What another session sees. ``{}`` stands for the table, and ``{text}`` and others for types."""
        return sql_databases.ask(self.url, statement.replace("{}", self.table))

    def select(self, columns: list[sa.ColumnClause[Any]]) -> list[dict[str, Any]]:
        """Every row of the table, by SQLAlchemy's types of its columns."""
        with sa.create_engine(self.url, poolclass=sa.NullPool).connect() as connection:
            found = connection.execute(sa.select(*columns).select_from(sa.table(self.table)))
            return [dict(row) for row in found.mappings()]

    def create(self, columns: str) -> None:
        self.ask("DROP TABLE IF EXISTS {}")
        self.ask(f"CREATE TABLE {{}} ({columns})")

    def values(self) -> list[str]:
        """The ``value`` of every row that a reader sees, sorted."""
        return [value for (value,) in self.ask("SELECT value FROM {} ORDER BY value")]

    def unbound(self, **options: Any) -> SqlSink:
        """A new sink. Empty options are left out."""
        given = {name: value for name, value in options.items() if value != ""}
        return SqlSink({"url": self.url, "table": self.table, **given})

    def staged(self) -> int:
        return sql_databases.staged(self.url)


@pytest.fixture(scope="module")
def databases() -> Iterator[Databases]:
    """Servers that a module starts when it first needs them, and may kill."""
    with Databases() as databases:
        yield databases


def databases_but_long(*without: str) -> list[Any]:
    """Every database; all but some are marked as long."""
    return [pytest.param(name, marks=() if name in without else pytest.mark.long) for name in sorted(TYPES)]


@pytest.fixture(params=databases_but_long("postgresql", "sqlite"))
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(database: str, databases: Databases, tmp_path: Path) -> Place:
    """A table of one column, ``value``."""
    place = Place(databases.url(database, tmp_path))
    place.create("value {text}")
    return place
