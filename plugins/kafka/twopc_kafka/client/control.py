"""The control connection: describe, list and end transactions from any process, over kafka-python's protocol layer.

librdkafka can't resume a transaction whose producer is gone. An EndTxn request with the transaction's producer id and
epoch ends the transaction from any process. Every request goes to the broker that coordinates the id. A network failure
is ``Retriable``: all requests here may be repeated, because an epoch names exactly one transaction.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import kafka.errors
from kafka.future import Future
from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest
from kafka.protocol.producer.transaction import InitProducerIdRequest, WriteTxnMarkersRequest

from twopc.errors import ConfigurationError, OperatorRequired, Retriable
from twopc_kafka.answers import (
    EPOCH_BUMPING_END_TXN,
    ProducerIdentity,
    TransactionState,
    Unprovable,
    lasting,
    meaning,
    unanswered,
)
from twopc_kafka.client import requests
from twopc_kafka.client.kafka_python import Connections, Loop, OfProcess, blocking
from twopc_kafka.client.leaders import Leaders
from twopc_kafka.client.tokens import require_token

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS = 10_000
"""How long to look for a broker before the call fails and is reported. Callers repeat it.

The failure is never final. After an outage a broker's name may not be in DNS yet, and kafka-python mostly takes a
refused login for a lost connection, because brokers close the connection at once."""

PATIENCE_MS = 3_000
"""How long a broker may be silent before a call counts as unanswered. The repeated call finds the broker's
successor."""

SILENCES = 3
"""How many unanswered calls in a row count as a sign that a broker is gone. After that, the broker is assumed to be
slow: each further unanswered call doubles the time limit, up to 'socket.timeout.ms'. By then the other brokers have
removed a broker that is gone (broker.session.timeout.ms, 9 s by default)."""

_PROOF_MS = PATIENCE_MS // 2
"""How long a coordinator may wait for its replicas to acknowledge its proof before it reports that the replicas did not
acknowledge."""

_TRIED_NAMES = 8
"""How many pairs of names ``can_prove`` tries. Even if a cluster chooses coordinators in another way, one pair may have
the same coordinator by chance."""

FEATURES_MAX_AGE_S = 1.0
"""How long a broker's report of its features is reused. No operator lowers transaction.version twice a second."""

COMMITS_UNDER_WAY = 16
"""How many commits may await their answers. A broker handles the requests of one connection one after the other, so
more of them would only wait there."""

COMMITTING_S = 1.0
"""How long ``commit_many`` sends requests. Its caller then commits the rest one by one, with retries."""

_BUMPS_EPOCHS = 2  # from this transaction.version on, the end of a transaction raises the producer's epoch (KIP-890)
_TAKES_NEW_FIELDS = 1  # from this transaction.version on, Kafka's transaction log has EndTxn 5's fields
_WITHOUT_MEMBERS = ("Empty", "Dead")
_TAKE_OFFSETS = ("", "classic", "consumer")  # types of groups; older brokers have only these, and report none
_NEEDED = (DescribeTransactionsRequest, ListTransactionsRequest, DescribeProducersRequest)
"""Requests that no writer sends. Without them, a crash would leave transactions open."""

_FAILURES = (kafka.errors.KafkaError, OSError)

ResultT = TypeVar("ResultT")


