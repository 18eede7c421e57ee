"""The differences between the supported databases that SQLAlchemy does not cover. The sink refuses all other
databases."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

ANSWER_TIMEOUT_S = 300
"""How long a driver waits for a response, if it supports such a timeout. When the timeout expires, the outcome of the
statement is unknown, so the statement that moves a batch must finish sooner."""


def _insert(connection: sa.Connection, table: sa.TableClause, columns: Sequence[Sequence[Any]]) -> None:
    rows = [dict(zip(table.c.keys(), row, strict=True)) for row in zip(*columns, strict=True)]
    connection.execute(sa.insert(table), rows)


@dataclass(frozen=True, slots=True)
class Dialect:
    """The SQL and the settings for one kind of database.

    Attributes:
        scheme: the URL scheme, which includes the driver. The sink is not tested with other drivers.
        insert: creates an INSERT in this dialect.
        replace: makes an INSERT replace rows, given the columns of the key and the others.
        connect: keyword arguments for the driver's ``connect``.
        session: the statements to run on each new connection. ``{timeout_s}`` and ``{timeout_ms}`` stand for the lock
            timeout.
        transaction: the statements to run at the start of each database transaction, with the same placeholders.
        isolation: the isolation level; None if the database has only one.
        stage: the statements that create ``{table}`` (``{name}`` without its schema) from ``{select}``, with a key of
            ``{columns}``. They create both the table and the key, or neither.
        at_once: the statement that makes deferred constraints immediate; empty if the database has none.
        faults: yields the problems of a table that the database itself does not report.
        unique_keys: a query for the unique keys of ``:table`` in ``:schema``. It returns one row per column of a key:
            the key's name, the column (null for an expression, or if the key is partial), and whether only identical
            texts are equal in the column.
        tries_other_kinds: whether a column may accept values of another kind, such as text in a numeric column.
        any_replaces: whether an upsert replaces the row that matches any unique key, not just the key in ``upsert_by``.
        joins_deletes: whether a DELETE can join the table with another one.
        counts_rows: whether an INSERT returns the number of rows added or replaced, which triggers may reduce.
        numbers_null: whether a null in a primary key may be replaced by a number.
        merges_zeros: whether the database may store -0.0 as 0.0 in a column that also contains 0.0.
        whole: the driver's code for a single-precision type → a function that turns a column into an expression with
            all digits. Read directly, such a column loses digits.
        fill: inserts rows, given as one sequence of values per column of the table.
        longest: a query for the maximum length of a statement in bytes, for a database that closes the connection on a
            longer statement.
    """

    scheme: str
    insert: Callable[[Any], Any]
    replace: Callable[[Any, Sequence[str], Sequence[str]], Any]
    connect: Mapping[str, Any] = field(default_factory=dict)
    session: Sequence[str] = ()
    transaction: Sequence[str] = ()
    isolation: str | None = None
    stage: Sequence[str] = ("CREATE TABLE {table} AS {select}", "ALTER TABLE {table} ADD PRIMARY KEY ({columns})")
    at_once: str = ""
    faults: Callable[[sa.Connection, str | None, str], Iterator[str]] = lambda *_: iter(())
    unique_keys: str = ""
    tries_other_kinds: bool = True
    any_replaces: bool = False
    joins_deletes: bool = True
    counts_rows: bool = False
    numbers_null: bool = False
    merges_zeros: bool = False
    whole: Mapping[Any, Callable[[Any], Any]] = field(default_factory=dict)
    fill: Callable[[sa.Connection, sa.TableClause, Sequence[Sequence[Any]]], None] = _insert
    longest: str = ""


def _on_conflict(insert: Any, keys: Sequence[str], others: Sequence[str]) -> Any:
    set_ = {name: insert.excluded[name] for name in others or keys}
    return insert.on_conflict_do_update(index_elements=keys, set_=set_)


def _on_duplicate_key(insert: Any, keys: Sequence[str], others: Sequence[str]) -> Any:
    return insert.on_duplicate_key_update({name: insert.inserted[name] for name in others or keys})


def _copy_to_postgres(connection: sa.Connection, table: sa.TableClause, columns: Sequence[Sequence[Any]]) -> None:
    """Insert records with COPY, which is several times as fast as one INSERT per record. Even a single record is
    copied, because PostgreSQL converts the values of an INSERT differently."""
    from psycopg import sql

    described = connection.execute(sa.select(*table.c).where(sa.false())).cursor.description
    takes_whole = [code in _WHOLE_IN_POSTGRES for _, code, *_ in described]
    given = [[*map(_whole, each)] if whole else each for each, whole in zip(columns, takes_whole, strict=True)]
    name = sql.Identifier(*filter(None, (table.schema, table.name)))
    names = sql.SQL(", ").join(map(sql.Identifier, table.c.keys()))
    statement = (
        sql.SQL("COPY {} ({}) FROM STDIN").format(name, names).as_string(connection.connection.driver_connection)
    )
    connection.exec_driver_sql(statement, {"rows": [*zip(*given, strict=True)]})


_WHOLE_IN_POSTGRES = (20, 21, 23, 1005, 1007, 1016)  # bigint, smallint, integer and their arrays


def _whole(value: Any) -> Any:
    """Return a whole number as an int, because an integer column accepts 1 but not 1.0."""
    if isinstance(value, list):
        return [*map(_whole, value)]
    return int(value) if isinstance(value, float | Decimal) and int(value) == value else value


def copy(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:  # noqa: ARG001  # SQLAlchemy gives all
    """Run ``statement`` if it is a COPY, and return whether it is. Runs as a listener for SQLAlchemy's event
    ``do_execute``, so that SQLAlchemy wraps the driver's errors."""
    if not statement.startswith("COPY "):
        return False
    with cursor.copy(statement) as copied:
        for row in parameters["rows"]:
            copied.write_row(row)
    return True


