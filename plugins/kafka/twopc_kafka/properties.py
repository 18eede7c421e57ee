"""The properties that the sink passes on to librdkafka, and their values, as of librdkafka 2.16 (CONFIGURATION.md).

A producer would check them too, but it starts threads, and reports an error only as text that quotes the value.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Container, Mapping
from typing import Any

from twopc.errors import ConfigurationError
from twopc.options import Kind, choice, choices, flag, text, whole_number, wrong_value

BY_KEY = ("murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a_random", "fnv1a")
"""The partitioners that send all records of a key to one partition. "random" in a name refers to records without a
key."""

PARTITIONER = choice("random", *BY_KEY)

MOST = 2**31 - 1

_NUMBERS = {
    "api.version.fallback.ms": (0, 604_800_000),
    "api.version.request.timeout.ms": (1, 300_000),
    "batch.num.messages": (1, 1_000_000),
    "batch.size": (1, MOST),
    "broker.address.ttl": (0, 86_400_000),
    "compression.level": (-1, 12),
    "connections.max.idle.ms": (0, MOST),
    "log_level": (0, 7),
    "max.in.flight.requests.per.connection": (1, 1_000_000),
    "message.copy.max.bytes": (0, 1_000_000_000),
    "message.max.bytes": (1_000, 1_000_000_000),
    "message.send.max.retries": (0, MOST),
    "metadata.max.age.ms": (1, 86_400_000),
    "metadata.recovery.rebootstrap.trigger.ms": (0, MOST),
    "queue.buffering.backpressure.threshold": (1, 1_000_000),
    "queue.buffering.max.messages": (0, MOST),
    "receive.message.max.bytes": (1_000, MOST),
    "reconnect.backoff.max.ms": (0, 3_600_000),
    "reconnect.backoff.ms": (0, 3_600_000),
    "request.timeout.ms": (1, 900_000),
    "retry.backoff.max.ms": (1, 300_000),
    "retry.backoff.ms": (1, 300_000),
    "socket.connection.setup.timeout.ms": (1_000, MOST),
    "socket.max.fails": (0, 1_000_000),
    "socket.receive.buffer.bytes": (0, 100_000_000),
    "socket.send.buffer.bytes": (0, 100_000_000),
    "socket.timeout.ms": (10, 300_000),
    "sticky.partitioning.linger.ms": (0, 900_000),
    "topic.metadata.refresh.fast.interval.ms": (1, 60_000),
    "topic.metadata.refresh.interval.ms": (-1, 3_600_000),
}

_FLAGS = (
    "api.version.request",
    "enable.gapless.guarantee",
    "enable.metrics.push",
    "log.connection.close",
    "log.thread.name",
    "socket.keepalive.enable",
    "socket.nagle.disable",
    "topic.metadata.refresh.sparse",
)

_CONTEXTS = (
    *("generic", "broker", "topic", "metadata", "feature", "queue", "msg", "protocol", "cgrp", "security", "fetch"),
    *("interceptor", "plugin", "consumer", "admin", "eos", "mock", "assignor", "conf", "telemetry", "all"),
)


def _milliseconds(most: int) -> Kind:
    """Return the kind of a property whose value is a number of milliseconds, possibly with a fraction."""

    def read(given: Any) -> float:
        if not re.fullmatch(r"[0-9]+(\.[0-9]*)?", str(given).strip()) or float(given) > most:
            raise ValueError
        return float(given)

    return Kind("ms", f"a number from 0 to {most}", read)


def _acks() -> Kind:
    number = whole_number(-1, 1000).read
    return Kind(
        "`all`, -1 to 1000",
        "'all' or a whole number from -1 to 1000",
        lambda given: -1 if str(given).lower() == "all" else number(given),
    )


_KINDS: Mapping[str, Kind] = {
    **{name: whole_number(*bounds) for name, bounds in _NUMBERS.items()},
    **{name: flag() for name in _FLAGS},
    "broker.address.family": choice("any", "v4", "v6"),
    "broker.version.fallback": text(),
    "client.dns.lookup": choice("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    "client.id": text(),
    "client.rack": text(),
    "compression.codec": choice("none", "gzip", "snappy", "lz4", "zstd"),
    "debug": choices(*_CONTEXTS),
    "metadata.recovery.strategy": choice("none", "rebootstrap"),
    "plugin.library.paths": text(),
    "queue.buffering.max.ms": _milliseconds(900_000),
    "queuing.strategy": choice("fifo", "lifo"),
    "request.required.acks": _acks(),
    "topic.blacklist": text(),
}

ALIASES: Mapping[str, str] = {
    "acks": "request.required.acks",
    "compression.type": "compression.codec",
    "delivery.timeout.ms": "message.timeout.ms",
    "linger.ms": "queue.buffering.max.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "retries": "message.send.max.retries",
    "sasl.mechanisms": "sasl.mechanism",
}
"""A property's alias → its name in this sink."""

