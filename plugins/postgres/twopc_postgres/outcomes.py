"""What PostgreSQL's errors mean, by SQLSTATE, as tables. This module sends no request."""

from __future__ import annotations

from enum import Enum

import psycopg

from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    OutcomeUnknown,
    RecordRefused,
    Retriable,
    RoundAborted,
    TwoPhaseCommitError,
)


class PostgresAnswer(Enum):
    """What to do about an error that PostgreSQL reports."""

    REPEAT = "repeat"
    REFUSED = "refused"
    UNCLEAR = "unclear"


ANSWERS: dict[str, PostgresAnswer] = {
    "25006": PostgresAnswer.REPEAT,  # read_only_sql_transaction: a standby, until the failover is complete
    "23505": PostgresAnswer.REPEAT,  # unique_violation, duplicate_table: two coordinators create the marker table
    "42P07": PostgresAnswer.REPEAT,
    "42710": PostgresAnswer.REPEAT,  # duplicate_object: the type of that table
    "55000": PostgresAnswer.REPEAT,  # object_not_in_prerequisite_state: another process is ending this transaction
    "55P03": PostgresAnswer.REPEAT,  # lock_not_available
    "0A000": PostgresAnswer.REFUSED,  # feature_not_supported: the transaction belongs to another database
    "42501": PostgresAnswer.REFUSED,  # insufficient_privilege: the transaction belongs to another role
}
"""SQLSTATE → what to do. Any error that is neither here nor in ``CLASSES`` leaves the outcome open."""

CLASSES: dict[str, PostgresAnswer] = {
    "08": PostgresAnswer.REPEAT,  # connection exceptions
    "40": PostgresAnswer.REPEAT,  # transaction rollback: deadlock, serialization
    "53": PostgresAnswer.REPEAT,  # insufficient resources: connections, memory, disk
    "57": PostgresAnswer.REPEAT,  # operator intervention: a shutdown, a restart, a canceled statement
}
"""SQLSTATE class (the first two characters) → what to do."""


def answer(error: psycopg.Error) -> PostgresAnswer:
    """Return what to do about a failed statement that may be repeated."""
    if error.sqlstate is None:  # a connection that could not be made or was lost
        return PostgresAnswer.REPEAT if isinstance(error, psycopg.OperationalError) else PostgresAnswer.UNCLEAR
    return ANSWERS.get(error.sqlstate, CLASSES.get(error.sqlstate[:2], PostgresAnswer.UNCLEAR))


