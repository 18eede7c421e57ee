"""Kafka as a two-phase-commit sink: one transaction per task attempt, ended from the coordinator.

A participant writes through a producer of its own (``writer``) and hands back producer id and epoch. Any process then
commits or aborts exactly that transaction with them (``control``); no task needs to be alive.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from twopc.checks import CheckResult, CheckStatus
from twopc.errors import ConfigurationError, OperatorRequired, OutcomeUnknown, Retriable, RoundAborted, TransactionLost
from twopc.leases import Lease
from twopc.sink import TwoPhaseCommitSink
from twopc.transaction import Committable, JsonValue, Transaction
from twopc.transactional_ids import Round, TransactionId
from twopc_kafka import checks
from twopc_kafka.answers import (
    EPOCH_BUMPING_END_TXN,
    Answer,
    NotCommitted,
    Outcome,
    ProducerIdentity,
    TransactionState,
    denied,
    hangs,
    outcome,
    timeout_refused,
    to_end,
)
from twopc_kafka.client.control import Control, connect
from twopc_kafka.client.leaders import RECENT_S, Away, Leaders, OpenInPartition, TopicPartition
from twopc_kafka.client.requests import Partitions
from twopc_kafka.columns import check_columns
from twopc_kafka.options import ARROW, EXACTLY_ONCE, OFF, REQUIRE, parse_options
from twopc_kafka.values import no_such_topic
from twopc_kafka.writers.arrow import ArrowWriter
from twopc_kafka.writers.librdkafka import Writer
from twopc_kafka.writers.offsets import OffsetsWriter

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

MARKERS_TIMEOUT_S = 1.0
"""They take 1 to 3 ms. A person is told of what takes this long, and the call repeated."""

MARKERS_INTERVAL_S = 0.001

STUCK_S = 10.0
"""How long a transaction that may never end is watched before a person is called, who must act before its time-out."""

_MEND = "raise it to 1 or more (kafka-features.sh upgrade --feature transaction.version=1) and restart the brokers"
_IF_IT_STAYS = f"If it stays so: if transaction.version was lowered below 1 lately, {_MEND}"

_HANGING = "hanging"  # in the handle of what hangs: where

_LARGEST = {"producer_id": 2**63 - 1, "producer_epoch": 2**15 - 1, "end_txn_version": 2**15 - 1}  # Kafka's types


class KafkaTransaction(Transaction):
    """A live transaction and its producer. The producer is dropped, not closed: the commit comes from elsewhere."""

    def __init__(
        self,
        transaction_id: TransactionId,
        lease: Lease,
        writer: Writer | ArrowWriter | OffsetsWriter,
        has_timeout: bool = True,
    ) -> None:
        super().__init__(transaction_id)
        self.lease = lease
        self.writer = writer
        self.is_pre_committed = False
        self.may_time_out = has_timeout


class KafkaSink(TwoPhaseCommitSink[KafkaTransaction]):
    """Writes records to Kafka topics.

    Args:
        options: ``bootstrap.servers``, and ``topic`` unless the records have a column of that name; ``delivery``
            (``exactly-once``, ``at-least-once``, ``none``); ``writer``; ``two.phase.commit``;
            ``transactional.id.prefix``; any property of librdkafka.

    Raises:
        ConfigurationError: an option is wrong. Nothing was connected to.
    """

    if_lost = (
        "Its records are not in the topic, and the query must not go on without them: write them again by other means"
        " from the source's offsets of this batch in the checkpoint, then give the transaction up with 'twopc abandon'"
        " and start the query again."
    )
    """What it means that Kafka rolled back what is decided, and what to do."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = parse_options(options)
        self.prefix = self._options.prefix
        self._written_to: dict[str, set[int]] = {}
        self._visible: Collection[tuple[int, int]] = ()  # the newest batch's transactions, when they are
        self._nothing_hung_s = -math.inf  # the last look that found so, by time.monotonic
        self._away: frozenset[TopicPartition] = frozenset()
        self._asked_to_commit: set[tuple[int, int]] = set()  # transactions whose commit this process has asked for

    @property
    def _is_transactional(self) -> bool:
        return self._options.delivery == EXACTLY_ONCE

    @property
    def _control(self) -> Control:
        return connect(self._options.control)  # kept by the process, not by the sink, which is pickled

    @property
    def _leaders(self) -> Leaders:
        return self._control.leaders

    # On the participant. ----------------------------------------------------------------------------------------

    def begin(self, transaction_id: TransactionId) -> KafkaTransaction:
        # What is written again takes a name that nobody has used. A used name may be that of a committed transaction of
        # the same batch. Kafka must show that commit until the log records it, so nothing may begin by the name.
        is_new = transaction_id.replay > 0
        while True:
            lease = self.transactional_ids.lease(transaction_id.round, is_new)
            try:
                writer = self._writer(lease.name, lease.was_used)
            except NotCommitted as error:
                lease.release()  # unanswered, so nobody has that name again
                logger.info("%s. Another id is used instead", error)
            except BaseException:
                lease.release()
                raise
            else:
                return KafkaTransaction(transaction_id, lease, writer, self._options.has_timeout)

    def _writer(self, name: str, was_used: bool) -> Writer | ArrowWriter | OffsetsWriter:
        """Begin the transaction of that name. Raises NotCommitted where the one before was not: see there."""
        if self._options.writer == ARROW:
            return ArrowWriter(self._options, name, was_used)
        if was_used and self._is_transactional:
            self._require_committed(name)
        return Writer(self._options, name)

    def _require_committed(self, name: str) -> None:
        """Raise NotCommitted where the last transaction of an id was not, or nobody says."""
        try:
            state = self._control.describe_proven([name], self.transactional_ids.scope).get(name)
        except Retriable as error:
            raise NotCommitted(name, str(error)) from error
        if state is not None and not state.may_go_on:
            raise NotCommitted(name, state.state)

    def write(self, transaction: KafkaTransaction, batch: pa.RecordBatch) -> None:
        transaction.writer.write(batch)

    def pre_commit(self, transaction: KafkaTransaction) -> Committable:
        identity = transaction.writer.finish()
        handle: dict[str, JsonValue] = {
            "producer_id": identity.producer_id,
            "producer_epoch": identity.producer_epoch,
        } if identity else {}  # fmt: skip
        if identity and transaction.writer.topic_ids:
            handle["topic_ids"] = {**transaction.writer.topic_ids}
        if not transaction.may_time_out:
            handle["has_timeout"] = False
        transaction.lease.answered()  # else it is a name that nobody uses again
        transaction.lease.release()
        transaction.is_pre_committed = self._is_transactional
        return Committable(transaction.lease.name, handle, transaction.records)

    # On the coordinator. ----------------------------------------------------------------------------------------

    @property
    def may_time_out(self) -> bool:  # type: ignore[override]  # it depends on 'delivery'
        """Kafka rolls back what waits longer for its commit than the transaction's time-out, where it has one."""
        return self._is_transactional

    def open(self) -> None:
        """Ask for transactions without a time-out, else for the longest that the broker grants, or refuse one that it
        does not.

        Raises:
            ConfigurationError: ``transaction.timeout.ms`` is longer, or none is required and not granted. Nothing was
                written.
        """
        self._nothing_hung_s = -math.inf
        self._options = replace(self._options, has_timeout=not self._is_granted_no_timeout())
        largest_ms = self._control.largest_timeout_ms() if self._is_transactional else None
        if largest_ms is None:
            return
        if self._options.asks_for_most:
            self._options = self._options.with_transaction_timeout(largest_ms)
        elif self._options.has_timeout and self._options.transaction_timeout_ms > largest_ms:
            raise timeout_refused(self._options.transaction_timeout_ms)

    def _is_granted_no_timeout(self) -> bool:
        if self._options.two_phase_commit == OFF:
            return False
        if self._control.grants_no_timeout(f"{self.transactional_ids.scope}probe"):
            return True
        if self._options.two_phase_commit == REQUIRE:
            raise ConfigurationError(
                f"the brokers at {self._options.bootstrap_servers} do not grant transactions without a time-out, which"
                " 'two.phase.commit' = 'require' asks for. Set transaction.two.phase.commit.enable=true and"
                " unstable.api.versions.enable=true on each; with access control, grant this principal"
                f" TWO_PHASE_COMMIT and WRITE on the transactional ids that start with '{self.prefix}.'. Nothing was"
                " written."
            )
        return False

    def validate(self, schema: pa.Schema) -> None:
        check_columns(schema, self._options.topic)
        self._require_topic()

    def _require_topic(self) -> None:
        topic = self._options.topic
        if topic is not None and self._control.unknown_topics([topic]):
            raise no_such_topic(topic, self._options.bootstrap_servers)

    def check(self) -> Iterator[CheckResult]:
        is_of_use = True
        for look in self._looked_at():
            yield look
            is_of_use &= look.result is not CheckStatus.FAILED
        if not self._is_transactional:
            advice = "A crash then doubles or loses records, as it says. Whether they may be written can't be tried."
            yield CheckResult.warned(f"'delivery' is {self._options.delivery!r}", advice)
        elif is_of_use:
            yield checks.timeout(self._options)
            clocks: list[CheckResult] = []
            what = "this principal may begin, write and roll back a transaction, tried without a record"
            yield CheckResult.of(what, lambda: clocks.extend(self._try()))
            yield from clocks[-1:]  # it may have been asked again
            yield checks.replication(self._control, checks.TRANSACTION_LOG)
        yield checks.may_write_markers(self._control)

    def _looked_at(self) -> Iterator[CheckResult]:
        yield CheckResult.of("the brokers grant what the options ask of transactions", self.open)
        yield checks.version(self._control)
        yield from self._examined_target()

    def _examined_target(self) -> Iterator[CheckResult]:
        topic = self._options.topic
        if topic is None:
            advice = "Whether these are there, and may be written, is seen when they are written. Create them before."
            yield CheckResult.warned("records name their topics in the column 'topic'", advice)
            return
        is_there = CheckResult.of(f"topic {topic!r} is there", self._require_topic)
        yield is_there
        if is_there.result is CheckStatus.PASSED:
            yield checks.leaders(self._control, topic)
            yield checks.replication(self._control, topic)
            yield checks.hanging(self._control, topic)

    def _try(self) -> Iterator[CheckResult]:
        """Begin a transaction as a task does, add to it what a write would, but no record, and roll it back."""
        begun = self.pre_commit(self.begin(self.transactional_ids.allocate(Round(0, 0), partition=0)))
        try:
            yield from self._try_to_add(begun.transaction_id, ProducerIdentity(*_identity(begun)))
        finally:
            self._abort(begun)

    def _try_to_add(self, name: str, producer: ProducerIdentity) -> Iterator[CheckResult]:
        if self._options.topic is not None:
            yield checks.clock(checks.try_to_write(self._control, name, producer, self._options.topic))

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:
        """Veto where a transaction is not ongoing any more. Note by which version of EndTxn it will be ended, as a
        repeat must use the same one, and its partitions, which Kafka forgets with its end."""
        if not self._is_transactional or not committables:
            return committables
        if any(_has_timeout(committable) for committable in committables):
            self._refuse_too_old(age_s)
        started_s = time.monotonic()
        with self._looking_up_topics(committables, started_s):
            described = self._describe_to_seal(committables)
        version = self._control.end_txn_version
        since_s = max(started_s, time.monotonic() - RECENT_S)  # where describing took long, they are asked for again
        topic_ids = self._topic_ids_to_seal(committables, described.values(), since_s)
        sealed = []
        for committable in committables:
            state = described.get(committable.transaction_id)
            if state is None or not _is_ongoing(state, committable):
                raise RoundAborted(
                    f"transaction {committable.transaction_id} can't be committed any more: it was pre-committed as"
                    f" (producer id, epoch) {_identity(committable)} and is now {state or 'unknown to the broker'}."
                    " A longer 'transaction.timeout.ms' helps if it timed out."
                )
            sealing: dict[str, JsonValue] = {
                "end_txn_version": version,
                "partitions": {topic: list(numbers) for topic, numbers in state.partitions.items()},
                "topic_ids": {
                    **_topic_ids(committable),
                    **{topic: topic_ids[topic] for topic in state.partitions if topic in topic_ids},
                },
            }
            sealed.append(replace(committable, handle={**committable.handle, **sealing}))
        return sealed

    def _describe_to_seal(self, committables: Sequence[Committable]) -> dict[str, TransactionState]:
        """A state that would be a veto is proven: better to ask again than to run the batch again."""
        described = self._control.describe([committable.transaction_id for committable in committables])
        doubtful = [c.transaction_id for c in committables if not _is_ongoing(described.get(c.transaction_id), c)]
        for name in doubtful:
            described.pop(name, None)
        return described | self._control.describe_proven(doubtful, self.transactional_ids.scope)

    def _topic_ids_to_seal(
        self, committables: Sequence[Committable], described: Iterable[TransactionState], since_s: float
    ) -> dict[str, str]:
        """The ids of the topics that were written to. Veto where one is not the topic that it was when a participant
        began to write to it, as what was written to that is gone; and so is what was written to one that is not there
        any more."""
        topics = {topic for state in described for topic in state.partitions}
        then = [of_topic for committable in committables for of_topic in _topic_ids(committable).items()]
        now = self._ids_now(topics, then, since_s)
        if gone := _gone(then, now):
            raise RoundAborted(
                f"topic {gone[0]!r} was deleted while the batch was written, and its records with it. Nothing of the"
                " batch is visible."
            )
        return now

    def _ids_now(self, topics: Collection[str], then: Collection[tuple[str, str]], since_s: float) -> dict[str, str]:
        """The ids of topics. Of those that are not what they were ``then``, by the word of most brokers."""
        now = self._leaders.topic_ids(topics, since_s)
        gone = _gone(then, now)
        return now | self._leaders.topic_ids_of_most(gone) if gone else now

    @contextlib.contextmanager
    def _looking_up_topics(self, committables: Iterable[Committable], since_s: float) -> Iterator[None]:
        """Have a thread look up meanwhile the ids of the topics that were written to. Who needs them afterwards finds
        them kept, or asks again."""
        topics = {topic for committable in committables for topic in _topic_ids(committable)}
        with ThreadPoolExecutor(1) as thread:
            if topics:
                with contextlib.suppress(RuntimeError):  # an interpreter that ends starts no threads
                    thread.submit(self._leaders.topic_ids, topics, since_s)
            yield

    def _refuse_too_old(self, age_s: float) -> None:
        """Better to run a batch again than to decide what Kafka may roll back before the commit is through."""
        timeout_ms, margin_ms = self._options.transaction_timeout_ms, self._options.commit_margin_ms
        left_ms = timeout_ms - age_s * 1000
        if left_ms < margin_ms:
            raise RoundAborted(
                f"the transactions of this batch may be {age_s:.0f} s old, and Kafka rolls them back after"
                f" 'transaction.timeout.ms' = {timeout_ms} ms: {left_ms:.0f} ms are left, less than 'commit.margin.ms'"
                f" = {margin_ms}. Make batches smaller, or raise the time-out and the broker's"
                " transaction.max.timeout.ms."
            )
        if left_ms < timeout_ms / 2:
            logger.warning(
                "writing this batch took %.0f s, more than half of 'transaction.timeout.ms' = %d", age_s, timeout_ms
            )

    def commit(self, committable: Committable) -> None:
        if not committable.handle:
            return  # delivered without a transaction
        identity, version = _identity(committable), _version(committable)
        name = self._name(committable)
        self._refuse_gone_topics(committable, time.monotonic() - RECENT_S)
        is_first = identity not in self._asked_to_commit
        self._asked_to_commit.add(identity)
        error = self._control.end(name, *identity, commit=True, version=version)
        match to_end(error):
            case Answer.DONE:
                self._asked_to_commit.discard(identity)
                return
            case Answer.REPEAT:
                self._refuse_stuck(committable)
                raise Retriable(f"the broker answered {error}")
            case Answer.DENIED:
                raise denied(f"{error} for {name}")
            case Answer.STUCK:
                raise _stuck(name)
        self._judge(committable, error, self._state(committable), is_first)

    def _refuse_gone_topics(self, committable: Committable, since_s: float) -> None:
        """Stop where a topic was deleted since the decision, and may have been created again: Kafka would commit what
        is left of the transaction. What is known of topics since ``since_s`` will do.

        Raises:
            TransactionLost: nothing of it is committed, so it may be written again as a whole.
            OutcomeUnknown: it is committed, and whether readers had its records before can't be known.
        """
        if _identity(committable) in self._visible:
            return  # what was done to the topic later is nobody's loss
        then = _topic_ids(committable)
        gone = _gone(then.items(), self._ids_now(then, then.items(), since_s))
        if not gone:
            return
        decided = f"transaction {committable.transaction_id} ({committable.records} records) is decided"
        deleted = f"topic {gone[0]!r} was deleted since, with the id {then[gone[0]]}, and its records there with it"
        match outcome(self._state(committable), *_identity(committable), _version(committable)):
            case Outcome.ONGOING:
                # Certain by a write alone: the coordinator may tell the past, and an earlier commit may be on its way.
                answer = self._control.end(
                    self._name(committable), *_identity(committable), commit=False, version=_version(committable)
                )
                if to_end(answer) is not Answer.DONE:
                    raise Retriable(f"{deleted}; to roll back what is left of {committable.transaction_id}: {answer}")
                raise TransactionLost(f"{decided}, but {deleted}. Nothing of it is committed. {self.if_lost}")
            case Outcome.ENDING:
                raise Retriable(f"{committable.transaction_id} is being ended, and {deleted}")
            case Outcome.COMMITTED:
                raise OutcomeUnknown(
                    f"{decided} and committed, but {deleted}: readers may have seen them before, or not. If they are"
                    " not wanted any more, give the transaction up with 'twopc abandon', and start again."
                )

    def _state(self, committable: Committable) -> TransactionState | None:
        """What its coordinator says. What would end the query is proven: that a transaction is committed is final, and
        that it is not yet is asked again; that it is unknown, or was rolled back, may be a word of the past."""
        name = committable.transaction_id
        state = self._control.describe([name]).get(name)
        if outcome(state, *_identity(committable), _version(committable)) in (Outcome.ROLLED_BACK, Outcome.UNKNOWN):
            state = self._control.describe_proven([name], self.transactional_ids.scope).get(name)
        return state

    def _refuse_stuck(self, committable: Committable) -> None:
        """Find out whether ``transaction.version`` was lowered to 0 while Kafka was ending a transaction by a version
        of EndTxn that needs more. Its coordinator then stays where it was: before the end, or with all markers written
        and unable to note it.

        Raises:
            OperatorRequired: it was. Nothing but what the message says helps, and the transaction may time out.
        """
        if _version(committable, 0) < EPOCH_BUMPING_END_TXN or self._control.transaction_version > 0:
            return
        name, deadline = committable.transaction_id, time.monotonic() + STUCK_S
        while self._is_stuck(committable, self._control.describe([name]).get(name)):
            if time.monotonic() > deadline:
                raise _stuck(name)
            time.sleep(STUCK_S / 10)

    def _is_stuck(self, committable: Committable, state: TransactionState | None) -> bool:
        match self._outcome(state, committable):
            case Outcome.ONGOING:
                return True
            case Outcome.ENDING:
                return state is not None and not state.partitions
            case _:
                return False

    def _judge(self, committable: Committable, error: str, state: TransactionState | None, is_first: bool) -> None:
        name, records = committable.transaction_id, committable.records
        decided = f"transaction {name} ({records} records) is decided"
        match outcome(state, *_identity(committable), _version(committable)):
            case Outcome.COMMITTED:
                return
            case Outcome.ONGOING | Outcome.ENDING:
                self._refuse_stuck(committable)
                raise Retriable(f"the broker answered {error} and describes the transaction as {state}. {_IF_IT_STAYS}")
            case Outcome.ROLLED_BACK:
                timeout = f"'transaction.timeout.ms' ({self._options.properties['transaction.timeout.ms']} ms)"
                why = f"it waited longer for its commit than {timeout}"
                if not _has_timeout(committable):
                    why = "it has no time-out, so somebody has ended it"
                raise TransactionLost(f"{decided}, but Kafka has rolled it back: {why}. {self.if_lost}")
            case Outcome.UNKNOWN:
                raise OutcomeUnknown(
                    f"{decided}, and Kafka can't say what became of it: it answered {error}, and its id is now"
                    f" {state or 'unknown'}. Read the topic to see whether the records are there before going on.",
                    was_refused_at_first=is_first,
                )

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:  # noqa: ARG002
        """Return when readers see all of it: Kafka answers a commit before it has written its markers, and may leave
        one out. So what commits last comes after that, too."""
        ended = [committable for committable in committables if committable.handle]
        if not ended:
            return
        self._wait_for_markers(ended)
        ended_s = time.monotonic()
        partitions = _partitions(ended)
        self._note_written(partitions)
        names = {_identity(committable): committable.transaction_id for committable in ended}
        with self._looking_up_topics(ended, ended_s):
            seen = self._leaders.open_transactions(self._written_to, self._options.topic)
        self._note(seen.away)
        for committable in _one_of_each_topic(ended):
            self._refuse_gone_topics(committable, ended_s)
        for open_ in seen.open:
            if open_.identity in names:
                self._leaders.end(open_, names[open_.identity], commit=True)
        away = {
            (topic, number): why for (topic, number), why in seen.away.items() if number in partitions.get(topic, ())
        }
        if away:
            raise Retriable(
                f"whether Kafka has written all markers of the batch can't be seen while {_told(away)}. It wrote"
                " there: bring the brokers of that partition back"
            )
        self._visible = frozenset(names)
        self._nothing_hung_s = -math.inf if seen.open or seen.away else ended_s

    def _wait_for_markers(self, ended: Sequence[Committable]) -> None:
        deadline = time.monotonic() + MARKERS_TIMEOUT_S
        while ended := self._without_markers(ended):
            if time.monotonic() > deadline:
                self._refuse_stuck(ended[0])
                name = ended[0].transaction_id
                raise Retriable(f"Kafka has not written the markers of {name} yet. {_IF_IT_STAYS}")
            time.sleep(MARKERS_INTERVAL_S)

    def _without_markers(self, ended: Sequence[Committable]) -> list[Committable]:
        described = self._control.describe([committable.transaction_id for committable in ended]) if ended else {}
        return [c for c in ended if self._outcome(described.get(c.transaction_id), c) is Outcome.ENDING]

    def _outcome(self, described: TransactionState | None, committable: Committable) -> Outcome:
        return outcome(described, *_identity(committable), _version(committable, self._control.end_txn_version))

    def abort(self, transaction: KafkaTransaction | Committable) -> None:
        if isinstance(transaction, KafkaTransaction):
            if transaction.is_pre_committed:
                return  # the sweep ends it, and sees where it wrote
            transaction.writer.abort()
            transaction.lease.release()
        elif transaction.handle:
            self._abort(transaction)

    def _abort(self, committable: Committable) -> None:
        """By producer id and epoch: whatever answer says that this transaction is not open any more is a success."""
        name = self._name(committable)
        if isinstance(hanging := committable.handle.get(_HANGING), dict):
            self._leaders.end(OpenInPartition(**hanging), name, commit=False)  # type: ignore[arg-type]
            return
        version = _version(committable, self._control.end_txn_version)
        error = self._control.end(name, *_identity(committable), commit=False, version=version)
        match to_end(error):
            case Answer.DONE:
                return
            case Answer.DENIED:
                raise denied(f"{error} for {name}")
            case Answer.STUCK:
                raise _stuck(name)
        state = self._control.describe([name]).get(name)
        if _is_ongoing(state, committable):
            raise Retriable(f"the broker answered {error} and describes the transaction as {state}. {_IF_IT_STAYS}")

    def _name(self, committable: Committable) -> str:
        """It. Raises CorruptLog where it is none of this sink's: others' are open on the same brokers."""
        if not self.transactional_ids.owns_leased(committable.transaction_id):
            raise self.transactional_ids.not_owned(committable.transaction_id)
        return committable.transaction_id

    def recover(self) -> Iterable[Committable]:
        """Those that are open at their coordinators, and those that hang: open in a partition alone."""
        # Whatever 'delivery' is now: it may have been exactly-once before.
        listed = self._owned(self._control.list_ongoing(self.transactional_ids.scope))
        ongoing = [(name, state) for name, state in listed if state.state == "Ongoing"]
        for _, state in ongoing:  # Kafka forgets with its end where a transaction wrote
            self._note_written(state.partitions)
        open_ = [
            Committable(name, {"producer_id": state.producer_id, "producer_epoch": state.producer_epoch})
            for name, state in ongoing
        ]
        # Only in the sweep right after a completed batch: a later one follows on an abort, or on a lost attempt.
        is_seen, self._nothing_hung_s = time.monotonic() - self._nothing_hung_s < RECENT_S, -math.inf
        return open_ if is_seen and not open_ else [*open_, *self._hanging()]

    def _note_written(self, partitions: Partitions) -> None:
        """Note where to look for what hangs."""
        for topic, numbers in partitions.items():
            self._written_to.setdefault(topic, set()).update(numbers)

    def _hanging(self) -> list[Committable]:
        """What was rolled back but for a partition of which Kafka left out the marker. Upholds: what is not decided is
        never visible. It would be with the next commit of its producer there."""
        away: dict[TopicPartition, Away] = {}
        while open_ := self._open_in_partitions(away):
            # What is being rolled back may hang when that has ended.
            ending = [
                transaction
                for transaction, state in open_
                if state.state != "PrepareCommit" and self._outcome(state, transaction) is Outcome.ENDING
            ]
            if not ending:
                break
            self._wait_for_markers(ending)
        self._note(away)
        version = self._control.end_txn_version
        return [transaction for transaction, state in open_ if hangs(state, _identity(transaction)[1], version)]

    def _open_in_partitions(self, away: dict[TopicPartition, Away]) -> list[tuple[Committable, TransactionState]]:
        """What this log has open where it may have written, and what its coordinator knew of its id before. Partitions
        that can't be asked are put into ``away``."""
        where = self._written_to, self._options.topic
        before = self._leaders.open_transactions(*where)
        away |= before.away
        if not before.open:
            return []
        producers = [each.producer_id for each in before.open]
        listed = self._control.list_of_producers(self.transactional_ids.scope, producers)
        of_producer = {state.producer_id: (name, state) for name, state in self._owned(listed)}
        # Once more, as its coordinator must be seen to have ended it before a partition is seen to have it open.
        after = self._leaders.open_transactions(*where)
        away |= after.away
        still_open = set(before.open).intersection(after.open)
        found = [(each, *of_producer[each.producer_id]) for each in still_open if each.producer_id in of_producer]
        return [(Committable(name, _handle_of(each)), state) for each, name, state in found]

    def _note(self, away: Mapping[TopicPartition, Away]) -> None:
        """Tell which partitions can't be asked."""
        if new := away.keys() - self._away:
            logger.warning(
                "%s can't be asked what hangs there: %s. Batches that don't write there go on; those that do wait. Each"
                " sweep asks again",
                _named(new),
                away[min(new)].reason,
            )
        if back := self._away - away.keys():
            logger.warning("%s can be asked again", _named(back))
        self._away = frozenset(away)

    def _owned(self, listed: Iterable[str]) -> Iterable[tuple[str, TransactionState]]:
        return self._control.describe([name for name in listed if self.transactional_ids.owns_leased(name)]).items()


