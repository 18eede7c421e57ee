"""The handle of a committable, with which any process can commit or abort exactly this transaction. No I/O.

===================  =======================================================================
key                  content
===================  =======================================================================
``producer_id``      with the epoch, the transaction's identity
``producer_epoch``   the epoch
``has_timeout``      ``False`` if Kafka never rolls the transaction back by itself
``topic_ids``        topic → its Kafka topic id, if known
``end_txn_version``  the version of EndTxn that ends the transaction; added by ``seal``
``partitions``       topic → the partitions written to; added by ``seal``
``marker_topic``     the topic of the batch's marker, if it gets one
``marker_cluster``   Kafka's id of the cluster that has this topic; added by ``seal``
``written``          for the marker: topic → rows of partition, records and end offset
``hanging``          the partition in which the transaction hangs: ``twopc_kafka.hanging``
===================  =======================================================================
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from twopc.errors import OutcomeUnknown
from twopc.transaction import Committable
from twopc_kafka.answers import TransactionState

_LARGEST = {"producer_id": 2**63 - 1, "producer_epoch": 2**15 - 1, "end_txn_version": 2**15 - 1}  # Kafka's types


def identity_of(committable: Committable) -> tuple[int, int]:
    """Return the producer id and epoch."""
    return _number(committable, "producer_id"), _number(committable, "producer_epoch")


def version_of(committable: Committable, default: int | None = None) -> int:
    """Return the version of EndTxn that ends the transaction. A repeat must use the same version."""
    is_known = "end_txn_version" in committable.handle
    return default if default is not None and not is_known else _number(committable, "end_txn_version")


def has_timeout(committable: Committable) -> bool:
    """Return whether Kafka rolls the transaction back if its commit takes too long."""
    return committable.handle.get("has_timeout") is not False


def topic_ids_of(committable: Committable) -> dict[str, str]:
    """Return the known ids of the topics that the transaction wrote to, by topic name."""
    known = committable.handle.get("topic_ids")
    return {topic: str(id) for topic, id in known.items()} if isinstance(known, dict) else {}


def partitions_of(committables: Iterable[Committable]) -> dict[str, Collection[int]]:
    """Return all partitions that the transactions wrote to, by topic.

    Raises:
        OutcomeUnknown: the record of a transaction has no partitions.
    """
    of_topic: dict[str, set[int]] = defaultdict(set)
    for committable in committables:
        written_to = committable.handle.get("partitions")
        if not isinstance(written_to, dict):
            raise OutcomeUnknown(f"the record of transaction {committable.transaction_id} has no partitions")
        for topic, numbers in written_to.items():
            of_topic[topic].update(numbers)  # type: ignore[arg-type]
    return dict(of_topic)


def is_ongoing(state: TransactionState | None, committable: Committable) -> bool:
    """Return whether this very transaction is still ongoing, according to its coordinator's ``state``."""
    return state == TransactionState("Ongoing", *identity_of(committable))


def _number(committable: Committable, name: str) -> int:
    value = committable.handle.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST[name]:
        raise OutcomeUnknown(f"the record of transaction {committable.transaction_id} has no {name}: {value!r}")
    return value
