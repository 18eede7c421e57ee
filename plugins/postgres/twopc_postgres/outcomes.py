"""The meaning of PostgreSQL's errors by their SQLSTATE, as tables. It makes no request."""

from __future__ import annotations

from enum import Enum

import psycopg

from twopc.errors import (
    OperatorRequired,
    OutcomeUnknown,
    RecordRefused,
    Retriable,
    RoundAborted,
    TwoPhaseCommitError,
)


class PostgresAnswer(Enum):
    """What to do about an error of PostgreSQL."""

    REPEAT = "repeat"
    REFUSED = "refused"
    UNCLEAR = "unclear"


ANSWERS: dict[str, PostgresAnswer] = {
    "25006": PostgresAnswer.REPEAT,  # read_only_sql_transaction: a standby, until a failover is through
    "23505": PostgresAnswer.REPEAT,  # unique_violation and duplicate_table: two coordinators make the table of markers
    "42P07": PostgresAnswer.REPEAT,
    "55000": PostgresAnswer.REPEAT,  # object_not_in_prerequisite_state: another process is ending this transaction
    "55P03": PostgresAnswer.REPEAT,  # lock_not_available
    "0A000": PostgresAnswer.REFUSED,  # feature_not_supported: the transaction belongs to another database
    "42501": PostgresAnswer.REFUSED,  # insufficient_privilege: to another role
}
"""SQLSTATE → what to do. An error that is neither here nor in a class below leaves the outcome open."""

CLASSES: dict[str, PostgresAnswer] = {
    "08": PostgresAnswer.REPEAT,  # connection exceptions
    "40": PostgresAnswer.REPEAT,  # transaction rollback: deadlock, serialization
    "53": PostgresAnswer.REPEAT,  # insufficient resources: connections, memory, disk
    "57": PostgresAnswer.REPEAT,  # operator intervention: a shutdown, a restart, a cancelled statement
}
"""The first two characters of a SQLSTATE → what to do."""


def answer(error: psycopg.Error) -> PostgresAnswer:
    """Return what to do about an error of a statement that may be repeated."""
    if error.sqlstate is None:  # of the connection: it could not be made, or it was lost
        return PostgresAnswer.REPEAT if isinstance(error, psycopg.OperationalError) else PostgresAnswer.UNCLEAR
    return ANSWERS.get(error.sqlstate, CLASSES.get(error.sqlstate[:2], PostgresAnswer.UNCLEAR))


def asked_in_vain(error: psycopg.Error, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed request of the coordinator, ``what``, which may be repeated."""
    match answer(error):
        case PostgresAnswer.REPEAT:
            advice = ASKED_ADVICE.get(error.sqlstate or "", "")
            return Retriable(f"{what}: PostgreSQL gave no answer: {_told(error)}{advice}")
        case _:
            return OperatorRequired(
                f"{what}: PostgreSQL refuses: {_told(error)}. Give this role the rights that"
                " the sink's README lists, check 'conninfo', and start again: recovery goes on where this stopped."
            )


ASKED_ADVICE: dict[str, str] = {
    "55000": ". Another session is still ending it. If that one waits for a synchronous standby (SyncRep in"
    " pg_stat_activity), bring the standby back, and don't end the session.",
}
"""SQLSTATE → what to do about an error that is repeated. For the others, PostgreSQL's own words are enough."""


def commit_failed(error: psycopg.Error, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed commit. ``what`` names the decided transaction."""
    if answer(error) is PostgresAnswer.UNCLEAR:
        return OutcomeUnknown(
            f"{what}, and PostgreSQL does not report whether it is committed: {_told(error)}. See the server's log, and"
            " whether pg_prepared_xacts has the transaction; then start again, which repeats the commit."
        )
    return asked_in_vain(error, what)


def write_failed(error: psycopg.Error, what: str) -> RecordRefused | RoundAborted:
    """Return the error for a failed write of a participant. Its vote is no, and nothing of ``what`` is visible."""
    if rule := broken_rule(error):
        return RecordRefused(
            f"{what} could not be written: a value breaks the table's rules ({rule}). Correct or filter such records.",
            column=error.diag.column_name,
        )
    advice = ADVICE.get(error.sqlstate or "", "The batch can be run again.")
    return RoundAborted(f"{what} could not be written: {_told(error)}. {advice}")


def broken_rule(error: psycopg.Error) -> str | None:
    """Return PostgreSQL's name for the rule that a record breaks however often it is written; None for other errors.

    The server's own words may quote the value. Unique and foreign keys don't count, as the other row may come or go.
    Nor does a missing partition, which can be created.
    """
    sqlstate = error.sqlstate or ""
    if error.diag.source_function == _LOOKS_FOR_PARTITION:
        return None
    if sqlstate not in _OF_RECORDS and sqlstate[:2] != _DATA_EXCEPTIONS:
        return None
    return " ".join(filter(None, (type(error).__name__, error.diag.constraint_name)))


_OF_RECORDS = ("23502", "23514")  # not_null_violation, check_violation
_DATA_EXCEPTIONS = "22"

_LOOKS_FOR_PARTITION = "ExecFindPartition"
"""The function of the server that reports a missing partition, by check_violation without a constraint. A trigger and
the bounds of a partition may be reported so, too, and the message is translated."""

ADVICE: dict[str, str] = {
    "53200": "Raise max_prepared_transactions of the server, if that is what ran out: there must be room for a"
    " transaction of each task of a batch, twice. The batch can be run again.",
    "55P03": "Another transaction holds the row for longer than 'lock_timeout_s'. It may be another task of this batch:"
    " records with equal keys must be in one partition, so repartition by them. Or a lost attempt, which is rolled back"
    " with the batch: run it again.",
    "23514": "Create the partition, or a default one. The batch can be run again.",
    "23505": "A row with this key exists. With 'upsert_by', records replace rows.",
    "42501": "Grant this role the rights that the sink's README lists.",
    "42P01": "Was a table dropped while the query runs? Start the query again: it creates or names the missing one.",
}
"""SQLSTATE → what to do about a failed write. For the others, PostgreSQL's own words are enough."""


def _told(error: psycopg.Error) -> str:
    """Return the first line of the server's message. The lines below it quote values of records."""
    return error.diag.message_primary or str(error).strip().partition("\n")[0] or type(error).__name__
