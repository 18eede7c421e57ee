"""The sink's own options, and those that are passed on to librdkafka.

Two clients use the options: librdkafka, if it is the writer, and kafka-python for the Arrow writer and for the control
connection, which describes, lists and ends transactions. ``connection_options`` defines the options that both must
honor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from twopc.errors import ConfigurationError
from twopc.options import Kind, Option, choice, flag, names, parse, text, unknown, whole_number, wrong_value
from twopc_kafka import connection_options, properties
from twopc_kafka.properties import BY_KEY, MOST, PARTITIONER
from twopc_kafka.writers.settings import HONORED, MESSAGE_BYTES, settings

EXACTLY_ONCE, AT_LEAST_ONCE, NONE = "exactly-once", "at-least-once", "none"

LIBRDKAFKA, ARROW = "librdkafka", "arrow"
WRITERS = (LIBRDKAFKA, ARROW)

AUTO, REQUIRE, OFF = "auto", "require", "off"

PREFIX = "twopc"

OWNER = "the kafka sink"

_PASSED_ON = "and librdkafka's own"

DEFAULTS: Mapping[str, Any] = {
    "transaction.timeout.ms": 900_000,
    "message.timeout.ms": 120_000,
    "topic.metadata.propagation.max.ms": 10_000,
    "partitioner": "murmur2_random",
    "queue.buffering.max.kbytes": 65_536,
    "enable.sparse.connections": False,
}

_TOPIC = re.compile(rb"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")  # Kafka's Topic.validate
_INTERNAL = (b"__consumer_offsets", b"__transaction_state", b"__share_group_state")


def wrong_topic(name: bytes) -> str:
    """Return why no record can be written to a topic of this name, or an empty string if the name is allowed."""
    if name not in _INTERNAL and _TOPIC.fullmatch(name):
        return ""
    wrong = "it is one of Kafka's internal topics" if name in _INTERNAL else "no topic can have this name"
    return f"{wrong}. A name has 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'"


def _topic(given: Any) -> str:
    if wrong_topic(str(given).encode()):
        raise ValueError
    return str(given)


def _ms(least: int, most: int = MOST, why: str = "") -> Kind:
    kind = whole_number(least, most, values="ms")
    return replace(kind, must_be=f"{kind.must_be}{why}")


OPTIONS = (
    connection_options.SERVERS,
    Option(
        "topic",
        Kind(
            "text",
            "the name of a topic that is not Kafka's own: 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'."
            " Leave it out if the records have a column 'topic'",
            _topic,
        ),
        "the topic of all records; without it, records need a column `topic`. Topics must exist: the sink creates none",
    ),
    Option(
        "delivery",
        choice(EXACTLY_ONCE, AT_LEAST_ONCE, NONE),
        "what readers see, and when: the section Delivery",
        default=EXACTLY_ONCE,
    ),
    Option(
        "writer",
        choice(*WRITERS),
        f"`{ARROW}` is the sink's own, faster writer, for `{EXACTLY_ONCE}` only: the section Writers",
        default_text=f"`{ARROW}` with `delivery` = `{EXACTLY_ONCE}`, else `{LIBRDKAFKA}`",
    ),
    Option(
        "two.phase.commit",
        choice(AUTO, REQUIRE, OFF),
        f"transactions without a timeout, with `writer` = `{ARROW}`",
        default_text=f"`{AUTO}` with `writer` = `{ARROW}`, else `{OFF}`",
    ),
    Option(
        "batch.markers",
        Kind(
            "text",
            "the name of another topic than the records', with 1 to 249 of the characters a-z, A-Z, 0-9,"
            " '.', '_' and '-'",
            _topic,
        ),
        f"the topic that gets a marker for each complete batch, with `delivery` = `{EXACTLY_ONCE}` only: the section"
        " Whole batches",
        default_text="no markers",
    ),
    Option(
        "upsert_by",
        choice("key", "topic,key"),
        "for a compacted topic: of each key, the batch's last record is written, and a delete as a tombstone."
        " `topic,key` if the records have a column `topic`",
        default_text="records are only added",
    ),
    Option(
        "transactional.id.prefix",
        text(),
        "the prefix of all transactional ids, on which rights are granted. The commit log records it: with another"
        " prefix, open transactions would not be found, so the query does not start",
        default=PREFIX,
    ),
    Option(
        "transaction.timeout.ms",
        _ms(1000),
        "Kafka aborts a transaction this long after its begin, even a decided one. If the principal may not read the"
        f" brokers' maximum, the default is {DEFAULTS['transaction.timeout.ms']}",
        default_text="the brokers' maximum",
    ),
    Option(
        "commit.margin.ms",
        _ms(0),
        "the part of `transaction.timeout.ms` that is kept for the commit. If less is left when a batch is written, the"
        " batch is rolled back and repeated. A driver that dies after a decision must be back within it",
        default_text="a third of `transaction.timeout.ms`",
    ),
    Option(
        "message.timeout.ms",
        _ms(1, why=": without a limit, a task would wait forever for a lost broker"),
        "how long a task waits for a broker that does not answer",
        default_text=f"{DEFAULTS['message.timeout.ms']}, or `transaction.timeout.ms` if shorter",
    ),
    Option(
        "topic.metadata.propagation.max.ms",
        _ms(0, 3_600_000),
        "how long a topic may be unknown before it counts as nonexistent; librdkafka's own default is 30000",
        default_text=f"{DEFAULTS['topic.metadata.propagation.max.ms']}",
    ),
    Option(
        "partitioner",
        replace(PARTITIONER, values="librdkafka's"),
        "how a key selects the partition. The default matches Spark and Java; librdkafka's own is based on CRC-32",
        default_text=f"`{DEFAULTS['partitioner']}`",
    ),
    Option(
        "queue.buffering.max.kbytes",
        whole_number(1, MOST, values="KiB"),
        "how much memory a task uses for records in flight, whatever the size of its batch",
        default_text=f"{DEFAULTS['queue.buffering.max.kbytes']}",
    ),
    Option(
        "enable.idempotence",
        flag(),
        "whether librdkafka's own retries keep the order and duplicate no record",
        default_text=f"`true`; `false` with `delivery` = `{NONE}`",
    ),
    Option(
        "enable.sparse.connections",
        flag(),
        "whether librdkafka connects to a broker only when it needs one. With `false` a producer is ready in 3 ms, not"
        " 500",
        default_text=f"`{DEFAULTS['enable.sparse.connections']}`".lower(),
    ),
)
"""The sink's own options, and those options of librdkafka for which the sink has its own default."""

