"""Connections to servers. The coordinator's are kept between calls, and their waits are bounded."""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

ANSWER_TIMEOUT_S = 30.0
"""How long the coordinator waits for the answer to a statement: the server may be stopped, or wait for a standby that
is away. The statement is then in doubt and repeated, and the operator sees it in the log. No statement takes long by
itself."""

LOCK_TIMEOUT_S = 10.0
"""How long a statement of the coordinator waits for a lock. Shorter, so that the server can report the lock."""

_WAITS_FOR_STANDBYS = "SyncRepWaitForLSN"
"""The function of the server that warns of a cancelled wait. The message is translated."""

_SETTINGS = """
    SELECT set_config('lock_timeout', %s, false),
           set_config('client_min_messages', 'warning', false),
           set_config('synchronous_commit', CASE WHEN name IN ('off', 'local') THEN 'on' ELSE name END, false)
    FROM current_setting('synchronous_commit') AS name
"""

ResultT = TypeVar("ResultT")


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """psycopg's connection, which can bound the wait for an answer.

    Attributes:
        answer_timeout_s: how long a statement may take; None: without limit.
        unreplicated: the server's warning that a wait for synchronous standbys was cancelled. The statement has
            succeeded, and a failover may take it back. Empty where no wait was cancelled.
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
        psycopg.OperationalError: none can be made.
    """
    connection = Connection.connect(conninfo, autocommit=autocommit)
    connection.add_notice_handler(connection.note_unreplicated)
    return connection


def set_up(connection: Connection, lock_timeout_s: float) -> None:
    """Bound waits for locks, wait for synchronous standbys, and have the server report a wait that was cancelled,
    whatever the settings of its role and database are."""
    connection.execute(_SETTINGS, (f"{lock_timeout_s * 1000:.0f}ms",))


_idle: defaultdict[str, deque[Connection]] = defaultdict(deque)
"""Idle connections by connection string. They belong to the process, as sinks are pickled. Deques are thread-safe."""


@contextlib.contextmanager
def session(conninfo: str) -> Iterator[Connection]:
    """Lend a connection in which each statement is a transaction of its own.

    Raises:
        psycopg.OperationalError: it can't be made, the server did not answer in time, or it no longer waited for
            standbys.
    """
    try:
        connection = _idle[conninfo].pop()
    except IndexError:
        connection = _bounded_session(conninfo)
    try:
        yield connection
        if connection.unreplicated:
            raise psycopg.OperationalError(connection.unreplicated)
    except BaseException:
        connection.close()
        release(conninfo)  # a server that was restarted has lost the others, too
        raise
    _idle[conninfo].append(connection)


def _bounded_session(conninfo: str) -> Connection:
    connection = connect(conninfo, autocommit=True)
    connection.answer_timeout_s = ANSWER_TIMEOUT_S
    try:
        set_up(connection, LOCK_TIMEOUT_S)
    except BaseException:
        connection.close()
        raise
    return connection


def release(conninfo: str) -> None:
    """Close the connections that are kept and not in use."""
    with contextlib.suppress(IndexError):
        while True:
            _idle[conninfo].pop().close()
