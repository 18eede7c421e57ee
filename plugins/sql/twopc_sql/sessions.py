"""Connections to the database. Each call opens a connection and closes it again, because an idle connection may break,
and because other processes need access to a SQLite or DuckDB file in between."""

from __future__ import annotations

import functools
import math
import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from twopc.columns import ADVICE
from twopc.errors import (
    OperatorRequired,
    RecordRefused,
    Refused,
    Retriable,
    RoundAborted,
    SchemaMismatch,
    TwoPhaseCommitError,
)
from twopc.failures import (
    BAD_OPTION_FILE,
    CUT_OFF,
    bad_option_file,
    is_bad_certificate,
    is_refused_by_libpq,
    quotes_values,
)
from twopc_sql.dialects import copy
from twopc_sql.options import SqlOptions


@functools.cache
def engine(options: SqlOptions) -> sa.Engine:
    """Return the engine for these options. Its error messages contain no values of records."""
    dialect = options.dialect
    isolation = {"isolation_level": dialect.isolation} if dialect.isolation else {}
    made = sa.create_engine(
        options.url, poolclass=sa.NullPool, connect_args={**dialect.connect}, hide_parameters=True, **isolation
    )

    def statements(given: Sequence[str]) -> list[str]:
        lock_s = options.lock_timeout_s
        return [each.format(timeout_s=math.ceil(lock_s), timeout_ms=math.ceil(1000 * lock_s)) for each in given]

    @sa.event.listens_for(made, "connect")
    def set_up(connection: Any, record: object) -> None:  # noqa: ARG001  # SQLAlchemy gives both
        cursor = connection.cursor()
        for statement in statements(dialect.session):
            cursor.execute(statement)
        cursor.close()
        connection.commit()

    @sa.event.listens_for(made, "begin")
    def begin(connection: sa.Connection) -> None:
        for statement in statements(dialect.transaction):
            connection.exec_driver_sql(statement)

    sa.event.listen(made, "do_connect", _connected)
    sa.event.listen(made, "do_execute", copy)
    return made


def _connected(of: sa.Dialect, record: object, given: Any, named: Any) -> Any:  # noqa: ARG001  # SQLAlchemy gives all
    try:
        return of.connect(*given, **named)
    except OSError as error:  # raised when a certificate can't be loaded
        number = _NO_TLS if is_bad_certificate(error) else _NO_CONNECTION
        raise of.loaded_dbapi.OperationalError(number, f"can't use a certificate or key: {error}") from error
    except (RuntimeError, *BAD_OPTION_FILE) as error:
        if of.driver != "pymysql":
            raise
        if not isinstance(error, RuntimeError):
            raise bad_option_file(error, named) from None
        raise of.loaded_dbapi.OperationalError(_NO_METHOD, f"{error}") from error  # a package is not installed


_NO_CONNECTION, _NO_TLS, _NO_METHOD = 2003, 2026, 2061
"""PyMySQL's error numbers for a failed connection, a connection that can't be encrypted, and an authentication method
that is not installed."""

_TEMPORARY_IN_POSTGRES = (
    *("08", "40", "53000", "53100", "53200", "53300", "57", "25006", "25P02", "25P03", "25P04", "55P03"),
    *("58000", "58030"),
)
_TEMPORARY_IN_MYSQL = (
    *(0, 1020, 1021, 1026, 1037, 1038, 1040, 1041, 1047, 1053, 1114, 1129, 1152, 1158, 1159, 1160, 1161, 1180, 1203),
    *(1205, 1213, 1226, 1290, 1317, 1412, 1598, 1792, 1836, 1927, 1969, 2003, 2006, 2013, 2014, 3024, 3032, 3100, 3101),
    *(3169, 3572, 4031, 9001),
)
_TEMPORARY_IN_SQLITE = ("database is locked", "database table is locked", "disk I/O", "database or disk")
_TEMPORARY_IN_DUCKDB = ("TransactionException", "ConnectionException", "InterruptException")
_WORDS_OF_DUCKDB = (
    *("Could not set lock", "Could not write", "Could not fsync", "No space left", "Disk quota", "Input/output error"),
    *("Stale file handle", "Too many open files", "Cannot allocate memory", "Connection timed out", "Host is down"),
    *("Transport endpoint is not connected", "Resource temporarily unavailable"),
)
"""Errors that may go away, such as a lock, a restart or a full disk: SQLSTATEs and their classes, error numbers, starts
of messages, DuckDB's exception classes, and texts of its IOException."""

