"""Processes are killed with SIGKILL, and others settle what they left (invariants 2, 4 and 5)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from twopc import Committable

if TYPE_CHECKING:
    from tests.sinks.postgres.conftest import Place

pytestmark = pytest.mark.crash

WRITER = """
import json, os, signal, sys
import pyarrow as pa
from twopc import Participant, Round
from twopc_postgres import PostgresSink

conninfo, table, prefix, upsert_by, when = sys.argv[1:]
key = {"upsert_by": upsert_by} if upsert_by else {}
sink = PostgresSink({"conninfo": conninfo, "table": table, **key})
sink.prefix = prefix
sink.bind("orders", "log")
sink.open()
participant = Participant({"orders": sink}, Round(1, 7), partition=3)
participant.write("orders", pa.record_batch({"value": [str(n) for n in range(100)]}))
if when == "after pre-commit":
    print(json.dumps(participant.pre_commit()["orders"].to_json()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
VALUES = sorted(str(n) for n in range(100))


def killed_writer(place: Place, when: str, upsert_by: str = "") -> str:
    """What it had pre-committed, if it came to that."""
    command = [sys.executable, "-c", WRITER, place.server.conninfo, place.table, place.prefix, upsert_by, when]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert killed.returncode == -9, killed.stderr
    return killed.stdout


@pytest.mark.parametrize("upsert_by", ["", "value"])
def test_what_a_writer_pre_committed_before_its_kill_outlives_the_server_and_is_committed_by_another_process(
    upsert_by: str, place: Place
) -> None:
    place.create("value text PRIMARY KEY")
    committable = Committable.from_json(json.loads(killed_writer(place, "after pre-commit", upsert_by)))
    place.server.kill()
    place.server.start()
    place.unbound().close()  # the connections of this process are lost with it
    assert place.values() == []
    sink = place.sink()
    assert sink.seal([committable], age_s=0) == [committable]
    for _ in range(2):
        sink.commit(committable)
    assert place.values() == VALUES
    tables = place.ask("SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1", place.schema)
    assert tables == [("orders",), ("twopc_committed",)]


def test_what_a_killed_writer_left_undecided_is_found_and_rolled_back(place: Place) -> None:
    killed_writer(place, "after pre-commit")
    sink = place.sink()
    [found] = sink.recover()
    sink.abort(found)
    assert list(sink.recover()) == []
    assert place.values() == []


def test_what_a_killed_writer_had_not_pre_committed_the_server_rolls_back_by_itself(place: Place) -> None:
    killed_writer(place, "before pre-commit")
    deadline = time.monotonic() + 30
    writing = "SELECT count(*) FROM pg_locks WHERE relation = '{}'::regclass AND mode = 'RowExclusiveLock'"
    while place.ask(writing) != [(0,)]:
        assert time.monotonic() < deadline, "its session is still there"
        time.sleep(0.01)
    assert list(place.sink().recover()) == []
    assert place.values() == []
