"""A writer is killed with SIGKILL, and another process settles what it left (invariants 2, 4 and 5)."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from twopc import Committable

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

WRITER = """
import json, os, signal, sys
import pyarrow as pa
from twopc import Participant, Round
from twopc_kafka import KafkaSink

servers, topic, prefix = sys.argv[1:]
options = {"bootstrap.servers": servers, "topic": topic, "transactional.id.prefix": prefix, "writer": "arrow"}
sink = KafkaSink(options)
sink.bind("orders", "log")
participant = Participant({"orders": sink}, Round(1, 7), 3)
participant.write("orders", pa.record_batch({"value": [str(n) for n in range(100)]}))
print(json.dumps(participant.pre_commit()["orders"].to_json()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
VALUES = [str(n) for n in range(100)]


def killed_writer(topic: Any, prefix: str) -> Committable:
    """What a writer pre-committed just before its end."""
    command = [sys.executable, "-c", WRITER, topic.servers, topic.name, prefix]
    writer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert writer.returncode == -9, writer.stderr
    return Committable.from_json(json.loads(writer.stdout))


def test_what_a_writer_pre_committed_before_its_kill_is_committed_by_another_process(
    topic: Any, prefix: str, make_sink: Any, wait: Any
) -> None:
    committable = killed_writer(topic, prefix)
    assert topic.visible() == []
    sink = make_sink(topic)
    [sealed] = sink.seal([committable], age_s=0)
    for _ in range(2):
        wait.repeated(lambda: make_sink(topic).commit(sealed))
    topic.becomes(VALUES)


def test_what_a_killed_writer_left_undecided_is_found_and_aborted(
    topic: Any, prefix: str, make_sink: Any, wait: Any
) -> None:
    left = killed_writer(topic, prefix)
    [found] = make_sink(topic).recover()
    assert found.is_same_transaction(left)
    wait.repeated(lambda: make_sink(topic).abort(found))
    topic.stays_empty()
