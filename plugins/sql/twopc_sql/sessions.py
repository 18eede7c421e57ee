"""Connections to the database. Each call has its own, which is closed after it: an idle one may be dead, and SQLite and
DuckDB let others in between."""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from twopc.errors import OperatorRequired, RecordRefused, Retriable, RoundAborted, TwoPhaseCommitError
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
        if dialect.session:
            cursor = connection.cursor()
            cursor.execute(dialect.session.format(timeout_s=options.lock_timeout_s))
            cursor.close()
            connection.commit()

    return made


def is_refusal(error: DBAPIError) -> bool:
    """Whether a database says of a statement that it can't be carried out, as of a missing table or right. Anything
    else may pass, also a broken key: only a row that somebody has written since the batch was tried can break one."""
    if error.connection_invalidated or error.orig is None:
        return False
    kinds = sa.exc.ProgrammingError, sa.exc.DataError, sa.exc.NotSupportedError
    told = next(iter(error.orig.args), None)
    return isinstance(error, kinds) or told in _REFUSALS_OF_MYSQL or str(told).startswith(_REFUSALS_OF_SQLITE)


_REFUSALS_OF_MYSQL = (1044, 1054, 1142, 1143)  # no right to the database, no such column, no right to the table, column
_REFUSALS_OF_SQLITE = ("no such", "table ", "ON CONFLICT")  # under OperationalError, like "database is locked"


def request_failed(error: DBAPIError, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed request of the coordinator, which may have been carried out."""
    if is_refusal(error):
        return OperatorRequired(
            f"{what}: the database refuses: {first_line(error)}. Grant the rights that the sink's README lists, undo"
            " what was changed in the table, and start again. Recovery continues where it stopped."
        )
    return Retriable(f"{what}: the database gave no answer, or one that may pass: {first_line(error)}")


def trial_failed(error: DBAPIError, what: str) -> TwoPhaseCommitError:
    """Return the error for a batch that could not be moved before its decision."""
    if is_refusal(error) or isinstance(error, sa.exc.IntegrityError):
        return RoundAborted(
            f"{what}, and the table refuses it: {type(error.orig).__name__}. Look for a record that breaks a key, a"
            " foreign key, NOT NULL or CHECK of the table; with 'upsert_by', records replace rows. Nothing of the batch"
            " is visible, and it can be run again."
        )
    return request_failed(error, what)


def write_failed(error: DBAPIError, what: str) -> RecordRefused | RoundAborted:
    """Return the error for a participant's failed call: its vote is no, and nothing of ``what`` is visible."""
    if isinstance(error, sa.exc.DataError | sa.exc.IntegrityError):  # a staging table has NOT NULL alone
        return RecordRefused(
            f"the database does not take a value ({type(error.orig).__name__}). Correct or filter such records."
        )
    return RoundAborted(f"{what} could not be written: {first_line(error)}. The batch can be run again.")


def first_line(error: DBAPIError) -> str:
    """Return the first line of the driver's message. The others may quote a statement."""
    return str(error.orig).strip().partition("\n")[0] or type(error.orig).__name__