class Control:
    """One set of connections to a cluster, opened when it is first needed. Safe to use from several threads.

    Every request may raise:
        Retriable: no broker answered, or none could serve the request.
        ConfigurationError: the brokers are too old.
        OperatorRequired: the brokers refuse the login, or deny a right.
    """

    def __init__(self, properties: Mapping[str, Any], patience_ms: int | None = None) -> None:
        """Connect to nothing yet. ``patience_ms`` replaces ``PATIENCE_MS`` if other kinds of requests share the
        connections."""
        self._properties = properties
        self._own_patience_ms = patience_ms
        self._servers = properties["bootstrap_servers"]
        self.net = Loop(**properties)
        self.net.start()
        self.manager = Connections(self.net, properties)
        self._coordinators: dict[str, int] = {}
        self._versions: dict[int, tuple[int, float]] = {}  # transaction.version, and when a broker reported it
        self._silences: Counter[int | None] = Counter()  # broker (None: any) → how often in a row it was silent
        self._knows_brokers = False
        self.is_refused = False
        """Whether a login was refused. kafka-python does not log in again after that, so no request can succeed."""

    @property
    def is_of_use(self) -> bool:
        """Whether these connections can still carry requests."""
        return self.net.is_running and not self.is_refused

    def close(self) -> None:
        """Close the connections, and end the thread that drives them."""
        if self.net.is_running:
            self.net.call_soon_threadsafe(self.manager.close)
            self.net.stop()
            self.net.close()

    # Requests. --------------------------------------------------------------------------------------------------

    @blocking
    async def unknown_topics(self, topics: Iterable[str]) -> list[str]:
        """Return the ``topics`` that one broker reports as nonexistent or as invalid names. Creates none of them."""
        missing = []
        for topic in (await self.metadata(topics)).topics:
            error = kafka.errors.for_code(topic.error_code)
            if error in (kafka.errors.UnknownTopicOrPartitionError, kafka.errors.InvalidTopicError):
                missing.append(topic.name)
            elif issubclass(error, kafka.errors.AuthorizationError):
                raise error(topic.name)
        return missing

    @functools.cached_property
    def cluster_id(self) -> str:
        """Kafka's id of the cluster, which it keeps for as long as it exists."""
        return self.run(self.metadata).cluster_id or ""

    @blocking
    async def taken_by(self, group: str) -> str:
        """Return why a consumer group can't take offsets: it has members, by either of Kafka's group protocols, or is
        of another type. Return an empty string if it can."""
        response = await self.send(requests.groups(), await self.coordinator_of(group))
        self._raise(kafka.errors.for_code(response.error_code), f"consumer group {group!r}")
        for listed in response.groups:
            if listed.group_id == group and (listed.group_type or "").lower() not in _TAKE_OFFSETS:
                return f"it is a {listed.group_type} group"
            if listed.group_id == group and listed.group_state not in _WITHOUT_MEMBERS:
                return "it has members"
        return ""

    @blocking
    async def require_transactions(self, transactional_id: str) -> None:
        """Raise unless the cluster can begin transactions, and supports all requests that the sink needs after a crash.
        This begins no transaction under the id, but Kafka remembers the id.

        Raises:
            ConfigurationError: the brokers lack a request.
        """
        if missing := [each.__name__.removesuffix("Request") for each in _NEEDED if not self._supports(each)]:
            raise ConfigurationError(
                f"the brokers at {', '.join(self._servers)} do not support {' and '.join(missing)}, without which the"
                " sink can't roll back what a crash leaves open. Use brokers that do, such as Kafka 3.0 or later."
            )
        node = (await self.coordinators_of([transactional_id]))[transactional_id]
        response = await self.send(requests.init_producer_id(transactional_id, _PROOF_MS), node)
        self._raise(kafka.errors.for_code(response.error_code), f"transactional id {transactional_id}")

    @property
    def end_txn_version(self) -> int:
        """The version of EndTxn to end transactions with. It is 5, which fences late writes of the ended transaction,
        if the cluster has finalized transaction.version 2; otherwise 4."""
        bumps = self.transaction_version >= _BUMPS_EPOCHS
        return EPOCH_BUMPING_END_TXN if bumps else EPOCH_BUMPING_END_TXN - 1

    @property
    def transaction_version(self) -> int:
        """The cluster's finalized ``transaction.version``, as a broker reported it at most a second ago. Operators may
        lower and raise it while the cluster runs."""
        return self.run(self._transaction_version)

    @property
    @blocking
    async def release(self) -> str:
        """The oldest Kafka release that has all of the requests that these brokers support. Brokers do not report their
        release."""
        return ".".join(map(str, self.manager.broker_version))

    @property
    @blocking
    async def writes_markers(self) -> bool:
        """Whether the brokers support the request that writes a missing marker."""
        return self._supports(WriteTxnMarkersRequest)

    def largest_timeout_ms(self) -> int | None:
        """Return the longest transaction timeout that a broker grants, or None if this principal may not read it."""
        return self._broker_setting("transaction.max.timeout.ms")

    def expiration_ms(self) -> int | None:
        """Return how long Kafka keeps an unused transactional id, or None if this principal may not read it."""
        return self._broker_setting("transactional.id.expiration.ms")

    def _broker_setting(self, name: str) -> int | None:
        try:
            return self.run(self._setting_of_a_broker, name)
        except OperatorRequired:
            return None

    @blocking
    async def grants_no_timeout(self, transactional_id: str) -> bool:
        """Return whether this principal may begin transactions without a timeout. This begins none under the id."""
        if self.manager.broker_version_data.api_version(InitProducerIdRequest) < requests.GRANTS_NO_TIMEOUT:
            return False
        node = (await self.coordinators_of([transactional_id]))[transactional_id]
        try:
            response = await self.send(requests.init_producer_id(transactional_id, None), node)
        except kafka.errors.IncompatibleBrokerVersion:  # this broker is not upgraded yet
            return False
        error = kafka.errors.for_code(response.error_code)
        if error is kafka.errors.TransactionalIdAuthorizationFailedError:  # by an ACL, or by the brokers' setting
            return False
        self._raise(error, transactional_id)
        return True

    @blocking
    async def describe(self, transactional_ids: Sequence[str]) -> dict[str, TransactionState]:
        """Return the state of each id that the cluster knows."""
        return await self._describe_at(await self.coordinators_of(transactional_ids))

    def describe_proven(self, transactional_ids: Sequence[str], scope: str) -> dict[str, TransactionState]:
        """Return the state of each id that the cluster knows, as of this call or later. No answer is stale.

        ``scope`` is a prefix of transactional ids that this principal may use. The proof uses one more id with this
        prefix for each of ``transactional_ids``, and Kafka keeps it.

        Raises:
            Unprovable: the cluster does not choose coordinators as Kafka does, so the answer may be stale.

        A broker that is cut off from the others acts as the coordinator until it learns that another broker has
        replaced it. It does not see what its successor writes, so it may report a stale "unknown id". Neither time nor
        the answers of other brokers rule that out, because a broker's last contact with the others is not known.

        A write does rule it out. Before a coordinator describes an id, it must write to that id's partition of
        ``__transaction_state``: it is asked for an epoch of another id, which has the same Java hash and so the same
        partition. It acknowledges this write only when all in-sync replicas have it. A successor would be one of these
        replicas, and would no longer replicate from this broker. So the acknowledgment proves that there was no
        successor, and the description that follows includes everything acknowledged before the write.
        """
        return self.run(self._describe_proven, transactional_ids, scope) if transactional_ids else {}

    @blocking
    async def can_prove(self, scope: str) -> bool:
        """Return whether ``describe_proven`` can prove its answers. It always can on a cluster with one broker."""
        names = [f"{scope}{number}" for number in range(_TRIED_NAMES)]
        return not any([await self._are_apart(name, name_beside(name, f"{scope}probe")) for name in names])

    @functools.cached_property
    def leaders(self) -> Leaders:
        """Requests to the leaders of partitions, over these connections."""
        return Leaders(self)

    def list_ongoing(self, scope: str) -> list[str]:
        """Return the transactional ids at all brokers that start with ``scope`` and have an ongoing transaction."""
        return self.run(self._list, scope, ["Ongoing"], [])

    def list_of_producers(self, scope: str, producer_ids: Sequence[int]) -> list[str]:
        """Return the transactional ids at all brokers that start with ``scope`` and have one of these producer ids."""
        return self.run(self._list, scope, [], producer_ids)

    @blocking
    async def end(self, transactional_id: str, producer_id: int, epoch: int, commit: bool, version: int) -> str:
        """Commit or abort the transaction ``(producer_id, epoch)`` by this version of EndTxn. If the coordinator's
        ``transaction.version`` is 0, send version 4 instead: version 5 would fail, and the transaction would get stuck.

        Returns:
            Kafka's name of the error, ``NO_ERROR`` for none.
        """
        asked = await self._ask_to_end(transactional_id, producer_id, epoch, commit, version)
        return self._answer_to_end(transactional_id, await asked)

    def commit_many(self, due: Mapping[tuple[int, int], tuple[str, int]]) -> dict[tuple[int, int], str | None]:
        """Ask to commit transactions, ``COMMITS_UNDER_WAY`` at a time. Stop asking after ``COMMITTING_S``, or when the
        oldest request in flight gets no answer.

        Args:
            due: producer id and epoch → transactional id and version of EndTxn.

        Returns:
            Kafka's answer to each commit that was asked for, as from ``end``; None for no answer.

        Raises:
            Retriable: the coordinators were not found. Nothing was sent.
        """
        return self.run(self._commit_many, due) if due else {}

    def run(self, asked: Callable[..., Coroutine[Any, Any, ResultT]], *args: object) -> ResultT:
        """Run a coroutine that sends requests to brokers, and return its result."""
        try:
            if not self._knows_brokers:
                if self._is_connected():
                    self.manager.run(self.metadata)
                else:
                    self._find_brokers()
                self._knows_brokers = True
            return self.manager.run(asked, *args)  # type: ignore[no-any-return]
        except _FAILURES as error:
            self._forget(error)
            if (refusal := lasting(error)) is not None:
                raise refusal from error
            raise Retriable(unanswered(error)) from None

    def _forget(self, error: Exception) -> None:
        """Make the next call look everything up again: brokers may be gone or have new addresses, and ids may have new
        coordinators."""
        self.is_refused |= isinstance(error, kafka.errors.SaslAuthenticationFailedError)
        refused = isinstance(error, kafka.errors.BrokerResponseError)  # by a broker that is up
        self._knows_brokers = refused and not isinstance(error, kafka.errors.RequestTimedOutError)
        self._coordinators.clear()
        self._versions.clear()

    def send(self, request: Any, node: int | None = None) -> Any:
        """Within ``run``: send a request to the broker ``node``, or to any broker.

        Returns:
            An awaitable for the response.
        """
        patience_ms = self._patience_ms(node)
        if node is None or self.manager.sends_at_once(node):  # without a node, brokers are tried in turn
            answer = self.manager.send(request, node, patience_ms)
        else:
            answer = self.manager.call_soon(self._connect_and_send, request, node, patience_ms)
        return answer.add_both(functools.partial(self._note, node, self._silences[node] + 1, answer))

    async def _connect_and_send(self, request: Any, node: int, patience_ms: int) -> Any:
        """Send a request as soon as there is a connection. kafka-python's timeout does not cover the wait for the
        connection."""
        return await self.manager.wait_for(self.manager.send(request, node, patience_ms), patience_ms)

    def _note(self, node: int | None, silences: int, answer: Future, _: object) -> None:
        """Note whether a broker was silent. Requests that were in flight together count once."""
        if answer.succeeded():
            self._silences.pop(node, None)
        elif isinstance(answer.exception, kafka.errors.KafkaTimeoutError | kafka.errors.RequestTimedOutError):
            self._silences[node] = max(silences, self._silences[node])
            if node is not None:
                self.manager.doubted = node

    def _patience_ms(self, node: int | None) -> int:
        brokers = 1 if node is not None else max(1, len(self.brokers()))  # they are tried in turn
        silences = max(0, self._silences[node] - SILENCES)
        patience_ms = (self._own_patience_ms or PATIENCE_MS) * brokers * 2**silences
        return min(patience_ms, self.manager.config["request_timeout_ms"])  # type: ignore[no-any-return]

    def _anybody(self) -> int:
        """Return a broker that is likely to answer.

        Raises:
            NodeNotReadyError: no broker can be asked now.
        """
        node: int = self.manager.by_load()[0]
        return node

    def _find_brokers(self) -> None:
        """Ask 'bootstrap.servers' for the list of brokers. kafka-python itself asks them only once, so it would not
        find a cluster whose addresses have all changed."""
        require_token(self._properties)  # kafka-python would only log the endpoint's error
        try:
            self.manager.bootstrap(CONNECT_TIMEOUT_MS)  # concurrent callers share one search
        except kafka.errors.KafkaTimeoutError as error:
            cause = f" ({unanswered(error.__cause__)})" if error.__cause__ else ""
            raise Retriable(
                f"no broker answered at {', '.join(self._servers)} within {CONNECT_TIMEOUT_MS / 1000:g} s{cause}. Is"
                " 'bootstrap.servers' right, do the brokers run, and do 'security.protocol', login and certificates fit"
                " their listener?"
            ) from None

    # Coroutines for the connections. ----------------------------------------------------------------------------

    async def coordinator_of(self, group: str) -> int:
        """Within ``run``: return the coordinator of a consumer group."""
        [(_, coordinator)] = await self.find([group], CoordinatorType.GROUP)
        self._raise(kafka.errors.for_code(coordinator.error_code), f"consumer group {group!r}")
        node: int = coordinator.node_id
        return node

    def _supports(self, request: Any) -> bool:
        return request.API_KEY in self.manager.broker_version_data.api_versions

    async def _transaction_version(self, node: int | None = None) -> int:
        """Return the version that this broker, or any broker, reported recently."""
        oldest = time.monotonic() - FEATURES_MAX_AGE_S
        seen = [version for of, (version, at) in self._versions.items() if node in (None, of) and at > oldest]
        return min(seen) if seen else await self._ask_transaction_version(self._anybody() if node is None else node)

    async def _ask_transaction_version(self, node: int) -> int:
        at = time.monotonic()
        response = await self.send(requests.features(), node)
        levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
        version: int = levels.get("transaction.version", 0)
        self._versions[node] = version, at
        return version

    async def _setting_of_a_broker(self, name: str) -> int | None:
        broker = self._anybody()
        return await self.setting(name, requests.BROKER, str(broker), broker)

    async def setting(self, name: str, kind: int, of: str, node: int | None = None) -> int | None:
        """Within ``run``: return a numeric setting of the resource ``of``, which is of this kind; None if it has no
        such setting."""
        response = await self.send(requests.configuration(kind, of, name), node)
        for result in response.results:
            self._raise(kafka.errors.for_code(result.error_code), f"{name} of {of}")
            for config in result.configs:
                if config.name == name and config.value is not None:
                    return int(config.value)
        return None

    async def _describe_proven(self, transactional_ids: Sequence[str], scope: str) -> dict[str, TransactionState]:
        coordinators = await self.coordinators_of(transactional_ids)
        beside = {name: name_beside(name, f"{scope}probe") for name in coordinators}
        written = {
            name: self.send(requests.init_producer_id(beside[name], _PROOF_MS), node)
            for name, node in coordinators.items()
        }
        for name, node in coordinators.items():
            error = kafka.errors.for_code((await written[name]).error_code)
            if issubclass(error, kafka.errors.AuthorizationError):
                raise error(f"{scope}probe")
            if error is not kafka.errors.NoError:
                self.manager.doubted = node
                self._coordinators.clear()
                if error is kafka.errors.NotCoordinatorError and await self._are_apart(name, beside[name]):
                    raise Unprovable(
                        f"the cluster at {', '.join(self._servers)} can't prove that its answer about transaction"
                        f" {name} is current: it does not choose coordinators as Kafka does"
                    )
                raise Retriable(f"broker {node} has not proved that it coordinates {name} now: {error.message}")
        return await self._describe_at(coordinators)

    async def _are_apart(self, name: str, other: str) -> bool:
        """Return whether one broker, at one moment, reports different coordinators for names of the same Java hash."""
        found = [each for _, each in await self.find([name, other], CoordinatorType.TRANSACTION)]
        return not any(each.error_code for each in found) and len({each.node_id for each in found}) > 1

    async def _describe_at(self, coordinators: Mapping[str, int]) -> dict[str, TransactionState]:
        at: dict[int, list[str]] = defaultdict(list)
        for name, node in coordinators.items():
            at[node].append(name)
        asked = [self.send(requests.describe_transactions(names), node) for node, names in at.items()]
        for node in at:  # EndTxn needs the version: asking now saves a round trip
            self.manager.call_soon(self._transaction_version, node)
        described = {}
        for future in asked:
            for state in (await future).transaction_states:
                error = kafka.errors.for_code(state.error_code)
                if error is kafka.errors.TransactionalIdNotFoundError:
                    continue
                self._raise(error, state.transactional_id)
                described[state.transactional_id] = state_of(state)
        return described

    async def _list(self, scope: str, states: Sequence[str], producer_ids: Sequence[int]) -> list[str]:
        # Only the newest version of the request has the pattern. The longer lists of older brokers are filtered below.
        by_pattern = self.manager.broker_version_data.api_version(ListTransactionsRequest) >= requests.LISTS_BY_PATTERN

        def ask(nodes: Iterable[int]) -> dict[int, Any]:
            return {
                node: self.send(requests.list_transactions(scope, states, producer_ids, by_pattern), node)
                for node in nodes
            }

        asked = ask(self.brokers())
        # A broker that has joined meanwhile may coordinate ids, too. Do not wait for a broker that has left.
        await self.metadata()
        brokers = self.brokers()
        asked |= ask(node for node in brokers if node not in asked)
        found = []
        for node in brokers:
            response = await asked[node]
            self._raise(kafka.errors.for_code(response.error_code), scope)
            found += [state.transactional_id for state in response.transaction_states]
        return sorted(name for name in found if name.startswith(scope))

    async def metadata(self, topics: Iterable[str] = ()) -> Any:
        """Within ``run``: return a broker's answer about topics, and keep its list of brokers. Creates no topic.

        kafka-python's own refresh would do the same, but it may be waiting for a silent broker."""
        response = await self.metadata_of(None, topics)
        known = {(broker.node_id, broker.host, broker.port) for broker in self.manager.cluster.brokers()}
        if known != {(broker.node_id, broker.host, broker.port) for broker in response.brokers}:
            self.manager.cluster.update_metadata(response)
        return response

    def metadata_of(self, node: int | None, topics: Iterable[str]) -> Any:
        """Within ``run``: ask one broker, or any, about topics. Returns an awaitable for the response."""
        return self.send(requests.metadata(topics), node)

    def _is_connected(self) -> bool:
        """Return whether a connected broker can report the current brokers."""
        known = self.brokers()
        return any(connection.node_id in known for connection in self.manager.least_used_connections())

    def brokers(self) -> list[int]:
        """Within ``run``: return the known brokers."""
        return [broker.node_id for broker in self.manager.cluster.brokers()]

    async def _ask_to_end(
        self, transactional_id: str, producer_id: int, epoch: int, commit: bool, version: int
    ) -> Future:
        """Send EndTxn. Return a future for the response."""
        node = (await self.coordinators_of([transactional_id]))[transactional_id]
        if await self._transaction_version(node) < _TAKES_NEW_FIELDS:
            version = min(version, EPOCH_BUMPING_END_TXN - 1)
        producer = ProducerIdentity(producer_id, epoch)
        return self.send(requests.end_transaction(transactional_id, producer, commit, version), node)

    def _answer_to_end(self, transactional_id: str, response: Any) -> str:
        if response.error_code == kafka.errors.NotCoordinatorError.errno:
            self._coordinators.pop(transactional_id, None)
        return meaning(response.error_code).name

    async def _commit_many(self, due: Mapping[tuple[int, int], tuple[str, int]]) -> dict[tuple[int, int], str | None]:
        await self.coordinators_of([name for name, _ in due.values()])  # one request fills the cache for all commits
        answers: dict[tuple[int, int], str | None] = {}
        under_way: deque[tuple[tuple[int, int], str, Future]] = deque()
        until_s = time.monotonic() + COMMITTING_S
        for producer, (name, version) in due.items():
            is_full = len(under_way) == COMMITS_UNDER_WAY
            if is_full and not await self._is_answered(answers, *under_way.popleft()):
                break
            if time.monotonic() > until_s:
                break
            try:
                asked = await self._ask_to_end(name, *producer, commit=True, version=version)
            except _FAILURES as error:
                self._forget(error)
                break
            under_way.append((producer, name, asked))
            answers[producer] = None
        for each in under_way:
            await self._is_answered(answers, *each)
        return answers

    async def _is_answered(
        self, answers: dict[tuple[int, int], str | None], producer: tuple[int, int], name: str, asked: Future
    ) -> bool:
        """Wait for the answer to a commit, and note it. Return whether there is one."""
        try:
            answers[producer] = self._answer_to_end(name, await asked)
        except _FAILURES as error:
            logger.debug("no answer to the commit of %s: %s", name, unanswered(error))
            self._forget(error)
            return False
        return True

    async def coordinators_of(self, transactional_ids: Sequence[str]) -> dict[str, int]:
        """Within ``run``: return the coordinator of each id."""
        # Another call may clear the cached coordinators at any 'await', so this one keeps its own copy.
        known = {name: self._coordinators[name] for name in transactional_ids if name in self._coordinators}
        unknown = [name for name in transactional_ids if name not in known]
        for name, coordinator in await self.find(unknown, CoordinatorType.TRANSACTION):
            self._raise(kafka.errors.for_code(coordinator.error_code), name)
            self._coordinators[name] = known[name] = coordinator.node_id
        return known

    async def find(self, names: list[str], kind: CoordinatorType) -> list[tuple[str, Any]]:
        """Within ``run``: return the coordinator, or an error code, of each transactional id or consumer group."""
        if names and self.manager.broker_version_data.api_version(FindCoordinatorRequest) >= requests.FINDS_IN_BULK:
            response = await self.send(requests.coordinators(names, kind))
            return [(coordinator.key, coordinator) for coordinator in response.coordinators]
        return [(name, await self.send(requests.coordinator(name, kind))) for name in names]

    def _raise(self, error: type[kafka.errors.BrokerResponseError], name: str) -> None:
        if error is kafka.errors.NotCoordinatorError:
            self._coordinators.pop(name, None)
        if error is not kafka.errors.NoError:
            raise error(name)


