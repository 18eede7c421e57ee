"""The sink's table and its marker table: all SQL of the sink.

A marker is a row that a transaction writes about itself, under its own name. The row exists exactly if the transaction
is committed, whichever process ended it. A failover or a restore from a backup undoes both together.

For a prepared transaction that is gone, PostgreSQL reports only "does not exist", whether it was committed before or
rolled back by hand. ``pg_xact_status`` distinguishes the two, but reports on a different transaction if the server has
reused the number.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Collection, Sequence
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from twopc.bad_records import are_held, first_bad
from twopc.checks import CheckResult
from twopc.errors import RecordRefused
from twopc.prepared import MARKERS
from twopc.transactional_ids import TransactionId
from twopc_postgres.columns import Column
from twopc_postgres.options import PostgresOptions
from twopc_postgres.sessions import SYNCHRONOUS, Connection

_CANCEL_TIMEOUT_S = 5.0

_ORDINAL = "twopc_ordinal"
"""The column of an upsert table that holds the order in which records arrived."""

_COLUMNS = """
    SELECT a.attname, t.typname,
           CASE WHEN m.typmod >= 4 AND t.typname IN ('numeric', '_numeric') THEN (m.typmod - 4) >> 16 END,
           CASE WHEN m.typmod >= 4 AND t.typname IN ('numeric', '_numeric') THEN (m.typmod - 4) & 2047 END,
           a.attgenerated <> '' OR a.attidentity = 'a',
           a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
    FROM pg_attribute a
    JOIN pg_class c ON c.oid = a.attrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_type d ON d.oid = a.atttypid
    JOIN pg_type t ON t.oid = CASE d.typtype WHEN 'd' THEN d.typbasetype ELSE d.oid END
    CROSS JOIN LATERAL (SELECT CASE d.typtype WHEN 'd' THEN d.typtypmod ELSE a.atttypmod END AS typmod) m
    WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
"""

_UNLOGGED = """
    WITH RECURSIVE part AS (
        SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
        UNION ALL SELECT i.inhrelid FROM pg_inherits i JOIN part ON i.inhparent = part.oid
    )
    SELECT part.oid::regclass::text FROM part JOIN pg_class USING (oid) WHERE relpersistence = 'u' ORDER BY 1 LIMIT 1
"""

_UNIQUE_INDEXES = """
    SELECT array_agg(a.attname::text)
    FROM pg_index i
    JOIN pg_class c ON c.oid = i.indrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) AS k(attnum)
    LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
    WHERE n.nspname = %s AND c.relname = %s
      AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
    GROUP BY i.indexrelid
