"""What the server's errors mean, by number. No I/O.

An unknown error is neither temporary nor harmless: it stops the query with the server's message.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import pymysql

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

REPEAT: Mapping[int, str] = {
    0: "PyMySQL's number for a connection that is closed",
    1026: "error writing a file",
    1020: "MariaDB: the row has changed since the snapshot",
    1021: "disk full",
    1037: "out of memory",
    1038: "out of sort memory",
    1040: "too many connections",
    1041: "out of resources",
    1047: "Galera: the node is not ready, such as one that was cut off from the others",
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
    1412: "the table was changed since the transaction began",
    1598: "the binary log can't be written",
    1792: "the transaction is read-only: a replica, until the failover is complete",
    1836: "the server is in read-only mode",
    1927: "connection killed",
    1969: "max_statement_time",
    2003: "PyMySQL: no connection",
    2006: "PyMySQL: the connection was lost",
    2013: "PyMySQL: the connection was lost, or there was no answer in time",
    2014: "PyMySQL: an answer to another statement",
    3024: "max_execution_time",
    3032: "MySQL: the server is in offline mode",
    3100: "MySQL: group replication has not taken the transaction",
    3101: "MySQL: group replication has rolled the transaction back, such as for one of another member",
    3169: "MySQL: the session was killed",
    3197: "MySQL: the transaction can't be ended now, such as during FLUSH TABLES WITH READ LOCK",
    3572: "MySQL: a lock was not available (NOWAIT)",
    4031: "MySQL: the session was idle for too long, and has ended",
    9001: "ProxySQL: no server has answered",
}
"""Errors after which a statement may be repeated → what they mean."""

OF_ANOTHER_ROW: Mapping[int, str] = {
    1062: "a unique key",
    1216: "a foreign key",
    1217: "a foreign key",
    1451: "a foreign key",
    1452: "a foreign key",
    1526: "a partition is missing",
    1586: "a unique key",
}
"""Errors caused by another row or session, which may go away."""

REFUSED = (1044, 1045, 1049, 1142, 1143, 1227, 1370, 1698)
"""Access denied, or an unknown database."""

GONE = (1397, 1402, 1613, 1614)
"""XAER_NOTA and the XA_RB* errors: the transaction can't be ended, because it has ended or a session still holds it."""

IS_NAMED = 1440
"""XAER_DUPID: a transaction already has this name."""

NO_TABLE = 1146

NO_CONNECTION = 2003

NO_LOGIN = NO_TLS, _, NO_METHOD = 2026, 2059, 2061
"""PyMySQL: the connection can't be encrypted, or the user's authentication method is missing."""

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
    1118: "a row that is too large",
    1365: "division by zero",
    1690: "out of range",
    3140: "invalid JSON",
    3150: "JSON that is too large",
    3151: "JSON whose key is too long",
    3157: "JSON that is too deep",
    3819: "CHECK",
    4025: "CHECK",
}
"""Rules that a record breaks whenever it is written. The texts replace the server's messages, which quote values."""

CONFIGURATION: Mapping[int, str] = {
    1054: "Was the table changed? Start the query again.",
    1067: "Change the default of the column that the message names.",
    1146: "Was a table dropped while the query ran? Start the query again. It creates the marker table if that is"
    " missing, and otherwise names the missing table.",
    1197: "Raise max_binlog_cache_size on the server, or write smaller batches.",
    1235: "Change the trigger or the table, or use the backend 'sql', which prepares no transaction.",
    1305: "Create the function or procedure that a trigger calls.",
    1336: "Change the trigger, or use the backend 'sql', which prepares no transaction.",
    1364: "Add the column to the records, or give it a default.",
    1422: "Change the trigger, or use the backend 'sql', which prepares no transaction.",
    1442: "Change the trigger.",
    1978: "Change the default of the column that the message names, or add it to the records.",
    NO_TLS: "Correct the certificates that the parameters of 'url' name, and have the server encrypt connections, or"
    " leave those parameters out.",
    **dict.fromkeys(
        (2059, NO_METHOD),
        "Give the user a method of authentication that PyMySQL has here, or install the package that it names.",
    ),
    **dict.fromkeys(REFUSED, "Check 'url', and grant this user the rights that the sink's README lists."),
}
"""Errors that recur until an operator changes something → what to do."""

