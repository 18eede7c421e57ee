"""Which of the sink's options the Arrow writer honours, under librdkafka's names, with librdkafka's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twopc.errors import ConfigurationError
from twopc_kafka.writers.encoding.compression import NONE, Compression

MESSAGE_BYTES = 1_000_000
"""librdkafka's default of 'message.max.bytes'."""

_NUMBERS = {
    "batch.size": 1_000_000,
    "message.max.bytes": MESSAGE_BYTES,
    "queue.buffering.max.kbytes": 65_536,
    "topic.metadata.propagation.max.ms": 10_000,
    "message.timeout.ms": 120_000,
}
_FIXED = {
    "partitioner": "murmur2_random",  # where Spark's own sink and Java put records
    "enable.sparse.connections": "False",  # of librdkafka alone, and in the sink's defaults
}

HONOURED = {*_NUMBERS, *_FIXED, "compression.type", "compression.level", "transaction.timeout.ms"}
"""Options beside those of the connection, which both clients have."""


@dataclass(frozen=True)
class Limits:
    """How large a batch may be: of several records, and of one."""

    batch_bytes: int
    message_bytes: int


@dataclass(frozen=True)
class Settings:
    """What a writer needs to know beside its connection.

    Attributes:
        limits: of a batch.
        compression: of a batch.
        buffer_bytes: what may be on its way before the task waits for the brokers.
        topic_timeout_ms: how long a topic may be unknown.
        timeout_ms: how long anything may wait for a broker that is gone.
    """

    limits: Limits
    compression: Compression
    buffer_bytes: int
    topic_timeout_ms: int
    timeout_ms: int


def settings(properties: Mapping[str, Any]) -> Settings:
    """Check and read the sink's properties.

    Raises:
        ConfigurationError: names the option.
    """
    for name, value in _FIXED.items():
        if str(properties.get(name, value)) != value:
            raise ConfigurationError(f"{name!r} can't be set with 'writer' = 'arrow', which always does as {value!r}")
    number = {name: _number(name, properties.get(name, default)) for name, default in _NUMBERS.items()}
    level = properties.get("compression.level")
    compression = Compression(
        str(properties.get("compression.type", NONE)),
        None if level is None or str(level) == "-1" else _number("compression.level", level),
    )
    compression.check()
    return Settings(
        limits=Limits(number["batch.size"], number["message.max.bytes"]),
        compression=compression,
        buffer_bytes=number["queue.buffering.max.kbytes"] * 1024,
        topic_timeout_ms=number["topic.metadata.propagation.max.ms"],
        timeout_ms=number["message.timeout.ms"],
    )


def _number(name: str, value: object) -> int:
    if not str(value).isdecimal():
        raise ConfigurationError(f"{name!r} must be a number, not {value!r}")
    return int(str(value))
