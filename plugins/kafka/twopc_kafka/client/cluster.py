"""What a task asks of a cluster before it writes, over connections of this process that are kept over tasks.

The connections and the questions are ``Control``'s, but this ``Control`` is another one than the commit path's: brokers
answer the requests of a connection in order, and a commit must not wait behind records on their way. One thread drives
them, whatever the tasks do. It cannot be the task's own: the system's socket buffers take only part of a large request
at once, a new connection needs several round trips, and each answer has a deadline. None of that may wait until a slow
plan has its next batch.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import kafka.errors
from kafka.future import Future
from kafka.protocol.metadata import CoordinatorType

from twopc.errors import RoundAborted
from twopc_kafka.answers import (
    INVALID_TRANSACTION_TIMEOUT,
    TRANSACTIONAL_ID_NOT_FOUND,
    UNKNOWN_TOPIC,
    Meaning,
    NotCommitted,
    ProducerIdentity,
    TransactionState,
    lasting,
    meaning,
    timeout_refused,
)
from twopc_kafka.client import requests
from twopc_kafka.client.connection import OfProcess
from twopc_kafka.client.control import Control, key_of, state_of
from twopc_kafka.client.control import connect as control_of
from twopc_kafka.client.leaders import topic_id
from twopc_kafka.client.retry import NotSent, Patience, Unanswered, until_accepted
from twopc_kafka.client.tokens import require_token

CONTACT_TIMEOUT_MS = 5_000
"""How long a kept connection may take to show that it is alive, before it is made anew."""

KNOWN_ALIVE_S = 1.0
"""So long after an answer a connection need not show it again: a small batch is written in less."""

KNOWN_COORDINATOR_S = 10.0
"""So long after an id was begun at a broker, the next transaction of the id begins there, too. A broker that does not
coordinate it any more refuses."""

CHECK_INTERVAL_S = 1.0
"""How often a task that waits for the thread checks that it is alive."""

_NONE = meaning(0)

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that may be written to.

    Attributes:
        transactional_id: its name.
        producer: of this transaction alone.
        implicit: whether the brokers add partitions as they are written to; else the writer must.
    """

    transactional_id: str
    producer: ProducerIdentity
    implicit: bool


@dataclass(frozen=True)
class Found:
    """A topic that was looked up.

    Attributes:
        leaders: the broker that leads each partition, -1 for none now. Empty if the topic does not exist.
        id: Kafka's, which changes when the topic is deleted and created again; None where the brokers have no ids.
    """

    leaders: Sequence[int] = ()
    id: str | None = None


