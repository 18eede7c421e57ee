"""The protocol itself: from the last pre-commit to the end of phase two, and the recovery after a dead driver."""

import contextlib
import functools
import itertools
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
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

BATCHES = {4: 30, 200: 5, 2_000: 1}
"""Transactions per batch → the number of batches in a turn."""

TURNS, WARM_UP_TURNS = 5, 5
"""Counted turns, and uncounted ones before them: the broker's JVM compiles code, and ids repeat after ``BATCH_SLOTS``
batches, so that their coordinators are known from then on."""

DANGLING = (1_250, 2_500, 5_000, 10_000)
WRITERS_AT_ONCE = 8
RECORD = pa.record_batch({"value": ["a"]})


def run(quick: bool) -> list[Row]:
    """Return the milliseconds of the protocol per batch, and the seconds of a recovery."""
    with _broker() as (sink, folder):
        warm_up, counted = (1, 1) if quick else (WARM_UP_TURNS, TURNS)
        queries = {n: run_batches(sink(), folder, n, each * (warm_up + counted)) for n, each in BATCHES.items()}
        contestants = {str(n): functools.partial(_turn, query, BATCHES[n]) for n, query in queries.items()}
        in_turns(contestants, warm_up)
        turns = in_turns(contestants, counted)
        for query in queries.values():
            query.close()
    with _broker() as (sink, folder):
        recoveries = [_recovery(sink, folder, dangling) for dangling in (DANGLING[:1] if quick else DANGLING)]
    took = {n: tuple(itertools.chain.from_iterable(turns[str(n)])) for n in BATCHES}
    return [*(Row(f"protocol for {n} transactions", "ms", took[n], f"protocol_ms_{n}") for n in BATCHES), *recoveries]


@contextlib.contextmanager
def _broker() -> Iterator[tuple[Callable[[], TwoPhaseCommitSink[Any]], Path]]:
    """Run a broker, and yield what makes a sink of it, and a folder."""
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder) / "broker") as broker:
        broker.create_topic("target", partitions=4)
        options = {"bootstrap.servers": broker.bootstrap_servers, "topic": "target", "writer": "arrow"}
        yield functools.partial(twopc.create_sink, "kafka", options), Path(folder)


def _turn(query: Iterator[BatchFinished], batches: int) -> list[float]:
    phases = (Phase.SEALING, Phase.DECIDING, Phase.COMMITTING)
    return [sum(batch.phases_ms[phase.value] for phase in phases) for batch in itertools.islice(query, batches)]


def run_batches(
    sink: TwoPhaseCommitSink[Any], folder: Path, transactions: int, batches: int
) -> Generator[BatchFinished, None, None]:
    """Run batches of one record per transaction."""

    sinks = {"sink": sink}
    with Coordinator(sinks, f"{folder}/{uuid.uuid4().hex}", owner="benchmark") as coordinator:
        for batch_id in range(batches):
            yield coordinator.run(batch_id, lambda each: votes(sinks, each, transactions))


def drivers_ms(batch: BatchFinished) -> float:
    """Return the time from the last vote to the end of a batch."""
    after = (Phase.SEALING, Phase.DECIDING, Phase.COMMITTING, Phase.SWEEPING)
    return sum(batch.phases_ms[phase.value] for phase in after if phase.value in batch.phases_ms)


def _recovery(sink: Callable[[], TwoPhaseCommitSink[Any]], folder: Path, dangling: int) -> Row:
    """Measure the recovery after a driver that died before its decision: all its transactions are rolled back."""
    log, died = f"{folder}/{uuid.uuid4().hex}", {"sink": sink()}

    def phase_one(round: Round) -> list[Vote]:
        votes(died, round, dangling)
        raise KeyboardInterrupt  # nothing is rolled back, as after a kill

    with contextlib.suppress(KeyboardInterrupt):
        Coordinator(died, log, owner="benchmark").run(0, phase_one)
    coordinator = Coordinator({"sink": sink()}, log, owner="benchmark")
    started = time.perf_counter()
    coordinator.recover()
    took = time.perf_counter() - started
    coordinator.close()
    return Row(f"recovery with {dangling} dangling transactions", "s", (took,), f"recovery_s_{dangling}")


def votes(sinks: Mapping[str, TwoPhaseCommitSink[Any]], round: Round, transactions: int) -> list[Vote]:
    """Write one record per transaction and sink."""

    def vote(partition: int) -> Vote:
        with Participant(sinks, round, partition=partition) as participant:
            for name in sinks:
                participant.write(name, RECORD)
            return participant.pre_commit()

    with ThreadPoolExecutor(WRITERS_AT_ONCE) as pool:
        return list(pool.map(vote, range(transactions)))