def state_of(described: Any) -> TransactionState:
    """Return the state of a transaction in a response to DescribeTransactions."""
    return TransactionState(
        described.transaction_state,
        described.producer_id,
        described.producer_epoch,
        {topic.topic: list(topic.partitions) for topic in described.topics},
        described.transaction_start_time_ms,
        described.transaction_timeout_ms,
    )


_DIGITS = 7  # 31 ** 7 is more than 2 ** 32
_FIRST = ord("A")  # the digits are the 31 characters from here on


def name_beside(name: str, start: str) -> str:
    """Return an id that begins with ``start`` and has the same ``String.hashCode`` as ``name``. Kafka keeps both in the
    same partition, however many partitions there are."""
    missing = (_java_hash(name) - _java_hash(start + chr(_FIRST) * _DIGITS)) % 2**32
    digits = [missing // 31**place % 31 for place in reversed(range(_DIGITS))]
    return start + "".join(chr(_FIRST + digit) for digit in digits)


def _java_hash(text: str) -> int:
    """Return Java's ``String.hashCode`` as an unsigned number."""
    return functools.reduce(lambda value, character: (31 * value + ord(character)) % 2**32, text, 0)


_controls: OfProcess[Control] = OfProcess()  # the threads of phase two share one set of connections


def control_of(properties: Mapping[str, Any]) -> Control:
    """Return this process's control connection to the cluster that ``properties`` (kafka-python's) name.

    Tasks have connections of their own. ``twopc_kafka.client.cluster`` explains why."""
    return _controls.get(key_of(properties), lambda: Control(properties))


def key_of(properties: Mapping[str, Any]) -> Hashable:
    """Return the key under which a process caches connections with these properties."""
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in properties.items()}
    return tuple(sorted(frozen.items()))
