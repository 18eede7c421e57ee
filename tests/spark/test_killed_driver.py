"""A driver is killed at every step of the protocol and restarted: the result is that of a run without a kill."""

import json
import os
import runpy
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Topic
from tests.spark.driver import driver
from tests.support.contents import in_files, in_table, left_in_files
from tests.support.postgres_server import PostgresServer

pytestmark = pytest.mark.crash

BATCHES = 6
KILLS = {0: "pre-committing", 1: "deciding", 2: "committing", 3: "committed", 4: "sweeping"}
"""The event at which the driver is killed, by batch. In the first, tasks have written and are about to vote."""


def add_source(folder: Path) -> None:
    """Add a file per batch. Each adds to the counts of the minute before it, and has a late record that is dropped only
    if the watermark came through the previous batch. So state or a watermark that a crash had set back would show."""
    (folder / "source").mkdir(parents=True)
    for batch in range(BATCHES):
        minutes = [batch] * 3 + [batch - 1] * 2 + [batch - 3]
        records = [
            {"at": f"2026-01-01T12:{30 + minute:02d}:50Z", "user": f"u{user}"}
            for minute in minutes
            for user in range(4)
        ]
        file = folder / "source" / f"{batch:03d}.json"
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        os.utime(file, (batch, batch))


def run_driver(folder: Path, topic: Topic, postgres: PostgresServer) -> int:
    """Run the driver until it ends or kills itself. Returns its exit code."""
    options = {"conninfo": postgres.conninfo, "table": "counts"}
    job = {"scene": "counts", "folder": str(folder), "kafka": topic.options, "postgres": options, "kills": KILLS}
    with driver(job) as process:
        return process.wait(timeout=200)


def archived(folder: Path) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in in_files(folder / "archive"))


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """A server with an empty table for the counts."""
    with PostgresServer(max_prepared_transactions=20) as server:
        with psycopg.connect(server.conninfo) as connection:
            connection.execute('CREATE TABLE counts ("user" text, minute text, count bigint)')
        yield server


def told(folder: Path, **wanted: Any) -> list[dict[str, Any]]:
    """The coordinators' events that have all wanted values, in order."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event for event in events if wanted.items() <= event.items()]


@pytest.fixture
def without_a_kill(spark: SparkSession, tmp_path: Path) -> Counter[tuple[Any, ...]]:
    """The result of the same query on the same source without a kill."""
    folder = tmp_path / "reference"
    add_source(folder)
    # Run and not imported, because the workers of the tests' session can't import it.
    runpy.run_path(str(Path(__file__).with_name("driver.py")))["count_events"](spark, folder)
    return archived(folder)


@pytest.mark.long
@pytest.mark.timeout(600)  # six starts of a driver, 12 to 20 s each, and more beside other tests
def test_a_driver_killed_at_every_step_gives_the_result_of_one_that_was_not(
    without_a_kill: Counter[tuple[Any, ...]], tmp_path: Path, topic: Topic, postgres: PostgresServer
) -> None:
    folder = tmp_path / "killed"
    add_source(folder)
    for batch, event in KILLS.items():
        assert run_driver(folder, topic, postgres) == -signal.SIGKILL, (folder / "driver.log").read_text()
        last = told(folder)[-1]
        assert (last["batch"], last["event"]) == (batch, event)
    assert run_driver(folder, topic, postgres) == 0, (folder / "driver.log").read_text()

    # The same records are in all target systems, and nothing is left open.
    assert archived(folder) == without_a_kill
    assert Counter(in_table(postgres.conninfo, "SELECT * FROM counts")) == without_a_kill
    assert in_table(postgres.conninfo, "SELECT gid FROM pg_prepared_xacts") == []
    assert topic.shows(
        [
            json.dumps({"user": user, "minute": minute, "count": count}, separators=(",", ":"))
            for user, minute, count in without_a_kill.elements()
        ]
    )
    assert topic.ongoing() == []
    assert left_in_files(folder / "archive") == []

    # Each batch was decided once, and decided batches were finished and not written again.
    for batch, event in KILLS.items():
        was_decided = event not in ("pre-committing", "deciding")
        [finished] = told(folder, event="finished", batch=batch)
        assert finished["already_decided"] == was_decided
        assert len(told(folder, event="pre-committing", batch=batch)) == (1 if was_decided else 2)
    assert {abort["sink"] for abort in told(folder, event="aborted", recovered=True)} == {"archive", "counts", "orders"}
    # The batch that was killed before phase two: all its transactions were committed by a later driver.
    assert {commit["recovered"] for commit in told(folder, event="committed", batch=2)} == {True}
