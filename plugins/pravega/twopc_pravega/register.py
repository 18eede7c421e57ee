"""The register of a sink: a separate stream that lists the transactions that the sink has begun.

Pravega does not list open transactions. So a task appends each transaction's names to the register before it writes,
and ``recover`` reads the register. Entries of ended transactions are truncated from the front.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from twopc.errors import ConfigurationError, OperatorRequired
from twopc_pravega.controller import Controller, Created, Txn
from twopc_pravega.events import blocks, unframed
from twopc_pravega.options import Stream
from twopc_pravega.segments import Appender, Command, Connection, Place, SegmentError

LONGEST_NAME = 255

_ESCAPES = str.maketrans({"-": "--", "_": "-u"})  # Pravega allows no underscores; this keeps names distinct

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Entry:
    """A transaction's entry in the register.

    Attributes:
        name: the transaction's exact name.
        txn: the transaction as Pravega names it.
        end: the offset in the register at which the entry ends.
    """

    name: str
    txn: Txn
    end: int


class Register:
    """The register of one sink.

    Args:
        controller: the controller of the cluster that stores the register.
        scope: the scope of the sink's stream.
        owner: the prefix of the sink's transaction names.
    """

    def __init__(self, controller: Controller, scope: str, owner: str) -> None:
        self.stream = Stream(scope, f"twopc-register.{owner.rstrip('.').translate(_ESCAPES)}")
        self._controller = controller

    @functools.cached_property
    def _place(self) -> Place:
        """The register's only segment. If the stream is created again, its segment has a higher number."""
        [segment] = self._controller.segments(self.stream)
        return Place(self._controller, self.stream, segment.id)

    def exists(self) -> bool:
        return self._controller.exists(self.stream)

    def create(self) -> None:
        """Create the register if it is missing.

        Raises:
            ConfigurationError: there is no such scope, or the register's name is too long.
        """
        if self.exists():
            return
        match self._controller.create(self.stream):
            case Created.SUCCESS | Created.STREAM_EXISTS:
                return
            case Created.SCOPE_NOT_FOUND:
                raise ConfigurationError(
                    f"there is no scope {self.stream.scope!r}. Create it and its stream; the sink does not.",
                    option="stream",
                )
            case Created.INVALID_STREAM_NAME:
                raise ConfigurationError(
                    f"Pravega refuses {self.stream.name!r} as the name of the sink's register. Names have"
                    f" {LONGEST_NAME} characters at most: give the sink a shorter name."
                )
            case _:
                raise ConnectionResetError(f"the register {self.stream} could not be created")

    def add(self, name: str, txn: Txn) -> None:
        """Append an entry. It is durable on return."""
        entry = json.dumps({"name": name, **txn.to_json()}).encode()
        [(block, events)] = blocks(pa.array([entry]))
        with contextlib.closing(Appender(self._place, self._controller.token(self.stream))) as appender:
            appender.append(block, events)
            appender.flush()

    def entries(self) -> list[Entry]:
        """Return the entries that have not been truncated, the oldest first.

        Raises:
            OperatorRequired: the register contains an entry that this sink did not write.
        """
        token = self._controller.token(self.stream)
        start, data = self._ask(lambda connection: self._read(connection, token))
        try:
            return [_entry(event, start + end) for event, end in unframed(data)]
        except (ValueError, KeyError, TypeError) as error:
            raise OperatorRequired(
                f"the register {self.stream} has an entry that this sink did not write: {error!r}. Only this sink may"
                " write to that stream. If something else did, stop the query, replace the stream by an empty one with"
                " one segment, and start again. Transactions that are open then end by their lease."
            ) from error

    def _read(self, connection: Connection, token: str) -> tuple[int, bytes]:
        while True:
            start, end = connection.bounds(self._place.name, token)
            try:
                return start, connection.read(self._place.name, token, start, end)
            except SegmentError as error:
                if error.answer != Command.SEGMENT_IS_TRUNCATED:
                    raise  # otherwise another coordinator has truncated it meanwhile: read again

    def truncate(self, offset: int) -> None:
        """Remove the entries that end at or before ``offset``."""
        token = self._controller.token(self.stream)
        self._ask(lambda connection: connection.truncate(self._place.name, token, offset))

    def _ask(self, ask: Callable[[Connection], ResultT]) -> ResultT:
        connection, result = self._place.reach(ask)
        connection.close()
        return result


def _entry(event: bytes, end: int) -> Entry:
    value = json.loads(event)
    return Entry(str(value["name"]), Txn.from_json(value), end)
