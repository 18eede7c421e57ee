"""Processes are killed with SIGKILL, and others settle what they left (invariants 2, 4 and 5)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from twopc import Committable
from twopc_kafka.options import LIBRDKAFKA, WRITERS

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

WRITER = """
import json, os, signal, sys
import pyarrow as pa
from twopc import Participant, Round
from twopc_kafka import KafkaSink

servers, topic, prefix, writer, when = sys.argv[1:]
options = {"bootstrap.servers": servers, "topic": topic, "transactional.id.prefix": prefix, "writer": writer}
sink = KafkaSink(options)
sink.bind("orders", "log")
participant = Participant({"orders": sink}, Round(1, 7), partition=3)
participant.write("orders", pa.record_batch({"value": [str(n) for n in range(100)]}))
if when == "after pre-commit":
    print(json.dumps(participant.pre_commit()["orders"].to_json()), flush=True)
else:  # the records are on their way, and the broker has some
    participant._transactions["orders"].writer._producer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
VALUES = [str(n) for n in range(100)]


def killed_writer(topic: Any, prefix: str, writer: str, when: str = "after pre-commit") -> Committable | None:
    """What it had pre-committed, if it came to that."""
    command = [sys.executable, "-c", WRITER, topic.servers, topic.name, prefix, writer, when]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert killed.returncode == -9, killed.stderr
    return Committable.from_json(json.loads(killed.stdout)) if killed.stdout else None


@pytest.mark.parametrize("writer", WRITERS)
def test_what_a_writer_pre_committed_before_its_kill_is_committed_by_another_process(
    writer: str, topic: Any, prefix: str, make_sink: Any, wait: Any
) -> None:
    committable = killed_writer(topic, prefix, writer)
    assert committable is not None
    assert topic.visible() == []
    sink = make_sink(topic)
    [sealed] = sink.seal([committable], age_s=0)
    for _ in range(2):
        wait.repeated(lambda: make_sink(topic).commit(sealed))
    topic.becomes(VALUES)


@pytest.mark.parametrize(
    ("writer", "when"),
    [(LIBRDKAFKA, "before pre-commit"), *((writer, "after pre-commit") for writer in WRITERS)],
)
def test_what_a_killed_writer_left_undecided_is_found_and_aborted(
    writer: str, when: str, topic: Any, prefix: str, make_sink: Any, wait: Any
) -> None:
    left = killed_writer(topic, prefix, writer, when)
    assert not topic.has_no_open_transaction()
    [found] = make_sink(topic).recover()
    assert left is None or found.is_same_transaction(left)
    wait.repeated(lambda: make_sink(topic).abort(found))
    topic.stays_empty()
    assert list(make_sink(topic).recover()) == []


LOOP = Path(__file__).with_name("plain_loop.py")
EVERYTHING = sorted(f"{batch}-{partition}-{n}" for batch in range(4) for partition in range(2) for n in range(5))
BEFORE_THE_KILL = [value for value in EVERYTHING if value < "2"]


@pytest.mark.parametrize("kill_at", ["deciding", "committing", "first commit"])
def test_a_plain_loop_that_is_killed_and_started_again_writes_each_record_exactly_once(
    kill_at: str, make_topic: Any, prefix: str, tmp_path: Path
) -> None:
    topic = make_topic(partitions=2)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(LOOP), topic.servers, topic.name, prefix, str(tmp_path), *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    killed = run("--kill-at", kill_at)
    assert killed.returncode == -9, killed.stderr
    if kill_at == "deciding":  # nothing of the undecided batch is visible, or ever will be by this round
        topic.becomes(BEFORE_THE_KILL)
    restarted = run()
    assert restarted.returncode == 0, restarted.stderr
    topic.becomes(EVERYTHING)
    assert topic.has_no_open_transaction()
