"""What Kafka's answers mean, as tables. No I/O: each row was measured on a broker (4.3.1) or read in its source.

An error code means one thing to a request that writes, and may mean another to EndTxn. A writer may repeat a request
for two reasons only. Either the broker refused it before it did anything, or the same sequence numbers make the next
leader take the records once, whether or not it has them already. EndTxn may always be repeated, as an epoch names
exactly one transaction. But an error alone does not distinguish a rollback from a commit whose id was used again, so
the transaction is described before its outcome is judged.

An EndTxn of version 5 or later (Kafka 4.0, ``transaction.version`` 2) raises the producer's epoch by one when it ends
the transaction. Up to version 4 it leaves the epoch alone. A rollback by timeout always raises it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import kafka.errors

from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    RecordRefused,
    RoundAborted,
    TwoPhaseCommitError,
)

EPOCH_BUMPING_END_TXN = 5


class Answer(Enum):
    """What to do about an error code."""

    DONE = "done"
    REPEAT = "repeat"  # the same request, after asking again who leads or coordinates
    RUN_AGAIN = "run again"  # the task has failed, and the batch may be run again
    CORRECT = "correct"  # an option or a broker's setting: the query would fail again
    REFUSED = "refused"  # these records, or the topic's settings: they would be refused again
    DENIED = "denied"  # a right is missing: the query would fail again
    DESCRIBE = "describe"  # of EndTxn alone: the code leaves open what became of the transaction
    STUCK = "stuck"  # of EndTxn alone: the coordinator can't end the transaction before an operator acts


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of an error code.

    Attributes:
        name: Kafka's.
        answer: what a writer does about it.
        advice: where a user should look.
        to_end: what to do about it when EndTxn was asked for.
    """

    name: str
    answer: Answer
    advice: str = "The batch can be run again."
    to_end: Answer = Answer.DESCRIBE


_NEWER_WRITER = "A newer attempt has taken over this transactional id; it is the one that counts."
_NO_LEADER = "Has the partition a leader, on a broker that is up? 'message.timeout.ms' bounds the wait."
_COORDINATOR = "Are the brokers of __transaction_state up? 'message.timeout.ms' bounds the wait."
_REPLICAS = "The topic's min.insync.replicas are not in sync: are all brokers up? 'message.timeout.ms' bounds the wait."
_NOT_OPEN = (
    "The transaction was ended by another process, or by its timeout: a longer 'transaction.timeout.ms' helps then."
)
_TOO_LARGE = (
    "A batch is too large for the topic. Raise the topic's max.message.bytes; or lower the sink's 'batch.size', which"
    " helps where a batch has several records, or 'message.max.bytes', which refuses large records earlier."
)

UNKNOWN_TOPIC = 3
NO_LEADER = 5
NOT_LEADER = 6
INVALID_TOPIC = 17
DUPLICATE_SEQUENCE_NUMBER = 46
INVALID_TRANSACTION_TIMEOUT = 50
OPERATION_NOT_ATTEMPTED = 55
TRANSACTIONAL_ID_NOT_FOUND = 105

