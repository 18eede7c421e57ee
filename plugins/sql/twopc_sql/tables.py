"""The sink's own tables, and the SQL that moves records from them into the target table.

- ``twopc_transactions`` contains one row per uncommitted transaction, open or prepared.
- A staging table contains the records of these transactions. Its columns are copied from the target table.
- ``twopc_batches`` stores a mark per sink and query: the newest committed batch.

Rows are locked with an UPDATE that changes nothing, because not every database supports SELECT FOR UPDATE.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError

from twopc.columns import ADVICE, require, require_each, require_keys
from twopc.errors import OperatorRequired, RecordRefused
from twopc.keyed import UniqueIndex
from twopc_sql.options import SqlOptions
from twopc_sql.records import has_minus_zero, require_unchanged, values_of, written_as

NAME = sa.String(255).with_variant(mysql.VARCHAR(255, charset="ascii", collation="ascii_bin"), "mysql")
"""The column type for the names of transactions, and for the prefix that a sink's transactions share. In MySQL it has a
binary collation, because the default collation treats A and a as equal."""

LONGEST_SCOPE = 200
"""The maximum length of a sink's scope, which leaves room for the five numbers in a transaction's name."""

OPEN, PREPARED = "open", "prepared"

_FOLDS = (
    "it takes different texts for equal, such as 'a' and 'A', or 'a' with a space at its end: give it a binary"
    " collation, in MySQL utf8mb4_0900_bin, in MariaDB utf8mb4_nopad_bin, or make it a column of text"
)

_AT_ONCE = 500
"""The maximum number of names in one statement, because databases limit the number of parameters."""

_HEAD = 1 << 16
"""An upper bound for the length of an INSERT up to its values, in bytes."""

_KEY, _ORDINAL, _NEWEST = "twopc_key", "twopc_ordinal", "twopc_newest"
OURS: dict[str, sa.types.TypeEngine[Any]] = {_KEY: sa.String(64), _ORDINAL: sa.BigInteger()}
"""The extra columns of a staging table: a record's transaction, and its place in the order of arrival."""

RESERVED = (*OURS, _NEWEST)
"""Column names that records may not use."""


