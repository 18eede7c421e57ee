"""The connections to a cluster, kept over tasks, and what a writer asks of it before it sends.

They are kafka-python's, like those of ``control``: kafka-python connects, logs in and correlates answers. One thread
per process drives them, whatever the tasks do. It cannot be the task's own: the system's socket buffers take only part
of a large request at once, a new connection needs several round trips, and each answer has a deadline. None of that
may wait until a slow plan has its next batch.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import kafka.errors
from kafka.future import Future
from kafka.protocol.admin.transactions import DescribeTransactionsRequest
from kafka.protocol.metadata import ApiVersionsRequest, CoordinatorType, FindCoordinatorRequest, MetadataRequest

from twopc.errors import ConfigurationError, OperatorRequired, RoundAborted
from twopc_kafka.answers import TransactionState
from twopc_kafka.client.connection import Loop, OfProcess, close, connections
from twopc_kafka.client.control import connect as control_of
from twopc_kafka.client.control import denied, init_producer_id
from twopc_kafka.client.error_codes import Answer, Meaning, failure, meaning
from twopc_kafka.client.leaders import topic_id
from twopc_kafka.client.tokens import require_token
from twopc_kafka.writers.librdkafka import NotCommitted, ProducerIdentity, timeout_refused

CONTACT_TIMEOUT_MS = 5_000
"""How long a kept connection may take to show that it is alive, before it is made anew."""

KNOWN_ALIVE_S = 1.0
"""So long after an answer a connection need not show it again: a small batch is written in less."""

KNOWN_COORDINATOR_S = 10.0
"""So long after an id was begun at a broker, the next transaction of the id begins there, too. A broker that does not
coordinate it any more says so."""

CHECK_INTERVAL_S = 1.0
"""How often a task that waits for the thread checks that it is alive."""

_IMPLICIT_PARTITIONS = 2  # the level of transaction.version from which a Produce adds its partitions (KIP-890)
_ONE_COORDINATOR = 3  # the last version of FindCoordinator for one key
_INVALID_TRANSACTION_TIMEOUT = 50
_TRANSACTIONAL_ID_NOT_FOUND = 105

ResultT = TypeVar("ResultT")


class NotSent(Exception):
    """A request did not leave: nothing has come of it."""


class Unanswered(Exception):
    """A request may have left, and its answer did not come."""


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


class Patience:
    """How long to go on trying, and how to say that it was in vain."""

    def __init__(self, what: str, timeout_ms: int) -> None:
        self._what = what
        self._timeout_ms = timeout_ms
        self._deadline = time.monotonic() + timeout_ms / 1000
        self._attempts = 0

    @property
    def is_over(self) -> bool:
        """Whether the next pause would raise."""
        return time.monotonic() > self._deadline

    def pause_s(self, last: str) -> float:
        """How long to wait before the next attempt, when the ``last`` one failed like that.

        Raises:
            RoundAborted: time is up.
        """
        if self.is_over:
            raise RoundAborted(f"{self._what} failed for {self._timeout_ms} ms: {last}")
        self._attempts += 1
        return pause_s(self._attempts)


def pause_s(attempts: int) -> float:
    """How long to wait after so many attempts: from what an ending transaction takes to what an election does."""
    return float(min(1.0, 0.01 * 2**attempts))


class Cluster:
    """The connections of this process to one cluster, and the thread that drives them.

    Coroutines run in that thread. All other methods may be called from any thread.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.servers = ", ".join(properties["bootstrap_servers"])
        self._properties = properties
        self._net = Loop(**properties)
        self._manager = connections(self._net, properties)
        self._net.start()
        self._answered_at: dict[int, float] = {}
        self._under_way: dict[int, int] = defaultdict(int)
        self._contacts: dict[int, Future] = {}
        self._coordinators: dict[str, tuple[int, float]] = {}  # of ids that were begun there, and when
        self._is_refused = False

    @property
    def is_of_use(self) -> bool:
        """Whether the next task may use it. kafka-python does not retry a login that was refused."""
        return self._net.is_running and not self._is_refused

    def close(self) -> None:
        """Close the connections and end the thread. Tasks that wait for it fail."""
        close(self._net, self._manager)

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
        except (kafka.errors.AuthorizationError, kafka.errors.SaslAuthenticationFailedError) as error:
            raise self._refused(error) from error
        except kafka.errors.KafkaError as error:
            require_token(self._properties)
            raise RoundAborted(
                f"no broker answered at {self.servers} within {timeout_ms} ms: {type(error).__name__}: {error}."
                " Is the broker up, and is 'bootstrap.servers' right? 'message.timeout.ms' bounds the wait."
            ) from error

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
        except kafka.errors.IncompatibleBrokerVersion as error:
            raise _too_old(error) from error
        except kafka.errors.KafkaError as error:
            self._answered_at.pop(node, None)
            raise Unanswered(f"broker {node}: {type(error).__name__}: {error}") from error
        finally:
            self._under_way[node] -= 1
        self._answered_at[node] = time.monotonic()
        return answer

    async def _connected(self, node: int) -> Any:
        try:
            return await self._manager.get_connection(node)
        except (kafka.errors.AuthorizationError, kafka.errors.SaslAuthenticationFailedError) as error:
            raise self._refused(error) from error
        except (kafka.errors.KafkaError, OSError) as error:
            raise NotSent(f"broker {node} can't be reached: {type(error).__name__}: {error}") from error

    def _refused(self, error: Exception) -> OperatorRequired:
        self._is_refused = True
        return denied(str(error))

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
        request = ApiVersionsRequest(client_software_name="twopc-kafka", client_software_version="1", min_version=3)
        try:
            return await self.send(node, request, CONTACT_TIMEOUT_MS)
        except Unanswered as error:
            raise NotSent(str(error)) from error

    async def leaders(self, topic: str) -> tuple[Meaning, list[int], str | None]:
        """The broker that leads each partition of ``topic`` (-1: none now), and the id of it. Asking creates no topic.

        Raises:
            NotSent: nobody answered.
        """
        wanted = [MetadataRequest.MetadataRequestTopic(name=topic)]
        response = await self._ask_any(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        self._manager.cluster.update_metadata(response)  # it may name brokers that are new
        [found] = response.topics
        partitions = sorted(found.partitions, key=lambda partition: partition.partition_index)
        return meaning(found.error_code), [partition.leader_id for partition in partitions], topic_id(found)

    async def _ask_any(self, request: Any) -> Any:
        try:
            return await self._manager.send(request, request_timeout_ms=CONTACT_TIMEOUT_MS)
        except (kafka.errors.AuthorizationError, kafka.errors.SaslAuthenticationFailedError) as error:
            raise self._refused(error) from error
        except kafka.errors.IncompatibleBrokerVersion as error:
            raise _too_old(error) from error
        except kafka.errors.NodeNotReadyError as error:  # all known ones failed lately: they may have moved
            self._manager.bootstrap_async(CONTACT_TIMEOUT_MS)
            raise NotSent(str(error)) from error
        except (kafka.errors.KafkaError, OSError) as error:
            raise NotSent(f"no broker answered: {type(error).__name__}: {error}") from error

    async def begin(
        self, transactional_id: str, was_used: bool, transaction_timeout_ms: int | None, timeout_ms: int
    ) -> OpenTransaction:
        """Begin a transaction with a producer epoch of its own. Whatever was open under the id is rolled back. Its own
        time-out is None where the brokers grant it to have none.

        What was refused is repeated; an answer that was lost is not. The broker may still have that request before it,
        and whenever it gets to it, it would roll back what was begun by then, decided or not.

        Raises:
            NotCommitted: the id ``was_used`` before, in a transaction that was not.
            RoundAborted: the brokers could not be reached for ``timeout_ms``, refuse for now, or fell silent.
            ConfigurationError: they refuse the transaction's time-out.
            OperatorRequired: they deny the id.
        """
        what = f"to begin transaction {transactional_id} at {self.servers}"
        patience = Patience(what, timeout_ms)
        while True:
            try:
                answer, transaction = await self._begin(transactional_id, was_used, transaction_timeout_ms)
            except Unanswered as error:
                raise RoundAborted(f"{what} got no answer: {error}. The batch can be run again.") from error
            except NotSent as error:
                last = f"{error}. Is the broker up? 'message.timeout.ms' bounds the wait."
            else:
                if transaction is not None:
                    return transaction
                if answer is meaning(_INVALID_TRANSACTION_TIMEOUT) and transaction_timeout_ms is not None:
                    raise timeout_refused(transaction_timeout_ms)
                if answer.answer is not Answer.REPEAT:
                    raise failure(answer, f"{what} was refused")
                last = f"{answer.name}. {answer.advice}"
            await self.sleep(patience.pause_s(last))

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
        response = await self.send(node, init_producer_id(transactional_id, timeout_ms))
        if response.error_code:
            return meaning(response.error_code), None
        producer = ProducerIdentity(response.producer_id, response.producer_epoch)
        if before and not before.precedes(producer.producer_id, producer.producer_epoch):
            raise NotCommitted(transactional_id, f"{before.state}, and another since")
        self._coordinators[transactional_id] = node, time.monotonic()
        return meaning(0), OpenTransaction(transactional_id, producer, level >= _IMPLICIT_PARTITIONS)

    async def _last_of(self, transactional_id: str, node: int) -> tuple[int, TransactionState | None]:
        """The last transaction of an id, None if its coordinator knows of none; and an error code, 0 for none.

        Raises:
            NotCommitted: it was not. A broker may tell what was the case when it coordinated the id.
            NotSent: there was no answer.
        """
        try:
            request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
            response = await self.send(node, request, CONTACT_TIMEOUT_MS)
        except Unanswered as error:  # nothing can have come of it
            raise NotSent(str(error)) from error
        [found] = response.transaction_states
        if found.error_code:
            return (0 if found.error_code == _TRANSACTIONAL_ID_NOT_FOUND else found.error_code), None
        state = TransactionState(found.transaction_state, found.producer_id, found.producer_epoch)
        if not state.may_go_on:
            raise NotCommitted(transactional_id, state.state)
        return 0, state

    async def coordinator(self, key: str, kind: CoordinatorType = CoordinatorType.TRANSACTION) -> tuple[int, int]:
        """An error code, and the broker that coordinates a transactional id, or a consumer group."""
        request = FindCoordinatorRequest(key_type=kind.value, key=key, max_version=_ONE_COORDINATOR)
        response = await self._ask_any(request)
        return response.error_code, response.node_id


def _too_old(error: Exception) -> ConfigurationError:
    return ConfigurationError(f"the brokers are too old, Kafka 3.0 or later is needed: {error}")


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
    key = tuple(sorted((name, str(value)) for name, value in properties.items()))
    cluster = _clusters.get(key, lambda: Cluster(properties))
    cluster.find_brokers(timeout_ms)
    return cluster
