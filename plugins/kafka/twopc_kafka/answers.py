"""The meaning of Kafka's error codes and transaction states, as tables. No I/O. Each row was measured on a broker
(4.3.1) or read in Kafka's source.

An error code means one thing to a request that writes, and may mean another to EndTxn. A writer may repeat a request in
two cases only. Either the broker rejected it before it had any effect, or the sequence numbers ensure that the next
leader appends the records once, whether or not it has them already. EndTxn may always be repeated, because an epoch
names exactly one transaction. But an error alone does not distinguish a rollback from a commit whose id has been used
again, so the transaction is described before its outcome is judged.

An EndTxn of version 5 or later (Kafka 4.0, ``transaction.version`` 2) raises the producer's epoch by one when it ends
the transaction. Up to version 4 it leaves the epoch unchanged. A rollback by timeout always raises it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import kafka.errors

from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    RecordRefused,
    Refused,
    Retriable,
    RoundAborted,
    TwoPhaseCommitError,
)

EPOCH_BUMPING_END_TXN = 5

NO_TIMEOUT_MS = 2**31 - 1
"""Kafka's value for a transaction without a timeout (KIP-939)."""


class WriteAnswer(Enum):
    """What a writer does about an error code. A writer's requests begin a transaction and add partitions, records and
    offsets to it."""

    DONE = "done"
    REPEAT = "repeat"  # the same request, after a new lookup of the leader or the coordinator
    RUN_AGAIN = "run again"  # the task has failed, and the batch can be run again
    CORRECT = "correct"  # an option or a broker setting is wrong: the query would fail again
    UNKNOWN = "unknown"  # the code is not in the table: an operator must read the brokers' logs
    REFUSED = "refused"  # the brokers would reject these records again
    DENIED = "denied"  # a right is missing: the query would fail again


