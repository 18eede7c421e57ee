"""What PostgreSQL's errors mean, by SQLSTATE. No I/O.

An unknown error is neither temporary nor harmless: it stops the query with the server's message.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import psycopg

from twopc.columns import ADVICE
from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    OutcomeUnknown,
    RecordRefused,
    Refused,
    Retriable,
    RoundAborted,
    TwoPhaseCommitError,
)
from twopc.failures import is_refused_by_libpq

TEMPORARY: Mapping[str, str] = {
    "08": "the connection failed",
    "40": "deadlock, serialization failure",
    **dict.fromkeys(("53000", "53100", "53200", "53300"), "connections, memory or disk are used up"),
    "57": "a shutdown, a restart, a canceled statement",
    "25006": "a standby, until the failover is complete",
    "25P02": "a statement of the transaction has failed before",
    "25P03": "the session was idle for too long, and has ended",
    "25P04": "the transaction took too long, and its session has ended",
    "55P03": "a lock was not obtained in time",
    # System errors and internal errors, by Appendix A of PostgreSQL's documentation. Others of their classes, such as
    # damaged data and a missing library, last until an operator repairs them.
    "58000": "system error, external to PostgreSQL",
    "58030": "I/O error, external to PostgreSQL",
    "XX000": "internal error, such as of a row or a definition that another session has just changed",
    # Another row or session causes these, and it may go away.
    "23503": "a foreign key",
    "23505": "a unique key; or another session creates the marker table",
    "23P01": "an exclusion constraint",
    "42P07": "another session creates the marker table",
    "42710": "another session creates the marker table, and its type is there",
}
"""SQLSTATE, or its class (the first two characters) → why the statement may succeed later."""

BUSY = "55000"
"""object_not_in_prerequisite_state. For COMMIT PREPARED and ROLLBACK PREPARED, another session is ending the
transaction."""

CONFIGURATION: Mapping[str, str] = {
    "0A000": "PostgreSQL can't prepare a transaction that does this, such as a trigger that uses NOTIFY or a temporary"
    " table. Change the trigger, or use the backend 'sql', which prepares no transaction.",
    "2200H": "Give the sequence of the column a larger maximum, or let it start again.",
    "28": "Correct user and password in 'conninfo'.",
    "53400": "Raise the limit that the message names, such as temp_file_limit, or write smaller batches.",
    "3D": "Correct the database in 'conninfo'.",
    "3F": "Correct the schema in 'table'.",
    "42": "Compare the table, its triggers and the functions that they call with the records.",
    "42501": "Grant this role the rights that the sink's README lists.",
    "42P01": "Was a table dropped while the query ran? Start the query again. It creates the marker table if that is"
    " missing, and otherwise names the missing table.",
}
"""SQLSTATE or its class → what an operator must do before the statement can succeed."""

RECORD: Mapping[str, str] = {
    "22": "a value that the column's type does not have",
    "23502": "NOT NULL",
    "23514": "CHECK",
    "44": "the check of a view",
    "54": "a value that is too large or too deep, such as for an index",
    "P0001": "a trigger has refused it",
}
"""SQLSTATE or its class → the rule that a record breaks whenever it is written."""

_ENDED = ("FATAL", "PANIC")
"""The severities of errors that end the session. Whatever the SQLSTATE, the server has failed, or a pooler with codes
of its own, rather than the statement (see "Message Severity Levels" in PostgreSQL's documentation)."""


def _found(table: Mapping[str, str], sqlstate: str | None) -> str | None:
    """Return a table's entry for an SQLSTATE, or for its class."""
    return None if sqlstate is None else table.get(sqlstate, table.get(sqlstate[:2]))


def is_temporary(error: psycopg.Error) -> bool:
    """Return whether the statement may succeed later. An error without SQLSTATE is a failed or lost connection."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not is_login(error)
    if _found(TEMPORARY, error.sqlstate) is not None:
        return True
    return error.diag.severity_nonlocalized in _ENDED and _found(CONFIGURATION, error.sqlstate) is None


def is_login(error: psycopg.Error) -> bool:
    """Return whether the server has refused the login, such as for a wrong password."""
    needs_password = error.pgconn is not None and error.pgconn.needs_password
    return needs_password or is_refused_by_libpq(str(error))


def request_failed(error: psycopg.Error, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed request of the coordinator that may be repeated. ``what`` names the request."""
    if is_temporary(error) or error.sqlstate == BUSY:
        advice = _ADVICE_FOR_A_BUSY_ONE if error.sqlstate == BUSY else ""
        return Retriable(f"{what}: PostgreSQL gave no answer: {first_line(error)}{advice}")
    of_login = _LOGIN if error.sqlstate is None and is_login(error) else None
    advice = of_login or _found(CONFIGURATION, error.sqlstate) or "Correct what it names."
    return OperatorRequired(
        f"{what}: PostgreSQL refuses: {first_line(error)}. {advice} Then start again. Recovery continues where it"
        " stopped."
    )


_LOGIN = "Correct 'conninfo': user, password, database, parameters and certificates."

_ADVICE_FOR_A_BUSY_ONE = (
    ". Another session is still ending the transaction. If that session waits for a synchronous standby"
    " (SyncRep in pg_stat_activity), bring the standby back, and don't end the session."
)

_REFUSED_COMMITS = ("0A000", "42501", "28", "3D")
"""Errors after which the transaction is still prepared: it belongs to another database or role, or the login failed."""


def commit_failed(error: psycopg.Error, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed commit. ``what`` describes the decided transaction."""
    sqlstate = error.sqlstate or ""
    is_refused = is_login(error) if not sqlstate else {sqlstate, sqlstate[:2]} & {*_REFUSED_COMMITS}
    if is_temporary(error) or sqlstate == BUSY or is_refused:
        return request_failed(error, what)
    return OutcomeUnknown(
        f"{what}, and PostgreSQL does not report whether it is committed: {first_line(error)}. Check the server's"
        " log, and whether pg_prepared_xacts lists the transaction. Then start again, which repeats the commit."
    )


def write_failed(error: psycopg.Error, what: str, columns: Collection[str] | None) -> Refused | RoundAborted:
    """Return the error for a participant's failed write: its vote is no, and no part of ``what`` is visible.
    ``columns`` are the records' columns; None if no record is involved."""
    if columns is not None and (rule := broken_rule(error)):
        place = _PLACE.search(error.diag.context or "")
        return RecordRefused(
            f"a value breaks the table's rules ({rule}). {ADVICE}",
            record=int(place["line"]) - 1 if place else None,
            column=error.diag.column_name or (place["column"] if place else None),
        )
    failed = f"{what} could not be written: {first_line(error)}."
    if is_temporary(error) or error.diag.source_function == _PARTITION_LOOKUP:
        return RoundAborted(f"{failed} {WRITE_ADVICE.get(error.sqlstate or '', 'The batch can be run again.')}")
    if advice := _found(CONFIGURATION, error.sqlstate):
        return ConfigurationError(f"{failed} {advice}")
    if error.sqlstate is None and is_login(error):
        return ConfigurationError(f"{failed} {_LOGIN}")
    return Refused(f"{failed} The sink does not know this error ({error.sqlstate}), so the batch is not run again.")


def broken_rule(error: psycopg.Error) -> str | None:
    """Return PostgreSQL's name for a rule that a record breaks whenever it is written; None for other errors.

    The name is used because the server's message may quote the value. A missing partition doesn't count, because it can
    be created.
    """
    if isinstance(error, psycopg.DataError) and error.sqlstate is None:
        return type(error).__name__  # psycopg refuses text with a NUL
    if error.diag.source_function == _POLICY_CHECK and error.sqlstate == "42501":
        return "row level security"
    if error.diag.source_function == _PARTITION_LOOKUP or error.sqlstate in CONFIGURATION:
        return None
    if _found(RECORD, error.sqlstate) is None:
        return None
    return " ".join(filter(None, (type(error).__name__, error.diag.constraint_name)))


_PARTITION_LOOKUP = "ExecFindPartition"
"""The server function that reports a missing partition, as a check_violation without a constraint. A trigger and the
bounds of a partition may raise the same error, and the message is translated, so only the function's name
distinguishes them."""

_POLICY_CHECK = "ExecWithCheckOptions"
"""The server function that reports a row refused by a policy. It uses the SQLSTATE of a missing privilege."""

_PLACE = re.compile(r"^COPY .*, line (?P<line>\d+)(, column (?P<column>[^:]+))?", re.MULTILINE)
"""The position at which COPY stopped, as reported by servers with English messages."""

WRITE_ADVICE: dict[str, str] = {
    "53200": "Raise max_prepared_transactions on the server if that is what ran out: it must be at least twice the"
    " number of tasks of a batch. The batch can be run again.",
    "55P03": "Another transaction has held the row for longer than 'lock_timeout_s'. It may be another task of this"
    " batch: records with equal keys must be in one partition, so repartition by the key. Or it may be a lost attempt,"
    " which is rolled back with the batch: run the batch again.",
    "23514": "Create the partition, or a default one. The batch can be run again.",
    "23505": "A row with this key exists. With 'upsert_by', records replace rows.",
}
"""SQLSTATE → advice for a failed write that may succeed later. For other errors, PostgreSQL's own message is enough."""


def first_line(error: psycopg.Error) -> str:
    """Return the first line of the server's message. The other lines quote values of records."""
    return error.diag.message_primary or str(error).strip().partition("\n")[0] or type(error).__name__
