"""The protocol itself: from the last pre-commit to the end of phase two, and the recovery after a dead driver."""

from __future__ import annotations

import contextlib
import functools
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

import twopc
from tests.benchmarks.measuring import Row, in_turns
from twopc import Coordinator, Participant, Round, TwoPhaseCommitSink, Vote
from twopc.events import BatchFinished
from twopc.phases import Phase
from twopc_kafka_broker import KafkaBroker

BATCHES = {4: 60, 200: 6, 2_000: 2}
"""Transactions per batch → the number of batches in a turn. A turn's figure is their median."""

TURNS = 5
"""After an uncounted one: the broker's JVM compiles code in its first minute."""

DANGLING = (1_250, 2_500, 5_000, 10_000)
WRITERS_AT_ONCE = 8
RECORD = pa.record_batch({"value": ["a"]})


def run(quick: bool) -> list[Row]:
    """Return the milliseconds of the protocol per batch, and the seconds of a recovery."""
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder) / "broker") as broker:
        broker.create_topic("target", partitions=4)

        def sink() -> TwoPhaseCommitSink[Any]:
            where = {"bootstrap.servers": broker.bootstrap_servers, "topic": "target", "writer": "arrow"}
            return twopc.create_sink("kafka", where)

        def protocol_ms(transactions: int) -> float:
            batches = run_batches(sink(), Path(folder), transactions, BATCHES[transactions])
            return statistics.median(_protocol_ms(batch) for batch in batches)

        contestants = {str(each): functools.partial(protocol_ms, each) for each in BATCHES}
        in_turns(contestants, 0 if quick else 1)
        took = in_turns(contestants, 1 if quick else TURNS)
        return [
            *(
                Row(f"protocol for {each} transactions", "ms", tuple(took[str(each)]), f"protocol_ms_{each}")
                for each in BATCHES
            ),
            *(_recovery(sink, Path(folder), dangling) for dangling in (DANGLING[:1] if quick else DANGLING)),
        ]


def run_batches(
    sink: TwoPhaseCommitSink[Any], folder: Path, transactions: int, batches: int
) -> Iterator[BatchFinished]:
    """Run batches of one record per transaction."""

    def phase_one(round: Round) -> list[Vote]:
        return _votes(sink, round, transactions)

    with Coordinator({"sink": sink}, f"{folder}/{uuid.uuid4().hex}", owner="benchmark") as coordinator:
        for batch_id in range(batches):
            yield coordinator.run(batch_id, phase_one)


def _protocol_ms(batch: BatchFinished) -> float:
    return sum(batch.phases_ms[phase.value] for phase in (Phase.SEALING, Phase.DECIDING, Phase.COMMITTING))


def _recovery(sink: Callable[[], TwoPhaseCommitSink[Any]], folder: Path, dangling: int) -> Row:
    """Measure the recovery after a driver that died before its decision: all its transactions are rolled back."""
    log, died = f"{folder}/{uuid.uuid4().hex}", sink()

    def phase_one(round: Round) -> list[Vote]:
        _votes(died, round, dangling)
        raise KeyboardInterrupt  # nothing is rolled back, as after a kill

    with contextlib.suppress(KeyboardInterrupt):
        Coordinator({"sink": died}, log, owner="benchmark").run(0, phase_one)
    coordinator = Coordinator({"sink": sink()}, log, owner="benchmark")
    started = time.perf_counter()
    coordinator.recover()
    took = time.perf_counter() - started
    coordinator.close()
    return Row(f"recovery with {dangling} dangling transactions", "s", (took,), f"recovery_s_{dangling}")


def _votes(sink: TwoPhaseCommitSink[Any], round: Round, transactions: int) -> list[Vote]:
    def vote(partition: int) -> Vote:
        with Participant({"sink": sink}, round, partition=partition) as participant:
            participant.write("sink", RECORD)
            return participant.pre_commit()

    with ThreadPoolExecutor(WRITERS_AT_ONCE) as pool:
        return list(pool.map(vote, range(transactions)))
