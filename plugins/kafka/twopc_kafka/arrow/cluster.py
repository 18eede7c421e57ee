"""The connections to a cluster, kept over tasks, and what a writer asks of it before it sends.

They are kafka-python's, as those of ``control`` are: it connects, logs in and correlates answers. There is no thread:
the task's own drives them between two batches, and when it waits. A second one would send no sooner, as the system's
socket buffers take what is written at once; but both would wait for each other's turn of the interpreter.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import kafka.errors
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import ApiVersionsRequest, CoordinatorType, FindCoordinatorRequest, MetadataRequest

from twopc.errors import ConfigurationError, RoundAborted, TwoPhaseCommitError
from twopc_kafka.arrow.answers import Answer, Meaning, meaning
from twopc_kafka.control import connect as control_of
from twopc_kafka.control import connections, denied, init_producer_id
from twopc_kafka.tokens import require_token
from twopc_kafka.writer import ProducerIdentity, timeout_refused

CONTACT_TIMEOUT_MS = 5_000
"""How long a kept connection may take to show that it is alive, before it is made anew."""

KNOWN_ALIVE_S = 1.0
"""So long after an answer a connection need not show it again: a small batch is written in less."""

_IMPLICIT_PARTITIONS = 2  # the level of transaction.version from which a Produce adds its partitions (KIP-890)
_ONE_COORDINATOR = 3  # the last version of FindCoordinator for one key
_INVALID_TRANSACTION_TIMEOUT = 50

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

    def pause_s(self, last: str) -> float:
        """How long to wait before the next attempt, when the ``last`` one failed like that.

        Raises:
            RoundAborted: time is up.
        """
        if time.monotonic() > self._deadline:
            raise RoundAborted(f"{self._what} failed for {self._timeout_ms} ms: {last}")
        self._attempts += 1
        return pause_s(self._attempts)


def pause_s(attempts: int) -> float:
    """How long to wait after so many attempts: from what an ending transaction takes to what an election does."""
    return float(min(1.0, 0.01 * 2**attempts))


class Cluster:
    """One connection set, of one thread."""

    def __init__(self, properties: Mapping[str, Any], timeout_ms: int) -> None:
        self.servers = ", ".join(properties["bootstrap_servers"])
        self._net = NetworkSelector(**properties)
        self._manager = connections(self._net, properties)
        self._answered_at: dict[int, float] = {}
        try:
            self._manager.bootstrap(timeout_ms)
        except kafka.errors.KafkaError as error:
            self.close()
            require_token(properties)
            raise RoundAborted(
                f"no broker answered at {self.servers} within {timeout_ms} ms: {type(error).__name__}: {error}."
                " Is the broker up, and is 'bootstrap.servers' right? 'message.timeout.ms' bounds the wait."
            ) from error

    def close(self) -> None:
        """Close the connections."""
        self._manager.close()
        self._net.close()

    def run(self, asked: Callable[..., Coroutine[Any, Any, ResultT]], *args: object) -> ResultT:
        """Run a coroutine, and whatever else is going on, until it has its result."""
        return self._net.run(asked, *args)  # type: ignore[no-any-return]

    def progress(self) -> None:
        """Take in what has arrived and send what can be sent, without waiting for either."""
        for _ in range(2):  # what was just started has its bytes written in the second turn
            self._net.poll(timeout_ms=0)
            self._net.drain()

    def spawn(self, asked: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Start a coroutine and don't wait for it."""
        self._net.call_soon(lambda: asked(*args))

    async def sleep(self, delay_s: float) -> None:
        await self._net.sleep(delay_s)

    async def send(self, node: int, request: Any, timeout_ms: int | None = None) -> Any:
        """The broker's answer to ``request``. Waits while the broker throttles this client.

        Raises:
            NotSent: nothing has left.
            Unanswered: the connection was lost, or time was up, after it may have left.
            OperatorRequired: the broker does not let this principal in.
            ConfigurationError: the broker does not know such requests.
        """
        connection = await self._connected(node)
        while connection.connected and connection.paused:
            await self.sleep(0.01)
        if not connection.connected:
            raise NotSent(f"broker {node} is not connected")
        try:
            answer = await connection.send_request(request, request_timeout_ms=timeout_ms)
        except kafka.errors.IncompatibleBrokerVersion as error:
            raise ConfigurationError(f"the brokers are too old, Kafka 3.0 or later is needed: {error}") from error
        except kafka.errors.KafkaError as error:
            self._answered_at.pop(node, None)
            raise Unanswered(f"broker {node}: {type(error).__name__}: {error}") from error
        self._answered_at[node] = time.monotonic()
        return answer

    async def _connected(self, node: int) -> Any:
        try:
            return await self._manager.get_connection(node)
        except (kafka.errors.AuthorizationError, kafka.errors.SaslAuthenticationFailedError) as error:
            raise denied(str(error)) from error
        except (kafka.errors.KafkaError, OSError) as error:
            raise NotSent(f"broker {node} can't be reached: {type(error).__name__}: {error}") from error

    async def reach(self, node: int) -> None:
        """``contact`` a broker that has not answered lately."""
        if time.monotonic() - self._answered_at.get(node, -math.inf) > KNOWN_ALIVE_S:
            await self.contact(node)

    async def contact(self, node: int) -> Any:
        """Make sure that ``node`` answers on its connection, which may have died unseen since the last task.

        Raises:
            NotSent: it does not, and the connection is closed.
        """
        request = ApiVersionsRequest(client_software_name="twopc-kafka", client_software_version="1", min_version=3)
        try:
            return await self.send(node, request, CONTACT_TIMEOUT_MS)
        except Unanswered as error:
            raise NotSent(str(error)) from error

    async def leaders(self, topic: str) -> tuple[Meaning, list[int]]:
        """The broker that leads each partition of ``topic`` (-1: none now). Asking creates no topic.

        Raises:
            NotSent: nobody answered.
        """
        wanted = [MetadataRequest.MetadataRequestTopic(name=topic)]
        response = await self._ask_any(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        self._manager.cluster.update_metadata(response)  # it may name brokers that are new
        [found] = response.topics
        partitions = sorted(found.partitions, key=lambda partition: partition.partition_index)
        return meaning(found.error_code), [partition.leader_id for partition in partitions]

    async def _ask_any(self, request: Any) -> Any:
        node = self._manager.least_loaded_node()
        if node is None:  # all known ones failed lately: they may have moved
            self._manager.bootstrap_async(CONTACT_TIMEOUT_MS)
            raise NotSent("no broker that is known can be reached")
        try:
            return await self.send(node, request, CONTACT_TIMEOUT_MS)
        except Unanswered as error:
            raise NotSent(str(error)) from error

    async def begin(
        self, transactional_id: str, transaction_timeout_ms: int | None, timeout_ms: int
    ) -> OpenTransaction:
        """Begin a transaction with a producer epoch of its own. Whatever was open under the id is rolled back. Its own
        time-out is None where the brokers grant it to have none.

        What was refused is repeated; an answer that was lost is not. The broker may still have that request before it,
        and whenever it gets to it, it would roll back what was begun by then, decided or not.

        Raises:
            RoundAborted: the brokers could not be reached for ``timeout_ms``, refuse for now, or fell silent.
            ConfigurationError: they refuse the transaction's time-out.
            OperatorRequired: they deny the id.
        """
        what = f"to begin transaction {transactional_id} at {self.servers}"
        patience = Patience(what, timeout_ms)
        while True:
            try:
                answer, transaction = await self._begin(transactional_id, transaction_timeout_ms)
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

    async def _begin(self, transactional_id: str, timeout_ms: int | None) -> tuple[Meaning, OpenTransaction | None]:
        code, node = await self.coordinator(transactional_id)
        if code:
            return meaning(code), None
        features = (await self.contact(node)).finalized_features
        level = {feature.name: feature.max_version_level for feature in features}.get("transaction.version", 0)
        response = await self.send(node, init_producer_id(transactional_id, timeout_ms))
        if response.error_code:
            return meaning(response.error_code), None
        producer = ProducerIdentity(response.producer_id, response.producer_epoch)
        return meaning(0), OpenTransaction(transactional_id, producer, level >= _IMPLICIT_PARTITIONS)

    async def coordinator(self, key: str, kind: CoordinatorType = CoordinatorType.TRANSACTION) -> tuple[int, int]:
        """An error code, and the broker that coordinates a transactional id, or a consumer group."""
        request = FindCoordinatorRequest(key_type=kind.value, key=key, max_version=_ONE_COORDINATOR)
        response = await self._ask_any(request)
        return response.error_code, response.node_id


def failure(what: Meaning, happened: str) -> TwoPhaseCommitError:
    """The error for an answer that ends the task."""
    match what.answer:
        case Answer.DENIED:
            return denied(f"{happened}: {what.name}")
        case Answer.CORRECT:
            return ConfigurationError(f"{happened}: {what.name}. {what.advice}")
        case _:
            return RoundAborted(f"{happened}: {what.name}. {what.advice}")


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


_of_thread = threading.local()


def connect(properties: Mapping[str, Any], timeout_ms: int) -> Cluster:
    """The connections of this thread to the cluster that ``properties`` (kafka-python's) name.

    Raises:
        RoundAborted: no broker answered in time.
    """
    key = tuple(sorted((name, str(value)) for name, value in properties.items()))
    clusters: dict[object, Cluster] = _of_thread.__dict__.setdefault("clusters", {})
    if key not in clusters:
        clusters[key] = Cluster(properties, timeout_ms)
    return clusters[key]