def _stuck(name: str) -> OperatorRequired:
    return OperatorRequired(
        f"Kafka can't end transaction {name}: transaction.version was lowered below 1 meanwhile, and its coordinator"
        f" does not get over that. Nothing is lost yet. Before the transaction times out, {_MEND}, one after the other;"
        " then start again: recovery goes on where this stopped."
    )


def _is_ongoing(state: TransactionState | None, committable: Committable) -> bool:
    return state == TransactionState("Ongoing", *_identity(committable))


def _identity(committable: Committable) -> tuple[int, int]:
    return _number(committable, "producer_id"), _number(committable, "producer_epoch")


def _topic_ids(committable: Committable) -> dict[str, str]:
    """Of the topics that it wrote to, where they are known."""
    known = committable.handle.get("topic_ids")
    return {topic: str(id) for topic, id in known.items()} if isinstance(known, dict) else {}


def _one_of_each_topic(ended: Iterable[Committable]) -> Iterable[Committable]:
    """As few as name each topic once, with its id."""
    return {of_topic: committable for committable in ended for of_topic in _topic_ids(committable).items()}.values()


def _gone(then: Iterable[tuple[str, str]], now: Mapping[str, str]) -> list[str]:
    """The topics that had another id ``then`` than ``now``, and those that are not there."""
    changed = [topic for topic, id in then if now.get(topic, id) != id]
    return list(dict.fromkeys([*changed, *(topic for topic, id in now.items() if not id)]))


