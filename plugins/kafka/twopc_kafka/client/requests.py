"""The construction of every request that this plugin sends to a broker, and the error codes of some responses. No I/O.

A request's version is pinned only where another version would behave differently. Otherwise each connection uses the
newest version that both sides support. Source: Kafka's protocol guide, and the KIPs named below.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

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

from twopc_kafka.answers import EPOCH_BUMPING_END_TXN, OpenInPartition, ProducerIdentity
from twopc_kafka.writers.encoding.produce import FIRST_COMPACT, Produce

Partitions: TypeAlias = "Mapping[str, Collection[int]]"
"""Topic → numbers of partitions."""

BROKER, TOPIC = 4, 2
"""The resource types of DescribeConfigs."""

READ, WRITE, ALTER = 3, 4, 7
"""The protocol's numbers of operations. Writing a transaction's marker requires ALTER on the cluster."""

GRANTS_NO_TIMEOUT = 6
"""The first version of InitProducerId that can request two-phase commit. It is unstable (KIP-939)."""

FINDS_IN_BULK = 4
"""The first version of FindCoordinator that takes several keys (Kafka 3.0, KIP-699)."""

LISTS_BY_PATTERN = 2
"""The first version of ListTransactions that filters by id (Kafka 4.1, KIP-1152)."""

IMPLICIT_PARTITIONS = 2
"""The first ``transaction.version`` with which a Produce adds its partitions to the transaction (KIP-890)."""

_TELLS_FEATURES = 3  # the first version of ApiVersions with the cluster's finalized features (KIP-584)
_LISTS_STATES = 4  # the first version of ListGroups with the groups' states (Kafka 2.6, KIP-518)
_HAS_ISOLATION = 2  # the first version of ListOffsets with isolation levels
_END = -1  # the timestamp with which ListOffsets returns the end offset for the isolation level
_BY_CLIENTS = 3  # the last version of AddPartitionsToTxn for clients; later ones are for brokers
_AFTER_ADDING = 4  # the last version of TxnOffsetCommit that needs AddOffsetsToTxn before it (KIP-890)
_IMPLICIT_PRODUCE = 12  # the first version of Produce that adds its partitions to the transaction (KIP-890)
_EPOCH_OF_ITS_OWN = 2  # transaction.version 2, in which a marker has its own epoch; older brokers accept it
_ALL_REPLICAS = -1
_ACK_TIMEOUT_MS = 30_000  # how long a leader waits for its replicas; kafka-python's default for responses is the same


# The cluster. --------------------------------------------------------------------------------------------------------


def metadata(topics: Iterable[str] = ()) -> MetadataRequest:
    """Request the list of brokers, and the metadata of ``topics``. Creates no topic."""
    wanted = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    return MetadataRequest(topics=wanted, allow_auto_topic_creation=False)


def operations_on(topic: str | None) -> MetadataRequest:
    """Request the operations that this principal may perform on a topic, or on each topic that it may DESCRIBE. Creates
    no topic."""
    request = metadata([] if topic is None else [topic])
    if topic is None:
        request.topics = None
    request.include_topic_authorized_operations = True
    return request


def features() -> ApiVersionsRequest:
    """Request the versions that a broker supports, and the features that the cluster has finalized."""
    return ApiVersionsRequest(
        client_software_name="twopc-kafka", client_software_version="1", min_version=_TELLS_FEATURES
    )


def operations() -> DescribeClusterRequest:
    """Request the operations that this principal may perform on the cluster."""
    return DescribeClusterRequest(include_cluster_authorized_operations=True)


def configuration(kind: int, of: str, *names: str) -> DescribeConfigsRequest:
    """Request settings of a ``BROKER`` or a ``TOPIC``."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=of, configuration_keys=names
    )
    return DescribeConfigsRequest(resources=[resource])


def coordinator(key: str, kind: CoordinatorType) -> FindCoordinatorRequest:
    """Request the coordinator of one transactional id or consumer group."""
    return FindCoordinatorRequest(key_type=kind.value, key=key, max_version=FINDS_IN_BULK - 1)


def coordinators(keys: Sequence[str], kind: CoordinatorType) -> FindCoordinatorRequest:
    """Request the coordinators of several transactional ids or consumer groups."""
    return FindCoordinatorRequest(key_type=kind.value, coordinator_keys=keys, min_version=FINDS_IN_BULK)


def groups() -> ListGroupsRequest:
    """Request the consumer groups of a coordinator, with their states. DescribeGroups does not cover groups of the
    newer protocol (KIP-848)."""
    return ListGroupsRequest(min_version=_LISTS_STATES)


# Transactions, at their coordinators. ---------------------------------------------------------------------------------


