"""Connections to servers. The coordinator's connections are reused, and all waits are bounded."""

from __future__ import annotations

import contextlib
import math
import ssl
from collections.abc import Mapping
from typing import Any, TypeAlias

import pymysql

from twopc.failures import BAD_OPTION_FILE, CUT_OFF, bad_option_file, is_bad_certificate
from twopc.idle_connections import IdleConnections
from twopc_mysql.outcomes import NO_CONNECTION, NO_METHOD, NO_TLS

Connection: TypeAlias = Any
"""A ``pymysql.connections.Connection``. PyMySQL has no type annotations."""

ANSWER_TIMEOUT_S = 30.0
"""How long the coordinator waits for the answer to a statement. After that the statement is in doubt: it is repeated,
and the log reports it to the operator. No statement takes this long by itself."""

LOCK_TIMEOUT_S = 10.0
"""How long a coordinator's statement waits for a lock. Shorter than the above, so that the server reports the lock."""

WRITE_TIMEOUT_S = 600.0
"""How long a task waits for the answer to a statement, in addition to its lock timeout. XA PREPARE of a large
transaction writes all of it to the binary log."""

_MODE = (
    "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_AUTO_VALUE_ON_ZERO,"
    "NO_BACKSLASH_ESCAPES,NO_ENGINE_SUBSTITUTION"
)
"""The SQL mode of every session: strict, so that no value is changed to fit, and without special meanings of
backslashes and zeros."""

_SETTINGS = """
    SET SESSION sql_mode = %s, innodb_lock_wait_timeout = %s, lock_wait_timeout = %s, time_zone = '+00:00',
        autocommit = 1, unique_checks = 1, foreign_key_checks = 1, sql_notes = 1, max_error_count = 65535,
        wait_timeout = 28800, completion_type = 0, sql_select_limit = 18446744073709551615, sql_safe_updates = 0
"""
"""With other values, the last three settings would leave the driver's session in a transaction, hide rows from it, or
prevent it from deleting rows."""

_SETTINGS_OF_MARIADB = """
    SET SESSION idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0,
        max_statement_time = 0, check_constraint_checks = 1
"""
"""MariaDB's own time limits are switched off: a transaction is idle while its task computes more records, and a write
may take long."""

_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"
"""Under READ COMMITTED, inserts take no gap locks. Transactions of the same batch would wait for such locks."""


def connect(arguments: Mapping[str, Any], *, lock_timeout_s: float, answer_timeout_s: float) -> Connection:
    """Return a new connection, in which each statement is its own transaction.

    Raises:
        pymysql.OperationalError: the connection can't be made.
        ConfigurationError: PyMySQL rejects an argument, or a line of the option file.
    """
    wait_s = {"read_timeout": answer_timeout_s, "write_timeout": answer_timeout_s}
    defaults = {"connect_timeout": 10, "charset": "utf8mb4", "program_name": "twopc"}
    try:
        connection = pymysql.connect(**{**defaults, **arguments, **wait_s, "autocommit": True})
    except pymysql.OperationalError as error:
        cause = getattr(error, "original_exception", None)
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, CUT_OFF):
            raise pymysql.OperationalError(NO_TLS, error.args[-1]) from error
        raise
    except OSError as error:  # raised when a certificate can't be loaded
        number = NO_TLS if is_bad_certificate(error) else NO_CONNECTION
        raise pymysql.OperationalError(number, f"can't use a certificate or key of 'url': {error}") from error
    except RuntimeError as error:  # a package is not installed
        raise pymysql.OperationalError(NO_METHOD, f"{error}") from error
    except BAD_OPTION_FILE as error:
        raise bad_option_file(error, arguments) from None
    try:
        lock_s = max(1, math.ceil(lock_timeout_s))
        ask(connection, _SETTINGS, _MODE, lock_s, lock_s)
        ask(connection, _ISOLATION)
        if "mariadb" in connection.get_server_info().lower():
            ask(connection, _SETTINGS_OF_MARIADB)
    except BaseException:
        end(connection)
        raise
    return connection


def ask(connection: Connection, statement: str, *values: Any, **named: Any) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows. ``values`` replace each ``%s``; or ``named`` replace each ``%(name)s``."""
    with connection.cursor() as cursor:
        cursor.execute(statement, named or values)
        return list(cursor.fetchall())


def identifier(name: str) -> str:
    """Quote a name for a statement."""
    return "`" + name.replace("`", "``") + "`"


def end(connection: Connection) -> None:
    """Close a connection, even if it is already closed. The server rolls back its transaction unless it is prepared."""
    with contextlib.suppress(pymysql.MySQLError):
        connection.close()


def bounded(arguments: Mapping[str, Any]) -> Connection:
    """Return a new connection of the coordinator. Raises like ``connect``."""
    return connect(arguments, lock_timeout_s=LOCK_TIMEOUT_S, answer_timeout_s=ANSWER_TIMEOUT_S)


_idle = IdleConnections(bounded, end)
"""The coordinator's connections, by PyMySQL's arguments."""

session, release = _idle.lend, _idle.release