def _handle_of(hanging: OpenInPartition) -> dict[str, JsonValue]:
    producer_id, epoch = hanging.identity
    return {"producer_id": producer_id, "producer_epoch": epoch, _HANGING: asdict(hanging)}


def _has_timeout(committable: Committable) -> bool:
    return committable.handle.get("has_timeout") is not False


def _version(committable: Committable, default: int | None = None) -> int:
    known = "end_txn_version" in committable.handle
    return default if default is not None and not known else _number(committable, "end_txn_version")


def _number(committable: Committable, name: str) -> int:
    value = committable.handle.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST[name]:
        raise OutcomeUnknown(f"the record of transaction {committable.transaction_id} has no {name}: {value!r}")
    return value


def _told(away: Mapping[TopicPartition, Away]) -> str:
    return f"{_named(away)} can't be asked: {away[min(away)].reason}"


def _named(partitions: Collection[TopicPartition]) -> str:
    topic, number = min(partitions)
    others = f" (and {len(partitions) - 1} other partitions)" if len(partitions) > 1 else ""
    return f"partition {topic}-{number}{others}"


def _partitions(ended: Iterable[Committable]) -> dict[str, Collection[int]]:
    """All that any of them wrote to."""
    of_topic: dict[str, set[int]] = defaultdict(set)
    for committable in ended:
        written_to = committable.handle.get("partitions")
        if not isinstance(written_to, dict):
            raise OutcomeUnknown(f"the record of transaction {committable.transaction_id} has no partitions")
        for topic, numbers in written_to.items():
            of_topic[topic].update(numbers)  # type: ignore[arg-type]
    return dict(of_topic)
