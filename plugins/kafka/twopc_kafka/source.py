"""Kafka as the source of ``twopc.loop``: partitions assigned by hand, and read from the offsets in the log.

The consumer group's own offsets are never used: a group commits by itself, and hands partitions over while a batch is
undecided. Records that no longer exist are never skipped silently.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import confluent_kafka
import pyarrow as pa
from confluent_kafka import KafkaError, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from twopc.errors import ConfigurationError, OperatorRequired, Retriable
from twopc.loop import Read
from twopc.options import parse
from twopc.transaction import JsonValue
from twopc_kafka import connection_options, properties

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

logger = logging.getLogger(__name__)

ClientT = TypeVar("ClientT")

_TIMEOUT_S = 30.0
LOOK_INTERVAL_S = 60.0
"""How often to look for added partitions."""

MOST_RECORDS = 1_000_000
"""The most records that librdkafka returns at a time."""

_OWNER = "the kafka source"

_OF_CONSUMERS = (
    *("isolation.level", "group.id", "enable.auto.commit", "enable.auto.offset.store"),
    *("auto.offset.reset", "enable.partition.eof"),
)

_OURS = {
    "metadata.broker.list": connection_options.OTHER_SERVERS,
    "auto.commit.enable": "the log has the offsets",
    "enable.auto.commit": "the log has the offsets",
    "enable.auto.offset.store": "the log has the offsets",
    "auto.offset.reset": "a position that is gone is refused, or skipped with fail_on_data_loss=False",
    "group.id": "partitions are assigned by hand; for lag tools, write to a sink of 'kafka-offsets'",
    "enable.partition.eof": "the loop reads on",
}

_PASSING = (
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001  # its name
    KafkaError._TRANSPORT,  # noqa: SLF001  # its name
    KafkaError._RESOLVE,  # noqa: SLF001  # its name
    KafkaError._TIMED_OUT,  # noqa: SLF001  # its name
    KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001  # its name
    KafkaError._PARTITION_EOF,  # noqa: SLF001  # its name
)
"""The errors with which librdkafka reports that brokers are unreachable. It recovers from them by itself."""


class KafkaSource:
    """Reads all partitions of some topics in one process. New partitions are read from their first record on. If a
    topic is left out, the log keeps its position for a later start with that topic.

    The columns are ``topic``, ``partition``, ``offset``, ``timestamp``, ``key``, ``value`` and ``headers``, with the
    types of Spark's Kafka source.

    Args:
        options: librdkafka's options. Connection options are those of ``KafkaSink``.
        topics: the names of the topics.
        max_records: the maximum number of records in a batch.
        max_wait_s: how long to collect the records of a batch.
        starts_at: ``earliest`` or ``latest``, for a log without a batch. With ``latest``, the first batch has no
            records: it records the first offsets in the log.
        fail_on_data_loss: whether to stop if Kafka has deleted records that were not read. If not, the batch's
            ``reads`` in the log record the skipped offsets.

    Raises:
        ConfigurationError: an option is wrong. No connection was made.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        topics: Sequence[str],
        *,
        max_records: int = 100_000,
        max_wait_s: float = 1.0,
        starts_at: str = "earliest",
        fail_on_data_loss: bool = True,
    ) -> None:
        for name in options:
            if name in _OURS:
                raise ConfigurationError(f"{name!r} can't be set on {_OWNER}: {_OURS[name]}", option=name)
        for name, is_right, must_be in (
            ("starts_at", starts_at in ("earliest", "latest"), "'earliest' or 'latest'"),
            ("topics", bool(topics) and not isinstance(topics, str), "names of topics, in a list"),
            ("max_records", 0 < max_records <= MOST_RECORDS, f"a number from 1 to {MOST_RECORDS}"),
            ("max_wait_s", 0 < max_wait_s < math.inf, "a number of seconds above 0"),
        ):
            if not is_right:
                raise ConfigurationError(f"{name} must be {must_be}", option=name)
        properties.refuse_other_types(_OWNER, options)
        options = properties.by_one_name(_OWNER, options, connection_options.NAMES)
        self._topics, self._max_records, self._max_wait_s = sorted(topics), max_records, max_wait_s
        self._starts_at, self._fails = starts_at, fail_on_data_loss
        servers = parse(_OWNER, [connection_options.SERVERS], options)["bootstrap.servers"]
        self._options = {
            "isolation.level": "read_committed",
            **connection_options.checked(_OWNER, servers, options),
            "group.id": "twopc-loop",  # librdkafka demands one; the group neither assigns partitions nor keeps offsets
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": False,
        }
        self._ids: dict[str, str] = {}
        self._left: dict[str, JsonValue] = {}  # positions in topics that are not read now
        self._only_begins = False
        self._next: dict[tuple[str, int], int] = {}
        self._skipped: dict[str, JsonValue] = {}
        self._looked_s = 0.0

    @functools.cached_property
    def _consumer(self) -> confluent_kafka.Consumer:
        return self._client(confluent_kafka.Consumer, ())

    @functools.cached_property
    def _admin(self) -> AdminClient:
        return self._client(AdminClient, _OF_CONSUMERS)

    def _client(self, kind: Callable[..., ClientT], without: Sequence[str]) -> ClientT:
        given = connection_options.for_librdkafka(self._options)
        try:
            return kind({name: value for name, value in given.items() if name not in without}, logger=logger)
        except confluent_kafka.KafkaException as error:
            reason = error.args[0].str()
        raise connection_options.unusable_here(_OWNER, reason)  # outside of 'except': librdkafka's error quotes values

    def begin(self, position: JsonValue) -> None:
        """Continue at a position from the log, or at ``starts_at``. Records that were read but not decided are read
        again.

        Raises:
            OperatorRequired: a topic is gone, was created again, or no longer contains the next record.
            Retriable: the brokers did not answer.
        """
        known: Any = position or {}
        is_new = position is None
        self._ids, self._left, self._next, self._skipped, self._looked_s = {}, {}, {}, {}, 0.0
        self._only_begins = is_new and self._starts_at == "latest"
        for topic, told in known.items():
            if topic not in self._topics:
                self._left[topic] = {"id": told["id"], "offsets": told["offsets"]}
                continue
            self._ids[topic] = told["id"]
            self._next |= {(topic, int(number)): offset for number, offset in told["offsets"].items()}
        self._note(self._found(), self._starts_at if is_new else "earliest")
        for (topic, number), offset in [*self._next.items()]:
            self._next[topic, number] = self._next_offset(topic, number, offset)
        self._assign()

    def read(self) -> Read | None:
        """Return the next records. Raises like ``begin``."""
        if self._only_begins:  # without this batch, a restart would begin at later offsets and skip records
            self._only_begins = False
            return Read(_records([]), self._position(), self._offsets())
        messages = [
            each for each in self._consumer.consume(self._max_records, self._max_wait_s) if not self._is_passing(each)
        ]
        for message in messages:
            self._next[str(message.topic()), int(message.partition() or 0)] = int(message.offset() or 0) + 1
        if messages or time.monotonic() - self._looked_s > LOOK_INTERVAL_S:
            before = len(self._next)
            # Raises if a topic was created again. The messages may then be those of the new one.
            self._note(self._found(), "earliest")
            if len(self._next) > before:
                self._assign()
        return Read(_records(messages), self._position(), self._offsets()) if messages else None

    def _position(self) -> JsonValue:
        position: dict[str, Any] = {**self._left}
        for topic in self._topics:
            offsets = {str(number): offset for (of, number), offset in sorted(self._next.items()) if of == topic}
            position[topic] = {"id": self._ids[topic], "offsets": offsets}
        for topic, skipped in self._skipped.items():
            position[topic]["skipped"] = skipped
        self._skipped = {}
        return position

    def close(self) -> None:
        """Close the connections."""
        if "_consumer" in vars(self):
            self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_passing(self, message: confluent_kafka.Message) -> bool:
        """Return whether a message reports that brokers are unreachable. Raise any other error."""
        if (error := message.error()) is None:
            return False
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return True  # librdkafka looks up the group's coordinator, which this source does not need
        if error.code() in _PASSING or error.retriable():
            logger.warning("reading from Kafka: %s", error.str())
            return True
        where = f"{message.topic()}-{message.partition()}" if message.topic() else "the brokers"
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):  # noqa: SLF001  # its name
            offset = self._next.get((str(message.topic()), int(message.partition() or 0)))
            gone = (
                f"{where} no longer has the next record, at offset {offset}: it was deleted before it was read. Nothing"
            )
            if not self._fails:
                raise Retriable(f"{gone} of it was written yet. The next start skips what is gone, and logs how much.")
            raise OperatorRequired(
                f"{gone} was skipped. Start again: the message then has the number of the records that are lost."
            )
        raise OperatorRequired(f"{where} can't be read: {error.str()} ({error.name()})")

    def _found(self) -> dict[str, tuple[str, int]]:
        """Return the id and the number of partitions of each topic."""
        is_first, self._looked_s = not self._looked_s, time.monotonic()
        described = self._admin.describe_topics(TopicCollection(self._topics), request_timeout=_TIMEOUT_S)
        found = {}
        for name, future in described.items():
            try:
                topic = future.result()
            except confluent_kafka.KafkaException as raised:
                if not is_first and raised.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    # A broker that has just started may not know it yet. If it was deleted, the next start reports it.
                    raise Retriable(f"a broker does not know topic {name!r}, which was there before") from None
                raise _failed(f"topic {name!r}", raised) from None
            found[name] = str(topic.topic_id), len(topic.partitions)
        return found

    def _note(self, found: Mapping[str, tuple[str, int]], starts_at: str) -> None:
        for topic, (topic_id, partitions) in found.items():
            if self._ids.setdefault(topic, topic_id) != topic_id:
                raise OperatorRequired(
                    f"topic {topic!r} was deleted and created again since the newest batch in the log. Nothing of the"
                    " new one was written. To read it from its beginning, start with a new log, after the old one is"
                    " done."
                )
            for number in range(partitions):
                if (topic, number) not in self._next:
                    low, high = self._bounds(topic, number)
                    self._next[topic, number] = low if starts_at == "earliest" else high

    def _bounds(self, topic: str, number: int) -> tuple[int, int]:
        try:
            bounds = self._consumer.get_watermark_offsets(TopicPartition(topic, number), _TIMEOUT_S)
        except confluent_kafka.KafkaException as raised:
            raise _failed(f"{topic}-{number}", raised) from None
        if bounds is None:
            raise Retriable(f"no broker reported the offsets of {topic}-{number} within {_TIMEOUT_S:g} s")
        return bounds

    def _next_offset(self, topic: str, number: int, offset: int) -> int:
        """Return the offset to read next: ``offset``, or the first offset that Kafka still has, if deleted records may
        be skipped."""
        low, high = self._bounds(topic, number)
        if offset > high:
            raise OperatorRequired(
                f"{topic}-{number} ends at offset {high}, and the log has read it up to {offset}: it is another topic"
                " or a restored cluster, or records were lost there. Nothing was read."
            )
        if offset >= low:
            return offset
        lost = f"{topic}-{number} begins at offset {low}, and the next record to read is {offset}: {low - offset}"
        if self._fails:
            raise OperatorRequired(
                f"{lost} records were deleted before they were read. Nothing was skipped. To go on without them, start"
                " with fail_on_data_loss=False."
            )
        logger.warning("%s records are skipped. The next batch in the log has their offsets", lost)
        skipped: Any = self._skipped.setdefault(topic, {})
        skipped[str(number)] = [offset, low]
        return low

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(*place, offset) for place, offset in self._next.items()])

    def _offsets(self) -> pa.RecordBatch:
        topics, numbers = zip(*self._next, strict=True)
        columns = [pa.array(topics, pa.string()), pa.array(numbers, pa.int32()), pa.array(self._next.values())]
        return pa.record_batch(columns, names=["topic", "partition", "offset"])


def _failed(what: str, raised: confluent_kafka.KafkaException) -> OperatorRequired | Retriable:
    error = raised.args[0]
    if error.retriable() or error.code() in _PASSING:
        return Retriable(f"{what}: {error.str()} ({error.name()})")
    return OperatorRequired(f"{what} can't be read: {error.str()} ({error.name()})")


def _records(messages: Sequence[confluent_kafka.Message]) -> pa.RecordBatch:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns: dict[str, pa.Array] = {
        "topic": pa.array([each.topic() for each in messages], pa.string()),
        "partition": pa.array([each.partition() for each in messages], pa.int32()),
        "offset": pa.array([each.offset() for each in messages], pa.int64()),
        "timestamp": pa.array([each.timestamp()[1] for each in messages], pa.timestamp("ms", "UTC")),
        "key": pa.array([each.key() for each in messages], pa.binary()),
        "value": pa.array([each.value() for each in messages], pa.binary()),
        "headers": pa.array([_headers(each.headers()) for each in messages], headers),
    }
    return pa.record_batch(columns)


def _headers(given: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in given or ()]