class EndTxnAnswer(Enum):
    """What to do about an error code of EndTxn, the request that commits or aborts a transaction."""

    DONE = "done"
    REPEAT = "repeat"  # the same request, after a new lookup of the coordinator
    DENIED = "denied"  # a right is missing: the query would fail again
    DESCRIBE = "describe"  # the code leaves the outcome open: describe the transaction
    STUCK = "stuck"  # the coordinator can't end the transaction until an operator acts


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of an error code.

    Attributes:
        name: Kafka's name of the error.
        answer: what a writer does about it.
        advice: what a user should check or change.
        to_end: what to do if EndTxn returns the error.
    """

    name: str
    answer: WriteAnswer
    advice: str = "The batch can be run again."
    to_end: EndTxnAnswer = EndTxnAnswer.DESCRIBE


_UNKNOWN = (
    "This version of the sink does not know that answer, so it stops. The brokers' logs and Kafka's list of error codes"
    " say what it means; start again when its cause is removed."
)
_NEWER_WRITER = "A newer attempt has taken over this transactional id, and only that attempt counts."
_NO_LEADER = "Does the partition have a leader, and is that broker up?"
_COORDINATOR = (
    "Are all brokers up? Kafka has no transactions while it has fewer brokers than"
    " transaction.state.log.replication.factor or transaction.state.log.min.isr (3 and 2 by default), and no offsets of"
    " groups with fewer than offsets.topic.replication.factor (3). Lower those on each broker and restart it, or add"
    " brokers."
)
_GROUP = (
    "Only an empty consumer group takes the query's offsets: a share group or a group of Kafka Streams does not, nor a"
    " group with members. Give 'group.id' a name that no other application uses."
)
_REPLICAS = "Fewer replicas than the topic's min.insync.replicas are in sync: are all brokers up?"
_NOT_OPEN = (
    "The transaction was ended by another process or by its timeout. If it timed out, a longer 'transaction.timeout.ms'"
    " helps."
)
_TOO_LARGE = (
    "A batch is too large for the topic. Raise the topic's max.message.bytes. Or lower the sink's 'batch.size', which"
    " helps if the batch has several records, or 'message.max.bytes', which rejects large records earlier."
)

UNKNOWN_TOPIC = 3
NO_LEADER = 5
NOT_LEADER = 6
INVALID_TOPIC = 17
DUPLICATE_SEQUENCE_NUMBER = 46
INVALID_TIMESTAMP = 32
INVALID_TRANSACTION_TIMEOUT = 50
OPERATION_NOT_ATTEMPTED = 55
TRANSACTIONAL_ID_NOT_FOUND = 105

MEANINGS: dict[int, Meaning] = {
    0: Meaning("NO_ERROR", WriteAnswer.DONE, to_end=EndTxnAnswer.DONE),
    # The request had no effect, or the sequence numbers make a repeat safe.
    3: Meaning("UNKNOWN_TOPIC_OR_PARTITION", WriteAnswer.REPEAT,
               "The topic does not exist: create it with the partitions that you want."),
    5: Meaning("LEADER_NOT_AVAILABLE", WriteAnswer.REPEAT, _NO_LEADER),
    6: Meaning("NOT_LEADER_OR_FOLLOWER", WriteAnswer.REPEAT, _NO_LEADER),
    9: Meaning("REPLICA_NOT_AVAILABLE", WriteAnswer.REPEAT, _NO_LEADER),
    14: Meaning("COORDINATOR_LOAD_IN_PROGRESS", WriteAnswer.REPEAT, _COORDINATOR, to_end=EndTxnAnswer.REPEAT),
    15: Meaning("COORDINATOR_NOT_AVAILABLE", WriteAnswer.REPEAT, _COORDINATOR, to_end=EndTxnAnswer.REPEAT),
    16: Meaning("NOT_COORDINATOR", WriteAnswer.REPEAT, _COORDINATOR, to_end=EndTxnAnswer.REPEAT),
    19: Meaning("NOT_ENOUGH_REPLICAS", WriteAnswer.REPEAT, _REPLICAS),
    51: Meaning("CONCURRENT_TRANSACTIONS", WriteAnswer.REPEAT,
                "Kafka is still ending the id's previous transaction.",
                to_end=EndTxnAnswer.REPEAT),
    89: Meaning("THROTTLING_QUOTA_EXCEEDED", WriteAnswer.REPEAT, "The client's quota is used up: raise it."),
    74: Meaning("FENCED_LEADER_EPOCH", WriteAnswer.REPEAT, _NO_LEADER),
    75: Meaning("UNKNOWN_LEADER_EPOCH", WriteAnswer.REPEAT, _NO_LEADER),
    78: Meaning("OFFSET_NOT_AVAILABLE", WriteAnswer.REPEAT, _NO_LEADER),
    # The effect is unknown, or a repeat in this transaction is certain to fail.
    -1: Meaning("UNKNOWN_SERVER_ERROR", WriteAnswer.RUN_AGAIN, "The broker's log has the reason.",
                to_end=EndTxnAnswer.REPEAT),
    2: Meaning("CORRUPT_MESSAGE", WriteAnswer.RUN_AGAIN,
               "A batch was changed in transit, or the topic is compacted and a record has no key."),
    7: Meaning("REQUEST_TIMED_OUT", WriteAnswer.RUN_AGAIN,
               "The replicas did not follow in time: are all brokers up?", to_end=EndTxnAnswer.REPEAT),
    10: Meaning("MESSAGE_TOO_LARGE", WriteAnswer.REFUSED, _TOO_LARGE),
    13: Meaning("NETWORK_EXCEPTION", WriteAnswer.RUN_AGAIN, to_end=EndTxnAnswer.REPEAT),
    18: Meaning("RECORD_LIST_TOO_LARGE", WriteAnswer.REFUSED,
                "A batch is larger than the topic's segment.bytes. Raise that. Or lower the sink's 'batch.size', which"
                " helps if the batch has several records."),
    20: Meaning("NOT_ENOUGH_REPLICAS_AFTER_APPEND", WriteAnswer.RUN_AGAIN,
                "Too few of the topic's replicas (min.insync.replicas) stayed in sync during the write: are all brokers"
                " up?"),
    32: Meaning("INVALID_TIMESTAMP", WriteAnswer.REFUSED,
                "Column 'timestamp' is too far from the broker's clock; or, where it is null or absent, the clock of"
                " the task's machine is: set that. See the topic's message.timestamp.before.max.ms and"
                " message.timestamp.after.max.ms."),
    42: Meaning("INVALID_REQUEST", WriteAnswer.RUN_AGAIN,
                "Do producers of another kind use this 'transactional.id.prefix'?"),
    45: Meaning("OUT_OF_ORDER_SEQUENCE_NUMBER", WriteAnswer.RUN_AGAIN,
                "The broker lacks records that it had acknowledged: was the topic deleted and created again? If not,"
                " check unclean.leader.election.enable."),
    46: Meaning("DUPLICATE_SEQUENCE_NUMBER", WriteAnswer.RUN_AGAIN),
    47: Meaning("INVALID_PRODUCER_EPOCH", WriteAnswer.RUN_AGAIN, _NEWER_WRITER),
    48: Meaning("INVALID_TXN_STATE", WriteAnswer.RUN_AGAIN, _NOT_OPEN),
    49: Meaning("INVALID_PRODUCER_ID_MAPPING", WriteAnswer.RUN_AGAIN, _NEWER_WRITER),
    52: Meaning("TRANSACTION_COORDINATOR_FENCED", WriteAnswer.RUN_AGAIN),
    55: Meaning("OPERATION_NOT_ATTEMPTED", WriteAnswer.RUN_AGAIN),
    56: Meaning("KAFKA_STORAGE_ERROR", WriteAnswer.RUN_AGAIN, "A broker's disk has failed: see the broker's log."),
    59: Meaning("UNKNOWN_PRODUCER_ID", WriteAnswer.RUN_AGAIN),
    87: Meaning("INVALID_RECORD", WriteAnswer.REFUSED,
                "The topic rejects such records: a compacted topic needs keys, and column 'timestamp' must be near the"
                " broker's clock."),
    90: Meaning("PRODUCER_FENCED", WriteAnswer.RUN_AGAIN, _NEWER_WRITER),
    100: Meaning("UNKNOWN_TOPIC_ID", WriteAnswer.RUN_AGAIN, "The topic was deleted and created again meanwhile."),
    105: Meaning("TRANSACTIONAL_ID_NOT_FOUND", WriteAnswer.RUN_AGAIN),
    120: Meaning("TRANSACTION_ABORTABLE", WriteAnswer.RUN_AGAIN),
    # The request fails until an operator acts.
    17: Meaning("INVALID_TOPIC_EXCEPTION", WriteAnswer.REFUSED,
                "The topic is internal, or does not exist and can't, because its name is invalid. Give another topic,"
                " as the option or in column 'topic'."),
    21: Meaning("INVALID_REQUIRED_ACKS", WriteAnswer.CORRECT, "The broker rejects acks=all: is it Kafka?"),
    35: Meaning("UNSUPPORTED_VERSION", WriteAnswer.CORRECT,
                "The brokers are too old: Kafka 3.0 or later is needed.", to_end=EndTxnAnswer.STUCK),
    43: Meaning("UNSUPPORTED_FOR_MESSAGE_FORMAT", WriteAnswer.CORRECT,
                "The topic's message.format.version is too old for transactions."),
    50: Meaning("INVALID_TRANSACTION_TIMEOUT", WriteAnswer.CORRECT,
                "'transaction.timeout.ms' is longer than the broker's transaction.max.timeout.ms: lower the former or"
                " raise the latter."),
    24: Meaning("INVALID_GROUP_ID", WriteAnswer.CORRECT, _GROUP),
    25: Meaning("UNKNOWN_MEMBER_ID", WriteAnswer.CORRECT, _GROUP),
    44: Meaning("POLICY_VIOLATION", WriteAnswer.CORRECT,
                "The cluster's policy forbids what the options ask for: its operators know the policy."),
    69: Meaning("GROUP_ID_NOT_FOUND", WriteAnswer.CORRECT, _GROUP),
    76: Meaning("UNSUPPORTED_COMPRESSION_TYPE", WriteAnswer.CORRECT,
                "The broker does not support this 'compression.type'."),
    29: Meaning("TOPIC_AUTHORIZATION_FAILED", WriteAnswer.DENIED),
    30: Meaning("GROUP_AUTHORIZATION_FAILED", WriteAnswer.DENIED),
    31: Meaning("CLUSTER_AUTHORIZATION_FAILED", WriteAnswer.DENIED, to_end=EndTxnAnswer.DENIED),
    53: Meaning("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", WriteAnswer.DENIED, to_end=EndTxnAnswer.DENIED),
}  # fmt: skip
"""Error code → its meaning. The codes are those of Produce, InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn,
TxnOffsetCommit, DescribeTransactions and EndTxn. Source: Kafka's ``Errors``, and the responses of ``ReplicaManager``
and ``TransactionCoordinator`` (4.3)."""

_BY_NAME = {meaning.name: meaning for meaning in MEANINGS.values()}


def meaning(code: int) -> Meaning:
    """Return the meaning of ``code``. A code that is not in the table, such as a newer broker's, is neither temporary
    nor harmless: the query stops."""
    known = kafka.errors.kafka_errors.get(code)
    name = f"{known.message if known else 'an unknown error'} (error code {code})"
    return MEANINGS.get(code) or Meaning(name, WriteAnswer.UNKNOWN, _UNKNOWN)


def to_end(name: str) -> EndTxnAnswer:
    """Return what to do if EndTxn returns the error ``name`` (see ``Meaning.name``)."""
    return _BY_NAME[name].to_end if name in _BY_NAME else EndTxnAnswer.DESCRIBE


# Errors. --------------------------------------------------------------------------------------------------------------


class NotCommitted(RoundAborted):
    """A transactional id can't be used again, because its last transaction is not known to be committed.

    The id is given up. When Kafka rolls a transaction back, it may leave out the marker in any of its partitions
    (KAFKA-20734), whoever asked for the rollback. The hanging records become visible with the next commit of the same
    producer. A commit, in contrast, is reported as complete only when all its markers are written. Upholds: nothing
    undecided is ever visible.
    """

    def __init__(self, transactional_id: str, state: str) -> None:
        super().__init__(f"the last transaction of {transactional_id} is not known to be committed: {state}")


class Unprovable(Retriable):
    """This cluster can't prove that a coordinator's answer is current. Unlike Kafka, it does not choose coordinators by
    Java's hash, so no other id is certain to have the same coordinator."""


