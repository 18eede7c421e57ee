"""Every request that this plugin sends to a broker, built in one place. No I/O.

A version is pinned only where another one would do something else. Otherwise each connection takes the newest version
that it shares with its broker. Source: Kafka's protocol guide, and the improvement proposal (KIP) that a line names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from kafka.protocol.admin.cluster import DescribeClusterRequest
from kafka.protocol.admin.configs import DescribeConfigsRequest
from kafka.protocol.admin.groups import ListGroupsRequest
from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer.offsets import IsolationLevel, ListOffsetsRequest
from kafka.protocol.metadata import ApiVersionsRequest, CoordinatorType, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)

from twopc_kafka.answers import EPOCH_BUMPING_END_TXN, ProducerIdentity
from twopc_kafka.writers.encoding.produce import FIRST_COMPACT, Produce

if TYPE_CHECKING:
    from twopc_kafka.client.leaders import OpenInPartition

Partitions: TypeAlias = "Mapping[str, Collection[int]]"
"""Topic → numbers of its partitions."""

BROKER, TOPIC = 4, 2
"""DescribeConfigs' types of resource."""

ALTER = 7
"""The operation that writing a transaction's marker needs, by its number in the protocol."""

GRANTS_NO_TIMEOUT = 6
"""The version of InitProducerId that asks for two-phase commit, which is unstable (KIP-939)."""

FINDS_IN_BULK = 4
"""The version of FindCoordinator that takes several keys (Kafka 3.0, KIP-699)."""

LISTS_BY_PATTERN = 2
"""The version of ListTransactions that filters by id (Kafka 4.1, KIP-1152)."""

IMPLICIT_PARTITIONS = 2
"""The level of ``transaction.version`` from which a Produce adds its partitions to the transaction (KIP-890)."""

_TELLS_FEATURES = 3  # the version of ApiVersions that has the cluster's finalized features (KIP-584)
_LISTS_STATES = 4  # the version of ListGroups that has the groups' states (Kafka 2.6, KIP-518)
_HAS_ISOLATION = 2  # the version of ListOffsets that knows isolation levels
_END = -1  # ListOffsets' timestamp of the end that a reader of this isolation level may read to
_BY_CLIENTS = 3  # the last version of AddPartitionsToTxn that clients use
_AFTER_ADDING = 4  # later versions of TxnOffsetCommit add the group to the transaction themselves (KIP-890)
_IMPLICIT_PRODUCE = 12  # from this version on, a Produce adds its partitions to the transaction (KIP-890)
_EPOCH_OF_ITS_OWN = 2  # the version of transactions whose markers have one; older brokers accept the field, too
_ALL_REPLICAS = -1
_ACK_TIMEOUT_MS = 30_000  # how long a leader waits for its replicas; kafka-python waits as long for the answer


# The cluster. --------------------------------------------------------------------------------------------------------


def metadata(topics: Iterable[str] = ()) -> MetadataRequest:
    """The brokers, and each of ``topics``, of which the request creates none."""
    wanted = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    return MetadataRequest(topics=wanted, allow_auto_topic_creation=False)


def features() -> ApiVersionsRequest:
    """The versions that a broker speaks, and the features that the cluster has finalized."""
    return ApiVersionsRequest(
        client_software_name="twopc-kafka", client_software_version="1", min_version=_TELLS_FEATURES
    )


def operations() -> DescribeClusterRequest:
    """What this principal may do to the cluster."""
    return DescribeClusterRequest(include_cluster_authorized_operations=True)


def configuration(name: str, kind: int, of: str) -> DescribeConfigsRequest:
    """One setting of a ``BROKER`` or a ``TOPIC``."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=of, configuration_keys=[name]
    )
    return DescribeConfigsRequest(resources=[resource])


def coordinator(key: str, kind: CoordinatorType) -> FindCoordinatorRequest:
    """The coordinator of one transactional id or consumer group."""
    return FindCoordinatorRequest(key_type=kind.value, key=key, max_version=FINDS_IN_BULK - 1)


def coordinators(keys: Sequence[str], kind: CoordinatorType) -> FindCoordinatorRequest:
    """The coordinators of several."""
    return FindCoordinatorRequest(key_type=kind.value, coordinator_keys=keys, min_version=FINDS_IN_BULK)


def groups() -> ListGroupsRequest:
    """The consumer groups of a coordinator, with their states. DescribeGroups does not know the groups of the newer
    protocol (KIP-848)."""
    return ListGroupsRequest(min_version=_LISTS_STATES)


# Transactions, at their coordinators. ---------------------------------------------------------------------------------


def init_producer_id(transactional_id: str, timeout_ms: int | None) -> InitProducerIdRequest:
    """A new producer epoch. ``timeout_ms`` is that of its transaction; None asks for one without a timeout."""
    common = {"transactional_id": transactional_id, "producer_id": -1, "producer_epoch": -1}
    if timeout_ms is None:  # the brokers ignore the number
        return InitProducerIdRequest(**common, transaction_timeout_ms=1, enable2_pc=True, min_version=GRANTS_NO_TIMEOUT)
    return InitProducerIdRequest(**common, transaction_timeout_ms=timeout_ms, max_version=GRANTS_NO_TIMEOUT - 1)


def describe_transactions(transactional_ids: Sequence[str]) -> DescribeTransactionsRequest:
    """The last transaction of each id."""
    return DescribeTransactionsRequest(transactional_ids=transactional_ids)


def list_transactions(
    scope: str, states: Sequence[str], producer_ids: Sequence[int], by_pattern: bool
) -> ListTransactionsRequest:
    """The transactions in these states, or of these producers. Without ``by_pattern`` the broker lists ids that do not
    start with ``scope``, too."""
    pattern = {"transactional_id_pattern": f"{re.escape(scope)}.*"} if by_pattern else {}
    return ListTransactionsRequest(state_filters=states, producer_id_filters=producer_ids, **pattern)


def end_transaction(transactional_id: str, producer: ProducerIdentity, commit: bool, version: int) -> EndTxnRequest:
    """``version`` decides whether the end raises the producer's epoch, so nothing else will do."""
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=commit,
        min_version=version if version >= EPOCH_BUMPING_END_TXN else 0,
        max_version=version,
    )


