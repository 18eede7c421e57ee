"""The data plane through librdkafka: writes Arrow record batches in one Kafka transaction.

A writer serves one transaction of one task attempt and is then dropped. Its InitProducerId gives the transaction an
epoch of its own, so ``(producer id, epoch)`` names exactly one transaction. If several transactions shared an epoch, a
late commit could end the wrong one (FLINK-8132).
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import confluent_kafka

from twopc.errors import RecordRefused, Retriable, RoundAborted, TwoPhaseCommitError
from twopc.threads import on_threads
from twopc_kafka.answers import (
    ProducerIdentity,
    WriteAnswer,
    failure,
    login_refused,
    meaning,
    records_refused,
    timeout_refused,
)
from twopc_kafka.client.cluster import Lookups, cluster_of
from twopc_kafka.columns import records
from twopc_kafka.connection_options import for_librdkafka, unusable_here
from twopc_kafka.ending import ABORT_TIMEOUT_S
from twopc_kafka.markers import UNKNOWN_END, Written
from twopc_kafka.options import EXACTLY_ONCE, NONE, OWNER, KafkaOptions
from twopc_kafka.values import check_values

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

IDENTITY_TIMEOUT_S = 10.0
"""How long to wait for statistics that contain the producer's epoch. librdkafka reports statistics every 5 ms."""

LOGIN_LOOK_S = 1.0
"""How often to check for a refused login while a producer waits for its transactional id."""

POLL_INTERVAL_S = 1.0
"""The time between two polls of a producer whose task waits for records. librdkafka keeps its statistics until a poll
takes them, up to 3 MB per second."""

PAUSE_S = 0.1
"""How long to wait for room in the queue before the next attempt to produce."""


class _Reports:
    """librdkafka's reports about a producer. They are kept apart from the writer: with a reference to its writer, a
    producer would hold its threads and memory until the garbage collector finds the cycle."""

    def __init__(self) -> None:
        self.failures: list[tuple[confluent_kafka.KafkaError, str, int | None]] = []
        self.written: dict[tuple[str, int], tuple[int, int]] = {}
        self._counting = threading.Lock()  # the task and the thread that polls serve reports at the same time
        self.statistics = ""
        self.refused_login: str | None = None
        self.broken: confluent_kafka.KafkaError | None = None  # the fatal error, which is reported once

    def delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            partition = message.partition()
            known = partition is not None and partition >= 0
            self.failures.append((error, str(message.topic()), partition if known else None))
        else:
            place = str(message.topic()), int(message.partition())  # type: ignore[arg-type]  # it is delivered
            offset = message.offset()
            # Reports come in any order. If an offset is unknown, the others of its batch are wrong: they count from it.
            with self._counting:
                records, end = self.written.get(place, (0, 0))
                reported = UNKNOWN_END if offset is None or offset < 0 else offset + 1
                self.written[place] = records + 1, max(end, reported)

    def keep_error(self, error: confluent_kafka.KafkaError) -> None:
        if error.code() == confluent_kafka.KafkaError._AUTHENTICATION:  # noqa: SLF001  # its name
            self.refused_login = error.str()

    def keep_statistics(self, statistics: str) -> None:
        self.statistics = statistics


