"""The requests that a task sends to a cluster before it writes, over connections that the process reuses across tasks.

The connections and most of the requests are those of a ``Control``, separate from the ``Control`` of the commit path:
brokers answer the requests of a connection in order, and a commit must not wait behind records in flight.

One thread drives the connections, whatever the tasks do. The task's own thread could not: the socket buffers take only
part of a large request at a time, a new connection needs several round trips, and each response has a deadline. None of
these may wait for a slow plan to produce its next batch.
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
from twopc_kafka.client.control import Control, key_of, state_of
from twopc_kafka.client.kafka_python import OfProcess
from twopc_kafka.client.leaders import topic_id
from twopc_kafka.client.retry import NotSent, Unanswered, until_accepted
from twopc_kafka.client.tokens import require_token

CONTACT_TIMEOUT_MS = 5_000
"""How long a broker may take to answer on a cached connection before the connection is closed and replaced."""

KNOWN_ALIVE_S = 1.0
"""How long after a response a connection counts as alive without another check. Writing a small batch takes less."""

KNOWN_COORDINATOR_S = 10.0
"""How long the coordinator of a transactional id is remembered after a transaction of the id has begun there. A broker
that no longer coordinates the id rejects the request."""

CHECK_INTERVAL_S = 1.0
"""How often a task that waits for the thread checks that the thread is alive."""

_NONE = meaning(0)

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class OpenTransaction:
    """An open transaction, ready for writes.

    Attributes:
        transactional_id: the transaction's name.
        producer: the producer id and epoch, which no other transaction has.
        implicit: whether a Produce request adds its partitions to the transaction (KIP-890). If not, the writer adds
            them first.
    """

    transactional_id: str
    producer: ProducerIdentity
    implicit: bool


@dataclass(frozen=True)
class Found:
    """The result of a topic lookup.

    Attributes:
        leaders: the broker that leads each partition, -1 while there is no leader. Empty if the topic does not exist.
        id: Kafka's id of the topic, which changes when the topic is deleted and created again. None if the brokers are
            too old to have topic ids.
    """

    leaders: Sequence[int] = ()
    id: str | None = None


@dataclass(frozen=True)
class TopicRules:
    """What a topic accepts.

    Attributes:
        needs_keys: whether each record needs a key, because the topic is compacted.
        max_bytes: the largest size of a batch. None if it is not known.
        before_ms, after_ms: how far a timestamp may be behind and ahead of the broker's clock. None for no limit.
    """

    needs_keys: bool = False
    max_bytes: int | None = None
    before_ms: int | None = None
    after_ms: int | None = None


_RULES = (
    "cleanup.policy",
    "max.message.bytes",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
)


def _rules(settings: Mapping[str, str]) -> TopicRules:
    policy, max_bytes, timestamps, before_ms, after_ms = (settings.get(name, "") for name in _RULES)
    is_checked = timestamps != "LogAppendTime"  # LogAppendTime replaces the producer's timestamps
    return TopicRules(
        "compact" in policy,
        int(max_bytes) if max_bytes else None,
        int(before_ms) if before_ms and is_checked else None,
        int(after_ms) if after_ms and is_checked else None,
    )


class Lookups:
    """Looks up the topics that one transaction writes to.

    Brokers learn of a new topic with a delay, so the lookup of the first missing topic waits. Other missing topics have
    had the same time to appear, so their lookups do not wait: that could hold up a task for hours.

    Args:
        cluster: the cluster with the topics.
        unknown_ms, timeout_ms: see ``Cluster.find``.
    """

    def __init__(self, cluster: Cluster, unknown_ms: int, timeout_ms: int) -> None:
        self._cluster, self._unknown_ms, self._timeout_ms = cluster, unknown_ms, timeout_ms
        self._missing: set[str] = set()

    def find(self, topic: str, asked: Awaitable[Any] | None = None) -> Found:
        """Look up a topic. Like ``Cluster.find``, but a topic that did not exist is not looked up again."""
        if topic in self._missing:
            return Found()
        unknown_ms = 0 if self._missing else self._unknown_ms
        found: Found = self._cluster.run(self._cluster.find, topic, unknown_ms, self._timeout_ms, asked)
        if not found.leaders:
            self._missing.add(topic)
        return found


class Cluster:
    """This process's connections to one cluster, and the thread that drives them.

    The coroutines run in that thread. All other methods may be called from any thread.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.servers = ", ".join(properties["bootstrap_servers"])
        self._properties = properties
        self._control = Control(properties, patience_ms=CONTACT_TIMEOUT_MS)
        self._net, self._manager = self._control.net, self._control.manager
        self._answered_at: dict[int, float] = {}
        self._under_way: dict[int, int] = defaultdict(int)
        self._contacts: dict[int, Future] = {}
        self._coordinators: dict[str, tuple[int, float]] = {}  # id → broker, and the time its last transaction began

    @property
    def is_of_use(self) -> bool:
        """Whether the next task may use these connections. It may not after a refused login, which kafka-python does
        not retry."""
        return self._control.is_of_use

    def close(self) -> None:
        """Close the connections and end the thread. Tasks that wait for the thread fail."""
        self._control.close()

    def find_brokers(self, timeout_ms: int) -> None:
        """Ask 'bootstrap.servers' for the list of brokers, unless the list is known already.

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
        """Raise this project's error if kafka-python's error would recur on every attempt."""
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
                f"the thread that drives the connections to {self.servers} has ended (see the log for the reason), or"
                " this process was forked from the one that runs the thread. The batch can be run again."
            )

    def start(self, asked: Callable[..., Coroutine[Any, Any, Any]], *args: object) -> Future:
        """Start a coroutine in the thread. Return a future, which another coroutine may await.

        Raises:
            RoundAborted: the thread has ended.
        """
        self.check()
        return self._net.call_soon_with_future(asked, *args)

    def spawn(self, asked: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Start a coroutine in the thread without waiting for its result.

        Raises:
            RoundAborted: the thread has ended.
        """
        self.check()
        self._net.call_soon_threadsafe(lambda: asked(*args))

    async def sleep(self, delay_s: float) -> None:
        await self._net.sleep(delay_s)

    # Requests that must not be repeated, or that check a connection. -----------------------------------------------

    async def send(self, node: int, request: Any, timeout_ms: int | None = None) -> Any:
        """Send ``request`` and return the broker's response. Wait while the broker throttles this client.

        Brokers answer the requests of a connection in order, so ``timeout_ms`` applies only if no other request is in
        flight. Otherwise the connection's own timeout applies.

        Raises:
            NotSent: the request was not sent.
            Unanswered: the request may have been sent, and the connection was lost or the broker fell silent.
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
            if isinstance(error, kafka.errors.UnknownBrokerIdError):  # it was down when the brokers were last listed
                await self._answer_of(self._control.metadata())
            raise NotSent(f"broker {node} can't be reached: {type(error).__name__}: {error}") from error

    async def reach(self, node: int) -> None:
        """Check with ``contact`` that a broker answers, unless it answered a moment ago or has another request to
        answer."""
        lately = time.monotonic() - self._answered_at.get(node, -math.inf) < KNOWN_ALIVE_S
        if node in self._contacts or not (lately or self._under_way[node]):
            await self.contact(node)

    async def contact(self, node: int) -> Any:
        """Check that ``node`` answers on its connection, which may have died unnoticed while it was idle.

        Concurrent callers share one request, and none of them proceeds before the response to it.

        Returns:
            The broker's response to ApiVersions.

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
        """Look up a topic. Brokers learn of a new topic with a delay, so a topic counts as nonexistent only after it
        has been unknown for ``unknown_ms``.

        Args:
            topic: its name.
            unknown_ms: how long the topic may be unknown.
            timeout_ms: how long to repeat a lookup that fails.
            asked: a call of ``leaders`` that has started already, used as the first lookup.

        Raises:
            RoundAborted: no broker answered for ``timeout_ms``.
            ConfigurationError: the brokers reject the name.
            OperatorRequired: the brokers deny this principal the topic.
        """
        deadline, first = time.monotonic() + unknown_ms / 1000, [] if asked is None else [asked]

        async def ask() -> tuple[Meaning, Found]:
            answer, found = await (first.pop() if first else self.leaders(topic))
            if answer is meaning(UNKNOWN_TOPIC) and time.monotonic() > deadline:
                return _NONE, Found()
            return answer, found

        return await until_accepted(f"looking up topic {topic!r} at {self.servers}", timeout_ms, ask, self.sleep)

    async def leaders(self, topic: str) -> tuple[Meaning, Found]:
        """Look up a topic once. The lookup does not create the topic.

        Raises:
            NotSent: no broker answered.
        """
        [found] = (await self._answer_of(self._control.metadata([topic]))).topics
        partitions = sorted(found.partitions, key=lambda partition: partition.partition_index)
        return meaning(found.error_code), Found([partition.leader_id for partition in partitions], topic_id(found))

    async def rules(self, topic: str, timeout_ms: int) -> TopicRules:
        """Return what a topic accepts, as far as the brokers let this principal know. A topic that does not exist has
        no rules: the write reports that it is missing.

        Raises:
            RoundAborted: no broker answered for ``timeout_ms``.
        """

        async def ask() -> tuple[Meaning, TopicRules]:
            request = requests.configuration(requests.TOPIC, topic, *_RULES)
            [result] = (await self._answer_of(self._control.send(request))).results
            is_denied = issubclass(kafka.errors.for_code(result.error_code), kafka.errors.AuthorizationError)
            if is_denied or result.error_code == UNKNOWN_TOPIC:
                return _NONE, TopicRules()
            return meaning(result.error_code), _rules({each.name: each.value or "" for each in result.configs})

        what = f"looking up the configuration of topic {topic!r} at {self.servers}"
        return await until_accepted(what, timeout_ms, ask, self.sleep)

    async def coordinator(self, key: str, kind: CoordinatorType = CoordinatorType.TRANSACTION) -> tuple[int, int]:
        """Return an error code, and the broker that coordinates a transactional id or a consumer group."""
        [(_, found)] = await self._answer_of(self._control.find([key], kind))
        return found.error_code, found.node_id

    async def _answer_of(self, asked: Awaitable[ResultT]) -> ResultT:
        try:
            return await asked
        except (kafka.errors.KafkaError, OSError) as error:
            self._raise_refusal(error)
            if isinstance(error, kafka.errors.NodeNotReadyError):  # all known brokers failed lately, maybe moved
                self._manager.bootstrap_async(CONTACT_TIMEOUT_MS)
            raise NotSent(f"no broker answered: {type(error).__name__}: {error}") from error

    # A transaction. -------------------------------------------------------------------------------------------------

    async def begin(
        self, transactional_id: str, was_used: bool, transaction_timeout_ms: int | None, timeout_ms: int
    ) -> OpenTransaction:
        """Begin a transaction with a producer epoch of its own. Kafka rolls back any open transaction of the same id.

        Upholds: nothing rolls back a decided transaction. A request whose response was lost is therefore not repeated.
        The broker may process the lost request late, and would then roll back the transaction that was begun meanwhile,
        even if that transaction has been decided.

        Args:
            transactional_id: the id of the transaction.
            was_used: whether the id may have had a transaction before.
            transaction_timeout_ms: the transaction's timeout, or None for none, which the brokers must have granted.
            timeout_ms: how long to repeat a request that fails.

        Raises:
            NotCommitted: the id's last transaction is not known to be committed.
            RoundAborted: the brokers were unreachable or rejected the request for ``timeout_ms``, or fell silent.
            ConfigurationError: the brokers reject the transaction's timeout.
            OperatorRequired: the brokers deny this principal the id.
        """

        async def begin() -> tuple[Meaning, OpenTransaction | None]:
            return await self._begin(transactional_id, was_used, transaction_timeout_ms)

        what = f"beginning transaction {transactional_id} at {self.servers}"
        transaction = await until_accepted(what, timeout_ms, begin, self.sleep)
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
            raise NotCommitted(transactional_id, f"{before.state}, followed by another transaction")
        self._coordinators[transactional_id] = node, time.monotonic()
        return _NONE, OpenTransaction(transactional_id, producer, level >= requests.IMPLICIT_PARTITIONS)

    async def _last_of(self, transactional_id: str, node: int) -> tuple[int, TransactionState | None]:
        """Return an error code (0 for none) and the last transaction of an id (None if its coordinator knows of none).

        Raises:
            NotCommitted: the last transaction was not committed. The response may be stale, from a former coordinator.
            NotSent: there was no response.
        """
        try:
            response = await self.send(node, requests.describe_transactions([transactional_id]), CONTACT_TIMEOUT_MS)
        except Unanswered as error:  # describing has no effect, so it may be repeated
            raise NotSent(str(error)) from error
        [found] = response.transaction_states
        if found.error_code:
            return (0 if found.error_code == TRANSACTIONAL_ID_NOT_FOUND else found.error_code), None
        state = state_of(found)
        if not state.may_go_on:
            raise NotCommitted(transactional_id, state.state)
        return 0, state


_clusters: OfProcess[Cluster] = OfProcess()


def cluster_of(properties: Mapping[str, Any], timeout_ms: int) -> Cluster:
    """Return this process's connections to the cluster that ``properties`` (kafka-python's) name.

    Raises:
        RoundAborted: no broker answered in time.
        OperatorRequired: the brokers refuse this principal.
    """
    cluster = _clusters.get(key_of(properties), lambda: Cluster(properties))
    cluster.find_brokers(timeout_ms)
    return cluster
