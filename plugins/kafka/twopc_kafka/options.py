"""The sink's own options, and librdkafka's, which are passed on and translated for kafka-python.

Two clients use the options: librdkafka, if it is the writer, and kafka-python for the Arrow writer and for the control
connection, which describes, lists and ends transactions. Both must reach the same brokers as the same principal, so an
option of the connection that only one of them could honor is refused, not ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import confluent_kafka

from twopc.errors import ConfigurationError
from twopc.options import Kind, Option, choice, flag, names, parse, text, unknown, whole_number, wrong_value
from twopc_kafka.client.tokens import OAUTHBEARER, check_tokens, token_provider
from twopc_kafka.client.tokens import OPTIONS as TOKEN_OPTIONS
from twopc_kafka.writers.settings import HONORED, MESSAGE_BYTES, settings

EXACTLY_ONCE, AT_LEAST_ONCE, NONE = "exactly-once", "at-least-once", "none"
DELIVERIES = (EXACTLY_ONCE, AT_LEAST_ONCE, NONE)

LIBRDKAFKA, ARROW = "librdkafka", "arrow"
WRITERS = (LIBRDKAFKA, ARROW)

AUTO, REQUIRE, OFF = "auto", "require", "off"
TWO_PHASE_COMMIT = (AUTO, REQUIRE, OFF)

PREFIX = "twopc"


OWNER = "the kafka sink"

_PASSED_ON = "and librdkafka's own"

_MOST = 2**31 - 1
"""librdkafka's largest number."""


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


_ADDRESS = re.compile(r"(?:(\w+)://)?(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
"""An address that both clients read alike: librdkafka takes a port modulo 65536, and kafka-python drops a scheme."""

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def _addresses(given: Any) -> str:
    for address in str(given).split(","):
        found = _ADDRESS.fullmatch(address.strip())
        if not found or not 0 < int(found[2] or 9092) < 65536 or (found[1] or "SSL").upper() not in _PROTOCOLS:
            raise ValueError
    return str(given)


def _ms(least: int, why: str = "") -> Kind:
    kind = whole_number(least, _MOST, values="ms")
    return replace(kind, must_be=f"{kind.must_be}{why}")


OPTIONS = (
    Option(
        "bootstrap.servers",
        Kind("addresses", "addresses such as broker1:9092,broker2:9092, with a port of 1 to 65535", _addresses),
        "",
        needed=True,
    ),
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
        choice(*DELIVERIES),
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
        choice(*TWO_PHASE_COMMIT),
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
        f"with `delivery` = `{EXACTLY_ONCE}`: the topic of a marker for each complete batch, for readers of whole"
        " batches: the section Whole batches",
        default_text="no markers",
    ),
    Option(
        "upsert_by",
        choice("key", "topic,key"),
        "for a compacted topic, in which a record replaces the one of its key: a batch's last record of each key is"
        " written, and a delete is a tombstone. `topic,key` if the records have a column `topic`",
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
        "how long a decided batch may wait for its commit before Kafka aborts it. A longer timeout loses"
        f" less. {DEFAULTS['transaction.timeout.ms']}, the brokers' default, if this principal can't read the maximum",
        default_text="the brokers' maximum",
    ),
    Option(
        "commit.margin.ms",
        _ms(0),
        "how much of `transaction.timeout.ms` must be left when a batch is decided; with less, the batch is rolled back"
        " and run again. A driver that dies after the decision must be restarted within this time",
        default_text="a third of `transaction.timeout.ms`",
    ),
    Option(
        "message.timeout.ms",
        _ms(1, ": without a limit, a task would wait forever for a lost broker"),
        "how long a task waits for a lost broker",
        default_text=f"{DEFAULTS['message.timeout.ms']}, or `transaction.timeout.ms` if shorter",
    ),
    Option(
        "topic.metadata.propagation.max.ms",
        _ms(0),
        "how long a topic may be unknown before it counts as nonexistent; librdkafka's own default is 30000",
        default_text=f"{DEFAULTS['topic.metadata.propagation.max.ms']}",
    ),
    Option(
        "partitioner",
        text(values="librdkafka's"),
        "how a key selects the partition. The default matches Spark and Java; librdkafka's own is based on CRC-32",
        default_text=f"`{DEFAULTS['partitioner']}`",
    ),
    Option(
        "queue.buffering.max.kbytes",
        whole_number(1, _MOST, values="KiB"),
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

_PASSED_ON_AS_GIVEN = ("partitioner", "enable.idempotence", "enable.sparse.connections")
"""The options that only librdkafka checks, because it accepts more spellings."""

_BY_KEY = ("murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a_random", "fnv1a")
"""The partitioners of librdkafka by which all records of a key are in one partition. What is random of them is where a
record without a key goes."""

_MESSAGE_BYTES = Option("message.max.bytes", whole_number(1, _MOST, values="bytes"), "")
_READ_HERE = (*(option for option in OPTIONS if option.name not in _PASSED_ON_AS_GIVEN), _MESSAGE_BYTES)
"""The options that the sink itself reads."""

_OURS = {
    "metadata.broker.list": "it is librdkafka's other name for 'bootstrap.servers': use the latter",
    "transactional.id": "the sink leases ids from its own pool; to set their prefix, use 'transactional.id.prefix'",
    "allow.auto.create.topics": "the sink creates no topics",
    "logger": "librdkafka logs to the logger 'twopc_kafka.writers.librdkafka'",
    "delivery.report.only.error": "the sink reads delivery reports itself",
    "statistics.interval.ms": "the sink reads the statistics itself",
}

# librdkafka's name → kafka-python's name and type.
_CONTROL: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "bootstrap.servers": ("bootstrap_servers", lambda text: [server.strip() for server in text.split(",")]),
    "client.id": ("client_id", str),
    "security.protocol": ("security_protocol", str.upper),
    "sasl.mechanism": ("sasl_mechanism", str),
    "sasl.mechanisms": ("sasl_mechanism", str),
    "sasl.username": ("sasl_plain_username", str),
    "sasl.password": ("sasl_plain_password", str),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str),
    "ssl.ca.location": ("ssl_cafile", str),
    "ssl.certificate.location": ("ssl_certfile", str),
    "ssl.key.location": ("ssl_keyfile", str),
    "ssl.key.password": ("ssl_password", str),
    "ssl.crl.location": ("ssl_crlfile", str),
    "ssl.endpoint.identification.algorithm": ("ssl_check_hostname", lambda text: text.lower() != "none"),
    "socket.timeout.ms": ("request_timeout_ms", int),
}
CONNECTION = tuple(_CONTROL)
"""The options of the connection that both clients support."""

