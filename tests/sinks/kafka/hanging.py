"""Transactions that hang, made on purpose: a partition has records that no marker will end.

Kafka leaves markers out where a partition has no leader for a moment, which no test can time. The same comes of records
that the coordinator was not told of, which a broker takes that does not verify them.
"""

from collections.abc import Iterable

import pyarrow as pa

from twopc import Committable
from twopc_kafka import KafkaSink
from twopc_kafka.answers import ProducerIdentity
from twopc_kafka.client.cluster import OpenTransaction, cluster_of
from twopc_kafka.handles import identity_of
from twopc_kafka.options import KafkaOptions
from twopc_kafka.writers.arrow import ArrowWriter
from twopc_kafka.writers.sender import Lane, Sending
from twopc_kafka.writers.settings import settings


class _Unnoticed(Sending):
    async def _add(self, lanes: list[Lane]) -> bool:
        return True


class _UnnoticedWriter(ArrowWriter):
    def __init__(self, options: KafkaOptions, transaction: OpenTransaction) -> None:
        self._options, self._settings = options, settings(options.properties)
        self._transaction = transaction
        self._cluster = cluster_of(options.control, self._settings.timeout_ms)
        self._sending = _Unnoticed(self._cluster, transaction, self._settings, asked={})
        self._topics = {}
        self._sticky = self._written = 0


def write_unnoticed(
    options: KafkaOptions, transactional_id: str, producer: ProducerIdentity, values: Iterable[str], partition: int
) -> None:
    """Write records of an open transaction to a partition that gets no marker when it ends."""
    writer = _UnnoticedWriter(options, OpenTransaction(transactional_id, producer, implicit=False))
    written = list(values)
    numbers = pa.array([partition] * len(written), pa.int32())
    writer.write(pa.record_batch({"value": written, "partition": numbers}))
    writer.finish()


def will_hang(sink: KafkaSink, transaction: Committable, values: Iterable[str], partition: int) -> None:
    """Have a transaction hang in a partition when it ends."""
    producer = ProducerIdentity(*identity_of(transaction))
    write_unnoticed(sink._options, transaction.transaction_id, producer, values, partition)
