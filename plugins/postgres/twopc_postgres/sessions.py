"""Connections to servers. The coordinator's connections are kept between calls, and their waits are bounded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.abc import PQGen

from twopc.idle_connections import IdleConnections

ANSWER_TIMEOUT_S = 30.0
"""How long the coordinator waits for the answer to a statement. The server may be stopped, or may be waiting for an
absent standby. After that the statement is in doubt: it is repeated, and the log reports it to the operator. No
statement takes this long by itself."""

LOCK_TIMEOUT_S = 10.0
"""How long a coordinator's statement waits for a lock. Shorter than the above, so that the server reports the lock."""

_WAITS_FOR_STANDBYS = "SyncRepWaitForLSN"
"""The server function that warns about a canceled wait for standbys. The message itself is translated."""

_SETTINGS = """
    SELECT pg_catalog.set_config('lock_timeout', %s, false),
           pg_catalog.set_config('client_min_messages', 'warning', false),
           pg_catalog.set_config(
               'synchronous_commit', CASE name WHEN 'remote_apply' THEN name ELSE 'on' END, false
           )
    FROM pg_catalog.current_setting('synchronous_commit') AS name
"""

SYNCHRONOUS = sql.SQL(
    "pg_catalog.set_config('synchronous_commit', 'on', true) AS waits,"
    " pg_catalog.set_config('client_min_messages', 'warning', true) AS reports_a_canceled_wait"
)
"""What follows FROM in a statement that waits for synchronous standbys whatever its session has set: a pooler may have
given it another session than the one that was set up."""

ResultT = TypeVar("ResultT")


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A psycopg connection that can bound the wait for an answer.

    Attributes:
        answer_timeout_s: how long a statement may take; None means no limit.
        unreplicated: the server's warning that a wait for synchronous standbys was canceled. The statement has
            succeeded, but a failover may undo it. Empty if no wait was canceled.
    """

    answer_timeout_s: float | None = None
    unreplicated = ""

    def wait(self, gen: PQGen[ResultT], *arguments: Any, **options: Any) -> ResultT:
        return super().wait(gen, *arguments, **{"timeout": self.answer_timeout_s, **options})

    def note_unreplicated(self, notice: psycopg.errors.Diagnostic) -> None:
        """Handle a notice from the server."""
        if notice.source_function == _WAITS_FOR_STANDBYS:
            self.unreplicated = notice.message_primary or notice.source_function


def connect(conninfo: str, *, autocommit: bool = False) -> Connection:
    """Return a new connection.

    Raises:
        psycopg.OperationalError: the connection can't be made.
    """
    connection = Connection.connect(conninfo, autocommit=autocommit)
    connection.add_notice_handler(connection.note_unreplicated)
    return connection


def set_up(connection: Connection, lock_timeout_s: float) -> None:
    """Bound waits for locks, wait for synchronous standbys, and make the server report a canceled wait. Overrides the
    settings of the role and the database."""
    connection.execute(_SETTINGS, (f"{lock_timeout_s * 1000:.0f}ms",))


def _bounded(conninfo: str) -> Connection:
    connection = connect(conninfo, autocommit=True)
    connection.answer_timeout_s = ANSWER_TIMEOUT_S
    connection.prepare_threshold = None  # a pooler may give the next statement another session
    try:
        set_up(connection, LOCK_TIMEOUT_S)
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
