"""What the brokers' error codes mean to a transaction that is being written, as one table. No I/O.

It covers Produce, InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and TxnOffsetCommit: a code means the same in all
of them. What the table does not have says nothing certain, and fails the task as everything unclear does: the batch is
run again.

Repeating is right for two reasons only. Either the broker refused before it did anything; or, as with a leader that has
moved, the same sequence numbers make the next leader take the records once, whether or not it has them already.
Source: Kafka's ``Errors``, and what ``ReplicaManager`` and ``TransactionCoordinator`` answer with them (4.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from twopc.errors import ConfigurationError, RecordRefused, RoundAborted, TwoPhaseCommitError
from twopc_kafka.client.control import denied


class Answer(Enum):
    """What to do about an error code."""

    DONE = "done"
    REPEAT = "repeat"  # the same request, after asking again who leads
    RUN_AGAIN = "run again"  # the task has failed, and the batch may be run again
    CORRECT = "correct"  # an option or a broker's setting: the query would fail again
    REFUSED = "refused"  # these records, or the topic's settings: they would be refused again
    DENIED = "denied"  # a right is missing: the query would fail again


@dataclass(frozen=True, slots=True)
class Meaning:
    """An error code's name at Kafka, what to do about it, and what to tell a person to look at."""

    name: str
    answer: Answer
    advice: str = "The batch can be run again."


_NEWER_WRITER = "A newer attempt has taken over this transactional id; it is the one that counts."
_NO_LEADER = "Has the partition a leader, on a broker that is up? 'message.timeout.ms' bounds the wait."
_COORDINATOR = "Are the brokers of __transaction_state up? 'message.timeout.ms' bounds the wait."
_REPLICAS = "The topic's min.insync.replicas are not in sync: are all brokers up? 'message.timeout.ms' bounds the wait."
_NOT_OPEN = "The transaction was ended by another, or by its time-out: a longer 'transaction.timeout.ms' helps then."
_TOO_LARGE = (
    "A batch is too large for the topic. Raise the topic's max.message.bytes; or lower the sink's 'batch.size', which"
    " helps where a batch has several records, or 'message.max.bytes', which refuses large records earlier."
)

