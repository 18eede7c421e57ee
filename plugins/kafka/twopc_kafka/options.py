"""What a user sets: the sink's own options, and librdkafka's, which pass through and are translated for control.

Data goes through librdkafka, control (describe, list and end transactions) through kafka-python. Both must reach the
same brokers as the same principal, so an option that only one of them could honour is refused, not ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import confluent_kafka
from kafka.cluster import collect_hosts

from twopc.errors import ConfigurationError
from twopc.options import Option, did_you_mean, names
from twopc_kafka.client.tokens import OAUTHBEARER, check_tokens, token_provider
from twopc_kafka.client.tokens import OPTIONS as TOKEN_OPTIONS
from twopc_kafka.writers.settings import HONOURED, MESSAGE_BYTES, settings

EXACTLY_ONCE, AT_LEAST_ONCE, NONE = "exactly-once", "at-least-once", "none"
DELIVERIES = (EXACTLY_ONCE, AT_LEAST_ONCE, NONE)

LIBRDKAFKA, ARROW = "librdkafka", "arrow"
WRITERS = (LIBRDKAFKA, ARROW)

AUTO, REQUIRE, OFF = "auto", "require", "off"
TWO_PHASE_COMMIT = (AUTO, REQUIRE, OFF)

PREFIX = "twopc"


def _one_of(choices: tuple[str, ...]) -> str:
    return ", ".join(f"`{choice}`" for choice in choices)


DEFAULTS: Mapping[str, Any] = {
    "transaction.timeout.ms": 900_000,
    "message.timeout.ms": 120_000,
    "topic.metadata.propagation.max.ms": 10_000,
    "partitioner": "murmur2_random",
    "queue.buffering.max.kbytes": 65_536,
    "enable.sparse.connections": False,
}

OPTIONS = (
    Option("bootstrap.servers", "addresses", "needed"),
    Option("topic", "text", "or the column of that name. Must exist: the sink creates none"),
    Option("delivery", _one_of(DELIVERIES), "what readers see, and when: the section Delivery", f"`{EXACTLY_ONCE}`"),
    Option(
        "writer",
        _one_of(WRITERS),
        f"`{ARROW}` is the sink's own and the faster one, for `{EXACTLY_ONCE}` alone: the section Writers",
        f"`{ARROW}` with `delivery` = `{EXACTLY_ONCE}`, else `{LIBRDKAFKA}`",
    ),
    Option(
        "two.phase.commit",
        _one_of(TWO_PHASE_COMMIT),
        f"transactions without a time-out, with `writer` = `{ARROW}`",
        f"`{AUTO}` with `writer` = `{ARROW}`, else `{OFF}`",
    ),
    Option(
        "transactional.id.prefix",
        "text",
        "what the transactions' names start with: rights are granted on it. A commit log keeps it: with another, what"
        " is open would not be found, and the query does not start",
        f"`{PREFIX}`",
    ),
    Option(
        "transaction.timeout.ms",
        "ms",
        "a decided batch can wait so long for its commit. The longer, the less can be lost;"
        f" {DEFAULTS['transaction.timeout.ms']} (the brokers' own default) where they don't tell this principal",
        "the most that the brokers grant",
    ),
    Option(
        "commit.margin.ms",
        "ms",
        "a batch is decided only while so much of that time is left; else it is rolled back and run again. A driver"
        " that dies after the decision has so long to be restarted",
        "a third of `transaction.timeout.ms`",
    ),
    Option(
        "message.timeout.ms",
        "ms",
        "how long a task waits for a broker that is gone",
        f"{DEFAULTS['message.timeout.ms']}, or the transaction's if shorter",
    ),
    Option(
        "topic.metadata.propagation.max.ms",
        "ms",
        "how long a topic that a column names may be unknown. The sink creates none, so what is not known by then does"
        " not exist; librdkafka's own default is 30000",
        f"{DEFAULTS['topic.metadata.propagation.max.ms']}",
    ),
    Option(
        "partitioner",
        "librdkafka's",
        "keys land where Spark and Java put them; librdkafka's own default is CRC-32",
        f"`{DEFAULTS['partitioner']}`",
    ),
    Option(
        "queue.buffering.max.kbytes",
        "KiB",
        "what an executor holds in memory: it follows what is in flight, not the size of the batch",
        f"{DEFAULTS['queue.buffering.max.kbytes']}",
    ),
    Option(
        "enable.idempotence",
        "`true`, `false`",
        "librdkafka's own retries double no record and keep the order",
        f"`true`; `false` with `delivery` = `{NONE}`",
    ),
    Option(
        "enable.sparse.connections",
        "`true`, `false`",
        "connections are made at once: a producer is ready in 3 ms and not in 500",
        f"`{DEFAULTS['enable.sparse.connections']}`".lower(),
    ),
)
"""The sink's own, and those of librdkafka's whose defaults are the sink's."""