def init_producer_id(transactional_id: str, timeout_ms: int | None) -> InitProducerIdRequest:
    """Request a new producer epoch. ``timeout_ms`` is the transaction's timeout, None for no timeout."""
    common = {"transactional_id": transactional_id, "producer_id": -1, "producer_epoch": -1}
    if timeout_ms is None:  # the brokers ignore the number
        return InitProducerIdRequest(**common, transaction_timeout_ms=1, enable2_pc=True, min_version=GRANTS_NO_TIMEOUT)
    return InitProducerIdRequest(**common, transaction_timeout_ms=timeout_ms, max_version=GRANTS_NO_TIMEOUT - 1)


def describe_transactions(transactional_ids: Sequence[str]) -> DescribeTransactionsRequest:
    """Request the state of each id's last transaction."""
    return DescribeTransactionsRequest(transactional_ids=transactional_ids)


def list_transactions(
    scope: str, states: Sequence[str], producer_ids: Sequence[int], by_pattern: bool
) -> ListTransactionsRequest:
    """Request the transactions in these states, or of these producers. Without ``by_pattern`` the response also
    contains ids that do not start with ``scope``."""
    pattern = {"transactional_id_pattern": f"{re.escape(scope)}.*"} if by_pattern else {}
    return ListTransactionsRequest(state_filters=states, producer_id_filters=producer_ids, **pattern)


def end_transaction(transactional_id: str, producer: ProducerIdentity, commit: bool, version: int) -> EndTxnRequest:
    """Commit or abort a transaction. ``version`` decides whether this raises the producer's epoch, so it is pinned."""
    return EndTxnRequest(
        **_of(transactional_id, producer),
        committed=commit,
        min_version=version if version >= EPOCH_BUMPING_END_TXN else 0,
        max_version=version,
    )


def add_partitions(
    transactional_id: str, producer: ProducerIdentity, partitions: Partitions
) -> AddPartitionsToTxnRequest:
    """Add partitions to a transaction."""
    of_topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[of_topic(name=name, partitions=list(numbers)) for name, numbers in partitions.items()],
        max_version=_BY_CLIENTS,
    )


def add_offsets(transactional_id: str, producer: ProducerIdentity, group: str) -> AddOffsetsToTxnRequest:
    """Add a consumer group to a transaction."""
    return AddOffsetsToTxnRequest(**_of(transactional_id, producer), group_id=group)


def commit_offsets(
    transactional_id: str, producer: ProducerIdentity, group: str, offsets: Mapping[str, Mapping[int, int]]
) -> TxnOffsetCommitRequest:
    """Write a consumer group's offsets in a transaction. ``offsets``: topic → partition → offset."""
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


def codes_in(response: Any) -> set[int]:
    """Return the error codes of a response to AddPartitionsToTxn, AddOffsetsToTxn or TxnOffsetCommit."""
    if hasattr(response, "results_by_topic_v3_and_below"):
        topics = response.results_by_topic_v3_and_below
        return {partition.partition_error_code for topic in topics for partition in topic.results_by_partition}
    if hasattr(response, "topics"):
        return {partition.error_code for topic in response.topics for partition in topic.partitions}
    return {response.error_code}


# Partitions, at their leaders. ----------------------------------------------------------------------------------------


def produce(transactional_id: str | None, batches: Mapping[str, Mapping[int, Any]], implicit: bool) -> Produce:
    """Write record batches.

    Args:
        transactional_id: the transaction's name, or None for no transaction.
        batches: topic → partition → one encoded record batch.
        implicit: whether the request also adds the partitions to the transaction.
    """
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
    """Request how far readers of this isolation level may read in each partition."""
    of_topic = ListOffsetsRequest.ListOffsetsTopic

    def end(number: int) -> Any:
        return of_topic.ListOffsetsPartition(partition_index=number, timestamp=_END, current_leader_epoch=-1)

    topics = [of_topic(name=name, partitions=[end(n) for n in numbers]) for name, numbers in partitions.items()]
    return ListOffsetsRequest(replica_id=-1, isolation_level=level, topics=topics, min_version=_HAS_ISOLATION)


def producers(partitions: Partitions) -> DescribeProducersRequest:
    """Request the active producers of ``partitions``, with the transactions that they have open there."""
    of_topic = DescribeProducersRequest.TopicRequest
    topics = [of_topic(name=name, partition_indexes=list(numbers)) for name, numbers in partitions.items()]
    return DescribeProducersRequest(topics=topics)


def marker(transaction: OpenInPartition, commit: bool) -> WriteTxnMarkersRequest:
    """Write the marker that ends a transaction in one partition. The marker carries the transaction's epoch plus one,
    so it can't end a later transaction."""
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
