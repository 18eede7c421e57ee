"""What the server's errors mean, by their numbers, as tables. This module sends no request."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import pymysql

from twopc.errors import (
    OperatorRequired,
    OutcomeUnknown,
    RecordRefused,
    Retriable,
    RoundAborted,
    TwoPhaseCommitError,
)

LOST_CONNECTION = range(2000, 3000)
"""The client's own numbers: there is no connection, or it was lost, or the server did not answer in time."""

REPEAT: Mapping[int, str] = {
    0: "PyMySQL's number for a connection that is closed",
    1026: "error writing a file",
    1020: "MariaDB: the row has changed since the snapshot",
    1021: "disk full",
    1037: "out of memory",
    1038: "out of sort memory",
    1040: "too many connections",
    1041: "out of resources",
    1053: "the server shuts down",
    1114: "table full, such as when the disk is",
    1129: "the host is blocked after too many connection errors",
    1152: "connection aborted",
    1158: "network error while reading",
    1159: "timeout while reading",
    1160: "network error while writing",
    1161: "timeout while writing",
    1180: "error during a commit",
    1203: "the user has too many connections",
    1205: "lock wait timeout",
    1213: "deadlock",
    1226: "the user has exceeded a limit",
    1290: "the server is read-only: a replica, until the failover is complete",
    1317: "statement interrupted",
    1399: "XAER_RMFAIL: another session is ending the transaction",
    1598: "the binary log can't be written",
    1836: "the server is in read-only mode",
    1927: "connection killed",
    1969: "max_statement_time",
    3024: "max_execution_time",
    3197: "MySQL: the transaction can't be ended now, such as during FLUSH TABLES WITH READ LOCK",
}
"""Errors of a statement that may be repeated, with what they mean."""

REFUSED = (1044, 1045, 1049, 1142, 1143, 1227, 1370, 1698)
"""Access denied, or an unknown database."""

GONE = (1397, 1402, 1613, 1614)
"""XAER_NOTA, and the XA_RB* errors: no session can end the transaction, as it has ended or a session still holds it."""

RULES: Mapping[int, str] = {
    1048: "NOT NULL",
    1263: "NOT NULL",
    1264: "out of range",
    1265: "the value would be changed",
    1292: "incorrect value",
    1366: "incorrect value",
    1406: "too long",
    1411: "incorrect value",
    1644: "a trigger has refused it",
    1690: "out of range",
    3140: "invalid JSON",
    3819: "CHECK",
    4025: "CHECK",
}
"""Rules that a record breaks however often it is written. They stand for the server's messages, which quote values.
Unique and foreign keys don't count, because the other row may appear or disappear. A missing partition doesn't count
either, because it can be created."""

WRITE_ADVICE: Mapping[int, str] = {
    1062: "A row with a key of these records exists. With 'upsert_by', records replace rows.",
    1146: "Was a table dropped while the query ran? Start the query again. It creates the marker table if that is"
    " missing, and otherwise names the missing table.",
    1197: "Raise max_binlog_cache_size on the server, or write smaller batches.",
    1205: "Another transaction has held the row for longer than 'lock_timeout_s'. It may be another task of this batch:"
    " records with equal keys must be in one partition, so repartition by the key. Or it may be a lost attempt, which"
    " is rolled back with the batch: run the batch again.",
    1526: "Create the partition. The batch can be run again.",
    **dict.fromkeys(REFUSED, "Grant this user the rights that the sink's README lists."),
}
"""Advice for a failed write. For other errors, the server's message is enough."""

_QUOTES_A_VALUE = {1062: "a duplicate key", 1526: "no partition for a value", 1586: "a duplicate key"}

_COLUMN = re.compile(r"[Cc]olumn ['`](?:[^'`]+`\.`[^'`]+`\.`)?([^'`]+)['`]")


def number(error: pymysql.MySQLError) -> int:
    """Return the error's number; 0 if it has none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def request_failed(error: pymysql.MySQLError, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed request of the coordinator that may be repeated. ``what`` names the request."""
    if may_repeat(error):
        return Retriable(f"{what}: the server gave no answer: {_told(error)}")
    return OperatorRequired(
        f"{what}: the server refuses: {_told(error)}. Grant this user the rights that the sink's README lists, check"
        " 'url', and start again. Recovery continues where it stopped."
    )


def commit_failed(error: pymysql.MySQLError, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed commit. ``what`` describes the decided transaction."""
    if may_repeat(error) or number(error) in REFUSED:
        return request_failed(error, what)
    return OutcomeUnknown(
        f"{what}, and the server does not report whether it is committed: {_told(error)}. Check the server's log, and"
        " whether XA RECOVER lists the transaction. Then start again, which repeats the commit."
    )


def may_repeat(error: pymysql.MySQLError) -> bool:
    """Return whether the outcome of the statement is open, and the statement can be repeated."""
    return number(error) in LOST_CONNECTION or number(error) in REPEAT


def write_failed(error: pymysql.MySQLError, what: str, columns: Collection[str] = ()) -> RecordRefused | RoundAborted:
    """Return the error for a participant's failed write: its vote is no, and nothing of ``what`` is visible."""
    if refused := rule_broken(number(error), str(error), columns):
        return refused
    advice = WRITE_ADVICE.get(number(error), "The batch can be run again.")
    return RoundAborted(f"{what} could not be written: {_told(error)}. {advice}")


def rule_broken(number: int, message: str, columns: Collection[str]) -> RecordRefused | None:
    """Return the error for a record that breaks a rule of the table; None for other errors and warnings."""
    if number not in RULES:
        return None
    named = [name for name in _COLUMN.findall(message) if name in columns]
    return RecordRefused(
        f"a value breaks the table's rules (error {number}: {RULES[number]}). Correct or filter such records.",
        column=named[-1] if named else None,
    )


def _told(error: pymysql.MySQLError) -> str:
    """Return the number and the first line of the server's message, without values of records."""
    message = _QUOTES_A_VALUE.get(number(error)) or str(error.args[-1] if error.args else "")
    return f"{number(error)}, {message.strip().partition(chr(10))[0] or type(error).__name__}"
