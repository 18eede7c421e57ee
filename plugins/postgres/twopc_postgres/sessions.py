"""Connections of this process to servers, kept from one call to the next."""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any, TypeAlias

import psycopg

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

_idle: defaultdict[str, deque[Connection]] = defaultdict(deque)
"""By connection string. Of the process, not of a sink, which is pickled. A deque may be used by several threads."""


@contextlib.contextmanager
def session(conninfo: str) -> Iterator[Connection]:
    """A connection in which each statement is a transaction of its own.

    Raises:
        psycopg.OperationalError: it can't be made.
    """
    try:
        connection = _idle[conninfo].pop()
    except IndexError:
        connection = psycopg.connect(conninfo, autocommit=True)
    try:
        yield connection
    except BaseException:
        connection.close()
        release(conninfo)  # a server that was restarted has lost the others, too
        raise
    _idle[conninfo].append(connection)


def release(conninfo: str) -> None:
    """Close what is kept and not in use."""
    with contextlib.suppress(IndexError):
        while True:
            _idle[conninfo].pop().close()
