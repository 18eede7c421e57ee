"""The sink's table and its marker table: all SQL of the sink.

For a prepared transaction that is gone, PostgreSQL reports only "does not exist", whether it was committed before or
rolled back by hand. ``pg_xact_status`` distinguishes the two, but reports on a different transaction if the server has
reused the number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from twopc.columns import ADVICE, require
from twopc.errors import RecordRefused
from twopc.keyed import UniqueIndex
from twopc.prepared import MARKERS, MarkedTable
from twopc.transactional_ids import TransactionId
from twopc_postgres.columns import FOLDS, ORDINAL, OTHER, PROVEN, PROVEN_IN_KEYS, Column
from twopc_postgres.options import PostgresOptions
from twopc_postgres.rows import lines, refusals, single
from twopc_postgres.sessions import Connection

_ORDINAL = sql.Identifier(ORDINAL)

_COLUMNS = """
    WITH RECURSIVE resolved AS (
        SELECT a.attrelid, a.attnum, a.atttypid AS type, a.atttypmod AS modifier, 0 AS arrays
        FROM pg_catalog.pg_attribute a
        JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = {schema} AND c.relname = {name} AND c.relkind IN ('r', 'p')
          AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT r.attrelid, r.attnum,
               CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END,
               CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE r.modifier END,
               CASE t.typtype WHEN 'd' THEN r.arrays ELSE r.arrays + 1 END
        FROM resolved r JOIN pg_catalog.pg_type t ON t.oid = r.type
        WHERE t.typtype = 'd' OR t.typinput = 'pg_catalog.array_in'::pg_catalog.regproc
    )
    SELECT a.attname,
           CASE WHEN r.arrays > 1 OR (r.arrays > 0 AND t.typdelim <> ',') THEN ''
                WHEN t.typtype = 'e' THEN 'enum'
                WHEN t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace THEN t.typname
                WHEN t.typtype = 'b' THEN {other}
                ELSE '' END,
           NULLIF(r.modifier, -1), r.arrays > 0,
           pg_catalog.format_type(a.atttypid, a.atttypmod), pg_catalog.format_type(r.type, r.modifier),
           a.attgenerated <> '' OR a.attidentity = 'a',
           a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
           {folded}
    FROM resolved r
    JOIN pg_catalog.pg_attribute a USING (attrelid, attnum)
    JOIN pg_catalog.pg_type t ON t.oid = r.type
    WHERE t.typtype <> 'd' AND t.typinput <> 'pg_catalog.array_in'::pg_catalog.regproc
    ORDER BY a.attnum
"""

_FOLDED = """
    EXISTS (
        SELECT FROM pg_catalog.pg_collation l WHERE NOT l.collisdeterministic
          AND (l.oid = a.attcollation OR EXISTS (
              SELECT FROM pg_catalog.pg_index i
              WHERE i.indrelid = a.attrelid AND i.indisunique AND l.oid = ANY (i.indcollation)
          ))
    ) OR EXISTS (
        SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_opclass o ON o.oid = ANY (i.indclass)
        WHERE i.indrelid = a.attrelid AND i.indisunique
          AND o.opcnamespace <> 'pg_catalog'::pg_catalog.regnamespace
    )
"""

_PROGRAMS = """
    SELECT pg_catalog.row_security_active(c.oid),
           ARRAY(SELECT rulename::text FROM pg_catalog.pg_rewrite
                 WHERE ev_class = c.oid AND ev_enabled <> 'D' AND ev_type::text = ANY ({events}) ORDER BY 1),
           ARRAY(SELECT tgname::text FROM pg_catalog.pg_trigger
                 WHERE tgrelid = c.oid AND NOT tgisinternal AND tgenabled <> 'D' AND tgtype & 1 = 1 ORDER BY 1)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema} AND c.relname = {name}
"""

_ON_UPDATE, _ON_INSERT, _ON_DELETE = "2", "3", "4"
"""The events of rules in pg_rewrite."""

_KEPT = "SELECT NOT EXISTS (SELECT FROM unnest(%s::text[]) v WHERE NOT ((pg_catalog.format('%%s', v::{0}) = v{1}){2}))"
"""Whether all texts come back unchanged from a type's output. Unlike a cast to text, the output includes everything
that a reader sees, such as the blanks of a ``char(n)``."""

_UNLOGGED = """
    WITH RECURSIVE part AS (
        SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = {schema} AND c.relname = {name} AND c.relkind IN ('r', 'p')
        UNION ALL SELECT i.inhrelid FROM pg_inherits i JOIN part ON i.inhparent = part.oid
    )
    SELECT part.oid::regclass::text FROM part JOIN pg_class USING (oid) WHERE relpersistence = 'u' ORDER BY 1 LIMIT 1