MEANINGS: dict[int, Meaning] = {
    0: Meaning("NO_ERROR", Answer.DONE, to_end=Answer.DONE),
    # Before anything was done, or once for all by the sequence numbers.
    3: Meaning("UNKNOWN_TOPIC_OR_PARTITION", Answer.REPEAT, "The topic does not exist: create it with the partitions"
               " that you want."),
    5: Meaning("LEADER_NOT_AVAILABLE", Answer.REPEAT, _NO_LEADER),
    6: Meaning("NOT_LEADER_OR_FOLLOWER", Answer.REPEAT, _NO_LEADER),
    14: Meaning("COORDINATOR_LOAD_IN_PROGRESS", Answer.REPEAT, _COORDINATOR, to_end=Answer.REPEAT),
    15: Meaning("COORDINATOR_NOT_AVAILABLE", Answer.REPEAT, _COORDINATOR, to_end=Answer.REPEAT),
    16: Meaning("NOT_COORDINATOR", Answer.REPEAT, _COORDINATOR, to_end=Answer.REPEAT),
    19: Meaning("NOT_ENOUGH_REPLICAS", Answer.REPEAT, _REPLICAS),
    51: Meaning("CONCURRENT_TRANSACTIONS", Answer.REPEAT, "The id's earlier transaction is still being ended."
                " 'message.timeout.ms' bounds the wait.", to_end=Answer.REPEAT),
    89: Meaning("THROTTLING_QUOTA_EXCEEDED", Answer.REPEAT, "The client's quota is used up: raise it."),
    # Unclear, or certain to fail again in this transaction.
    -1: Meaning("UNKNOWN_SERVER_ERROR", Answer.RUN_AGAIN, "The broker's log has the reason.", to_end=Answer.REPEAT),
    2: Meaning("CORRUPT_MESSAGE", Answer.RUN_AGAIN, "A batch was changed on its way, or the topic needs keys (it is"
               " compacted) and a record has none."),
    7: Meaning("REQUEST_TIMED_OUT", Answer.RUN_AGAIN, "The replicas did not follow in time: are all brokers up?",
               to_end=Answer.REPEAT),
    10: Meaning("MESSAGE_TOO_LARGE", Answer.REFUSED, _TOO_LARGE),
    13: Meaning("NETWORK_EXCEPTION", Answer.RUN_AGAIN, to_end=Answer.REPEAT),
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
    105: Meaning("TRANSACTIONAL_ID_NOT_FOUND", Answer.RUN_AGAIN),
    120: Meaning("TRANSACTION_ABORTABLE", Answer.RUN_AGAIN),
    # Wrong until an operator acts.
    17: Meaning("INVALID_TOPIC_EXCEPTION", Answer.REFUSED, "The topic does not exist and could not by its name, or it"
                " is internal: give another, as the option or in column 'topic'."),
    21: Meaning("INVALID_REQUIRED_ACKS", Answer.CORRECT, "The broker does not take acks=all: is it a Kafka?"),
    35: Meaning("UNSUPPORTED_VERSION", Answer.CORRECT, "The brokers are too old: Kafka 3.0 or later is needed.",
                to_end=Answer.STUCK),
    43: Meaning("UNSUPPORTED_FOR_MESSAGE_FORMAT", Answer.CORRECT, "The topic's message.format.version is too old for"
                " transactions."),
    50: Meaning("INVALID_TRANSACTION_TIMEOUT", Answer.CORRECT, "'transaction.timeout.ms' is more than the broker's"
                " transaction.max.timeout.ms: set the one lower or the other higher."),
    76: Meaning("UNSUPPORTED_COMPRESSION_TYPE", Answer.CORRECT, "The broker does not know this 'compression.type'."),
    29: Meaning("TOPIC_AUTHORIZATION_FAILED", Answer.DENIED),
    30: Meaning("GROUP_AUTHORIZATION_FAILED", Answer.DENIED),
    31: Meaning("CLUSTER_AUTHORIZATION_FAILED", Answer.DENIED, to_end=Answer.DENIED),
    53: Meaning("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", Answer.DENIED, to_end=Answer.DENIED),
}  # fmt: skip
"""Error code → its meaning. The codes are those of Produce, InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn,
TxnOffsetCommit, DescribeTransactions and EndTxn. Source: Kafka's ``Errors``, and what ``ReplicaManager`` and
``TransactionCoordinator`` answer with them (4.3)."""

_BY_NAME = {meaning.name: meaning for meaning in MEANINGS.values()}


def meaning(code: int) -> Meaning:
    """The meaning of ``code``. One that is not in the table, such as a newer broker's, leaves all open: it fails the
    task, and the batch is run again."""
    return MEANINGS.get(code) or Meaning(f"{kafka.errors.for_code(code).message} (error code {code})", Answer.RUN_AGAIN)


def to_end(name: str) -> Answer:
    """What to do about the error of that ``name`` (see ``Meaning.name``) when EndTxn was asked for."""
    return _BY_NAME[name].to_end if name in _BY_NAME else Answer.DESCRIBE


# The errors that follow. ----------------------------------------------------------------------------------------------


class NotCommitted(RoundAborted):
    """The last transaction of an id that is to be used again was not committed, or no broker reports that it was.

    The id is given up. Kafka may leave out a marker when it rolls a transaction back (KAFKA-20734), wherever that wrote
    and whoever ends it, and what hangs then becomes visible with the next commit of its producer. What is committed is
    not reported as complete before all its markers are there. Upholds: nothing undecided is ever visible.
    """

    def __init__(self, transactional_id: str, state: str) -> None:
        super().__init__(f"the last transaction of {transactional_id} is not known to be committed: {state}")


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
    """The error for records that the brokers refuse. Their own message is left out, as it may show a value."""
    return RecordRefused(
        f"the brokers at {servers} refuse records: {what.name}. {what.advice}", topic=topic, partition=partition
    )


def timeout_refused(timeout_ms: int) -> ConfigurationError:
    """The error for a transaction timeout that is longer than the broker grants."""
    return ConfigurationError(
        f"the broker refuses 'transaction.timeout.ms' = {timeout_ms}: it is more than the broker's"
        " transaction.max.timeout.ms. Set the sink's option lower, or the broker's setting higher."
    )


