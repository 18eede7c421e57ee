"""One transaction of one task attempt, from Arrow record batches to acknowledged ones."""

from __future__ import annotations

import secrets
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twopc.errors import RoundAborted
from twopc_kafka.arrow.batches import Encoder, in_runs, refuse_too_large, room_for_records
from twopc_kafka.arrow.cluster import connect, roll_back
from twopc_kafka.arrow.partitions import choose, grouped
from twopc_kafka.arrow.records import Records, binary, encoded_headers
from twopc_kafka.arrow.sending import Sending
from twopc_kafka.arrow.settings import settings
from twopc_kafka.arrow.varints import Integers
from twopc_kafka.options import KafkaOptions
from twopc_kafka.writer import ABORT_TIMEOUT_S, ProducerIdentity

CHUNK_BYTES = 4 * 1024 * 1024
CHUNK_RECORDS = 100_000
"""So much is encoded at a time: what lies between Arrow's columns and batches on their way is no larger. Small records
take their room by number."""


class ArrowWriter:
    """What ``twopc_kafka.writer.Writer`` is, for ``exactly-once`` alone, without librdkafka."""

    def __init__(self, options: KafkaOptions, transactional_id: str) -> None:
        """Begin.

        Raises:
            ConfigurationError: the broker refuses the transaction for good.
            RoundAborted: it could not be reached, or the id is in use.
        """
        self._options = options
        self._settings = settings(options.properties)
        self._cluster = connect(options.control, self._settings.timeout_ms)
        self._transaction = self._cluster.run(
            self._cluster.begin, transactional_id, options.timeout_to_begin_with_ms, self._settings.timeout_ms
        )
        self._sending = Sending(self._cluster, self._transaction, self._settings)
        weakref.finalize(self, self._sending.halt)  # a task may end without an abort
        self._topics: dict[str, tuple[Encoder, int]] = {}
        self._sticky = secrets.randbelow(1 << 16)  # tasks that begin together don't all write to partition 0
        self._written = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Encode a batch and hand it over for sending.

        Raises:
            RoundAborted: a record can't be written, or was not delivered, of this batch or one before.
        """
        room = room_for_records(self._settings.limits)
        for topic, part in _by_topic(batch, self._options.topic):
            encoder, count = self._topic(topic)
            records = _records(part)
            refuse_too_large(records, self._settings.limits)
            named = part.column("partition") if "partition" in part.schema.names else None
            runs = in_runs(records, room)
            chosen = choose(topic, count, (self._sticky + runs) % count, records.key, named)
            self._sticky += int(runs[-1]) + 1
            for chunk in _chunks(runs, max(1, CHUNK_BYTES // room)):
                order, parts = grouped(chosen[chunk])
                self._sending.put(topic, encoder.encode(records.slice(chunk.start, chunk.stop), order, parts))
        self._written += batch.num_rows

    def finish(self) -> ProducerIdentity:
        """Wait until every record is acknowledged by all replicas in sync.

        Raises:
            RoundAborted: one is not.
        """
        self._sending.drain()
        if self._sending.acknowledged != self._written:
            raise RoundAborted(
                f"{self._sending.acknowledged} records of {self._written} were acknowledged in transaction"
                f" {self._transaction.transactional_id}. The batch can be run again."
            )
        return self._transaction.producer

    def abort(self) -> None:
        """Roll the transaction back."""
        self._sending.stop(ABORT_TIMEOUT_S)
        roll_back(self._options.control, self._transaction)

    def _topic(self, topic: str) -> tuple[Encoder, int]:
        if topic not in self._topics:
            count = self._sending.partitions(topic)
            encoder = Encoder(self._transaction.producer, self._settings.limits, self._settings.compression)
            self._topics[topic] = encoder, count
        return self._topics[topic]


def _by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The batch, apart by topic; the option wins over the column."""
    if topic is not None:
        yield topic, batch
        return
    column = batch.column("topic")
    if column.null_count:
        raise RoundAborted(
            f"record {pc.index(column.is_null(), True).as_py()} of a batch has a null in column 'topic', and the kafka"
            " sink has no option 'topic'. Filter such records or set the option."
        )
    for each in pc.unique(column).to_pylist():
        yield each, batch.filter(pc.equal(column, each))


def _records(batch: pa.RecordBatch) -> Records:
    present = set(batch.schema.names)
    key = binary(batch.column("key")) if "key" in present else None
    headers = batch.column("headers") if "headers" in present else None
    return Records(
        value=binary(batch.column("value")),
        key=None if key is None or key.null_count == len(key) else key,
        headers=None if headers is None or headers.null_count == len(headers) else encoded_headers(headers),
        timestamp_ms=_timestamps(batch),
    )


def _timestamps(batch: pa.RecordBatch) -> Integers:
    now = time.time_ns() // 1_000_000
    if "timestamp" not in batch.schema.names:
        return np.full(batch.num_rows, now)
    column = batch.column("timestamp")
    unit = pa.timestamp("ms", tz=column.type.tz)
    milliseconds = pc.fill_null(column.cast(unit, safe=False).cast(pa.int64()), now)  # Kafka has no finer time
    given: Integers = milliseconds.to_numpy()
    if (given < 0).any():
        raise RoundAborted(
            f"record {int(np.argmax(given < 0))} of a batch has a time before 1970 in column 'timestamp', which Kafka"
            " can't hold. Correct or filter such records."
        )
    return given


def _chunks(runs: Integers, runs_at_most: int) -> Iterator[slice]:
    """Cut where a chunk is full; one record is never cut."""
    by_bytes = runs // runs_at_most
    by_number = np.arange(len(runs)) // CHUNK_RECORDS
    starts = np.flatnonzero(np.diff(by_bytes, prepend=-1) | np.diff(by_number, prepend=-1))
    for start, stop in zip(starts, [*starts[1:], len(runs)], strict=True):
        yield slice(int(start), int(stop))
