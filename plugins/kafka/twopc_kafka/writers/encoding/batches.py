"""Encoded records → record batches of format v2, none of which exceeds the configured size limits.

Source: the protocol guide's "Record Batch". The broker fills in the base offset and the leader epoch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

from twopc_kafka.writers.encoding.buffers import Bytes, joined, keep_freed_memory, view
from twopc_kafka.writers.encoding.compression import NONE, Compression
from twopc_kafka.writers.encoding.records import Records
from twopc_kafka.writers.encoding.varints import Integers, sizes

if TYPE_CHECKING:
    from twopc_kafka.answers import ProducerIdentity

_BASE_OFFSET, _LEADER_EPOCH = 0, -1  # the broker fills them in when it appends the batch
_MAGIC = 2
_TRANSACTIONAL = 0x10
_UNCHECKED = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, checksum
_CHECKED = struct.Struct(">hiqqqhii")  # attributes, last offset delta, times, producer, first sequence number, count
_BEFORE_LENGTH_BYTES = 12  # base offset and length, which the length field does not count
OVERHEAD_BYTES = _UNCHECKED.size + _CHECKED.size

_ALONE_BYTES = 2  # the two deltas of a batch's first record, one byte each


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """One encoded batch for one partition, and the positions of its records in the transaction."""

    partition: int
    count: int
    data: memoryview
    positions: Integers


def alone_bytes(records: Records) -> Integers:
    """Return, for each record, the size of a batch that holds only this record."""
    body = records.content_length + _ALONE_BYTES
    return OVERHEAD_BYTES + sizes(body) + body


def room_for_records(batch_bytes: int) -> int:
    """Return how many bytes a batch of at most ``batch_bytes`` has for its records, at least 1."""
    return max(1, batch_bytes - OVERHEAD_BYTES)


def in_runs(records: Records, room: int) -> Integers:
    """Return the run that each record belongs to. A run is as many consecutive records as fit in one batch."""
    bounds = np.concatenate([[0], np.cumsum(records.at_most)])
    lengths = [cut.stop - cut.start for cut in _cuts(bounds, slice(0, len(records)), room)]
    return np.repeat(np.arange(len(lengths)), lengths)


def _cuts(bounds: Integers, part: slice, room: int) -> Iterator[slice]:
    """Split ``part`` into parts of at most ``room`` bytes each, except that a single large record may exceed it."""
    start = part.start
    while start < part.stop:
        fitting = int(np.searchsorted(bounds, bounds[start] + room, side="right")) - 1
        stop = min(max(fitting, start + 1), part.stop)
        yield slice(start, stop)
        start = stop


class Encoder:
    """Encodes a producer's batches for one topic. Sequence numbers ensure that a broker appends each record once."""

    def __init__(self, producer: ProducerIdentity, batch_bytes: int, compression: Compression) -> None:
        keep_freed_memory()
        self._producer = producer
        self._room = room_for_records(batch_bytes)
        self._compression = compression
        self._next_sequence: dict[int, int] = {}

    def encode(
        self, records: Records, order: Integers, of_partition: Mapping[int, slice], positions: Integers
    ) -> list[RecordBatch]:
        """Return the batches that hold ``records``.

        Args:
            records: records that have passed ``check_values``, so none is too large.
            order: the records' positions, grouped by partition.
            of_partition: partition → its part of ``order``.
            positions: the records' positions in the transaction.
        """
        bounds = np.concatenate([[0], np.cumsum(records.at_most[order])])
        cuts = [(number, cut) for number, part in of_partition.items() for cut in _cuts(bounds, part, self._room)]
        starts = np.array([cut.start for _, cut in cuts])
        encoded = records.encode(order, starts)
        timestamps = records.timestamp_ms[order]
        ordered = positions[order]
        latest = np.maximum.reduceat(timestamps, starts)
        return [
            self._sealed(number, ordered[cut], (int(timestamps[cut.start]), int(last)), encoded(cut))
            for (number, cut), last in zip(cuts, latest, strict=True)
        ]

    def _sealed(
        self, partition: int, positions: Integers, times_ms: tuple[int, int], records: Sequence[Bytes]
    ) -> RecordBatch:
        count = len(positions)
        batch, compression = joined(records, OVERHEAD_BYTES), Compression(NONE)
        packed = self._compression.compress(batch.slice(OVERHEAD_BYTES))
        if OVERHEAD_BYTES + packed.size < batch.size:  # so that compression never makes a batch too large
            batch, compression = joined([np.frombuffer(packed, np.uint8)], OVERHEAD_BYTES), self._compression
        sequence = self._next_sequence.get(partition, 0)
        self._next_sequence[partition] = (sequence + count) & 0x7FFF_FFFF
        checked = _CHECKED.pack(
            compression.number | _TRANSACTIONAL,
            count - 1,
            *times_ms,
            self._producer.producer_id,
            self._producer.producer_epoch,
            sequence,
            count,
        )
        checksum = google_crc32c.extend(google_crc32c.value(checked), batch.slice(OVERHEAD_BYTES))
        unchecked = _UNCHECKED.pack(_BASE_OFFSET, batch.size - _BEFORE_LENGTH_BYTES, _LEADER_EPOCH, _MAGIC, checksum)
        data = view(batch)
        data[:OVERHEAD_BYTES] = unchecked + checked
        return RecordBatch(partition, count, data, positions)
