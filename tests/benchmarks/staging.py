"""The cost of a replay copy: a participant writes to Kafka with and without one, in turns."""

import tempfile
import time
import uuid
from pathlib import Path

import pyarrow as pa

import twopc
from tests.benchmarks.measuring import Row
from twopc import Participant, Round
from twopc.replay import ReplayCopies
from twopc_kafka_broker import KafkaBroker

SIZES_BYTES = (100, 1000)
RECORDS_A_BATCH = 1_000
BYTES_A_TURN = 50_000_000


def run(quick: bool) -> list[Row]:
    """Return time and disk space per record, for each record size."""
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder) / "broker") as broker:
        return [row for size in SIZES_BYTES for row in _of_size(size, broker, Path(folder) / "stage", quick)]


def _of_size(size_bytes: int, broker: KafkaBroker, folder: Path, quick: bool) -> list[Row]:
    topic = f"size-{size_bytes}"
    broker.create_topic(topic)
    records = BYTES_A_TURN // size_bytes // (10 if quick else 1)
    plain: list[float] = []
    staged: list[float] = []
    stage = ReplayCopies(folder.as_uri())
    for turn in range(3 if quick else 10):
        batch = _batch(size_bytes, turn)
        contestants = [(plain, None), (staged, stage)]
        for seconds, where in contestants if turn % 2 else reversed(contestants):
            seconds.append(_turn(broker, topic, batch, records, where))
    copies = list(folder.iterdir())
    per_record = copies[0].stat().st_size / records
    for copy in copies:
        copy.unlink()
    ratios = tuple(with_copy / without for with_copy, without in zip(staged, plain, strict=True))
    more_us = tuple((with_copy - without) / records * 1e6 for with_copy, without in zip(staged, plain, strict=True))
    return [
        Row(f"{size_bytes} B records: time with a copy, over without", "ratio", ratios),
        Row(f"{size_bytes} B records: time of the copy", "µs/record", more_us),
        Row(f"{size_bytes} B records: size of the copy", "B/record", (per_record,)),
    ]


def _batch(size_bytes: int, turn: int) -> pa.RecordBatch:
    values = [f"{turn}-{number}-".encode().ljust(size_bytes, b"x") for number in range(RECORDS_A_BATCH)]
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def _turn(broker: KafkaBroker, topic: str, batch: pa.RecordBatch, records: int, stage: ReplayCopies | None) -> float:
    """Return the seconds from the first record to the vote."""
    sink = twopc.create_sink("kafka", {"bootstrap.servers": broker.bootstrap_servers, "topic": topic})
    sink.bind("sink", uuid.uuid4().hex[:12], stage)
    with Participant({"sink": sink}, Round(1, 0), partition=0) as participant:
        started = time.perf_counter()
        for _ in range(records // batch.num_rows):
            participant.write("sink", batch)
        vote = participant.pre_commit()
        seconds = time.perf_counter() - started
    sink.abort(vote["sink"])
    return seconds