NAMES = (*_KINDS, *ALIASES)


def refuse_other_types(owner: str, options: Mapping[str, Any]) -> None:
    """Refuse values that are neither text nor numbers. confluent-kafka also takes callbacks, bytes and a dictionary of
    topic options, but these can't be translated for kafka-python, and some can't be sent to a participant."""
    for name, value in options.items():
        if not isinstance(value, str | int | float):
            raise wrong_value(owner, name, "text or a number")


def by_one_name(owner: str, given: Mapping[str, Any], ours: Container[str]) -> dict[str, Any]:
    """Return the options, with aliases of the options in ``ours`` replaced."""
    for other, one in ALIASES.items():
        if one in given and other in given:
            raise ConfigurationError(
                f"{one!r} and {other!r} are two names of the same option of {owner}: set only one", option=other
            )
    return {ALIASES[name] if ALIASES.get(name) in ours else name: value for name, value in given.items()}


def kind_of(name: str) -> Kind:
    """Return the kind of a property's values."""
    return _KINDS[ALIASES.get(name, name)]


def check(owner: str, properties: Mapping[str, Any]) -> None:
    """Check the values of librdkafka's own properties. Others are left alone.

    Raises:
        ConfigurationError: a value is wrong. The error names the property, never its value.
    """
    for name, value in properties.items():
        if kind := _KINDS.get(ALIASES.get(name, name)):
            try:
                kind.read(value)
                continue
            except (ValueError, TypeError):
                pass  # raised below: an error from here would carry the value in its context
            raise wrong_value(owner, name, kind.must_be)


def check_together(owner: str, properties: Mapping[str, Any], is_transactional: bool) -> None:
    """Check the properties that depend on each other, after each value has been checked by itself.

    Raises:
        ConfigurationError: two values contradict each other.
    """
    given = {ALIASES.get(name, name): name for name in properties}
    for first, (is_allowed, second, must_be) in (*_TOGETHER, *(_IN_A_TRANSACTION if is_transactional else ())):
        if first in given and not is_allowed(*(_value(properties, given, name) for name in (first, second))):
            raise wrong_value(owner, given[first], f"{must_be} {second!r} ({_value(properties, given, second)})")
    is_idempotent = is_transactional or _value(properties, given, "enable.idempotence")
    for name, (is_fit, must_be) in _IDEMPOTENT.items() if is_idempotent else ():
        if name in given and not is_fit(_value(properties, given, name)):
            raise wrong_value(
                owner, given[name], f"{must_be} with 'delivery' = 'exactly-once' or 'enable.idempotence' = 'true'"
            )


def _value(properties: Mapping[str, Any], given: Mapping[str, str], name: str) -> Any:
    """Return a property's value, or librdkafka's default."""
    value = properties[given[name]] if name in given else _DEFAULTS[name]
    return flag().read(value) if name == "enable.idempotence" else _KINDS.get(name, whole_number()).read(value)


_DEFAULTS = {
    "enable.idempotence": False,
    "message.timeout.ms": 300_000,
    "reconnect.backoff.max.ms": 10_000,
    "transaction.timeout.ms": 60_000,
}

_TOGETHER = (
    ("queue.buffering.max.ms", (operator.lt, "message.timeout.ms", "below")),
    ("reconnect.backoff.ms", (operator.le, "reconnect.backoff.max.ms", "no more than")),
)
_IN_A_TRANSACTION = (
    ("message.timeout.ms", (operator.le, "transaction.timeout.ms", "no more than")),
    ("socket.timeout.ms", (operator.le, "transaction.timeout.ms", "no more than")),
)

_IDEMPOTENT: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "enable.idempotence": (bool, "true"),
    "max.in.flight.requests.per.connection": (lambda count: bool(count <= 5), "5 or less"),
    "message.send.max.retries": (bool, "1 or more"),
    "queuing.strategy": (lambda strategy: bool(strategy == "fifo"), "fifo"),
    "request.required.acks": (lambda acks: bool(acks == -1), "all"),
}
