"""The sink's table and its marker table, with all SQL of the sink.

For a transaction that has ended, the server reports only XAER_NOTA, whether it was committed or rolled back by hand.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pymysql

from twopc.keyed import UniqueIndex
from twopc.prepared import MARKERS, MarkedTable
from twopc_mysql.columns import Column
from twopc_mysql.options import MysqlOptions
from twopc_mysql.outcomes import NO_TABLE, number, rule_broken
from twopc_mysql.rows import conditions, rows, statements
from twopc_mysql.sessions import Connection, ask, identifier

FORMAT_ID = 0x32504331
"""The format id of the sink's names, "2PC1". It identifies them in XA RECOVER, which lists the transactions of all
databases and programs. MariaDB ignores it in XA COMMIT and XA ROLLBACK, so a name must be unique without it."""

LONGEST_PART = 64
"""The server's limit for each of the two parts of a name, in bytes. The first 64 bytes of a name are one part, the rest
is the other."""

_COLUMNS = """
    SELECT column_name, data_type, column_type, numeric_precision, numeric_scale, datetime_precision,
           is_nullable = 'YES', column_default, extra, collation_name, character_set_name
    FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""

_KEYS = """
    SELECT index_name, CASE WHEN sub_part IS NULL THEN column_name END
    FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s AND non_unique = 0
    ORDER BY index_name = 'PRIMARY' DESC, index_name, seq_in_index
"""

_ENGINE = """
    SELECT engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s AND table_type <> 'VIEW'
"""

_MAKE_MARKERS = """
    CREATE TABLE IF NOT EXISTS {markers} (
        transaction_id VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
        scope VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
        batch_id BIGINT NOT NULL
    ) ENGINE=InnoDB
"""

_INSERT = "INSERT INTO {table} ({columns}) VALUES "
_DELETE = "DELETE FROM {table} WHERE "
_NOTHING = "SELECT {values} FROM DUAL WHERE FALSE"
_REPLACE = " ON DUPLICATE KEY UPDATE {changes}"


KEYS_AT_ONCE = 500
"""The most keys in one DELETE. With many more, a server would scan the whole table."""