_OF_ANOTHER_ROW = ("23503", "23505", "23P01", 1062, 1216, 1217, 1451, 1452, 1586)
_WORDS_FOR_ANOTHER_ROW = re.compile(
    r"^((UNIQUE|FOREIGN KEY) constraint failed|Constraint Error: (Duplicate|Violates|PRIMARY KEY) )"
)
"""Conflicts with another row, which may go away: SQLSTATEs and error numbers, then texts of SQLite and DuckDB."""


def is_temporary(error: DBAPIError) -> bool:
    """Return whether the statement may succeed later. Unknown errors are not temporary."""
    original = error.orig
    if error.connection_invalidated or original is None:
        return True
    first = next(iter(original.args), None)
    match type(original).__module__.partition(".")[0]:
        case "psycopg":
            sqlstate = getattr(original, "sqlstate", None)
            if sqlstate is None:  # no connection
                is_lost = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)
                return is_lost and not is_refused_by_libpq(str(original))
            return bool({sqlstate, sqlstate[:2]} & {*_TEMPORARY_IN_POSTGRES})
        case "pymysql":
            cause = getattr(original, "original_exception", None)
            is_refused = isinstance(cause, ssl.SSLError) and not isinstance(cause, CUT_OFF)
            return first in _TEMPORARY_IN_MYSQL and not is_refused
        case "sqlite3":
            return str(first).startswith(_TEMPORARY_IN_SQLITE)
        case _:
            of_class, words = type(original).__name__, str(original)
            is_away = of_class == "IOException" and any(each in words for each in _WORDS_OF_DUCKDB)
            return is_away or of_class in _TEMPORARY_IN_DUCKDB


_VALUES_OF_MYSQL = (1118, 1292, 1644, 1690, 3140, 3150, 3151, 3157, 3819, 4025)
_VALUES_OF_PYMYSQL = "can not be used with MySQL"  # NaN and infinity
_VALUES_OF_POSTGRES = ("54", "P0001")  # too large or too deep, or refused by a trigger


_RIGHTS = "Grant the rights that the sink's README lists."
_LOGIN = "Correct user, password and database in 'url'."
_FILE = "Let 'url' name a file in a folder that exists, to which this process may write."
_DEFAULT = "Change the default of the column that the message names, or add the column to the records."
_ENCRYPTION = "Correct the certificates that 'url' names, and have the server encrypt connections, or leave them out."

_ADVICE: Mapping[str | int, str] = {
    **dict.fromkeys(("42501", 1044, 1142, 1143, 1227, 1370), _RIGHTS),
    **dict.fromkeys(("28", "3D", 1045, 1049, 1698), _LOGIN),
    **dict.fromkeys((1067, 1978), _DEFAULT),
    1364: "Add the column to the records, or give it a default.",
    _NO_TLS: _ENCRYPTION,
    _NO_METHOD: "Give the user a method of authentication that PyMySQL has here, or install the package that it names.",
}
"""SQLSTATE, its class, or error number → what to do about the refusal."""

_WORDS_FOR_ADVICE = (
    (re.compile("unable to open database file|^IO Error: |readonly database|read-only mode"), _FILE),
    (re.compile("certificate|private key|SSL"), _ENCRYPTION),
)
"""Patterns in an error's text, each with what to do about the refusal. For errors without a code."""


def advice(error: DBAPIError) -> str:
    """Return what to do about the database's refusal."""
    answer, words = _answer(error), str(error.orig)
    for code in (answer, f"{answer}"[:2]):
        if code in _ADVICE:
            return _ADVICE[code]
    by_words = (what for pattern, what in _WORDS_FOR_ADVICE if not isinstance(answer, int) and pattern.search(words))
    other = _LOGIN if is_refused_by_libpq(words) else "Correct what it names, such as a change of the table."
    return next(by_words, other)


