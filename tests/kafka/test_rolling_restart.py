"""A planned restart of all brokers, one after the other, stops no query."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.topic_reader import records_of
from twopc import Coordinator, Participant, Round
from twopc_kafka.development import KafkaBroker
from twopc_kafka.options import WRITERS

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

REPLICATED = {
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "offsets.topic.replication.factor": 3,
}
PARTITIONS = 3


@pytest.fixture(scope="module")
def brokers() -> Iterator[dict[int, KafkaBroker]]:
    """Node ids → brokers. The first is also the controller: while that restarts, nobody elects a leader."""
    with contextlib.ExitStack() as ended, ThreadPoolExecutor() as pool:
        first = ended.enter_context(KafkaBroker(properties=REPLICATED))
        nodes = {1: first}
        for node in (2, 3):
            nodes[node] = KafkaBroker(properties={**REPLICATED, "node.id": node}, joins=first)
            ended.callback(nodes[node].close)
        list(pool.map(KafkaBroker.start, nodes.values()))
        yield nodes


@pytest.mark.parametrize("writer", WRITERS)
def test_a_query_runs_through_a_rolling_restart_of_all_brokers(
    brokers: dict[int, KafkaBroker], writer: str, make_sink: Any, tmp_path: Path
) -> None:
    servers = ",".join(broker.bootstrap_servers for broker in brokers.values())
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    brokers[1].create_topic(topic, PARTITIONS, {"min.insync.replicas": "2"}, replicas=3)
    on = type("On", (), {"servers": servers, "name": topic})
    sink = make_sink(on, log_id=None, writer=writer)
    restarted = threading.Event()

    def restart() -> None:
        try:
            for broker in brokers.values():
                time.sleep(0.5)  # batches that run while all are up
                broker.stop()
                broker.start()
        finally:
            restarted.set()

    def phase_one(round: Round) -> list[Any]:
        votes = []
        for number in range(PARTITIONS):
            with Participant({"orders": sink}, round, number) as participant:
                numbers = pa.array([number], pa.int32())
                value = f"{round.batch_id}-{number}"
                participant.write("orders", pa.record_batch({"value": [value], "partition": numbers}))
                votes.append(participant.pre_commit())
        return votes

    restarting = threading.Thread(target=restart)
    batches = 0
    with Coordinator({"orders": sink}, str(tmp_path), "query") as coordinator:
        restarting.start()
        try:
            while not restarted.is_set():
                coordinator.run(batches, phase_one)
                batches += 1
        finally:
            restarting.join()
    visible = sorted(record.value.decode() for record in records_of(servers, topic))
    assert visible == sorted(f"{batch}-{number}" for batch in range(batches) for number in range(PARTITIONS))
