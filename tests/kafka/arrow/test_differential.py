"""Both writers, given the same records, leave the same in a topic: every field, in the same partition and order."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from twopc import Participant, Round

pytestmark = pytest.mark.kafka

PARTITIONS = 7
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
START = datetime(2013, 1, 1, tzinfo=timezone.utc)


def random_batch(seed: int, rows: int) -> pa.RecordBatch:
    """Records with a key or a partition or both: where one has neither, each writer is free."""
    rng = np.random.default_rng(seed)

    def text(longest: int, null: float = 0.2) -> bytes | None:
        return None if rng.random() < null else rng.bytes(int(rng.integers(longest)))

    keys = [text(40) for _ in range(rows)]
    numbers = [int(rng.integers(PARTITIONS)) if key is None or rng.random() < 0.3 else None for key in keys]
    headers = [
        [{"key": f"h{n}", "value": text(20)} for n in range(rng.integers(4))] if rng.random() < 0.5 else None
        for _ in range(rows)
    ]
    moments = [START + timedelta(milliseconds=int(rng.integers(10**11))) for _ in range(rows)]
    return pa.record_batch(
        {
            "value": pa.array([text(300) for _ in range(rows)], pa.binary()),
            "key": pa.array(keys, pa.large_binary()),
            "partition": pa.array(numbers, pa.int32()),
            "headers": pa.array(headers, HEADERS),
            "timestamp": pa.array(moments, pa.timestamp("us", "UTC")),
        }
    )


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_both_writers_leave_the_same_records_in_the_same_places(
    codec: str, make_topic: Any, make_sink: Any, wait: Any
) -> None:
    batches = [random_batch(seed, rows) for seed, rows in enumerate((1, 500, 37, 1000))]
    found = []
    for writer in ("librdkafka", "arrow"):
        topic = make_topic(partitions=PARTITIONS)
        sink = make_sink(topic, log_id=writer, writer=writer, compression_type=codec, batch_size=20_000)
        with Participant({"orders": sink}, Round(1, 0), 0) as participant:
            for batch in batches:
                participant.write("orders", batch)
            [sealed] = sink.seal([participant.pre_commit()["orders"]], age_s=0)
        wait.repeated(lambda sink=sink, sealed=sealed: sink.commit(sealed))
        wait.until("the markers are written", topic.has_no_open_transaction)
        found.append(
            sorted(
                (
                    (r.partition, r.offset, r.key, r.value, tuple(map(tuple, r.headers)), r.timestamp)
                    for r in topic.records()
                ),
                key=lambda record: record[:2],
            )
        )
    by_librdkafka, by_arrow = found
    assert len(by_arrow) == sum(batch.num_rows for batch in batches)
    assert by_arrow == by_librdkafka
