"""The segment stores' wire protocol, as far as a sink needs it: append, read and truncate one segment.

A command is its type, its length and its fields, all big-endian. Numbers and fields are those of ``WireCommands`` in
io.pravega:pravega-shared-protocol:0.13.0.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
import uuid
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import TypeVar

from twopc_pravega.controller import Controller
from twopc_pravega.options import Server, Stream

CONNECT_TIMEOUT_S = 10.0

ANSWER_TIMEOUT_S = 30.0
"""How long an append may take to become durable, and any other command to be answered."""

MOVE_PATIENCE_S = 20.0
"""How long a segment may be without a store, for example while another store takes over from a store that died."""

IN_FLIGHT_BYTES = 4 * 1024 * 1024
"""How much a writer sends ahead of the acknowledgments."""

_WIRE_VERSION, _OLDEST_VERSION = 16, 5
_READ_BYTES = 1024 * 1024
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 10, "TCP_USER_TIMEOUT": 30_000}

ResultT = TypeVar("ResultT")


class Command(IntEnum):
    """The commands that a sink sends, and the answers by which a store refuses a command."""

    HELLO = -127
    SETUP_APPEND = 1
    APPEND_SETUP = 2
    APPEND_BLOCK_END = 4
    DATA_APPENDED = 7
    READ_SEGMENT = 9
    SEGMENT_READ = 10
    GET_STREAM_SEGMENT_INFO = 11
    STREAM_SEGMENT_INFO = 12
    TRUNCATE_SEGMENT = 38
    SEGMENT_TRUNCATED = 39
    WRONG_HOST = 50
    SEGMENT_IS_SEALED = 51
    NO_SUCH_SEGMENT = 53
    INVALID_EVENT_NUMBER = 55
    SEGMENT_IS_TRUNCATED = 56
    OPERATION_UNSUPPORTED = 57
    AUTH_TOKEN_CHECK_FAILED = 60
    ERROR_MESSAGE = 61
    KEEP_ALIVE = 100


class SegmentError(Exception):
    """A segment store refused a command.

    Attributes:
        answer: the type of the store's answer.
    """

    def __init__(self, answer: int, segment: str) -> None:
        try:
            name = Command(answer).name
        except ValueError:
            name = f"answer {answer}"
        super().__init__(f"the segment store answers {name} about {segment}")
        self.answer = answer


class Connection:
    """A connection to a segment store.

    Raises:
        OSError: the store can't be reached, or the connection was lost. Every method raises it.
    """

    def __init__(self, server: Server, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=CONNECT_TIMEOUT_S)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if option := getattr(socket, name, None):  # Linux has all of them
                    self._socket.setsockopt(socket.IPPROTO_TCP, option, value)
            if server.is_tls:
                trusted = ssl.create_default_context(cafile=server.ca_file or None)
                self._socket = trusted.wrap_socket(self._socket, server_hostname=address[0])
            self._socket.settimeout(ANSWER_TIMEOUT_S)
            self._answers = self._socket.makefile("rb", 1 << 16)
            self.send(Command.HELLO, struct.pack(">ii", _WIRE_VERSION, _OLDEST_VERSION))
            highest, lowest = struct.unpack(">ii", self.receive(Command.HELLO, "the connection"))
            if lowest > _WIRE_VERSION or highest < _OLDEST_VERSION:
                raise SegmentError(Command.OPERATION_UNSUPPORTED, f"wire versions {lowest} to {highest}")
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def send(self, command: Command, *fields: bytes | memoryview) -> None:
        self._socket.sendall(b"".join((struct.pack(">ii", command, sum(map(len, fields))), *fields)))

    def receive(self, wanted: Command, segment: str) -> bytes:
        """Return the fields of the next answer. Raises SegmentError if the answer is not ``wanted``."""
        while True:
            command, length = struct.unpack(">ii", self._read(8))
            fields = self._read(length)
            if command == wanted:
                return fields
            if command != Command.KEEP_ALIVE:
                raise SegmentError(command, segment)

    def _read(self, length: int) -> bytes:
        data: bytes = self._answers.read(length)
        if len(data) < length:
            raise ConnectionResetError("the segment store has closed the connection")
        return data

    # Commands. --------------------------------------------------------------------------------------------------

    def set_up_append(self, segment: str, writer: uuid.UUID, token: str) -> int:
        """Announce a writer. Return the number of its last event in the segment, 0 for a new writer."""
        self.send(Command.SETUP_APPEND, _REQUEST, writer.bytes, _text(segment), _text(token))
        (last,) = struct.unpack(">q", self.receive(Command.APPEND_SETUP, segment)[-8:])
        return max(0, int(last))

    def bounds(self, segment: str, token: str) -> tuple[int, int]:
        """Return two offsets: the first byte that the segment still stores, and the segment's end."""
        self.send(Command.GET_STREAM_SEGMENT_INFO, _REQUEST, _text(segment), _text(token))
        fields = self.receive(Command.STREAM_SEGMENT_INFO, segment)
        exists, _, is_deleted, _, end, start = struct.unpack(">???qqq", fields[10 + len(segment.encode()) :][:27])
        if not exists or is_deleted:
            raise SegmentError(Command.NO_SUCH_SEGMENT, segment)
        return start, end

    def read(self, segment: str, token: str, start: int, end: int) -> bytes:
        """Return the bytes between two offsets. The segment must already contain these bytes: a read at the segment's
        end would wait for more."""
        parts = []
        while start < end:
            wanted = struct.pack(">qi", start, min(_READ_BYTES, end - start))
            self.send(Command.READ_SEGMENT, _text(segment), wanted, _text(token), _REQUEST)
            fields = self.receive(Command.SEGMENT_READ, segment)[2 + len(segment.encode()) :]
            offset, length = struct.unpack(">q2xi", fields[:14])
            if offset != start or not length:
                raise SegmentError(Command.SEGMENT_READ, f"{segment} at {offset}, not at {start}")
            parts.append(fields[14 : 14 + length])
            start += length
        return b"".join(parts)

    def truncate(self, segment: str, token: str, offset: int) -> None:
        """Remove everything before ``offset``. A segment that is already truncated further stays as it is."""
        self.send(Command.TRUNCATE_SEGMENT, _REQUEST, _text(segment), struct.pack(">q", offset), _text(token))
        try:
            self.receive(Command.SEGMENT_TRUNCATED, segment)
        except SegmentError as error:
            if error.answer != Command.SEGMENT_IS_TRUNCATED:
                raise


