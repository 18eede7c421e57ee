"""What a user sets: the sink's own options, and librdkafka's, which pass through and are translated for control.

Data goes through librdkafka, control (describe, list and end transactions) through kafka-python. Both must reach the
same brokers as the same principal, so an option that only one of them could honour is refused, not ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka

from twopc.errors import ConfigurationError

EXACTLY_ONCE, AT_LEAST_ONCE, NONE = "exactly-once", "at-least-once", "none"
DELIVERIES = (EXACTLY_ONCE, AT_LEAST_ONCE, NONE)

DEFAULTS: Mapping[str, Any] = {
    # The broker's own default for the largest that it grants (transaction.max.timeout.ms): the longer a decided
    # transaction can wait for its commit, the less can be lost.
    "transaction.timeout.ms": 900_000,
    # Bounds how long a task waits for a broker that is gone.
    "message.timeout.ms": 120_000,
    # Keys land where Spark's own sink and the Java client put them; librdkafka's default is CRC-32.
    "partitioner": "murmur2_random",
    # An executor's memory follows what is in flight, not the size of the batch.
    "queue.buffering.max.kbytes": 65_536,
    # Connections are made at once: a fresh producer is ready in 3 ms and not in 500.
    "enable.sparse.connections": False,
}

_OURS = {
    "transactional.id": "it comes from the sink's pool; to set what it starts with, use 'transactional.id.prefix'",
    "enable.idempotence": "it follows from 'delivery'",
    "delivery.report.only.error": "the sink reads delivery reports itself",
    "statistics.interval.ms": "the sink reads the statistics itself",
    "on_delivery": "an option must be text or a number",
    "stats_cb": "an option must be text or a number",
    "error_cb": "an option must be text or a number",
}

# librdkafka's name → kafka-python's name and type.
_CONTROL: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "bootstrap.servers": ("bootstrap_servers", lambda text: text.split(",")),
    "metadata.broker.list": ("bootstrap_servers", lambda text: text.split(",")),
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
_WITHOUT_MEANING_FOR_CONTROL = {"ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list"}


@dataclass(frozen=True)
class KafkaOptions:
    """A checked set of options. Its repr shows no property, as some are secrets.

    Attributes:
        topic: where records go that name no topic of their own, or None: then the column ``topic`` is needed. As with
            Spark's own sink, the option wins over the column.
        delivery: ``exactly-once``, ``at-least-once`` (flushed, no transaction) or ``none`` (not even flushed).
        prefix: what transactional ids start with; rights are granted on it.
        properties: librdkafka's.
    """

    topic: str | None
    delivery: str
    prefix: str
    properties: Mapping[str, Any] = field(repr=False)

    @property
    def bootstrap_servers(self) -> str:
        return str(self.properties["bootstrap.servers"])

    @property
    def control(self) -> dict[str, Any]:
        """The same connection for kafka-python."""
        return {
            name: convert(str(self.properties[source]))
            for source, (name, convert) in _CONTROL.items()
            if source in self.properties
        }


def parse_options(options: Mapping[str, Any]) -> KafkaOptions:
    """Check what a user gave.

    Raises:
        ConfigurationError: names the option, and never its value.
    """
    properties = dict(options)
    topic = properties.pop("topic", None)
    delivery = str(properties.pop("delivery", EXACTLY_ONCE))
    prefix = str(properties.pop("transactional.id.prefix", "twopc"))
    if delivery not in DELIVERIES:
        raise ConfigurationError(f"delivery must be one of {', '.join(DELIVERIES)}, not {delivery!r}")
    if not properties.get("bootstrap.servers"):
        raise ConfigurationError("the kafka sink needs 'bootstrap.servers', such as 'broker1:9092,broker2:9092'")
    for name in properties:
        if name in _OURS:
            raise ConfigurationError(f"{name!r} can't be set on a kafka sink: {_OURS[name]}")
        _refuse_what_control_cannot_honour(name)
    merged = {**DEFAULTS, **properties}
    if "message.timeout.ms" not in properties:  # librdkafka refuses one that is longer than the transaction's
        merged["message.timeout.ms"] = min(DEFAULTS["message.timeout.ms"], int(merged["transaction.timeout.ms"]))
    _refuse_what_librdkafka_does_not_know(merged)
    return KafkaOptions(None if topic is None else str(topic), delivery, prefix, merged)


def _refuse_what_control_cannot_honour(name: str) -> None:
    security = name.startswith(("ssl.", "sasl.", "enable.ssl.", "https."))
    if security and name not in _CONTROL and name not in _WITHOUT_MEANING_FOR_CONTROL:
        known = ", ".join(sorted(known for known in _CONTROL if known.startswith(("ssl.", "sasl."))))
        raise ConfigurationError(
            f"{name!r} can't be used: the sink's control connection would not honour it. Use one of {known}."
        )


def _refuse_what_librdkafka_does_not_know(properties: Mapping[str, Any]) -> None:
    """Have librdkafka check names and values, without its connecting anywhere."""
    offline = {name: value for name, value in properties.items() if name != "bootstrap.servers"}
    try:
        confluent_kafka.Producer(offline, logger=_SILENT)
    except confluent_kafka.KafkaException as error:
        raise ConfigurationError(f"the kafka sink's options are wrong: {error.args[0].str()}") from None
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the kafka sink's options are wrong: {error}") from None


class _Silent:
    """A logger for a producer that is made only to check its options."""

    def log(self, *_: object) -> None:
        pass


_SILENT = _Silent()