class Cluster:
    """The connections of this process to one cluster, and the thread that drives them.

    Coroutines run in that thread. All other methods may be called from any thread.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.servers = ", ".join(properties["bootstrap_servers"])
        self._properties = properties
        self._control = Control(properties, patience_ms=CONTACT_TIMEOUT_MS)
        self._net, self._manager = self._control.net, self._control.manager
        self._answered_at: dict[int, float] = {}
        self._under_way: dict[int, int] = defaultdict(int)
        self._contacts: dict[int, Future] = {}
        self._coordinators: dict[str, tuple[int, float]] = {}  # of ids that were begun there, and when

    @property
    def is_of_use(self) -> bool:
        """Whether the next task may use it. kafka-python does not retry a login that was refused."""
        return self._control.is_of_use

    def close(self) -> None:
        """Close the connections and end the thread. Tasks that wait for it fail."""
        self._control.close()

    def find_brokers(self, timeout_ms: int) -> None:
        """Ask 'bootstrap.servers' for the list of brokers, unless it is known.

        Raises:
            RoundAborted: no broker answered in time.
            OperatorRequired: the brokers refuse this principal.
        """
        if self._manager.bootstrapped:
            return
        try:
            self.run(self._manager.bootstrap_async, timeout_ms)
        except kafka.errors.KafkaError as error:
            self._raise_refusal(error)
            require_token(self._properties)
            raise RoundAborted(
                f"no broker answered at {self.servers} within {timeout_ms} ms: {type(error).__name__}: {error}."
                " Is the broker up, and is 'bootstrap.servers' right? 'message.timeout.ms' bounds the wait."
            ) from error

    def _raise_refusal(self, error: Exception) -> None:
        """Raise what kafka-python's error means, where the same would be raised again."""
        if (refusal := lasting(error)) is not None:
            by_login = kafka.errors.AuthorizationError, kafka.errors.SaslAuthenticationFailedError
            self._control.is_refused |= isinstance(error, by_login)
            raise refusal from error

    # The thread. ------------------------------------------------------------------------------------------------

    def run(self, asked: Callable[..., Coroutine[Any, Any, ResultT]], *args: object) -> ResultT:
        """Run a coroutine in the thread and return its result.

        Raises:
            RoundAborted: the thread has ended.
        """
        result, has_ended = self.start(asked, *args), threading.Event()
        result.add_both(lambda _: has_ended.set())
        while not has_ended.wait(CHECK_INTERVAL_S):
            self.check()
        if result.exception is not None:
            raise result.exception
        return result.value  # type: ignore[no-any-return]

    def check(self) -> None:
        """Check that the thread is alive. A task that waits for the thread must call this from time to time.

        Raises:
            RoundAborted: the thread has ended.
        """
        if not self._net.is_running:
            raise RoundAborted(
                f"the thread that drives the connections to {self.servers} has ended (the log has the reason), or this"
                " process was forked from the one that runs it. The batch can be run again."
            )

    def start(self, asked: Callable[..., Coroutine[Any, Any, Any]], *args: object) -> Future:
        """Start a coroutine in the thread, for another one to await.

        Raises:
            RoundAborted: the thread has ended.
        """
        self.check()
        return self._net.call_soon_with_future(asked, *args)

    def spawn(self, asked: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Start a coroutine in the thread and do not wait for it.

        Raises:
            RoundAborted: the thread has ended.
        """
        self.check()
        self._net.call_soon_threadsafe(lambda: asked(*args))

    async def sleep(self, delay_s: float) -> None:
        await self._net.sleep(delay_s)

    # Requests that must not be repeated, or show that a connection is alive. --------------------------------------

    async def send(self, node: int, request: Any, timeout_ms: int | None = None) -> Any:
        """Send ``request`` and return the broker's answer. Waits while the broker throttles this client.

        Brokers answer the requests of a connection in order, so ``timeout_ms`` applies only if no other request is
        under way. Otherwise the connection's own timeout does.

        Raises:
            NotSent: the request was not sent.
            Unanswered: the connection was lost, or the broker fell silent, after the request may have been sent.
            OperatorRequired: the broker refuses this principal.
            ConfigurationError: the broker does not support the request.
        """
        connection = await self._connected(node)
        while connection.connected and connection.paused:
            await self.sleep(0.01)
        if not connection.connected:
            raise NotSent(f"broker {node} is not connected")
        is_first = not self._under_way[node]
        self._under_way[node] += 1
        try:
            answer = await self._manager.answer(connection, request, timeout_ms if is_first else None)
        except kafka.errors.KafkaError as error:
            if isinstance(error, kafka.errors.IncompatibleBrokerVersion):  # nothing was sent
                self._raise_refusal(error)
            self._answered_at.pop(node, None)
            raise Unanswered(f"broker {node}: {type(error).__name__}: {error}") from error
        finally:
            self._under_way[node] -= 1
        self._answered_at[node] = time.monotonic()
        return answer

    async def _connected(self, node: int) -> Any:
        try:
            return await self._manager.get_connection(node)
        except (kafka.errors.KafkaError, OSError) as error:
            self._raise_refusal(error)
            raise NotSent(f"broker {node} can't be reached: {type(error).__name__}: {error}") from error

    async def reach(self, node: int) -> None:
        """``contact`` a broker, unless it answered a moment ago or is about to answer another request."""
        lately = time.monotonic() - self._answered_at.get(node, -math.inf) < KNOWN_ALIVE_S
        if node in self._contacts or not (lately or self._under_way[node]):
            await self.contact(node)

    async def contact(self, node: int) -> Any:
        """Make sure that ``node`` answers on its connection, which may have died unnoticed while it was idle.

        Callers at the same time share one request, so that none of them sends anything before it is answered.

        Raises:
            NotSent: the broker did not answer. Its connection is closed.
        """
        if node not in self._contacts:
            self._contacts[node] = self._net.call_soon_with_future(self._contact, node)
            self._contacts[node].add_both(lambda _: self._contacts.pop(node))
        return await self._contacts[node]

    async def _contact(self, node: int) -> Any:
        try:
            return await self.send(node, requests.features(), CONTACT_TIMEOUT_MS)
        except Unanswered as error:
            raise NotSent(str(error)) from error

    # Questions that any broker can answer. --------------------------------------------------------------------------

    async def find(self, topic: str, unknown_ms: int, timeout_ms: int, asked: Awaitable[Any] | None = None) -> Found:
        """Look a topic up. It counts as one that does not exist when it has been unknown for ``unknown_ms``, as brokers
        learn of a new topic in their own time. ``asked``: a call of ``leaders`` that is under way already.

        Raises:
            RoundAborted: no broker answered for ``timeout_ms``.
            ConfigurationError: the brokers refuse the name.
            OperatorRequired: they deny the topic.
        """
        deadline, first = time.monotonic() + unknown_ms / 1000, [] if asked is None else [asked]

        async def ask() -> tuple[Meaning, Found]:
            answer, found = await (first.pop() if first else self.leaders(topic))
            if answer is meaning(UNKNOWN_TOPIC) and time.monotonic() > deadline:
                return _NONE, Found()
            return answer, found

        return await until_accepted(Patience(f"to find topic {topic!r} at {self.servers}", timeout_ms), ask, self.sleep)

    async def leaders(self, topic: str) -> tuple[Meaning, Found]:
        """Look a topic up once. Asking creates none.

        Raises:
            NotSent: no broker answered.
        """
        [found] = (await self._answered(self._control.metadata([topic]))).topics
        partitions = sorted(found.partitions, key=lambda partition: partition.partition_index)
        return meaning(found.error_code), Found([partition.leader_id for partition in partitions], topic_id(found))

    async def coordinator(self, key: str, kind: CoordinatorType = CoordinatorType.TRANSACTION) -> tuple[int, int]:
        """An error code, and the broker that coordinates a transactional id, or a consumer group."""
        [(_, found)] = await self._answered(self._control.find([key], kind))
        return found.error_code, found.node_id

    async def _answered(self, asked: Awaitable[ResultT]) -> ResultT:
        try:
            return await asked
        except (kafka.errors.KafkaError, OSError) as error:
            self._raise_refusal(error)
            if isinstance(error, kafka.errors.NodeNotReadyError):  # all known ones failed lately: they may have moved
                self._manager.bootstrap_async(CONTACT_TIMEOUT_MS)
            raise NotSent(f"no broker answered: {type(error).__name__}: {error}") from error

    # A transaction. -------------------------------------------------------------------------------------------------

    async def begin(
        self, transactional_id: str, was_used: bool, transaction_timeout_ms: int | None, timeout_ms: int
    ) -> OpenTransaction:
        """Begin a transaction with a producer epoch of its own. Whatever was open under the id is rolled back. Its own
        timeout is None where the brokers grant it to have none.

        Upholds: nothing rolls back what is decided. So an answer that was lost is not asked for again: the broker may
        still have that request before it, and would roll back what was begun by then, decided or not.

        Raises:
            NotCommitted: the id ``was_used`` before, in a transaction that was not.
            RoundAborted: the brokers could not be reached for ``timeout_ms``, refuse for now, or fell silent.
            ConfigurationError: they refuse the transaction's timeout.
            OperatorRequired: they deny the id.
        """

        async def begin() -> tuple[Meaning, OpenTransaction | None]:
            return await self._begin(transactional_id, was_used, transaction_timeout_ms)

        patience = Patience(f"to begin transaction {transactional_id} at {self.servers}", timeout_ms)
        transaction = await until_accepted(patience, begin, self.sleep)
        assert transaction is not None
        return transaction

    async def _begin(
        self, transactional_id: str, was_used: bool, timeout_ms: int | None
    ) -> tuple[Meaning, OpenTransaction | None]:
        node, begun_s = self._coordinators.pop(transactional_id, (-1, -math.inf))
        if time.monotonic() - begun_s > KNOWN_COORDINATOR_S:
            code, node = await self.coordinator(transactional_id)
            if code:
                return meaning(code), None
        contact = self._net.call_soon_with_future(self.contact, node)
        last = self._net.call_soon_with_future(self._last_of, transactional_id, node) if was_used else None
        features = (await contact).finalized_features
        level = {feature.name: feature.max_version_level for feature in features}.get("transaction.version", 0)
        code, before = await last if last else (0, None)
        if code:
            return meaning(code), None
        response = await self.send(node, requests.init_producer_id(transactional_id, timeout_ms))
        if response.error_code == INVALID_TRANSACTION_TIMEOUT and timeout_ms is not None:
            raise timeout_refused(timeout_ms)
        if response.error_code:
            return meaning(response.error_code), None
        producer = ProducerIdentity(response.producer_id, response.producer_epoch)
        if before and not before.precedes(producer.producer_id, producer.producer_epoch):
            raise NotCommitted(transactional_id, f"{before.state}, and another since")
        self._coordinators[transactional_id] = node, time.monotonic()
        return _NONE, OpenTransaction(transactional_id, producer, level >= requests.IMPLICIT_PARTITIONS)

    async def _last_of(self, transactional_id: str, node: int) -> tuple[int, TransactionState | None]:
        """The last transaction of an id, None if its coordinator knows of none; and an error code, 0 for none.

        Raises:
            NotCommitted: it was not. The answer may be out of date, from a broker that coordinated the id before.
            NotSent: there was no answer.
        """
        try:
            response = await self.send(node, requests.describe_transactions([transactional_id]), CONTACT_TIMEOUT_MS)
        except Unanswered as error:  # nothing can have come of it
            raise NotSent(str(error)) from error
        [found] = response.transaction_states
        if found.error_code:
            return (0 if found.error_code == TRANSACTIONAL_ID_NOT_FOUND else found.error_code), None
        state = state_of(found)
        if not state.may_go_on:
            raise NotCommitted(transactional_id, state.state)
        return 0, state


def roll_back(properties: Mapping[str, Any], transaction: OpenTransaction) -> None:
    """Roll back this transaction and no later one of its id, as no later one has its epoch. Raises like ``Control``."""
    control, producer = control_of(properties), transaction.producer
    control.end(
        transaction.transactional_id,
        producer.producer_id,
        producer.producer_epoch,
        commit=False,
        version=control.end_txn_version,
    )


_clusters: OfProcess[Cluster] = OfProcess()


def connect(properties: Mapping[str, Any], timeout_ms: int) -> Cluster:
    """The connections of this process to the cluster that ``properties`` (kafka-python's) name.

    Raises:
        RoundAborted: no broker answered in time.
        OperatorRequired: the brokers refuse this principal.
    """
    cluster = _clusters.get(key_of(properties), lambda: Cluster(properties))
    cluster.find_brokers(timeout_ms)
    return cluster