def failure(what: Meaning, happened: str) -> TwoPhaseCommitError:
    """Return the error for an answer that ends the task."""
    match what.answer:
        case WriteAnswer.DENIED:
            return denied(f"{happened}: {what.name}")
        case WriteAnswer.CORRECT | WriteAnswer.REFUSED:
            return ConfigurationError(f"{happened}: {what.name}. {what.advice}")
        case WriteAnswer.UNKNOWN:
            return Refused(f"{happened}: {what.name}. {what.advice}")
        case _:
            return RoundAborted(f"{happened}: {what.name}. {what.advice}")


class RefusedByBrokers(RecordRefused):
    """The brokers refuse records.

    Attributes:
        position: the position of the refused record in its transaction. None if the brokers do not report it.
    """

    def __init__(self, reason: str = "", *, position: int | None = None, **known: Any) -> None:
        super().__init__(reason, **known)
        self.position = position


def records_refused(
    code: int, servers: str, topic: str, partition: int | None, position: int | None = None
) -> RefusedByBrokers:
    """Return the error for records that the brokers reject. The brokers' own message is left out, because it may quote
    a value."""
    what = meaning(code)
    return RefusedByBrokers(
        f"the brokers at {servers} refuse records: {what.name}. {what.advice}",
        topic=topic,
        partition=partition,
        column="timestamp" if code == INVALID_TIMESTAMP else None,
        position=position,
    )


