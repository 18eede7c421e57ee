"""Connections that a sink's coordinator keeps between calls."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

ServerT = TypeVar("ServerT")
ConnectionT = TypeVar("ConnectionT")


class IdleConnections(Generic[ServerT, ConnectionT]):
    """Idle connections of this process, by server. Keep it in a module's variable, because sinks are pickled.
    ``connect`` returns a new connection. ``close`` is also called for dead connections. Servers are compared by their
    ``repr``.

    A forked process never uses its parent's connections. Threads may share an object of this class.
    """

    def __init__(self, connect: Callable[[ServerT], ConnectionT], close: Callable[[ConnectionT], None]) -> None:
        self._connect, self._close = connect, close
        self._idle: defaultdict[tuple[int, str], deque[ConnectionT]] = defaultdict(deque)

    def to(self, server: ServerT) -> deque[ConnectionT]:
        """Return the idle connections to a server."""
        return self._idle[os.getpid(), repr(server)]

    @contextlib.contextmanager
    def lend(self, server: ServerT) -> Iterator[ConnectionT]:
        """Lend a connection for the block, and keep it as idle afterwards. An error closes this connection and all idle
        ones, because a restart of the server ends every connection. Raises what ``connect`` raises."""
        try:
            connection = self.to(server).pop()
        except IndexError:
            connection = self._connect(server)
        try:
            yield connection
        except BaseException:
            self._close(connection)
            self.release(server)
            raise
        self.to(server).append(connection)

    def release(self, server: ServerT) -> None:
        """Close the idle connections to a server."""
        with contextlib.suppress(IndexError):
            while True:
                self._close(self.to(server).pop())
