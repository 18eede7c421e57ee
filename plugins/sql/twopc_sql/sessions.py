"""Connections to the database. Each call has its own, which is closed after it: an idle one may be dead, and SQLite and
DuckDB let others in between."""

from __future__ import annotations

import functools
import math
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from twopc.errors import (
    OperatorRequired,
    RecordRefused,
    Retriable,
    RoundAborted,
    SchemaMismatch,
    TwoPhaseCommitError,
)
from twopc_sql.options import SqlOptions


@functools.cache
def engine(options: SqlOptions) -> sa.Engine:
    """Return the engine for these options. Its messages have no values of records."""
    dialect = options.dialect
    isolation = {"isolation_level": dialect.isolation} if dialect.isolation else {}
    made = sa.create_engine(
        options.url, poolclass=sa.NullPool, connect_args={**dialect.connect}, hide_parameters=True, **isolation
    )

    @sa.event.listens_for(made, "connect")
    def set_up(connection: Any, record: object) -> None:  # noqa: ARG001  # SQLAlchemy gives both
        cursor = connection.cursor()
        for statement in dialect.session:
            lock_s = options.lock_timeout_s
            cursor.execute(statement.format(timeout_s=math.ceil(lock_s), timeout_ms=math.ceil(1000 * lock_s)))
        cursor.close()
        connection.commit()

    return made


def is_refusal(error: DBAPIError) -> bool:
    """Return whether the database rejected the statement for good, such as for a missing table or right. Other errors
    may go away, and so does a broken key: only a row that was written after the seal can break one."""
    if error.connection_invalidated or error.orig is None:
        return False
    first = next(iter(error.orig.args), None)
    return isinstance(error, _FOR_GOOD) or first in _REFUSALS_OF_MYSQL or str(first).startswith(_REFUSALS_OF_SQLITE)


_FOR_GOOD = (sa.exc.ProgrammingError, sa.exc.DataError, sa.exc.NotSupportedError)

# SQLAlchemy has these as OperationalError, like a lock that was not obtained.
_REFUSALS_OF_MYSQL = (
    *(1044, 1142, 1143),  # no right to the database, to the table, to the column
    *(1054, 1364, 1906, 3105),  # no such column, no value for one, a value for a generated one
    *(1644, 3819, 4025),  # a trigger or CHECK refuses a row
)
_VALUES_OF_MYSQL = (1292, 1644, 1690, 3140, 3819, 4025)
_VALUES_OF_PYMYSQL = "can not be used with MySQL"  # NaN and infinity
_REFUSALS_OF_SQLITE = ("no such", "table ", "ON CONFLICT", "cannot ", "attempt to write a readonly")


def request_failed(error: DBAPIError, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed request of the coordinator, which may have been carried out."""
    if is_refusal(error):
        return OperatorRequired(
            f"{what}: the database refuses: {first_line(error)}. Grant the rights that the sink's README lists, undo"
            " what was changed in the table, and start again. Recovery continues where it stopped."
        )
    return Retriable(f"{what}: the database did not answer, or reported a temporary error: {first_line(error)}")


def trial_failed(error: DBAPIError, what: str) -> TwoPhaseCommitError:
    """Return the error for a batch that could not be moved before its decision."""
    if is_refusal(error) or isinstance(error, sa.exc.IntegrityError):
        return RoundAborted(
            f"{what}, and the table refuses it: {first_line(error)}. Look for a record that breaks a key, a foreign"
            " key, NOT NULL or CHECK of the table; with 'upsert_by', records replace rows. Nothing of the batch is"
            " visible, and it can be run again."
        )
    return request_failed(error, what)


def write_failed(error: DBAPIError, what: str) -> RoundAborted:
    """Return the error for a participant's failed call: its vote is no, and nothing of ``what`` is visible."""
    return RoundAborted(f"{what} could not be written: {first_line(error)}. The batch can be run again.")


def staging_failed(error: DBAPIError, what: str) -> RecordRefused | SchemaMismatch | RoundAborted:
    """Return the error for records that could not be written to a staging table, which has no keys but its own."""
    first = next(iter(error.orig.args), None) if error.orig else None
    is_value = first in _VALUES_OF_MYSQL or _VALUES_OF_PYMYSQL in str(first)
    if is_value or isinstance(error, sa.exc.DataError | sa.exc.IntegrityError):
        return RecordRefused(f"the database does not take a value ({_kind(error)}). Correct or filter such records.")
    if isinstance(error, sa.exc.ProgrammingError | sa.exc.NotSupportedError | sa.exc.InterfaceError):
        return SchemaMismatch(
            f"{what}: the database does not take records of these types ({_kind(error)}). Cast the columns to the types"
            " of the table's."
        )
    return write_failed(error, what)


def first_line(error: DBAPIError) -> str:
    """Return the first line of the driver's message, without values of records."""
    if isinstance(error, sa.exc.DataError | sa.exc.IntegrityError):
        return _kind(error)
    return str(error.orig).strip().partition("\n")[0] or _kind(error)


def _kind(error: DBAPIError) -> str:
    return type(error.orig).__name__