MEANINGS: dict[int, Meaning] = {
    0: Meaning("NONE", Answer.DONE),
    # Before anything was done, or once for all by the sequence numbers.
    3: Meaning("UNKNOWN_TOPIC_OR_PARTITION", Answer.REPEAT, "The topic does not exist: create it with the partitions"
               " that you want."),
    5: Meaning("LEADER_NOT_AVAILABLE", Answer.REPEAT, _NO_LEADER),
    6: Meaning("NOT_LEADER_OR_FOLLOWER", Answer.REPEAT, _NO_LEADER),
    14: Meaning("COORDINATOR_LOAD_IN_PROGRESS", Answer.REPEAT, _COORDINATOR),
    15: Meaning("COORDINATOR_NOT_AVAILABLE", Answer.REPEAT, _COORDINATOR),
    16: Meaning("NOT_COORDINATOR", Answer.REPEAT, _COORDINATOR),
    19: Meaning("NOT_ENOUGH_REPLICAS", Answer.REPEAT, _REPLICAS),
    51: Meaning("CONCURRENT_TRANSACTIONS", Answer.REPEAT, "The id's earlier transaction is still being ended."
                " 'message.timeout.ms' bounds the wait."),
    89: Meaning("THROTTLING_QUOTA_EXCEEDED", Answer.REPEAT, "The client's quota is used up: raise it."),
    # Unclear, or certain to fail again in this transaction.
    -1: Meaning("UNKNOWN_SERVER_ERROR", Answer.RUN_AGAIN, "The broker's log tells what happened."),
    2: Meaning("CORRUPT_MESSAGE", Answer.RUN_AGAIN, "A batch was changed on its way, or the topic needs keys (it is"
               " compacted) and a record has none."),
    7: Meaning("REQUEST_TIMED_OUT", Answer.RUN_AGAIN, "The replicas did not follow in time: are all brokers up?"),
    10: Meaning("MESSAGE_TOO_LARGE", Answer.REFUSED, _TOO_LARGE),
    13: Meaning("NETWORK_EXCEPTION", Answer.RUN_AGAIN),
    18: Meaning("RECORD_LIST_TOO_LARGE", Answer.REFUSED, "A batch is larger than the topic's segment.bytes. Raise that;"
               " or lower the sink's 'batch.size', which helps where a batch has several records."),
    20: Meaning("NOT_ENOUGH_REPLICAS_AFTER_APPEND", Answer.RUN_AGAIN, "The topic's min.insync.replicas fell out of sync"
                " while it was written: are all brokers up?"),
    32: Meaning("INVALID_TIMESTAMP", Answer.REFUSED, "Column 'timestamp' is too far from the broker's clock: see the"
                " topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms."),
    42: Meaning("INVALID_REQUEST", Answer.RUN_AGAIN, "Is 'transactional.id.prefix' used by producers of another kind?"),
    45: Meaning("OUT_OF_ORDER_SEQUENCE_NUMBER", Answer.RUN_AGAIN, "The broker lacks records that it had acknowledged:"
                " was the topic deleted and created again? Else look at unclean.leader.election.enable."),
    46: Meaning("DUPLICATE_SEQUENCE_NUMBER", Answer.RUN_AGAIN),
    47: Meaning("INVALID_PRODUCER_EPOCH", Answer.RUN_AGAIN, _NEWER_WRITER),
    48: Meaning("INVALID_TXN_STATE", Answer.RUN_AGAIN, _NOT_OPEN),
    49: Meaning("INVALID_PRODUCER_ID_MAPPING", Answer.RUN_AGAIN, _NEWER_WRITER),
    52: Meaning("TRANSACTION_COORDINATOR_FENCED", Answer.RUN_AGAIN),
    55: Meaning("OPERATION_NOT_ATTEMPTED", Answer.RUN_AGAIN),
    56: Meaning("KAFKA_STORAGE_ERROR", Answer.RUN_AGAIN, "A broker's disk has failed: see its log."),
    59: Meaning("UNKNOWN_PRODUCER_ID", Answer.RUN_AGAIN),
    87: Meaning("INVALID_RECORD", Answer.REFUSED, "The topic does not take such records: one that is compacted needs"
                " keys, and column 'timestamp' must be near the broker's clock."),
    90: Meaning("PRODUCER_FENCED", Answer.RUN_AGAIN, _NEWER_WRITER),
    100: Meaning("UNKNOWN_TOPIC_ID", Answer.RUN_AGAIN, "The topic was deleted and made again meanwhile."),
    120: Meaning("TRANSACTION_ABORTABLE", Answer.RUN_AGAIN),
    # Wrong until a person acts.
    17: Meaning("INVALID_TOPIC_EXCEPTION", Answer.REFUSED, "The topic does not exist and could not by its name, or it"
                " is internal: give another, as the option or in column 'topic'."),
    21: Meaning("INVALID_REQUIRED_ACKS", Answer.CORRECT, "The broker does not take acks=all: is it a Kafka?"),
    35: Meaning("UNSUPPORTED_VERSION", Answer.CORRECT, "The brokers are too old: Kafka 3.0 or later is needed."),
    43: Meaning("UNSUPPORTED_FOR_MESSAGE_FORMAT", Answer.CORRECT, "The topic's message.format.version is too old for"
                " transactions."),
    50: Meaning("INVALID_TRANSACTION_TIMEOUT", Answer.CORRECT, "'transaction.timeout.ms' is more than the broker's"
                " transaction.max.timeout.ms: set the one lower or the other higher."),
    76: Meaning("UNSUPPORTED_COMPRESSION_TYPE", Answer.CORRECT, "The broker does not know this 'compression.type'."),
    29: Meaning("TOPIC_AUTHORIZATION_FAILED", Answer.DENIED),
    30: Meaning("GROUP_AUTHORIZATION_FAILED", Answer.DENIED),
    31: Meaning("CLUSTER_AUTHORIZATION_FAILED", Answer.DENIED),
    53: Meaning("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", Answer.DENIED),
}  # fmt: skip
"""Error code → its meaning."""


def meaning(code: int) -> Meaning:
    """What ``code`` means, also of one that a newer broker has added."""
    return MEANINGS.get(code, Meaning(f"error code {code}", Answer.RUN_AGAIN))


UNKNOWN_TOPIC = MEANINGS[3]


def failure(what: Meaning, happened: str) -> TwoPhaseCommitError:
    """The error for an answer that ends the task."""
    match what.answer:
        case Answer.DENIED:
            return denied(f"{happened}: {what.name}")
        case Answer.CORRECT | Answer.REFUSED:
            return ConfigurationError(f"{happened}: {what.name}. {what.advice}")
        case _:
            return RoundAborted(f"{happened}: {what.name}. {what.advice}")


def records_refused(what: Meaning, servers: str, topic: str, partition: int | None) -> RecordRefused:
    """The error for records that the brokers refuse. What they say of them is left out, as it may show a value."""
    return RecordRefused(
        f"the brokers at {servers} refuse records: {what.name}. {what.advice}", topic=topic, partition=partition
    )
