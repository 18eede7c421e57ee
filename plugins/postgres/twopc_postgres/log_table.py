"""The table of commit logs: all SQL of it. One row per entry, and one per log for the notice."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg
from psycopg import sql

from twopc_postgres.sessions import Connection

TABLE = "twopc_log"

NOTICE = -1
"""The slot of the notice. Entries count from 0."""

_KIND = """
    SELECT c.relkind, c.relpersistence FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s
"""
_CREATE = "CREATE TABLE {} (log text, slot numeric(20), entry bytea NOT NULL, PRIMARY KEY (log, slot))"
_SLOTS = "SELECT slot FROM {} WHERE log = %s AND slot >= 0 ORDER BY slot"
_READ = "SELECT entry FROM {} WHERE log = %s AND slot = %s"
_INSERT = "INSERT INTO {} (log, slot, entry) VALUES (%s, %s, %s) ON CONFLICT (log, slot) DO NOTHING"
_REPLACE = (
    "INSERT INTO {} (log, slot, entry) VALUES (%s, %s, %s) ON CONFLICT (log, slot) DO UPDATE SET entry = EXCLUDED.entry"
)
_DELETE = "DELETE FROM {} WHERE log = %s AND slot = %s"


_CREATED_MEANWHILE = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateObject,  # the table's type
)
"""What CREATE TABLE raises if another session creates the table at the same moment, by how far that one is."""


class LogTable:
    """The rows of one log. The methods raise psycopg's errors."""

    def __init__(self, schema: str, log: str) -> None:
        self._schema, self._log = schema, log
        self._table = sql.Identifier(schema, TABLE)

    def __str__(self) -> str:
        return f"{self._schema}.{TABLE}"

    def is_there(self, connection: Connection) -> bool:
        """Whether the table, or something else of its name, exists."""
        return self._kind(connection) is not None

    def survives_a_crash(self, connection: Connection) -> bool:
        """Whether the table is an ordinary one. PostgreSQL empties an UNLOGGED table after a crash."""
        return self._kind(connection) == ("r", "p")

    def _kind(self, connection: Connection) -> tuple[Any, ...] | None:
        return connection.execute(_KIND, (self._schema, TABLE)).fetchone()

    def create(self, connection: Connection) -> None:
        """Create the table, unless another session does so at the same moment."""
        with contextlib.suppress(*_CREATED_MEANWHILE):
            connection.execute(sql.SQL(_CREATE).format(self._table))

    def slots(self, connection: Connection) -> list[int]:
        """Return the numbers of the entries, ascending; none if there is no table."""
        with contextlib.suppress(psycopg.errors.UndefinedTable):
            return [int(slot) for (slot,) in self._execute(connection, _SLOTS)]
        return []

    def read(self, connection: Connection, slot: int) -> bytes | None:
        """Return a row's data, or None if there is no such row."""
        with contextlib.suppress(psycopg.errors.UndefinedTable):
            found = self._execute(connection, _READ, slot).fetchone()
            return None if found is None else bytes(found[0])
        return None

    def insert(self, connection: Connection, slot: int, data: bytes) -> bool:
        """Create a row if there is none, and return whether it is new. Wait for a session that creates it just now."""
        return self._execute(connection, _INSERT, slot, data).rowcount == 1

    def replace(self, connection: Connection, slot: int, data: bytes) -> None:
        """Create or replace a row."""
        self._execute(connection, _REPLACE, slot, data)

    def delete(self, connection: Connection, slot: int) -> None:
        """Delete a row, or do nothing where there is none."""
        with contextlib.suppress(psycopg.errors.UndefinedTable):
            self._execute(connection, _DELETE, slot)

    def _execute(self, connection: Connection, statement: str, *values: Any) -> psycopg.Cursor[tuple[Any, ...]]:
        return connection.execute(sql.SQL(statement).format(self._table), (self._log, *values), binary=True)
