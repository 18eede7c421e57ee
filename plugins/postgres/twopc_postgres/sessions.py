"""Connections to servers. The coordinator's connections are reused, and their waits are bounded.

Nothing is set for a whole session, because a pooler may give the session to another client after each transaction. A
task sets what it relies on for its own transaction, and the coordinator for each statement.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from twopc.idle_connections import IdleConnections

CONNECTION_DEFAULTS: Mapping[str, str] = {
    "application_name": "twopc",
    # In seconds, per address. By default libpq waits for as long as TCP does.
    "connect_timeout": "10",
    # In milliseconds, for data in flight. Otherwise a dead host would block a commit for fifteen minutes.
    "tcp_user_timeout": "30000",
    # In seconds. Keepalives extend the timeout to the wait for an answer, while nothing else is sent.
    "keepalives_idle": "10",
    "keepalives_interval": "10",
    # If 'conninfo' names several servers, use the one that accepts writes. A failover changes which one that is.
    "target_session_attrs": "read-write",
}


def completed_conninfo(given: Any) -> str:
    """Return a connection string completed with the defaults above. Raises ValueError or TypeError if libpq rejects it,
    or would misread a part of a password as another part."""
    if not isinstance(given, str):
        raise TypeError
    try:
        parts = {name: str(part) for name, part in conninfo_to_dict(given).items()}
    except psycopg.ProgrammingError:
        raise ValueError from None  # the error quotes parts of the string, and one may be a secret
    ports = [port for port in parts.get("port", "").split(",") if port]
    # libpq finds these in a URL whose password contains '@' or '/', and would repeat parts of it in its errors.
    if any("@" in parts.get(name, "") for name in ("host", "dbname")) or not all(map(str.isdecimal, ports)):
        raise ValueError
    return make_conninfo("", **{**CONNECTION_DEFAULTS, **parts, "client_encoding": "UTF8"})  # as in Arrow and Python


ANSWER_TIMEOUT_S = 30.0
"""How long the coordinator waits for the answer to a statement. The server may be stopped, or may be waiting for an
absent standby. After that the statement is in doubt: it is repeated, and the log reports it to the operator. No
statement takes this long by itself."""

LOCK_TIMEOUT_S = 10.0
"""How long a coordinator's statement waits for a lock. Shorter than the above, so that the server reports the lock."""

_WAITS_FOR_STANDBYS = "SyncRepWaitForLSN"
"""The server function that warns about a canceled wait for standbys. The message itself is translated."""

_SETTINGS = {
    "client_min_messages": "warning",  # so that a canceled wait for standbys is reported
    "standard_conforming_strings": "on",  # otherwise a backslash is doubled in each bytea
    "array_nulls": "on",  # otherwise a null in an array becomes the text NULL
    "intervalstyle": "postgres",
    "idle_in_transaction_session_timeout": "0",  # a task computes its next records meanwhile
    "statement_timeout": "0",
    "transaction_timeout": "0",
}
"""Settings on which a task's transaction relies, overriding those of the role, the database and the server."""

_SET_UP = """
    SELECT pg_catalog.set_config(name, CASE WHEN name = 'synchronous_commit' AND setting = 'remote_apply' THEN setting
                                            ELSE wanted END, true)
    FROM pg_catalog.pg_settings s
    JOIN unnest(%s::text[], %s::text[]) AS given (lower_name, wanted) ON lower_name = pg_catalog.lower(s.name)
"""

_WAITS = """
    SELECT pg_catalog.current_setting('synchronous_commit') IN ('on', 'remote_apply')
           AND pg_catalog.current_setting('client_min_messages') <> 'error'
"""

SYNCHRONOUS = sql.SQL(
    "pg_catalog.set_config('synchronous_commit', 'on', true) AS waits,"
    " pg_catalog.set_config('client_min_messages', 'warning', true) AS reports_a_canceled_wait"
)
"""A FROM clause that makes a statement wait for synchronous standbys, overriding the session's settings."""

ResultT = TypeVar("ResultT")


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A psycopg connection that can bound the wait for an answer.

    Attributes:
        answer_timeout_s: how long a statement may take; None means no limit.
        waits: whether the settings of the role, the database and the server make each commit wait for synchronous
            standbys, and report a canceled wait.
        unreplicated: the server's warning that a wait for synchronous standbys was canceled. The statement has
            succeeded, but a failover may undo it. Empty if no wait was canceled.
    """

    answer_timeout_s: float | None = None
    waits = False
    unreplicated = ""

    def wait(self, gen: PQGen[ResultT], *arguments: Any, **options: Any) -> ResultT:
        return super().wait(gen, *arguments, **{"timeout": self.answer_timeout_s, **options})

    def note_unreplicated(self, notice: psycopg.errors.Diagnostic) -> None:
        """Handle a notice from the server."""
        if notice.source_function == _WAITS_FOR_STANDBYS:
            self.unreplicated = notice.message_primary or notice.source_function

    def ask(self, statement: str, **parts: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows. ``parts`` are the names and values for its braces.

        No part is a psycopg parameter, so a name may contain a percent sign. The same request bounds the
        coordinator's wait for a lock.
        """
        composed = sql.SQL(statement).format(**parts)
        if self.answer_timeout_s is not None:
            bound = sql.SQL("SET LOCAL lock_timeout = {};").format(f"{LOCK_TIMEOUT_S * 1000:.0f}ms")
            composed = bound + composed
        cursor = self.execute(composed)
        while cursor.nextset():
            pass
        return cursor.fetchall() if cursor.description else []


def connect(conninfo: str, *, autocommit: bool = False) -> Connection:
    """Return a new connection.

    Raises:
        psycopg.OperationalError: the connection can't be made.
    """
    # Without prepared statements: a pooler may run the next transaction in another session, and reuse this session's
    # statement names for another client.
    connection = Connection.connect(conninfo, autocommit=autocommit, prepare_threshold=None)
    connection.add_notice_handler(connection.note_unreplicated)
    # At a higher level, which may be the role's default, a transaction would see the columns as of its begin, not as of
    # when it locks them.
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return connection


def set_up(connection: Connection, lock_timeout_s: float) -> None:
    """Apply the settings that the open transaction relies on, until it ends. They bound its waits for locks, and make
    its commit wait for synchronous standbys."""
    wanted = {**_SETTINGS, "lock_timeout": f"{lock_timeout_s * 1000:.0f}ms", "synchronous_commit": "on"}
    connection.execute(_SET_UP, ([*wanted], [*wanted.values()]))


def _bounded(conninfo: str) -> Connection:
    connection = connect(conninfo, autocommit=True)
    connection.answer_timeout_s = ANSWER_TIMEOUT_S
    try:
        [(connection.waits,)] = connection.ask(_WAITS)
    except BaseException:
        connection.close()
        raise
    return connection


_idle = IdleConnections(_bounded, Connection.close)
"""The coordinator's connections, by connection string."""

release = _idle.release


@contextlib.contextmanager
def session(conninfo: str) -> Iterator[Connection]:
    """Lend a connection in which each statement is its own transaction.

    Raises:
        psycopg.OperationalError: the connection can't be made, the server did not answer in time, or its wait for
            standbys was canceled.
    """
    with _idle.lend(conninfo) as connection:
        yield connection
        if connection.unreplicated:
            raise psycopg.OperationalError(connection.unreplicated)
