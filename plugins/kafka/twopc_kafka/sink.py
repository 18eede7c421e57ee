"""Kafka as a two-phase-commit sink: one transaction per task attempt, ended from the coordinator.

A participant writes through a producer of its own (``writers``) and hands back producer id and epoch. Any process then
commits or aborts exactly that transaction with them (``client.control``); no task needs to be alive.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from twopc.bad_records import written_without
from twopc.checks import CheckResult
from twopc.columns import require_keys
from twopc.datasets import Dataset, of_topic
from twopc.errors import (
    ConfigurationError,
    OperatorRequired,
    OutcomeUnknown,
    RecordRefused,
    Refused,
    Retriable,
    RoundAborted,
    TransactionLost,
)
from twopc.keyed import KeyedSink
from twopc.sink import OpenTransactions
from twopc.transaction import Committable, JsonValue, Transaction
from twopc.transactional_ids import Round, TransactionId
from twopc_kafka import checks, hanging, leases, markers, topics
from twopc_kafka.answers import (
    NO_TIMEOUT_MS,
    UNKNOWN_TOPIC,
    EndTxnAnswer,
    NotCommitted,
    Outcome,
    ProducerIdentity,
    RefusedByBrokers,
    TransactionState,
    Unprovable,
    denied,
    failure,
    meaning,
    timeout_refused,
    to_end,
)
from twopc_kafka.client.cluster import TopicRules, cluster_of
from twopc_kafka.client.control import Control, control_of
from twopc_kafka.client.leaders import METADATA_MAX_AGE_S, Leaders
from twopc_kafka.columns import check_columns, tombstones
from twopc_kafka.ending import ADVICE, Stuck, abort, outcome_of, stuck, unmarked, wait_for_markers
from twopc_kafka.handles import has_timeout, identity_of, is_ongoing, partitions_of, topic_ids_of, version_of
from twopc_kafka.options import ARROW, EXACTLY_ONCE, OFF, REQUIRE, parse_options
from twopc_kafka.values import no_such_topic, require_accepted
from twopc_kafka.writers.arrow import ArrowWriter
from twopc_kafka.writers.librdkafka import Writer
from twopc_kafka.writers.offsets import OffsetsWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self  # typing has it from Python 3.11 on

logger = logging.getLogger(__name__)

_READ_THE_TOPIC = (
    "Read the topic: if the records are not there, write them again by other means. Then give the transaction up with"
    " 'twopc abandon', and start the query again."
)

TRIAL_TIMEOUT_MS = 5_000
"""How long the trial of ``twopc doctor`` waits for a broker."""

UNKNOWN_TOPIC_S = 2.0
"""How long a topic may be unknown before all brokers are asked. Brokers normally know a new topic in milliseconds."""


class _GivenUp:
    """The ids that this process has given up because no broker reported their last transaction as committed."""

    def __init__(self) -> None:
        self._count = 0

    def note(self, error: NotCommitted) -> None:
        """Log an id that was given up. Warn at the tenth, the hundredth, the thousandth, and so on."""
        self._count += 1
        logger.info("%s. Another id is used instead", error)
        if self._count >= 10 and str(self._count) == f"1{'0' * (len(str(self._count)) - 1)}":
            logger.warning(
                "this process has given up %d transactional ids, the last one because %s. The brokers keep each of them"
                " for transactional.id.expiration.ms. If tasks do not fail so often, do the brokers describe committed"
                " transactions as CompleteCommit, as Kafka does? 'twopc doctor' finds out",
                self._count,
                error.message,
            )


_given_up = _GivenUp()


class KafkaTransaction(Transaction):
    """A live transaction and its producer. The producer is dropped, not closed: another process commits."""

    def __init__(
        self,
        transaction_id: TransactionId,
        lease: leases.Lease,
        writer: Writer | ArrowWriter | OffsetsWriter,
        has_timeout: bool,
    ) -> None:
        super().__init__(transaction_id)
        self.lease = lease
        self.writer = writer
        self.is_pre_committed = False
        self.rules: dict[str, TopicRules] = {}
        self.may_time_out = has_timeout


@contextlib.contextmanager
def _locating(transaction: KafkaTransaction) -> Iterator[None]:
    """Convert the position of a refused record within its transaction to the position within the record batch that is
    being written, which the participant expects. A record of an earlier record batch has a negative position."""
    try:
        yield
    except RefusedByBrokers as error:
        error.record = None if error.position is None else error.position - transaction.records
        raise


class KafkaSink(KeyedSink[KafkaTransaction]):
    """Writes records to Kafka topics.

    Args:
        options: ``bootstrap.servers``, and ``topic`` unless the records have a column of that name; ``delivery``
            (``exactly-once``, ``at-least-once``, ``none``); ``writer``; ``two.phase.commit``; ``batch.markers``;
            ``upsert_by``, for compacted topics; ``transactional.id.prefix``; any property of librdkafka.

    Raises:
        ConfigurationError: an option is wrong. No connection was made.
    """

    if_lost = (
        "Its records are not in the topic, and the query must not go on without them: write them again by other means"
        " from the source's offsets of this batch in the checkpoint, then give the transaction up with 'twopc abandon'"
        " and start the query again."
    )
    """What to do when Kafka has rolled back a decided transaction: the last part of the error's message."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = parse_options(options)
        self.prefix = self._options.prefix
        self._forget()

    def _forget(self) -> None:
        self._hanging = hanging.Hanging(self._options.topic)
        self._visible: Collection[tuple[int, int]] = ()  # the newest batch's transactions, once readers see them
        self._stuck = Stuck()
        self._asked_to_commit: set[tuple[int, int]] = set()  # transactions whose commit this process has asked for
        self._refusal: ConfigurationError | None = None  # raised for the next batch: decided ones come first
        self._decided_markers: Mapping[int, str | None] = {}  # for batches that were decided before this process

    def unbound(self) -> Self:
        twin = super().unbound()
        twin._forget()  # noqa: SLF001  # the twin serves another query or name
        return twin

    @property
    def key(self) -> tuple[str, ...]:
        return self._options.upsert_by

    @property
    def _is_transactional(self) -> bool:
        return self._options.delivery == EXACTLY_ONCE

    @property
    def _control(self) -> Control:
        return control_of(self._options.control)  # kept by the process, not by the sink, which is pickled

    @property
    def _leaders(self) -> Leaders:
        return self._control.leaders

    # On the participant. ----------------------------------------------------------------------------------------

    def begin(self, transaction_id: TransactionId) -> KafkaTransaction:
        # A replay takes a name that no transaction has used. A used name may be that of a committed transaction of
        # the same batch. Kafka must show that commit until the log records it, so nothing may begin under that name.
        is_new = transaction_id.replay > 0
        round = transaction_id.round.incarnation, transaction_id.round.batch_id
        while True:
            lease = leases.lease(self.transactional_ids.scope, round, is_new)
            try:
                writer = self._writer(lease.name, lease.was_used, self._marker_topic(transaction_id.round.batch_id))
            except NotCommitted as error:
                lease.release()  # not answered, so the name is not leased again
                _given_up.note(error)
            except BaseException:
                lease.release()
                raise
            else:
                return KafkaTransaction(transaction_id, lease, writer, self._options.has_timeout)

    def _writer(self, name: str, was_used: bool, marker_topic: str | None) -> Writer | ArrowWriter | OffsetsWriter:
        """Begin a transaction under ``name``. Raises ``NotCommitted`` if its last transaction was not committed."""
        options = replace(self._options, marker_topic=marker_topic)
        if options.writer == ARROW:
            return ArrowWriter(options, name, was_used)
        if was_used and self._is_transactional:
            self._require_committed(name)
        return Writer(options, name)

    def _marker_topic(self, batch_id: int) -> str | None:
        """Return the topic of a batch's marker. Upholds: if transactions of a decided batch are lost and written again,
        the batch keeps its marker's topic, even if the option has changed."""
        return self._decided_markers.get(batch_id, self._options.marker_topic)

    def _require_committed(self, name: str) -> None:
        """Raise ``NotCommitted`` unless the last transaction of an id is known to be committed."""
        try:
            state = self._control.describe_proven([name], self.transactional_ids.scope).get(name)
        except Retriable as error:
            raise NotCommitted(name, str(error)) from error
        if state is not None and not state.may_go_on:
            raise NotCommitted(name, state.state)

    def write(self, transaction: KafkaTransaction, batch: pa.RecordBatch) -> None:
        with _locating(transaction):
            self._write(transaction, batch)

    def delete(self, transaction: KafkaTransaction, keys: pa.RecordBatch) -> None:
        self.write(transaction, tombstones(keys))

    def delete_valid(self, transaction: KafkaTransaction, keys: pa.RecordBatch) -> Iterator[RecordRefused]:
        return self.write_valid(transaction, tombstones(keys))

    def _write(self, transaction: KafkaTransaction, batch: pa.RecordBatch) -> None:
        require_keys(batch, self.key)
        batch_id = transaction.id.round.batch_id
        if self._marker_topic(batch_id) is not None:
            batch = markers.stamped(batch, self._batch_name(batch_id))
        transaction.writer.write(batch)

    def _batch_name(self, batch_id: int) -> str:
        return markers.batch_name(self.transactional_ids.log_id, batch_id)

    def write_valid(self, transaction: KafkaTransaction, batch: pa.RecordBatch) -> Iterator[RecordRefused]:
        def write(records: pa.RecordBatch) -> None:
            require_accepted(records, self._options, lambda topic: self._rules(transaction, topic))
            self._write(transaction, records)

        with _locating(transaction):
            yield from written_without(write, batch)

    def _rules(self, transaction: KafkaTransaction, topic: str) -> TopicRules:
        """Return what a topic accepts, looked up once per transaction."""
        if topic not in transaction.rules:
            timeout_ms = int(self._options.properties["message.timeout.ms"])
            cluster = cluster_of(self._options.control, timeout_ms)
            transaction.rules[topic] = cluster.run(cluster.rules, topic, timeout_ms)
        return transaction.rules[topic]

    def pre_commit(self, transaction: KafkaTransaction) -> Committable:
        with _locating(transaction):
            identity = transaction.writer.finish()
        handle: dict[str, JsonValue] = asdict(identity) if identity else {}
        if identity and transaction.writer.topic_ids:
            handle["topic_ids"] = {**transaction.writer.topic_ids}
        if not transaction.may_time_out:
            handle["has_timeout"] = False
        if (topic := self._marker_topic(transaction.id.round.batch_id)) is not None:
            handle |= markers.handle_of(topic, transaction.writer.written, transaction.records)
        transaction.lease.answered()  # otherwise the name is not leased again
        transaction.lease.release()
        transaction.is_pre_committed = self._is_transactional
        return Committable(transaction.lease.name, handle, transaction.records)

    # On the coordinator. ----------------------------------------------------------------------------------------

    @property
    def may_time_out(self) -> bool:  # type: ignore[override]  # it depends on 'delivery'
        """Whether Kafka may roll a transaction back: it does so when the commit takes longer than the transaction's
        timeout, if there is one."""
        return self._is_transactional

    @property
    def seals_within_s(self) -> float | None:  # type: ignore[override]  # it depends on what the brokers grant
        if not self._is_transactional or not self._options.has_timeout:
            return None
        return (self._options.transaction_timeout_ms - self._options.commit_margin_ms) / 1000

    def open(self) -> None:
        """Ask the brokers for transactions without a timeout, else for the longest timeout that they grant. Refuse
        options that would fail in every task. If a decided batch must be committed first, refuse the next batch
        instead.

        Raises:
            ConfigurationError: ``transaction.timeout.ms`` is longer than the brokers grant, the options require
                transactions without a timeout, or the brokers lack what the sink needs. Nothing was written.
            Retriable: the cluster can't begin transactions now.
        """
        self._hanging.forget_last_look()
        self._decided_markers = {batch_id: markers.topic_of(due) for batch_id, due in self.pending.items() if due}
        self._refusal = None
        try:
            self._require_grants()
        except ConfigurationError as error:
            if not self.pending:
                raise
            self._refusal = error
            self._validated = None  # records may have been validated before this start looked at the brokers

    def _require_grants(self) -> None:
        if self._is_transactional:
            self._control.require_transactions(f"{self.transactional_ids.scope}probe")
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
                f"the brokers at {self._options.bootstrap_servers} do not grant transactions without a timeout, which"
                " 'two.phase.commit' = 'require' asks for. Set transaction.two.phase.commit.enable=true and"
                " unstable.api.versions.enable=true on each; with access control, grant this principal"
                f" TWO_PHASE_COMMIT and WRITE on the transactional ids that start with '{self.prefix}.'. Nothing was"
                " written.",
                option="two.phase.commit",
            )
        return False

    def validate(self, schema: pa.Schema) -> None:
        if self._refusal is not None:
            raise self._refusal
        check_columns(schema, self._options.topic, self.key)
        self._require_topic(self._options.topic)
        if self._options.marker_topic is not None:
            self._require_topic(self._options.marker_topic, "batch.markers")
            self._require_right_to_mark(self._options.marker_topic)

    def _require_right_to_mark(self, topic: str) -> None:
        """Raise ``ConfigurationError`` if this principal may not write to ``topic``. Without this check, a batch would
        be committed and then wait for its marker."""
        if not self._leaders.may_write(topic):
            raise ConfigurationError(
                f"this principal may not write to topic {topic!r} (the option 'batch.markers'). Grant it WRITE there.",
                option="batch.markers",
            )

    def _require_topic(self, topic: str | None, option: str = "topic") -> None:
        """Raise if a topic of the options does not exist.

        Upholds: an answer that may be stale is not final. A broker that lags or is cut off may not know a new topic. So
        the topic is looked up again for ``UNKNOWN_TOPIC_S``, and refused only if most brokers do not know it.

        Raises:
            ConfigurationError: the topic does not exist.
            Retriable: the brokers do not agree.
        """
        deadline = time.monotonic() + UNKNOWN_TOPIC_S
        while topic is not None and self._control.unknown_topics([topic]):
            if time.monotonic() > deadline:
                if self._leaders.is_known_to_most(topic):
                    return
                raise no_such_topic(topic, self._options.bootstrap_servers, option)
            time.sleep(UNKNOWN_TOPIC_S / 20)

    def check(self) -> Iterator[CheckResult]:
        trial = self._try if self._is_transactional else None
        return checks.of_sink(lambda: self._options, self._control, self.open, self._check_target(), trial)

    def _check_target(self) -> Iterator[CheckResult]:
        yield from checks.of_topic(self._control, self._options.topic, self._require_topic)
        if self._options.marker_topic is not None:
            topic = self._options.marker_topic
            yield from checks.of_topic(self._control, topic, partial(self._require_topic, option="batch.markers"))
            yield CheckResult.of(f"topic {topic!r}: right to write", lambda: self._require_right_to_mark(topic))

    def _try(self) -> Iterator[CheckResult]:
        """Begin a transaction as a task does, and write to it without a record that readers would see."""
        options = self._options
        self._options = options.with_message_timeout(TRIAL_TIMEOUT_MS)
        try:
            begun = self.pre_commit(self.begin(self.transactional_ids.allocate(Round(0, 0), partition=0)))
            try:
                yield from self._try_to_write(begun.transaction_id, ProducerIdentity(*identity_of(begun)))
            finally:
                self.abort(begun)
        finally:
            self._options = options

    def _try_to_write(self, name: str, producer: ProducerIdentity) -> Iterator[CheckResult]:
        """Add a partition to the transaction, and commit it."""
        if self._options.topic is not None:
            yield checks.clock(checks.try_to_write(self._control, name, producer, self._options.topic))
            yield checks.try_to_commit(self._control, name, producer)

    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:
        """Veto the batch if a transaction is no longer ongoing. Add two facts to each handle: the version of EndTxn
        that will end the transaction, because a repeat must use the same version; and the transaction's partitions,
        which Kafka forgets when the transaction ends.
        """
        if not self._is_transactional or not committables:
            return committables
        if any(has_timeout(committable) for committable in committables):
            self._refuse_too_old(age_s, sum(committable.records or 0 for committable in committables))
        started_s = time.monotonic()
        topics.look_up_soon(self._leaders, committables, started_s)
        described = self._describe_to_seal(committables)
        version = self._control.end_txn_version
        since_s = max(started_s, time.monotonic() - METADATA_MAX_AGE_S)  # looked up again if describing took long
        topic_ids = topics.ids_to_seal(self._leaders, committables, described.values(), since_s)
        sealed = []
        for committable in committables:
            state = described.get(committable.transaction_id)
            if state is None or not is_ongoing(state, committable):
                raise RoundAborted(
                    f"transaction {committable.transaction_id} can't be committed any more: it was pre-committed as"
                    f" (producer id, epoch) {identity_of(committable)} and is now {state or 'unknown to the broker'}."
                    " A longer 'transaction.timeout.ms' helps if it timed out."
                )
            sealing: dict[str, JsonValue] = {
                "end_txn_version": version,
                "partitions": {topic: list(numbers) for topic, numbers in state.partitions.items()},
                "topic_ids": {
                    **topic_ids_of(committable),
                    **{topic: topic_ids[topic] for topic in state.partitions if topic in topic_ids},
                },
            }
            if "marker_topic" in committable.handle:
                sealing["marker_cluster"] = self._control.cluster_id
            sealed.append(replace(committable, handle={**committable.handle, **sealing}))
        self._refuse_too_large_a_marker(sealed)
        return sealed

    def _refuse_too_large_a_marker(self, sealed: Sequence[Committable]) -> None:
        name, limit = self.transactional_ids.sink, self._options.message_bytes
        for marker in markers.due(name, "", {name: sealed}, {}):
            if (size := len(marker.encoded())) > limit:
                raise ConfigurationError(
                    f"the marker of this batch takes {size} bytes for {len(marker.written)} partitions, more than"
                    f" 'message.max.bytes' = {limit}. Raise that and max.message.bytes of topic {marker.topic!r}, or"
                    " write to fewer partitions. Nothing of the batch is visible.",
                    option="message.max.bytes",
                )

    def _describe_to_seal(self, committables: Sequence[Committable]) -> dict[str, TransactionState]:
        """Describe the transactions. Each state that would veto the batch is proven first, because a proof costs less
        than running the batch again."""
        described = self._control.describe([committable.transaction_id for committable in committables])
        doubtful = [c.transaction_id for c in committables if not is_ongoing(described.get(c.transaction_id), c)]
        for name in doubtful:
            described.pop(name, None)
        try:
            return described | self._control.describe_proven(doubtful, self.transactional_ids.scope)
        except Unprovable as error:
            raise RoundAborted(f"{error.message}. The batch can be run again.") from error

    def _refuse_too_old(self, age_s: float, records: int) -> None:
        """Raise if Kafka may roll the batch back before its commit completes. Running the batch again is better."""
        timeout_ms, margin_ms = self._options.transaction_timeout_ms, self._options.commit_margin_ms
        age_ms = age_s * 1000
        left_ms = timeout_ms - age_ms
        if left_ms >= timeout_ms / 2:
            return
        half = int(records / age_ms * (timeout_ms - margin_ms) / 2)
        advice = (
            f"{records} records took {age_s:.0f} s. At this rate, {half} take half of the time that a batch has. If"
            " each record that is read is written here, set maxOffsetsPerTrigger of Spark's Kafka source to that"
        )
        if left_ms >= margin_ms:
            logger.warning(
                "writing this batch took %.0f s, more than half of 'transaction.timeout.ms' = %d. %s",
                *(age_s, timeout_ms, advice),
            )
            return
        enough_s = max(2 * age_ms, 1.5 * age_ms + margin_ms) // 1000
        raise RoundAborted(
            f"the transactions of this batch may be {age_s:.0f} s old, and Kafka rolls them back after"
            f" 'transaction.timeout.ms' = {timeout_ms} ms: {left_ms:.0f} ms are left, less than 'commit.margin.ms'"
            f" = {margin_ms}. {advice}. This batch has the same records when it is run again: give it more cores,"
            f" or raise the timeout and the broker's transaction.max.timeout.ms, to {enough_s:.0f} s or more."
        )

    def commit(self, committable: Committable) -> None:
        if not committable.handle:
            return  # delivered without a transaction
        identity, version = identity_of(committable), version_of(committable)
        name = self._name(committable)
        self._roll_back_if_topic_is_gone(committable, time.monotonic() - METADATA_MAX_AGE_S)
        is_first = identity not in self._asked_to_commit
        self._asked_to_commit.add(identity)
        error = self._control.end(name, *identity, commit=True, version=version)
        match to_end(error):
            case EndTxnAnswer.DONE:
                self._asked_to_commit.discard(identity)
                return
            case EndTxnAnswer.REPEAT:
                self._stuck.refuse(self._control, committable, error)
                raise Retriable(f"the broker answered {error}")
            case EndTxnAnswer.DENIED:
                raise denied(f"{error} for {name}")
            case EndTxnAnswer.STUCK:
                raise stuck(name)
            case EndTxnAnswer.DESCRIBE:
                self._judge(committable, error, self._state(committable), is_first)

    def commit_many(self, committables: Sequence[Committable]) -> Collection[str]:
        """Ask for all commits without waiting for each answer."""
        since_s = time.monotonic() - METADATA_MAX_AGE_S
        if any(topics.deleted_since(self._leaders, one, since_s) for one in topics.one_per_topic(committables)):
            return ()  # 'commit' decides about each transaction
        due = {identity_of(one): (self._name(one), version_of(one)) for one in committables if one.handle}
        first = due.keys() - self._asked_to_commit
        self._asked_to_commit |= due.keys()
        try:
            asked = self._control.commit_many(due)
        except Retriable:
            self._asked_to_commit -= first  # nothing was sent
            raise
        answers = {each: to_end(name) if name else None for each, name in asked.items()}
        committed = {each for each, answer in answers.items() if answer is EndTxnAnswer.DONE}
        refused = {each for each, answer in answers.items() if answer is EndTxnAnswer.DESCRIBE}
        # 'commit' asks for refused commits again. A refused first request did not commit, so it is forgotten.
        self._asked_to_commit -= committed | (first & refused) | (first - answers.keys())
        return [one.transaction_id for one in committables if not one.handle or identity_of(one) in committed]

    def _roll_back_if_topic_is_gone(self, committable: Committable, since_s: float) -> None:
        """Raise if a topic was deleted since the decision, and maybe created again. Kafka would commit the rest of the
        transaction without an error, so roll the transaction back first if it is ongoing. Use metadata from ``since_s``
        or later.

        Raises:
            TransactionLost: no part of the transaction is committed, so all of its records may be written again.
            OutcomeUnknown: the transaction is committed, and readers may or may not have seen the deleted records.
        """
        if identity_of(committable) in self._visible:
            return  # readers had its records before the topic was deleted
        topic = topics.deleted_since(self._leaders, committable, since_s)
        if topic is None:
            return
        decided = f"transaction {committable.transaction_id} ({committable.records} records) is decided"
        id = topic_ids_of(committable)[topic]
        deleted = f"topic {topic!r} was deleted since, with the id {id}, and its records there with it"
        match outcome_of(self._state(committable), committable):
            case Outcome.ONGOING:
                # Only a write gives certainty: the description may be stale, or an earlier commit still on its way.
                answer = self._control.end(
                    self._name(committable), *identity_of(committable), commit=False, version=version_of(committable)
                )
                if to_end(answer) is not EndTxnAnswer.DONE:
                    raise Retriable(f"{deleted}; to roll back what is left of {committable.transaction_id}: {answer}")
                raise self._lost(committable, f"{decided}, but {deleted}. Nothing of it is committed")
            case Outcome.ENDING:
                raise Retriable(f"{committable.transaction_id} is being ended, and {deleted}")
            case Outcome.COMMITTED:
                raise OutcomeUnknown(
                    f"{decided} and committed, but {deleted}: readers may have seen them before, or not. If they are"
                    " not wanted any more, give the transaction up with 'twopc abandon', and start again."
                )

    def _state(self, committable: Committable) -> TransactionState | None:
        """Describe the transaction, and prove an answer that would stop the query.

        "Committed" is final, and the caller repeats after "ongoing" and "ending". "Unknown" and "rolled back" may be
        stale (invariant 10).
        """
        name = committable.transaction_id
        state = self._control.describe([name]).get(name)
        if outcome_of(state, committable) in (Outcome.ROLLED_BACK, Outcome.UNKNOWN):
            try:
                state = self._control.describe_proven([name], self.transactional_ids.scope).get(name)
            except Unprovable as error:
                raise OutcomeUnknown(
                    f"transaction {name} ({committable.records} records) is decided, and {error.message}: it answered"
                    f" {state or 'that it does not know the id'}. {_READ_THE_TOPIC}"
                ) from error
        return state

    def _judge(self, committable: Committable, error: str, state: TransactionState | None, is_first: bool) -> None:
        name, records = committable.transaction_id, committable.records
        decided = f"transaction {name} ({records} records) is decided"
        match outcome_of(state, committable):
            case Outcome.COMMITTED:
                return
            case Outcome.ONGOING | Outcome.ENDING:
                self._stuck.refuse(self._control, committable, error)
                raise Retriable(f"the broker answered {error} and describes the transaction as {state}. {ADVICE}")
            case Outcome.ROLLED_BACK:
                timeout = f"'transaction.timeout.ms' ({self._options.properties['transaction.timeout.ms']} ms)"
                why = f"it waited longer for its commit than {timeout}"
                if not has_timeout(committable):
                    why = "it has no timeout, so another client has ended it"
                raise self._lost(committable, f"{decided}, but Kafka has rolled it back: {why}")
            case Outcome.UNKNOWN:
                raise OutcomeUnknown(
                    f"{decided}, and Kafka can't say what became of it: it answered {error}, and its id is now"
                    f" {state or 'unknown'}. {_READ_THE_TOPIC}",
                    was_refused_at_first=is_first,
                )

    def _lost(self, committable: Committable, what: str) -> TransactionLost:
        """Return the error for a lost transaction. The advice to write the records again is left out if they have a
        replay copy: the coordinator then writes them itself, or reports what to do."""
        return TransactionLost(what if committable.replay_copy else f"{what}. {self.if_lost}")

    def complete(self, batch_id: int, committables: Sequence[Committable]) -> None:  # noqa: ARG002
        """Wait until readers see the whole batch, so that a sink that commits last is never ahead of this one. Kafka
        answers a commit before it has written the markers, and may leave one out."""
        ended = [committable for committable in committables if committable.handle]
        if not ended:
            return
        if left := wait_for_markers(self._control, ended):
            self._stuck.refuse(self._control, left[0])
            raise unmarked(left[0])
        ended_s = time.monotonic()
        partitions = partitions_of(ended)
        self._hanging.note_written(partitions)
        names = {identity_of(committable): committable.transaction_id for committable in ended}
        topics.look_up_soon(self._leaders, ended, ended_s)
        seen = self._hanging.look(self._leaders)
        for committable in topics.one_per_topic(ended):
            self._roll_back_if_topic_is_gone(committable, ended_s)
        for open_ in seen.open:
            if open_.identity in names:
                hanging.end(self._leaders, open_, names[open_.identity], commit=True)
        away = {
            (topic, number): why for (topic, number), why in seen.away.items() if number in partitions.get(topic, ())
        }
        if away:
            raise Retriable(
                f"whether Kafka has written all markers of the batch can't be seen while {hanging.unasked(away)}. It"
                " wrote there: bring the brokers of that partition back"
            )
        self._visible = frozenset(names)

    def announce(
        self,
        batch_id: int,
        committed: Mapping[str, Sequence[Committable]],
        given_up: Mapping[str, Sequence[Committable]],
    ) -> None:
        """Write the markers that this sink owes the batch. They follow from the log, not from the sink's options, which
        may have changed since the decision."""
        for marker in markers.due(self.transactional_ids.sink, self._batch_name(batch_id), committed, given_up):
            what = f"all of batch {batch_id} is committed, but its marker can't be written to topic {marker.topic!r}"
            code = self._leaders.append(marker.topic, markers.PARTITION, marker.encoded())
            try:
                if code == UNKNOWN_TOPIC:
                    self._require_topic(marker.topic, "batch.markers")
                if code:
                    raise failure(meaning(code), what)
            except RoundAborted as error:  # the refusal is temporary, or the marker may have been written
                raise Retriable(error.message) from error
            except Refused as error:
                raise OperatorRequired(
                    f"{what}: {error.message} Correct that and start again, which writes it."
                ) from error

    def datasets(self, committables: Sequence[Committable]) -> Sequence[Dataset] | None:
        topics: Iterable[str]
        if self._options.topic is not None:
            topics = [self._options.topic]
        elif self._is_transactional:
            topics = sorted(partitions_of(committables))
        else:
            return None  # without a transaction, nothing records a batch's topics
        return [of_topic(self._options.bootstrap_servers, topic) for topic in topics]

    def discard(self, transaction: KafkaTransaction) -> None:
        if not transaction.is_pre_committed:  # else the sweep ends it, and notes where it wrote
            transaction.writer.abort()
            transaction.lease.release()

    def abort(self, committable: Committable) -> None:
        """Abort by producer id and epoch. The call succeeds whenever this transaction is no longer open."""
        if not committable.handle:
            return
        name = self._name(committable)
        if (open_ := hanging.where(committable)) is not None:
            hanging.end(self._leaders, open_, name, commit=False)
        else:
            abort(self._control, committable)

    def _name(self, committable: Committable) -> str:
        """Return the transactional id. Raises ``CorruptLog`` if the id is not one of this sink's: it may be another
        query's."""
        if not self.transactional_ids.owns_leased(committable.transaction_id):
            raise self.transactional_ids.not_owned(committable.transaction_id)
        return committable.transaction_id

    def recover(self) -> Iterable[Committable]:
        """Return the transactions that are open at their coordinators, and those that hang, i.e. are open only in a
        partition."""
        # This does not depend on 'delivery', which may have been exactly-once before.
        listed = self._owned(self._control.list_ongoing(self.transactional_ids.scope))
        ongoing = [(name, state) for name, state in listed if state.state == "Ongoing"]
        for _, state in ongoing:
            self._hanging.note_written(state.partitions)
        open_ = [
            Committable(name, {"producer_id": state.producer_id, "producer_epoch": state.producer_epoch})
            for name, state in ongoing
        ]
        if self._hanging.take_nothing_hung() and not open_:
            return open_
        return [*open_, *self._hanging.found(self._control, self._of_producers)]

    def open_transactions(self) -> OpenTransactions:
        """Count the transactions that are open at their coordinators, and find the partitions where readers are held
        back, including by transactions that are open only in a partition."""
        listed = self._owned(self._control.list_ongoing(self.transactional_ids.scope))
        ongoing = [state for _, state in listed if state.state == "Ongoing" and state.began_ms >= 0]
        written_to: dict[str, set[int]] = defaultdict(set)
        for state in ongoing:
            for topic, numbers in state.partitions.items():
                if not topic.startswith("__"):  # groups keep their offsets there, and have no readers to hold back
                    written_to[topic].update(numbers)
        held_back = self._leaders.held_back(written_to, self._options.topic)
        oldest = min(ongoing, key=lambda state: state.began_ms, default=None)
        timeout_ms = oldest.timeout_ms if oldest else NO_TIMEOUT_MS
        return OpenTransactions(
            len(ongoing),
            max(0.0, time.time() - oldest.began_ms / 1000) if oldest else 0.0,
            timeout_ms / 1000 if timeout_ms < NO_TIMEOUT_MS else None,
            {f"{topic}-{number}": offset for (topic, number), offset in held_back.items()},
        )

    def _of_producers(self, producer_ids: Sequence[int]) -> Iterable[tuple[str, TransactionState]]:
        return self._owned(self._control.list_of_producers(self.transactional_ids.scope, producer_ids))

    def _owned(self, listed: Iterable[str]) -> Iterable[tuple[str, TransactionState]]:
        return self._control.describe([name for name in listed if self.transactional_ids.owns_leased(name)]).items()
