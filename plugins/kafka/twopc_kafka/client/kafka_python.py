"""kafka-python's connections, made robust against silent brokers. Only this module uses undocumented names of
kafka-python.

They were read in version ``READ_IN``; the distribution's upper bound on kafka-python admits no later minor
version. Another version may have renamed what this module overrides or reads (``_conns``, ``_reauth``, ``_do_reauth``,
``_do_bootstrap``, ``_net``, ``_build_transport``, ``_sock_recv``), and would then fail at the first connection. This
module corrects the following behaviors of kafka-python:

- It tries the addresses in 'bootstrap.servers' one at a time, and can spend its whole timeout on one that accepts
  connections but does not answer.
- It sends a request that any broker could answer to only one of them.
- It waits for a TLS handshake without a limit.
- It counts the time for sending a large request over a slow network as the broker's silence.
- It drops a response that arrives together with the end of the connection.
- It treats a refused renewal of a login like a refused login.
- It logs passwords at DEBUG.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import logging
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

import kafka.errors
from kafka.future import Future
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslBytesRequest
from kafka.record.memory_records import MemoryRecordsBuilder

__all__ = [
    "READ_IN",
    "AbstractTokenProvider",
    "Connections",
    "Loop",
    "MemoryRecordsBuilder",
    "OfProcess",
    "blocking",
]

READ_IN = "3.0.12"
"""The version of kafka-python whose names and behavior this module relies on."""

logger = logging.getLogger(__name__)

TURN_S = 1.0
"""How long to wait for one broker before the next one is tried as well."""

SETUP_TIMEOUT_MS = 5_000
"""Timeout for a new connection, including TLS and login. Doubles with each failure, up to the maximum."""

_SETUP_TIMEOUT_MAX_MS = 10_000

_RECONNECT_BACKOFF_MAX_MS = 1_000
"""The longest pause between attempts to connect. A decided transaction waits for its broker, and kafka-python's 30 s
would take longer than most restarts of a broker."""

_ANSWER_MAX_BYTES = 2**31 - 1
"""The largest response. kafka-python's own limit of 1 MB is too small for a list of 10 000 transactions."""

_REQUESTS_UNDER_WAY = 1_000
"""The limit of requests in flight per connection. Callers set lower limits of their own. kafka-python's default of five
would slow down phase two."""

_FINAL = (
    kafka.errors.IncompatibleBrokerVersion,  # for example from a controller, which does not serve clients
    kafka.errors.SaslAuthenticationFailedError,
)
"""Errors from one broker after which no other broker is tried."""

_NEVER_MS = 86_400_000
"""Disables kafka-python's request timeout where ``Connections.answer`` applies its own."""


class _Kept(Protocol):
    @property
    def is_of_use(self) -> bool: ...

    def close(self) -> None: ...


class _Runs(Protocol):
    @property
    def run(self) -> Callable[..., Any]: ...


KeptT = TypeVar("KeptT", bound=_Kept)
RunsT = TypeVar("RunsT", bound=_Runs)
ResultT = TypeVar("ResultT")
ArgumentsP = ParamSpec("ArgumentsP")