class Writer:
    """A producer for one transaction, or for one flush if ``delivery`` asks for no transaction."""

    def __init__(self, options: KafkaOptions, transactional_id: str) -> None:
        """Create the producer, and begin its transaction if ``delivery`` asks for one.

        Raises:
            ConfigurationError: the broker refuses the producer permanently, or this machine can't use its options.
            OperatorRequired: the broker refuses the login.
            RoundAborted: the broker could not be reached, or another producer is using the id.
        """
        self._options = options
        self._reports = _Reports()
        self._transactional = options.delivery == EXACTLY_ONCE
        self._transactional_id = transactional_id
        self._has_ended = False
        self.is_closed = False
        self.topic_ids: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        try:
            self._producer = _apart(lambda: confluent_kafka.Producer(self._properties(), logger=logger))
        except confluent_kafka.KafkaException as raised:
            error = raised.args[0]
            if error.code() == confluent_kafka.KafkaError._CRIT_SYS_RESOURCE:  # noqa: SLF001  # its name
                raise _no_thread(error.str()) from None
            raise unusable_here(OWNER, error.str()) from None  # such as a certificate that is missing on this host
        if self._transactional:
            try:
                self._init_transactions(int(options.properties["message.timeout.ms"]) / 1000)
                _apart(self._producer.begin_transaction)
            except (confluent_kafka.KafkaException, SystemError) as raised:
                raise self._refused(self._reason(raised)) from raised
            # Serve librdkafka's reports while the task waits for records, for as long as this writer is in use.
            _start(_poll_on, weakref.ref(self), name="twopc-kafka-poll", daemon=True)

    def _init_transactions(self, timeout_s: float) -> None:
        """Wait for the transactional id, for a limited time. librdkafka would retry forever if the broker is gone or
        refuses the login. It reports a refused login only to a callback, so check for that regularly."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            try:
                _apart(self._producer.init_transactions, max(min(left_s, LOGIN_LOOK_S), 0.001))
            except confluent_kafka.KafkaException as error:
                _apart(self._producer.poll, 0)  # serves the callback
                if not error.args[0].retriable() or left_s <= LOGIN_LOOK_S or self._reports.refused_login:
                    raise
            else:
                return

    def _properties(self) -> dict[str, Any]:
        properties = for_librdkafka(self._options.properties)
        properties |= {"error_cb": self._reports.keep_error}
        # Without markers, only failures are reported: 100 000 callbacks a second would cost more than the sending.
        properties |= {"delivery.report.only.error": self._options.marker_topic is None}
        properties |= {"on_delivery": self._reports.delivered}
        properties |= {"allow.auto.create.topics": False}  # otherwise looking up a misspelled topic would create it
        if self._transactional:
            properties |= {"transactional.id": self._transactional_id}
            # The producer reports its own id and epoch only in its statistics. The broker could report the epoch of a
            # zombie that has taken over the id meanwhile.
            properties |= {"statistics.interval.ms": 5, "stats_cb": self._reports.keep_statistics}
        else:
            del properties["transaction.timeout.ms"]
        return properties

    def poll(self) -> None:
        """Serve librdkafka's reports, and keep a fatal error for the task's next call."""
        try:
            self._producer.poll(0)
        except (confluent_kafka.KafkaException, SystemError) as raised:
            self._reports.broken = self._reason(raised)

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand a batch over for sending.

        Raises:
            RecordRefused: a record can never be written.
            RoundAborted: a record of this batch or an earlier one was not delivered, or another producer took over.
        """
        check_values(batch, self._options, self._partitions)
        produce, poll = self._producer.produce, self._producer.poll
        for record in records(batch, self._options.topic):
            try:
                try:
                    produce(*record)
                    continue
                except BufferError:
                    pass  # what follows may raise, and would leak this error: see _apart
                self._produce_when_there_is_room(record)
            except confluent_kafka.KafkaException as error:
                # After the first failed record, all later ones fail with _STATE. Report the first.
                self._served(poll, 0)
                self._raise_failures()
                raise self._not_delivered(self._reason(error), record[0], None) from error
        self._served(poll, 0)
        self._raise_failures()

    def _produce_when_there_is_room(self, record: tuple[Any, ...]) -> None:
        while True:
            is_empty = not len(self._producer)
            if not is_empty:
                self._served(self._producer.poll, PAUSE_S)
            try:
                self._producer.produce(*record)
            except BufferError:
                if is_empty:  # waiting would free no room
                    room = self._options.properties["queue.buffering.max.kbytes"]
                    # The error has no position: earlier records are written, so the batch can't go on without this one.
                    raise RecordRefused(
                        f"a record is larger than 'queue.buffering.max.kbytes' = {room} allows. Raise this option."
                    ) from None
            else:
                return

    def _partitions(self, topic: str, highest: int) -> int:
        """Return the number of partitions of ``topic``, 0 if it does not exist. The topic is looked up once, and again
        if the number is too small for the partition ``highest``."""
        if (count := self._counts.get(topic, 0)) <= highest:
            count = self._counts[topic] = self._look_up(topic)
        return count

    @cached_property
    def _lookups(self) -> Lookups:
        unknown_ms, timeout_ms = (
            int(self._options.properties[name]) for name in ("topic.metadata.propagation.max.ms", "message.timeout.ms")
        )
        return Lookups(cluster_of(self._options.control, timeout_ms), unknown_ms, timeout_ms)

    def _look_up(self, topic: str) -> int:
        """Look up a topic through kafka-python, because librdkafka does not report a topic's id."""
        found = self._lookups.find(topic)
        if self._transactional and found.id:
            self.topic_ids.setdefault(topic, found.id)
        return len(found.leaders)

    @property
    def written(self) -> Written:
        """How much was written to each partition, after ``finish``. Empty unless the batch gets a marker."""
        return self._reports.written

    def finish(self) -> ProducerIdentity | None:
        """Wait until the broker has acknowledged every record.

        Returns:
            The transaction's identity, or None if there is no transaction.

        Raises:
            RoundAborted: a record was not delivered, another producer took over, or this host can start no thread.
        """
        if self._options.delivery == NONE:
            # The task does not wait. The flush keeps the producer alive, as a dropped producer loses its queue.
            _start(self._producer.flush, name="twopc-kafka-flush", daemon=False)
            return None
        # This loop ends: 'message.timeout.ms' turns a record that is never acknowledged into a failure.
        while self._served(self._producer.flush, 1.0):
            self._raise_failures()
        self._raise_failures()
        return self._identity() if self._transactional else None

    def abort(self) -> None:
        """Roll the transaction back. Without a transaction, drop the records that are not sent yet.

        A transaction whose id another producer has taken over is rolled back already.

        Raises:
            Retriable: no broker answered in time.
            RoundAborted: this producer can't roll the transaction back. The coordinator's sweep will.
        """
        if self._has_ended:
            return
        if self._transactional:
            try:
                _apart(self._producer.abort_transaction, ABORT_TIMEOUT_S)
            except (confluent_kafka.KafkaException, SystemError) as raised:
                error = self._reason(raised)
                if error.fatal() or error.code() in _FENCED:
                    self._end()
                if error.code() in _FENCED:  # the producer that took over the id has aborted it already
                    return
                raise (Retriable if error.retriable() else RoundAborted)(
                    f"transaction {self._transactional_id} could not be rolled back by its own producer: {error.str()}"
                    f" ({error.name()}). The coordinator's sweep rolls it back."
                ) from raised
            self._has_ended = True
        else:
            self._producer.purge()

    def _end(self) -> None:
        """End a producer that has failed for good. confluent-kafka would otherwise keep it and its threads forever.

        Never close a producer that has not failed: ``close`` would roll back a transaction that has voted, and wait for
        the answer.
        """
        self._producer.purge()
        _apart(_close, self._producer)
        self._has_ended = self.is_closed = True

    def _identity(self) -> ProducerIdentity:
        deadline = time.monotonic() + IDENTITY_TIMEOUT_S
        while time.monotonic() < deadline:
            told = json.loads(self._reports.statistics)["eos"] if self._reports.statistics else {"producer_id": -1}
            if told["producer_id"] >= 0:
                return ProducerIdentity(told["producer_id"], told["producer_epoch"])
            self._served(self._producer.poll, 0.01)
        raise RoundAborted(f"librdkafka did not report its producer's epoch within {IDENTITY_TIMEOUT_S:.0f} s")

    def _served(self, call: Callable[[float], int], timeout_s: float) -> int:
        """Call ``poll`` or ``flush``, which serve callbacks, and raise the producer's failure as ``RoundAborted``."""
        try:
            return _apart(call, timeout_s)
        except (confluent_kafka.KafkaException, SystemError) as raised:
            raise self._broken(self._reason(raised)) from raised

    def _reason(self, raised: BaseException) -> confluent_kafka.KafkaError:
        """Return the raised error, or the producer's fatal error if confluent-kafka raised another one in its place."""
        if (error := _of_librdkafka(raised)).code() in _WITHOUT_REASON:
            try:
                _apart(self._producer.begin_transaction)  # fails, with the fatal error if there is one
            except (confluent_kafka.KafkaException, SystemError) as refused:
                reason = _of_librdkafka(refused)
                return reason if reason.fatal() else error
        return error

    def _raise_failures(self) -> None:
        if self._has_ended:
            raise RoundAborted(f"transaction {self._transactional_id} has been rolled back by its task.")
        if self._reports.broken:
            raise self._broken(self._reports.broken)
        if self._reports.failures:
            raise self._not_delivered(*self._reports.failures[0])

    def _not_delivered(
        self, error: confluent_kafka.KafkaError, topic: str, partition: int | None
    ) -> TwoPhaseCommitError:
        if error.fatal() or error.code() in _FENCED:
            return self._broken(error)
        if meaning(error.code()).answer is WriteAnswer.REFUSED:
            return records_refused(error.code(), self._options.bootstrap_servers, topic, partition)
        if self._reports.refused_login:  # the record waited in vain for a connection
            return login_refused(self._reports.refused_login)
        what = (
            f"{max(1, len(self._reports.failures))} records were not delivered to {self._options.bootstrap_servers};"
            f" the first, to topic {topic!r}"
        )
        return _failed(error, what)

    def _broken(self, error: confluent_kafka.KafkaError) -> TwoPhaseCommitError:
        """Return the error for a producer that is unusable."""
        what = f"transaction {self._transactional_id}" if self._transactional else "the producer"
        is_fenced = error.code() in _FENCED
        why = "another producer took over its transactional id" if is_fenced else "librdkafka gave up"
        return _failed(error, f"{what} can't go on at {self._options.bootstrap_servers}: {why}")

    def _refused(self, error: confluent_kafka.KafkaError) -> Exception:
        if error.code() == confluent_kafka.KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return timeout_refused(self._options.transaction_timeout_ms)
        if self._reports.refused_login:
            return login_refused(self._reports.refused_login)
        what = f"no transaction {self._transactional_id} could be begun at {self._options.bootstrap_servers}"
        return _failed(error, what)