class Table(MarkedTable[Connection]):
    """The table that ``options`` names, and its markers. The methods raise PyMySQL's errors."""

    def __init__(self, options: MysqlOptions) -> None:
        self._database, self._name = options.database, options.table
        self._upsert_by = options.upsert_by
        self.markers = self._qualified(MARKERS)

    # Reading. ---------------------------------------------------------------------------------------------------------

    def columns(self, connection: Connection) -> list[Column]:
        """Return the table's columns; an empty list if the table does not exist."""
        found = ask(connection, _COLUMNS, self._database, self._name)
        return [replace(Column(*row), is_key=row[0] in self._upsert_by) for row in found]

    def unique_keys(self, connection: Connection) -> list[UniqueIndex]:
        """Return the table's unique keys, the primary key first."""
        keys = defaultdict(set)
        for name, column in ask(connection, _KEYS, self._database, self._name):
            keys[name].add(column)
        return [UniqueIndex(name, frozenset(columns)) for name, columns in keys.items()]

    def engine(self, connection: Connection, name: str) -> str | None:
        """Return the storage engine of a table of the database; None if there is no such table."""
        return next((engine for (engine,) in ask(connection, _ENGINE, self._database, name)), None)

    # Writing, within a transaction. -----------------------------------------------------------------------------------

    def insert(
        self, connection: Connection, batch: pa.RecordBatch, columns: Mapping[str, Column], most_bytes: int
    ) -> None:
        """Write a record batch. For each key, the last record wins.

        Raises:
            RecordRefused: the server can't store a value, or would change it.
        """
        names = batch.schema.names
        head, tail = self._insert_statement(names)
        texts = rows(batch, columns)
        for statement in statements(head.encode(), texts, tail.encode(), most_bytes):
            with connection.cursor() as cursor:
                cursor.execute(statement)
                if cursor.warning_count:
                    _require_unchanged(connection, names)

    def delete(
        self, connection: Connection, keys: pa.RecordBatch, columns: Mapping[str, Column], most_bytes: int
    ) -> None:
        """Delete rows by key.

        Raises:
            RecordRefused: the server can't store a value, or would change it.
        """
        head = _DELETE.format(table=self._qualified())
        texts = conditions(keys, columns)
        for statement in statements(head.encode(), texts, b"", most_bytes, by=b" OR ", at_once=KEYS_AT_ONCE):
            connection.query(statement)

    def try_delete(self, connection: Connection) -> None:
        """Run a DELETE that matches no row, so that the server checks privileges and locks the table's definition."""
        connection.query(_DELETE.format(table=self._qualified()) + "FALSE")

    def _qualified(self, name: str = "") -> str:
        return f"{identifier(self._database)}.{identifier(name or self._name)}"

    def try_insert(self, connection: Connection, names: Sequence[str]) -> None:
        """Run an INSERT without rows, so that the server checks privileges."""
        head, tail = self._insert_statement(names)
        connection.query(head.removesuffix("VALUES ") + _NOTHING.format(values=", ".join(["NULL"] * len(names))) + tail)

    def _insert_statement(self, names: Sequence[str]) -> tuple[str, str]:
        """Return the SQL before and after the rows."""
        head = _INSERT.format(table=self._qualified(), columns=", ".join(map(identifier, names)))
        others = [identifier(name) for name in names if name not in self._upsert_by] or [identifier(names[0])]
        changes = ", ".join(f"{column} = VALUES({column})" for column in others)
        return head, _REPLACE.format(changes=changes) if self._upsert_by else ""

    # Markers. ---------------------------------------------------------------------------------------------------------

    _waiting = " LOCK IN SHARE MODE"
    """The lock that makes "no row" certain: the transaction is gone. A plain read would also find no row while another
    process is committing the transaction."""

    def _of_markers(self, connection: Connection, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        parts = {name: f"%({name})s" for name in values}
        return ask(connection, statement.format(markers=self.markers.replace("%", "%%"), **parts), **values)

    def make_markers(self, connection: Connection) -> None:
        if self.engine(connection, MARKERS) is None:
            self._of_markers(connection, _MAKE_MARKERS)

    def marker(self, connection: Connection, transaction_id: str) -> bool | None:
        """Return whether a transaction's marker is visible, which proves that it is committed; None if the marker is
        written but was not visible a moment earlier. Unlike ``is_committed``, this does not wait."""
        visible, written = self._marked(connection, "transaction_id", transaction_id)
        return None if written > visible else bool(visible)

    def undecided(self, connection: Connection, scope: str) -> set[str]:
        """Return the names of transactions whose marker is written but not visible."""
        visible, written = self._marked(connection, "scope", scope)
        return written - visible

    def _marked(self, connection: Connection, column: str, value: str) -> tuple[set[str], set[str]]:
        """Return the names of committed markers, and of all markers including uncommitted ones. Both are empty before
        the first start creates the table."""
        statement = f"SELECT transaction_id FROM {{markers}} WHERE {column} = {{value}}"  # noqa: S608  # a constant
        try:
            visible = {name for (name,) in self._of_markers(connection, statement, value=value)}
            if visible and column == "transaction_id":
                return visible, visible
            ask(connection, "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")  # applies to the next statement
            return visible, {name for (name,) in self._of_markers(connection, statement, value=value)}
        except pymysql.MySQLError as error:
            if number(error) != NO_TABLE:
                raise
            return set(), set()

    def write_nothing(self, connection: Connection) -> None:
        """Insert a marker that belongs to no transaction, unless it exists already. In either case, the server treats
        the current transaction as one that has written rows."""
        self._of_markers(
            connection, "INSERT IGNORE INTO {markers} (transaction_id, scope, batch_id) VALUES ('', '', 0)"
        )

    def prune_markers(self, connection: Connection, scope: str, before_batch_id: int) -> None:
        """Delete the old markers one by one, by key, because a scan would wait for the rows of prepared
        transactions."""
        statement = "SELECT transaction_id, batch_id FROM {markers} WHERE scope = {scope} ORDER BY transaction_id"
        found = self._of_markers(connection, statement, scope=scope)
        newest = max((batch_id for _, batch_id in found), default=0)
        old = [name for name, batch_id in found if batch_id < min(before_batch_id, newest)]
        if old:
            ask(connection, "START TRANSACTION")
            for name in old:
                self._of_markers(connection, "DELETE FROM {markers} WHERE transaction_id = {name}", name=name)
            ask(connection, "COMMIT")


# The server. ------------------------------------------------------------------------------------------------------


def xid(name: str) -> str:
    """Return a transaction's name as the xid of an XA statement."""
    return f"'{name[:LONGEST_PART]}', '{name[LONGEST_PART:]}', {FORMAT_ID}"


def prepared(connection: Connection) -> list[str]:
    """Return the names of all twopc transactions that are prepared on the server, in any database."""
    found = ask(connection, "XA RECOVER")
    return [
        name.decode("ascii", "replace") if isinstance(name, bytes) else name
        for format_id, _, _, name in found
        if format_id == FORMAT_ID
    ]


def _require_unchanged(connection: Connection, names: Sequence[str]) -> None:
    """Refuse a value that strict mode changes with only a note, such as a text with trailing spaces."""
    for _, code, message in connection.show_warnings():
        if refused := rule_broken(code, message, names):
            raise refused


def is_read_only(connection: Connection) -> bool:
    """Return whether the server is set to read-only, as replicas usually are. Newer servers return a word instead of a
    number."""
    [(is_read_only,)] = ask(connection, "SELECT @@global.read_only")
    return f"{is_read_only}" not in ("0", "OFF")


def settings(connection: Connection) -> dict[str, str]:
    """Return the server's version and its durability settings, as text."""
    names = (
        "version",
        "log_bin",
        "binlog_format",
        "innodb_flush_log_at_trx_commit",
        "innodb_doublewrite",
        "sync_binlog",
    )
    [row] = ask(connection, f"SELECT {', '.join('@@' + name for name in names)}")
    return dict(zip(names, map(str, row), strict=True))


def can_prepare(version: str) -> bool:
    """Return whether a prepared transaction reliably survives its session and a restart of the server."""
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    return numbers >= ((10, 5, 0) if "mariadb" in version.lower() else (8, 0, 29))
