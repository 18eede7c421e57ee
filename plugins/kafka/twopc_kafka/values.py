"""Checks of the values in records. Both writers call ``check_values`` before they encode a record batch, so they refuse
the same records with the same messages. No message shows a value of a record.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twopc.bad_records import are_utf8, first_bad
from twopc.columns import ADVICE, require_each
from twopc.errors import ConfigurationError, RecordRefused
from twopc.refusals import first_null, first_true, holder
from twopc_kafka.client.cluster import TopicRules
from twopc_kafka.columns import by_topic
from twopc_kafka.options import LIBRDKAFKA, KafkaOptions, wrong_topic
from twopc_kafka.writers.encoding.batches import OVERHEAD_BYTES, alone_bytes
from twopc_kafka.writers.encoding.compression import NONE
from twopc_kafka.writers.encoding.records import binary, epoch_ms, records_of
from twopc_kafka.writers.encoding.varints import Integers
from twopc_kafka.writers.settings import codec

Partitions: TypeAlias = Callable[[str, int], int]
"""A topic and a partition → the topic's number of partitions, 0 if it does not exist. The topic is looked up again if
it lacked that partition at the last lookup."""

CLOCKS_APART_MS = 5_000
"""The tolerated difference between this machine's clock and the broker's, which decides about timestamps."""

_MOST_MS = 2**62  # a larger limit never applies, and would overflow
_MOST_S = (2**63 - 1) // 1000  # Kafka's timestamps are milliseconds in 64 bits
_MOST_NUMBERS_BYTES = 32  # per record without headers, or per header: lengths, deltas, attributes


def check_values(batch: pa.RecordBatch, options: KafkaOptions, partitions: Partitions) -> None:
    """Refuse a batch with a record that can never be written.

    Raises:
        RecordRefused: a record can never be written. The error names the record and the reason.
        ConfigurationError: the topic of the options does not exist.
    """
    present = set(batch.schema.names)
    if options.topic is None:
        _check_topics(batch.column("topic"))
        _refuse_topic_of_markers(batch.column("topic"), options.marker_topic)
    if "headers" in present:
        _check_headers(batch.column("headers"))
    if "timestamp" in present:
        _check_timestamps(batch.column("timestamp"), options.writer)
    _check_sizes(batch, options.message_bytes)
    chosen = batch.select(sorted(present & {"topic", "partition"}))
    for topic, records, positions in by_topic(chosen, options.topic):
        _check_partitions(topic, records, positions, options, partitions)


def require_accepted(batch: pa.RecordBatch, options: KafkaOptions, rules: Callable[[str], TopicRules]) -> None:
    """Refuse a record that its topic does not accept, before the brokers refuse all records that are sent with it.

    Timestamps are compared with this machine's clock, so those close to the limit are left to the brokers.

    Raises:
        RecordRefused: a record lacks a key, has a timestamp or a size that its topic does not accept, or names a topic
            that can't exist.
    """
    if options.topic is None:
        _check_topics(batch.column("topic"))  # Kafka refuses to look up an invalid name
    for topic, records, positions in by_topic(batch, options.topic):
        _require_accepted(records, positions, options, topic, rules(topic))


def _require_accepted(
    batch: pa.RecordBatch, positions: Integers, options: KafkaOptions, topic: str, rules: TopicRules
) -> None:
    def refused(record: int, why: str, column: str | None) -> RecordRefused:
        return RecordRefused(why, record=int(positions[record]), topic=topic, column=column)

    if rules.needs_keys:
        keys = batch.column("key") if "key" in batch.schema.names else pa.nulls(batch.num_rows)
        if (record := first_null(keys)) is not None:
            why = "it has no key, and the topic is compacted (cleanup.policy). Give such records a key, or filter them."
            raise refused(record, why, "key")
    if "timestamp" in batch.schema.names and (found := _first_wrong_time(batch.column("timestamp"), rules)):
        record, limit = found
        why = f"the time is further from now than the topic's {limit} allows. Raise that limit, or filter such records."
        raise refused(record, why, "timestamp")
    is_plain = codec(options.properties) == NONE
    if rules.max_bytes is not None and is_plain and (oversize := _first_oversize(batch, rules.max_bytes)):
        record, size, parts = oversize
        why = (
            f"it is too large: it takes {size} bytes ({parts}), more than the topic's max.message.bytes ="
            f" {rules.max_bytes}. Raise that, or filter such records."
        )
        raise refused(record, why, None)


def _first_wrong_time(column: pa.Array, rules: TopicRules) -> tuple[int, str] | None:
    """Return the first record with a time that the topic certainly rejects, and the limit that it exceeds."""
    now_ms = int(time.time() * 1000)
    times = epoch_ms(column)
    for limit_ms, sign, name in (rules.before_ms, -1, "before"), (rules.after_ms, 1, "after"):
        if limit_ms is not None and (bound := limit_ms + CLOCKS_APART_MS) < _MOST_MS:
            record = first_true(pc.greater(pc.multiply(pc.subtract(times, now_ms), sign), bound))
            if record is not None:
                return record, f"message.timestamp.{name}.max.ms = {limit_ms}"
    return None


def no_such_topic(topic: str, servers: str, option: str = "topic") -> ConfigurationError:
    """Return the error for an option whose topic does not exist."""
    return ConfigurationError(
        f"topic {topic!r} (the option {option!r}) does not exist at {servers}. Create it with the partitions that you"
        " want: the sink creates no topic.",
        option=option,
    )


def _check_topics(column: pa.Array) -> None:
    if (record := first_null(column)) is not None:
        raise RecordRefused(
            "it is null, and the option 'topic' is not set. Filter such records, or set the option.",
            record=record,
            column="topic",
        )
    names = binary(column)
    for name in pc.unique(names).to_pylist():
        if wrong := wrong_topic(name):
            raise RecordRefused(
                f"{wrong}. {ADVICE}",
                record=pc.index(names, name).as_py(),
                topic=name.decode(errors="backslashreplace"),
                column="topic",
            )


def _refuse_topic_of_markers(column: pa.Array, marker_topic: str | None) -> None:
    if marker_topic is not None and (record := pc.index(binary(column), marker_topic.encode()).as_py()) >= 0:
        raise RecordRefused(
            f"it is the topic of 'batch.markers', which needs to be the markers' own. {ADVICE}",
            record=record,
            topic=marker_topic,
            column="topic",
        )


def _check_headers(column: pa.Array) -> None:
    keys = pc.struct_field(column.flatten(), ["key"])
    for header, what in (
        (first_null(keys), "without a key, which Kafka does not allow"),
        (first_true(pc.match_substring(binary(keys), "\0")), "with a NUL in its key, where librdkafka cuts it off"),
        (first_bad(keys, are_utf8), "with a key that is not UTF-8, which readers expect"),
    ):
        if header is not None:
            why = f"there is a header {what}. Correct or filter such headers."
            raise RecordRefused(why, record=holder(column, header), column="headers")


def _check_timestamps(column: pa.Array, writer: str) -> None:
    given, unit = column.cast(pa.int64()), column.type.unit
    require_each(pc.greater_equal(given, 0), "the time is before 1970, which Kafka can't store", "timestamp")
    if unit == "s":
        why = "the time is too far in the future: Kafka stores milliseconds in 64 bits"
        require_each(pc.less_equal(given, _MOST_S), why, "timestamp")
    if writer == LIBRDKAFKA:
        why = (
            "the time is 1970-01-01 00:00:00.000, which librdkafka replaces by the time of sending, unlike"
            " 'writer' = 'arrow', which writes it"
        )
        first_ms = {"s": 1, "ms": 1, "us": 1_000, "ns": 1_000_000}[unit]
        require_each(pc.greater_equal(given, first_ms), why, "timestamp")


def _check_sizes(batch: pa.RecordBatch, limit: int) -> None:
    if oversize := _first_oversize(batch, limit):
        record, size, parts = oversize
        raise RecordRefused(
            f"it is too large: it takes {size} bytes ({parts}), more than 'message.max.bytes' = {limit}. Raise"
            " 'message.max.bytes' of the sink and the topic's max.message.bytes, or filter such records.",
            record=record,
        )


def _first_oversize(batch: pa.RecordBatch, limit: int) -> tuple[int, int, str] | None:
    """Return the first record that takes more than ``limit`` bytes, its size, and the sizes of its parts as text."""
    if _largest_at_most(batch) <= limit:
        return None
    records = records_of(batch)
    sizes = alone_bytes(records)
    for record in np.flatnonzero(sizes > limit).tolist():
        lengths = (records.key_length, records.value_length, records.headers_length)
        key, value, headers = (int(max(length[record], 0)) for length in lengths)
        return record, int(sizes[record]), f"key {key}, value {value}, headers {headers}"
    return None


def _largest_at_most(batch: pa.RecordBatch) -> int:
    """Return a rough upper bound for the bytes of the largest record. Few batches need the exact check."""
    size = OVERHEAD_BYTES + _MOST_NUMBERS_BYTES
    for name in ("value", "key"):
        if name in batch.schema.names:
            size += pc.max(pc.binary_length(batch.column(name))).as_py() or 0
    if "headers" in batch.schema.names:
        column = batch.column("headers")
        parts = (pc.struct_field(column.flatten(), [name]) for name in ("key", "value"))
        largest = _MOST_NUMBERS_BYTES + sum(pc.max(pc.binary_length(part)).as_py() or 0 for part in parts)
        size += largest * (pc.max(pc.list_value_length(column)).as_py() or 0)
    return size


def _check_partitions(
    topic: str, records: pa.RecordBatch, positions: Integers, options: KafkaOptions, partitions: Partitions
) -> None:
    named = records.column("partition") if "partition" in records.schema.names else pa.nulls(0, pa.int32())
    bounds = pc.min_max(named)
    lowest, highest = bounds["min"].as_py() or 0, bounds["max"].as_py() or 0
    count = partitions(topic, max(highest, 0))
    if not count:
        raise _missing(topic, positions, options)
    if lowest < 0 or highest >= count:
        record = pc.index(pc.or_(pc.less(named, 0), pc.greater_equal(named, count)), True).as_py()
        raise RecordRefused(
            f"the topic does not have this partition: it has {count} (0 to {count - 1}). Correct the column, or add"
            " partitions to the topic.",
            record=int(positions[record]),
            topic=topic,
            partition=named[record].as_py(),
            column="partition",
        )


def _missing(topic: str, positions: Integers, options: KafkaOptions) -> RecordRefused | ConfigurationError:
    if options.topic is not None:
        return no_such_topic(topic, options.bootstrap_servers)
    return RecordRefused(
        f"the topic does not exist at {options.bootstrap_servers}. Create it with the partitions that you want, or"
        " correct the column: the sink creates no topic.",
        record=int(positions[0]),
        topic=topic,
        column="topic",
    )
