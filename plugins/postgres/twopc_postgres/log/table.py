"""The table of commit logs, with all of its SQL. One row per entry, and one per log for the notice."""

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
"""The slot of a row that a trial creates and rolls back."""

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
"""The errors that CREATE TABLE raises while another session is creating the same table. Which one depends on how far
the other session is."""


class LogTable:
    """The rows of one log. The methods raise psycopg's errors."""

    def __init__(self, schema: str, log: str) -> None:
        self._schema, self._log = schema, log
        self._table = sql.Identifier(schema, TABLE)

    def __str__(self) -> str:
        return f"{self._schema}.{TABLE}"

    def kind(self, connection: Connection) -> tuple[bool, bool] | None:
        """Return whether the relation with the table's name is an ordinary table that survives a crash (not UNLOGGED),
        and whether it has, or once had, triggers, rules or row security, which could change or hide rows. Return None
        if there is no such relation."""
        is_ordinary, does_more = _of_no_standby(connection.ask(_KIND, schema=self._schema, name=TABLE))
        return None if is_ordinary is None else (is_ordinary, does_more)

    def create(self, connection: Connection) -> None:
        """Create the table, unless another session does so at the same moment."""
        with contextlib.suppress(*_CREATED_MEANWHILE), connection.transaction():
            connection.ask(_CREATE, table=self._table)

    def slots(self, connection: Connection) -> list[int]:
        """Return the slots of the entries in ascending order; none if there is no table."""
        try:
            [slots] = _of_no_standby(self._ask(connection, _SLOTS))
        except psycopg.errors.UndefinedTable:
            self._require_absence(connection)
            return []
        return [int(slot) for slot in slots]

    def read(self, connection: Connection, slot: int) -> bytes | None:
        """Return a row's data; None if the row does not exist."""
        try:
            [data] = _of_no_standby(self._ask(connection, _READ, slot))
        except psycopg.errors.UndefinedTable:
            self._require_absence(connection)
            return None
        return None if data is None else bytes(data)

    def _require_absence(self, connection: Connection) -> None:
        """Raise a retriable error, unless a server that is not a standby confirms that the table does not exist."""
        if self.kind(connection) is not None:
            raise psycopg.errors.ReadOnlySqlTransaction("the table was created meanwhile, or a standby lacks it")

    def insert(self, connection: Connection, slot: int, data: bytes) -> bool:
        """Create a row if it does not exist, and return whether it is new. If another session is creating the row, wait
        for that session."""
        return bool(self._ask(connection, _INSERT, slot, data))

    def replace(self, connection: Connection, slot: int, data: bytes) -> None:
        """Create or replace a row."""
        self._ask(connection, _REPLACE, slot, data)

    def delete(self, connection: Connection, slot: int) -> None:
        """Delete a row, ignoring a missing one."""
        with contextlib.suppress(psycopg.errors.UndefinedTable):
            self._ask(connection, _DELETE, slot)

    def _ask(self, connection: Connection, statement: str, slot: int = 0, data: bytes = b"") -> list[tuple[Any, ...]]:
        return connection.ask(
            statement, table=self._table, log=self._log, slot=slot, data=data, synchronous=SYNCHRONOUS
        )


def _of_no_standby(answer: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the only row of a result, without its first value. That value states whether the server is a standby.

    Raises:
        psycopg.errors.ReadOnlySqlTransaction: the server is a standby. Its rows may be stale.
    """
    [(is_standby, *values)] = answer
    if is_standby:
        raise psycopg.errors.ReadOnlySqlTransaction(
            "a standby has answered, which may lack the newest entries. No proxy may send reads to standbys"
        )
    return tuple(values)
