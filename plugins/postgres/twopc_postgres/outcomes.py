"""What PostgreSQL's errors mean, by their SQLSTATE, as tables. It asks no server anything."""

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


class Answer(Enum):
    """What to do about an error."""

    REPEAT = "repeat"
    REFUSED = "refused"
    UNCLEAR = "unclear"


ANSWERS: dict[str, Answer] = {
    "25006": Answer.REPEAT,  # read_only_sql_transaction: a standby, until a failover is through
    "23505": Answer.REPEAT,  # unique_violation and duplicate_table, as two coordinators made the table of markers
    "42P07": Answer.REPEAT,
    "55000": Answer.REPEAT,  # object_not_in_prerequisite_state: another process is ending this transaction
    "55P03": Answer.REPEAT,  # lock_not_available
    "0A000": Answer.REFUSED,  # feature_not_supported: the transaction belongs to another database
    "42501": Answer.REFUSED,  # insufficient_privilege: to another role
}
"""SQLSTATE → what to do. An error that is neither here nor in a class below says nothing certain."""

CLASSES: dict[str, Answer] = {
    "08": Answer.REPEAT,  # connection exceptions
    "40": Answer.REPEAT,  # transaction rollback: deadlock, serialization
    "53": Answer.REPEAT,  # insufficient resources: connections, memory, disk
    "57": Answer.REPEAT,  # operator intervention: a shutdown, a restart, a cancelled statement
}
"""The first two characters of a SQLSTATE → what to do."""


def answer(error: psycopg.Error) -> Answer:
    """What to do about an error of a statement that may be repeated."""
    if error.sqlstate is None:  # of the connection: it could not be made, or it was lost
        return Answer.REPEAT if isinstance(error, psycopg.OperationalError) else Answer.UNCLEAR
    return ANSWERS.get(error.sqlstate, CLASSES.get(error.sqlstate[:2], Answer.UNCLEAR))


def asked_in_vain(error: psycopg.Error, what: str) -> TwoPhaseCommitError:
    """The error to raise where the coordinator has asked the server for ``what``, which may be repeated."""
    match answer(error):
        case Answer.REPEAT:
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
"""SQLSTATE → what to do about an error that is repeated. Of the rest PostgreSQL's own words say enough."""


def commit_failed(error: psycopg.Error, what: str) -> TwoPhaseCommitError:
    """The error to raise where ``what``, which names a decided transaction, could not be committed."""
    if answer(error) is Answer.UNCLEAR:
        return OutcomeUnknown(
            f"{what}, and PostgreSQL does not say whether it is committed: {_told(error)}. See the server's log, and"
            " whether pg_prepared_xacts has the transaction; then start again, which repeats the commit."
        )
    return asked_in_vain(error, what)


def write_failed(error: psycopg.Error, what: str) -> RecordRefused | RoundAborted:
    """The error to raise where a participant could not write ``what``: its vote is no, nothing of it is visible."""
    if rule := broken_rule(error):
        return RecordRefused(
            f"{what} could not be written: a value breaks the table's rules ({rule}). Correct or filter such records.",
            column=error.diag.column_name,
        )
    advice = ADVICE.get(error.sqlstate or "", "The batch can be run again.")
    return RoundAborted(f"{what} could not be written: {_told(error)}. {advice}")


def broken_rule(error: psycopg.Error) -> str | None:
    """What a record breaks however often it is written, by PostgreSQL's name for it; None for any other error.

    The server's words may quote the value. A unique or foreign key is not meant: the other row may come or go. Nor is a
    partition that is missing: it can be created.
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
    "23505": "A row with this key is there already: with 'upsert_by' records replace rows.",
    "42501": "Grant this role the rights that the sink's README lists.",
    "42P01": "Was a table dropped while the query runs? Start it again, and what is missing is named or made.",
}
"""SQLSTATE → what to do about a failed write. Of the rest PostgreSQL's own words say enough."""


def _told(error: psycopg.Error) -> str:
    """The server's words without the lines below them, which quote values of records."""
    return error.diag.message_primary or str(error).strip().partition("\n")[0] or type(error).__name__