_REQUEST = struct.pack(">q", 1)  # each connection has one request at a time, so its number does not matter


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">H", len(raw)) + raw


class Place:
    """A segment, or a transaction's part of one. Finds the store that currently serves the segment. ``name`` is the
    name that stores know the segment or part by."""

    def __init__(self, controller: Controller, stream: Stream, segment: int, txn: uuid.UUID | None = None) -> None:
        self._controller, self._stream, self._segment = controller, stream, segment
        name = f"{stream}/{segment & 0xFFFFFFFF}.#epoch.{segment >> 32}"
        self.name = name if txn is None else f"{name}#transaction.{txn.hex}"

    def reach(self, ask: Callable[[Connection], ResultT]) -> tuple[Connection, ResultT]:
        """Connect to the segment's store and make a first request. Return the connection and its result.

        If the store no longer serves the segment or can't be reached, ask the controller for the segment's store again,
        for up to ``MOVE_PATIENCE_S``.

        Raises:
            SegmentError: the store refuses the request.
            OSError: the store that serves the segment can't be reached.
            grpc.RpcError: the controller names no store.
        """
        deadline = time.monotonic() + MOVE_PATIENCE_S
        while True:
            try:
                return self._reach(ask)
            except SegmentError as error:
                if error.answer != Command.WRONG_HOST or time.monotonic() > deadline:
                    raise
            except OSError as error:
                if isinstance(error, ssl.SSLError) or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def _reach(self, ask: Callable[[Connection], ResultT]) -> tuple[Connection, ResultT]:
        connection = Connection(self._controller.server, self._controller.store_of(self._stream, self._segment))
        try:
            return connection, ask(connection)
        except BaseException:
            connection.close()
            raise


class Appender:
    """Appends blocks of events to one segment, several ahead of their acknowledgments.

    A writer's events are numbered. The store appends a block only after the block before it, and never twice.

    Args:
        place: the segment.
        token: the token that permits writes.
    """

    def __init__(self, place: Place, token: str) -> None:
        self._place = place
        self._writer = uuid.uuid4()
        self._sent = self._acknowledged = 0
        self._in_flight: deque[tuple[int, int]] = deque()  # the last event of a block, and the block's size
        self._bytes_in_flight = 0
        self._connection, _ = self._set_up(token)

    def _set_up(self, token: str) -> tuple[Connection, int]:
        return self._place.reach(lambda connection: connection.set_up_append(self._place.name, self._writer, token))

    def append(self, block: memoryview, events: int) -> None:
        """Send a block of framed events. The block is durable once ``flush`` returns."""
        while self._in_flight and self._bytes_in_flight + len(block) > IN_FLIGHT_BYTES:
            self._acknowledge()
        self._sent += events
        size = struct.pack(">ii", len(block), len(block))
        numbers = struct.pack(">iqq", events, self._sent, 1)
        self._connection.send(Command.APPEND_BLOCK_END, self._writer.bytes, size, block, numbers)
        self._in_flight.append((self._sent, len(block)))
        self._bytes_in_flight += len(block)

    def flush(self) -> None:
        """Wait until every block is durable."""
        while self._acknowledged < self._sent:
            self._acknowledge()

    def _acknowledge(self) -> None:
        fields = self._connection.receive(Command.DATA_APPENDED, self._place.name)
        (number,) = struct.unpack(">q", fields[16:24])
        if fields[:16] != self._writer.bytes or not self._acknowledged < number <= self._sent:
            raise SegmentError(Command.DATA_APPENDED, f"{self._place.name}, event {number} of {self._sent}")
        self._acknowledged = number
        while self._in_flight and self._in_flight[0][0] <= number:
            self._bytes_in_flight -= self._in_flight.popleft()[1]

    def renew(self, token: str) -> None:
        """Continue with a new token, over a new connection.

        Raises:
            ConnectionResetError: the store lacks a block that was sent over the old connection.
        """
        with contextlib.suppress(OSError, SegmentError):  # the old token may have expired
            self.flush()
        self.close()
        self._connection, last = self._set_up(token)
        if last != self._sent:
            raise ConnectionResetError(f"{self._place.name} has {last} of {self._sent} events")
        self._acknowledged = last
        self._in_flight.clear()
        self._bytes_in_flight = 0

    def close(self) -> None:
        self._connection.close()