class Tables:
    """The sink's tables beside the target table. The methods raise SQLAlchemy's errors."""

    def __init__(self, options: SqlOptions) -> None:
        self._options = options
        schema, self._metadata = options.schema, sa.MetaData()
        name, scope = sa.Column("name", NAME, primary_key=True), sa.Column("scope", NAME, nullable=False)
        staged = sa.Column("staged", sa.String(64)), sa.Column("deletes", sa.String(64))
        state = sa.Column("state", sa.String(8), nullable=False)
        self._transactions = sa.Table("twopc_transactions", self._metadata, name, scope, *staged, state, schema=schema)
        mark = sa.Column("scope", NAME, primary_key=True), sa.Column("batch_id", sa.BigInteger, nullable=False)
        self._batches = sa.Table("twopc_batches", self._metadata, *mark, schema=schema)
        self.marks = options.url.get_dialect()().identifier_preparer.format_table(self._batches)

    def make(self, engine: sa.Engine) -> None:
        """Create the tables that every query needs, if they are missing. Another process may create them at the same
        time."""
        try:
            self._metadata.create_all(engine)
        except DBAPIError:
            for table in self._metadata.tables.values():
                if not sa.inspect(engine).has_table(table.name, table.schema):
                    raise

    def columns(self, connection: sa.Connection, table: str) -> dict[str, Any]:
        """Return the columns of a table, each with everything that the database reports about its type."""
        if connection.dialect.name == "duckdb":  # SQLAlchemy can't read DuckDB's catalog
            nothing = sa.select(sa.text("*")).select_from(self._table(table)).where(sa.false())
            with connection.execute(nothing) as result:
                return {name: rest for name, *rest in result.cursor.description}
        try:
            found = sa.inspect(connection).get_columns(table, self._options.schema)
        except sa.exc.NoSuchTableError:
            return {}
        return {each["name"]: each["type"] for each in found}

    def writable(self, connection: sa.Connection) -> list[str]:
        """Return the table's columns, except generated columns. DuckDB does not report which columns are generated."""
        generated = set[str]()
        if connection.dialect.name != "duckdb":
            for each in sa.inspect(connection).get_columns(self._options.table, self._options.schema):
                if "computed" in each or each.get("identity", {}).get("always"):
                    generated.add(each["name"])
        return [name for name in self.columns(connection, self._options.table) if name not in generated]

    def _table(self, name: str, columns: Sequence[str] = ()) -> sa.TableClause:
        return sa.table(name, *map(sa.column, columns), schema=self._options.schema)

    def _staging(self, name: str, columns: Iterable[sa.ColumnClause[Any]] = ()) -> sa.TableClause:
        ours = (sa.column(each, type_) for each, type_ in OURS.items())
        return sa.table(name, *columns, *ours, schema=self._options.schema)

    # Transactions. ----------------------------------------------------------------------------------------------

    def begin(self, connection: sa.Connection, name: str, scope: str) -> None:
        connection.execute(self._transactions.insert().values(name=name, scope=scope, state=OPEN))

    def locked(self, connection: sa.Connection, names: Sequence[str]) -> dict[str, sa.Row[Any]]:
        """Lock the rows of transactions until the database transaction ends. Return the existing rows, by name."""
        for some in _some(names):
            same = self._transactions.update().values(scope=self._transactions.c.scope)
            connection.execute(same.where(self._transactions.c.name.in_(some)))
        ask = self._transactions.select()
        found = (connection.execute(ask.where(self._transactions.c.name.in_(some))) for some in _some(names))
        return {row.name: row for rows in found for row in rows}

    def change(self, connection: sa.Connection, name: str, **values: str) -> None:
        connection.execute(self._transactions.update().where(self._transactions.c.name == name).values(**values))

    def of_scope(self, connection: sa.Connection, scope: str) -> list[str]:
        """Return the names of a sink's uncommitted transactions."""
        return [*connection.scalars(sa.select(self._transactions.c.name).where(self._transactions.c.scope == scope))]

    def forget(self, connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> None:
        """Remove the rows of transactions, and their staged records and keys."""
        for some in _some([row.name for row in rows]):
            connection.execute(self._transactions.delete().where(self._transactions.c.name.in_(some)))
        for staged, names in (*_by(rows, "staged"), *_by(rows, "deletes")):
            if sa.inspect(connection).has_table(staged, self._options.schema):
                table = self._staging(staged)
                for ours in _ours(table, names):
                    connection.execute(sa.delete(table).where(ours))

    # Marks. -----------------------------------------------------------------------------------------------------

    def mark(self, connection: sa.Connection, scope: str, lock: bool = False) -> int | None:
        """Return the newest committed batch; None if there is no mark."""
        of_scope = self._batches.c.scope == scope
        if lock:
            connection.execute(self._batches.update().where(of_scope).values(batch_id=self._batches.c.batch_id))
        return connection.scalar(sa.select(self._batches.c.batch_id).where(of_scope))

    def set_mark(self, connection: sa.Connection, scope: str, batch_id: int, is_first: bool) -> None:
        """Write the mark. If two processes write the first mark, they conflict, and only one of them commits."""
        if is_first:
            connection.execute(self._batches.insert().values(scope=scope, batch_id=batch_id))
        else:
            connection.execute(self._batches.update().where(self._batches.c.scope == scope).values(batch_id=batch_id))

    # Staging tables. --------------------------------------------------------------------------------------------

    def make_staging(self, connection: sa.Connection, columns: Sequence[str], deletes: bool = False) -> str:
        """Create the staging table for records with these columns if it is missing, and return its name. With
        ``deletes``, the table is for the keys of rows to delete."""
        name = self._staging_name(connection, columns, deletes)
        if not sa.inspect(connection).has_table(name, self._options.schema):
            target = self._table(self._options.table, columns)
            ours = (sa.cast(sa.null(), type_).label(each) for each, type_ in OURS.items())
            copies = sa.select(*target.c, *ours).where(sa.false())
            select = copies.compile(connection, compile_kwargs={"literal_binds": True})
            table, preparer = self._table(name), connection.dialect.identifier_preparer
            given = {"table": preparer.format_table(table), "name": preparer.format_table(table, use_schema=False)}
            for each in self._options.dialect.stage:
                connection.exec_driver_sql(each.format(**given, select=select, columns=", ".join(OURS)))
        return name

    def _staging_name(self, connection: sa.Connection, columns: Sequence[str], deletes: bool = False) -> str:
        """Return the name of a staging table. The name depends on these columns of the target table, in any order, and
        on their current types."""
        types = self.columns(connection, self._options.table)
        what = [self._options.qualified, *(f"{name} {types.get(name)!r}" for name in sorted(columns))]
        kind = "deletes" if deletes else "staged"
        return f"twopc_{kind}_{hashlib.sha256(chr(0).join(what).encode()).hexdigest()[:32]}"

    def stage(self, connection: sa.Connection, staged: str, name: str, first: int, batch: pa.RecordBatch) -> None:
        """Write records to a staging table. ``first`` is the ordinal of the first record.

        Raises:
            RecordRefused: Python or the database would change a value.
        """
        require_keys(batch, self._options.upsert_by)
        if self._options.dialect.numbers_null:
            primary = sa.inspect(connection).get_pk_constraint(self._options.table, self._options.schema)
            for each in {*primary["constrained_columns"]} & {*batch.schema.names}:
                require(batch.column(each), lambda part: not part.null_count, "a primary key takes no null", each)
        written, last, key = values_of(batch), first + batch.num_rows, _key(name)
        if self._options.dialect.merges_zeros:
            for each, values in written.items():
                are_fine = pa.array([not has_minus_zero(value) for value in values], pa.bool_())
                require_each(are_fine, "it is -0.0, which may be stored as 0.0: add 0.0 to the column", each)
        if self._options.dialect.longest and batch.nbytes > _HEAD:
            self._require_short(connection, written, batch.nbytes)
        columns = [*map(written_as, batch.schema)]
        table = self._staging(staged, columns)
        ours = table.c[_KEY].in_([key]) & table.c[_ORDINAL].between(first, last - 1)
        try:
            staged_columns = [*written.values(), [key] * batch.num_rows, range(first, last)]
            self._options.dialect.fill(connection, table, staged_columns)
            found = self._found(connection, table, columns, ours)
        except (OverflowError, TypeError, ValueError) as error:  # a driver can't send a value or read it back
            raise RecordRefused(
                f"the database does not take a value ({type(error).__name__}). {ADVICE} Or cast the column."
            ) from None
        require_unchanged(written, found)

    def _require_short(
        self, connection: sa.Connection, written: Mapping[str, Sequence[Any]], written_bytes: int
    ) -> None:
        """Raise RecordRefused for a record that is too long for a statement. The server would close the connection,
        which would look like an outage."""
        most = connection.scalar(sa.text(self._options.dialect.longest)) or 0
        if 2 * (written_bytes + _HEAD) < most:  # a literal has at most two bytes per byte of the value
            return
        cursor: Any = connection.connection.cursor()  # PyMySQL's cursor
        for record, values in enumerate(zip(*written.values(), strict=True)):
            long = [value for value in values if isinstance(value, str | bytes)]
            if 4 * sum(map(len, long)) + _HEAD < most / 2:  # a character has at most four bytes
                continue
            literals = (cursor.mogrify("%s", (value,)).encode("utf8", "surrogateescape") for value in long)
            length = sum(map(len, literals)) + 64 * len(values)
            if length + _HEAD > most:
                raise RecordRefused(
                    f"it takes {length} bytes, and the server's max_allowed_packet is {most}. Raise that, or filter"
                    " such records.",
                    record=record,
                )

    def _found(
        self,
        connection: sa.Connection,
        table: sa.TableClause,
        columns: Sequence[sa.ColumnElement[Any]],
        ours: sa.ColumnElement[bool],
    ) -> Sequence[sa.Row[Any]]:
        """Read values back from a staging table, with all digits of numbers."""
        select = sa.select(*columns).select_from(table).where(ours).order_by(table.c[_ORDINAL])
        result = connection.execute(select)
        whole = [self._options.dialect.whole.get(code) for _, code, *_ in result.cursor.description]
        found = result.all()
        if not any(whole):
            return found
        all_digits = [of(column) if of else column for column, of in zip(columns, whole, strict=True)]
        return connection.execute(select.with_only_columns(*all_digits)).all()

    def move(self, connection: sa.Connection, rows: Sequence[sa.Row[Any]], is_trial: bool) -> tuple[int, int]:
        """Apply the transactions' deletes, and copy their records from the staging tables to the target table. If a
        transaction has written several records with the same key, the last record wins.

        Returns:
            The number of moved records and deletes, and the number of deleted keys that are still in the table. Records
            that a trigger has skipped are left out of the count, if the database reports the number of rows. After the
            decision, all upserts count, because a trigger may skip a row that another writer has made equal since the
            trial.

        Raises:
            OperatorRequired: the types of the table's columns have changed, which could change a value.
        """
        deleted = [self._delete(connection, *each) for each in _by(rows, "deletes")]
        inserted = [self._insert(connection, *each, is_trial) for each in _by(rows, "staged")]
        if self._options.dialect.at_once:
            connection.exec_driver_sql(self._options.dialect.at_once)
        return sum(inserted) + sum(keys for keys, _ in deleted), sum(left for _, left in deleted)

    def staged(self, connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> int:
        """Return the number of records and deletes that these transactions have in the staging tables."""
        tables = ((self._staging(name), names) for name, names in _by(rows, "staged") + _by(rows, "deletes"))
        return sum(_count(connection, ours, table) for table, names in tables for ours in _ours(table, names))

    def _insert(self, connection: sa.Connection, staged: str, names: Sequence[str], is_trial: bool) -> int:
        """Copy the records of transactions that share a staging table. Return their number, as ``move`` counts it."""
        columns, moved, key = self._staged_columns(connection, staged), 0, [*self._options.upsert_by]
        table = self._staging(staged, map(sa.column, columns))
        newest_first = table.c[_KEY].desc(), table.c[_ORDINAL].desc()
        for ours in _ours(table, names):
            count = _count(connection, ours, table)
            copy = self._copy(table, columns, ours, newest_first)
            written = connection.execute(copy, execution_options={"preserve_rowcount": True}).rowcount
            moved += count
            is_counted = self._options.dialect.counts_rows and (is_trial or not key)
            if is_counted and written < count:  # a trigger has skipped some, or keys are equal
                keys = sa.select(*(table.c[name] for name in key or OURS)).where(ours).distinct().subquery()
                moved -= _count(connection, sa.true(), keys) - written
        return moved

    def _delete(self, connection: sa.Connection, staged: str, names: Sequence[str]) -> tuple[int, int]:
        """Delete the rows with staged keys. Return the number of keys, and the number of keys that are still in the
        table."""
        key, deleted, left = self._staged_columns(connection, staged, deletes=True), 0, 0
        table, keys = self._table(self._options.table, key), self._staging(staged, map(sa.column, key))
        same = sa.and_(*(table.c[name] == keys.c[name] for name in key))
        for ours in _ours(keys, names):
            if self._options.dialect.joins_deletes:
                connection.execute(sa.delete(table).where(same, ours))
            else:
                chosen = sa.select(*(keys.c[name] for name in key)).where(ours)
                connection.execute(sa.delete(table).where(sa.tuple_(*(table.c[name] for name in key)).in_(chosen)))
            deleted += _count(connection, ours, keys)
            left += _count(connection, same & ours, table, keys)
        return deleted, left

    def _staged_columns(self, connection: sa.Connection, staged: str, deletes: bool = False) -> list[str]:
        """Return the columns of a staging table that were copied from the target table. Raises OperatorRequired if the
        target table has changed since then."""
        columns = [name for name in self.columns(connection, staged) if name not in OURS]
        if staged != self._staging_name(connection, columns, deletes):
            raise OperatorRequired(
                f"{self._options} is gone, or its columns were changed, since records were written for it, to {staged}:"
                " undo that and start again"
            )
        return columns

    def unique_indexes(self, connection: sa.Connection) -> list[UniqueIndex]:
        """Return the table's indexes that can refuse a row because of another row."""
        columns, inexact = defaultdict[str, set[str | None]](set), defaultdict[str, dict[str, str]](dict)
        table = {"schema": self._options.schema, "table": self._options.table}
        for name, column, is_exact in connection.execute(sa.text(self._options.dialect.unique_keys), table):
            columns[name].add(column)
            if column and not is_exact:
                inexact[name][column] = _FOLDS
        return [UniqueIndex(name, frozenset(of), inexact=inexact[name]) for name, of in columns.items()]

    def try_delete(self, connection: sa.Connection) -> None:
        """Have the database check a DELETE statement that deletes no row."""
        connection.execute(sa.delete(self._table(self._options.table)).where(sa.false()))

    def try_without_rows(self, connection: sa.Connection, columns: Sequence[str]) -> None:
        """Have the database check the statement with which ``move`` writes to the table, without writing a row."""
        target = self._table(self._options.table, columns)
        connection.execute(self._copy(target, columns, sa.false(), [*target.c]))

    def _copy(
        self, source: sa.TableClause, columns: Sequence[str], ours: sa.ColumnElement[bool], newest_first: Sequence[Any]
    ) -> Any:
        upsert_by = self._options.upsert_by
        insert = self._options.dialect.insert(self._table(self._options.table, columns))
        values = [source.c[name] for name in columns]
        if not upsert_by:
            return insert.from_select(columns, sa.select(*values).where(ours))
        newest = sa.func.row_number().over(partition_by=[source.c[key] for key in upsert_by], order_by=newest_first)
        ranked = sa.select(*values, newest.label(_NEWEST)).where(ours).subquery()
        latest = sa.select(*(ranked.c[name] for name in columns)).where(ranked.c[_NEWEST] == 1)
        others = [name for name in columns if name not in upsert_by]
        return self._options.dialect.replace(insert.from_select(columns, latest), upsert_by, others)


def _by(rows: Sequence[sa.Row[Any]], staged: str) -> list[tuple[str, list[str]]]:
    """Return each staging table that is named in the column ``staged`` of the rows, with the names of its
    transactions."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if (table := getattr(row, staged)) is not None:
            found.setdefault(table, []).append(row.name)
    return [*found.items()]


def _key(name: str) -> str:
    """Return the key that identifies a transaction in staging tables. Unlike the transaction's name, the key is safe
    under any collation."""
    return hashlib.sha256(name.encode()).hexdigest()


def _ours(staged: sa.TableClause, names: Sequence[str]) -> Iterator[sa.ColumnElement[bool]]:
    """Yield conditions that together select the rows of transactions in a staging table."""
    for some in _some(names):
        yield staged.c[_KEY].in_(map(_key, some))


def _count(connection: sa.Connection, chosen: sa.ColumnElement[bool], *tables: sa.FromClause) -> int:
    return connection.scalar(sa.select(sa.func.count()).select_from(*tables).where(chosen)) or 0


def _some(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(names), _AT_ONCE):
        yield names[first : first + _AT_ONCE]
