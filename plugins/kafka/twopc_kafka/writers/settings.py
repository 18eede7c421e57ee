"""The options that the Arrow writer honors, under librdkafka's names and with librdkafka's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twopc.errors import ConfigurationError
from twopc_kafka.properties import kind_of
from twopc_kafka.writers.encoding.compression import NONE, Compression

MESSAGE_BYTES = 1_000_000
"""librdkafka's default for 'message.max.bytes'."""

_NUMBERS = {
    "batch.size": 1_000_000,
    "message.max.bytes": MESSAGE_BYTES,
    "queue.buffering.max.kbytes": 65_536,
    "topic.metadata.propagation.max.ms": 10_000,
    "message.timeout.ms": 120_000,
}
_OWN_LEVEL = -1
"""librdkafka's default for 'compression.level', which selects the codec's own default."""
_FIXED = {
    "partitioner": "murmur2_random",  # the same partition as Spark's own sink and Java
    "enable.sparse.connections": "False",  # only for librdkafka; allowed because it is among the sink's defaults
}

HONORED = {*_NUMBERS, *_FIXED, "compression.type", "compression.level", "transaction.timeout.ms"}
"""The Arrow writer's options, besides the connection options, which both clients support."""


@dataclass(frozen=True)
class Settings:
    """The settings of a writer, apart from its connection.

    Attributes:
        batch_bytes: the largest size of a batch with several records. A larger record has a batch of its own.
        compression: the codec of batches.
        buffer_bytes: how many bytes may be in flight before the task waits for the brokers.
        topic_timeout_ms: how long a topic may be unknown before it counts as nonexistent.
        timeout_ms: how long to wait for a lost broker.
    """

    batch_bytes: int
    compression: Compression
    buffer_bytes: int
    topic_timeout_ms: int
    timeout_ms: int


def codec(properties: Mapping[str, Any]) -> str:
    """Return the name of the codec, from 'compression.type' or its alias 'compression.codec'."""
    given = (properties[name] for name in ("compression.type", "compression.codec") if name in properties)
    return str(kind_of("compression.type").read(next(given, NONE)))


def settings(properties: Mapping[str, Any]) -> Settings:
    """Read properties whose values have been checked.

    Raises:
        ConfigurationError: the writer does not support a value. The error names the property.
    """
    for name, value in _FIXED.items():
        if str(properties.get(name, value)) != value:
            raise ConfigurationError(
                f"{name!r} can't be set with 'writer' = 'arrow', which always uses {value!r}", option=name
            )
    number = {name: int(properties.get(name, default)) for name, default in _NUMBERS.items()}
    level = int(properties.get("compression.level", _OWN_LEVEL))
    compression = Compression(codec(properties), None if level == _OWN_LEVEL else level)
    compression.check()
    return Settings(
        batch_bytes=min(number["batch.size"], number["message.max.bytes"]),
        compression=compression,
        buffer_bytes=number["queue.buffering.max.kbytes"] * 1024,
        topic_timeout_ms=number["topic.metadata.propagation.max.ms"],
        timeout_ms=number["message.timeout.ms"],
    )
