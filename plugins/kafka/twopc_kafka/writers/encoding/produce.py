"""A Produce request that copies its records only once.

kafka-python's own request copies them twice, into memory fresh from the system. Over TLS, its transport also copies the
whole remainder of a request after every 16 KiB sent, unless the request is a ``memoryview``.
Source: the protocol guide's "Produce API", versions 9 to 12, which have the same fields.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from kafka.protocol.producer import ProduceRequest

from twopc_kafka.writers.encoding.buffers import joined, view

FIRST_COMPACT = 9
"""The first version with compact lengths and tags, which all brokers from Kafka 2.8 on support."""

_LENGTH = struct.Struct(">i")
_SETTINGS = struct.Struct(">hi")  # acknowledgements, timeout
_PARTITION = struct.Struct(">i")
_NO_TAGS = b"\0"


class Produce(ProduceRequest, init=False):  # type: ignore[call-arg, misc]  # kafka-python has loaded its schema already
    """A ``ProduceRequest`` of version 9 or later, with its own encoding."""

    def encode(self, **_: bool) -> memoryview:
        """Return the encoded request, including its length and header, as kafka-python's connections expect."""
        parts = [self.encode_header(flexible=True), _text(self.transactional_id)]
        parts += [_SETTINGS.pack(self.acks, self.timeout_ms), _length(self.topic_data)]
        for topic in self.topic_data:
            parts += [_text(topic.name), _length(topic.partition_data)]
            for partition in topic.partition_data:
                parts += [_PARTITION.pack(partition.index), _length(partition.records), partition.records, _NO_TAGS]
            parts.append(_NO_TAGS)
        parts.append(_NO_TAGS)
        request = view(joined([np.frombuffer(part, np.uint8) for part in parts], _LENGTH.size))
        _LENGTH.pack_into(request, 0, len(request) - _LENGTH.size)
        return request


def _text(value: str | None) -> bytes:
    encoded = None if value is None else value.encode()
    return b"\0" if encoded is None else _length(encoded) + encoded


def _length(of: Any) -> bytes:
    """Return a length plus one as an unsigned varint. 0 stands for null."""
    left, encoded = len(of) + 1, bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*encoded, left])
