"""Java's own client reads what the Arrow writer encodes: its batches, codecs and hash."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sinks.kafka.arrow.java import run_java, text
from twopc_kafka.writers.encoding.compression import NUMBERS
from twopc_kafka.writers.encoding.partitions import murmur2

pytestmark = pytest.mark.long  # starts Java, which compiles a program

COUNT = 3000


def test_java_reads_every_batch_codec_and_record_and_hashes_keys_alike(encoding: Any, tmp_path: Path) -> None:
    given = [
        encoding.Given(
            None if n % 7 == 3 else b"value %d " % n * 9,
            None if n % 5 == 1 else b"k" * (n % 23),
            (("header", b"%d" % n), ("without", None))[: n % 3],
            1_700_000_000_000 + n % 11,
        )
        for n in range(COUNT)
    ]
    records = encoding.columns(given)
    batches = [batch for codec in NUMBERS for batch in encoding.one_partition(records, codec)]
    file = tmp_path / "batches"
    file.write_bytes(b"".join(batch.data for batch in batches))
    lines = run_java("Decode.java", file)
    codecs = [line.split()[1] for line in lines if line.startswith("batch")]
    assert codecs == list(NUMBERS)
    # Transactional, producer, first sequence number, count, latest timestamp.
    producer = f"{encoding.producer.producer_id} {encoding.producer.producer_epoch}"
    facts = f"true {producer} 0 {COUNT} {max(record.timestamp_ms for record in given)}"
    assert {line.split(maxsplit=2)[2] for line in lines if line.startswith("batch")} == {facts}
    hashes = np.where(records.key.is_valid(), murmur2(records.key).astype(np.int32), 0)
    expected = [as_java_prints(n, record, int(hashes[n])) for n, record in enumerate(given)]
    assert [line for line in lines if line.startswith("record")] == expected * len(NUMBERS)


def test_java_reads_what_a_random_hand_has_written(encoding: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    codecs, batches, expected = list(NUMBERS), [], []
    for turn in range(60):
        given = [random_record(encoding, rng) for _ in range(int(rng.integers(1, 60)))]
        records = encoding.columns(given)
        hashes = np.where(records.key.is_valid(), murmur2(records.key).astype(np.int32), 0)
        cut = encoding.one_partition(records, codecs[turn % len(codecs)], int(rng.integers(100, 20_000)))
        batches += cut
        numbers = [n for batch in cut for n in range(batch.count)]
        expected += [
            as_java_prints(n, record, int(hashed)) for n, record, hashed in zip(numbers, given, hashes, strict=True)
        ]
    file = tmp_path / "batches"
    file.write_bytes(b"".join(batch.data for batch in batches))
    assert [line for line in run_java("Decode.java", file) if line.startswith("record")] == expected


def random_record(encoding: Any, rng: np.random.Generator) -> Any:
    def content() -> bytes | None:
        longest = int(rng.choice([1, 3, 64, 66] * 5 + [8300]))  # around where a length takes a byte more
        return None if rng.random() < 0.2 else rng.bytes(int(rng.integers(longest)))

    names = ["", "h", "größe", "😀" * 20]
    headers = tuple((names[int(rng.integers(4))], content()) for _ in range(int(rng.choice([0, 0, 1, 3] * 5 + [70]))))
    return encoding.Given(content(), content(), headers, int(rng.integers(1 << int(rng.integers(1, 62)))))


def as_java_prints(offset: int, record: Any, hashed: int) -> str:
    headers = [text(part) for key, value in record.headers for part in (key.encode(), value)]
    return " ".join(
        ["record", str(offset), str(record.timestamp_ms), text(record.key), text(record.value), str(hashed), *headers]
    )
