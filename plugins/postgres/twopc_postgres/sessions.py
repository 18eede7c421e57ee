"""Connections to servers. The coordinator's are kept from one call to the next, and do not wait without limit."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

import psycopg

ANSWER_TIMEOUT_S = 30.0
"""How long a server may be silent on a statement of the coordinator: stopped, or waiting for a standby that is away.
The statement is then in doubt and repeated, and the operator is told. None of them takes long of itself."""

LOCK_TIMEOUT_S = 10.0
"""How long a statement of the coordinator waits for a lock. Shorter, so that the server can say what it waited for."""

_WAITS_FOR_STANDBYS = "SyncRepWaitForLSN"
"""The function of the server that warns of a wait that was cancelled. The message is translated."""

ResultT = TypeVar("ResultT")


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """psycopg's connection, which can bound how long the server is silent.

    Attributes:
        answer_timeout_s: how long it may be; None: without limit.
        unreplicated: what the server said as somebody cancelled its wait for synchronous standbys. The statement has
            succeeded, and a failover may take it back. Empty where nobody did.
    """

    answer_timeout_s: float | None = None
    unreplicated = ""

    def wait(self, gen: Generator[Any, Any, ResultT], *arguments: Any, **options: Any) -> ResultT:
        if self.answer_timeout_s is not None:
            gen = _bounded(gen, self.answer_timeout_s)
        return super().wait(gen, *arguments, **options)

    def note_unreplicated(self, notice: psycopg.errors.Diagnostic) -> None:
        """Handle a notice of the server's."""
        if notice.source_function == _WAITS_FOR_STANDBYS:
            self.unreplicated = notice.message_primary or notice.source_function


def _bounded(statement: Generator[Any, Any, ResultT], timeout_s: float) -> Generator[Any, Any, ResultT]:
    """The steps of a statement. psycopg resumes them several times a second, also while nothing comes."""
    deadline = time.monotonic() + timeout_s
    try:
        awaited = next(statement)
        while True:
            if not (arrived := (yield awaited)) and time.monotonic() > deadline:
                raise psycopg.OperationalError(f"the server was silent for {timeout_s:g} s")
            awaited = statement.send(arrived)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def connect(conninfo: str, *, autocommit: bool = False) -> Connection:
    """A new connection. Raises psycopg.OperationalError where none can be made."""
    connection = Connection.connect(conninfo, autocommit=autocommit)
    connection.add_notice_handler(connection.note_unreplicated)
    return connection


_idle: defaultdict[str, deque[Connection]] = defaultdict(deque)
"""By connection string. Of the process, not of a sink, which is pickled. A deque may be used by several threads."""


@contextlib.contextmanager
def session(conninfo: str) -> Iterator[Connection]:
    """A connection in which each statement is a transaction of its own.

    Raises:
        psycopg.OperationalError: it can't be made, the server was silent, or a statement has succeeded that standbys
            may not have.
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
        limit_waiting(connection, LOCK_TIMEOUT_S, of_session=True)
    except BaseException:
        connection.close()
        raise
    return connection


def limit_waiting(connection: Connection, seconds: float, *, of_session: bool = False) -> None:
    """Have the current transaction, or each of the session, fail instead of waiting longer for a lock."""
    connection.execute("SELECT set_config('lock_timeout', %s, %s)", (f"{seconds * 1000:.0f}ms", not of_session))


def release(conninfo: str) -> None:
    """Close what is kept and not in use."""
    with contextlib.suppress(IndexError):
        while True:
            _idle[conninfo].pop().close()