def is_refusal(error: DBAPIError) -> bool:
    """Return whether the error is a permanent refusal, for example because of a missing table or privilege."""
    return not is_temporary(error) and not _is_of_another_row(error)


def _is_of_another_row(error: DBAPIError) -> bool:
    """Return whether the cause is a row with the same key, or a missing row for a foreign key."""
    return _answer(error) in _OF_ANOTHER_ROW or _WORDS_FOR_ANOTHER_ROW.search(str(error.orig)) is not None


def _answer(error: DBAPIError) -> Any:
    """Return the error's number or SQLSTATE, or its text if it has neither. For an error with both, as in PyMySQL 2,
    return the number."""
    first = next(iter(error.orig.args), None) if error.orig else None
    return first if isinstance(first, int) else getattr(error.orig, "sqlstate", None) or first


def request_failed(error: DBAPIError, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed request of the coordinator. The request may have been executed."""
    if is_refusal(error):
        return OperatorRequired(
            f"{what}: the database refuses: {first_line(error)}. {advice(error)} Then start again. Recovery continues"
            " where it stopped."
        )
    return Retriable(f"{what}: the database did not answer, or reported a temporary error: {first_line(error)}")


def connect_failed(error: DBAPIError, what: str) -> TwoPhaseCommitError:
    """Return the error for a task's connection that could not be made."""
    return request_failed(error, what) if is_temporary(error) else write_failed(error, what)


def trial_failed(error: DBAPIError, what: str) -> TwoPhaseCommitError:
    """Return the error for a batch that could not be moved before its decision."""
    if is_temporary(error):
        return request_failed(error, what)
    refused = f"{what}, and the table refuses it: {first_line(error)}."
    if _is_of_another_row(error):
        return RoundAborted(
            f"{refused} Look for a record that breaks a key or a foreign key of the table; with 'upsert_by', records"
            " replace rows. Nothing of the batch is visible, and it can be run again."
        )
    return Refused(
        f"{refused} Look for a record that breaks NOT NULL, a CHECK or a trigger of the table, or is too large for it."
        " Correct the records or the table. Nothing of the batch is visible."
    )


def write_failed(error: DBAPIError, what: str) -> Refused | RoundAborted:
    """Return the error for a participant's failed call. The participant votes no, and nothing of ``what`` is
    visible."""
    failed = f"{what} could not be written: {first_line(error)}."
    if is_refusal(error):
        return Refused(f"{failed} {advice(error)}")
    return RoundAborted(f"{failed} The batch can be run again.")


def staging_failed(error: DBAPIError, what: str) -> Refused | RoundAborted:
    """Return the error for records that could not be written to a staging table. The table's only key is the sink's
    own, so an integrity error means that the table can't hold a value."""
    first = next(iter(error.orig.args), None) if error.orig else None
    sqlstate = getattr(error.orig, "sqlstate", None) or ""
    is_value = first in _VALUES_OF_MYSQL or _VALUES_OF_PYMYSQL in str(first) or sqlstate.startswith(_VALUES_OF_POSTGRES)
    if is_value or isinstance(error, sa.exc.DataError | sa.exc.IntegrityError):
        return RecordRefused(f"the database does not take a value ({_kind(error)}). {ADVICE}")
    if isinstance(error, sa.exc.ProgrammingError | sa.exc.NotSupportedError | sa.exc.InterfaceError):
        return SchemaMismatch(
            f"{what}: the database does not take records of these types ({_kind(error)}). Cast the columns to the"
            " table's types."
        )
    return write_failed(error, what)


def first_line(error: DBAPIError) -> str:
    """Return the first line of the driver's message, without values of records."""
    if quotes_values(error):
        return _kind(error)
    return str(error.orig).strip().partition("\n")[0] or _kind(error)


def _kind(error: DBAPIError) -> str:
    return type(error.orig).__name__