PROGRESS_OPTIONS = (Option("group.id", "text", "needed: a consumer group of the query's own"),)
"""What the backend ``kafka-offsets`` has besides."""

_OURS = {
    "metadata.broker.list": "it is librdkafka's other name of 'bootstrap.servers': use that one",
    "transactional.id": "it comes from the sink's pool; to set what it starts with, use 'transactional.id.prefix'",
    "allow.auto.create.topics": "the sink creates no topic",
    "logger": "librdkafka logs to the logger 'twopc_kafka.writers.librdkafka'",
    "delivery.report.only.error": "the sink reads delivery reports itself",
    "statistics.interval.ms": "the sink reads the statistics itself",
}

_READ_HERE = (
    "transaction.timeout.ms",
    "message.timeout.ms",
    "topic.metadata.propagation.max.ms",
    "message.max.bytes",
)
"""Numbers of librdkafka's that the sink reads, too."""

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
    "ssl.endpoint.identification.algorithm": ("ssl_check_hostname", lambda text: text != "none"),
    "socket.timeout.ms": ("request_timeout_ms", int),
}
CONNECTION = tuple(_CONTROL)
"""What both clients have."""

_WITHOUT_MEANING_FOR_CONTROL = {"ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list"}


@dataclass(frozen=True)
class KafkaOptions:
    """A checked set of options. Its repr shows no property, as some are secrets.

    Attributes:
        topic: where records go that name no topic of their own, or None: then the column ``topic`` is needed. As with
            Spark's own sink, the option wins over the column.
        delivery: ``exactly-once``, ``at-least-once`` (flushed, no transaction) or ``none`` (not even flushed).
        writer: ``arrow``: the sink's own, faster one, for ``exactly-once``; or ``librdkafka``.
        two_phase_commit: whether transactions are to have no time-out (KIP-939): ``auto``, ``require`` or ``off``.
        prefix: what transactional ids start with; rights are granted on it.
        commit_margin_ms: how much of ``transaction.timeout.ms`` must be left when a batch is decided.
        asks_for_most: ``transaction.timeout.ms`` is not the user's: the most that the broker grants is best.
        properties: librdkafka's.
        has_timeout: whether transactions have one, as the brokers told. Not the user's.
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

    @property
    def bootstrap_servers(self) -> str:
        return str(self.properties["bootstrap.servers"])

    @property
    def message_bytes(self) -> int:
        """The most that a record may take, alone in a batch."""
        return int(self.properties.get("message.max.bytes", MESSAGE_BYTES))

    @property
    def transaction_timeout_ms(self) -> int:
        return int(self.properties["transaction.timeout.ms"])

    @property
    def timeout_to_begin_with_ms(self) -> int | None:
        """What a transaction is begun with: its time-out, or None for none."""
        return self.transaction_timeout_ms if self.has_timeout else None

    def with_transaction_timeout(self, timeout_ms: int) -> KafkaOptions:
        """The same with another ``transaction.timeout.ms``, and all that may not be longer."""
        message_ms = min(int(self.properties["message.timeout.ms"]), timeout_ms)
        timeouts = {"transaction.timeout.ms": timeout_ms, "message.timeout.ms": message_ms}
        margin_ms = min(self.commit_margin_ms, timeout_ms // 3)
        return replace(self, commit_margin_ms=margin_ms, properties={**self.properties, **timeouts})

    @property
    def control(self) -> dict[str, Any]:
        """The same connection for kafka-python."""
        control = {
            name: convert(str(self.properties[source]))
            for source, (name, convert) in _CONTROL.items()
            if source in self.properties
        }
        if control.get("sasl_mechanism") == OAUTHBEARER:
            control["sasl_oauth_token_provider"] = token_provider(self.properties)
        return control


def parse_options(options: Mapping[str, Any]) -> KafkaOptions:
    """Check what a user gave.

    Raises:
        ConfigurationError: names the option, and no value but the topic's name.
    """
    _refuse_what_is_no_text(options)
    _refuse_spellings_of_spark(options)
    properties = dict(options)
    topic = properties.pop("topic", None)
    delivery = str(properties.pop("delivery", EXACTLY_ONCE))
    writer = str(properties.pop("writer", ARROW if delivery == EXACTLY_ONCE else LIBRDKAFKA))
    two_phase_commit = str(properties.pop("two.phase.commit", AUTO if writer == ARROW else OFF))
    prefix = str(properties.pop("transactional.id.prefix", PREFIX))
    margin = properties.pop("commit.margin.ms", None)
    if delivery not in DELIVERIES:
        raise ConfigurationError(f"'delivery' must be one of {', '.join(DELIVERIES)}")
    if writer not in WRITERS:
        raise ConfigurationError(f"'writer' must be one of {', '.join(WRITERS)}")
    if two_phase_commit not in TWO_PHASE_COMMIT:
        raise ConfigurationError(f"'two.phase.commit' must be one of {', '.join(TWO_PHASE_COMMIT)}")
    if two_phase_commit != OFF and writer != ARROW:
        raise ConfigurationError(
            f"'two.phase.commit' = {two_phase_commit!r} goes with 'writer' = 'arrow' alone: librdkafka can't ask for it"
        )
    _refuse_wrong_topic(topic)
    if not properties.get("bootstrap.servers"):
        misspelt = [f", not {name!r}" for name in properties if did_you_mean(name, ["bootstrap.servers"])]
        raise ConfigurationError(
            f"the kafka sink needs 'bootstrap.servers'{''.join(misspelt)}, such as 'broker1:9092,broker2:9092'"
        )
    for name in properties:
        if name in _OURS:
            raise ConfigurationError(f"{name!r} can't be set on a kafka sink: {_OURS[name]}")
        _refuse_what_control_cannot_honour(name)
    _refuse_what_has_no_meaning_for_both(properties)
    _refuse_what_is_no_address(properties["bootstrap.servers"])
    merged = _with_defaults(properties, delivery)
    _refuse_what_librdkafka_does_not_know(merged, delivery)
    if writer == ARROW:
        _refuse_what_the_arrow_writer_cannot_honour(merged, delivery)
    return KafkaOptions(
        topic=None if topic is None else str(topic),
        delivery=delivery,
        writer=writer,
        two_phase_commit=two_phase_commit,
        prefix=prefix,
        commit_margin_ms=_margin_ms(margin, int(merged["transaction.timeout.ms"])),
        asks_for_most="transaction.timeout.ms" not in properties,
        properties=merged,
    )


_TOPIC = re.compile(rb"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")  # Kafka's Topic.validate
_INTERNAL = (b"__consumer_offsets", b"__transaction_state", b"__share_group_state")


def wrong_topic(name: bytes) -> str:
    """Why nothing can be written to a topic of this name; empty where something can."""
    if name not in _INTERNAL and _TOPIC.fullmatch(name):
        return ""
    wrong = "it is a topic of Kafka's own" if name in _INTERNAL else "no topic can have this name"
    return f"{wrong}. Others have 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'"


def _refuse_wrong_topic(topic: object) -> None:
    if topic == "":
        raise ConfigurationError("'topic' must not be empty: name a topic, or leave it out and give a column 'topic'")
    if topic is not None and (wrong := wrong_topic(str(topic).encode())):
        raise ConfigurationError(f"'topic' = {topic!r}: {wrong}. Correct the option.")


def _margin_ms(margin: object, timeout_ms: int) -> int:
    if margin is None:
        return timeout_ms // 3  # a driver that dies after the decision has that long to be restarted
    if not str(margin).isdecimal() or int(str(margin)) >= timeout_ms:
        raise ConfigurationError(
            f"'commit.margin.ms' must be a number below 'transaction.timeout.ms' ({timeout_ms}), not {margin!r}"
        )
    return int(str(margin))


def _with_defaults(properties: Mapping[str, Any], delivery: str) -> dict[str, Any]:
    # librdkafka's own retries then double no record and keep the order; a transaction has that anyhow.
    idempotence = {} if delivery == EXACTLY_ONCE else {"enable.idempotence": delivery != NONE}
    merged = {**DEFAULTS, **idempotence, **properties}
    if "delivery.timeout.ms" in merged:  # librdkafka's other name of it: the default must not stand beside it
        merged["message.timeout.ms"] = merged.pop("delivery.timeout.ms")
    for name in _READ_HERE:
        if not str(merged.get(name, 0)).strip().isdecimal():  # of '1.5' librdkafka takes the 1
            raise ConfigurationError(f"{name!r} must be a whole number")
    if int(merged["message.timeout.ms"]) == 0:
        raise ConfigurationError("'message.timeout.ms' must not be 0: a task would wait for a lost broker for ever")
    if not {"message.timeout.ms", "delivery.timeout.ms"} & properties.keys():
        # librdkafka refuses one that is longer than the transaction's.
        merged["message.timeout.ms"] = min(DEFAULTS["message.timeout.ms"], int(merged["transaction.timeout.ms"]))
    return merged


def _refuse_what_is_no_text(options: Mapping[str, Any]) -> None:
    """What else confluent-kafka takes (callbacks, bytes) has no translation and may not travel to a participant."""
    for name, value in options.items():
        if not isinstance(value, str | int | float) and not (name == "topic" and value is None):
            raise ConfigurationError(f"{name!r} must be text or a number, not {type(value).__name__}")


def _refuse_spellings_of_spark(options: Mapping[str, Any]) -> None:
    for name in options:
        if name.startswith("kafka."):
            raise ConfigurationError(
                f"the kafka sink has no option {name!r}, which is the spelling of Spark's own sink: write"
                f" {name.removeprefix('kafka.')!r}"
            )


def _refuse_what_is_no_address(servers: object) -> None:
    try:
        collect_hosts(str(servers))
    except ValueError:
        raise ConfigurationError(
            "'bootstrap.servers' must be addresses such as 'broker1:9092,broker2:9092', with a number for the port"
        ) from None


def _refuse_what_has_no_meaning_for_both(properties: Mapping[str, Any]) -> None:
    mechanisms = [properties[name] for name in ("sasl.mechanism", "sasl.mechanisms") if name in properties]
    if len(mechanisms) > 1:
        raise ConfigurationError("'sasl.mechanism' and 'sasl.mechanisms' are two names of one option: give one")
    check_tokens(mechanisms[0] if mechanisms else None, properties)


def _refuse_what_control_cannot_honour(name: str) -> None:
    security = name.startswith(("ssl.", "sasl.", "enable.ssl.", "https."))
    if security and name not in (*_CONTROL, *TOKEN_OPTIONS, *_WITHOUT_MEANING_FOR_CONTROL):
        options = (*_CONTROL, *TOKEN_OPTIONS)
        known = ", ".join(sorted(known for known in options if known.startswith(("ssl.", "sasl.", "https."))))
        raise ConfigurationError(
            f"{name!r} can't be used: the sink's control connection would not honour it. Use one of {known}."
        )


def _refuse_what_the_arrow_writer_cannot_honour(properties: Mapping[str, Any], delivery: str) -> None:
    if delivery != EXACTLY_ONCE:
        raise ConfigurationError(f"'writer' = 'arrow' goes with 'delivery' = 'exactly-once' alone, not {delivery!r}")
    for name in properties:
        if name not in (*HONOURED, *_CONTROL, *TOKEN_OPTIONS):
            raise ConfigurationError(
                f"{name!r} is an option of librdkafka that the arrow writer does not honour. Leave it out, or set"
                " 'writer' = 'librdkafka'."
            )
    settings(properties)


def _refuse_what_librdkafka_does_not_know(properties: Mapping[str, Any], delivery: str) -> None:
    """Have librdkafka check names and values, without its connecting anywhere."""
    online = ("bootstrap.servers", "sasl.oauthbearer.method")  # with a method it fetches a token
    offline = {name: value for name, value in properties.items() if name not in online}
    if delivery == EXACTLY_ONCE:  # some values don't go together with a transaction
        offline["transactional.id"] = "offline"
    try:
        confluent_kafka.Producer(offline, logger=_SILENT)
    except confluent_kafka.KafkaException as error:
        raise wrong_options(error.args[0].str()) from None
    except (TypeError, ValueError) as error:
        raise wrong_options(str(error)) from None


def wrong_options(message: str) -> ConfigurationError:
    """The error for what librdkafka refuses. It quotes some values, and one may be a secret given to the wrong option:
    they are left out, and the error that told them must not be the cause."""
    if unknown := re.fullmatch(r'No such configuration property: "(.*)"', message.strip()):
        known = {*names(OPTIONS), *HONOURED, *_CONTROL, *TOKEN_OPTIONS}
        return ConfigurationError(f"the kafka sink has no option {unknown[1]!r}.{did_you_mean(unknown[1], known)}")
    without_values = re.sub(r'value "[^"]*"', "value", message.strip())
    return ConfigurationError(f"the kafka sink's options are wrong: {without_values}")


class _Silent:
    """A logger for a producer that is made only to check its options."""

    def log(self, *_: object) -> None:
        pass


_SILENT = _Silent()