def add_partitions(
    transactional_id: str, producer: ProducerIdentity, partitions: Partitions
) -> AddPartitionsToTxnRequest:
    """Add partitions to the transaction."""
    of_topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[of_topic(name=name, partitions=list(numbers)) for name, numbers in partitions.items()],
        max_version=_BY_CLIENTS,
    )


def add_offsets(transactional_id: str, producer: ProducerIdentity, group: str) -> AddOffsetsToTxnRequest:
    """Add a consumer group to the transaction."""
    return AddOffsetsToTxnRequest(**_of(transactional_id, producer), group_id=group)


def commit_offsets(
    transactional_id: str, producer: ProducerIdentity, group: str, offsets: Mapping[str, Mapping[int, int]]
) -> TxnOffsetCommitRequest:
    """Put offsets into the transaction, for the group's coordinator. ``offsets``: topic → partition → offset."""
    of_topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    of_partition = of_topic.TxnOffsetCommitRequestPartition
    topics = [
        of_topic(name=name, partitions=[of_partition(partition_index=n, committed_offset=o) for n, o in read.items()])
        for name, read in offsets.items()
    ]
    return TxnOffsetCommitRequest(
        **_of(transactional_id, producer), group_id=group, topics=topics, max_version=_AFTER_ADDING
    )


def _of(transactional_id: str, producer: ProducerIdentity) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
    }


# Partitions, at their leaders. ----------------------------------------------------------------------------------------


def produce(transactional_id: str, batches: Mapping[str, Mapping[int, Any]], implicit: bool) -> Produce:
    """``batches``: topic → partition → one encoded record batch. ``implicit``: the request also adds the partitions to
    the transaction."""
    topic = Produce.TopicProduceData
    versions = (_IMPLICIT_PRODUCE, _IMPLICIT_PRODUCE) if implicit else (FIRST_COMPACT, _IMPLICIT_PRODUCE - 1)
    return Produce(
        transactional_id=transactional_id,
        acks=_ALL_REPLICAS,
        timeout_ms=_ACK_TIMEOUT_MS,
        topic_data=[
            topic(
                name=name,
                partition_data=[topic.PartitionProduceData(index=n, records=data) for n, data in of_topic.items()],
            )
            for name, of_topic in batches.items()
        ],
        min_version=versions[0],
        max_version=versions[1],
    )


def end_offsets(level: IsolationLevel, partitions: Partitions) -> ListOffsetsRequest:
    """How far readers of this isolation level may read."""
    of_topic = ListOffsetsRequest.ListOffsetsTopic

    def end(number: int) -> Any:
        return of_topic.ListOffsetsPartition(partition_index=number, timestamp=_END, current_leader_epoch=-1)

    topics = [of_topic(name=name, partitions=[end(n) for n in numbers]) for name, numbers in partitions.items()]
    return ListOffsetsRequest(replica_id=-1, isolation_level=level, topics=topics, min_version=_HAS_ISOLATION)


def producers(partitions: Partitions) -> DescribeProducersRequest:
    """The producers that are active in ``partitions``, with the transactions that they have open there."""
    of_topic = DescribeProducersRequest.TopicRequest
    topics = [of_topic(name=name, partition_indexes=list(numbers)) for name, numbers in partitions.items()]
    return DescribeProducersRequest(topics=topics)


def marker(transaction: OpenInPartition, commit: bool) -> WriteTxnMarkersRequest:
    """The marker that ends a transaction in one partition. It has the epoch after the transaction's, so that it ends
    no later one."""
    of_transaction = WriteTxnMarkersRequest.WritableTxnMarker
    topic = of_transaction.WritableTxnMarkerTopic(name=transaction.topic, partition_indexes=[transaction.partition])
    return WriteTxnMarkersRequest(
        markers=[
            of_transaction(
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch + 1,
                transaction_result=commit,
                topics=[topic],
                coordinator_epoch=max(0, transaction.coordinator_epoch),
                transaction_version=_EPOCH_OF_ITS_OWN,
            )
        ]
    )
