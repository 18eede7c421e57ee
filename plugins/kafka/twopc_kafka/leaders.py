"""What the leaders of partitions know of transactions, which their coordinators may not: what is still open there.

A transaction hangs (Kafka's word, KIP-664) where its coordinator has ended it and a partition has no marker of that. Up
to Kafka 4.3.1 a coordinator leaves the marker out where a partition has no leader for a moment, and calls the
transaction complete (KAFKA-20734). What was committed so is not visible and holds back readers; what was rolled back so
becomes visible with the next commit of the same producer there. Both end by a marker from here.
"""

from __future__ import annotations

import functools
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import kafka.errors
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.consumer.offsets import IsolationLevel, ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from twopc.errors import OperatorRequired, Retriable

if TYPE_CHECKING:
    from twopc_kafka.control import Control

logger = logging.getLogger(__name__)

Partitions: TypeAlias = "Mapping[str, Collection[int]]"
"""Topic → numbers of its partitions."""

_END = -1  # ListOffsets' timestamp of the end that a reader of this isolation level may read to
_ISOLATION = 2  # the version of ListOffsets that knows isolation levels
_RAISES_EPOCH = 2  # the version of transactions whose markers have an epoch of their own; older brokers take it, too

_BY_KAFKAS_TOOL = "Or have kafka-transactions.sh abort it there."
_UNLESS_COMMITTED = "Don't have kafka-transactions.sh abort it: its records would be lost."

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, order=True, slots=True)
class OpenInPartition:
    """What one transaction has open in one partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int

    @property
    def identity(self) -> tuple[int, int]:
        """What names the transaction."""
        return self.producer_id, self.producer_epoch

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} from offset {self.start_offset}"


class Leaders:
    """Asks the leader of each partition, over a control connection, and raises what that does."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._known: dict[tuple[str, int], int] = {}

    def open_transactions(self, partitions: Partitions, topic: str | None = None) -> list[OpenInPartition]:
        """Every transaction that was open in ``partitions``, or anywhere in ``topic``, at some moment of this call, and
        maybe more.

        What does not exist has none. What this principal may not READ or DESCRIBE is left out, with a warning.
        """
        return self._run(self._open_transactions, partitions, topic)

    def may_read(self, topic: str) -> bool:
        """Whether this principal may READ it, on which ``open_transactions`` depends."""
        return self._run(self._may_read, topic)

    def end(self, transaction: OpenInPartition, name: str, commit: bool) -> None:
        """Write the marker that is missing. Its epoch lets it end this transaction and no later one.

        Raises:
            OperatorRequired: the brokers deny it.
        """
        error = self.write_marker(transaction, commit)
        ended = "committed" if commit else "rolled back"
        match error:
            case "NO_ERROR":
                logger.warning(
                    "wrote a marker that Kafka had left out (KAFKA-20734): %s is %s in %s, too",
                    name,
                    ended,
                    transaction,
                )
            case "INVALID_PRODUCER_EPOCH" | "PRODUCER_FENCED":
                pass  # its producer has gone on there, so it was ended
            case "CLUSTER_AUTHORIZATION_FAILED":
                raise OperatorRequired(
                    f"Kafka has left out a marker (KAFKA-20734): transaction {name} is {ended} and hangs in"
                    f" {transaction}, where it holds back readers, and the brokers deny this principal to write the"
                    " marker. Grant it ALTER on the cluster, if only while 'twopc resolve' runs as it, and start again."
                    f" {_UNLESS_COMMITTED if commit else _BY_KAFKAS_TOOL}"
                )
            case _:
                raise Retriable(f"the marker of {name} in {transaction} was not written: {error}")

    def write_marker(self, transaction: OpenInPartition, commit: bool) -> str:
        """Write a marker with the epoch after the transaction's.

        Returns:
            Kafka's name of the error, ``NO_ERROR`` for none.
        """
        return self._run(self._write_marker, transaction, commit)

    def _run(self, asked: Callable[..., Coroutine[Any, Any, ResultT]], *args: object) -> ResultT:
        try:
            return self._control.run(asked, *args)
        except Retriable:
            self._known.clear()  # leaders may have moved
            raise

    # How. -------------------------------------------------------------------------------------------------------

    async def _behind(self, partitions: Partitions) -> Partitions:
        """Those that committed readers can't read to the end: something is open there. Both ends are asked for at once:
        whichever is told first, where they are the same, nothing was open when the end for committed readers was told.
        """
        asked = [
            await self._send(partitions, functools.partial(_ends, level))
            for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
        ]
        ends, readable = [
            {(topic, partition.partition_index): partition.offset for topic, partition in await self._answers(requests)}
            for requests in asked
        ]
        behind: dict[str, list[int]] = defaultdict(list)
        for (topic, number), offset in readable.items():
            if offset < ends.get((topic, number), 0):
                behind[topic].append(number)
        return behind

    async def _may_read(self, topic: str) -> bool:
        return bool(await self._ask(await self._all_of(topic), _producers))

    async def _all_of(self, topic: str) -> Partitions:
        return {topic: [number for _, number in await self._find([topic])]}

    async def _open_transactions(self, partitions: Partitions, topic: str | None) -> list[OpenInPartition]:
        if topic is not None:
            partitions = {**partitions, **await self._all_of(topic)}
        behind = await self._behind(partitions)
        return [
            OpenInPartition(
                topic,
                partition.partition_index,
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.current_txn_start_offset,
            )
            for topic, partition in await self._ask(behind, _producers)
            for producer in partition.active_producers
            if producer.current_txn_start_offset >= 0
        ]

    async def _write_marker(self, transaction: OpenInPartition, commit: bool) -> str:
        marker = WriteTxnMarkersRequest.WritableTxnMarker
        topic = marker.WritableTxnMarkerTopic(name=transaction.topic, partition_indexes=[transaction.partition])
        request = WriteTxnMarkersRequest(
            markers=[
                marker(
                    producer_id=transaction.producer_id,
                    producer_epoch=transaction.producer_epoch + 1,
                    transaction_result=commit,
                    topics=[topic],
                    coordinator_epoch=max(0, transaction.coordinator_epoch),
                    transaction_version=_RAISES_EPOCH,
                )
            ]
        )
        for node in await self._by_leader({transaction.topic: [transaction.partition]}):
            [of_marker] = (await self._control.send(request, node)).markers
            return str(kafka.errors.for_code(of_marker.topics[0].partitions[0].error_code).message)
        return "NO_ERROR"  # the topic was deleted

    async def _ask(self, partitions: Partitions, request: Callable[[Partitions], Any]) -> list[tuple[str, Any]]:
        return await self._answers(await self._send(partitions, request))

    async def _send(self, partitions: Partitions, request: Callable[[Partitions], Any]) -> list[Any]:
        """Ask the leaders, each of its own, and don't wait."""
        by_leader = await self._by_leader(partitions)
        return [self._control.send(request(numbers), node) for node, numbers in by_leader.items()]

    async def _answers(self, asked: Iterable[Any]) -> list[tuple[str, Any]]:
        """What they answer of each partition, with its topic; but for those that this principal may not read."""
        answered = []
        for future in asked:
            for topic in (await future).topics:
                for partition in topic.partitions:
                    error = kafka.errors.for_code(partition.error_code)
                    if issubclass(error, kafka.errors.AuthorizationError):
                        _warn_of_missing_right("READ", topic.name)
                    elif error is not kafka.errors.NoError:
                        raise error(topic.name)
                    else:
                        answered.append((topic.name, partition))
        return answered

    async def _by_leader(self, partitions: Partitions) -> dict[int, dict[str, list[int]]]:
        wanted = [(topic, number) for topic, numbers in partitions.items() for number in numbers]
        if unknown := {topic for topic, number in wanted if (topic, number) not in self._known}:
            await self._find(unknown)
        of: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for topic, number in wanted:
            if (topic, number) in self._known:  # else it was deleted, and nothing is open in it
                of[self._known[topic, number]][topic].append(number)
        return of

    async def _find(self, topics: Iterable[str]) -> list[tuple[str, int]]:
        wanted = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
        response = await self._control.send(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        found = {}
        for topic in response.topics:
            error = kafka.errors.for_code(topic.error_code)
            if issubclass(error, kafka.errors.AuthorizationError):
                _warn_of_missing_right("DESCRIBE", topic.name)
            elif error not in (kafka.errors.NoError, kafka.errors.UnknownTopicOrPartitionError):
                raise error(topic.name)
            for partition in topic.partitions:
                if partition.error_code:
                    raise kafka.errors.for_code(partition.error_code)(f"{topic.name}-{partition.partition_index}")
                found[topic.name, partition.partition_index] = partition.leader_id
        self._known |= found
        return list(found)


def _producers(partitions: Partitions) -> DescribeProducersRequest:
    of_topic = DescribeProducersRequest.TopicRequest
    topics = [of_topic(name=name, partition_indexes=list(partitions[name])) for name in partitions]
    return DescribeProducersRequest(topics=topics)


def _ends(level: IsolationLevel, numbers: Partitions) -> ListOffsetsRequest:
    """The request for how far readers of this isolation level may read."""
    of_topic = ListOffsetsRequest.ListOffsetsTopic
    end = functools.partial(of_topic.ListOffsetsPartition, timestamp=_END, current_leader_epoch=-1)
    topics = [of_topic(name=name, partitions=[end(partition_index=n) for n in numbers[name]]) for name in numbers]
    return ListOffsetsRequest(replica_id=-1, isolation_level=level, topics=topics, min_version=_ISOLATION)


@functools.cache
def _warn_of_missing_right(right: str, topic: str) -> None:
    """Once a process."""
    logger.warning(
        "the brokers deny %s on topic %s: whether Kafka leaves a transaction's marker out there (KAFKA-20734) can't be"
        " seen, nor mended. Grant it to this principal.",
        right,
        topic,
    )
