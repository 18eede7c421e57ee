"""The data plane of progress: a consumer group's offsets into one transaction, over the Arrow writer's connections.

Not through librdkafka, as the records: where no broker answers, its ``send_offsets_to_transaction`` does not return,
whatever the time-out (2.16, measured).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.producer.transaction import AddOffsetsToTxnRequest, TxnOffsetCommitRequest

from twopc.errors import ConfigurationError, RoundAborted
from twopc_kafka.client.cluster import NotSent, Patience, Unanswered, connect, roll_back
from twopc_kafka.client.error_codes import Answer, failure, meaning
from twopc_kafka.options import KafkaOptions
from twopc_kafka.writers.librdkafka import ProducerIdentity
from twopc_kafka.writers.settings import settings

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = {"topic": "string", "partition": "int32", "offset": "int64"}

_AFTER_ADDING = 4  # later versions of TxnOffsetCommit add the group to the transaction themselves (KIP-890)
_UNKNOWN_TOPIC = 3


class OffsetsWriter:
    """What ``ArrowWriter`` is for records."""

    topic_ids: Mapping[str, str] = MappingProxyType({})  # of no topic that somebody may delete

    def __init__(self, options: KafkaOptions, transactional_id: str, group: str, was_used: bool) -> None:
        """Begin. Raises like ``ArrowWriter``."""
        self._options = options
        self._group = group
        self._timeout_ms = settings(options.properties).timeout_ms
        self._cluster = connect(options.control, self._timeout_ms)
        self._transaction = self._cluster.run(
            self._cluster.begin, transactional_id, was_used, options.timeout_to_begin_with_ms, self._timeout_ms
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the offsets to the transaction. On return they are durable, and no reader's yet.

        Raises:
            RoundAborted: the brokers did not take them.
            ConfigurationError: they don't have one of the topics.
            OperatorRequired: they deny the group or a topic.
        """
        name, producer = self._transaction.transactional_id, self._transaction.producer
        common = {"transactional_id": name, "group_id": self._group}
        identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        add = AddOffsetsToTxnRequest(**common, **identity)
        commit = TxnOffsetCommitRequest(**common, **identity, topics=_topics(batch), max_version=_AFTER_ADDING)
        self._cluster.run(self._until_taken, add, CoordinatorType.TRANSACTION, name)
        self._cluster.run(self._until_taken, commit, CoordinatorType.GROUP, self._group)

    def finish(self) -> ProducerIdentity:
        """All is acknowledged already."""
        return self._transaction.producer

    def abort(self) -> None:
        """Roll the transaction back."""
        roll_back(self._options.control, self._transaction)

    async def _until_taken(self, request: Any, kind: CoordinatorType, key: str) -> None:
        """Have the one who coordinates ``key`` take a request; what is refused for now is repeated."""
        what = (
            f"to put offsets of consumer group {self._group!r} into transaction {self._transaction.transactional_id} at"
            f" {self._cluster.servers}"
        )
        patience = Patience(what, self._timeout_ms)
        while True:
            try:
                codes = await self._answer(request, kind, key)
            except Unanswered as error:
                raise RoundAborted(f"{what} got no answer: {error}. The batch can be run again.") from error
            except NotSent as error:
                last = f"{error}. Is the broker up? 'message.timeout.ms' bounds the wait."
            else:
                if codes == {0}:
                    return
                if _UNKNOWN_TOPIC in codes:
                    raise ConfigurationError(
                        f"{what} was refused: the brokers don't have all topics that the query reads. The group must be"
                        " on the one cluster that it reads from."
                    )
                refused = [meaning(code) for code in sorted(codes - {0})]
                for answer in refused:
                    if answer.answer is not Answer.REPEAT:
                        raise failure(answer, f"{what} was refused")
                last = f"{refused[0].name}. {refused[0].advice}"
            await self._cluster.sleep(patience.pause_s(last))

    async def _answer(self, request: Any, kind: CoordinatorType, key: str) -> set[int]:
        code, node = await self._cluster.coordinator(key, kind)
        if code:
            return {code}
        await self._cluster.reach(node)  # a query may rest longer than brokers keep a connection
        return _codes(await self._cluster.send(node, request))


def _topics(batch: pa.RecordBatch) -> list[Any]:
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partitions: dict[str, list[Any]] = defaultdict(list)
    for row in batch.to_pylist():
        partitions[row["topic"]].append(
            topic.TxnOffsetCommitRequestPartition(partition_index=row["partition"], committed_offset=row["offset"])
        )
    return [topic(name=name, partitions=of_topic) for name, of_topic in partitions.items()]


def _codes(response: Any) -> set[int]:
    if hasattr(response, "topics"):
        return {partition.error_code for topic in response.topics for partition in topic.partitions}
    return {response.error_code}
