"""The controller's part of a transaction, over gRPC: begin, ping, commit, abort and state.

Every call has a deadline. Errors are ``grpc.RpcError``; ``outcomes`` interprets them.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import grpc

from twopc.errors import ConfigurationError
from twopc.transaction import JsonValue
from twopc_pravega.messages import MESSAGES
from twopc_pravega.options import Server, Stream

ANSWER_TIMEOUT_S = 30.0
"""How long a call waits for its answer. Afterwards the outcome of the call is in doubt, and the caller repeats the
call."""

_SERVICE = "io.pravega.controller.stream.api.grpc.v1.ControllerService"
_ANSWERS = {
    "abortTransaction": "Status",
    "checkStreamExists": "ExistsResponse",
    "checkTransactionState": "TxnState",
    "commitTransaction": "Status",
    "createStream": "Status",
    "createTransaction": "CreateTxnResponse",
    "getCurrentSegments": "SegmentRanges",
    "getDelegationToken": "DelegationToken",
    "getURI": "NodeUri",
    "pingTransaction": "Status",
}
_NO_TIMESTAMP = -(2**63)  # what Java's client sends for a commit without a watermark
_READ_WRITE = 5
_IDLE = (("grpc.keepalive_time_ms", 30_000), ("grpc.max_reconnect_backoff_ms", 2_000))


class State(Enum):
    """A transaction's state in the controller. An UNKNOWN transaction never existed, or ended more than a day ago."""

    UNKNOWN = 0
    OPEN = 1
    COMMITTING = 2
    COMMITTED = 3
    ABORTING = 4
    ABORTED = 5


class Ping(Enum):
    """The answer to a request for a new lease."""

    OK = 0
    LEASE_TOO_LARGE = 1
    MAX_EXECUTION_TIME_EXCEEDED = 2
    SCALE_GRACE_TIME_EXCEEDED = 3
    DISCONNECTED = 4
    COMMITTED = 5
    ABORTED = 6
    UNKNOWN = 7


class Created(Enum):
    """The answer to a request for a new stream."""

    SUCCESS = 0
    FAILURE = 1
    STREAM_EXISTS = 2
    SCOPE_NOT_FOUND = 3
    INVALID_STREAM_NAME = 4


@dataclass(frozen=True, slots=True)
class Txn:
    """A Pravega transaction: its stream and its id."""

    stream: Stream
    id: uuid.UUID

    def __str__(self) -> str:
        return f"{self.id} of {self.stream}"

    def to_json(self) -> dict[str, JsonValue]:
        return {"scope": self.stream.scope, "stream": self.stream.name, "txn": str(self.id)}

    @classmethod
    def from_json(cls, value: Mapping[str, JsonValue]) -> Txn:
        """Create a transaction from the result of ``to_json``. Raises KeyError, TypeError or ValueError for any other
        value."""
        scope, stream, id = value["scope"], value["stream"], value["txn"]
        if not isinstance(scope, str) or not isinstance(stream, str) or not isinstance(id, str):
            raise TypeError
        return cls(Stream(scope, stream), uuid.UUID(id))


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a stream, and the end of its key range, which begins where the previous segment's range ends."""

    id: int
    range_end: float


@dataclass(frozen=True, slots=True)
class Begun:
    """A new transaction, with the segments that it may write to, ordered by key range, and a token for these
    segments."""

    txn: Txn
    segments: Sequence[Segment]
    token: str


_AT_ONCE = 100
"""How many requests may wait for their answers at the same time. Each request gets the full timeout."""


