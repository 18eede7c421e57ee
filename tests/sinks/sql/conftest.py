"""What the tests of the SQL sink share: real databases, and for each test a table of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict

from tests.support.postgres_server import PostgresServer
from tests.support.sink_place import SinkPlace
from twopc_sql import SqlSink

TYPES = {
    "duckdb": {"text": "VARCHAR", "float": "DOUBLE", "time": "TIMESTAMP", "bytes": "BLOB"},
    "postgresql": {"text": "TEXT", "float": "DOUBLE PRECISION", "time": "TIMESTAMP", "bytes": "BYTEA"},
    "sqlite": {"text": "TEXT", "float": "DOUBLE", "time": "DATETIME", "bytes": "BLOB"},
}
"""What each database calls a type."""


@dataclass(frozen=True)
class Place(SinkPlace[SqlSink]):
    """A table of one test.

    Attributes:
        prefix: what the names of the test's transactions start with: tests share a server.
    """

    url: sa.URL
    table: str
    prefix: str

    @property
    def database(self) -> str:
        return self.url.get_backend_name()

    def ask(self, statement: str, **values: Any) -> list[Any]:
        """What another session sees. ``{}`` stands for the table, and ``{text}`` and others for types."""
        statement = statement.replace("{}", self.table)
        for name, kind in TYPES[self.database].items():
            statement = statement.replace(f"{{{name}}}", kind)
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            result = connection.execute(sa.text(statement), values)
            return [tuple(row) for row in result] if result.returns_rows else []

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
        sink = SqlSink({"url": self.url, "table": self.table, **given})
        sink.prefix = self.prefix
        return sink

    def staged(self) -> int:
        """How many records all staging tables have."""
        with sa.create_engine(self.url, poolclass=sa.NullPool).connect() as connection:
            tables = [sa.table(name) for name in sa.inspect(connection).get_table_names() if "twopc_staged" in name]
            counts = [connection.scalar(sa.select(sa.func.count()).select_from(table)) for table in tables]
        return sum(count or 0 for count in counts)


class Databases:
    """Servers that are started when a test first needs them, and the files of the others."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._postgres: PostgresServer | None = None

    def url(self, database: str, folder: Path) -> sa.URL:
        """The URL of a database that is new."""
        name = f"test_{uuid.uuid4().hex[:8]}"
        if database in ("sqlite", "duckdb"):
            return sa.make_url(f"{database}:///{folder / name}")
        return self._of_postgres(name)

    def kill_and_start(self, database: str) -> None:
        """Kill the server, if the database has one, and start it again."""
        if database == "postgresql":
            assert self._postgres is not None
            self._postgres.kill()
            self._postgres.start()

    def _of_postgres(self, name: str) -> sa.URL:
        if self._postgres is None:
            self._postgres = self._stack.enter_context(PostgresServer())
        with psycopg.connect(self._postgres.conninfo, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        parts = conninfo_to_dict(self._postgres.conninfo)
        url = sa.URL.create("postgresql+psycopg", str(parts["user"]), str(parts["password"]), database=name)
        return url.update_query_dict({"host": str(parts["host"])})


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    with ExitStack() as stack:
        yield Databases(stack)


@pytest.fixture(params=sorted(TYPES))
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(database: str, databases: Databases, tmp_path: Path) -> Place:
    """A table of one column, ``value``, in a database of its own."""
    place = Place(databases.url(database, tmp_path), "orders", "test")
    place.create("value {text}")
    return place