def denied(reason: str) -> OperatorRequired:
    """The error for what the brokers' access control refuses."""
    return OperatorRequired(
        f"the brokers deny what the sink needs: {reason}. Grant this principal WRITE and DESCRIBE on the transactional"
        " ids that start with the sink's 'transactional.id.prefix', WRITE and DESCRIBE on its topics, a kafka-offsets"
        " sink READ on its group and on the topics that are read, and start again: recovery goes on where this stopped."
    )


def lasting(error: BaseException) -> TwoPhaseCommitError | None:
    """The error for what kafka-python raised, if the same would be raised again until somebody acts; None for what may
    pass, such as a lost connection."""
    match error:
        case kafka.errors.SaslAuthenticationFailedError():
            return OperatorRequired(
                f"the brokers refuse the login: {error}. Correct 'sasl.username' and 'sasl.password' (of OAUTHBEARER:"
                " what the issuer grants, or whom the brokers expect), or what the brokers know of this user, and start"
                " again: recovery goes on where this stopped."
            )
        case kafka.errors.AuthorizationError():
            return denied(str(error))
        case kafka.errors.InvalidTopicError():
            return ConfigurationError(
                f"the brokers refuse the topic name {error.args[0]!r}, which no topic can have. Correct the option"
                " 'topic'."
            )
        case kafka.errors.UnsupportedVersionError():
            return ConfigurationError(f"the brokers are too old, Kafka 3.0 or later is needed: {error}")
        case _:
            return None


# Transactions. --------------------------------------------------------------------------------------------------------


class Outcome(Enum):
    """What is known of a transaction that should be committed."""

    COMMITTED = "committed"
    ONGOING = "ongoing"
    ENDING = "ending"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """What names a transaction at the broker, besides its transactional id."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class TransactionState:
    """A transaction as its coordinator describes it, with the partitions that have no marker yet."""

    state: str
    producer_id: int
    producer_epoch: int
    partitions: Mapping[str, Sequence[int]] = field(default_factory=dict, compare=False)

    @property
    def may_go_on(self) -> bool:
        """Whether the id may be used again: its last transaction was committed. "Empty" leaves open what was before: it
        follows whenever a client initializes the id, such as an operator's tool."""
        return self.state == "CompleteCommit"

    def precedes(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether no other transaction lies between this one and the answer of InitProducerId. A new producer id leaves
        behind whatever hangs."""
        return producer_id != self.producer_id or producer_epoch == self.producer_epoch + 1


def outcome(described: TransactionState | None, producer_id: int, epoch: int, end_txn_version: int) -> Outcome:
    """Judge what became of the transaction ``(producer_id, epoch)``, which was to be ended by ``end_txn_version``, or
    was ended by 4 as ``transaction.version`` had been lowered.

    ``described`` is the state that the id's coordinator reports now; None if it does not know the id.
    """
    if described is None or described.producer_id != producer_id:
        return Outcome.UNKNOWN  # expired, or the epochs ran out and the id has another producer
    ended_by_us = epoch + (1 if end_txn_version >= EPOCH_BUMPING_END_TXN else 0)
    match described.state, described.producer_epoch:
        case "Ongoing", at if at == epoch:
            return Outcome.ONGOING
        case "PrepareCommit" | "PrepareAbort" | "PrepareEpochFence", at if at in (epoch, epoch + 1):
            return Outcome.ENDING
        case "CompleteCommit", at if at in (epoch, ended_by_us):
            return Outcome.COMMITTED
        case "CompleteAbort", at if at in (epoch, epoch + 1):
            return Outcome.ROLLED_BACK  # by its own writer, which leaves the epoch alone; by timeout or by us
        case _:
            return Outcome.UNKNOWN  # the id was initialized again since


def hangs(described: TransactionState, epoch: int, end_txn_version: int) -> bool:
    """Whether ``(described.producer_id, epoch)`` was rolled back, given that a partition has it open *after* it was
    described like this. A commit by ``end_txn_version`` does not count: ``complete`` sees to its markers.
    """
    since = described.producer_epoch - epoch
    match described.state:
        case "CompleteAbort":
            return since >= 0
        case "Empty" | "Ongoing":
            return since >= 1  # its id was initialized again, for which it must have ended
        case "CompleteCommit":
            return since > (1 if end_txn_version >= EPOCH_BUMPING_END_TXN else 0)  # a later one
        case _:
            return since > 1