def timeout_refused(timeout_ms: int) -> ConfigurationError:
    """Return the error for a transaction timeout that is longer than the broker grants."""
    return ConfigurationError(
        f"the broker refuses 'transaction.timeout.ms' = {timeout_ms}: it is longer than the broker's"
        " transaction.max.timeout.ms. Lower the sink's option, or raise the broker's setting.",
        option="transaction.timeout.ms",
    )


def denied(reason: str) -> OperatorRequired:
    """Return the error for a request that the brokers' access control denies."""
    return OperatorRequired(
        f"the brokers deny what the sink needs: {reason}. Grant this principal WRITE and DESCRIBE on the transactional"
        " ids that start with the sink's 'transactional.id.prefix', and WRITE and DESCRIBE on its topics. For a"
        " kafka-offsets sink, grant READ on its group and on the topics that the query reads. Then start again:"
        " recovery continues where it stopped."
    )


def login_refused(reason: str) -> OperatorRequired:
    """Return the error for a login that the brokers refuse."""
    return OperatorRequired(
        f"the brokers refuse the login: {reason}. Correct 'sasl.username' and 'sasl.password' (for OAUTHBEARER:"
        " what the issuer grants, or which principals the brokers accept), or this user's credentials at the"
        " brokers, and start again: recovery continues where it stopped."
    )


def lasting(error: BaseException) -> TwoPhaseCommitError | None:
    """Return the error for an exception of kafka-python that would recur until an operator acts. Return None for a
    temporary one: a lost connection, or an answer that is known to be temporary."""
    match error:
        case kafka.errors.SaslAuthenticationFailedError():
            return login_refused(str(error))
        case kafka.errors.AuthorizationError():
            return denied(str(error))
        case kafka.errors.InvalidTopicError():
            return ConfigurationError(
                f"the brokers refuse the topic name {error.args[0]!r}, which no topic can have. Correct the option"
                " 'topic'."
            )
        case kafka.errors.UnsupportedVersionError():
            return ConfigurationError(f"the brokers are too old, Kafka 3.0 or later is needed: {error}")
        case kafka.errors.BrokerResponseError() if meaning(error.errno).answer not in _TEMPORARY:
            return failure(meaning(error.errno), f"a broker refused a request{_about(error)}")
        case _:
            return None


