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

servers, topic, prefix, when = sys.argv[1:]
options = {"bootstrap.servers": servers, "topic": topic, "transactional.id.prefix": prefix, "writer": "arrow"}
sink = KafkaSink(options)
sink.bind("orders", "log")
participant = Participant({"orders": sink}, Round(1, 7), 3)
participant.write("orders", pa.record_batch({"value": [str(n) for n in range(100)]}))
if when == "after pre-commit":
    print(json.dumps(participant.pre_commit()["orders"].to_json()), flush=True)
else:  # the broker has the records
    participant._transactions["orders"].writer._sending.drain()
os.kill(os.getpid(), signal.SIGKILL)
"""
VALUES = [str(n) for n in range(100)]


def killed_writer(topic: Any, prefix: str, when: str) -> str:
    command = [sys.executable, "-c", WRITER, topic.servers, topic.name, prefix, when]
    writer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert writer.returncode == -9, writer.stderr
    return writer.stdout


def test_what_a_writer_pre_committed_before_its_kill_is_committed_by_another_process(
    topic: Any, prefix: str, make_sink: Any, wait: Any
) -> None:
    committable = Committable.from_json(json.loads(killed_writer(topic, prefix, "after pre-commit")))
    assert topic.visible() == []
    sink = make_sink(topic)
    [sealed] = sink.seal([committable], age_s=0)
    for _ in range(2):
        wait.repeated(lambda: make_sink(topic).commit(sealed))
    topic.becomes(VALUES)


@pytest.mark.parametrize("when", ["before pre-commit", "after pre-commit"])
def test_what_a_killed_writer_left_undecided_is_found_and_aborted(
    when: str, topic: Any, prefix: str, make_sink: Any, wait: Any
) -> None:
    killed_writer(topic, prefix, when)
    assert not topic.has_no_open_transaction()
    [found] = make_sink(topic).recover()
    wait.repeated(lambda: make_sink(topic).abort(found))
    topic.stays_empty()
