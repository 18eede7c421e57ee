"""Questions to the leaders of partitions about open transactions, some of which coordinators no longer know.

A transaction hangs (KIP-664) if its coordinator has ended it but a partition has no marker of that end: see
``twopc_kafka.hanging``.
"""

from __future__ import annotations

import base64
import functools
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import kafka.errors
from kafka.protocol.consumer.offsets import IsolationLevel

from twopc.errors import Retriable
from twopc_kafka.answers import INVALID_TOPIC, NO_LEADER, UNKNOWN_TOPIC, OpenInPartition, meaning
from twopc_kafka.client import requests
from twopc_kafka.client.kafka_python import blocking
from twopc_kafka.client.requests import Partitions

if TYPE_CHECKING:
    from twopc_kafka.client.control import Control

logger = logging.getLogger(__name__)

TopicPartition: TypeAlias = "tuple[str, int]"

ReportT = TypeVar("ReportT")

METADATA_MAX_AGE_S = 1.0
"""How long metadata about leaders is reused. The sweep right after a completed batch can then reuse that batch's
metadata. A broker that no longer leads a partition reports so, and the leader is looked up again."""

_NO_ANSWER = (kafka.errors.RetriableError, kafka.errors.UnknownBrokerIdError, OSError)


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition, according to metadata.

    Attributes:
        node: the broker, or -1 for none.
        epoch: rises with every change of leader, including a change to none. -1 if the epoch is not known.
    """

    node: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Away:
    """Why a partition could not be asked.

    Attributes:
        reason: the reason, in words for the operator.
        leader: the partition's leader in the metadata that was used.
    """

    reason: str = field(compare=False)
    leader: Leader


@dataclass(frozen=True, slots=True)
class Seen:
    """The open transactions that the leaders reported, and the partitions that could not be asked."""

    open: Sequence[OpenInPartition] = ()
    away: Mapping[TopicPartition, Away] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic's metadata, and the time of the request for it, by ``time.monotonic``. The id is empty if the topic does
    not exist, and None if the brokers are too old to have ids."""

    id: str | None
    leaders: Mapping[int, Leader]
    seen_at_s: float