PROGRESS_OPTIONS = (
    Option(
        "group.id",
        text("a consumer group of the query's own"),
        "a consumer group of the query's own",
        needed=True,
    ),
)
"""The further options of the backend ``kafka-offsets``."""

_OWN = (
    "topic",
    "delivery",
    "writer",
    "two.phase.commit",
    "batch.markers",
    "upsert_by",
    "transactional.id.prefix",
    "commit.margin.ms",
)
"""The options that are not passed on to librdkafka."""

_READ_ALIKE = ("partitioner", "enable.idempotence", "enable.sparse.connections")
"""The options that are passed on in the sink's own spelling, because the clients accept fewer spellings."""

_OURS = {
    "metadata.broker.list": connection_options.OTHER_SERVERS,
    "transactional.id": "the sink leases ids from its own pool; to set their prefix, use 'transactional.id.prefix'",
    "allow.auto.create.topics": "the sink creates no topics",
    "logger": "librdkafka logs to the logger 'twopc_kafka.writers.librdkafka'",
    "delivery.report.only.error": "the sink reads delivery reports itself",
    "statistics.interval.ms": "the sink reads the statistics itself",
}


@dataclass(frozen=True)
class KafkaOptions:
    """A checked set of options. The repr does not show the properties, because some are secrets.

    Attributes:
        topic: the topic of all records, or None if the records have a column ``topic``. As with Spark's own sink, the
            option takes precedence over the column.
        delivery: ``exactly-once``, ``at-least-once`` (flushed, without a transaction) or ``none`` (not flushed).
        writer: ``arrow`` (the sink's own, faster writer, for ``exactly-once`` only) or ``librdkafka``.
        two_phase_commit: transactions without a timeout (KIP-939): ``auto`` if granted, ``require`` or ``off``.
        marker_topic: the topic of the markers of complete batches, or None for no markers.
        prefix: the prefix of transactional ids, on which rights are granted.
        commit_margin_ms: how much of ``transaction.timeout.ms`` must be left when a batch is decided.
        asks_for_most: whether to use the longest timeout that the brokers grant, because the user gave no
            ``transaction.timeout.ms``.
        properties: librdkafka's options.
        has_timeout: whether transactions have a timeout. This depends on the brokers, not on the user.
        upsert_by: the columns by which a record replaces another in a compacted topic; empty if records are only added.
    """

    topic: str | None
    delivery: str
    writer: str
    two_phase_commit: str
    prefix: str
    commit_margin_ms: int
    asks_for_most: bool
    properties: Mapping[str, Any] = field(repr=False)
    has_timeout: bool = True
    marker_topic: str | None = None
    upsert_by: tuple[str, ...] = ()

    @property
    def bootstrap_servers(self) -> str:
        return str(self.properties["bootstrap.servers"])

    @property
    def message_bytes(self) -> int:
        """The largest size in bytes of a batch that consists of one record."""
        return int(self.properties.get("message.max.bytes", MESSAGE_BYTES))

    @property
    def transaction_timeout_ms(self) -> int:
        return int(self.properties["transaction.timeout.ms"])

    @property
    def timeout_to_begin_with_ms(self) -> int | None:
        """The timeout with which a transaction begins, or None for no timeout."""
        return self.transaction_timeout_ms if self.has_timeout else None

    def with_transaction_timeout(self, timeout_ms: int) -> KafkaOptions:
        """Return the options with another ``transaction.timeout.ms``. Timeouts that must not exceed it are lowered."""
        properties = {**self.with_message_timeout(timeout_ms).properties, "transaction.timeout.ms": timeout_ms}
        return replace(self, commit_margin_ms=min(self.commit_margin_ms, timeout_ms // 3), properties=properties)

    def with_message_timeout(self, timeout_ms: int) -> KafkaOptions:
        """Return the options with a ``message.timeout.ms`` of at most ``timeout_ms``."""
        message_ms = min(int(self.properties["message.timeout.ms"]), timeout_ms)
        return replace(self, properties={**self.properties, "message.timeout.ms": message_ms})

    @property
    def control(self) -> dict[str, Any]:
        """The connection options, translated for kafka-python."""
        return connection_options.control(self.properties)


def parse_options(options: Mapping[str, Any]) -> KafkaOptions:
    """Check a user's options.

    Raises:
        ConfigurationError: an option is wrong or missing. The error names the option. It shows the value only for an
            option with a fixed set of values.
    """
    given = {name: value for name, value in options.items() if not (name == "topic" and value is None)}
    properties.refuse_other_types(OWNER, given)
    _refuse_spellings_of_spark(given)
    given = properties.by_one_name(OWNER, given, (*names(OPTIONS), *connection_options.NAMES))
    own = parse(OWNER, OPTIONS, given, _PASSED_ON)
    given |= {name: own[name] for name in _READ_ALIKE if name in own}
    passed_on = {name: value for name, value in given.items() if name not in _OWN}
    delivery = own["delivery"]
    writer = own.get("writer", ARROW if delivery == EXACTLY_ONCE else LIBRDKAFKA)
    two_phase_commit = own.get("two.phase.commit", AUTO if writer == ARROW else OFF)
    if two_phase_commit != OFF and writer != ARROW:
        raise ConfigurationError(
            f"'two.phase.commit' = {two_phase_commit!r} is only for 'writer' = 'arrow': librdkafka does not support it",
            option="two.phase.commit",
        )
    _refuse_markers_that_mean_nothing(own.get("batch.markers"), own.get("topic"), delivery)
    _refuse_unknown(passed_on)
    checked = connection_options.checked(OWNER, own["bootstrap.servers"], passed_on)
    properties.check(OWNER, passed_on)
    merged = _with_defaults(checked, delivery)
    if "upsert_by" in own and merged["partitioner"].lower() not in BY_KEY:
        raise ConfigurationError(
            f"{OWNER} with 'upsert_by' needs a 'partitioner' that sends each key to one partition, else a tombstone"
            f" would not reach the record that it deletes. Use one of {', '.join(BY_KEY)}.",
            option="partitioner",
        )
    properties.check_together(OWNER, merged, is_transactional=delivery == EXACTLY_ONCE)
    if writer == ARROW:
        _refuse_what_the_arrow_writer_cannot_honor(merged, delivery)
    return KafkaOptions(
        topic=own.get("topic"),
        delivery=delivery,
        writer=writer,
        two_phase_commit=two_phase_commit,
        prefix=own["transactional.id.prefix"],
        commit_margin_ms=_margin_ms(own.get("commit.margin.ms"), int(merged["transaction.timeout.ms"])),
        asks_for_most="transaction.timeout.ms" not in passed_on,
        properties=merged,
        marker_topic=own.get("batch.markers"),
        upsert_by=tuple(own["upsert_by"].split(",")) if "upsert_by" in own else (),
    )


def _refuse_markers_that_mean_nothing(marker_topic: str | None, topic: str | None, delivery: str) -> None:
    if marker_topic is None:
        return
    if delivery != EXACTLY_ONCE:
        raise ConfigurationError(
            f"'batch.markers' is only for 'delivery' = {EXACTLY_ONCE!r}: with {delivery!r}, records may be there twice",
            option="batch.markers",
        )
    if marker_topic == topic:
        raise ConfigurationError(
            f"'batch.markers' and 'topic' are both {topic!r}: markers need a topic of their own", option="batch.markers"
        )


def _margin_ms(margin_ms: int | None, timeout_ms: int) -> int:
    if margin_ms is None:
        return timeout_ms // 3  # for restarting a driver that dies after the decision
    if margin_ms >= timeout_ms:
        raise wrong_value(OWNER, "commit.margin.ms", f"a whole number below 'transaction.timeout.ms' ({timeout_ms})")
    return margin_ms


def _with_defaults(given: Mapping[str, Any], delivery: str) -> dict[str, Any]:
    # With idempotence, librdkafka's retries duplicate no record and keep the order. A transaction implies it.
    idempotence = {} if delivery == EXACTLY_ONCE else {"enable.idempotence": delivery != NONE}
    merged = {**DEFAULTS, **idempotence, **given}
    if "message.timeout.ms" not in given:
        # librdkafka refuses a message timeout that is longer than the transaction's.
        merged["message.timeout.ms"] = min(DEFAULTS["message.timeout.ms"], int(merged["transaction.timeout.ms"]))
    return merged


def _refuse_spellings_of_spark(options: Mapping[str, Any]) -> None:
    for name in options:
        if name.startswith("kafka."):
            raise ConfigurationError(
                f"{OWNER} has no option {name!r}, which is the spelling in Spark's own sink. Did you mean"
                f" {name.removeprefix('kafka.')!r}?",
                option=name,
            )


def _refuse_unknown(passed_on: Mapping[str, Any]) -> None:
    known = (*names(OPTIONS), *connection_options.NAMES, *properties.NAMES)
    for name in passed_on:
        if name in _OURS:
            raise ConfigurationError(f"{name!r} can't be set on a kafka sink: {_OURS[name]}", option=name)
        if name not in known and not connection_options.is_security(name):
            raise unknown(OWNER, name, names(OPTIONS), _PASSED_ON, known)


def _refuse_what_the_arrow_writer_cannot_honor(merged: Mapping[str, Any], delivery: str) -> None:
    if delivery != EXACTLY_ONCE:
        raise ConfigurationError(
            f"'writer' = 'arrow' is only for 'delivery' = 'exactly-once', not {delivery!r}", option="writer"
        )
    for name in merged:
        if name not in HONORED and not connection_options.is_known(name):
            raise ConfigurationError(
                f"{name!r} is an option of librdkafka that the arrow writer does not support. Leave it out, or set"
                " 'writer' = 'librdkafka'.",
                option=name,
            )
    settings(merged)
