"""The data plane of offsets: writes a consumer group's offsets in one transaction, over the Arrow writer's connections.

librdkafka is not used, because its ``send_offsets_to_transaction`` does not return while no broker answers, whatever
the timeout (measured with 2.16).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kafka.protocol.metadata import CoordinatorType

from twopc.errors import ConfigurationError
from twopc_kafka.answers import UNKNOWN_TOPIC, Meaning, ProducerIdentity, WriteAnswer, meaning
from twopc_kafka.client import requests
from twopc_kafka.client.cluster import cluster_of
from twopc_kafka.client.control import control_of
from twopc_kafka.client.retry import until_accepted
from twopc_kafka.ending import roll_back
from twopc_kafka.markers import Written
from twopc_kafka.options import KafkaOptions
from twopc_kafka.writers.settings import settings

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = {"topic": "string", "partition": "int32", "offset": "int64"}


class OffsetsWriter:
    """Writes offsets in a transaction, with the interface of ``ArrowWriter``."""

    topic_ids: Mapping[str, str] = MappingProxyType({})  # no user may delete the topic of offsets
    written: Written = MappingProxyType({})

    def __init__(self, options: KafkaOptions, transactional_id: str, group: str, was_used: bool) -> None:
        """Begin a transaction. Raises like ``ArrowWriter``."""
        self._options = options
        self._group = group
        self._timeout_ms = settings(options.properties).timeout_ms
        self._cluster = cluster_of(options.control, self._timeout_ms)
        self._transaction = self._cluster.run(
            self._cluster.begin, transactional_id, was_used, options.timeout_to_begin_with_ms, self._timeout_ms
        )
        # If the group were added again after a rollback, and transaction.version is below 2, this would begin another
        # transaction of the same name, and the vote would cover only a part of the offsets.
        self._group_is_added = False

    def write(self, batch: pa.RecordBatch) -> None:
        """Add offsets to the transaction. On return they are durable, but not visible to readers.

        Raises:
            RoundAborted: the brokers did not accept the offsets.
            ConfigurationError: one of the topics does not exist.
            OperatorRequired: the brokers deny this principal the group or a topic.
        """
        name, producer = self._transaction.transactional_id, self._transaction.producer
        if not self._group_is_added:
            add = requests.add_offsets(name, producer, self._group)
            self._cluster.run(self._until_accepted, add, CoordinatorType.TRANSACTION, name)
            self._group_is_added = True
        commit = requests.commit_offsets(name, producer, self._group, _offsets(batch))
        self._cluster.run(self._until_accepted, commit, CoordinatorType.GROUP, self._group)

    def finish(self) -> ProducerIdentity:
        """Return the transaction's identity. All offsets have been acknowledged already."""
        return self._transaction.producer

    def abort(self) -> None:
        """Roll the transaction back."""
        roll_back(control_of(self._options.control), self._transaction)

    async def _until_accepted(self, request: Any, kind: CoordinatorType, key: str) -> None:
        what = (
            f"adding offsets of consumer group {self._group!r} to transaction {self._transaction.transactional_id} at"
            f" {self._cluster.servers}"
        )

        async def ask() -> tuple[Meaning, None]:
            code, node = await self._cluster.coordinator(key, kind)
            if code:
                return meaning(code), None
            await self._cluster.reach(node)  # a query may be idle for longer than brokers keep a connection
            codes = requests.codes_in(await self._cluster.send(node, request))
            if UNKNOWN_TOPIC in codes:
                raise ConfigurationError(
                    f"{what} was refused: the brokers don't have all topics that the query reads. The group must be on"
                    " the cluster that the query reads from, and that must be a single cluster."
                )
            refused = [meaning(code) for code in sorted(codes - {0})] or [meaning(0)]
            return next((each for each in refused if each.answer is not WriteAnswer.REPEAT), refused[0]), None

        await until_accepted(what, self._timeout_ms, ask, self._cluster.sleep)


def _offsets(batch: pa.RecordBatch) -> dict[str, dict[int, int]]:
    """Return the offsets by topic and partition."""
    offsets: dict[str, dict[int, int]] = defaultdict(dict)
    for row in batch.to_pylist():
        offsets[row["topic"]][row["partition"]] = row["offset"]
    return offsets