def _faults_in_mysql(connection: sa.Connection, schema: str | None, table: str) -> Iterator[str]:
    engine = sa.inspect(connection).get_table_options(table, schema).get("mysql_engine")
    if engine != "InnoDB":
        yield f"its engine is {engine}, which can't roll back: ALTER TABLE … ENGINE = InnoDB"


def _faults_in_sqlite(connection: sa.Connection, schema: str | None, table: str) -> Iterator[str]:
    catalog = sa.table("sqlite_master", sa.column("sql"), sa.column("name"), schema=schema)
    made = {name: sql or "" for name, sql in connection.execute(sa.select(catalog.c.name, catalog.c.sql))}
    if re.search(r"\bON\s+CONFLICT\b", made.get(table, ""), re.IGNORECASE):
        yield "its definition has ON CONFLICT, by which a record may be left out or replace another row: leave it out"
    for name, sql in made.items():
        is_about = name == table or re.search(rf"\bREFERENCES\W+{re.escape(table)}\b", sql, re.IGNORECASE)
        if is_about and re.search(r"\bINITIALLY\s+DEFERRED\b", sql, re.IGNORECASE):
            yield f"table {name!r} has a foreign key that is checked only at a commit: leave out INITIALLY DEFERRED"


_KEYS_IN_POSTGRES = """
    SELECT x.relname, CASE WHEN i.indpred IS NULL THEN a.attname END,
           coalesce(l.collisdeterministic, true) AND o.opcnamespace = 'pg_catalog'::regnamespace
               AND o.opcintype = ANY (CAST(ARRAY[
                   'bool', 'int2', 'int4', 'int8', 'numeric', 'float4', 'float8', 'text', 'bpchar', 'bytea', 'date',
                   'time', 'timetz', 'timestamp', 'timestamptz', 'interval', 'bit', 'varbit', 'macaddr', 'macaddr8',
                   'uuid', 'anyenum'
               ] AS regtype[]))
    FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
    CROSS JOIN LATERAL unnest(
        (i.indkey::int2[])[0:i.indnkeyatts - 1], (i.indcollation::oid[])[0:i.indnkeyatts - 1],
        (i.indclass::oid[])[0:i.indnkeyatts - 1]
    ) AS k(attnum, collated_by, class)
    JOIN pg_opclass o ON o.oid = k.class
    LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    LEFT JOIN pg_collation l ON l.oid = k.collated_by
    JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = :table AND CASE WHEN CAST(:schema AS text) IS NULL THEN pg_table_is_visible(c.oid)
        ELSE n.nspname = :schema END AND (i.indisunique OR i.indisexclusion)
"""

_KEYS_IN_MYSQL = """
    SELECT s.index_name, CASE WHEN s.sub_part IS NULL THEN s.column_name END,
           c.collation_name IS NULL OR c.collation_name LIKE '%\\_nopad\\_bin' OR c.collation_name LIKE '%\\_0900\\_bin'
    FROM information_schema.statistics s
    LEFT JOIN information_schema.columns c USING (table_schema, table_name, column_name)
    WHERE s.table_schema = coalesce(:schema, database()) AND s.table_name = :table AND s.non_unique = 0
"""

_KEYS_IN_SQLITE = """
    SELECT l.name, CASE WHEN l.partial = 0 THEN i.name END, i.coll = 'BINARY'
    FROM pragma_index_list(:table, coalesce(:schema, 'main')) l,
         pragma_index_xinfo(l.name, coalesce(:schema, 'main')) i
    WHERE l."unique" = 1 AND i.key = 1
    UNION ALL
    SELECT 'PRIMARY KEY', name, 1 FROM pragma_table_info(:table, coalesce(:schema, 'main')) WHERE pk > 0
"""