WRITE_ADVICE: Mapping[int, str] = {
    1062: "A row with a key of these records exists. With 'upsert_by', records replace rows.",
    1205: "Another transaction has held the row for longer than 'lock_timeout_s'. It may be another task of this batch:"
    " records with equal keys must be in one partition, so repartition by the key. Or it may be a lost attempt, which"
    " is rolled back with the batch: run the batch again.",
    1526: "Create the partition. The batch can be run again.",
}
"""Advice for a failed write that may succeed later. For other errors, the server's message is enough."""

_QUOTES_A_VALUE = {1062: "a duplicate key", 1526: "no partition for a value", 1586: "a duplicate key"}

_COLUMN = re.compile(r"[Cc]olumn ['`](?:[^'`]+`\.`[^'`]+`\.`)?([^'`]+)['`]")


def number(error: pymysql.MySQLError) -> int:
    """Return the error's number; 0 if it has none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def request_failed(error: pymysql.MySQLError, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed request of the coordinator that may be repeated. ``what`` names the request."""
    if may_repeat(error):
        return Retriable(f"{what}: the server gave no answer: {_told(error)}")
    advice = CONFIGURATION.get(number(error), "Correct what it names.")
    return OperatorRequired(
        f"{what}: the server refuses: {_told(error)}. {advice} Then start again. Recovery continues where it stopped."
    )


def commit_failed(error: pymysql.MySQLError, what: str) -> TwoPhaseCommitError:
    """Return the error for a failed commit. ``what`` describes the decided transaction."""
    if may_repeat(error) or number(error) in REFUSED + NO_LOGIN:
        return request_failed(error, what)
    return OutcomeUnknown(
        f"{what}, and the server does not report whether it is committed: {_told(error)}. Check the server's log, and"
        " whether XA RECOVER lists the transaction. Then start again, which repeats the commit."
    )


def may_repeat(error: pymysql.MySQLError) -> bool:
    """Return whether the outcome of the statement is unknown, and the statement can be repeated."""
    return number(error) in REPEAT


def write_failed(error: pymysql.MySQLError, what: str, columns: Collection[str] | None) -> Refused | RoundAborted:
    """Return the error for a participant's failed write: its vote is no, and no part of ``what`` is visible.
    ``columns`` are the records' columns; None if no record is involved."""
    if columns is not None and (refused := rule_broken(number(error), str(error), columns)):
        return refused
    failed = f"{what} could not be written: {_told(error)}."
    if may_repeat(error) or number(error) in OF_ANOTHER_ROW or number(error) in GONE:  # such as after a deadlock
        return RoundAborted(f"{failed} {WRITE_ADVICE.get(number(error), 'The batch can be run again.')}")
    if advice := CONFIGURATION.get(number(error)):
        return ConfigurationError(f"{failed} {advice}")
    return Refused(f"{failed} The sink does not know this error, so the batch is not run again.")


def rule_broken(number: int, message: str, columns: Collection[str]) -> RecordRefused | None:
    """Return the error for a record that breaks a rule of the table; None for other errors and warnings."""
    if number not in RULES:
        return None
    named = [name for name in _COLUMN.findall(message) if name in columns]
    return RecordRefused(
        f"a value breaks the table's rules (error {number}: {RULES[number]}). {ADVICE}",
        column=named[-1] if named else None,
    )


def _told(error: pymysql.MySQLError) -> str:
    """Return the number and the first line of the server's message, without values of records."""
    message = _QUOTES_A_VALUE.get(number(error)) or str(error.args[-1] if error.args else "")
    return f"{number(error)}, {message.strip().partition(chr(10))[0] or type(error).__name__}"