def request_failed(error: psycopg.Error, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed request of the coordinator that may be repeated. ``what`` names the request."""
    match answer(error):
        case PostgresAnswer.REPEAT:
            advice = REQUEST_ADVICE.get(error.sqlstate or "", "")
            return Retriable(f"{what}: PostgreSQL gave no answer: {_first_line(error)}{advice}")
        case _:
            return OperatorRequired(
                f"{what}: PostgreSQL refuses: {_first_line(error)}. Grant this role the rights that"
                " the sink's README lists, check 'conninfo', and start again. Recovery continues where it stopped."
            )


REQUEST_ADVICE: dict[str, str] = {
    "55000": ". Another session is still ending the transaction. If that session waits for a synchronous standby"
    " (SyncRep in pg_stat_activity), bring the standby back, and don't end the session.",
}
"""SQLSTATE → advice for a request that is repeated. For other errors, PostgreSQL's own message is enough."""


def commit_failed(error: psycopg.Error, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed commit. ``what`` describes the decided transaction."""
    if answer(error) is PostgresAnswer.UNCLEAR:
        return OutcomeUnknown(
            f"{what}, and PostgreSQL does not report whether it is committed: {_first_line(error)}. Check the server's"
            " log, and whether pg_prepared_xacts lists the transaction. Then start again, which repeats the commit."
        )
    return request_failed(error, what)


def log_request_failed(error: psycopg.Error, url: str) -> TwoPhaseCommitError:
    """Return the error for a failed request to the commit log at ``url``. An insert that failed with ``Retriable`` may
    have created its entry."""
    if error.pgconn is not None and error.pgconn.needs_password:
        return ConfigurationError(
            f"the server of the commit log at {url} asks for a password, and none was found. Set PGPASSWORD, or use a"
            " password file or a service file"
        )
    sqlstate = error.sqlstate or ""
    if sqlstate != _TAKEN and (sqlstate[:2] in _LOG_REFUSALS or sqlstate in _LOG_REFUSALS):
        return ConfigurationError(
            f"PostgreSQL refuses the commit log at {url}: {_first_line(error)}. This request changed nothing."
            f" {LOG_ADVICE.get(sqlstate, _OF_ANOTHER_TABLE)}"
        )
    return Retriable(
        f"the store of the commit log at {url} gave no answer: {_first_line(error)}. Is the server up, does it accept"
        " writes (a standby does not, nor does a role with default_transaction_read_only), are its synchronous standbys"
        " connected, and are user, database and password right?"
    )


_LOG_REFUSALS = ("22", "23", "42", "3F", "54", "P0", "0A000", "55000")
"""SQLSTATEs and their classes of a statement that has changed nothing: a right, a table, a column or a schema is
missing, or what has the table's name can't take such a row, because of a type, a constraint or a trigger."""

_TAKEN = "23505"
"""unique_violation. While the log's index is rebuilt (REINDEX CONCURRENTLY), ON CONFLICT may raise it, too, so it is no
permanent refusal."""

LOG_ADVICE: dict[str, str] = {
    "3F000": "Create the schema, or correct its name in the URL",
    "42501": "Grant this role the rights that the README of twopc-postgres lists",
    "42P01": "Something else than twopc has dropped the table: restore it from a backup",
}
"""SQLSTATE → advice for a commit log that is refused."""

_OF_ANOTHER_TABLE = (
    "Is it a table that twopc has created? docs/stores.md has its definition. Otherwise use another schema"
)


def write_failed(error: psycopg.Error, what: str) -> RecordRefused | RoundAborted:
    """Return the error for a participant's failed write: its vote is no, and nothing of ``what`` is visible."""
    if rule := broken_rule(error):
        return RecordRefused(
            f"a value breaks the table's rules ({rule}). Correct or filter such records.",
            column=error.diag.column_name,
        )
    advice = WRITE_ADVICE.get(error.sqlstate or "", "The batch can be run again.")
    return RoundAborted(f"{what} could not be written: {_first_line(error)}. {advice}")


def broken_rule(error: psycopg.Error) -> str | None:
    """Return PostgreSQL's name for a rule that a record breaks however often it is written; None for other errors.

    The name is used because the server's message may quote the value. Unique and foreign keys don't count, because the
    other row may appear or disappear. A missing partition doesn't count either, because it can be created.
    """
    sqlstate = error.sqlstate or ""
    if isinstance(error, psycopg.DataError) and not sqlstate:
        return type(error).__name__  # psycopg sends no text with a NUL
    if error.diag.source_function == _PARTITION_LOOKUP:
        return None
    if sqlstate not in _RECORD_VIOLATIONS and sqlstate[:2] != _DATA_EXCEPTIONS:
        return None
    return " ".join(filter(None, (type(error).__name__, error.diag.constraint_name)))


_RECORD_VIOLATIONS = ("23502", "23514")  # not_null_violation, check_violation
_DATA_EXCEPTIONS = "22"

_PARTITION_LOOKUP = "ExecFindPartition"
"""The server function that reports a missing partition, as a check_violation without a constraint. A trigger and the
bounds of a partition may raise the same error, and the message is translated, so only the function's name
distinguishes them."""

WRITE_ADVICE: dict[str, str] = {
    "53200": "Raise max_prepared_transactions on the server if that is what ran out: it must be at least twice the"
    " number of tasks of a batch. The batch can be run again.",
    "55P03": "Another transaction has held the row for longer than 'lock_timeout_s'. It may be another task of this"
    " batch: records with equal keys must be in one partition, so repartition by the key. Or it may be a lost attempt,"
    " which is rolled back with the batch: run the batch again.",
    "23514": "Create the partition, or a default one. The batch can be run again.",
    "23505": "A row with this key exists. With 'upsert_by', records replace rows.",
    "42501": "Grant this role the rights that the sink's README lists.",
    "42P01": "Was a table dropped while the query ran? Start the query again. It creates the marker table if that is"
    " missing, and otherwise names the missing table.",
}
"""SQLSTATE → advice for a failed write. For other errors, PostgreSQL's own message is enough."""


def _first_line(error: psycopg.Error) -> str:
    """Return the first line of the server's message. The other lines quote values of records."""
    return error.diag.message_primary or str(error).strip().partition("\n")[0] or type(error).__name__