def _apart(call: Callable[..., ResultT], *arguments: object) -> ResultT:
    """Call confluent-kafka, on a thread of its own if an exception is being handled.

    If confluent-kafka (2.16) raises an error while an exception is being handled, it leaks that exception. The
    exception's frames then keep the producer and its threads for as long as the process lives."""
    if sys.exc_info()[0] is None:
        return call(*arguments)
    # If no thread can be started, this one makes the call: a leak is better than no rollback.
    [result] = on_threads(lambda given: call(*given), [arguments], 1, "twopc-kafka-apart")
    return result


def _poll_on(writer: weakref.ref[Writer]) -> None:
    """Poll a writer's producer until it is closed or the writer is garbage-collected. An error that confluent-kafka
    leaks may keep the writer from being collected for as long as the process lives."""
    while (polled := writer()) is not None and not polled.is_closed:
        with contextlib.suppress(Exception):  # it has been closed, or a handler of log records raised
            polled.poll()
        del polled
        time.sleep(POLL_INTERVAL_S)


def _close(producer: confluent_kafka.Producer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the expected warning that the producer can't abort
        for _ in range(2):  # the first call may raise the fatal error instead of closing
            with contextlib.suppress(confluent_kafka.KafkaException, SystemError):
                producer.close()
                return


def _start(call: Callable[..., object], *arguments: object, name: str, daemon: bool) -> None:
    try:
        threading.Thread(target=call, args=arguments, name=name, daemon=daemon).start()
    except RuntimeError as error:
        raise _no_thread(str(error)) from None


def _no_thread(reason: str) -> RoundAborted:
    return RoundAborted(f"this host can start no thread for a producer: {reason}. The batch can be run again.")


_FATAL = confluent_kafka.KafkaError._FATAL  # noqa: SLF001  # its name

_WITHOUT_REASON = (_FATAL, confluent_kafka.KafkaError._STATE)  # noqa: SLF001  # its name
"""Codes that calls may raise in place of the producer's fatal error."""

_FENCED = (
    confluent_kafka.KafkaError._FENCED,  # noqa: SLF001  # its name
    confluent_kafka.KafkaError.PRODUCER_FENCED,
    confluent_kafka.KafkaError.INVALID_PRODUCER_EPOCH,  # the brokers' error for its records
)


def _of_librdkafka(raised: BaseException) -> confluent_kafka.KafkaError:
    """Return librdkafka's error. confluent-kafka raises a fatal error while it serves callbacks. A further callback
    then runs with an exception pending, which Python makes the cause of a SystemError. A SystemError without a cause
    means that confluent-kafka failed without reporting the reason."""
    error: BaseException | None = raised
    while isinstance(error, SystemError):
        error = error.__cause__
    if error is None:
        return confluent_kafka.KafkaError(_FATAL, str(raised))
    if not isinstance(error, confluent_kafka.KafkaException):
        raise raised
    return error.args[0]  # type: ignore[no-any-return]


def _failed(error: confluent_kafka.KafkaError, what: str) -> TwoPhaseCommitError:
    """Return the error for an answer that fails the task. The batch can be run again if the code is librdkafka's own,
    i.e. negative, or if librdkafka or the table of ``answers`` classifies the error as temporary."""
    known = meaning(error.code())
    if error.code() < 0 or error.retriable() or known.answer in (WriteAnswer.REPEAT, WriteAnswer.RUN_AGAIN):
        return RoundAborted(f"{what}: {error.str()} ({error.name()}). {_advice(error)}")
    return failure(known, what)


def _advice(error: confluent_kafka.KafkaError) -> str:
    code = confluent_kafka.KafkaError
    return {
        code._MSG_TIMED_OUT: "Is the broker up? 'message.timeout.ms' bounds the wait.",  # noqa: SLF001
        code._TIMED_OUT: "Is the broker up, and is 'bootstrap.servers' right?"  # noqa: SLF001
        " 'message.timeout.ms' bounds the wait.",
        code.UNKNOWN_TOPIC_OR_PART: "The topic does not exist: create it with the partitions that you want.",
        **dict.fromkeys(_FENCED, "Is another driver of this query running? If not, the batch can be run again."),
    }.get(error.code(), "The batch can be run again.")