class Leaders:
    """Requests to the leaders of partitions, over a control connection. They raise the errors of ``Control``."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.run = control.run
        self._topics: dict[str, _Topic] = {}

    @blocking
    async def open_transactions(self, partitions: Partitions, topic: str | None = None) -> Seen:
        """Return every transaction that was open in ``partitions``, or in any partition of ``topic``, at some moment of
        this call. The result may contain further transactions. Partitions that could not be asked are reported as
        ``away``.

        Partitions that do not exist have no transactions. Topics that this principal may not READ or DESCRIBE are left
        out, with a warning.
        """
        led_by = await self._led_by(partitions, topic, time.monotonic() - METADATA_MAX_AGE_S)
        seen = await self._seen(led_by)
        if not seen.away:
            return seen
        newest = await self._led_by(partitions, topic)
        moved = {partition: leader for partition, leader in newest.items() if led_by.get(partition) != leader}
        again = await self._seen({partition: moved[partition] for partition in seen.away.keys() & moved.keys()})
        still = {partition: away for partition, away in seen.away.items() if newest.get(partition) == away.leader}
        return Seen([*seen.open, *again.open], {**still, **again.away})

    @blocking
    async def held_back(self, partitions: Partitions, topic: str | None = None) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition, among ``partitions`` and those of ``topic``, in which an
        open transaction holds back committed readers. Partitions that can't be asked, or that this principal may not
        READ or DESCRIBE, are left out."""
        return await self._behind(*_split_by_leader(await self._led_by(partitions, topic)))

    @blocking
    async def away(self, topic: str) -> Mapping[TopicPartition, Away]:
        """Return the partitions of ``topic`` that have no leader."""
        return _split_by_leader(await self._led_by({}, topic))[1]

    def topic_ids(self, topics: Collection[str], since_s: float) -> dict[str, str]:
        """Return Kafka's id of each topic, from metadata requested at ``since_s`` (of ``time.monotonic``) or later.

        A topic that is deleted and created again gets a new id. The id is empty if there is no such topic. Topics that
        this principal may not DESCRIBE, and topics without an id, are left out."""
        found = self._kept(topics, since_s)
        if len(found) < len(topics):
            found = self.run(self._look_up, topics, since_s)
        return {name: topic.id for name, topic in found.items() if topic.id is not None}

    def look_up_soon(self, topics: Collection[str], since_s: float) -> None:
        """Start looking up topics, so that ``topic_ids`` rarely has to wait. It asks again for topics not yet found."""
        if topics:
            self._control.manager.call_soon(self._look_up, topics, since_s)

    @blocking
    async def topic_ids_of_most(self, topics: Collection[str]) -> dict[str, str]:
        """Return the id of each topic that more than half of the brokers report now. A single broker may be cut off
        from the others and report an old id.

        Raises:
            Retriable: no majority reports the same id.
        """
        most = await self._majority(topics, _certain_id)
        for name in topics:
            if name not in most:
                raise Retriable(f"the brokers don't agree on the id of topic {name!r}")
            self._topics.pop(name, None)  # the kept metadata came from a single broker
        return most

    @blocking
    async def is_known_to_most(self, topic: str) -> bool:
        """Return whether more than half of the brokers report now that the topic exists.

        Raises:
            Retriable: no majority agrees on whether the topic exists.
        """
        most = await self._majority([topic], _exists)
        if topic not in most:
            raise Retriable(f"the brokers don't agree whether topic {topic!r} exists")
        return most[topic]

    @blocking
    async def may_read(self, topic: str) -> bool:
        """Return whether this principal may READ the topic, which ``open_transactions`` requires."""
        led, away = _split_by_leader(await self._led_by({}, topic))
        return bool(await self._ask(led, requests.producers, away)) or away.keys() >= led.keys()

    @blocking
    async def may_write(self, topic: str) -> bool:
        """Return whether this principal may WRITE to the topic, as a broker reports it."""
        [found] = (await self._control.send(requests.operations_on(topic))).topics
        return not found.authorized_operations or requests.WRITE in found.authorized_operations

    @blocking
    async def append(self, topic: str, partition: int, batch: bytes) -> int:
        """Write one record batch, without a transaction.

        Returns:
            Kafka's error code, 0 for none.
        """
        for leader in (await self._led_by({topic: [partition]}, None)).values():
            if leader.node < 0:
                return NO_LEADER
            request = requests.produce(None, {topic: {partition: batch}}, implicit=False)
            [of_topic] = (await self._control.send(request, leader.node)).responses
            return int(of_topic.partition_responses[0].error_code)
        return UNKNOWN_TOPIC

    @blocking
    async def write_marker(self, transaction: OpenInPartition, commit: bool) -> str:
        """Write a marker with the epoch after the transaction's.

        Returns:
            Kafka's name of the error, ``NO_ERROR`` for none.
        """
        led_by = await self._led_by({transaction.topic: [transaction.partition]}, None)
        for leader in led_by.values():
            [of_marker] = (await self._control.send(requests.marker(transaction, commit), leader.node)).markers
            return meaning(of_marker.topics[0].partitions[0].error_code).name
        # The topic was deleted, or this broker does not know it yet. The next look at open transactions shows which.
        return meaning(UNKNOWN_TOPIC).name

    # What the requests share. -----------------------------------------------------------------------------------

    async def _seen(self, led_by: Mapping[TopicPartition, Leader]) -> Seen:
        led, away = _split_by_leader(led_by)
        behind = {partition: led[partition] for partition in await self._behind(led, away)}
        open_ = [
            OpenInPartition(
                topic,
                partition.partition_index,
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.current_txn_start_offset,
            )
            for topic, partition in await self._ask(behind, requests.producers, away)
            for producer in partition.active_producers
            if producer.current_txn_start_offset >= 0
        ]
        return Seen(open_, away)

    async def _behind(
        self, led_by: Mapping[TopicPartition, Leader], away: dict[TopicPartition, Away]
    ) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition in which it is behind the log end offset, i.e. in which a
        transaction is open.

        Both offsets are requested at the same time, and may be read in either order: if they are equal, no transaction
        was open when the last stable offset was read.
        """
        asked = [
            self._send(led_by, functools.partial(requests.end_offsets, level))
            for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
        ]
        ends, readable = [
            {
                (topic, partition.partition_index): partition.offset
                for topic, partition in await self._answers(requests, led_by, away)
            }
            for requests in asked
        ]
        return {partition: readable[partition] for partition, end in ends.items() if readable.get(partition, end) < end}

    async def _majority(self, topics: Collection[str], reported: Callable[[Any], ReportT | None]) -> dict[str, ReportT]:
        """Ask every broker about topics, and return what more than half of the brokers report about each. Topics
        without such a majority are left out. ``reported`` extracts the report from a broker's metadata of a topic, None
        for no report."""
        asked = [self._control.metadata_of(node, topics) for node in self._control.brokers()]
        counted: dict[str, Counter[ReportT]] = {name: Counter() for name in topics}
        for future in asked:
            try:
                response = await future
            except _NO_ANSWER:
                continue
            for topic in response.topics:
                if (report := reported(topic)) is not None:
                    counted[topic.name][report] += 1
        return {
            name: report
            for name, reports in counted.items()
            for report, brokers in reports.items()
            if 2 * brokers > len(asked)
        }

    async def _ask(
        self,
        led_by: Mapping[TopicPartition, Leader],
        request: Callable[[Partitions], Any],
        away: dict[TopicPartition, Away],
    ) -> list[tuple[str, Any]]:
        return await self._answers(self._send(led_by, request), led_by, away)

    def _send(
        self, led_by: Mapping[TopicPartition, Leader], request: Callable[[Partitions], Any]
    ) -> list[tuple[int, Any]]:
        """Send each leader a request about its own partitions, without waiting for the answers."""
        by_leader: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for (topic, number), leader in led_by.items():
            by_leader[leader.node][topic].append(number)
        return [(node, self._control.send(request(numbers), node)) for node, numbers in by_leader.items()]

    async def _answers(
        self,
        asked: Iterable[tuple[int, Any]],
        led_by: Mapping[TopicPartition, Leader],
        away: dict[TopicPartition, Away],
    ) -> list[tuple[str, Any]]:
        """Return the answer for each partition, with its topic. Partitions that this principal may not READ are left
        out. Partitions that can't be asked now are added to ``away``."""
        answered = []
        for node, future in asked:
            try:
                topics = (await future).topics
            except _NO_ANSWER as silence:
                reason = f"broker {node}, which leads it, gave no answer ({type(silence).__name__})"
                away |= {each: Away(reason, leader) for each, leader in led_by.items() if leader.node == node}
                continue
            for topic in topics:
                for partition in topic.partitions:
                    error = kafka.errors.for_code(partition.error_code)
                    if issubclass(error, kafka.errors.AuthorizationError):
                        _warn_of_missing_right("READ", topic.name)
                    elif error is not kafka.errors.NoError:
                        of = topic.name, partition.partition_index
                        away[of] = Away(f"broker {node} answered {error.message}", led_by[of])
                    else:
                        answered.append((topic.name, partition))
        return answered

    async def _led_by(
        self, partitions: Partitions, topic: str | None, since_s: float | None = None
    ) -> dict[TopicPartition, Leader]:
        """Return the leader of each existing partition of ``partitions``, and of every partition of ``topic``, from
        metadata requested now, or at ``since_s`` or later."""
        wanted = {*partitions, *([] if topic is None else [topic])}
        topics = await self._look_up(wanted, time.monotonic() if since_s is None else since_s)
        return {
            (name, number): leader
            for name, found in topics.items()
            for number, leader in found.leaders.items()
            if name == topic or number in partitions[name]
        }

    def _kept(self, topics: Collection[str], since_s: float) -> dict[str, _Topic]:
        return {name: found for name in topics if (found := self._topics.get(name)) and found.seen_at_s >= since_s}

    async def _look_up(self, topics: Collection[str], since_s: float) -> dict[str, _Topic]:
        """Return metadata of topics that was requested at ``since_s`` or later. Topics that this principal may not
        DESCRIBE are left out."""
        kept = self._kept(topics, since_s)
        if wanted := [name for name in topics if name not in kept]:
            now_s = time.monotonic()
            response = await self._control.metadata(wanted)
            told = {
                topic.name: _Topic(topic_id(topic), _leaders(topic), now_s)
                for topic in response.topics
                if _may_describe(topic)
            }
            self._topics |= told
            kept |= told
        return kept