def blocking(
    asked: Callable[Concatenate[RunsT, ArgumentsP], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate[RunsT, ArgumentsP], ResultT]:
    """Turn a coroutine of a class with the method ``run`` into a method that any thread can call."""

    @functools.wraps(asked)
    def call(self: RunsT, /, *args: ArgumentsP.args, **keywords: ArgumentsP.kwargs) -> ResultT:
        return self.run(functools.partial(asked, self, *args, **keywords))  # type: ignore[no-any-return]

    return call


class Loop(NetworkSelector):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python's event loop, extended to report whether a thread still runs it."""

    def __init__(self, **properties: Any) -> None:
        super().__init__(**properties, slow_task_threshold_secs=0)  # a wait for the GIL would be logged as a slow task
        self._process = os.getpid()
        self._has_ended = False

    @property
    def is_running(self) -> bool:
        return not self._has_ended and self._process == os.getpid()  # a forked process does not inherit threads

    def run_forever(self) -> None:
        try:
            super().run_forever()
        finally:
            self._has_ended = True


class OfProcess(Generic[KeptT]):
    """A cache of this process's connections, by key.

    A forked process starts with an empty cache, because it does not have the threads that drive its parent's
    connections.
    """

    def __init__(self) -> None:
        self._of_parents: list[dict[Hashable, KeptT]] = []
        self._begin()
        os.register_at_fork(after_in_child=self._forget_parent)

    def get(self, key: Hashable, make: Callable[[], KeptT]) -> KeptT:
        """Return the connections cached under ``key``. Make new ones if there are none or they are unusable."""
        with self._getting:
            kept = self._kept.get(key)
            if kept is None or not kept.is_of_use:
                if kept is not None:
                    kept.close()
                kept = self._kept[key] = make()
            return kept

    def _begin(self) -> None:
        self._kept: dict[Hashable, KeptT] = {}
        self._getting = threading.Lock()

    def _forget_parent(self) -> None:
        self._of_parents.append(self._kept)  # freeing them would unregister sockets from the parent's epoll
        self._begin()  # replaces the lock too, which a thread of the parent may have held


class Connections(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python's connection manager with this module's timeouts. It connects to each broker when the connection is
    first needed. Its coroutines run on its loop.

    Attributes:
        doubted: a broker that was silent recently, or whose responses may be stale. It is tried last.
    """

    doubted: Any = None

    def __init__(self, net: Loop, properties: Mapping[str, Any]) -> None:
        super().__init__(
            net,
            max_in_flight_requests_per_connection=_REQUESTS_UNDER_WAY,
            reconnect_backoff_max_ms=_RECONNECT_BACKOFF_MAX_MS,
            receive_message_max_bytes=_ANSWER_MAX_BYTES,
            socket_connection_setup_timeout_ms=SETUP_TIMEOUT_MS,
            socket_connection_setup_timeout_max_ms=_SETUP_TIMEOUT_MAX_MS,
            **properties,
        )

    async def answer(self, connection: Any, request: Any, timeout_ms: float | None = None) -> Any:
        """Send a request and return the response.

        The timeout (by default 'request_timeout_ms') limits silence: it restarts whenever bytes are sent or received,
        and does not run while the broker throttles this client.

        Raises:
            KafkaError: the connection was lost, or it was closed because the broker was silent.
        """
        patience_s = (timeout_ms or self.config["request_timeout_ms"]) / 1000
        answer = connection.send_request(request, request_timeout_ms=_NEVER_MS)
        heard = time.monotonic()
        while not answer.is_done:
            if "throttle" in connection.paused:
                heard = time.monotonic()
            elif connection.transport is not None:
                heard = max(heard, connection.transport.last_activity)
            left_s = heard + patience_s - time.monotonic()
            if left_s <= 0:
                silence = f"{type(request).__name__}: the broker was silent for {patience_s:g} s"
                connection.close(kafka.errors.RequestTimedOutError(silence))
                break
            await self._ended([answer], left_s)
        return await answer

    def get_connection(self, node_id: Any, *arguments: Any, **options: Any) -> Any:
        """Return a connection that asks its own broker for the versions it supports.

        kafka-python would reuse the versions that it saw when this process first connected to the cluster. Brokers may
        have been upgraded since, and a batch that was decided by a newer version must be committed by that version."""
        is_new = node_id not in self._conns
        connection = super().get_connection(node_id, *arguments, **options)
        if is_new:
            connection.broker_version_data = None
            reauthenticator = connection._reauth  # noqa: SLF001
            reauthenticator._do_reauth = functools.partial(_reauthenticate, reauthenticator._do_reauth)  # noqa: SLF001
        return connection

    def sends_at_once(self, node_id: Any) -> bool:
        """Return whether a request to this broker would be sent now, without waiting for a connection or a login. In
        that case kafka-python's own timeout covers the whole wait for the response."""
        connection = self._conns.get(node_id)
        if connection is None or not connection.connected or connection.paused or connection.transport.is_closing():
            return False
        return not connection._reauth.is_reauthenticating  # noqa: SLF001

    def send(self, request: Any, node_id: Any = None, request_timeout_ms: float | None = None) -> Future:
        """Send a request to a broker. Without a ``node_id``, try brokers in turn and take the first response."""
        if node_id is not None:
            return super().send(request, node_id, request_timeout_ms)
        return self.call_soon(self._send_to_any, request, request_timeout_ms)

    async def _send_to_any(self, request: Any, timeout_ms: float | None) -> Any:
        deadline = time.monotonic() + (timeout_ms or self.config["request_timeout_ms"]) / 1000
        nodes = self.by_load()
        # Each connection sets its own version and correlation id on the request.
        asked = (self.call_soon(self._ask, node, copy.copy(request)) for node in nodes)
        return await self._first_success(asked, deadline)

    async def _ask(self, node: Any, request: Any) -> Any:
        return await self.answer(self.get_connection(node), request)

    def by_load(self) -> list[Any]:
        """Return the brokers that can be asked now, those with the fewest requests in flight first. Among equals,
        connected brokers come first. The doubted broker is last.

        Raises:
            NodeNotReadyError: there is no such broker.
        """
        nodes = [broker.node_id for broker in self.cluster.brokers()]
        random.shuffle(nodes)
        found = []
        for node in nodes:
            connection = self._conns.get(node)
            if self.connection_delay(node) > 0 or (connection is not None and connection.paused):
                continue
            is_connected = connection is not None and connection.connected
            waiting = len(connection.in_flight_requests) if connection is not None else 0
            found.append((node == self.doubted, waiting, not is_connected, node))
        if not found:
            raise kafka.errors.NodeNotReadyError("no known broker can be reached")
        return [node for *_, node in sorted(found, key=lambda each: each[:3])]

    async def _do_bootstrap(self, deadline: float | None) -> bool:
        """Ask 'bootstrap.servers' for the list of brokers. Overrides kafka-python's implementation of ``bootstrap``."""
        try:
            return bool(await self._first_success(self._bootstraps(), deadline))
        except kafka.errors.KafkaTimeoutError as error:
            servers = self.config["bootstrap_servers"]
            raise kafka.errors.KafkaTimeoutError(f"Unable to bootstrap from {servers}") from error.__cause__
        finally:
            for address in self.cluster.bootstrap_brokers():  # ends the attempts that are still running
                if (connection := self._conns.pop(address.node_id, None)) is not None:
                    connection.close()

    def _bootstraps(self) -> Iterator[Future]:
        addresses = self.cluster.bootstrap_brokers()
        random.shuffle(addresses)
        attempts: dict[Any, Future] = {}
        for address in itertools.cycle(addresses):
            self.maybe_raise_auth_failure(address.node_id)
            attempt = attempts.get(address.node_id)
            if attempt is not None and isinstance(attempt.exception, _FINAL):
                raise attempt.exception
            if attempt is None or attempt.is_done:
                attempts[address.node_id] = self.call_soon(self._bootstrap_from, address.node_id)
            yield attempts[address.node_id]

    async def _bootstrap_from(self, address: Any) -> bool:
        await self._net.sleep(self.connection_delay(address))
        try:
            connection = self.get_connection(
                address, pop_on_close=False, refresh_metadata_on_err=False, reset_backoff_on_connect=False
            )
            try:
                self.cluster.update_metadata(await self.answer(await connection, self.cluster.metadata_request()))
            finally:
                self._conns.pop(address, connection).close()
            if not self.cluster.brokers():
                raise kafka.errors.KafkaConnectionError("the broker knows of no brokers yet")
        except Exception:
            self.update_backoff(address)
            raise
        self.reset_backoff(address)
        self.cluster.start_refresh_loop()
        return True

    async def _first_success(self, attempts: Iterator[Future], deadline: float | None) -> Any:
        """Return the result of the first attempt that succeeds.

        Taking an attempt from the iterator starts it. The next attempt starts when the previous one has failed or its
        turn (``TURN_S``) is over. Attempts that have started keep running.

        Raises:
            Exception: all attempts failed. The exception is that of the last attempt.
            KafkaTimeoutError: no attempt succeeded in time. Its cause is the error of the last failed attempt.
        """
        under_way: list[Future] = []
        error: BaseException | None = None
        is_more = True
        while deadline is None or time.monotonic() < deadline:
            attempt = next(attempts, None) if is_more else None
            is_more = attempt is not None
            if is_more and attempt not in under_way:
                under_way.append(attempt)
            if not (under_way[-1].is_done if is_more else not under_way):
                left_s = TURN_S if deadline is None else deadline - time.monotonic()
                await self._ended(under_way, min(TURN_S, left_s))
            for each in under_way:
                if each.succeeded():
                    return each.value
                error = each.exception or error
            under_way = [each for each in under_way if not each.is_done]
            if not is_more and not under_way:
                raise error or kafka.errors.KafkaTimeoutError("no broker answered in time")
        raise kafka.errors.KafkaTimeoutError("no broker answered in time") from error

    async def _ended(self, futures: Iterable[Future], timeout_s: float) -> None:
        """Wait until one of ``futures`` has ended, or for ``timeout_s``."""
        ended = Future()

        def end(_: object) -> None:
            if not ended.is_done:
                ended.success(None)

        for future in futures:
            future.add_both(end)
        with contextlib.suppress(kafka.errors.KafkaTimeoutError):
            await self.wait_for(ended, max(0.0, timeout_s) * 1000)

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        """Connect and perform the TLS handshake, for which kafka-python itself has no timeout."""
        built = Future()

        async def build() -> None:
            try:
                built.success(await KafkaConnectionManager._build_transport(self, node, timeout_at))  # noqa: SLF001
            except Exception as error:  # noqa: BLE001  # raised below
                built.failure(error)

        building = self._net.call_soon(build)
        left_s = SETUP_TIMEOUT_MS / 1000 if timeout_at is None else timeout_at - time.monotonic()
        await self._ended([built], left_s)
        if not built.is_done:
            self._net.cancel(building)  # also closes its socket
            raise kafka.errors.KafkaConnectionError("the broker did not answer the TLS handshake in time")
        return _deliver_last_bytes(await built)


async def _reauthenticate(reauthenticate: Callable[[], Awaitable[None]]) -> None:
    """Reauthenticate a connection. A refusal ends only this connection, not the login: Kafka refuses another
    principal's token only on an open connection, and waiting requests may be sent on a new one."""
    try:
        await reauthenticate()
    except kafka.errors.SaslAuthenticationFailedError as error:
        logger.warning(
            "a broker refused to renew the login of a connection, which is replaced: %s. Does the principal change when"
            " the token is renewed? With 'sasl.token.provider' = 'aws', set 'sasl.token.role.arn'",
            error,
        )
        raise kafka.errors.KafkaConnectionError(f"the renewed login was refused: {error}") from error


def _deliver_last_bytes(transport: Any) -> Any:
    """Make kafka-python deliver data that arrives together with the end of the stream, instead of dropping it. A broker
    that refuses a login responds and closes the connection at once."""
    receive = transport._sock_recv  # noqa: SLF001

    def received() -> tuple[bytes, Exception | None]:
        data, error = receive()
        return (data, None) if data else (data, error)  # the next read finds the end again

    transport._sock_recv = received  # noqa: SLF001
    return transport


class _HidesCredentials(logging.Filter):
    """Drops log records that contain passwords. kafka-python logs each request at DEBUG, as a value and as bytes, and
    SASL requests contain the password."""

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args if isinstance(record.args, tuple) else (record.args,)
        return not any(
            isinstance(value, bytes | bytearray | SaslAuthenticateRequest | SaslBytesRequest) for value in arguments
        )


for _logs_requests in ("kafka.net.connection", "kafka.protocol.parser"):
    logging.getLogger(_logs_requests).addFilter(_HidesCredentials())
