"""The Arrow writer: writes Arrow record batches to Kafka in one transaction per task attempt."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from twopc.errors import RoundAborted
from twopc_kafka.answers import ProducerIdentity
from twopc_kafka.client.cluster import cluster_of
from twopc_kafka.client.control import control_of
from twopc_kafka.columns import by_topic
from twopc_kafka.ending import ABORT_TIMEOUT_S, roll_back
from twopc_kafka.markers import Written
from twopc_kafka.options import KafkaOptions
from twopc_kafka.values import check_values
from twopc_kafka.writers.encoding.batches import Encoder, in_runs, room_for_records
from twopc_kafka.writers.encoding.partitions import choose, grouped
from twopc_kafka.writers.encoding.records import records_of
from twopc_kafka.writers.encoding.varints import Integers
from twopc_kafka.writers.sender import Sending
from twopc_kafka.writers.settings import settings

CHUNK_BYTES = 4 * 1024 * 1024
CHUNK_RECORDS = 100_000
"""The limits of a chunk, which is encoded as a whole. They bound the memory that encoding takes in addition to the
batches in flight. Because of the overhead per record, small records are limited by number rather than by bytes."""


class ArrowWriter:
    """A replacement for ``twopc_kafka.writers.librdkafka.Writer`` without librdkafka, for ``exactly-once`` only."""

    def __init__(self, options: KafkaOptions, transactional_id: str, was_used: bool = False) -> None:
        """Begin a transaction. ``was_used``: whether the id may have had a transaction before this one.

        Raises:
            NotCommitted: the id's last transaction is not known to be committed.
            ConfigurationError: the broker would refuse every attempt to begin the transaction.
            OperatorRequired: the broker denies this principal the login or the id.
            RoundAborted: the broker could not be reached, or the id is in use.
        """
        self._options = options
        self._settings = settings(options.properties)
        self._cluster = cluster_of(options.control, self._settings.timeout_ms)
        topic = options.topic
        asked = {} if topic is None else {topic: self._cluster.start(self._cluster.leaders, topic)}
        self._transaction = self._cluster.run(
            self._cluster.begin, transactional_id, was_used, options.timeout_to_begin_with_ms, self._settings.timeout_ms
        )
        self._sending = Sending(self._cluster, self._transaction, self._settings, asked)
        weakref.finalize(self, self._sending.halt)  # in case the task ends without an abort
        self._topics: dict[str, tuple[Encoder, int]] = {}
        self._sticky = secrets.randbelow(1 << 16)  # so that not all tasks begin with partition 0
        self._written = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Encode a batch and hand it over for sending.

        Raises:
            RecordRefused: a record can never be written.
            RoundAborted: a record of this batch or an earlier one was not delivered.
        """
        check_values(batch, self._options, self._partitions)
        room = room_for_records(self._settings.batch_bytes)
        for topic, part, positions in by_topic(batch, self._options.topic):
            encoder, count = self._topics[topic]
            records = records_of(part)
            named = part.column("partition") if "partition" in part.schema.names else None
            runs = in_runs(records, room)
            chosen = choose(count, (self._sticky + runs) % count, records.key, named)
            self._sticky += int(runs[-1]) + 1
            for chunk in _chunks(runs, records.at_most):
                order, parts = grouped(chosen[chunk])
                some = records.slice(chunk.start, chunk.stop), order, parts, self._written + positions[chunk]
                self._sending.put(topic, encoder.encode(*some))
        self._written += batch.num_rows

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """The id of each topic, as looked up before the first write to it, if the brokers have topic ids."""
        return self._sending.topic_ids

    @property
    def written(self) -> Written:
        """How much was written to each partition, after ``finish``."""
        return self._sending.written

    def finish(self) -> ProducerIdentity:
        """Wait until all in-sync replicas have acknowledged every record.

        Raises:
            RoundAborted: a record was not acknowledged.
        """
        self._sending.drain()
        if self._sending.acknowledged != self._written:
            raise RoundAborted(
                f"only {self._sending.acknowledged} of {self._written} records were acknowledged in transaction"
                f" {self._transaction.transactional_id}. The batch can be run again."
            )
        return self._transaction.producer

    def abort(self) -> None:
        """Roll the transaction back."""
        self._sending.stop(ABORT_TIMEOUT_S)
        roll_back(control_of(self._options.control), self._transaction)

    def _partitions(self, topic: str, highest: int) -> int:
        new = Encoder(self._transaction.producer, self._settings.batch_bytes, self._settings.compression), 0
        encoder, count = self._topics.get(topic, new)
        if count <= highest:
            count = self._sending.partitions(topic)
            if 0 < count <= highest:  # the lookup from before the transaction may be stale
                count = self._sending.partitions(topic)
            self._topics[topic] = encoder, count
        return count


def _chunks(runs: Integers, sizes: Integers) -> Iterator[slice]:
    """Yield each chunk as a range of records. A chunk ends with a run, or at a multiple of ``CHUNK_RECORDS``. ``sizes``
    are the records' sizes in bytes."""
    begins = (np.cumsum(sizes) - sizes)[np.searchsorted(runs, runs)]  # where each record's run begins
    by_bytes = begins // CHUNK_BYTES
    by_number = np.arange(len(runs)) // CHUNK_RECORDS
    starts = np.flatnonzero(np.diff(by_bytes, prepend=-1) | np.diff(by_number, prepend=-1))
    for start, stop in zip(starts, [*starts[1:], len(runs)], strict=True):
        yield slice(int(start), int(stop))
