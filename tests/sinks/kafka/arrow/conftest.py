"""What the tests of the Arrow writer's encoding share: a producer, and what another client decodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka.record import MemoryRecords

from twopc_kafka.answers import ProducerIdentity
from twopc_kafka.writers.encoding.batches import Encoder, RecordBatch
from twopc_kafka.writers.encoding.compression import Compression
from twopc_kafka.writers.encoding.records import Records, binary, encoded_headers

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PRODUCER = ProducerIdentity(70_000_000_001, 3)


@dataclass(frozen=True)
class GivenRecord:
    """A record as a test gives it and as it expects it back."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 1_700_000_000_000


def columns(given: Sequence[GivenRecord]) -> Records:
    headers = [[{"key": k, "value": v} for k, v in record.headers] or None for record in given]
    return Records(
        value=pa.array([record.value for record in given], pa.binary()),
        key=binary(pa.array([record.key for record in given], pa.large_binary())),
        headers=encoded_headers(pa.array(headers, HEADERS)),
        timestamp_ms=np.array([record.timestamp_ms for record in given], np.int64),
    )


class Encoding:
    """The encoding under test, and kafka-python's decoding of it."""

    Given = GivenRecord
    columns = staticmethod(columns)
    producer = PRODUCER
    headers_type = HEADERS

    def encoder(self, codec: str = "none", batch_bytes: int = 1_000_000, level: int | None = None) -> Encoder:
        return Encoder(PRODUCER, batch_bytes, Compression(codec, level))

    def one_partition(self, records: Records, codec: str = "none", batch_bytes: int = 1_000_000) -> list[RecordBatch]:
        of_partition: Mapping[int, slice] = {0: slice(0, len(records))}
        return self.encoder(codec, batch_bytes).encode(
            records, np.arange(len(records)), of_partition, np.arange(len(records))
        )

    def decoded(self, batches: Sequence[RecordBatch]) -> list[GivenRecord]:
        return [record for batch in batches for record in self.decode(batch)]

    def decode(self, batch: RecordBatch) -> list[GivenRecord]:
        [decoded] = list(iter(MemoryRecords(batch.data).next_batch, None))
        assert decoded.validate_crc()
        assert decoded.is_transactional
        assert not decoded.is_control_batch
        assert (decoded.producer_id, decoded.producer_epoch) == (PRODUCER.producer_id, PRODUCER.producer_epoch)
        records: list[Any] = list(decoded)
        assert [record.offset for record in records] == list(range(batch.count))
        assert decoded.last_offset_delta == batch.count - 1
        found = [GivenRecord(r.value, r.key, tuple((k, v) for k, v in r.headers), r.timestamp) for r in records]
        assert decoded.max_timestamp == max(record.timestamp_ms for record in found)
        return found


@pytest.fixture(scope="session")
def encoding() -> Encoding:
    return Encoding()