class Controller:
    """A channel to the controllers of one cluster, ``server``. Threads may share it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._metadata: list[tuple[str, str]] = []
        if server.username:
            credentials = base64.b64encode(f"{server.username}:{server.password}".encode()).decode()
            self._metadata.append(("authorization", f"Basic {credentials}"))
        if server.is_tls:
            trusted = _certificates(server.ca_file) if server.ca_file else None
            self._channel = grpc.secure_channel(server.target, grpc.ssl_channel_credentials(trusted), _IDLE)
        else:
            self._channel = grpc.insecure_channel(server.target, _IDLE)
        self._methods = {
            name: self._channel.unary_unary(
                f"/{_SERVICE}/{name}",
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=MESSAGES[answer].FromString,
            )
            for name, answer in _ANSWERS.items()
        }

    def _call(self, method: str, request: Any) -> Any:
        return self._methods[method](request, timeout=ANSWER_TIMEOUT_S, metadata=self._metadata)

    def _call_each(self, method: str, requests: Iterable[Any]) -> list[Any]:
        """Send many requests at the same time, and return their answers in order. The answer is None if the controller
        does not know the transaction's stream, for example because it was deleted."""
        answers, left = [], iter(requests)
        while some := [*itertools.islice(left, _AT_ONCE)]:
            calls = [
                self._methods[method].future(request, timeout=ANSWER_TIMEOUT_S, metadata=self._metadata)
                for request in some
            ]
            answers += [_found(call) for call in calls]
        return answers

    # Transactions. ----------------------------------------------------------------------------------------------

    def begin(self, stream: Stream, lease_ms: int) -> Begun:
        request = MESSAGES["CreateTxnRequest"](streamInfo=_info(stream), lease=lease_ms)
        answer = self._call("createTransaction", request)
        bits = (answer.txnId.highBits % 2**64) << 64 | answer.txnId.lowBits % 2**64
        return Begun(Txn(stream, uuid.UUID(int=bits)), _segments(answer.activeSegments), answer.delegationToken)

    def commit(self, txn: Txn) -> bool:
        """Ask the controller to commit. Return whether it accepted this request or an earlier one. The commit may take
        effect later."""
        return bool(self._call("commitTransaction", _request(txn)).status == 0)

    def abort(self, txn: Txn) -> bool:
        """Ask the controller to roll back. Return whether it accepted this request or an earlier one."""
        return bool(self._call("abortTransaction", _request(txn)).status == 0)

    def ping(self, txn: Txn, lease_ms: int) -> Ping:
        """Ask for a new lease, which begins now."""
        return self.ping_each([txn], lease_ms)[0]

    def ping_each(self, txns: Iterable[Txn], lease_ms: int) -> list[Ping]:
        answers = self._call_each("pingTransaction", [_request(txn, lease_ms) for txn in txns])
        return [Ping.UNKNOWN if answer is None else Ping(answer.status) for answer in answers]

    def state(self, txn: Txn) -> State:
        return self.state_each([txn])[0]

    def state_each(self, txns: Iterable[Txn]) -> list[State]:
        answers = self._call_each("checkTransactionState", map(_request, txns))
        return [State.UNKNOWN if answer is None else State(answer.state) for answer in answers]

    # Streams. ---------------------------------------------------------------------------------------------------

    def exists(self, stream: Stream) -> bool:
        return bool(self._call("checkStreamExists", _info(stream)).exists)

    def create(self, stream: Stream) -> Created:
        """Create a stream with one segment. It is never scaled."""
        policy = MESSAGES["ScalingPolicy"](minNumSegments=1)
        request = MESSAGES["StreamConfig"](streamInfo=_info(stream), scalingPolicy=policy)
        return Created(self._call("createStream", request).status)

    def segments(self, stream: Stream) -> Sequence[Segment]:
        return _segments(self._call("getCurrentSegments", _info(stream)).segmentRanges)

    def token(self, stream: Stream) -> str:
        """Return a token with which segment stores let this user read and write, empty without authentication."""
        return str(self._call("getDelegationToken", _info(stream, _READ_WRITE)).delegationToken)

    def store_of(self, stream: Stream, segment: int) -> tuple[str, int]:
        """Return the host and port of the segment store that currently serves a segment."""
        answer = self._call("getURI", MESSAGES["SegmentId"](streamInfo=_info(stream), segmentId=segment))
        return answer.endpoint, answer.port


def _found(call: Any) -> Any:
    try:
        return call.result()
    except grpc.RpcError:
        if call.code() is not grpc.StatusCode.NOT_FOUND:
            raise
        return None


def _info(stream: Stream, access: int = 0) -> Any:
    return MESSAGES["StreamInfo"](scope=stream.scope, stream=stream.name, accessOperation=access)


def _request(txn: Txn, lease_ms: int | None = None) -> Any:
    high, low = (_signed(txn.id.int >> 64), _signed(txn.id.int % 2**64))
    parts = {"streamInfo": _info(txn.stream), "txnId": MESSAGES["TxnId"](highBits=high, lowBits=low)}
    if lease_ms is None:
        return MESSAGES["TxnRequest"](**parts, timestamp=_NO_TIMESTAMP)
    return MESSAGES["PingTxnRequest"](**parts, lease=lease_ms)


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


def _segments(ranges: Iterable[Any]) -> list[Segment]:
    return [
        Segment(each.segmentId.segmentId, each.maxKey) for each in sorted(ranges, key=lambda each: float(each.minKey))
    ]


def _certificates(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"the file of 'ca_file' can't be read: {error}", option="ca_file") from error


# Channels. ------------------------------------------------------------------------------------------------------

_channels: dict[tuple[int, Server], Controller] = {}
"""Channels by process and cluster. A sink can't hold its channel because it is pickled, and a forked process can't use
the channels of its parent."""

_lock = threading.Lock()


def controller_of(server: Server) -> Controller:
    """Return this process's channel to a cluster."""
    with _lock:
        key = os.getpid(), server
        if key not in _channels:
            _channels[key] = Controller(server)
        return _channels[key]


def release(server: Server) -> None:
    """Forget this process's channel to a cluster. It closes when no other query uses it any more."""
    with _lock:
        _channels.pop((os.getpid(), server), None)


def renewal_due(token: str) -> float | None:
    """Return when to renew a token, by ``time.monotonic``: after half of its lifetime. Return None if the token is
    empty or does not expire.

    Segment stores close a connection when its token expires. The token is a JSON Web Token, and only they verify it.
    """
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        left_s = float(claims["exp"]) - float(claims.get("iat", time.time()))
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    return time.monotonic() + left_s / 2
