"""Both writers and Java's own producer leave the same in a topic: every field, in the same partition and order."""

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.sinks.kafka.arrow.java import run_java, text
from tests.sinks.kafka.writing import sealed
from twopc_kafka.options import WRITERS

pytestmark = pytest.mark.long

PARTITIONS = 7
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
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


def as_java_reads(batch: pa.RecordBatch) -> list[str]:
    return [
        " ".join(
            [
                "-" if row["partition"] is None else str(row["partition"]),
                str((row["timestamp"] - EPOCH) // timedelta(milliseconds=1)),
                *map(text, (row["key"], row["value"])),
                *(text(part) for header in row["headers"] or () for part in (header["key"].encode(), header["value"])),
            ]
        )
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_java_reads_the_same_in_the_same_places_from_both_writers_and_its_own(
    codec: str, make_topic: Any, make_sink: Any, wait: Any, tmp_path: Path
) -> None:
    batches = [random_batch(seed, rows) for seed, rows in enumerate((1, 500, 37, 1000))]
    topics = {writer: make_topic(partitions=PARTITIONS) for writer in ("java", *WRITERS)}
    for writer in WRITERS:
        sink = make_sink(topics[writer], log_id=writer, writer=writer, compression_type=codec, batch_size=20_000)
        wait.repeated(sink.commit, sealed(sink, *batches))
        wait.until("the markers are written", topics[writer].has_no_open_transaction)
    given = tmp_path / "given"
    given.write_text("\n".join(line for batch in batches for line in as_java_reads(batch)))
    lines = run_java("Topics.java", topics["java"].servers, given, *(topic.name for topic in topics.values()))
    found = {
        writer: sorted(line.split(" ", 1)[1] for line in lines if line.startswith(f"{topic.name} "))
        for writer, topic in topics.items()
    }
    assert len(found["java"]) == sum(batch.num_rows for batch in batches)
    assert found["arrow"] == found["java"]
    assert found["librdkafka"] == found["java"]
