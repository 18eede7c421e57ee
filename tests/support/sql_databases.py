"""Databases for the SQL sink: servers, started on first use, and files."""

import sqlite3
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.support.mariadb_server import MariaDbServer
from tests.support.once_per_run import once_per_run
from tests.support.postgres_server import PostgresServer

TYPES: Mapping[str, Mapping[str, str]] = {
    "duckdb": {"text": "VARCHAR", "key": "VARCHAR", "float": "DOUBLE", "bytes": "BLOB"},
    # Text keys are compared by bytes, as in the other databases.
    "mysql": {"text": "TEXT", "key": "VARCHAR(99) COLLATE utf8mb4_nopad_bin", "float": "DOUBLE", "bytes": "BLOB"},
    "postgresql": {"text": "TEXT", "key": "TEXT", "float": "DOUBLE PRECISION", "bytes": "BYTEA"},
    "sqlite": {"text": "TEXT", "key": "TEXT", "float": "DOUBLE", "bytes": "BLOB"},
}
"""Database → its names of types. ``key`` is a text type for key columns."""


def leave_syncs_to_the_system() -> None:
    """Keep SQLite in this process from waiting for the disk. Only a power cut would lose writes."""
    sa.event.listen(sa.Engine, "connect", _do_not_sync)


def _do_not_sync(connection: Any, _: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


class Databases(ExitStack):
    """Creates databases on servers shared by all workers, or on ``own`` servers that run until the end of this
    context."""

    def __init__(self, *, own: bool = False) -> None:
        super().__init__()
        self._own = own
        self._servers: dict[str, MariaDbServer | PostgresServer] = {}

    def url(self, database: str, folder: Path) -> sa.URL:
        name = f"test_{uuid.uuid4().hex[:8]}"
        if database == "postgresql":
            return self._of_postgres(name)
        if database == "mysql":
            return self._of_mariadb(name)
        return sa.make_url(f"{database}:///{folder / name}")

    def servers(self, database: str) -> list[MariaDbServer | PostgresServer]:
        """Return the server of a database; empty for a file."""
        return [self._servers[database]] if database in self._servers else []

    def kill_and_start(self, database: str) -> None:
        """Kill and restart the server of a database, if it has one."""
        for server in self.servers(database):
            server.kill()
            server.start()

    def _of_mariadb(self, name: str) -> sa.URL:
        server = self._servers.get("mysql")
        if not isinstance(server, MariaDbServer):
            server = self.enter_context(MariaDbServer()) if self._own else once_per_run("mariadb")
            self._servers["mysql"] = server
        url = sa.make_url(server.url()).set(drivername="mysql+pymysql")
        ask(url, f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return url.set(database=name)

    def _of_postgres(self, name: str) -> sa.URL:
        server = self._servers.get("postgresql")
        if not isinstance(server, PostgresServer):
            server = self.enter_context(PostgresServer()) if self._own else once_per_run("postgres")
            self._servers["postgresql"] = server
        conninfo = server.conninfo
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        parts = {name: str(part) for name, part in conninfo_to_dict(conninfo).items()}
        url = sa.URL.create("postgresql+psycopg", parts["user"], parts["password"], database=name)
        return url.update_query_dict({"host": parts["host"]})


def ask(url: sa.URL, statement: str) -> list[tuple[object, ...]]:
    """Run a statement in a new session, and return its rows. ``{text}`` and the others stand for types."""
    for name, kind in TYPES[url.get_backend_name()].items():
        statement = statement.replace(f"{{{name}}}", kind)
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        result = connection.execute(sa.text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []


def staged(url: sa.URL) -> int:
    """Return the number of records in all staging tables."""
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        tables = [sa.table(name) for name in sa.inspect(connection).get_table_names() if "twopc_staged" in name]
        counts = [connection.scalar(sa.select(sa.func.count()).select_from(table)) for table in tables]
    return sum(count or 0 for count in counts)