"""

_UNIQUE_INDEXES = """
    SELECT x.relname::text, array_agg(CASE WHEN i.indpred IS NULL THEN a.attname::text END),
           i.indisunique AND NOT i.indisexclusion AND i.indimmediate AND i.indisvalid
               AND i.indpred IS NULL AND i.indexprs IS NULL,
           array_agg(a.attname::text) FILTER (
               WHERE NOT l.collisdeterministic OR o.opcnamespace <> 'pg_catalog'::regnamespace
           )
    FROM pg_index i
    JOIN pg_class x ON x.oid = i.indexrelid
    JOIN pg_class c ON c.oid = i.indrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL unnest(
        (i.indkey::int2[])[0:i.indnkeyatts - 1], (i.indcollation::oid[])[0:i.indnkeyatts - 1],
        (i.indclass::oid[])[0:i.indnkeyatts - 1]
    ) AS k(attnum, collated_by, class)
    JOIN pg_opclass o ON o.oid = k.class
    LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
    LEFT JOIN pg_collation l ON l.oid = k.collated_by
    WHERE n.nspname = {schema} AND c.relname = {name} AND (i.indisunique OR i.indisexclusion)
    GROUP BY i.indexrelid, x.relname
    ORDER BY 1
"""


class Table(MarkedTable[Connection]):
    """The table that ``options`` names, and its markers. The methods raise psycopg's errors."""

    def __init__(self, options: PostgresOptions) -> None:
        self._schema, self._name = options.schema, options.table
        self._upsert_by = options.upsert_by
        self._table = sql.Identifier(self._schema, self._name)
        self._markers = sql.Identifier(self._schema, MARKERS)
        self.markers = self._markers.as_string()

    # Reading. ---------------------------------------------------------------------------------------------------------

    def columns(self, connection: Connection) -> list[Column]:
        """Return the table's columns; an empty list if the table does not exist."""
        folded = sql.SQL(_FOLDED if self._upsert_by else "false")  # that expression takes a quarter of the time
        return [Column(*row) for row in self._of_catalog(connection, _COLUMNS, other=OTHER, folded=folded)]

    def programs(self, connection: Connection, deletes: bool = False) -> tuple[bool, list[str], list[str]]:
        """Return what the table runs for each written row or, with ``deletes``, for each deleted row: whether row level
        security applies to this role, the names of rules, and the names of row triggers. The table must exist."""
        events = [_ON_DELETE] if deletes else [_ON_INSERT, _ON_UPDATE] if self._upsert_by else [_ON_INSERT]
        [found] = self._of_catalog(connection, _PROGRAMS, events=events)
        has_policies, rules, triggers = found
        return has_policies, rules, triggers

    def unlogged(self, connection: Connection) -> str | None:
        """Return the name of the table or of one of its partitions that is UNLOGGED, or None. PostgreSQL empties
        UNLOGGED tables after a crash."""
        return next((name for (name,) in self._of_catalog(connection, _UNLOGGED)), None)

    def unique_indexes(self, connection: Connection) -> list[UniqueIndex]:
        """Return the indexes that can refuse a row because of other rows."""
        found = self._of_catalog(connection, _UNIQUE_INDEXES)
        return [
            UniqueIndex(name, frozenset(columns), can_replace, dict.fromkeys(folded or (), FOLDS))
            for name, columns, can_replace, folded in found
        ]

    def may_delete(self, connection: Connection) -> bool:
        """Return whether this role may delete rows of the table."""
        ask = "SELECT pg_catalog.has_table_privilege({table}, 'DELETE')"
        [(found,)] = connection.ask(ask, table=self._table.as_string(connection))
        return bool(found)

    def _of_catalog(self, connection: Connection, statement: str, **parts: Any) -> list[tuple[Any, ...]]:
        return connection.ask(statement, schema=self._schema, name=self._name, **parts)

    # Writing, within a transaction. -----------------------------------------------------------------------------

    def keep(self, connection: Connection) -> None:
        """Lock the table's definition until the transaction ends. ALTER TABLE has to wait for the lock."""
        connection.ask("LOCK TABLE ONLY {table} IN ROW EXCLUSIVE MODE", table=self._table)

    def make_upsert_table(self, connection: Connection, transaction_id: TransactionId) -> sql.Identifier:
        """Create the upsert table: this transaction's own table for records that replace rows.

        A temporary table would be simpler, but PostgreSQL can't prepare a transaction that has used one. The name is
        unique to the attempt. With a shared name, CREATE TABLE would wait for the other open attempt.
        """
        upsert_table = sql.Identifier(
            self._schema, f"twopc_{hashlib.sha256(transaction_id.exact.encode()).hexdigest()[:32]}"
        )
        make = "CREATE UNLOGGED TABLE {upsert_table} AS SELECT *, 0::bigint AS {ordinal} FROM {table} WITH NO DATA"
        connection.ask(make, upsert_table=upsert_table, ordinal=_ORDINAL, table=self._table)
        return upsert_table

    def index_upsert_table(self, connection: Connection, upsert_table: sql.Identifier) -> None:
        """Index the ordinals, so that ``merge`` finds the records of one batch without a full scan."""
        connection.ask("CREATE INDEX ON {upsert_table} ({ordinal})", upsert_table=upsert_table, ordinal=_ORDINAL)

    def copy(
        self,
        connection: Connection,
        batch: pa.RecordBatch,
        columns: Mapping[str, Column],
        upsert_table: sql.Identifier | None,
        ordinal: int,
    ) -> None:
        """Write a record batch, to the upsert table if there is one. ``ordinal`` is the first record's number.

        Raises:
            RecordRefused: PostgreSQL would change a value, or a trigger skips a record.
        """
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            self._require_kept(connection, values, columns[name])
        if upsert_table is not None:
            batch = batch.append_column(ORDINAL, pa.array(range(ordinal, ordinal + batch.num_rows)))
        self.copy_rows(connection, batch, upsert_table)

    def _require_kept(self, connection: Connection, given: pa.Array, column: Column) -> None:
        """Raise RecordRefused for a value that PostgreSQL would change."""
        is_key = column.name in self._upsert_by
        checks = [*refusals(given.type, column)]
        if column.is_proven or (is_key and column.type in PROVEN_IN_KEYS):
            why = f"the column's type, {column.element}, would not give it back as it is"
            if is_key:
                how = "without blanks at the end" if column.type == "bpchar" else "as PostgreSQL writes it"
                why = f"the column is one of 'upsert_by', and its type, {column.element}, needs it {how}"
            checks.append((lambda part: _are_kept(connection, part, column, is_key), why))
        for are_fine, why in checks:
            require(given, are_fine, why, column.name)

    def copy_rows(self, connection: Connection, batch: pa.RecordBatch, upsert_table: sql.Identifier | None) -> None:
        """Write records whose values PostgreSQL keeps. Raises RecordRefused if a trigger skips one."""
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(upsert_table or self._table, _listed(batch.schema.names))
        with connection.cursor() as cursor:
            with cursor.copy(statement) as copy:
                for some in lines(batch):
                    copy.write(some)
            self.require_all(connection, cursor.rowcount, batch.num_rows)

    def merge(
        self,
        connection: Connection,
        upsert_table: sql.Identifier,
        columns: Sequence[Column],
        ordinals: range | None = None,
    ) -> None:
        """Write the upsert table's records to ``columns`` of the table: those with ``ordinals``, or all. For each key,
        the last record wins. Records are sorted by key, so that tasks do not deadlock.

        Raises:
            RecordRefused: a trigger skips a record.
        """
        names = [column.name for column in columns]
        changed = [each.name for each in columns if each.name not in self._upsert_by or each.needs_its_key]
        parts = {
            "table": self._table,
            "columns": _listed(names),
            "keys": _listed(self._upsert_by),
            "changes": sql.SQL(", ").join(
                sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in changed or names
            ),
            "upsert_table": upsert_table,
            "ordinal": _ORDINAL,
            "those": sql.SQL("{} >= 0").format(_ORDINAL),  # negative ordinals are deletes
        }
        if ordinals is not None:  # with both bounds, so that PostgreSQL uses the index
            between = sql.SQL("{} BETWEEN {} AND {}")
            parts["those"] = between.format(_ORDINAL, ordinals.start, ordinals.stop - 1)
        statement = sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM"
            " (SELECT DISTINCT ON ({keys}) * FROM {upsert_table} WHERE {those}"
            " ORDER BY {keys}, {ordinal} DESC) AS latest"
            " ON CONFLICT ({keys}) DO UPDATE SET {changes}"
        )
        written = connection.execute(statement.format(**parts)).rowcount
        count = "SELECT count(*) FROM (SELECT DISTINCT {keys} FROM {upsert_table} WHERE {those}) AS latest"
        [(given,)] = connection.ask(count, **parts)
        self.require_all(connection, written, given)

    def require_all(self, connection: Connection, written: int, given: int) -> None:
        """Check that PostgreSQL has written each record.

        Raises:
            RecordRefused: a trigger skips a record, or writes it to another table.
        """
        if written != given:
            names = ", ".join(self.programs(connection)[2]) or "of a partition"
            raise RecordRefused(
                f"a trigger of the table ({names}) leaves out {given - written} of {given} records. Filter such records"
                " in the query, or change the trigger. If it writes them to other tables, as partitions by inheritance"
                " do, partition the table with PARTITION BY instead, which needs no trigger."
            )

    def delete(self, connection: Connection, upsert_table: sql.Identifier, before: int = 0) -> None:
        """Delete the rows of the keys whose ordinals in the upsert table are below ``before``.

        Raises:
            RecordRefused: a trigger keeps a row.
        """
        parts = {
            "table": self._table,
            "upsert_table": upsert_table,
            "same": sql.SQL(" AND ").join(
                sql.SQL("{0}.{2} = {1}.{2}").format(self._table, upsert_table, sql.Identifier(name))
                for name in self._upsert_by
            ),
            "ordinal": _ORDINAL,
            "before": before,
        }
        connection.ask("DELETE FROM {table} USING {upsert_table} WHERE {ordinal} < {before} AND {same}", **parts)
        left_over = "SELECT count(*) FROM {table}, {upsert_table} WHERE {ordinal} < {before} AND {same}"
        [(left,)] = connection.ask(left_over, **parts)
        if left:
            raise RecordRefused(
                f"a trigger of the table keeps {left} rows that are to be deleted. Filter such deletes in the query, or"
                " change the trigger."
            )

    def drop(self, connection: Connection, upsert_table: sql.Identifier) -> None:
        """Drop an upsert table."""
        connection.ask("DROP TABLE {upsert_table}", upsert_table=upsert_table)

    # Markers. ---------------------------------------------------------------------------------------------------

    def _of_markers(self, connection: Connection, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        return connection.ask(statement, markers=self._markers, **values)

    def make_markers(self, connection: Connection) -> None:
        ask = "SELECT 1 FROM pg_tables WHERE schemaname = {schema} AND tablename = {name}"
        if not connection.ask(ask, schema=self._schema, name=MARKERS):
            columns = "transaction_id text PRIMARY KEY, scope text NOT NULL, batch_id int8 NOT NULL"
            self._of_markers(connection, f"CREATE TABLE {{markers}} ({columns})")

    def prune_markers(self, connection: Connection, scope: str, before_batch_id: int) -> None:
        prune = (
            "DELETE FROM {markers} WHERE scope = {scope} AND batch_id < LEAST({before},"
            " (SELECT max(batch_id) FROM {markers} WHERE scope = {scope}))"
        )
        self._of_markers(connection, prune, scope=scope, before=before_batch_id)


def _are_kept(connection: Connection, values: pa.Array, column: Column, is_key: bool) -> bool:
    """Return whether texts keep their values when stored in ``column``. The texts of a key must also keep their
    spelling: code that groups records by key would treat two spellings of one row's key as two keys."""
    element, is_padded = column.element.replace("%", "%%"), column.type == "bpchar"
    pattern = PROVEN[column.type] if is_padded or not is_key else None
    of_value = f" OR v ~ '^({pattern})$' AND v::pg_catalog.{column.type} = v::{element}" if pattern else ""
    ask = _KEPT.format(element, of_value, " AND v !~ ' $'" if is_key and is_padded else "").encode()
    try:
        [(are_kept,)] = connection.execute(ask, (single(values).unique().to_pylist(),))
    except psycopg.errors.InternalError_ as error:  # the class of errors to which an extension assigns no code
        raise RecordRefused(
            f"the column's type, {column.element}, does not take it ({error.sqlstate}). {ADVICE}", column=column.name
        ) from None
    return bool(are_kept)


def _listed(names: Collection[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