def unanswered(error: BaseException) -> str:
    """Describe for an operator why a call failed: what a broker answered, or why none did."""
    match error:
        case kafka.errors.BrokerResponseError() if error.errno in MEANINGS:
            return f"a broker answered {meaning(error.errno).name}{_about(error)}. {meaning(error.errno).advice}"
        case kafka.errors.KafkaError():
            return f"the cluster did not answer: {error}"
        case _:
            return f"the cluster did not answer: {type(error).__name__}: {error}"


def _about(error: kafka.errors.KafkaError) -> str:
    return f" about {error.args[0]}" if error.args else ""


_TEMPORARY = (WriteAnswer.REPEAT, WriteAnswer.RUN_AGAIN)


# Transactions. --------------------------------------------------------------------------------------------------------


class Outcome(Enum):
    """What is known about a transaction that should be committed."""

    COMMITTED = "committed"
    ONGOING = "ongoing"
    ENDING = "ending"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The producer id and epoch, which with the transactional id name a transaction at the broker."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, order=True, slots=True)
class OpenInPartition:
    """A transaction that is open in a partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int

    @property
    def identity(self) -> tuple[int, int]:
        """Producer id and epoch, which name the transaction."""
        return self.producer_id, self.producer_epoch

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} from offset {self.start_offset}"


@dataclass(frozen=True, slots=True)
class TransactionState:
    """The last transaction of a transactional id, as its coordinator describes it.

    Attributes:
        partitions: the partitions that have no marker yet.
        began_ms: when it began, in milliseconds since the epoch; -1 if none is ongoing.
        timeout_ms: the age at which it times out.
    """

    state: str
    producer_id: int
    producer_epoch: int
    partitions: Mapping[str, Sequence[int]] = field(default_factory=dict, compare=False)
    began_ms: int = field(default=-1, compare=False)
    timeout_ms: int = field(default=NO_TIMEOUT_MS, compare=False)

    @property
    def may_go_on(self) -> bool:
        """Whether the id may be used again: its last transaction was committed. "Empty" does not show what came before,
        because any client that initializes the id, such as an operator's tool, resets it to this state."""
        return self.state == "CompleteCommit"

    def precedes(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether this was the id's last transaction before InitProducerId returned ``producer_id`` and
        ``producer_epoch``. Always true for a new producer id: a hanging transaction belongs to the
        old one."""
        return producer_id != self.producer_id or producer_epoch == self.producer_epoch + 1


def outcome(described: TransactionState | None, producer_id: int, epoch: int, end_txn_version: int) -> Outcome:
    """Return what became of the transaction ``(producer_id, epoch)``, as far as it has ended. Version
    ``end_txn_version`` of EndTxn was to end it. Version 4 may have ended it instead, because ``transaction.version``
    had been lowered.

    ``described`` is the state that the id's coordinator reports now, or None if it does not know the id.
    """
    if described is None or described.producer_id != producer_id:
        return Outcome.UNKNOWN  # the id has expired, or its epochs ran out and it has a new producer id
    ended_by_us = epoch + (1 if end_txn_version >= EPOCH_BUMPING_END_TXN else 0)
    match described.state, described.producer_epoch:
        case "Ongoing", at if at == epoch:
            return Outcome.ONGOING
        case "PrepareCommit" | "PrepareAbort" | "PrepareEpochFence", at if at in (epoch, epoch + 1):
            return Outcome.ENDING
        case "CompleteCommit", at if at in (epoch, ended_by_us):
            return Outcome.COMMITTED
        case "CompleteAbort", at if at in (epoch, epoch + 1):
            return Outcome.ROLLED_BACK  # by its own writer, which may leave the epoch unchanged, by timeout or by us
        case _:
            return Outcome.UNKNOWN  # the id has been initialized again


def hangs(described: TransactionState, epoch: int, end_txn_version: int) -> bool:
    """Return whether ``(described.producer_id, epoch)`` was rolled back and hangs, given that a partition still had it
    open *after* this description. A commit by ``end_txn_version`` does not count: ``complete`` writes its markers.
    """
    since = described.producer_epoch - epoch
    match described.state:
        case "CompleteAbort":
            return since >= 0
        case "Empty" | "Ongoing":
            return since >= 1  # the id was initialized again, so the transaction must have ended before
        case "CompleteCommit":
            return since > (1 if end_txn_version >= EPOCH_BUMPING_END_TXN else 0)  # a later transaction was committed
        case _:
            return since > 1