"""


class Table:
    """The table that ``options`` names, and its markers. The methods raise psycopg's errors."""

    def __init__(self, options: PostgresOptions) -> None:
        self._schema, self._name = options.schema, options.table
        self._upsert_by = options.upsert_by
        self._table = sql.Identifier(self._schema, self._name)
        self._markers = sql.Identifier(self._schema, MARKERS)

    # Reading. ---------------------------------------------------------------------------------------------------------

    def columns(self, connection: Connection) -> list[Column]:
        """Return the table's columns; an empty list if the table does not exist."""
        return [Column(*row) for row in connection.execute(_COLUMNS, (self._schema, self._name))]

    def unlogged(self, connection: Connection) -> str | None:
        """Return the name of an UNLOGGED table among the table and its partitions; None if there is none. PostgreSQL
        empties an UNLOGGED table after a crash."""
        return next((name for (name,) in connection.execute(_UNLOGGED, (self._schema, self._name))), None)

    def unique_indexes(self, connection: Connection) -> list[frozenset[str]]:
        """Return the columns of each unique index by which a record can replace a row."""
        return [frozenset(names) for (names,) in connection.execute(_UNIQUE_INDEXES, (self._schema, self._name))]

    # Writing, within a transaction. -----------------------------------------------------------------------------

    def make_upsert_table(self, connection: Connection, transaction_id: TransactionId) -> sql.Identifier:
        """Create the upsert table: this transaction's own table for records that replace rows.

        A temporary table would be simpler, but PostgreSQL does not prepare a transaction that has used one. Each
        attempt has its own name for it. With a shared name, CREATE TABLE would wait for the other open attempt.
        """
        upsert_table = sql.Identifier(
            self._schema, f"twopc_{hashlib.sha256(transaction_id.exact.encode()).hexdigest()[:32]}"
        )
        make = sql.SQL("CREATE UNLOGGED TABLE {} AS SELECT *, 0::bigint AS {} FROM {} WITH NO DATA")
        connection.execute(make.format(upsert_table, sql.Identifier(_ORDINAL), self._table))
        return upsert_table

    def copy(
        self, connection: Connection, batch: pa.RecordBatch, upsert_table: sql.Identifier | None, ordinal: int
    ) -> None:
        """Write a record batch, to the upsert table if there is one. ``ordinal`` is its first record's number.

        Raises:
            RecordRefused: Python can't hold a value.
        """
        names = list(batch.schema.names)
        values = [_of_python(column, name) for name, column in zip(names, batch.columns, strict=True)]
        if upsert_table is not None:
            names, values = [*names, _ORDINAL], [*values, list(range(ordinal, ordinal + batch.num_rows))]
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(upsert_table or self._table, _listed(names))
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in zip(*values, strict=True):
                copy.write_row(row)

    def merge(self, connection: Connection, upsert_table: sql.Identifier, names: Sequence[str]) -> None:
        """Move the upsert table's records into the table. Of records with the same key, the last one wins. The records
        are sorted by key, so that two tasks don't deadlock."""
        keys = _listed(self._upsert_by)
        others = [sql.Identifier(name) for name in names if name not in self._upsert_by]
        changes = [sql.SQL("{0} = EXCLUDED.{0}").format(column) for column in others]
        action = sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(changes)) if changes else sql.SQL("NOTHING")
        statement = sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM"
            " (SELECT DISTINCT ON ({keys}) * FROM {upsert_table} ORDER BY {keys}, {ordinal} DESC) AS latest"
            " ON CONFLICT ({keys}) DO {action}"
        )
        parts = {
            "table": self._table,
            "columns": _listed(names),
            "keys": keys,
            "upsert_table": upsert_table,
            "action": action,
        }
        connection.execute(statement.format(**parts, ordinal=sql.Identifier(_ORDINAL)))
        connection.execute(sql.SQL("DROP TABLE {}").format(upsert_table))

    # Markers. ---------------------------------------------------------------------------------------------------

    def make_markers(self, connection: Connection) -> None:
        """Create the marker table if it is missing."""
        [(found,)] = connection.execute(
            "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = %s AND tablename = %s)", (self._schema, MARKERS)
        )
        if not found:
            make = "CREATE TABLE {} (transaction_id text PRIMARY KEY, scope text NOT NULL, batch_id bigint NOT NULL)"
            connection.execute(sql.SQL(make).format(self._markers))

    def mark(self, connection: Connection, transaction_id: TransactionId, scope: str) -> None:
        """Write the transaction's own marker."""
        row = (transaction_id.exact, scope, transaction_id.round.batch_id)
        connection.execute(sql.SQL("INSERT INTO {} VALUES (%s, %s, %s)").format(self._markers), row)

    def is_committed(self, connection: Connection, transaction_id: str) -> bool:
        """Return whether a transaction that is no longer prepared was committed."""
        ask = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE transaction_id = %s)").format(self._markers)
        [(found,)] = connection.execute(ask, (transaction_id,))
        return bool(found)

    def has_markers(self, connection: Connection, scope: str, before_batch_id: int) -> bool:
        """Return whether a transaction of an older batch has left a marker. Markers of the same batch prove nothing,
        because their transactions may have been committed after the markers were removed."""
        ask = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE scope = %s AND batch_id < %s)").format(self._markers)
        [(found,)] = connection.execute(ask, (scope, before_batch_id))
        return bool(found)

    def prune_markers(self, connection: Connection, scope: str, before_batch_id: int) -> None:
        """Remove the markers of older batches, but keep the newest, which prove that the table was not emptied."""
        prune = sql.SQL(
            "DELETE FROM {markers} WHERE scope = %(scope)s AND batch_id < LEAST(%(before)s,"
            " (SELECT max(batch_id) FROM {markers} WHERE scope = %(scope)s))"
        )
        connection.execute(prune.format(markers=self._markers), {"scope": scope, "before": before_batch_id})