# DuckDB's catalog shows collations only in the text of CREATE TABLE.
_KEYS_IN_DUCKDB = """
    SELECT found.name, c.column_name, NOT EXISTS (
        SELECT 1 FROM duckdb_tables() t, (VALUES ('('), (', ')) AS before(mark),
            (VALUES (c.column_name), ('"' || replace(c.column_name, '"', '""') || '"')) AS spelled(name)
        WHERE t.table_name = :table AND t.schema_name = coalesce(:schema, current_schema())
          AND contains(t.sql, before.mark || spelled.name || ' VARCHAR COLLATE ')
    )
    FROM (
        SELECT constraint_type || constraint_index AS name, unnest(constraint_column_names) AS part
        FROM duckdb_constraints()
        WHERE constraint_type IN ('PRIMARY KEY', 'UNIQUE') AND table_name = :table
          AND schema_name = coalesce(:schema, current_schema())
        UNION ALL
        SELECT index_name, trim(unnest(string_split(trim(expressions, '[]'), ',')), ' ''"')
        FROM duckdb_indexes()
        WHERE is_unique AND table_name = :table AND schema_name = coalesce(:schema, current_schema())
    ) found
    LEFT JOIN duckdb_columns() c
        ON c.table_name = :table AND c.schema_name = coalesce(:schema, current_schema()) AND c.column_name = found.part
"""

_LOCAL_TO_POSTGRES = (
    "SET LOCAL lock_timeout = {timeout_ms}; SET LOCAL statement_timeout = 0;"
    " SET LOCAL standard_conforming_strings = on; SET LOCAL array_nulls = on; SET LOCAL datestyle = ISO;"
    " SET LOCAL extra_float_digits = 1; SET LOCAL intervalstyle = postgres"
)

DIALECTS: Mapping[str, Dialect] = {
    "postgresql": Dialect(
        "postgresql+psycopg",
        postgresql.insert,
        _on_conflict,
        # In seconds, except tcp_user_timeout in milliseconds, without which a dead host would block a commit for
        # fifteen minutes.
        {
            "connect_timeout": 10,
            "tcp_user_timeout": 30_000,
            "keepalives_idle": 10,
            "keepalives_interval": 10,
            "client_encoding": "UTF8",
            "prepare_threshold": None,
        },
        isolation="READ COMMITTED",
        # Not set for the session: a pooler may give it to another client after the transaction.
        transaction=(_LOCAL_TO_POSTGRES,),
        at_once="SET CONSTRAINTS ALL IMMEDIATE",
        unique_keys=_KEYS_IN_POSTGRES,
        tries_other_kinds=False,
        counts_rows=True,
        whole={  # float4 and its array
            700: lambda column: sa.cast(column, sa.Double()),
            1021: lambda column: sa.cast(column, sa.ARRAY(sa.Double())),
        },
        fill=_copy_to_postgres,
    ),
    "mysql": Dialect(
        "mysql+pymysql",
        mysql.insert,
        _on_duplicate_key,
        # Without strict mode, the server truncates values with only a warning. Without NO_AUTO_VALUE_ON_ZERO, it
        # replaces 0 by the next number. Set here, because SQLAlchemy derives its quoting from the mode when it
        # connects.
        {
            "connect_timeout": 10,
            "read_timeout": ANSWER_TIMEOUT_S,
            "write_timeout": ANSWER_TIMEOUT_S,
            "sql_mode": "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_AUTO_VALUE_ON_ZERO,"
            "ERROR_FOR_DIVISION_BY_ZERO",
        },
        (
            "SET SESSION default_storage_engine = InnoDB",
            "SET SESSION innodb_lock_wait_timeout = {timeout_s}, lock_wait_timeout = {timeout_s}",
            "SET SESSION completion_type = 0, sql_select_limit = 18446744073709551615, sql_safe_updates = 0",
        ),
        stage=("CREATE TABLE {table} (PRIMARY KEY ({columns})) AS {select}",),  # two would be two transactions
        isolation="READ COMMITTED",  # otherwise a DELETE locks the gaps between rows, where other tasks write
        faults=_faults_in_mysql,
        unique_keys=_KEYS_IN_MYSQL,
        any_replaces=True,
        # FLOAT. Older servers can't cast it to DOUBLE.
        whole={4: lambda column: sa.type_coerce(column, sa.Double()) * sa.literal_column("1e0")},
        longest="SELECT @@max_allowed_packet",
    ),
    "sqlite": Dialect(
        "sqlite+pysqlite",
        sqlite.insert,
        _on_conflict,
        session=("PRAGMA busy_timeout = {timeout_ms}", "PRAGMA foreign_keys = ON"),
        stage=("BEGIN", "CREATE TABLE {table} AS {select}", "CREATE UNIQUE INDEX {table}_key ON {name} ({columns})"),
        faults=_faults_in_sqlite,
        unique_keys=_KEYS_IN_SQLITE,
        joins_deletes=False,
        counts_rows=True,
        numbers_null=True,
    ),
    # DuckDB may store a column of zeros as a single value, ignoring their signs.
    "duckdb": Dialect(
        "duckdb+duckdb_engine", postgresql.insert, _on_conflict, unique_keys=_KEYS_IN_DUCKDB, merges_zeros=True
    ),
}
"""Backend name in the URL → dialect. MariaDB uses ``mysql``."""