def _may_describe(topic: Any) -> bool:
    """Return whether this principal may DESCRIBE the topic. Raise any other error, unless the topic does not exist."""
    error = kafka.errors.for_code(topic.error_code)
    if issubclass(error, kafka.errors.AuthorizationError):
        _warn_of_missing_right("DESCRIBE", topic.name)
        return False
    if error not in (kafka.errors.NoError, kafka.errors.UnknownTopicOrPartitionError):
        raise error(topic.name)
    return True


_UNKNOWN = (UNKNOWN_TOPIC, INVALID_TOPIC)


def _exists(topic: Any) -> bool:
    """Return whether the broker that sent this metadata knows the topic. A denied topic counts as known."""
    return topic.error_code not in _UNKNOWN


def _certain_id(topic: Any) -> str | None:
    """Return the id of a topic in metadata, empty if there is no such topic. Return None if the topic has no id, or if
    an error leaves open whether the topic exists."""
    return topic_id(topic) if topic.error_code in (0, *_UNKNOWN) else None


def topic_id(topic: Any) -> str | None:
    """Return the id of a topic in metadata, as Kafka's tools write it. It is empty if there is no such topic, and None
    if the brokers have no ids (before 2.8, by ``inter.broker.protocol.version``)."""
    if topic.error_code:
        return ""
    if not (topic.topic_id and topic.topic_id.int):
        return None
    return base64.urlsafe_b64encode(topic.topic_id.bytes).decode().rstrip("=")


def _leaders(topic: Any) -> dict[int, Leader]:
    without = (0, kafka.errors.LeaderNotAvailableError.errno)  # other errors hide the leader, e.g. on another listener
    return {
        found.partition_index: Leader(found.leader_id, found.leader_epoch if found.error_code in without else -1)
        for found in topic.partitions
    }


def _split_by_leader(
    led_by: Mapping[TopicPartition, Leader],
) -> tuple[dict[TopicPartition, Leader], dict[TopicPartition, Away]]:
    """Return the partitions that have a leader, and those that have none."""
    led = {partition: leader for partition, leader in led_by.items() if leader.node >= 0}
    return led, {each: Away("it has no leader", leader) for each, leader in led_by.items() if each not in led}


@functools.cache
def _warn_of_missing_right(right: str, topic: str) -> None:
    """Log a missing right, once per process and topic."""
    logger.warning(
        "the brokers deny %s on topic %s: a transaction's marker that Kafka leaves out there (KAFKA-20734) can't be"
        " detected or repaired. Grant it to this principal.",
        right,
        topic,
    )