def _of_python(column: pa.Array, name: str) -> list[Any]:
    """Return a column's values. Raises RecordRefused for one that Python can't hold."""
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        raise RecordRefused(
            "it is text that is not UTF-8, or a time that psycopg can't send: one outside of the years 1 to 9999."
            " Correct or filter such records.",
            record=first_bad(column, are_held),
            column=name,
        ) from None
    return values


# The server. -------------------------------------------------------------------------------------------------


def prepared(connection: Connection, scope: str) -> dict[str, float]:
    """Return the names of the transactions prepared in this database that start with ``scope`` → how many seconds ago
    they were prepared."""
    ask = (
        "SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8 FROM pg_prepared_xacts"
        " WHERE database = current_database() AND starts_with(gid, %s)"
    )
    return dict(connection.execute(ask, (scope,)).fetchall())


def room_for_prepared(connection: Connection) -> int:
    """Return how many transactions may be prepared at the same time."""
    [(setting,)] = connection.execute("SELECT current_setting('max_prepared_transactions')::int")
    return int(setting)


def durability(connection: Connection) -> CheckResult:
    """Check that acknowledged commits survive a power failure."""
    check = "durability of acknowledged commits"
    ask = "SELECT {0}('fsync')::bool AND {0}('full_page_writes')::bool".format("pg_catalog.current_setting")
    [(is_durable,)] = connection.execute(ask)
    if is_durable:
        return CheckResult.passed(check)
    return CheckResult.warning(
        check, "fsync or full_page_writes is off: a power failure can lose acknowledged commits", "set both on"
    )


def synchronous_standbys(connection: Connection) -> str:
    """Return the setting ``synchronous_standby_names``; empty if commits wait for no standby."""
    [(names,)] = connection.execute("SELECT pg_catalog.current_setting('synchronous_standby_names')")
    return str(names)


def may_spare_a_standby(synchronous: str) -> bool:
    """Return whether commits wait for fewer standbys than ``synchronous_standby_names`` lists. If one of those is
    promoted, the others can acknowledge what the old server commits."""
    found = _STANDBY_NAMES.fullmatch(synchronous)
    acknowledging, names = (int(found["number"]), found["names"]) if found else (1, synchronous)
    listed = re.findall(r'"(?:[^"]|"")*"|[^\s,]+', names)
    return "*" in listed or len(listed) > acknowledging


_STANDBY_NAMES = re.compile(r"\s*((FIRST|ANY)\s+)?(?P<number>\d+)\s*\((?P<names>.*)\)\s*", re.IGNORECASE | re.DOTALL)
"""``FIRST 2 (one, two)``, ``ANY 2 (one, two)`` and ``2 (one, two)``. A list alone is ``FIRST 1``, and ``*`` is any."""


def standbys(connection: Connection) -> int:
    """Return the number of connected standbys and other physical receivers of the server's WAL."""
    [(count,)] = connection.execute(
        "SELECT count(*) FROM pg_catalog.pg_stat_replication r WHERE r.state IS DISTINCT FROM 'backup' AND NOT EXISTS"
        " (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')"
    )
    return int(count)


def prove_current(connection: Connection) -> None:
    """Commit an empty transaction, and wait until the synchronous standbys have it on disk.

    The standbys then also have everything that was committed before, so no failover to one of them can undo it.

    The commit also proves that no standby has replaced this server, which would still answer queries about the past. It
    does so on one condition: the old server is fenced at a failover, or too few standbys stay with it for it to commit.
    With ``FIRST 1 (one, two)``, the second standby may still acknowledge when the first one is promoted.

    A wait that times out is canceled. Otherwise the server would not notice, and repeated waits would use up its
    sessions.
    """
    try:
        commit = sql.SQL("SELECT pg_catalog.pg_logical_emit_message(true, 'twopc', '') FROM {}")
        connection.execute(commit.format(SYNCHRONOUS))
    except psycopg.OperationalError:
        if psycopg.capabilities.has_cancel_safe():  # otherwise the cancel request may wait without limit
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
        raise


def _listed(names: Collection[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