_WITHOUT_MEANING_FOR_CONTROL = {"ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list"}


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
        """Return the options with another ``transaction.timeout.ms``, and with what it limits lowered to fit."""
        message_ms = min(int(self.properties["message.timeout.ms"]), timeout_ms)
        timeouts = {"transaction.timeout.ms": timeout_ms, "message.timeout.ms": message_ms}
        margin_ms = min(self.commit_margin_ms, timeout_ms // 3)
        return replace(self, commit_margin_ms=margin_ms, properties={**self.properties, **timeouts})

    def with_message_timeout(self, timeout_ms: int) -> KafkaOptions:
        """Return the options with a ``message.timeout.ms`` of at most ``timeout_ms``."""
        message_ms = min(int(self.properties["message.timeout.ms"]), timeout_ms)
        return replace(self, properties={**self.properties, "message.timeout.ms": message_ms})

    @property
    def control(self) -> dict[str, Any]:
        """The options of the connection, as kafka-python's."""
        control = {
            name: convert(str(self.properties[source]))
            for source, (name, convert) in _CONTROL.items()
            if source in self.properties
        }
        if control.get("sasl_mechanism") == OAUTHBEARER:
            control["sasl_oauth_token_provider"] = token_provider(self.properties)
        return control


def parse_options(options: Mapping[str, Any]) -> KafkaOptions:
    """Check a user's options.

    Raises:
        ConfigurationError: an option is wrong or missing. The error names the option. It never shows the value, except
            that of an option with a fixed set of values.
    """
    given = {name: value for name, value in options.items() if not (name == "topic" and value is None)}
    _refuse_other_types(given)
    _refuse_spellings_of_spark(given)
    _refuse_two_names(given, "message.timeout.ms", "delivery.timeout.ms")
    if "delivery.timeout.ms" in given:  # librdkafka's other name of it: the default must not stand beside it
        given["message.timeout.ms"] = given.pop("delivery.timeout.ms")
    own = parse(OWNER, _READ_HERE, given, _PASSED_ON)
    properties = {name: value for name, value in given.items() if name not in _OWN}
    delivery = own["delivery"]
    writer = own.get("writer", ARROW if delivery == EXACTLY_ONCE else LIBRDKAFKA)
    two_phase_commit = own.get("two.phase.commit", AUTO if writer == ARROW else OFF)
    if two_phase_commit != OFF and writer != ARROW:
        raise ConfigurationError(
            f"'two.phase.commit' = {two_phase_commit!r} is only for 'writer' = 'arrow': librdkafka does not support it",
            option="two.phase.commit",
        )
    _refuse_markers_that_mean_nothing(own.get("batch.markers"), own.get("topic"), delivery)
    for name in properties:
        if name in _OURS:
            raise ConfigurationError(f"{name!r} can't be set on a kafka sink: {_OURS[name]}", option=name)
        _refuse_what_control_cannot_honor(name)
    _refuse_another_protocol(own["bootstrap.servers"], properties)
    _refuse_two_names(properties, "sasl.mechanism", "sasl.mechanisms")
    check_tokens(properties.get("sasl.mechanism", properties.get("sasl.mechanisms")), properties)
    merged = _with_defaults(properties, delivery)
    if "upsert_by" in own and merged["partitioner"] not in _BY_KEY:
        raise ConfigurationError(
            f"{OWNER} with 'upsert_by' needs a 'partitioner' that sends each key to one partition, else a tombstone"
            f" would not reach the record that it deletes. Use one of {', '.join(_BY_KEY)}.",
            option="partitioner",
        )
    _refuse_what_librdkafka_does_not_know(merged, delivery)
    if writer == ARROW:
        _refuse_what_the_arrow_writer_cannot_honor(merged, delivery)
    return KafkaOptions(
        topic=own.get("topic"),
        delivery=delivery,
        writer=writer,
        two_phase_commit=two_phase_commit,
        prefix=own["transactional.id.prefix"],
        commit_margin_ms=_margin_ms(own.get("commit.margin.ms"), int(merged["transaction.timeout.ms"])),
        asks_for_most="transaction.timeout.ms" not in properties,
        properties=merged,
        marker_topic=own.get("batch.markers"),
        upsert_by=tuple(own["upsert_by"].split(",")) if "upsert_by" in own else (),
    )


def _refuse_another_protocol(servers: str, properties: Mapping[str, Any]) -> None:
    """Refuse what asks for another protocol than 'security.protocol'. The clients would ignore it, and write in plain
    text or without a login."""
    protocol = str(properties.get("security.protocol", _PROTOCOLS[0])).upper()
    for address in servers.split(","):
        scheme, is_given, _ = address.strip().upper().partition("://")
        if is_given and scheme != protocol:
            raise ConfigurationError(
                f"'bootstrap.servers' of {OWNER} has an address that begins with {scheme}://, but the connection would"
                f" use 'security.protocol' = {protocol!r}. Set 'security.protocol' to {scheme!r}, or take the scheme"
                " off the address.",
                option="security.protocol",
            )
    for name in properties:
        layer = name.partition(".")[0].upper()
        if layer in ("SSL", "SASL") and protocol in _PROTOCOLS and layer not in protocol.split("_"):
            raise ConfigurationError(
                f"{name!r} of {OWNER} has no effect with 'security.protocol' = {protocol!r}. Set 'security.protocol' to"
                f" one with {layer}, such as 'SASL_SSL', or leave {name!r} out.",
                option=name,
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
        return timeout_ms // 3  # the time for restarting a driver that dies after the decision
    if margin_ms >= timeout_ms:
        raise wrong_value(OWNER, "commit.margin.ms", f"a whole number below 'transaction.timeout.ms' ({timeout_ms})")
    return margin_ms


def _with_defaults(properties: Mapping[str, Any], delivery: str) -> dict[str, Any]:
    # With idempotence, librdkafka's retries duplicate no record and keep the order. A transaction implies it.
    idempotence = {} if delivery == EXACTLY_ONCE else {"enable.idempotence": delivery != NONE}
    merged = {**DEFAULTS, **idempotence, **properties}
    if "message.timeout.ms" not in properties:
        # librdkafka refuses a message timeout that is longer than the transaction's.
        merged["message.timeout.ms"] = min(DEFAULTS["message.timeout.ms"], int(merged["transaction.timeout.ms"]))
    return merged


def _refuse_other_types(options: Mapping[str, Any]) -> None:
    """Refuse values that are neither text nor numbers. confluent-kafka also takes callbacks and bytes, but these have
    no translation for kafka-python, and may not travel to a participant."""
    for name, value in options.items():
        if not isinstance(value, str | int | float):
            raise wrong_value(OWNER, name, "text or a number")


def _refuse_spellings_of_spark(options: Mapping[str, Any]) -> None:
    for name in options:
        if name.startswith("kafka."):
            raise ConfigurationError(
                f"{OWNER} has no option {name!r}, which is the spelling in Spark's own sink. Did you mean"
                f" {name.removeprefix('kafka.')!r}?",
                option=name,
            )


def _refuse_two_names(options: Mapping[str, Any], one: str, other: str) -> None:
    if one in options and other in options:
        raise ConfigurationError(
            f"{one!r} and {other!r} are two names of the same option of {OWNER}: set only one", option=other
        )


def _refuse_what_control_cannot_honor(name: str) -> None:
    security = name.startswith(("ssl.", "sasl.", "enable.ssl.", "https."))
    if security and name not in (*_CONTROL, *TOKEN_OPTIONS, *_WITHOUT_MEANING_FOR_CONTROL):
        options = (*_CONTROL, *TOKEN_OPTIONS)
        known = ", ".join(sorted(known for known in options if known.startswith(("ssl.", "sasl.", "https."))))
        raise ConfigurationError(
            f"{name!r} can't be used, because the sink's control connection does not support it. Use one of {known}.",
            option=name,
        )


def _refuse_what_the_arrow_writer_cannot_honor(properties: Mapping[str, Any], delivery: str) -> None:
    if delivery != EXACTLY_ONCE:
        raise ConfigurationError(
            f"'writer' = 'arrow' is only for 'delivery' = 'exactly-once', not {delivery!r}", option="writer"
        )
    for name in properties:
        if name not in (*HONORED, *_CONTROL, *TOKEN_OPTIONS):
            raise ConfigurationError(
                f"{name!r} is an option of librdkafka that the arrow writer does not support. Leave it out, or set"
                " 'writer' = 'librdkafka'.",
                option=name,
            )
    settings(properties)


def _refuse_what_librdkafka_does_not_know(properties: Mapping[str, Any], delivery: str) -> None:
    """Have librdkafka check names and values without connecting to a broker."""
    online = ("bootstrap.servers", "sasl.oauthbearer.method")  # with this option, librdkafka fetches a token
    offline = {name: value for name, value in properties.items() if name not in online}
    if delivery == EXACTLY_ONCE:  # some values are not allowed with a transaction
        offline["transactional.id"] = "offline"
    try:
        confluent_kafka.Producer(offline, logger=_SILENT)
    except confluent_kafka.KafkaException as error:
        refusal = error.args[0].str()
    except (TypeError, ValueError) as error:
        refusal = str(error)
    else:
        return
    raise wrong_options(refusal)  # outside the handlers: librdkafka's error, which quotes values, would be its context


def wrong_options(message: str) -> ConfigurationError:
    """Return the error for options that librdkafka refuses. librdkafka quotes some values, and a value may be a secret
    that was given to the wrong option. So the values are left out, and librdkafka's own error must not be the cause."""
    message = message.strip()
    if stranger := re.fullmatch(r'No such configuration property: "(.*)"', message):
        return unknown(OWNER, stranger[1], names(OPTIONS), _PASSED_ON, [*HONORED, *_CONTROL, *TOKEN_OPTIONS])
    if named := re.search(r'(?:property|for) "([^"]*)"', message):
        allowed = re.search(r"allowed range (\S+)", message)
        return wrong_value(OWNER, named[1], f"within {allowed[1]}" if allowed else "a value that librdkafka accepts")
    without_values = re.sub(r'value "[^"]*"', "value", message)
    return ConfigurationError(f"librdkafka refuses the options of {OWNER}: {without_values}")


class _Silent:
    """A logger for a producer that exists only to check its options. It drops every message."""

    def log(self, *_: object) -> None:
        pass


_SILENT = _Silent()
