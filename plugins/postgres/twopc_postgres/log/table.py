"""The table of commit logs: all SQL of it. One row per entry, and one per log for the notice."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg
from psycopg import sql

from twopc_postgres.sessions import SYNCHRONOUS, Connection

TABLE = "twopc_log"

NOTICE = -1
"""The slot of the notice. Entries count from 0."""

TRIAL = -2
"""The slot that a trial creates and rolls back."""

_KIND = """
    SELECT pg_catalog.pg_is_in_recovery(), c.relkind = 'r' AND c.relpersistence = 'p',
           c.relhastriggers OR c.relhasrules OR c.relrowsecurity
    FROM (VALUES ({schema}, {name})) AS named (namespace, name)
    LEFT JOIN (pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace)
        ON n.nspname = named.namespace AND c.relname = named.name
"""
_CREATE = "CREATE TABLE {table} (log text, slot numeric(20), entry bytea NOT NULL, PRIMARY KEY (log, slot))"
_SLOTS = """
    SELECT pg_catalog.pg_is_in_recovery(),
           ARRAY(SELECT slot FROM {table} WHERE log = {log} AND slot >= 0 ORDER BY slot)
"""
_READ = "SELECT pg_catalog.pg_is_in_recovery(), (SELECT entry FROM {table} WHERE log = {log} AND slot = {slot})"
_INSERT = """
    INSERT INTO {table} (log, slot, entry) SELECT {log}::text, {slot}::numeric, {data}::bytea FROM {synchronous}
    ON CONFLICT (log, slot) DO NOTHING RETURNING true
"""
_REPLACE = """
    INSERT INTO {table} (log, slot, entry) VALUES ({log}, {slot}, {data})
    ON CONFLICT (log, slot) DO UPDATE SET entry = EXCLUDED.entry
"""
_DELETE = "DELETE FROM {table} WHERE log = {log} AND slot = {slot}"


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

    def kind(self, connection: Connection) -> tuple[bool, bool] | None:
        """Return whether what has the table's name is a table that survives a crash, as an UNLOGGED one does not; and
        whether it has, or once had, triggers or rules, or row security, by which a row could be changed or hidden. None
        if nothing has the name."""
        is_ordinary, does_more = _of_no_standby(connection.ask(_KIND, schema=self._schema, name=TABLE))
        return None if is_ordinary is None else (is_ordinary, does_more)

    def create(self, connection: Connection) -> None:
        """Create the table, unless another session does so at the same moment."""
        with contextlib.suppress(*_CREATED_MEANWHILE), connection.transaction():
            connection.ask(_CREATE, table=self._table)

    def slots(self, connection: Connection) -> list[int]:
        """Return the numbers of the entries, ascending; none if there is no table."""
        try:
            [slots] = _of_no_standby(self._ask(connection, _SLOTS))
        except psycopg.errors.UndefinedTable:
            self._require_absence(connection)
            return []
        return [int(slot) for slot in slots]

    def read(self, connection: Connection, slot: int) -> bytes | None:
        """Return a row's data, or None if there is no such row."""
        try:
            [data] = _of_no_standby(self._ask(connection, _READ, slot))
        except psycopg.errors.UndefinedTable:
            self._require_absence(connection)
            return None
        return None if data is None else bytes(data)

    def _require_absence(self, connection: Connection) -> None:
        """Raise an error that may be repeated, unless a server that is no standby reports that there is no table."""
        if self.kind(connection) is not None:
            raise psycopg.errors.ReadOnlySqlTransaction("the table was created meanwhile, or a standby lacks it")

    def insert(self, connection: Connection, slot: int, data: bytes) -> bool:
        """Create a row if there is none, and return whether it is new. Wait for a session that creates it just now."""
        return bool(self._ask(connection, _INSERT, slot, data))

    def replace(self, connection: Connection, slot: int, data: bytes) -> None:
        """Create or replace a row."""
        self._ask(connection, _REPLACE, slot, data)

    def delete(self, connection: Connection, slot: int) -> None:
        """Delete a row, or do nothing where there is none."""
        with contextlib.suppress(psycopg.errors.UndefinedTable):
            self._ask(connection, _DELETE, slot)

    def _ask(self, connection: Connection, statement: str, slot: int = 0, data: bytes = b"") -> list[tuple[Any, ...]]:
        return connection.ask(
            statement, table=self._table, log=self._log, slot=slot, data=data, synchronous=SYNCHRONOUS
        )


def _of_no_standby(answer: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the values of the one row after its first, which is whether the server is a standby.

    Raises:
        psycopg.errors.ReadOnlySqlTransaction: it is one. Its rows may be old.
    """
    [(is_standby, *values)] = answer
    if is_standby:
        raise psycopg.errors.ReadOnlySqlTransaction(
            "a standby has answered, which may lack the newest entries. No proxy may send reads to standbys"
        )
    return tuple(values)
